//! The whole words of a region, and copies by them.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

pub(crate) const WORD: usize = size_of::<u64>();

/// The addresses whose aligned words are accessed as a whole.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    first: usize,
    end: usize,
}

impl Words {
    /// Returns the whole words of `length` bytes at `start`. The range does not wrap around.
    #[inline]
    pub const fn of(start: usize, length: usize) -> Self {
        let first = start.saturating_add(WORD - 1) & !(WORD - 1);
        let end = (start + length) & !(WORD - 1);
        Self { first, end: if end < first { first } else { end } }
    }

    #[inline]
    fn contains(self, address: usize) -> bool {
        address >= self.first && address < self.end
    }

    /// Returns the word around the byte at `place`, and the byte's index in it. `None` if bytes are
    /// accessed singly there.
    ///
    /// # Safety
    /// If `place` is within, its word is valid for reads and writes for `'a`.
    #[inline]
    pub unsafe fn around<'a>(self, place: NonNull<u8>) -> Option<(&'a AtomicU64, usize)> {
        let address = place.addr().get();
        let skip = address % WORD;
        // SAFETY: the word is aligned, and valid by the caller's contract.
        self.contains(address)
            .then(|| (unsafe { AtomicU64::from_ptr(place.sub(skip).as_ptr().cast()) }, skip))
    }

    /// Copies from `from` to `bytes`.
    ///
    /// # Safety
    /// `from` is valid for reads of `bytes.len()` bytes, and each whole word that contains one of
    /// them for reads of all of it. Other threads access them by the rule above.
    pub unsafe fn read(self, from: NonNull<u8>, bytes: &mut [u8]) {
        let mut at = 0;
        while at < bytes.len() {
            // SAFETY: inside the caller's range.
            let place = unsafe { from.add(at) };
            let rest = &mut bytes[at..];
            // SAFETY: the words are valid by the caller's contract.
            at += match unsafe { self.around(place) } {
                None => {
                    // SAFETY: a valid byte; bytes outside the words are accessed singly.
                    rest[0] = unsafe { AtomicU8::from_ptr(place.as_ptr()) }.load(Ordering::Relaxed);
                    1
                }
                Some((_, 0)) if rest.len() >= WORD => {
                    let count = rest.len().min(self.end - place.addr().get()) / WORD;
                    // SAFETY: `count` words lie inside the caller's range and inside `rest`.
                    unsafe { load_words(place, rest[..count * WORD].as_chunks_mut().0) };
                    count * WORD
                }
                Some((word, skip)) => {
                    let part = (WORD - skip).min(rest.len());
                    let word = word.load(Ordering::Relaxed).to_ne_bytes();
                    rest[..part].copy_from_slice(&word[skip..skip + part]);
                    part
                }
            };
        }
    }

    /// Copies `bytes` to `to`. The last word, or byte outside the words, is stored after all others
    /// and releases them.
    ///
    /// # Safety
    /// As [`Self::read`], for writes.
    pub unsafe fn write(self, to: NonNull<u8>, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            // SAFETY: inside the caller's range.
            let place = unsafe { to.add(at) };
            let rest = &bytes[at..];
            let order =
                |part| if part == rest.len() { Ordering::Release } else { Ordering::Relaxed };
            // SAFETY: the words are valid by the caller's contract.
            at += match unsafe { self.around(place) } {
                None => {
                    // SAFETY: a valid byte; bytes outside the words are accessed singly.
                    unsafe { AtomicU8::from_ptr(place.as_ptr()) }.store(rest[0], order(1));
                    1
                }
                Some((_, 0)) if rest.len() > WORD && place.addr().get() + WORD < self.end => {
                    // All whole words except the last of the copy, which is stored separately.
                    let count =
                        ((rest.len() - 1) / WORD).min((self.end - place.addr().get()) / WORD);
                    // SAFETY: `count` words lie inside the caller's range and inside `rest`.
                    unsafe { store_words(rest[..count * WORD].as_chunks().0, place) };
                    count * WORD
                }
                Some((word, skip)) => {
                    let part = (WORD - skip).min(rest.len());
                    if let Ok(whole) = rest[..part].try_into() {
                        word.store(u64::from_ne_bytes(whole), order(part));
                    } else {
                        let merge = |old: u64| {
                            let mut word = old.to_ne_bytes();
                            word[skip..skip + part].copy_from_slice(&rest[..part]);
                            Some(u64::from_ne_bytes(word))
                        };
                        let _ = word.fetch_update(order(part), Ordering::Relaxed, merge);
                    }
                    part
                }
            };
        }
    }
}

/// From this many words on, a string instruction is faster than a loop.
#[cfg(all(target_arch = "x86_64", not(any(miri, barewire_sanitize))))]
const LONG: usize = 16;

/// Loads words from shared memory.
///
/// # Safety
/// `from` is aligned to a word and valid for reads of `to.len()` words, which other threads access
/// as whole words.
unsafe fn load_words(from: NonNull<u8>, to: &mut [[u8; WORD]]) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, barewire_sanitize))))]
    if to.len() >= LONG {
        // SAFETY: `from` is valid for as many words as `to` has.
        return unsafe { move_words(from.as_ptr(), to.as_mut_ptr().cast(), to.len()) };
    }
    for (at, to) in to.iter_mut().enumerate() {
        // SAFETY: word `at` of the shared range, which is aligned.
        let word = unsafe { AtomicU64::from_ptr(from.add(at * WORD).as_ptr().cast()) };
        *to = word.load(Ordering::Relaxed).to_ne_bytes();
    }
}

/// Stores words to shared memory.
///
/// # Safety
/// `to` is aligned to a word and valid for writes of `from.len()` words, which other threads access
/// as whole words.
unsafe fn store_words(from: &[[u8; WORD]], to: NonNull<u8>) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, barewire_sanitize))))]
    if from.len() >= LONG {
        // SAFETY: `to` is valid for as many words as `from` has.
        return unsafe { move_words(from.as_ptr().cast(), to.as_ptr(), from.len()) };
    }
    for (at, from) in from.iter().enumerate() {
        // SAFETY: word `at` of the shared range, which is aligned.
        let word = unsafe { AtomicU64::from_ptr(to.add(at * WORD).as_ptr().cast()) };
        word.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
    }
}

/// Copies words between two ranges of shared memory.
///
/// # Safety
/// Both are aligned to a word and valid for `count` words, which other threads access as whole
/// words.
pub(crate) unsafe fn copy_words(from: NonNull<u8>, to: NonNull<u8>, count: usize) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, barewire_sanitize))))]
    if count >= LONG {
        // SAFETY: both are valid for `count` words.
        return unsafe { move_words(from.as_ptr(), to.as_ptr(), count) };
    }
    for at in 0..count {
        let [from, to] = [from, to].map(|start| {
            // SAFETY: word `at` of a shared range, which is aligned.
            unsafe { AtomicU64::from_ptr(start.add(at * WORD).as_ptr().cast()) }
        });
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// `rep movsq` does the same as the loops above, faster: it accesses each word once and as a whole,
/// and the compiler can neither split nor repeat an access inside an `asm` block. Miri and
/// ThreadSanitizer do not understand assembly, so they run the loops.
///
/// # Safety
/// Both ranges are valid for `count` words, and other threads access them only as whole words.
#[cfg(all(target_arch = "x86_64", not(any(miri, barewire_sanitize))))]
unsafe fn move_words(from: *const u8, to: *mut u8, count: usize) {
    // SAFETY: both ranges are valid by the caller's contract. If they overlap, the instruction
    // copies word by word, from the first one on. The direction flag is clear on entry to any `asm`
    // block.
    unsafe {
        core::arch::asm!(
            "rep movsq",
            inout("rcx") count => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{vec, vec::Vec};

    /// Every offset and length, over a range whose ends are not aligned, equals a plain copy.
    #[test]
    fn equals_a_plain_copy_at_every_offset_and_length() {
        // Miri would take minutes for all.
        let step = if cfg!(miri) { 7 } else { 1 };
        for start in (0..8).step_by(step) {
            // New memory for each range, since ranges with other bounds have other words.
            let mut backing = [0_u64; 8];
            let base = NonNull::from(&mut backing).cast::<u8>();
            // SAFETY: inside `backing`.
            let memory = unsafe { base.add(start) };
            let words = Words::of(memory.addr().get(), 50);
            let mut oracle = vec![0_u8; 50];
            // SAFETY: 50 bytes of `backing`, which no other thread accesses.
            unsafe { words.write(memory, &oracle) };
            let mut value = 0_u8;
            for offset in (0..50).step_by(step) {
                for length in (0..=50 - offset).step_by(step) {
                    let source: Vec<u8> =
                        (0..length).map(|at| value.wrapping_add(at as u8)).collect();
                    value = value.wrapping_add(7);
                    oracle[offset..offset + length].copy_from_slice(&source);
                    let (mut part, mut all) = (vec![0; length], vec![0; 50]);
                    // SAFETY: parts of the 50 bytes.
                    unsafe {
                        words.write(memory.add(offset), &source);
                        words.read(memory.add(offset), &mut part);
                        words.read(memory, &mut all);
                    }
                    assert_eq!((part, &all), (source, &oracle), "{length} bytes at {offset}");
                }
            }
        }
    }

    #[test]
    fn words_are_those_inside() {
        for (start, length, first, end) in
            [(16, 16, 16, 32), (17, 15, 24, 32), (16, 15, 16, 24), (17, 6, 24, 24), (16, 0, 16, 16)]
        {
            let words = Words::of(start, length);
            assert_eq!((words.first, words.end), (first, end), "{length} bytes at {start}");
        }
    }

    /// A reader that sees the last byte sees all others, whatever the alignment.
    #[test]
    fn the_last_byte_releases_the_others() {
        let rounds = if cfg!(miri) { 3 } else { 2000 };
        // Both ends outside the words, and inside.
        for (start, length) in [(3, 30), (0, 48), (5, 1), (1, 13)] {
            let mut backing = [0_u64; 6];
            let base = NonNull::from(&mut backing).cast::<u8>();
            let words = Words::of(base.addr().get() + start, length);
            let shared = Shared(base, words);
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let Shared(base, words) = { shared };
                    for round in 0..rounds {
                        // SAFETY: a part of `backing`, which both threads access through `Words`.
                        unsafe { words.write(base.add(start), &vec![round as u8; length]) };
                    }
                });
                let Shared(base, words) = { shared };
                let mut seen = vec![0; length];
                let last = (rounds - 1) as u8;
                while seen[length - 1] != last {
                    // SAFETY: a part of `backing`, which both threads access through `Words`.
                    unsafe { words.read(base.add(start), &mut seen) };
                    std::thread::yield_now();
                }
                std::sync::atomic::fence(Ordering::Acquire);
                // SAFETY: a part of `backing`, which both threads access through `Words`.
                unsafe { words.read(base.add(start), &mut seen) };
                assert!(rounds > 256 || seen.iter().all(|&byte| byte == last), "{seen:?}");
            });
        }
    }

    #[derive(Clone, Copy)]
    struct Shared(NonNull<u8>, Words);
    // SAFETY: both threads access the memory through `Words`, and the owner outlives them.
    unsafe impl Send for Shared {}
}
