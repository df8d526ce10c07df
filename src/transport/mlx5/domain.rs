//! The domain: an open device, a protection domain, and memory in it.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use barewire_mlx5::channel::DeviceEvents;
use barewire_mlx5::memory::{DeviceMemory, MemoryConfig as DeviceConfig};
use barewire_mlx5::{
    self as mlx5, Context, Family, MemoryRegion, Port, PortOptions, ProtectionDomain,
};
use barewire_shared_bytes::SharedBytes;

use super::KEYS;
use super::revoked::Revoked;
use crate::base::address::TransportId;
use crate::base::attributes::Flags;
use crate::base::config::InterfaceConfig;
use crate::base::error::{MemoryError, OpenError};
use crate::base::memory::{Access, MemoryConfig, domain_tag};
use crate::base::random;
use crate::transport::common::registered::{self, Domain as _, Region, device_access, refused};
use crate::transport::common::watch::{self, Watch};

/// A region registered with the device.
pub type Memory = registered::Memory<MemoryRegion>;

/// Name of the software HCA. Each domain that opens it creates its own device.
pub const SOFT_DEVICE: &str = "soft0:1";

#[cfg(all(feature = "soft", not(feature = "verbs")))]
const KNOWN: &str = "soft0:1; this build has no feature verbs, for devices of the machine";
#[cfg(not(any(feature = "soft", feature = "verbs")))]
const KNOWN: &str = "none; this build has no feature verbs, for devices of the machine, and no feature \
                     soft, for the software HCA";

/// One device and one protection domain. A clone is another handle to the same one.
#[derive(Clone, Debug)]
pub struct Domain {
    shared: Arc<Shared>,
    /// The port, with its GID and partition.
    port: Port,
}

#[derive(Debug)]
struct Shared {
    protection: ProtectionDomain,
    device: String,
    tag: u32,
    /// The watch of the device, started by its first interface; `None` if it has no events.
    watch: OnceLock<Option<Watch>>,
    /// Its interfaces of `xrc_mlx5`, since the first one.
    node: OnceLock<Node>,
    revoked: Revoked,
}

/// The longest sleep before progress looks for an event of the device.
pub(in crate::transport) const ATTENTION: Duration = Duration::from_secs(1);

/// The interfaces of `xrc_mlx5` of a domain, which share the connections of their peers.
#[derive(Debug)]
pub(in crate::transport) struct Node {
    pub(in crate::transport) domain: mlx5::xrc::Domain,
    /// A random number that identifies the node.
    pub(in crate::transport) id: u64,
}

/// The events of the device.
struct Events(Box<dyn DeviceEvents>);

impl watch::Source for Events {
    fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        self.0.descriptor()
    }

    fn failure(&self) -> Option<String> {
        self.0.failure()
    }
}

impl Domain {
    /// Opens a device by name; port 1 if the name has no port. `soft0:1` creates a software HCA for this domain, with the address
    /// and faults that the environment variables of `barewire-hca` set. With the feature `verbs`,
    /// `mlx5_0:1` is port 1 of a device of this machine, set up as the environment variable
    /// `BAREWIRE_MLX5_SETUP` says: `devx`, `init_obj`, or by default the first of these that works.
    ///
    /// # Errors
    /// [`OpenError::UnknownDevice`] for a name that does not exist, [`OpenError::Device`] if the
    /// device could not be created or set up.
    pub fn open(device: &str) -> Result<Self, OpenError> {
        #[cfg(feature = "soft")]
        if SOFT_DEVICE == device || SOFT_DEVICE.strip_suffix(":1") == Some(device) {
            return super::soft::open();
        }
        #[cfg(feature = "verbs")]
        return super::hardware::open(device);
        #[cfg(not(feature = "verbs"))]
        Err(OpenError::UnknownDevice {
            transport: KEYS,
            device: device.to_owned(),
            known: KNOWN.to_owned(),
        })
    }

    /// Creates a domain on a device that the caller opened through the driver. `device` is its name
    /// in errors.
    ///
    /// It is for programs that use `barewire-mlx5` as well, to share one device with this library
    /// or to open it through a command channel of their own. Others call [`Self::open`]. The
    /// signature has a type of `barewire-mlx5`, so a new major version of that crate is one of this
    /// crate.
    ///
    /// # Errors
    /// [`OpenError::Device`] if the device refuses.
    pub fn new(context: &Context, device: &str) -> Result<Self, OpenError> {
        let protection = ProtectionDomain::allocate(context)
            .map_err(|e| refused(device, "allocate a protection domain", e))?;
        let (device, tag) = (device.to_owned(), domain_tag());
        let (watch, node) = (OnceLock::new(), OnceLock::new());
        let shared = Shared { protection, device, tag, watch, node, revoked: Revoked::new() };
        Ok(Self { shared: Arc::new(shared), port: *context.port() })
    }

    /// Sets the flags in which the software HCA differs from other devices.
    pub(in crate::transport) fn note_software(&self, flags: &mut Flags) {
        flags.note_software(self.shared.device == SOFT_DEVICE);
    }

    /// As [`crate::Domain::allocate_on_device`].
    ///
    /// # Errors
    /// [`MemoryError::Empty`]; [`MemoryError::OnDevice`] if the memory could not be allocated or
    /// registered.
    pub fn allocate_on_device(&self, len: usize, access: Access) -> Result<Memory, MemoryError> {
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        let refused =
            |error: mlx5::Error| MemoryError::OnDevice { length: len, source: error.into() };
        let memory = DeviceMemory::allocate(&self.shared.protection, len).map_err(refused)?;
        let access = device_access(access);
        let region = MemoryRegion::register_on_device(&memory, access).map_err(refused)?;
        let bytes = SharedBytes::at(memory.as_ptr(), memory.len(), region.address());
        // SAFETY: the region has a handle of the memory, which it drops or leaks when it is
        // deregistered.
        Ok(unsafe { Memory::kept_by(region, bytes, self.shared.tag) })
    }

    /// Returns the domain with the GID and the partition that the settings name.
    ///
    /// # Errors
    /// [`OpenError::Device`] if an entry does not exist or is not usable.
    pub(in crate::transport) fn chosen(&self, config: &InterfaceConfig) -> Result<Self, OpenError> {
        let options = PortOptions { gid_index: config.gid_index, partition_key: config.pkey };
        let port = self
            .context()
            .choose_port(options)
            .map_err(|e| self.refused("choose the wanted GID and partition", e))?;
        Ok(Self { shared: Arc::clone(&self.shared), port })
    }

    /// Tests a family of objects before its first use.
    ///
    /// # Errors
    /// [`OpenError::Device`] if it does not work, with what to use instead.
    pub(in crate::transport) fn check_family(&self, family: Family) -> Result<(), OpenError> {
        let tested = self.context().test_on(family, &self.port);
        tested.map_err(|e| self.refused("use a family of objects", e))
    }

    /// Returns the watch of the device, which the first call starts.
    ///
    /// # Errors
    /// [`OpenError::Device`] if the kernel refuses.
    pub(in crate::transport) fn watch(&self) -> Result<Option<&Watch>, OpenError> {
        if let Some(watch) = self.shared.watch.get() {
            return Ok(watch.as_ref());
        }
        let events = self.context().device_events();
        let events = events.map_err(|e| self.refused("watch its events", e))?;
        let watch = events.map(|events| Watch::start(Events(events))).transpose();
        let watch = watch.map_err(|e| self.refused("watch its events", e))?;
        Ok(self.shared.watch.get_or_init(|| watch).as_ref())
    }

    /// Returns the node, which the first call creates.
    ///
    /// # Errors
    /// Those of the driver.
    pub(in crate::transport) fn node(&self) -> Result<&Node, mlx5::Error> {
        if let Some(node) = self.shared.node.get() {
            return Ok(node);
        }
        let domain = mlx5::xrc::Domain::allocate(self.context())?;
        Ok(self.shared.node.get_or_init(|| Node { domain, id: random::number() }))
    }

    /// Returns the keys that peers invalidated.
    pub(in crate::transport) fn revoked(&self) -> &Revoked {
        &self.shared.revoked
    }

    /// Returns the device's name and the event that reported its failure.
    pub(in crate::transport) fn failure(&self) -> Option<String> {
        let event = self.watch().ok()??.failure()?;
        Some(format!("{} reported {event}", self.shared.device))
    }

    /// Returns the port, with its GID and partition.
    pub(in crate::transport) fn port(&self) -> &Port {
        &self.port
    }

    /// The open device, for other users of the driver, such as channels. Like [`Self::new`], it names
    /// a type of `barewire-mlx5`.
    pub fn context(&self) -> &Context {
        self.shared.protection.context()
    }
}

// SAFETY: `new` allocates the protection domain and lends it to no other code. Sending commands is
// unsafe, and the contract of `CommandChannel::execute` forbids commands that name its keys.
unsafe impl registered::Domain for Domain {
    type Region = MemoryRegion;

    fn protection(&self) -> &ProtectionDomain {
        &self.shared.protection
    }

    fn device(&self) -> &str {
        &self.shared.device
    }

    fn tag(&self) -> u32 {
        self.shared.tag
    }
}

impl Region for MemoryRegion {
    type Protection = ProtectionDomain;

    const KEYS: TransportId = KEYS;

    unsafe fn register(
        protection: &ProtectionDomain,
        start: NonNull<u8>,
        length: usize,
        address: u64,
        config: MemoryConfig,
    ) -> Result<Self, MemoryError> {
        let rights = device_access::<mlx5::Access>(config.access());
        let mut wanted = DeviceConfig::new(rights).at(address);
        if config.is_on_demand() {
            wanted = wanted.on_demand();
        }
        // SAFETY: the caller keeps the memory mapped, and accesses it in ways that tolerate a
        // device, until the region is deregistered (contract of this function).
        let region = unsafe { Self::register(protection, start, length, wanted) };
        region.map_err(|error| match error {
            mlx5::Error::OutOfMemory { .. } => MemoryError::NoMemory { length },
            error => MemoryError::Device { length, source: error.into() },
        })
    }

    unsafe fn register_address_space(
        protection: &ProtectionDomain,
        access: Access,
    ) -> Result<Self, MemoryError> {
        // SAFETY: this function has the same contract.
        unsafe { Self::register_address_space(protection, device_access(access)) }
            .map_err(|error| MemoryError::AddressSpace { source: error.into() })
    }

    unsafe fn register_dma_buf(
        protection: &ProtectionDomain,
        buffer: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        config: MemoryConfig,
    ) -> Result<Self, MemoryError> {
        let rights = device_access::<mlx5::Access>(config.access());
        let wanted = DeviceConfig::new(rights).at(config.address_or(offset));
        // SAFETY: this function has the same contract.
        unsafe { Self::register_dma_buf(protection, buffer, offset, length, wanted) }
            .map_err(|error| MemoryError::DmaBuf { length, source: error.into() })
    }

    fn prefetch(&self, range: Range<usize>, write: bool) -> Result<(), MemoryError> {
        let length = range.len();
        Self::prefetch(self, range, write)
            .map_err(|error| MemoryError::Prefetch { length, source: error.into() })
    }

    fn deregister(self, length: usize) -> Result<(), MemoryError> {
        self.deregister().map_err(|error| MemoryError::Deregister { length, source: error.into() })
    }

    fn keys(&self) -> (u32, u32) {
        (self.lkey(), self.rkey())
    }
}
