//! The domain: an open device, a protection domain, and memory in it.

use std::ptr::NonNull;
use std::sync::Arc;

use barewire_hca as hca;
use barewire_mlx5::channel::soft::Soft;
use barewire_mlx5::{self as mlx5, Buffer, Context, MemoryRegion, ProtectionDomain};

use super::NAME;
use crate::address::{Kind, Packed, TransportId};
use crate::error::{KeyError, MemoryError, OpenError, Source};
use crate::memory::{Access, domain_tag, memory_access};
use crate::transport::common::copy::Bytes;
use crate::transport::common::pool::Block;

/// The software HCA's name. Each domain that opens it gets a device of its own.
pub const SOFT_DEVICE: &str = "soft0:1";

/// One device and one protection domain. Cloning gives another handle to the same one.
#[derive(Clone, Debug)]
pub struct Domain(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    protection: ProtectionDomain,
    device: String,
    tag: u32,
}

impl Domain {
    /// Opens a device by name. `soft0:1` is a software HCA made for this domain, with the address and faults that
    /// the environment variables of `barewire-hca` say. With the feature `verbs`, `mlx5_0:1` is port 1 of a device of this machine, set up as
    /// the environment variable `BAREWIRE_MLX5_SETUP` says: `devx`, `init_obj`, or without it the first of these that works.
    ///
    /// # Errors
    /// [`OpenError::UnknownDevice`] for a name that does not exist, [`OpenError::Device`] if the device could not be made or set up.
    pub fn open(device: &str) -> Result<Self, OpenError> {
        if device == SOFT_DEVICE { Self::open_soft_from_environment() } else { Self::open_hardware(device) }
    }

    #[cfg(feature = "verbs")]
    fn open_hardware(device: &str) -> Result<Self, OpenError> {
        super::hardware::open(device)
    }

    #[cfg(not(feature = "verbs"))]
    fn open_hardware(device: &str) -> Result<Self, OpenError> {
        Err(OpenError::UnknownDevice {
            transport: NAME,
            device: device.to_owned(),
            known: format!("{SOFT_DEVICE}; this build has no feature verbs, for devices of the machine"),
        })
    }

    fn open_soft_from_environment() -> Result<Self, OpenError> {
        let config = hca::Config::from_env().map_err(|e| refused(SOFT_DEVICE, "read its settings", e))?;
        let device =
            hca::Device::open(config).map_err(|e| refused(SOFT_DEVICE, "start the software HCA", e))?;
        Self::open_soft(device)
    }

    /// A domain on a software HCA that the caller opened, for tests and fault injection.
    ///
    /// # Errors
    /// [`OpenError::Device`] if the device refuses.
    pub fn open_soft(device: hca::Device) -> Result<Self, OpenError> {
        let context =
            Context::open(Soft::new(device)).map_err(|e| refused(SOFT_DEVICE, "query the device", e))?;
        Self::new(&context, SOFT_DEVICE)
    }

    /// A domain on a device that the caller opened through the driver. `device` names it in errors.
    ///
    /// # Errors
    /// [`OpenError::Device`] if the device refuses.
    pub fn new(context: &Context, device: &str) -> Result<Self, OpenError> {
        let protection = ProtectionDomain::allocate(context)
            .map_err(|e| refused(device, "allocate a protection domain", e))?;
        Ok(Self(Arc::new(Shared { protection, device: device.to_owned(), tag: domain_tag() })))
    }

    /// Allocates zeroed, page-aligned memory and registers it. The device wants `LOCAL_WRITE` wherever peers may
    /// write; it is added.
    ///
    /// # Errors
    /// [`MemoryError::Empty`], [`MemoryError::NoMemory`], [`MemoryError::Device`]
    pub fn allocate(&self, len: usize, access: Access) -> Result<Memory, MemoryError> {
        let buffer = self.buffer(len, access)?;
        let region = buffer.region();
        let bytes = Bytes::new(region.as_ptr(), region.len());
        let key = region.lkey();
        Ok(Memory { bytes, key, tag: self.0.tag, region: Region::Owned(buffer) })
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
        let key = region.lkey();
        Ok(Memory { bytes: Bytes::new(start, len), key, tag: self.0.tag, region: Region::Foreign(region) })
    }

    /// Makes a key from the bytes of the peer's [`Memory::pack_key`].
    ///
    /// # Errors
    /// [`KeyError`]: not a key, or of another transport. Whether the key is valid the peer's device says when it is
    /// used.
    pub fn unpack_key(&self, bytes: &[u8]) -> Result<RemoteKey, KeyError> {
        let packed = Packed::parse(Kind::Key, bytes)?;
        match (packed.transport(), packed.body()) {
            (TransportId::RcMlx5, Some(key)) => Ok(RemoteKey(u32::from_be_bytes(*key))),
            (other, _) => Err(KeyError::ForeignTransport { expected: NAME, found: other.name() }),
        }
    }

    /// The device's name.
    pub fn device(&self) -> &str {
        &self.0.device
    }

    pub(super) fn buffer(&self, len: usize, access: Access) -> Result<Buffer, MemoryError> {
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        Buffer::allocate(&self.0.protection, len, device_access(access)).map_err(|e| memory_error(len, e))
    }

    pub(super) fn protection(&self) -> &ProtectionDomain {
        &self.0.protection
    }

    pub(super) fn context(&self) -> &Context {
        self.0.protection.context()
    }

    pub(super) fn tag(&self) -> u32 {
        self.0.tag
    }

    pub(super) fn refused(&self, step: &'static str, error: impl Into<Source>) -> OpenError {
        refused(&self.0.device, step, error)
    }
}

pub(super) fn refused(device: &str, step: &'static str, error: impl Into<Source>) -> OpenError {
    OpenError::Device { device: device.to_owned(), step, source: error.into() }
}

fn memory_error(length: usize, error: mlx5::Error) -> MemoryError {
    match error {
        mlx5::Error::OutOfMemory { .. } => MemoryError::NoMemory { length },
        error => MemoryError::Device { length, source: error.into() },
    }
}

fn device_access(access: Access) -> mlx5::Access {
    let mut rights = mlx5::Access::empty();
    let written = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    rights.set(mlx5::Access::LOCAL_WRITE, access.intersects(written));
    rights.set(mlx5::Access::REMOTE_WRITE, access.contains(Access::REMOTE_WRITE));
    rights.set(mlx5::Access::REMOTE_READ, access.contains(Access::REMOTE_READ));
    rights.set(mlx5::Access::REMOTE_ATOMIC, access.contains(Access::REMOTE_ATOMIC));
    rights
}

/// What takes the key from the device, also by its drop.
#[derive(Debug)]
enum Region {
    Owned(Buffer),
    Foreign(MemoryRegion),
}

/// A region registered with the device.
///
/// Dropping it takes the key from the device: an operation still in flight then fails with a protection
/// error. The device refuses that while it is in error or something else uses the registration; memory
/// that was allocated is then leaked. [`Self::deregister`] returns the refusal, a drop logs it.
#[derive(Debug)]
pub struct Memory {
    bytes: Bytes,
    key: u32,
    tag: u32,
    region: Region,
}

impl Memory {
    memory_access!();

    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
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
    pub fn deregister(self) -> Result<(), MemoryError> {
        let length = self.len();
        let released = match self.region {
            Region::Owned(buffer) => buffer.deregister(),
            Region::Foreign(region) => region.deregister(),
        };
        released.map_err(|error| MemoryError::Deregister { length, source: error.into() })
    }

    /// The bytes from which the peer's [`Domain::unpack_key`] makes a key.
    pub fn pack_key(&self) -> Vec<u8> {
        Packed::new(Kind::Key, TransportId::RcMlx5, &self.key.to_be_bytes()).bytes().to_vec()
    }
}

/// A right to a peer's region, as the peer's device knows it (rkey).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteKey(pub(super) u32);

/// Registered memory cut into buffers. It has no remote rights: only this side's device writes it, and only for
/// an operation that holds the buffer.
#[derive(Debug)]
pub(super) struct Registered(Buffer);

impl Registered {
    pub(super) fn allocate(domain: &Domain, len: usize) -> Result<Self, MemoryError> {
        domain.buffer(len, Access::LOCAL_WRITE).map(Self)
    }

    pub(super) fn key(&self) -> u32 {
        self.0.region().lkey()
    }
}

// SAFETY: zeroed, page-aligned memory that is owned and unmoved. The device writes only the buffer that an
// operation of this transport names, which holds it meanwhile:
// - Local access needs the key and a queue pair of the key's protection domain. That is the domain's own
//   (`Domain::new`), is lent to nobody, and only this transport makes queue pairs in it.
// - Peers have no rights.
// - Other keys over the memory, and changes of this one, need commands that name it by number. Sending
//   commands is unsafe, and the contract rules that out (`CommandChannel::execute`).
unsafe impl Block for Registered {
    fn start(&self) -> NonNull<u8> {
        self.0.region().as_ptr()
    }

    fn len(&self) -> usize {
        self.0.region().len()
    }
}
