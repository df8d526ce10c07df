//! The domain: a port of an open device, a protection domain, and memory in it.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use barewire_verbs::{
    self as verbs, Context, GidEntry, Limits, MemoryRegion, Port, PortOptions, ProtectionDomain,
};

use super::ID;
use super::events::Events;
use crate::base::address::TransportId;
use crate::base::config::InterfaceConfig;
use crate::base::error::{MemoryError, OpenError};
use crate::base::memory::{Access, MemoryConfig, domain_tag};
use crate::transport::common::registered::{self, Domain as _, Region, device_access, refused};

/// A region registered with the device.
pub type Memory = registered::Memory<MemoryRegion>;
/// Registered memory that a pool divides into buffers.
pub(crate) type Registered = registered::Registered<MemoryRegion>;

/// One port of a device and one protection domain. A clone is another handle to the same one.
#[derive(Clone, Debug)]
pub struct Domain {
    shared: Arc<Shared>,
    local: Local,
}

/// The entries of the port's tables that queue pairs use.
#[derive(Clone, Copy, Debug)]
struct Local {
    /// The local address, unless the port has a LID.
    gid: Option<GidEntry>,
    partition_index: u16,
}

#[derive(Debug)]
struct Shared {
    context: Context,
    protection: ProtectionDomain,
    port: Port,
    limits: Limits,
    events: Events,
    device: String,
    tag: u32,
}

/// A port of a device of this machine.
#[derive(Debug)]
pub(crate) struct Found {
    /// Name for [`Domain::open`].
    pub(crate) device: String,
    /// Its address and the reason for the choice, or why the port cannot be used.
    pub(crate) state: Result<String, String>,
}

/// Returns every port of every device. Each is opened and closed.
pub(crate) fn found() -> Vec<Found> {
    let devices = verbs::devices().unwrap_or_default();
    let ports = devices.iter().flat_map(|device| {
        let count = Context::open(&device.name).map_or(1, |context| context.port_count());
        (1..=count).map(|port| format!("{}:{port}", device.name))
    });
    let found = ports.map(|device| {
        let state = Domain::open(&device).map_err(|error| error.to_string());
        Found { state: state.map(|domain| domain.address_in_words()), device }
    });
    found.collect()
}

impl Domain {
    /// Opens `NAME:PORT`, a port of a device of this machine; the default port is 1. On Ethernet it
    /// chooses the GID, RoCEv2 over IPv4 if there is one.
    ///
    /// # Errors
    /// [`OpenError::UnknownDevice`], which names the known ones; [`OpenError::Device`] if the
    /// device cannot be opened or its port is not active.
    pub fn open(device: &str) -> Result<Self, OpenError> {
        let (name, port) = match device.split_once(':') {
            None => (device, Some(1)),
            Some((name, port)) => (name, port.parse().ok()),
        };
        let known = verbs::devices().map_err(|error| refused(device, "list the devices", error))?;
        let Some(port) = port.filter(|_| known.iter().any(|known| known.name == name)) else {
            let known: Vec<_> = known.iter().map(|device| format!("{}:1", device.name)).collect();
            return Err(OpenError::UnknownDevice {
                transport: ID,
                device: device.to_owned(),
                known: if known.is_empty() { "none".to_owned() } else { known.join(", ") },
            });
        };
        let context = Context::open(name).map_err(|e| refused(device, "open it", e))?;
        let port = context.query_port(port).map_err(|e| refused(device, "query its port", e))?;
        if port.state != verbs::PortState::Active {
            return Err(refused(
                device,
                "use its port",
                format!("it is {:?}, not active", port.state),
            ));
        }
        let protection = ProtectionDomain::new(&context)
            .map_err(|e| refused(device, "allocate a protection domain", e))?;
        let local = Local::choose(&context, &protection, &port, PortOptions::default())
            .map_err(|e| refused(device, "choose a GID and a partition", e))?;
        let limits = context.limits().map_err(|e| refused(device, "query its limits", e))?;
        let (device, tag, events) = (device.to_owned(), domain_tag(), Events::default());
        let shared = Shared { context, protection, port, limits, events, device, tag };
        Ok(Self { shared: Arc::new(shared), local })
    }

    /// Returns the domain with the GID and the partition that the settings name.
    ///
    /// # Errors
    /// [`OpenError::Device`] if an entry does not exist or is not usable.
    pub(crate) fn chosen(&self, config: &InterfaceConfig) -> Result<Self, OpenError> {
        let wanted = PortOptions { gid_index: config.gid_index, partition_key: config.pkey };
        let Shared { context, protection, port, .. } = &*self.shared;
        let local = Local::choose(context, protection, port, wanted)
            .map_err(|e| self.refused("choose the wanted GID and partition", e))?;
        Ok(Self { shared: Arc::clone(&self.shared), local })
    }

    fn address_in_words(&self) -> String {
        match self.gid() {
            Some(gid) => gid.to_string(),
            None => format!("LID {}", self.port().lid),
        }
    }

    pub(crate) fn context(&self) -> &Context {
        &self.shared.context
    }

    pub(crate) fn port(&self) -> &Port {
        &self.shared.port
    }

    pub(crate) fn gid(&self) -> Option<GidEntry> {
        self.local.gid
    }

    /// Returns the index in the port's partition table.
    pub(crate) fn partition_index(&self) -> u16 {
        self.local.partition_index
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// Reads the device's events. Makes a system call.
    pub(crate) fn check_events(&self) {
        self.shared.events.check(&self.shared.context);
    }

    /// Returns whether an event [read](Self::check_events) so far reports the failure of the
    /// device.
    pub(crate) fn has_failed(&self) -> bool {
        self.shared.events.has_failed()
    }

    /// Returns whether an event [read](Self::check_events) since the last call reports that the
    /// queue pair is in error and took its last request from a shared receive queue.
    pub(crate) fn has_ended(&self, qpn: u32) -> bool {
        self.shared.events.has_ended(qpn)
    }
}

impl Local {
    fn choose(
        context: &Context,
        protection: &ProtectionDomain,
        port: &Port,
        wanted: PortOptions,
    ) -> Result<Self, verbs::Error> {
        let choice = context.choose_port(protection, port, wanted)?;
        let gid = port.global_route || wanted.gid_index.is_some();
        let partition_index = choice.partition_index;
        Ok(Self { gid: gid.then_some(choice.gid.entry), partition_index })
    }
}

// SAFETY: `open` creates the context and the protection domain and lends them to no other code.
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

    const KEYS: TransportId = ID;

    unsafe fn register(
        protection: &ProtectionDomain,
        start: NonNull<u8>,
        length: usize,
        address: u64,
        config: MemoryConfig,
    ) -> Result<Self, MemoryError> {
        let mut rights: verbs::Access = device_access(config.access());
        rights.set(verbs::Access::ON_DEMAND, config.is_on_demand());
        // SAFETY: the caller keeps the memory mapped, and accesses it in ways that tolerate a
        // device, until the region is deregistered (contract of this function).
        let region = unsafe { Self::register_at(protection, start, length, address, rights) };
        region.map_err(|error| MemoryError::Device { length, source: error.into() })
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
        let (address, rights) = (config.address_or(offset), device_access(config.access()));
        // SAFETY: this function has the same contract.
        unsafe { Self::register_dmabuf(protection, buffer, offset, length, address, rights) }
            .map_err(|error| MemoryError::DmaBuf { length, source: error.into() })
    }

    fn prefetch(&self, range: Range<usize>, write: bool) -> Result<(), MemoryError> {
        let length = range.len();
        Self::prefetch(self, range, write)
            .map_err(|error| MemoryError::Prefetch { length, source: error.into() })
    }

    fn deregister(mut self, length: usize) -> Result<(), MemoryError> {
        Self::deregister(&mut self)
            .map_err(|error| MemoryError::Deregister { length, source: error.into() })
    }

    fn keys(&self) -> (u32, u32) {
        (self.local_key(), self.remote_key())
    }
}

crate::transport::object::objects!(Memory);
