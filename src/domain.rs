//! Memory domains: the dynamic API.

use std::ptr::NonNull;

use crate::address::TransportId;
use crate::error::{KeyError, MemoryError, OpenError};
use crate::memory::{Access, Memory, RemoteKey};
use crate::transport::table::transports;
use crate::transport::{Transport, rc_mlx5};

/// One device opened by one transport: memory is registered and interfaces are opened in it.
#[derive(Debug, Clone)]
pub struct Domain(pub(crate) Kind);

transports!(one_of!
    #[derive(Debug, Clone)]
    pub(crate) enum Kind of Domain
);

impl Domain {
    /// Opens a device by the names that [`components`](crate::components) lists. The transport is a name or a
    /// [`TransportId`].
    ///
    /// ```
    /// let domain = barewire::Domain::open(barewire::TransportId::Self_, "memory")?;
    /// let memory = domain.allocate(4096, barewire::Access::all())?;
    /// memory.write(0, b"hello")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`OpenError::UnknownTransport`] and [`OpenError::UnknownDevice`] list what there is;
    /// [`OpenError::Device`] if the device refuses.
    pub fn open(transport: impl AsRef<str>, device: &str) -> Result<Self, OpenError> {
        let transport = transport.as_ref();
        let unknown = || {
            let known: Vec<_> = TransportId::BUILT.iter().map(|id| id.name()).collect();
            Err(OpenError::UnknownTransport { name: transport.to_owned(), known: known.join(", ") })
        };
        let Ok(id) = transport.parse() else { return unknown() };
        transports!(by_id! id, T::open(device).map(Self::from_static::<T>), else unknown())
    }

    /// A domain of `rc_mlx5` on a software HCA that the caller opened, for tests and fault injection.
    ///
    /// # Errors
    /// [`OpenError::Device`] if the device refuses.
    pub fn open_soft(device: barewire_hca::Device) -> Result<Self, OpenError> {
        rc_mlx5::Domain::open_soft(device).map(Self::from_static::<rc_mlx5::RcMlx5>)
    }

    /// The domain of a transport's own type.
    pub fn from_static<T: Transport>(domain: T::Domain) -> Self {
        T::into_domain(domain)
    }

    /// The domain as the transport's own type; `None` if it is another transport's.
    pub fn as_static<T: Transport>(&self) -> Option<&T::Domain> {
        T::from_domain(self)
    }

    /// The transport.
    pub fn transport_id(&self) -> TransportId {
        transports!(each! &self.0, _domain => T::ID)
    }

    /// The transport's name.
    pub fn transport(&self) -> &'static str {
        transports!(each! &self.0, _domain => T::ID.name())
    }

    /// Allocates zeroed, page-aligned memory and registers it.
    ///
    /// # Errors
    /// [`MemoryError`]
    pub fn allocate(&self, len: usize, access: Access) -> Result<Memory, MemoryError> {
        transports!(each! &self.0, domain => domain.allocate(len, access).map(Memory::from_static::<T>))
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
        transports!(each! &self.0, domain => {
            // SAFETY: the function of the transport has the same contract, which the caller keeps.
            unsafe { domain.register(start, len, access) }.map(Memory::from_static::<T>)
        })
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
        transports!(each! &self.0, domain => domain.unpack_key(bytes).map(RemoteKey::from_static::<T>))
    }
}
