//! The domain: an open device, a protection domain, and memory in it.

use std::ptr::NonNull;
use std::sync::Arc;

use barewire_hca as hca;
use barewire_mlx5::channel::soft::Soft;
use barewire_mlx5::{self as mlx5, Context, MemoryRegion, ProtectionDomain};

use super::NAME;
use crate::address::TransportId;
use crate::error::{KeyError, MemoryError, OpenError};
use crate::memory::{Access, domain_tag};
use crate::transport::common::registered::{self, Domain as _, Region, RemoteKey, device_access, refused};

/// A region registered with the device.
pub type Memory = registered::Memory<MemoryRegion>;

/// The software HCA's name. Each domain that opens it gets a device of its own.
pub const SOFT_DEVICE: &str = "soft0:1";

/// One device and one protection domain. A clone is another handle to the same one.
#[derive(Clone, Debug)]
pub struct Domain(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    protection: ProtectionDomain,
    device: String,
    tag: u32,
}

impl Domain {
    /// Opens a device by name. `soft0:1` is a software HCA made for this domain, with the address and faults
    /// that the environment variables of `barewire-hca` set. With the feature `verbs`, `mlx5_0:1` is port 1
    /// of a device of this machine, set up as the environment variable `BAREWIRE_MLX5_SETUP` says: `devx`,
    /// `init_obj`, or without it the first of these that works.
    ///
    /// # Errors
    /// [`OpenError::UnknownDevice`] for a name that does not exist, [`OpenError::Device`] if the device could
    /// not be made or set up.
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

    /// Allocates zeroed, page-aligned memory and registers it. The device requires `LOCAL_WRITE` wherever
    /// peers may write; it is added.
    ///
    /// # Errors
    /// [`MemoryError::Empty`], [`MemoryError::NoMemory`], [`MemoryError::Device`]
    pub fn allocate(&self, len: usize, access: Access) -> Result<Memory, MemoryError> {
        self.memory(len, access)
    }

    /// Registers memory of the caller's.
    ///
    /// # Errors
    /// [`MemoryError::Empty`], [`MemoryError::Device`]
    ///
    /// # Safety
    /// Until [`deregister`](crate::Memory::deregister) has returned `Ok`, `[start, start + len)` stays mapped, and this process
    /// accesses it in no other way than through atomics or this API. Dropping the memory deregisters it
    /// too, but cannot report that the device refused: memory that was dropped stays as it is for the
    /// life of the process.
    pub unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Memory, MemoryError> {
        // SAFETY: the caller's contract: such accesses tolerate a device.
        unsafe { self.foreign(start, len, access) }
    }

    /// Makes a key from the bytes of the peer's [`pack_key`](crate::Memory::pack_key).
    ///
    /// # Errors
    /// [`KeyError`]: not a key, or of another transport. The peer's device checks whether the key is valid
    /// when it is used.
    pub fn unpack_key(&self, bytes: &[u8]) -> Result<RemoteKey, KeyError> {
        RemoteKey::unpack::<MemoryRegion>(bytes)
    }

    /// The device's name.
    pub fn device(&self) -> &str {
        &self.0.device
    }

    pub(super) fn context(&self) -> &Context {
        self.0.protection.context()
    }
}

// SAFETY: `new` allocates the protection domain, which is lent to no other code. Sending commands is unsafe,
// and the contract of `CommandChannel::execute` rules out such that name its keys.
unsafe impl registered::Domain for Domain {
    type Region = MemoryRegion;

    fn protection(&self) -> &ProtectionDomain {
        &self.0.protection
    }

    fn device(&self) -> &str {
        &self.0.device
    }

    fn tag(&self) -> u32 {
        self.0.tag
    }
}

impl Region for MemoryRegion {
    type Protection = ProtectionDomain;

    const KEYS: (TransportId, &'static str) = (TransportId::RcMlx5, NAME);

    unsafe fn register(
        protection: &ProtectionDomain,
        start: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Self, MemoryError> {
        // SAFETY: the caller's contract.
        let region = unsafe { Self::register(protection, start, length, device_access(access)) };
        region.map_err(|error| match error {
            mlx5::Error::OutOfMemory { .. } => MemoryError::NoMemory { length },
            error => MemoryError::Device { length, source: error.into() },
        })
    }

    fn deregister(self, length: usize) -> Result<(), MemoryError> {
        self.deregister().map_err(|error| MemoryError::Deregister { length, source: error.into() })
    }

    fn keys(&self) -> (u32, u32) {
        (self.lkey(), self.rkey())
    }
}
