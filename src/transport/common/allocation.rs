//! Page-aligned, zeroed, owned memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use crate::base::error::MemoryError;
use crate::transport::common::pool::Block;

/// Page-aligned memory, freed on drop. Users access it through raw pointers; no reference to the
/// whole exists.
#[derive(Debug)]
pub(crate) struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
    len: usize,
}

// SAFETY: the value owns its memory and gives out its address only. Each access through that
// address has its own proof.
unsafe impl Send for Allocation {}
// SAFETY: `&Allocation` gives out the address and the length only, which never change.
unsafe impl Sync for Allocation {}

impl Allocation {
    pub(crate) fn new(len: usize) -> Result<Self, MemoryError> {
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        let no_memory = || MemoryError::NoMemory { length: len };
        let layout = layout(len, rustix::param::page_size()).ok_or_else(no_memory)?;
        // SAFETY: `layout` has at least the length `len`, which is not zero (checked above).
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(no_memory)?;
        Ok(Self { start, layout, len })
    }
}

/// Returns the layout of `len` bytes in whole pages of the kernel, of `page` bytes. Memory that is
/// registered shares no page with other memory, which a fork would take from the child.
fn layout(len: usize, page: usize) -> Option<Layout> {
    Some(Layout::from_size_align(len, page).ok()?.pad_to_align())
}

// SAFETY: the memory is zeroed, has that length, and is owned and unmoved until the drop. The pool
// that takes the allocation is its only user.
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
        // SAFETY: `new` allocated `start` with this layout, and nothing else frees it.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_fills_pages_of_the_kernel() {
        for page in [0x1000, 0x4000, 0x1_0000] {
            for (len, pages) in [(1, 1), (page, 1), (page + 1, 2)] {
                let layout = layout(len, page).unwrap();
                assert_eq!((layout.size(), layout.align()), (pages * page, page));
            }
            assert_eq!(layout(isize::MAX as usize, page), None);
        }
        let one = Allocation::new(1).unwrap();
        assert!(one.start().addr().get().is_multiple_of(rustix::param::page_size()));
        assert_eq!(one.len(), 1);
    }
}
