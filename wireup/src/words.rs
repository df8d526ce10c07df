//! Memory that devices, peers and this process access at the same time.

#![allow(unsafe_code, reason = "allocates memory that may have any length")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use barewire::MemoryError;

/// Bytes of a word.
pub(crate) const WORD: usize = size_of::<u64>();

/// Zeroed words. Their number may come from a peer: an allocation that does not succeed is an error,
/// and the kernel provides a page of a long one when it is accessed first.
#[derive(Debug)]
pub(crate) struct Words {
    /// At least `count` words from `first` on.
    start: NonNull<AtomicU64>,
    layout: Layout,
    first: usize,
    count: usize,
}

impl Words {
    /// Allocates the words of `length` bytes, at least one. `align` is a power of two of at least a
    /// word.
    pub(crate) fn new(length: usize, align: usize) -> Result<Self, MemoryError> {
        let none = MemoryError::NoMemory { length };
        let Some(bytes) = length.checked_next_multiple_of(WORD).map(|bytes| bytes.max(WORD)) else {
            return Err(none);
        };
        // The C library clears memory of a larger alignment itself, and so accesses every page.
        let Some(room) = bytes.checked_add(align - WORD) else { return Err(none) };
        let Ok(layout) = Layout::from_size_align(room, WORD) else { return Err(none) };
        // SAFETY: the layout has at least the size of a word.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { return Err(none) };
        let address = start.addr().get();
        // Less than `align`, and both addresses are multiples of a word.
        let first = (address.next_multiple_of(align) - address) / WORD;
        Ok(Self { start: start.cast(), layout, first, count: bytes / WORD })
    }

    pub(crate) fn as_slice(&self) -> &[AtomicU64] {
        // SAFETY: `first` is at most `(align - WORD) / WORD`, so the allocation has `count` words
        // behind it. They are aligned, initialized (by zeros), and live as long as `self`. Others
        // access them as atomic words, too.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(self.first), self.count) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: `new` allocated the memory with this layout, and nothing else frees it.
        unsafe { dealloc(self.start.as_ptr().cast(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn words_are_aligned_zeroed_and_enough() {
        for align in [8, 64, 4096] {
            for (length, count) in [(0, 1), (1, 1), (8, 1), (9, 2), (4096, 512), (100_001, 12_501)]
            {
                let words = Words::new(length, align).unwrap();
                let slice = words.as_slice();
                assert_eq!((slice.len(), slice.as_ptr().addr() % align), (count, 0), "{length}");
                assert!(slice.iter().all(|word| word.load(Ordering::Relaxed) == 0));
                for word in slice {
                    word.store(u64::MAX, Ordering::Relaxed);
                }
            }
        }
    }

    #[test]
    fn lengths_that_no_memory_has_are_refused() {
        for length in [1 << 50, 1 << 62, isize::MAX as usize, 1 << 63, usize::MAX - 7, usize::MAX] {
            for align in [8, 64, 4096] {
                let error = Words::new(length, align).unwrap_err();
                assert!(
                    matches!(error, MemoryError::NoMemory { length: found } if found == length)
                );
            }
        }
    }
}
