//! Page-aligned, zeroed, owned memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use crate::error::MemoryError;
use crate::transport::common::pool::Block;

const PAGE: usize = 4096;

/// Memory that lives until dropped. It is shared by raw pointer; nothing ever borrows it as a whole.
#[derive(Debug)]
pub(crate) struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
    len: usize,
}

// SAFETY: owns its memory; the accesses are each user's own contract.
unsafe impl Send for Allocation {}
// SAFETY: as above; `&Allocation` gives out nothing but the address.
unsafe impl Sync for Allocation {}

impl Allocation {
    pub(crate) fn new(len: usize) -> Result<Self, MemoryError> {
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        let no_memory = || MemoryError::NoMemory { length: len };
        let layout = Layout::from_size_align(len, PAGE).map_err(|_| no_memory())?.pad_to_align();
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(no_memory)?;
        Ok(Self { start, layout, len })
    }
}

// SAFETY: zeroed memory of that length, owned until drop; the pool that gets the allocation is its only user.
unsafe impl Block for Allocation {
    fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
