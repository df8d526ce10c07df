//! Memory domains: the dynamic door.

use std::ptr::NonNull;

use crate::error::{KeyError, MemoryError, OpenError};
use crate::memory::{Access, Memory, RemoteKey};
use crate::transport::{cma, rc_mlx5, self_, shm, tcp};
#[cfg(feature = "verbs")]
use crate::transport::{rc_verbs, ud_verbs};

/// The transports of this build.
const KNOWN: &[&str] = &[
    self_::NAME,
    rc_mlx5::NAME,
    shm::NAME,
    cma::NAME,
    tcp::NAME,
    #[cfg(feature = "verbs")]
    rc_verbs::NAME,
    #[cfg(feature = "verbs")]
    ud_verbs::NAME,
];

/// One device opened by one transport: where memory is registered and interfaces are opened.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Domain {
    /// Of `self`.
    Self_(self_::Domain),
    /// Of `rc_mlx5`.
    RcMlx5(rc_mlx5::Domain),
    /// Of `shm`.
    Shm(shm::Domain),
    /// Of `cma`.
    Cma(cma::Domain),
    /// Of `rc_verbs`.
    #[cfg(feature = "verbs")]
    RcVerbs(rc_verbs::Domain),
    /// Of `ud_verbs`.
    #[cfg(feature = "verbs")]
    UdVerbs(ud_verbs::Domain),
    /// Of `tcp`.
    Tcp(tcp::Domain),
}

impl Domain {
    /// Opens a device by the names that [`components`](crate::components) lists.
    ///
    /// ```
    /// let domain = barewire::Domain::open("self", "memory")?;
    /// let memory = domain.allocate(4096, barewire::Access::all())?;
    /// memory.write(0, b"hello")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`OpenError::UnknownTransport`] and [`OpenError::UnknownDevice`] list what there is;
    /// [`OpenError::Device`] if the device refuses.
    pub fn open(transport: &str, device: &str) -> Result<Self, OpenError> {
        match transport {
            self_::NAME => self_::Domain::open(device).map(Self::Self_),
            rc_mlx5::NAME => rc_mlx5::Domain::open(device).map(Self::RcMlx5),
            shm::NAME => shm::Domain::open(device).map(Self::Shm),
            cma::NAME => cma::Domain::open(device).map(Self::Cma),
            #[cfg(feature = "verbs")]
            rc_verbs::NAME => rc_verbs::Domain::open(device).map(Self::RcVerbs),
            #[cfg(feature = "verbs")]
            ud_verbs::NAME => ud_verbs::Domain::open(device).map(Self::UdVerbs),
            tcp::NAME => tcp::Domain::open(device).map(Self::Tcp),
            _ => Err(OpenError::UnknownTransport { name: transport.to_owned(), known: KNOWN.join(", ") }),
        }
    }

    /// A domain of `rc_mlx5` on a software HCA that the caller opened, for tests and fault injection.
    ///
    /// # Errors
    /// [`OpenError::Device`] if the device refuses.
    pub fn open_soft(device: barewire_hca::Device) -> Result<Self, OpenError> {
        rc_mlx5::Domain::open_soft(device).map(Self::RcMlx5)
    }

    /// The transport's name.
    pub fn transport(&self) -> &'static str {
        match self {
            Self::Self_(_) => self_::NAME,
            Self::RcMlx5(_) => rc_mlx5::NAME,
            Self::Shm(_) => shm::NAME,
            Self::Cma(_) => cma::NAME,
            #[cfg(feature = "verbs")]
            Self::RcVerbs(_) => rc_verbs::NAME,
            #[cfg(feature = "verbs")]
            Self::UdVerbs(_) => ud_verbs::NAME,
            Self::Tcp(_) => tcp::NAME,
        }
    }

    /// Allocates zeroed, page-aligned memory and registers it.
    ///
    /// # Errors
    /// [`MemoryError`]
    pub fn allocate(&self, len: usize, access: Access) -> Result<Memory, MemoryError> {
        match self {
            Self::Self_(domain) => domain.allocate(len, access).map(Memory::Self_),
            Self::RcMlx5(domain) => domain.allocate(len, access).map(Memory::RcMlx5),
            Self::Shm(domain) => domain.allocate(len, access).map(Memory::Shm),
            Self::Cma(domain) => domain.allocate(len, access).map(Memory::Cma),
            #[cfg(feature = "verbs")]
            Self::RcVerbs(domain) | Self::UdVerbs(domain) => {
                domain.allocate(len, access).map(Memory::RcVerbs)
            }
            Self::Tcp(domain) => domain.allocate(len, access).map(Memory::Tcp),
        }
    }

    /// Registers memory that someone else owns.
    ///
    /// # Errors
    /// [`MemoryError`]
    ///
    /// # Safety
    /// Until [`Memory::deregister`] has returned `Ok`, `[start, start + len)` stays mapped, and this process
    /// accesses it in no other way than through atomics or this API. Dropping the memory deregisters it
    /// too, but cannot report that the device refused: memory that was dropped stays as it is for the
    /// life of the process.
    pub unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Memory, MemoryError> {
        match self {
            // SAFETY: the caller's promise.
            Self::Self_(domain) => unsafe { domain.register(start, len, access) }.map(Memory::Self_),
            // SAFETY: the caller's promise.
            Self::RcMlx5(domain) => unsafe { domain.register(start, len, access) }.map(Memory::RcMlx5),
            // SAFETY: the caller's promise.
            Self::Shm(domain) => unsafe { domain.register(start, len, access) }.map(Memory::Shm),
            // SAFETY: the caller's promise.
            Self::Cma(domain) => unsafe { domain.register(start, len, access) }.map(Memory::Cma),
            #[cfg(feature = "verbs")]
            Self::RcVerbs(domain) | Self::UdVerbs(domain) => {
                // SAFETY: the caller's promise.
                unsafe { domain.register(start, len, access) }.map(Memory::RcVerbs)
            }
            // SAFETY: the caller's promise.
            Self::Tcp(domain) => unsafe { domain.register(start, len, access) }.map(Memory::Tcp),
        }
    }

    /// Makes a key from the bytes of the peer's [`Memory::pack_key`].
    ///
    /// Over `shm` the first operation with a key to a region returns
    /// [`NoResource`](crate::PostError::NoResource) until the owner of the region makes progress and
    /// hands the region over; later ones need no progress of the owner.
    ///
    /// # Errors
    /// [`KeyError`]
    pub fn unpack_key(&self, bytes: &[u8]) -> Result<RemoteKey, KeyError> {
        match self {
            Self::Self_(domain) => domain.unpack_key(bytes).map(RemoteKey::Self_),
            Self::RcMlx5(domain) => domain.unpack_key(bytes).map(RemoteKey::RcMlx5),
            Self::Shm(domain) => domain.unpack_key(bytes).map(RemoteKey::Shm),
            Self::Cma(domain) => domain.unpack_key(bytes).map(RemoteKey::Cma),
            #[cfg(feature = "verbs")]
            Self::RcVerbs(domain) | Self::UdVerbs(domain) => domain.unpack_key(bytes).map(RemoteKey::RcVerbs),
            Self::Tcp(domain) => domain.unpack_key(bytes).map(RemoteKey::Tcp),
        }
    }
}
