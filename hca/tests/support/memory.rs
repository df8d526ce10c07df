//! Registered memory of tests.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use barewire_hca::{Device, UmemAccess, UmemError};

const PAGE: usize = 4096;

/// Rights of a key; it may always be read locally.
#[derive(Clone, Copy, Debug)]
pub struct Rights {
    pub local_write: bool,
    pub remote_read: bool,
    pub remote_write: bool,
    pub remote_atomic: bool,
}

impl Rights {
    pub const ALL: Self =
        Self { local_write: true, remote_read: true, remote_write: true, remote_atomic: true };
}

/// Page-aligned memory that is registered with a device while it lives.
pub struct Memory {
    device: Device,
    start: NonNull<u8>,
    layout: Layout,
    length: usize,
    umem: u32,
}

// SAFETY: the memory is reached through raw copies and atomics only, and freed by the one owner.
unsafe impl Send for Memory {}

impl Memory {
    pub fn register(device: &Device, length: usize, access: UmemAccess) -> Self {
        Self::with(device, length, |start| {
            // SAFETY: the memory stays until `drop` has deregistered it, or is leaked, and is
            // accessed by raw copies only.
            unsafe { device.register_umem(start, length.max(1), access) }
        })
    }

    fn with(
        device: &Device,
        length: usize,
        register: impl FnOnce(NonNull<u8>) -> Result<u32, UmemError>,
    ) -> Self {
        let layout = Layout::from_size_align(length.max(1), PAGE).expect("a small layout");
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory");
        let umem = register(start).expect("a registration");
        Self { device: device.clone(), start, layout, length, umem }
    }

    /// Memory that is paged in on demand. It stays mapped.
    pub fn register_on_demand(device: &Device, length: usize) -> Self {
        Self::with(device, length, |start| {
            // SAFETY: as in `register`.
            unsafe { device.register_umem_on_demand(start, length, UmemAccess::all()) }
        })
    }

    pub fn umem(&self) -> u32 {
        self.umem
    }

    pub fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }

    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length);
        // SAFETY: inside the allocation; `bytes` is Rust memory elsewhere.
        unsafe {
            self.start.as_ptr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.length);
        let mut bytes = vec![0; length];
        // SAFETY: inside the allocation; `bytes` is Rust memory elsewhere.
        unsafe {
            self.start.as_ptr().add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), length);
        }
        bytes
    }

    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.length);
        // SAFETY: inside the allocation, aligned, and shared with the device only.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    pub fn store_be32(&self, offset: usize, value: u32) {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.length);
        // SAFETY: inside the allocation, aligned, and shared with the device only.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(offset).cast()) }
            .store(value.to_be(), Ordering::Release);
    }

    /// The byte at `offset`, and everything that the device stored before it.
    pub fn load_byte(&self, offset: usize) -> u8 {
        assert!(offset < self.length);
        // SAFETY: inside the allocation, and shared with the device only.
        unsafe { std::sync::atomic::AtomicU8::from_ptr(self.start.as_ptr().add(offset)) }
            .load(Ordering::Acquire)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Memory that a queue or key still uses is leaked: the device may touch it.
        // SAFETY: registered by `register`.
        if unsafe { self.device.deregister_umem(self.umem) }.is_ok() {
            // SAFETY: allocated with this layout, and no longer registered.
            unsafe { dealloc(self.start.as_ptr(), self.layout) }
        }
    }
}

/// Memory and a key over all of it.
pub struct Region {
    pub memory: Memory,
    pub key: u32,
}

impl Region {
    pub fn address(&self) -> u64 {
        self.memory.address()
    }
}
