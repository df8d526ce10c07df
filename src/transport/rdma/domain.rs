//! The domain: a port of an open device, a protection domain, and memory in it.

use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;

use barewire_verbs::{
    self as verbs, Context, GidEntry, Limits, LinkLayer, MemoryRegion, Port, ProtectionDomain,
};

use super::NAME;
use super::events::Events;
use crate::address::{Kind, Packed, TransportId};
use crate::error::{KeyError, MemoryError, OpenError, Source};
use crate::memory::{Access, domain_tag, memory_access};
use crate::transport::common::allocation::Allocation;
use crate::transport::common::copy::Bytes;
use crate::transport::common::pool::Block;

/// One port of a device and one protection domain. Cloning gives another handle to the same one.
#[derive(Clone, Debug)]
pub struct Domain(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    context: Context,
    protection: ProtectionDomain,
    port: Port,
    /// The own address, unless the port goes by LID.
    gid: Option<GidEntry>,
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
    /// Its address and why this one, or why it cannot be used.
    pub(crate) state: Result<String, String>,
}

/// Every port of every device. Each is opened for a moment.
pub(crate) fn found() -> Vec<Found> {
    let devices = verbs::devices().unwrap_or_default();
    let ports = devices.iter().flat_map(|device| {
        let count = Context::open(&device.name).map_or(1, |context| context.port_count());
        (1..=count).map(|port| format!("{}:{port}", device.name))
    });
    let found = ports.map(|device| {
        let state = Domain::open(&device).map_err(|error| error.to_string());
        Found { state: state.map(|domain| domain.0.address_in_words()), device }
    });
    found.collect()
}

impl Domain {
    /// Opens `NAME:PORT`, a port of a device of this machine; port 1 if none is named. On Ethernet it chooses the GID, RoCEv2 over IPv4 if
    /// there is one.
    ///
    /// # Errors
    /// [`OpenError::UnknownDevice`] names those that there are, [`OpenError::Device`] if it cannot be opened or its port is not active.
    pub fn open(device: &str) -> Result<Self, OpenError> {
        let (name, port) = match device.split_once(':') {
            None => (device, Some(1)),
            Some((name, port)) => (name, port.parse().ok()),
        };
        let known = verbs::devices().unwrap_or_default();
        let Some(port) = port.filter(|_| known.iter().any(|known| known.name == name)) else {
            let known: Vec<_> = known.iter().map(|device| format!("{}:1", device.name)).collect();
            return Err(OpenError::UnknownDevice {
                transport: NAME,
                device: device.to_owned(),
                known: if known.is_empty() { "none".to_owned() } else { known.join(", ") },
            });
        };
        let context = Context::open(name).map_err(|e| refused(device, "open it", e))?;
        let port = context.query_port(port).map_err(|e| refused(device, "query its port", e))?;
        if port.state != verbs::PortState::Active {
            return Err(refused(device, "use its port", format!("it is {:?}, not active", port.state)));
        }
        let protection = ProtectionDomain::new(&context)
            .map_err(|e| refused(device, "allocate a protection domain", e))?;
        let gid = match port.link_layer {
            LinkLayer::Ethernet => {
                let choice = context.choose_gid(&protection, &port);
                Some(choice.map_err(|e| refused(device, "choose a GID", e))?.entry)
            }
            _ => None,
        };
        let limits = context.limits().map_err(|e| refused(device, "query its limits", e))?;
        let (device, tag, events) = (device.to_owned(), domain_tag(), Events::default());
        Ok(Self(Arc::new(Shared { context, protection, port, gid, limits, events, device, tag })))
    }

    /// Allocates zeroed, page-aligned memory and registers it.
    ///
    /// # Errors
    /// [`MemoryError::Empty`], [`MemoryError::NoMemory`], [`MemoryError::Device`]
    pub fn allocate(&self, len: usize, access: Access) -> Result<Memory, MemoryError> {
        Ok(self.memory(self.buffer(len, access)?))
    }

    /// Registers memory that someone else owns.
    ///
    /// # Errors
    /// [`MemoryError::Empty`], [`MemoryError::Device`]
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
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        // SAFETY: the caller promises the same, until `Memory::deregister` has returned `Ok`, which it does
        // only after `MemoryRegion::deregister` has.
        let region = unsafe { MemoryRegion::register(&self.0.protection, start, len, device_access(access)) }
            .map_err(|e| memory_error(len, e))?;
        Ok(self.memory(Buffer { region, bytes: Bytes::new(start, len), owned: None }))
    }

    fn memory(&self, buffer: Buffer) -> Memory {
        let (key, remote_key) = (buffer.region.local_key(), buffer.region.remote_key());
        Memory { buffer, key, remote_key, tag: self.0.tag }
    }

    /// Makes a key from the bytes of the peer's [`Memory::pack_key`].
    ///
    /// # Errors
    /// [`KeyError`]: not a key, or of another transport. Whether the key is valid the peer's device says when it is
    /// used.
    pub fn unpack_key(&self, bytes: &[u8]) -> Result<RemoteKey, KeyError> {
        let packed = Packed::parse(Kind::Key, bytes)?;
        match (packed.transport(), packed.body()) {
            (TransportId::RcVerbs | TransportId::UdVerbs, Some(key)) => {
                Ok(RemoteKey(u32::from_be_bytes(*key)))
            }
            (other, _) => Err(KeyError::ForeignTransport { expected: NAME, found: other.name() }),
        }
    }

    /// The device's name and port.
    pub fn device(&self) -> &str {
        &self.0.device
    }

    pub(in super::super) fn buffer(&self, len: usize, access: Access) -> Result<Buffer, MemoryError> {
        let memory = Allocation::new(len)?;
        // SAFETY: the allocation is owned by the buffer, which deregisters before it frees. It is handed out as a pool's block, or as
        // `Bytes`, which tolerates a device.
        let region =
            unsafe { MemoryRegion::register(&self.0.protection, memory.start(), len, device_access(access)) };
        let region = region.map_err(|e| memory_error(len, e))?;
        Ok(Buffer { region, bytes: Bytes::new(memory.start(), len), owned: Some(memory) })
    }

    pub(in super::super) fn context(&self) -> &Context {
        &self.0.context
    }

    pub(in super::super) fn protection(&self) -> &ProtectionDomain {
        &self.0.protection
    }

    pub(in super::super) fn port(&self) -> &Port {
        &self.0.port
    }

    pub(in super::super) fn gid(&self) -> Option<GidEntry> {
        self.0.gid
    }

    pub(in super::super) fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Takes what the device has to tell of its queue pairs. A system call.
    pub(in super::super) fn hear(&self) {
        self.0.events.hear(&self.0.context);
    }

    /// Whether the queue pair is in error and took its last request from a shared receive queue, as far as was [heard](Self::hear) since it
    /// was asked for last.
    pub(in super::super) fn has_ended(&self, qpn: u32) -> bool {
        self.0.events.has_ended(qpn)
    }

    pub(in super::super) fn tag(&self) -> u32 {
        self.0.tag
    }

    pub(in super::super) fn refused(&self, step: &'static str, error: impl Into<Source>) -> OpenError {
        refused(&self.0.device, step, error)
    }
}

impl Shared {
    fn address_in_words(&self) -> String {
        match self.gid {
            Some(gid) => gid.to_string(),
            None => format!("LID {}", self.port.lid),
        }
    }
}

fn refused(device: &str, step: &'static str, error: impl Into<Source>) -> OpenError {
    OpenError::Device { device: device.to_owned(), step, source: error.into() }
}

fn memory_error(length: usize, error: verbs::Error) -> MemoryError {
    MemoryError::Device { length, source: error.into() }
}

fn device_access(access: Access) -> verbs::Access {
    let mut rights = verbs::Access::empty();
    let written = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    rights.set(verbs::Access::LOCAL_WRITE, access.intersects(written));
    rights.set(verbs::Access::REMOTE_WRITE, access.contains(Access::REMOTE_WRITE));
    rights.set(verbs::Access::REMOTE_READ, access.contains(Access::REMOTE_READ));
    rights.set(verbs::Access::REMOTE_ATOMIC, access.contains(Access::REMOTE_ATOMIC));
    rights
}

/// Registered memory, and what owns it unless that is the caller of [`Domain::register`].
#[derive(Debug)]
pub(in super::super) struct Buffer {
    pub(in super::super) region: MemoryRegion,
    bytes: Bytes,
    owned: Option<Allocation>,
}

impl Buffer {
    pub(in super::super) fn start(&self) -> NonNull<u8> {
        self.bytes.start()
    }

    /// The bytes, as the device shares them.
    pub(in super::super) fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Takes the memory from the device. Owned memory that the device does not give up is leaked.
    fn release(&mut self) -> Result<(), MemoryError> {
        self.region.deregister().map_err(|error| {
            mem::forget(self.owned.take());
            MemoryError::Deregister { length: self.bytes.len(), source: error.into() }
        })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // `owned` is freed after this, unless it was leaked.
        if let Err(error) = self.release() {
            tracing::error!("{error}");
        }
    }
}

/// A region registered with the device.
///
/// Dropping it takes the key from the device: an operation still in flight then fails with a protection
/// error. The device refuses that while it is in error; memory that was allocated is then leaked.
/// [`Self::deregister`] returns the refusal, a drop logs it.
#[derive(Debug)]
pub struct Memory {
    buffer: Buffer,
    key: u32,
    remote_key: u32,
    tag: u32,
}

impl Memory {
    memory_access!();

    pub(crate) fn bytes(&self) -> &Bytes {
        &self.buffer.bytes
    }

    pub(crate) fn local_key(&self) -> u32 {
        self.key
    }

    pub(crate) fn domain(&self) -> u32 {
        self.tag
    }

    /// Deregisters the region. After `Ok` no key and no operation in flight reaches the memory any more:
    /// what was allocated is freed, what was registered is the caller's again.
    ///
    /// # Errors
    /// [`MemoryError::Deregister`]: the device refused and may still access the memory. What was
    /// allocated is leaked; what was registered must stay as it is for the life of the process.
    pub fn deregister(mut self) -> Result<(), MemoryError> {
        self.buffer.release()
    }

    /// The bytes from which the peer's [`Domain::unpack_key`] makes a key.
    pub fn pack_key(&self) -> Vec<u8> {
        Packed::new(Kind::Key, TransportId::RcVerbs, &self.remote_key.to_be_bytes()).bytes().to_vec()
    }
}

/// A right to a peer's region, as the peer's device knows it (rkey).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteKey(pub(in super::super) u32);

/// Registered memory cut into buffers. It has no remote rights: only this side's device writes it, and only for
/// an operation that holds the buffer.
#[derive(Debug)]
pub(in super::super) struct Registered(Buffer);

impl Registered {
    pub(in super::super) fn allocate(domain: &Domain, len: usize) -> Result<Self, MemoryError> {
        domain.buffer(len, Access::LOCAL_WRITE).map(Self)
    }

    pub(in super::super) fn key(&self) -> u32 {
        self.0.region.local_key()
    }
}

// SAFETY: zeroed, page-aligned memory that is owned and unmoved. The device writes only the buffer that an
// operation of this transport names, which holds it meanwhile: the context and the protection domain are
// the domain's own (`Domain::open`) and lent to nobody, so that no other code posts with the key or sends
// commands that name it; and peers have no rights.
unsafe impl Block for Registered {
    fn start(&self) -> NonNull<u8> {
        self.0.start()
    }

    fn len(&self) -> usize {
        self.0.region.length()
    }
}

crate::transport::object::objects!(Domain, Memory);
