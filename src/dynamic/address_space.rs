//! Keys to the whole address space of this process: the dynamic API.

use std::ptr::NonNull;

use crate::base::attributes::Flags;
use crate::base::error::MemoryError;
use crate::base::memory::{Access, Slice};
use crate::dynamic::domain::{self, Domain};
use crate::transport::common::address_space;

/// One key to all memory of this process, mapped now or later (implicit on-demand paging): peers
/// and slices name bytes by their virtual addresses. The device requests pages when it accesses
/// them, so that the first access to a page is slow; [`Memory`](crate::Memory) is for what is
/// accessed often. An access to memory that is not mapped fails its endpoint.
///
/// It exists over `rc_mlx5`, `xrc_mlx5`, `dc_mlx5` and `rc_verbs`, on the software HCA and on
/// devices with implicit on-demand paging: where an interface has
/// [`Flags::WHOLE_ADDRESS_SPACE`].
#[derive(Debug)]
#[must_use = "dropping it ends all access by its key"]
pub struct AddressSpace(Kind);

/// The keys, by the crate that registered the memory.
#[derive(Debug)]
pub(crate) enum Kind {
    #[cfg(feature = "mlx5")]
    Mlx5(address_space::Keys<barewire_mlx5::MemoryRegion>),
    #[cfg(feature = "verbs")]
    Verbs(address_space::Keys<barewire_verbs::MemoryRegion>),
}

/// `with!(keys, inner => expression)`: the expression with the keys of the transport.
macro_rules! with {
    ($keys:expr, $inner:ident => $result:expr) => {
        match $keys {
            #[cfg(feature = "mlx5")]
            Kind::Mlx5($inner) => $result,
            #[cfg(feature = "verbs")]
            Kind::Verbs($inner) => $result,
        }
    };
}

impl Kind {
    pub(crate) fn slice(&self, address: u64, length: usize) -> Slice<'_> {
        with!(self, keys => keys.slice(address, length))
    }

    pub(crate) fn pack_key(&self) -> Vec<u8> {
        with!(self, keys => keys.pack_key())
    }

    pub(crate) fn deregister(&mut self) -> Result<(), MemoryError> {
        with!(self, keys => keys.deregister())
    }
}

impl Domain {
    /// Creates a key to all memory of this process.
    ///
    /// # Errors
    /// [`MemoryError::Unsupported`] names the transports that have such keys;
    /// [`MemoryError::AddressSpace`] if the device cannot.
    ///
    /// # Safety
    /// Until [`AddressSpace::deregister`] has returned `Ok`, all memory that slices name, and that
    /// peers with the key access, is accessed by this process only through atomics or this API, and
    /// memory that an atomic operation names stays mapped while the operation is executed.
    /// With remote rights, every peer that has the key must be trusted to access only such memory:
    /// it can read, or write, all memory of this process.
    pub unsafe fn whole_address_space(&self, access: Access) -> Result<AddressSpace, MemoryError> {
        match &self.0 {
            #[cfg(feature = "mlx5")]
            domain::Kind::RcMlx5(domain)
            | domain::Kind::XrcMlx5(domain)
            | domain::Kind::DcMlx5(domain) => {
                // SAFETY: the caller's promise.
                let space = unsafe { address_space::Keys::register(domain, access) };
                space.map(|space| AddressSpace(Kind::Mlx5(space)))
            }
            #[cfg(feature = "verbs")]
            domain::Kind::RcVerbs(domain) => {
                // SAFETY: the caller's promise.
                let space = unsafe { address_space::Keys::register(domain, access) };
                space.map(|space| AddressSpace(Kind::Verbs(space)))
            }
            _ => Err(self.lacks(Flags::WHOLE_ADDRESS_SPACE, "keys to the whole address space")),
        }
    }
}

impl AddressSpace {
    /// Returns the memory at `start` for zero-copy operations.
    ///
    /// # Safety
    /// Until the operations that use the slice are complete, this process accesses the `length`
    /// bytes at `start` only through atomics or this API.
    pub unsafe fn slice(&self, start: NonNull<u8>, length: usize) -> Slice<'_> {
        self.0.slice(start.addr().get() as u64, length)
    }

    /// Returns the bytes from which a peer creates its [`RemoteKey`](crate::RemoteKey).
    pub fn pack_key(&self) -> Vec<u8> {
        self.0.pack_key()
    }

    /// Ends all access by the key.
    ///
    /// # Errors
    /// [`MemoryError::Deregister`]: the device refused, and still has access.
    pub fn deregister(mut self) -> Result<(), MemoryError> {
        self.0.deregister()
    }
}
