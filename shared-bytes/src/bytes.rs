//! A range of shared bytes, with its bounds.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::words::{WORD, Words, copy_words};

const HALF: usize = WORD / 2;

/// A range of shared bytes. It does not keep the memory alive; each unsafe method requires that.
///
/// Every access through this type to one byte has the same size, if all ranges over the memory have
/// the same bounds.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes {
    start: NonNull<u8>,
    len: usize,
    /// Of the first byte, as users of the memory name it.
    address: u64,
    words: Words,
}

// SAFETY: an address range. All accesses are atomic, and each unsafe method asks for live memory.
unsafe impl Send for SharedBytes {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    /// Returns the range of `len` bytes at `start`.
    #[inline]
    pub fn new(start: NonNull<u8>, len: usize) -> Self {
        Self::at(start, len, start.addr().get() as u64)
    }

    /// Returns the range of `len` bytes at `start` that users name by other addresses, the first
    /// byte by `address`.
    #[inline]
    pub fn at(start: NonNull<u8>, len: usize, address: u64) -> Self {
        Self { start, len, address, words: Words::of(start.addr().get(), len) }
    }

    /// Returns the first byte.
    #[inline]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the address of the first byte: that of [`Self::start`], or the one of
    /// [`Self::at`].
    #[inline]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the range is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether `[offset, offset + length)` lies inside.
    #[inline]
    pub fn contains(&self, offset: usize, length: usize) -> bool {
        length <= self.len && offset <= self.len - length
    }

    /// Returns the offset of `length` bytes at `address`, if they lie inside.
    #[inline]
    pub fn offset_of(&self, address: u64, length: usize) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.address())?).ok()?;
        self.contains(offset, length).then_some(offset)
    }

    /// Copies `source` to `offset`.
    ///
    /// # Safety
    /// The memory is alive, and `contains(offset, source.len())`.
    #[inline(always)]
    pub unsafe fn write(&self, offset: usize, source: &[u8]) {
        // SAFETY: the caller's promise.
        match (source.try_into(), unsafe { self.atomic(offset) }) {
            (Ok(bytes), Some(word)) => word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed),
            // SAFETY: handed on.
            _ => unsafe { self.write_any(offset, source) },
        }
    }

    /// # Safety
    /// The contract of [`Self::write`].
    #[inline(never)]
    unsafe fn write_any(&self, offset: usize, source: &[u8]) {
        debug_assert!(self.contains(offset, source.len()));
        // SAFETY: the caller guarantees that the range is inside live memory. All whole words of
        // the memory lie inside it.
        unsafe { self.words.write(self.start.add(offset), source) };
    }

    /// Copies from `offset` into `target`.
    ///
    /// # Safety
    /// The memory is alive, and `contains(offset, target.len())`.
    pub unsafe fn read(&self, offset: usize, target: &mut [u8]) {
        debug_assert!(self.contains(offset, target.len()));
        // SAFETY: the caller guarantees that the range is inside live memory. All whole words of
        // the memory lie inside it.
        unsafe { self.words.read(self.start.add(offset), target) };
    }

    /// Copies between two shared ranges. The last word, or byte outside the words, is stored after
    /// all others and releases them.
    ///
    /// # Safety
    /// Both are alive and contain the ranges named.
    pub unsafe fn copy(&self, offset: usize, source: &SharedBytes, from: usize, length: usize) {
        debug_assert!(self.contains(offset, length) && source.contains(from, length));
        let skip = |bytes: &Self, offset| (bytes.start.addr().get() + offset) % WORD;
        let mut done = 0;
        if skip(self, offset) == skip(source, from) {
            let head = (WORD - skip(self, offset)) % WORD;
            // Without the last word, which is stored separately.
            let count = length.saturating_sub(head + 1) / WORD;
            if count > 0 {
                // SAFETY: parts of the ranges that the caller vouches for. After the head, both
                // places are at a word, and `count` words end before both ranges do.
                unsafe {
                    self.copy_staged(offset, source, from, head);
                    copy_words(source.start.add(from + head), self.start.add(offset + head), count);
                }
                done = head + count * WORD;
            }
        }
        // SAFETY: the rest of the ranges that the caller vouches for.
        unsafe { self.copy_staged(offset + done, source, from + done, length - done) };
    }

    /// Copies through a small buffer on the stack.
    ///
    /// # Safety
    /// The contract of [`Self::copy`].
    unsafe fn copy_staged(&self, offset: usize, source: &SharedBytes, from: usize, length: usize) {
        let mut buffer = [0u8; 512];
        let mut done = 0;
        while done < length {
            let part = (length - done).min(buffer.len());
            // SAFETY: parts of the ranges that the caller vouches for.
            unsafe {
                source.read(from + done, &mut buffer[..part]);
                self.write(offset + done, &buffer[..part]);
            }
            done += part;
        }
    }

    /// The 8-byte word at `offset` for atomics.
    ///
    /// Returns `None` where the address is not a multiple of 8 or the word is not inside.
    ///
    /// # Safety
    /// The memory is alive for `'a`.
    #[inline]
    pub unsafe fn atomic<'a>(&self, offset: usize) -> Option<&'a AtomicU64> {
        if !self.contains(offset, WORD) {
            return None;
        }
        // SAFETY: the byte at `offset` is inside the range.
        let at = unsafe { self.start.as_ptr().add(offset) };
        // SAFETY: the word is aligned and inside live memory, and whole aligned words are accessed
        // as such.
        (at.addr() % WORD == 0).then(|| unsafe { AtomicU64::from_ptr(at.cast()) })
    }

    /// Loads the byte at `offset` with acquire ordering.
    ///
    /// # Safety
    /// The memory is alive, and `contains(offset, 1)`.
    #[inline]
    pub unsafe fn load_u8(&self, offset: usize) -> u8 {
        // SAFETY: inside the range by the caller's contract.
        let at = unsafe { self.start.add(offset) };
        // SAFETY: the whole words lie inside live memory.
        match unsafe { self.words.around(at) } {
            Some((word, skip)) => word.load(Ordering::Acquire).to_ne_bytes()[skip],
            // SAFETY: inside live memory; bytes outside the words are accessed singly.
            None => unsafe { AtomicU8::from_ptr(at.as_ptr()) }.load(Ordering::Acquire),
        }
    }

    /// Replaces the value of `width` bytes (4 or 8) at `offset` by the result of `change`, in one
    /// atomic step. Returns the old value.
    ///
    /// Returns `None` if the width is another one, the address is not a multiple of it, or the
    /// aligned 8 bytes around it are not inside.
    ///
    /// # Safety
    /// The memory is alive.
    #[inline]
    pub unsafe fn update(
        &self,
        offset: usize,
        width: usize,
        change: impl Fn(u64) -> u64,
    ) -> Option<u64> {
        if width == WORD {
            // SAFETY: the memory is alive by the caller's contract.
            let word = unsafe { self.atomic(offset) }?;
            let old =
                word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| Some(change(old)));
            return old.ok();
        }
        let skip = self.start.addr().get().checked_add(offset)? % WORD;
        if width != HALF || !skip.is_multiple_of(HALF) {
            return None;
        }
        let half = |whole: u64| {
            let word = whole.to_ne_bytes();
            u32::from_ne_bytes(core::array::from_fn(|i| word[skip + i])).into()
        };
        let merge = |whole: u64| {
            let mut word = whole.to_ne_bytes();
            word[skip..skip + HALF].copy_from_slice(&(change(half(whole)) as u32).to_ne_bytes());
            Some(u64::from_ne_bytes(word))
        };
        // SAFETY: the memory is alive by the caller's contract.
        let word = unsafe { self.atomic(offset.checked_sub(skip)?) }?;
        word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, merge).ok().map(half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_without_overflow() {
        let mut byte = 0u64;
        let bytes = SharedBytes::new(NonNull::from(&mut byte).cast(), 8);
        assert!(bytes.contains(8, 0) && !bytes.contains(8, 1) && !bytes.contains(usize::MAX, 2));
        assert_eq!(bytes.offset_of(bytes.address() + 8, 0), Some(8));
        assert_eq!(bytes.offset_of(bytes.address() - 1, 1), None);
        let named = SharedBytes::at(bytes.start(), bytes.len(), 0x7000);
        assert_eq!((named.address(), named.start()), (0x7000, bytes.start()));
        assert_eq!(named.offset_of(0x7001, 1), Some(1));
        assert_eq!(named.offset_of(bytes.address(), 1), None);
        assert_eq!(bytes.offset_of(u64::MAX, 1), None);
    }

    /// Copies of every length at every pair of offsets equal plain ones and change nothing else.
    #[test]
    fn copies_between_ranges() {
        const SIZE: usize = 17 * WORD;
        // Miri would take minutes for all.
        let step = if cfg!(miri) { 31 } else { 1 };
        let pattern: [u8; SIZE] = core::array::from_fn(|at| at as u8 ^ 0x5a);
        let (mut there, mut here) = ([0_u64; SIZE / WORD], [0_u64; SIZE / WORD]);
        let source = SharedBytes::new(NonNull::from(&mut there).cast(), SIZE);
        let target = SharedBytes::new(NonNull::from(&mut here).cast(), SIZE);
        // SAFETY: the arrays live until the end, and the ranges are inside.
        unsafe { source.write(0, &pattern) };
        for (from, to) in (0..9).flat_map(|from| (0..9).map(move |to| (from, to))) {
            for length in (0..=SIZE - from.max(to)).step_by(step) {
                let mut expected = [0; SIZE];
                expected[to..to + length].copy_from_slice(&pattern[from..from + length]);
                let mut read = [7; SIZE];
                // SAFETY: as above.
                unsafe {
                    target.write(0, &[0; SIZE]);
                    target.copy(to, &source, from, length);
                    target.read(0, &mut read);
                }
                assert_eq!(read, expected, "{length} bytes from {from} to {to}");
            }
        }
    }
}
