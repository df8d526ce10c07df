//! Pages of this process, for queues and buffers.

use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};

use crate::error::Error;

/// Bytes of a page of the device, the unit in which it maps memory. The kernel's pages have 4, 16
/// or 64 KiB.
pub const PAGE: usize = 4096;

/// Zeroed memory of this process that fills pages of the kernel: what is registered stays with the
/// parent of a fork, and takes no memory of others along.
#[derive(Debug)]
pub struct Pages {
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
        let layout = layout(bytes, host_page()).ok_or_else(refused)?;
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

/// Returns the layout of at least `bytes` in whole pages of `page` bytes.
fn layout(bytes: usize, page: usize) -> Option<Layout> {
    let rounded = bytes.max(1).checked_next_multiple_of(page)?;
    Layout::from_size_align(rounded, page).ok()
}

fn host_page() -> usize {
    // SAFETY: no pointers.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(PAGE).max(PAGE)
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout and freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_fills_pages_of_the_kernel() {
        for page in [0x1000, 0x4000, 0x1_0000] {
            for (bytes, pages) in [(0, 1), (1, 1), (page, 1), (page + 1, 2)] {
                let layout = layout(bytes, page).unwrap();
                assert_eq!((layout.size(), layout.align()), (pages * page, page));
            }
            assert_eq!(layout(usize::MAX, page), None);
            assert_eq!(layout(isize::MAX as usize, page), None);
        }
        let pages = Pages::allocate(1, "a page").unwrap();
        assert!(pages.start().addr().get().is_multiple_of(host_page()));
        assert_eq!(pages.bytes(), host_page());
    }
}
