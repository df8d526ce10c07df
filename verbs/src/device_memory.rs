//! Memory on the device (`ibv_alloc_dm`).

use std::fmt;
use std::ptr::NonNull;

use crate::memory::{Access, MemoryRegion, ProtectionDomain};
use crate::sys::{Dm, Mr};
use crate::{Error, dv};

/// Memory on the device, which libmlx5 maps into this process. Dropping it frees the memory; the
/// kernel refuses that while regions of it exist.
#[must_use = "dropping it frees the memory"]
pub struct DeviceMemory {
    memory: Dm,
    start: NonNull<u8>,
    length: usize,
    device: String,
}

// SAFETY: the address is not dereferenced here, and the handle may be used on any thread.
#[allow(unsafe_code, reason = "a type with an address is sent to other threads")]
unsafe impl Send for DeviceMemory {}
// SAFETY: as above; shared references only give the address and the length.
#[allow(unsafe_code, reason = "a type with an address is shared with other threads")]
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// Allocates `length` bytes on the device of `domain`.
    ///
    /// # Errors
    /// The error of libibverbs: the device has no such memory, or not enough of it left. If its
    /// driver is not libmlx5.
    pub fn allocate(domain: &ProtectionDomain, length: usize) -> Result<Self, Error> {
        let context = domain.handle().context();
        let device = context.name().to_owned();
        let memory = Dm::allocate(context, length).map_err(|source| {
            Error::new(&device, format!("allocate {length} bytes on the device"), source)
        })?;
        let start = dv::open(context, "memory on the device", &memory)?;
        Ok(Self { memory, start, length, device })
    }

    /// The address of the first byte, valid for reads and writes while the memory is allocated. The
    /// device requires accesses of at least 4 aligned bytes.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Registers all of the memory. Work requests name bytes by their offsets. The region must be
    /// deregistered before the memory is freed, which fails otherwise.
    ///
    /// # Errors
    /// The error of libibverbs.
    pub fn register(
        &self,
        domain: &ProtectionDomain,
        access: Access,
    ) -> Result<MemoryRegion, Error> {
        let region = Mr::register_on_device(
            domain.handle(),
            &self.memory,
            self.length,
            domain.flags(access),
        );
        let region = region
            .map_err(|source| Error::new(&self.device, "register memory on the device", source))?;
        Ok(MemoryRegion::new(region, 0, self.length))
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory")
            .field("device", &self.device)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}
