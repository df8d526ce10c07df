//! User access regions: pages through which software rings the device.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use barewire_layouts::doorbell::UAR_PAGE;

/// A UAR page: [`UAR_PAGE`] bytes, aligned to their number, initially zero.
///
/// On hardware it is a device register; here it is memory that the engine polls. It lives as long
/// as any handle, so a doorbell after the device's end is harmless.
pub struct UarPage {
    start: NonNull<u8>,
}

// SAFETY: the page is written through raw pointers and read through atomics, from any thread.
unsafe impl Send for UarPage {}
// SAFETY: no method needs exclusive access, and every access is atomic or a raw store.
unsafe impl Sync for UarPage {}

impl UarPage {
    const LAYOUT: Layout = match Layout::from_size_align(UAR_PAGE, UAR_PAGE) {
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

    /// Returns the page's first byte. Valid for writes of [`UAR_PAGE`] bytes while the page is
    /// held; the device only reads.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the 8 bytes at `offset` in host order; 0 if they are not in the page or not aligned.
    pub(crate) fn load(&self, offset: usize) -> u64 {
        self.word(offset).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Replaces the 8 bytes at `offset` by `value` and returns the old ones; 0 if they are not in
    /// the page or not aligned.
    pub(crate) fn swap(&self, offset: usize, value: u64) -> u64 {
        self.word(offset).map_or(0, |word| word.swap(value, Ordering::AcqRel))
    }

    fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let inside = offset.is_multiple_of(8) && offset < UAR_PAGE;
        // SAFETY: eight aligned bytes of the page, which lives as long as `self` and is otherwise
        // written by raw stores only.
        inside.then(|| unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) })
    }
}

impl Drop for UarPage {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout, and freed here only.
        unsafe { dealloc(self.start.as_ptr(), Self::LAYOUT) }
    }
}

impl fmt::Debug for UarPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UarPage").field(&self.start).finish()
    }
}

/// An allocated UAR page.
#[derive(Debug)]
pub(crate) struct Uar {
    /// The page.
    pub(crate) page: Arc<UarPage>,
    /// Queues whose doorbells are in it.
    pub(crate) users: u32,
    /// Completion queues with an event queue that its CQ doorbell arms.
    pub(crate) armable: Vec<u32>,
}

impl Uar {
    pub(crate) fn new() -> Self {
        Self { page: Arc::new(UarPage::new()), users: 0, armable: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_aligned_zero_and_watched() {
        let page = Uar::new().page;
        assert_eq!(page.as_ptr().addr().get() % UAR_PAGE, 0);
        assert!((0..UAR_PAGE).step_by(8).all(|offset| page.load(offset) == 0));
        // SAFETY: inside the page, aligned.
        unsafe { page.as_ptr().add(0x800).cast::<u64>().write_volatile(0x1122) };
        assert_eq!(page.load(0x800), 0x1122);
        assert_eq!(page.swap(0x800, 0), 0x1122);
        assert_eq!(page.load(0x800), 0);
        assert_eq!((page.swap(UAR_PAGE, 1), page.swap(4, 1)), (0, 0));
        assert_eq!((page.load(UAR_PAGE), page.load(4), page.load(0)), (0, 0, 0));
    }
}
