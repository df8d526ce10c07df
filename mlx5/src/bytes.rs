//! Bytes that a device, a peer or another thread may write at any time.
//!
//! No `&[u8]` or `&mut [u8]` ever covers such bytes: they are copied with relaxed atomics of one word. Every
//! access to a byte uses the same word, whatever the length of the copy, so that threads which share a region
//! never race in the sense of the memory model (accesses of mixed sizes would).

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();

/// A range of shared bytes. It does not keep the memory alive: each unsafe method asks its caller for that.
///
/// Every access through this type to one byte has the same size, if all ranges over the memory have the
/// same bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    start: NonNull<u8>,
    len: usize,
    /// Addresses of the words that lie inside; bytes outside them are accessed singly.
    words: (usize, usize),
}

// SAFETY: an address range. All accesses are atomic, and each unsafe method asks for live memory.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// `len` bytes at `start`, with access to whole words only where they lie inside.
    #[inline]
    pub fn new(start: NonNull<u8>, len: usize) -> Self {
        let address = start.addr().get();
        let first = address.next_multiple_of(WORD);
        let end = (address + len) & !(WORD - 1);
        Self { start, len, words: (first, end.max(first)) }
    }

    /// The first byte.
    #[inline]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The first byte's address.
    #[inline]
    pub fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for a range of no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True if `[offset, offset + length)` lies inside.
    #[inline]
    pub fn contains(&self, offset: usize, length: usize) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.len)
    }

    /// The offset of a remote address range, if it lies inside.
    #[inline]
    pub fn offset_of(&self, address: u64, length: usize) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.address())?).ok()?;
        self.contains(offset, length).then_some(offset)
    }

    #[inline]
    fn in_words(&self, address: usize) -> bool {
        address >= self.words.0 && address < self.words.1
    }

    /// The word at `pointer`.
    ///
    /// # Safety
    /// `pointer` is 8-byte aligned and its word lies inside a live range that is accessed atomically.
    #[inline]
    unsafe fn word<'a>(pointer: *mut u8) -> &'a AtomicU64 {
        // SAFETY: the caller's promise.
        unsafe { AtomicU64::from_ptr(pointer.cast()) }
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

    #[inline(never)]
    unsafe fn write_any(&self, offset: usize, mut source: &[u8]) {
        debug_assert!(self.contains(offset, source.len()));
        // SAFETY: inside the range by the contract.
        let mut at = unsafe { self.start.as_ptr().add(offset) };
        while !source.is_empty() {
            let address = at.addr();
            let taken = if !self.in_words(address) {
                // SAFETY: inside the live range; edge bytes are always accessed as bytes.
                unsafe { AtomicU8::from_ptr(at) }.store(source[0], Ordering::Relaxed);
                1
            } else if address % WORD == 0 && source.len() >= WORD {
                let bulk = source.len().min(self.words.1 - address) & !(WORD - 1);
                for (i, chunk) in source[..bulk].as_chunks::<WORD>().0.iter().enumerate() {
                    // SAFETY: `bulk` bytes from `at` are whole words inside the live range.
                    let word = unsafe { Self::word(at.add(i * WORD)) };
                    word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
                }
                bulk
            } else {
                let skip = address % WORD;
                let taken = (WORD - skip).min(source.len());
                // SAFETY: the word around `at` lies inside the live range (`in_words`).
                let word = unsafe { Self::word(at.sub(skip)) };
                let part = &source[..taken];
                let merge = |old: u64| {
                    let mut bytes = old.to_ne_bytes();
                    bytes[skip..skip + taken].copy_from_slice(part);
                    Some(u64::from_ne_bytes(bytes))
                };
                let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, merge);
                taken
            };
            source = &source[taken..];
            // SAFETY: at most one past the end of the range.
            at = unsafe { at.add(taken) };
        }
    }

    /// Copies from `offset` into `target`.
    ///
    /// # Safety
    /// The memory is alive, and `contains(offset, target.len())`.
    pub unsafe fn read(&self, offset: usize, mut target: &mut [u8]) {
        debug_assert!(self.contains(offset, target.len()));
        // SAFETY: inside the range by the contract.
        let mut at = unsafe { self.start.as_ptr().add(offset) };
        while !target.is_empty() {
            let address = at.addr();
            let taken = if !self.in_words(address) {
                // SAFETY: inside the live range; edge bytes are always accessed as bytes.
                target[0] = unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Relaxed);
                1
            } else if address % WORD == 0 && target.len() >= WORD {
                let bulk = target.len().min(self.words.1 - address) & !(WORD - 1);
                for (i, chunk) in target[..bulk].as_chunks_mut::<WORD>().0.iter_mut().enumerate() {
                    // SAFETY: `bulk` bytes from `at` are whole words inside the live range.
                    let word = unsafe { Self::word(at.add(i * WORD)) };
                    *chunk = word.load(Ordering::Relaxed).to_ne_bytes();
                }
                bulk
            } else {
                let skip = address % WORD;
                let taken = (WORD - skip).min(target.len());
                // SAFETY: the word around `at` lies inside the live range (`in_words`).
                let word = unsafe { Self::word(at.sub(skip)) }.load(Ordering::Relaxed).to_ne_bytes();
                target[..taken].copy_from_slice(&word[skip..skip + taken]);
                taken
            };
            target = &mut target[taken..];
            // SAFETY: at most one past the end of the range.
            at = unsafe { at.add(taken) };
        }
    }

    /// Copies between two shared ranges through a small buffer on the stack.
    ///
    /// # Safety
    /// Both are alive and contain the ranges named.
    pub unsafe fn copy(&self, offset: usize, source: &Bytes, from: usize, length: usize) {
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
        // SAFETY: inside the range.
        let at = unsafe { self.start.as_ptr().add(offset) };
        // SAFETY: aligned and inside; a whole aligned word is always in `words`.
        (at.addr() % WORD == 0).then(|| unsafe { Self::word(at) })
    }

    /// The byte at `offset`, with acquire ordering.
    ///
    /// # Safety
    /// The memory is alive, and `contains(offset, 1)`.
    #[inline]
    pub unsafe fn load_u8(&self, offset: usize) -> u8 {
        // SAFETY: inside the range by the contract.
        let at = unsafe { self.start.as_ptr().add(offset) };
        if self.in_words(at.addr()) {
            let skip = at.addr() % WORD;
            // SAFETY: the word around `at` lies inside the live range.
            unsafe { Self::word(at.sub(skip)) }.load(Ordering::Acquire).to_ne_bytes()[skip]
        } else {
            // SAFETY: inside the live range; edge bytes are always accessed as bytes.
            unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Acquire)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every offset and length over a range whose ends are not aligned equals a plain copy.
    #[test]
    fn equals_a_plain_copy_at_every_offset_and_length() {
        // Miri takes minutes for all.
        let step = if cfg!(miri) { 7 } else { 1 };
        for start in (0..8).step_by(step) {
            // Memory of its own for each range, as ranges with other bounds have other words.
            let mut backing = [0u64; 8];
            let base = NonNull::new(backing.as_mut_ptr().cast::<u8>()).unwrap();
            // SAFETY: inside `backing`.
            let bytes = Bytes::new(unsafe { base.add(start) }, 50);
            let mut oracle = vec![0u8; 50];
            // SAFETY: `backing` is alive and the range inside it.
            unsafe { bytes.write(0, &oracle) };
            let mut value = 0u8;
            for offset in (0..50).step_by(step) {
                for length in (0..=(50 - offset)).step_by(step) {
                    let source: Vec<u8> = (0..length)
                        .map(|_| {
                            value = value.wrapping_add(7);
                            value
                        })
                        .collect();
                    oracle[offset..offset + length].copy_from_slice(&source);
                    let mut back = vec![0u8; length];
                    let mut all = vec![0u8; 50];
                    // SAFETY: as above.
                    unsafe {
                        bytes.write(offset, &source);
                        bytes.read(offset, &mut back);
                        bytes.read(0, &mut all);
                    }
                    assert_eq!(back, source);
                    assert_eq!(all, oracle);
                }
            }
        }
    }

    #[test]
    fn ranges_are_checked_without_overflow() {
        let mut byte = 0u64;
        let bytes = Bytes::new(NonNull::from(&mut byte).cast(), 8);
        assert!(bytes.contains(8, 0) && !bytes.contains(8, 1) && !bytes.contains(usize::MAX, 2));
        assert_eq!(bytes.offset_of(bytes.address() + 8, 0), Some(8));
        assert_eq!(bytes.offset_of(bytes.address() - 1, 1), None);
        assert_eq!(bytes.offset_of(u64::MAX, 1), None);
    }
}
