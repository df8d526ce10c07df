//! Keys to the whole address space of this process.

use std::ptr::NonNull;

use barewire_shared_bytes::SharedBytes;

use super::registered::{Domain, Region};
use crate::address::{Kind, Packed};
use crate::error::MemoryError;
use crate::memory::{Access, Slice};

/// As [`crate::AddressSpace`].
#[derive(Debug)]
pub(crate) struct AddressSpace<R: Region> {
    /// `None` after deregistration.
    region: Option<R>,
    /// The lkey and the rkey.
    keys: (u32, u32),
    tag: u32,
    /// The bytes of slices: none, so that transports that copy slices refuse these.
    nothing: SharedBytes,
}

impl<R: Region> AddressSpace<R> {
    /// # Safety
    /// As [`Region::register_address_space`], until [`Self::deregister`] has returned `Ok`.
    pub(crate) unsafe fn register<D: Domain<Region = R>>(
        domain: &D,
        access: Access,
    ) -> Result<Self, MemoryError> {
        // SAFETY: this function has the same contract; `deregister` returns `Ok` only after the
        // region's function has.
        let region = unsafe { R::register_address_space(domain.protection(), access) }?;
        let (keys, tag) = (region.keys(), domain.tag());
        let nothing = SharedBytes::at(NonNull::dangling(), 0, 0);
        Ok(Self { region: Some(region), keys, tag, nothing })
    }

    pub(crate) fn slice(&self, start: NonNull<u8>, length: usize) -> Slice<'_> {
        let (address, key) = (start.addr().get() as u64, self.keys.0);
        Slice { address, length, key, domain: self.tag, memory: &self.nothing }
    }

    pub(crate) fn pack_key(&self) -> Vec<u8> {
        Packed::new(Kind::Key, R::KEYS, &self.keys.1.to_be_bytes()).bytes().to_vec()
    }

    pub(crate) fn deregister(&mut self) -> Result<(), MemoryError> {
        self.region.take().map_or(Ok(()), |region| region.deregister(usize::MAX))
    }
}

impl<R: Region> Drop for AddressSpace<R> {
    fn drop(&mut self) {
        if let Err(error) = self.deregister() {
            tracing::error!("{error}");
        }
    }
}
