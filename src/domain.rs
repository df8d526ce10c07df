//! Memory domains: the dynamic API.

use std::ptr::NonNull;

use crate::address::TransportId;
use crate::device::DeviceId;
use crate::error::{KeyError, MemoryError, OpenError};
use crate::memory::{Memory, MemoryConfig, RemoteKey};
use crate::transport::table::transports;
use crate::transport::{self, Domain as _, Transport};

/// A device opened by a transport, in which memory is registered and interfaces are opened.
#[derive(Debug, Clone)]
#[must_use = "dropping the last handle closes the device"]
pub struct Domain(pub(crate) Kind);

transports!(one_of!
    #[derive(Debug, Clone)]
    pub(crate) enum Kind of Domain
);

impl Domain {
    /// Opens a device. [`components`](crate::components) lists the devices of this machine.
    ///
    /// ```
    /// let domain = barewire::Domain::open(&"self/memory".parse()?)?;
    /// let memory = domain.allocate(4096, barewire::Access::all())?;
    /// memory.write(0, b"hello")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`OpenError::NotBuilt`] and [`OpenError::UnknownDevice`] list the alternatives;
    /// [`OpenError::Device`] if the device refuses.
    pub fn open(device: &DeviceId) -> Result<Self, OpenError> {
        let transport = device.transport();
        transports!(by_id! transport, T::open(device.name()).map(Self::from_static::<T>), else {
            Err(OpenError::NotBuilt { transport, known: TransportId::list(TransportId::BUILT) })
        })
    }

    /// Creates a domain of `rc_mlx5` on a software HCA that the caller opened, for tests and fault
    /// injection: the caller steps the device, or reads its counters. The signature has a type of
    /// `barewire-hca`, so a new major version of that crate is one of this crate.
    ///
    /// # Errors
    /// [`OpenError::Device`] if the device refuses.
    #[cfg(feature = "soft")]
    pub fn open_soft(device: barewire_hca::Device) -> Result<Self, OpenError> {
        transport::rc_mlx5::Domain::open_soft(device)
            .map(Self::from_static::<transport::rc_mlx5::RcMlx5>)
    }

    /// Wraps a domain of a transport's own type.
    pub fn from_static<T: Transport>(domain: T::Domain) -> Self {
        T::into_domain(domain)
    }

    /// Returns the domain as the transport's own type; `None` if it is of another transport.
    pub fn as_static<T: Transport>(&self) -> Option<&T::Domain> {
        T::from_domain(self)
    }

    /// Returns the transport.
    pub fn transport(&self) -> TransportId {
        transports!(each! &self.0, _domain => T::ID)
    }

    /// Returns the device's name. Two domains of one node with equal names use the same device,
    /// even over different transports.
    pub fn name(&self) -> &str {
        transports!(each! &self.0, domain => transport::Domain::name(domain))
    }

    /// Allocates zeroed, page-aligned memory and registers it.
    ///
    /// # Errors
    /// [`MemoryError`]
    pub fn allocate(
        &self,
        len: usize,
        config: impl Into<MemoryConfig>,
    ) -> Result<Memory, MemoryError> {
        let config = config.into();
        transports!(each! &self.0, domain => domain.allocate(len, config).map(Memory::from_static::<T>))
    }

    /// Registers memory that the domain does not own.
    ///
    /// # Errors
    /// [`MemoryError`]
    ///
    /// # Safety
    /// Until [`Memory::deregister`] has returned `Ok`, `[start, start + len)` stays mapped, and
    /// this process accesses it only through atomics or this API. Dropping the memory deregisters
    /// it too, but cannot report that the device refused: memory that was dropped must stay mapped
    /// for the life of the process.
    pub unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        config: impl Into<MemoryConfig>,
    ) -> Result<Memory, MemoryError> {
        let config = config.into();
        transports!(each! &self.0, domain => {
            // SAFETY: the function of the transport has the same contract as this function, and
            // gets the same arguments.
            unsafe { domain.register(start, len, config) }.map(Memory::from_static::<T>)
        })
    }

    /// Creates a key from the bytes of the peer's [`Memory::pack_key`].
    ///
    /// Over `shm` the first operation with a key to a region returns
    /// [`NoResource`](crate::PostError::NoResource) until the owner of the region makes progress
    /// and passes the region on; later ones need no progress of the owner.
    ///
    /// # Errors
    /// [`KeyError`]
    pub fn unpack_key(&self, bytes: &[u8]) -> Result<RemoteKey, KeyError> {
        transports!(each! &self.0, domain => domain.unpack_key(bytes).map(RemoteKey::from_static::<T>))
    }
}
