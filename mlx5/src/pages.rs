//! Pages of this process, for queues and buffers.

use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};

use crate::error::Error;

/// Bytes of a page, the unit in which the device maps memory.
pub const PAGE: usize = 4096;

/// Zeroed, page-aligned memory of this process.
#[derive(Debug)]
pub(crate) struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is owned and not tied to a thread.
unsafe impl Send for Pages {}
// SAFETY: shared access only returns the address and the size.
unsafe impl Sync for Pages {}

impl Pages {
    pub(crate) fn allocate(bytes: usize, what: &'static str) -> Result<Self, Error> {
        let refused = || Error::OutOfMemory { what, bytes };
        let rounded = bytes.max(1).checked_next_multiple_of(PAGE).ok_or_else(refused)?;
        let layout = Layout::from_size_align(rounded, PAGE).map_err(|_| refused())?;
        // SAFETY: the layout's size is at least a page.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
        Ok(Self { start, layout })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn bytes(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout and freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
