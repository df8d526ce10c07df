//! Memory domains: the dynamic API.

use std::ptr::NonNull;

use crate::base::address::TransportId;
use crate::base::attributes::Flags;
use crate::base::config::InterfaceConfig;
use crate::base::device::DeviceId;
use crate::base::error::{KeyError, MemoryError, OpenError};
use crate::base::memory::{Access, MemoryConfig};
use crate::dynamic::memory::{Memory, RemoteKey};
use crate::dynamic::table::transports;
use crate::dynamic::transport::Transport;
use crate::transport::{self, Domain as _};

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
    pub fn allocate(
        &self,
        len: usize,
        config: impl Into<MemoryConfig>,
    ) -> Result<Memory, MemoryError> {
        let config = config.into();
        transports!(each! &self.0, domain => domain.allocate(len, config).map(Memory::from_static::<T>))
    }

    /// Allocates zeroed memory on the device (MEMIC) and registers it. The length is rounded up to
    /// a multiple of 64 bytes. A ConnectX has 128 KiB.
    ///
    /// Peers access it without a transfer over this host's bus: it suits what they change or poll
    /// often, such as counters and locks. It is used like any [`Memory`]. Peers name bytes by their
    /// offsets: [`Memory::address`] is 0. This process reads and writes it over the bus; accesses
    /// of whole words of 8 bytes are the fastest, and the only ones that are atomic with accesses
    /// of the device.
    ///
    /// ```
    /// # #[cfg(feature = "soft")] {
    /// use barewire::{Access, Domain};
    ///
    /// let domain = Domain::open(&"rc_mlx5/soft0:1".parse()?)?;
    /// let counter = domain.allocate_on_device(8, Access::REMOTE_ATOMIC)?;
    /// assert_eq!((counter.address(), counter.len(), counter.load_u64(0)?), (0, 64, 0));
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`MemoryError::Unsupported`] names the transports that have such memory, as does
    /// [`Flags::DEVICE_MEMORY`]; [`MemoryError::Empty`]; [`MemoryError::OnDevice`] if the device
    /// has none or not enough left, or refused to register it.
    pub fn allocate_on_device(&self, len: usize, access: Access) -> Result<Memory, MemoryError> {
        #[cfg(not(feature = "mlx5"))]
        let _ = (len, access);
        match &self.0 {
            #[cfg(feature = "mlx5")]
            Kind::RcMlx5(domain) => domain
                .allocate_on_device(len, access)
                .map(Memory::from_static::<transport::rc_mlx5::RcMlx5>),
            #[cfg(feature = "mlx5")]
            Kind::XrcMlx5(domain) => domain
                .allocate_on_device(len, access)
                .map(Memory::from_static::<transport::xrc_mlx5::XrcMlx5>),
            #[cfg(feature = "mlx5")]
            Kind::DcMlx5(domain) => domain
                .allocate_on_device(len, access)
                .map(Memory::from_static::<transport::dc_mlx5::DcMlx5>),
            _ => Err(self.lacks(Flags::DEVICE_MEMORY, "memory on the device")),
        }
    }

    /// Returns the error of a transport without `what`, which those with the flag have.
    pub(crate) fn lacks(&self, needs: Flags, what: &'static str) -> MemoryError {
        MemoryError::Unsupported { transport: self.transport(), what, instead: having(needs) }
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
    /// Over `shm` the first operation with a key maps the region. Where the kernel denies that, for
    /// example to another user, it returns [`NoResource`](crate::PostError::NoResource) until the
    /// owner of the region makes progress and passes the region on.
    pub fn unpack_key(&self, bytes: &[u8]) -> Result<RemoteKey, KeyError> {
        transports!(each! &self.0, domain => domain.unpack_key(bytes).map(RemoteKey::from_static::<T>))
    }
}

/// Returns the transports of this build that have a feature, separated by commas.
pub(crate) fn having(needs: Flags) -> String {
    let config = InterfaceConfig::default();
    let has = |transport: TransportId| transports!(by_id! transport, T::attributes(&config).flags.contains(needs), else { false });
    let having: Vec<_> = TransportId::BUILT.iter().copied().filter(|id| has(*id)).collect();
    TransportId::list(&having)
}
