//! Memory on the device (MEMIC): memory of this process, as the rest of the device is.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Memory, UmemAccess};
use crate::limits;

/// The memory of a device, in which commands allocate: it begins at a page, and lives as long as any
/// handle.
pub struct DeviceMemory {
    start: NonNull<u8>,
}

// SAFETY: an address range, which every user accesses as memory that a device may write.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above; no method accesses the memory.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// Aligned to the largest page of a kernel.
    const LAYOUT: Layout = match Layout::from_size_align(limits::DEVICE_MEMORY, 1 << 16) {
        Ok(layout) => layout,
        Err(_) => unreachable!(),
    };

    fn new() -> Self {
        // SAFETY: the layout's size is not zero.
        match NonNull::new(unsafe { alloc_zeroed(Self::LAYOUT) }) {
            Some(start) => Self { start },
            None => handle_alloc_error(Self::LAYOUT),
        }
    }

    /// Returns the `length` bytes at an address that ALLOC_MEMIC returned; `None` if they are not
    /// memory of the device. Valid for reads and writes while the memory is held, in ways that
    /// allow a device to read and write at any time.
    pub fn at(&self, address: u64, length: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(address.checked_sub(limits::DEVICE_MEMORY_START)?).ok()?;
        let inside = offset.checked_add(length)? <= limits::DEVICE_MEMORY;
        // SAFETY: the offset lies in the memory, or at its end.
        inside.then(|| unsafe { self.start.add(offset) })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout, and freed here only.
        unsafe { dealloc(self.start.as_ptr(), Self::LAYOUT) }
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceMemory").field(&self.start).finish()
    }
}

/// What is allocated on the device.
#[derive(Debug)]
pub(super) struct OnDevice {
    memory: Arc<DeviceMemory>,
    /// The registration of all of it, through which keys reach it.
    umem: u32,
    /// Offset and length of each allocation.
    taken: BTreeMap<u64, u64>,
}

impl Memory {
    /// Allocates `length` bytes in `[first, first + range)`, at a multiple of `alignment`. Returns
    /// the address; `None` if no room is left there.
    pub(crate) fn allocate_on_device(
        &mut self,
        (first, range): (u64, u64),
        length: u64,
        alignment: u64,
    ) -> Option<u64> {
        if self.on_device.is_none() {
            self.on_device = Some(self.create_device_memory()?);
        }
        let on_device = self.on_device.as_mut()?;
        let start = first.checked_sub(limits::DEVICE_MEMORY_START)?;
        let end = start.checked_add(range)?.min(limits::DEVICE_MEMORY as u64);
        let mut at = start.checked_next_multiple_of(alignment)?;
        for (&other, &bytes) in &on_device.taken {
            if other.saturating_sub(at) >= length && other >= at {
                break;
            }
            if other + bytes > at {
                at = (other + bytes).checked_next_multiple_of(alignment)?;
            }
        }
        if at.checked_add(length)? > end {
            return None;
        }
        on_device.taken.insert(at, length);
        Some(limits::DEVICE_MEMORY_START + at)
    }

    /// Registers the memory of the device, for its life.
    fn create_device_memory(&mut self) -> Option<OnDevice> {
        let memory = Arc::new(DeviceMemory::new());
        let (start, length) = (memory.start, limits::DEVICE_MEMORY);
        // SAFETY: `OnDevice` keeps the memory, which every handle accesses as memory that a device
        // writes. It is dropped with `self` only, after which no window of the registration exists.
        let umem = unsafe { self.register(start, length, UmemAccess::all(), false) }.ok()?;
        // It is never deregistered.
        self.hold(umem);
        Some(OnDevice { memory, umem, taken: BTreeMap::new() })
    }

    /// Frees an allocation. Returns false if there is none of this address and length.
    pub(crate) fn free_on_device(&mut self, address: u64, length: u64) -> bool {
        let Some(on_device) = &mut self.on_device else { return false };
        let Some(at) = address.checked_sub(limits::DEVICE_MEMORY_START) else { return false };
        let known = on_device.taken.get(&at) == Some(&length);
        if known {
            on_device.taken.remove(&at);
        }
        known
    }

    /// Returns the registration of the device's memory, and the offset in it of `length` bytes that
    /// were allocated; `None` if they were not.
    pub(crate) fn allocated_on_device(&self, address: u64, length: u64) -> Option<(u32, u64)> {
        let on_device = self.on_device.as_ref()?;
        let start = address.checked_sub(limits::DEVICE_MEMORY_START)?;
        let (&first, &bytes) = on_device.taken.range(..=start).next_back()?;
        (start.checked_add(length)? <= first + bytes).then_some((on_device.umem, start))
    }

    /// Returns the memory of the device, if anything was ever allocated in it.
    pub(crate) fn device_memory(&self) -> Option<&Arc<DeviceMemory>> {
        self.on_device.as_ref().map(|on_device| &on_device.memory)
    }

    /// Returns whether `umem` is the registration of the device's memory.
    pub(crate) fn is_device_memory(&self, umem: u32) -> bool {
        self.on_device.as_ref().is_some_and(|on_device| on_device.umem == umem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: (u64, u64) = (limits::DEVICE_MEMORY_START, limits::DEVICE_MEMORY as u64);

    #[test]
    fn allocations_do_not_overlap_and_leave_no_gap() {
        let mut memory = Memory::new(0);
        let start = limits::DEVICE_MEMORY_START;
        let whole = limits::DEVICE_MEMORY as u64;
        assert_eq!(memory.allocate_on_device(ALL, 64, 64), Some(start));
        assert_eq!(memory.allocate_on_device(ALL, 4096, 4096), Some(start + 4096));
        assert_eq!(memory.allocate_on_device(ALL, 128, 64), Some(start + 64), "in the gap");
        assert_eq!(memory.allocate_on_device(ALL, whole - 8192, 64), Some(start + 8192));
        assert_eq!(memory.allocate_on_device(ALL, 4096, 64), None, "no room");
        assert!(!memory.free_on_device(start, 128), "another length");
        assert!(memory.free_on_device(start, 64) && !memory.free_on_device(start, 64));
        assert_eq!(memory.allocate_on_device((start + 64, 64), 64, 64), None, "not in the range");
        assert_eq!(memory.allocate_on_device((start, 64), 64, 64), Some(start));
        assert_eq!(memory.umem_count(), 0, "no registration of a program");
    }

    #[test]
    fn bytes_are_found_by_their_address() {
        let mut memory = Memory::new(0);
        assert!(memory.device_memory().is_none());
        let address = memory.allocate_on_device(ALL, 128, 64).unwrap();
        let (umem, offset) = memory.allocated_on_device(address + 64, 64).unwrap();
        assert!(memory.is_device_memory(umem) && offset == 64);
        for (at, length) in [(address + 64, 65), (address - 1, 1), (0, 1), (address, u64::MAX)] {
            assert_eq!(memory.allocated_on_device(at, length), None, "{at:#x} {length}");
        }
        let whole = memory.device_memory().unwrap();
        assert!(whole.at(address, limits::DEVICE_MEMORY).is_some());
        assert!(whole.at(address + 1, limits::DEVICE_MEMORY).is_none() && whole.at(0, 1).is_none());
        assert!(memory.deregister(umem).is_err(), "the device keeps it");
    }
}
