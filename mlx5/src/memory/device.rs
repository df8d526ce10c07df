//! Memory on the device (MEMIC), which needs no transfer over the bus when peers access it.

use core::any::Any;
use core::mem;
use core::ptr::NonNull;
use std::sync::Arc;

use barewire_layouts::command::memic::LOG_UNIT;
use barewire_shared_bytes::SharedBytes;

use super::{Access, Buffer, MemoryRegion, OwnedBytes, Registration, check_rights};
#[cfg(feature = "verbs")]
use crate::backend::region;
use crate::backend::{Backend, commands};
use crate::channel::Object;
#[cfg(feature = "verbs")]
use crate::context::Context;
use crate::context::{DomainObject, ProtectionDomain};
use crate::error::Error;

/// Memory on the device, mapped into this process and zeroed. Clones are handles of the same
/// memory, which is freed with the last one; each region of it holds a handle.
///
/// The CPU reads and writes it over the bus, in words of 8 bytes. A program that writes part of a
/// word reads the word first, which is slow, and which is not atomic with accesses of the device.
#[derive(Clone, Debug)]
#[must_use = "dropping the last handle frees it"]
pub struct DeviceMemory(Arc<Allocated>);

#[derive(Debug)]
struct Allocated {
    start: NonNull<u8>,
    length: usize,
    owner: Owner,
    domain: ProtectionDomain,
}

#[derive(Debug)]
enum Owner {
    Commands {
        /// Of the first byte, as ALLOC_MEMIC returned it.
        address: u64,
        _object: Box<dyn Object>,
        _mapping: Box<dyn Any + Send + Sync>,
    },
    #[cfg(feature = "verbs")]
    Verbs(barewire_verbs::DeviceMemory),
}

/// The key to memory on the device, and the memory.
#[derive(Debug)]
pub(super) struct OnDevice {
    key: Key,
    memory: DeviceMemory,
}

#[derive(Debug)]
enum Key {
    Commands(Box<dyn Object>),
    #[cfg(feature = "verbs")]
    Verbs(barewire_verbs::MemoryRegion),
}

// SAFETY: the memory is an address range, which is accessed by atomics only (`DeviceMemory`), and
// the owners may be sent and shared.
unsafe impl Send for Allocated {}
// SAFETY: as above.
unsafe impl Sync for Allocated {}

impl DeviceMemory {
    /// Allocates at least `length` bytes, a multiple of 64 (ALLOC_MEMIC on the software HCA,
    /// `ibv_alloc_dm` elsewhere).
    ///
    /// # Errors
    /// [`Error::Unsupported`]; if the length is 0 or exceeds the memory for programs that the
    /// device has ([`Capabilities::device_memory`](crate::Capabilities::device_memory)), or if not
    /// enough of it is left.
    pub fn allocate(domain: &ProtectionDomain, length: usize) -> Result<Self, Error> {
        let most = domain.context().capabilities().device_memory;
        if most == 0 {
            let reason = "its capabilities have no memory for programs; use memory of the host";
            return Err(Error::Unsupported { what: "memory on the device", reason });
        }
        let units = length.checked_next_multiple_of(1 << LOG_UNIT);
        let length =
            units.filter(|&length| length > 0 && length as u64 <= most).ok_or_else(|| {
                let wanted = format!("1 to {most} bytes");
                Error::parameter("length of memory on the device", length as u64, wanted)
            })?;
        let (start, owner) = match (domain.context().backend(), domain.object()) {
            (Backend::Commands(channel), DomainObject::Commands { .. }) => {
                let (address, object) = commands::allocate_device_memory(&**channel, length)?;
                let mapping = channel.map_device_memory(address, length)?;
                let owner = Owner::Commands { address, _object: object, _mapping: mapping.owner };
                (mapping.start, owner)
            }
            #[cfg(feature = "verbs")]
            (_, DomainObject::Verbs { domain, .. }) => {
                let memory = barewire_verbs::DeviceMemory::allocate(domain, length);
                let memory =
                    memory.map_err(|e| crate::error::system("allocating on the device", e))?;
                (memory.start(), Owner::Verbs(memory))
            }
            #[cfg(feature = "verbs")]
            _ => Context::foreign()?,
        };
        let bytes = SharedBytes::new(start, length);
        // SAFETY: the memory has `length` bytes, is aligned to 8 and is valid for writes while its
        // owner, a local variable, exists: by the contract of `CommandChannel`, and by that of
        // `ibv_alloc_dm`, of which the kernel maps at least the requested bytes, from a unit on. It
        // belongs to this allocation only, and nothing else has its address yet.
        unsafe { bytes.write(0, &vec![0; length]) };
        Ok(Self(Arc::new(Allocated { start, length, owner, domain: domain.clone() })))
    }

    /// Pointer to the first byte, valid for reads and writes of aligned words of 8 bytes while a
    /// handle exists.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.0.start
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "it has at least one unit")]
    pub fn len(&self) -> usize {
        self.0.length
    }

    fn register(&self, access: Access) -> Result<(OnDevice, u32), Error> {
        let domain = &self.0.domain;
        let context = domain.context();
        let (key, number) = match (context.backend(), domain.object(), &self.0.owner) {
            (
                Backend::Commands(channel),
                DomainObject::Commands { number, .. },
                Owner::Commands { address, .. },
            ) => {
                let variant = context.next_key_variant();
                let relaxed = context.capabilities().relaxed_keys;
                let (domain, address) = (*number, *address);
                let wanted = commands::Wanted { domain, address, access, relaxed, variant };
                let made = commands::create_device_key(&**channel, self.0.length, wanted)?;
                (Key::Commands(made.0), made.1)
            }
            #[cfg(feature = "verbs")]
            (_, DomainObject::Verbs { domain, .. }, Owner::Verbs(memory)) => {
                let (region, key) = region::register_on_device(domain, memory, access)?;
                (Key::Verbs(region), key)
            }
            #[cfg(feature = "verbs")]
            _ => Context::foreign()?,
        };
        Ok((OnDevice { key, memory: self.clone() }, number))
    }
}

// SAFETY: the handle keeps the memory mapped, at one address; it is zeroed by `allocate`, and only
// lends its address.
unsafe impl OwnedBytes for DeviceMemory {
    fn bytes(&mut self) -> (NonNull<u8>, usize) {
        (self.0.start, self.0.length)
    }
}

impl OnDevice {
    /// Destroys the key. On an error the memory is leaked, as peers may still access it.
    pub(super) fn release(self) -> Result<(), Error> {
        let Self { key, memory } = self;
        let released = match key {
            Key::Commands(object) => object.destroy(),
            #[cfg(feature = "verbs")]
            Key::Verbs(region) => region::deregister(region),
        };
        released.inspect_err(|_| mem::forget(memory))
    }
}

impl MemoryRegion {
    /// Registers all of `memory`, which the region keeps allocated. WQEs and peers name bytes by
    /// their offsets. Keys of such memory cannot have other addresses.
    ///
    /// # Errors
    /// If write rights contradict each other, or the device refused.
    pub fn register_on_device(memory: &DeviceMemory, access: Access) -> Result<Self, Error> {
        let access = access & Access::all();
        check_rights(access)?;
        let (made, key) = memory.register(access)?;
        Ok(Self {
            start: memory.as_ptr(),
            length: memory.len(),
            address: 0,
            key,
            access,
            registration: Some(Registration::OnDevice(made)),
            domain: memory.0.domain.clone(),
        })
    }
}

impl Buffer<DeviceMemory> {
    /// Allocates and registers at least `length` bytes of memory on the device.
    ///
    /// ```
    /// # #[cfg(feature = "soft")] {
    /// # use barewire_mlx5::{Access, Buffer, Context, ProtectionDomain, channel::soft::Soft, hca};
    /// # let context = Context::open(Soft::new(hca::Device::open(hca::Config::default())?))?;
    /// # let domain = ProtectionDomain::allocate(&context)?;
    /// let counters = Buffer::allocate_on_device(&domain, 100, Access::LOCAL_WRITE)?;
    /// assert_eq!((counters.region().len(), counters.region().address()), (128, 0));
    /// counters.store_u64(8, 7)?;
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`DeviceMemory::allocate`] and [`MemoryRegion::register_on_device`].
    pub fn allocate_on_device(
        domain: &ProtectionDomain,
        length: usize,
        access: Access,
    ) -> Result<Self, Error> {
        let memory = DeviceMemory::allocate(domain, length)?;
        let region = MemoryRegion::register_on_device(&memory, access)?;
        let bytes = SharedBytes::new(memory.as_ptr(), memory.len());
        Ok(Self { region, bytes, memory: Some(memory) })
    }
}
