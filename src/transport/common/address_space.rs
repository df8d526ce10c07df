//! Keys to memory that is not a range of this process: its whole address space, or memory of other
//! devices.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use barewire_shared_bytes::SharedBytes;

use super::registered::{Domain, Region};
use crate::base::address::{Kind, Packed};
use crate::base::error::MemoryError;
use crate::base::memory::{Access, MemoryConfig, Slice};

/// The keys of [`crate::AddressSpace`] and [`crate::DmaBuf`].
#[derive(Debug)]
pub(crate) struct Keys<R: Region> {
    /// `None` after deregistration.
    region: Option<R>,
    local: u32,
    remote: u32,
    tag: u32,
    length: usize,
    /// The bytes of slices: none, so that transports that copy slices refuse these.
    nothing: SharedBytes,
}

impl<R: Region> Keys<R> {
    /// # Safety
    /// As [`Region::register_address_space`], until [`Self::deregister`] has returned `Ok`.
    pub(crate) unsafe fn register<D: Domain<Region = R>>(
        domain: &D,
        access: Access,
    ) -> Result<Self, MemoryError> {
        // SAFETY: this function has the same contract; `deregister` returns `Ok` only after the
        // region's function has.
        let region = unsafe { R::register_address_space(domain.protection(), access) }?;
        Ok(Self::of(region, domain.tag(), usize::MAX))
    }

    /// # Safety
    /// As [`Region::register_dma_buf`], until [`Self::deregister`] has returned `Ok`.
    pub(crate) unsafe fn register_dma_buf<D: Domain<Region = R>>(
        domain: &D,
        buffer: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        config: MemoryConfig,
    ) -> Result<Self, MemoryError> {
        let protection = domain.protection();
        // SAFETY: as in `register`.
        let region = unsafe { R::register_dma_buf(protection, buffer, offset, length, config) }?;
        Ok(Self::of(region, domain.tag(), length))
    }

    fn of(region: R, tag: u32, length: usize) -> Self {
        let nothing = SharedBytes::at(NonNull::dangling(), 0, 0);
        let (local, remote) = region.keys();
        Self { region: Some(region), local, remote, tag, length, nothing }
    }

    /// Returns the slice at an address as peers name it.
    pub(crate) fn slice(&self, address: u64, length: usize) -> Slice<'_> {
        Slice { address, length, key: self.local, domain: self.tag, memory: &self.nothing }
    }

    pub(crate) fn pack_key(&self) -> Vec<u8> {
        Packed::new(Kind::Key, R::KEYS, &self.remote.to_be_bytes()).bytes().to_vec()
    }

    pub(crate) fn deregister(&mut self) -> Result<(), MemoryError> {
        self.region.take().map_or(Ok(()), |region| region.deregister(self.length))
    }
}

impl<R: Region> Drop for Keys<R> {
    fn drop(&mut self) {
        if let Err(error) = self.deregister() {
            tracing::error!("{error}");
        }
    }
}
