//! Access to registered memory. This file and `words` are the only ones that dereference pointers
//! into it.
//!
//! The device reads and writes host memory while the program does the same. Copies follow the rule
//! of `words`, so that they do not race with the program's atomics; a program that reads what is
//! being written gets a mixture of old and new words. If a queue's protocol fixes the size (the
//! four bytes of a doorbell record, the owner byte of an EQE), both sides use that size.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::paging;
use barewire_shared_bytes::Words;

/// A range of registered memory. Every access is bounds-checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    start: NonNull<u8>,
    length: usize,
    /// The whole words of the registration.
    words: Words,
    /// It may be unmapped: accessed by `paging`.
    on_demand: bool,
}

// SAFETY: a window is an address and a length. The memory is valid for any thread (`Window::new`),
// and every access is atomic, in the sizes that the program uses.
unsafe impl Send for Window {}
// SAFETY: every access through a shared reference is atomic; no method needs exclusive access.
unsafe impl Sync for Window {}

impl Window {
    /// The empty window.
    pub(crate) const EMPTY: Self =
        Self { start: NonNull::dangling(), length: 0, words: Words::of(0, 0), on_demand: false };

    /// Creates a window of the memory at `start`.
    ///
    /// # Safety
    /// `[start, start + length)` is within memory registered by `Device::register_umem` and stays
    /// registered while the window is used: valid for reads and writes of any thread, and shared
    /// only with code that allows a device to access it.
    pub(super) unsafe fn new(start: NonNull<u8>, length: usize) -> Self {
        Self { start, length, words: Words::of(start.addr().get(), length), on_demand: false }
    }

    /// Creates a window of memory that is paged in on access, if it is mapped.
    ///
    /// # Safety
    /// Mapped memory is shared only with code that allows a device to access it, and stays mapped
    /// during atomic operations on it.
    pub(super) unsafe fn on_demand(start: NonNull<u8>, length: usize) -> Self {
        Self { start, length, words: Words::of(start.addr().get(), length), on_demand: true }
    }

    /// Returns whether the memory may be unmapped.
    pub(crate) fn is_on_demand(self) -> bool {
        self.on_demand
    }

    /// Pages in memory that may be unmapped. Returns false if it is.
    pub(super) fn bring_in(self, write: bool) -> bool {
        !self.on_demand || paging::bring_in(self.start, self.length, write)
    }

    /// Pages in all of memory that may be unmapped. Returns false if part of it is.
    pub(super) fn page_in(self, write: bool) -> bool {
        !self.on_demand || paging::populate(self.start, self.length, write)
    }

    /// Returns the addresses of the bytes.
    pub(super) fn addresses(self) -> std::ops::Range<usize> {
        let start = self.start.addr().get();
        start..start.saturating_add(self.length)
    }

    /// Returns the length in bytes.
    pub(crate) fn len(self) -> usize {
        self.length
    }

    /// Returns part of the window; `None` if it is not within.
    pub(crate) fn slice(self, offset: usize, length: usize) -> Option<Self> {
        let end = offset.checked_add(length)?;
        if end > self.length {
            return None;
        }
        // SAFETY: offset <= end <= self.length, so the result stays in the same memory.
        let start = unsafe { self.start.add(offset) };
        Some(Self { start, length, ..self })
    }

    /// Returns whether the start is a multiple of `alignment`, a power of two.
    pub(crate) fn is_aligned(self, alignment: usize) -> bool {
        self.start.addr().get() & (alignment - 1) == 0
    }

    /// Copies from the window's start; bytes beyond its end are not changed.
    pub(crate) fn read(self, bytes: &mut [u8]) {
        let length = bytes.len().min(self.length);
        if self.on_demand {
            return paging::read(self.start, &mut bytes[..length]);
        }
        // SAFETY: self.length bytes are readable, and so are the registration's words around them
        // (`new`).
        unsafe { self.words.read(self.start, &mut bytes[..length]) }
    }

    /// Copies to the window's start; bytes that do not fit are dropped.
    ///
    /// The last word is stored after all others: programs wait for an RDMA write by polling its
    /// last bytes.
    pub(crate) fn write(self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.length)];
        if self.on_demand {
            // The part of the last word that belongs to the copy.
            let end = self.start.addr().get() + bytes.len();
            let last = (end - 1) % 8 + 1;
            let (body, tail) = bytes.split_at(bytes.len().saturating_sub(last));
            paging::write(self.start, body);
            // SAFETY: the body is no longer than the window.
            return paging::write(unsafe { self.start.add(body.len()) }, tail);
        }
        // SAFETY: self.length bytes are writable, and so are the registration's words around them
        // (`new`).
        unsafe { self.words.write(self.start, bytes) }
    }

    /// Returns the window for memory in which the program accesses neighbours of these bytes in
    /// other sizes: words that extend beyond the window are accessed bytewise.
    pub(crate) fn alone(self) -> Self {
        Self { words: Words::of(self.start.addr().get(), self.length), ..self }
    }

    /// Returns the big-endian word at byte `offset` with acquire ordering; 0 if it is outside the
    /// window or not aligned.
    pub(crate) fn load_be32(self, offset: usize) -> u32 {
        self.slice(offset, 4)
            .and_then(Self::atomic_u32)
            .map_or(0, |word| u32::from_be(word.load(Ordering::Acquire)))
    }

    /// Stores the window's first byte with release ordering.
    pub(crate) fn publish_byte(self, byte: u8) {
        if self.length >= 1 {
            // SAFETY: the byte is within the window and valid for reads and writes (`new`); a byte
            // is always aligned.
            unsafe { AtomicU8::from_ptr(self.start.as_ptr()) }.store(byte, Ordering::Release);
        }
    }

    fn atomic_u32<'a>(self) -> Option<&'a AtomicU32> {
        let fits = self.length >= 4 && self.is_aligned(align_of::<AtomicU32>());
        // SAFETY: four valid and aligned bytes (`new`). The reference is not returned from this
        // file.
        fits.then(|| unsafe { AtomicU32::from_ptr(self.start.as_ptr().cast()) })
    }

    fn atomic_u64<'a>(self) -> Option<&'a AtomicU64> {
        let fits = self.length >= 8 && self.is_aligned(align_of::<AtomicU64>());
        // SAFETY: eight valid and aligned bytes (`new`). The reference is not returned from this
        // file.
        fits.then(|| unsafe { AtomicU64::from_ptr(self.start.as_ptr().cast()) })
    }
}

/// A translated range: the memory of an address and key. It borrows the memory tables, so that no
/// memory is deregistered meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct Span<'m> {
    window: Window,
    /// The further windows of an indirect key.
    more: Vec<Window>,
    tables: PhantomData<&'m ()>,
}

impl Span<'_> {
    pub(super) fn new(window: Window) -> Self {
        Self { window, more: Vec::new(), tables: PhantomData }
    }

    /// Returns the windows in order.
    pub(super) fn of(windows: Vec<Window>) -> Self {
        Self { window: Window::EMPTY, more: windows, tables: PhantomData }
    }

    /// Gathers: copies from the memory.
    pub(crate) fn copy_to(&self, bytes: &mut [u8]) {
        self.window.read(bytes);
        let mut at = self.window.len().min(bytes.len());
        for window in &self.more {
            let rest = &mut bytes[at..];
            window.read(rest);
            at += window.len().min(rest.len());
        }
    }

    /// Scatters: copies to the memory, the last word last.
    pub(crate) fn copy_from(&self, bytes: &[u8]) {
        self.window.write(bytes);
        let mut rest = bytes.get(self.window.len()..).unwrap_or_default();
        for window in &self.more {
            window.write(rest);
            rest = rest.get(window.len()..).unwrap_or_default();
        }
    }

    /// Replaces the number of `bytes` (4 or 8) at the start, in host order, by the result of
    /// `next`, and returns the old one. If `next` returns `None` it stays. `None` if it is not
    /// aligned, not within one window, or of another size.
    pub(crate) fn update(&self, bytes: u64, next: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let order = Ordering::SeqCst;
        let window = match *self.more {
            [] => self.window,
            // A number in two windows cannot be changed atomically.
            [window] => window,
            _ => return None,
        };
        match bytes {
            4 => {
                let half = window.atomic_u32()?;
                let next = |old: u32| next(old.into()).map(|new| new as u32);
                // SAFETY: the first four bytes are in the window, and the registration's word
                // around them is valid (`new`).
                let Some((word, skip)) = (unsafe { window.words.around(window.start) }) else {
                    return Some(
                        half.fetch_update(order, order, next).unwrap_or_else(|old| old).into(),
                    );
                };
                let part = |word: u64| {
                    let bytes = word.to_ne_bytes();
                    u32::from_ne_bytes(std::array::from_fn(|at| bytes[skip + at]))
                };
                let merge = |old: u64| {
                    let mut bytes = old.to_ne_bytes();
                    bytes[skip..skip + 4].copy_from_slice(&next(part(old))?.to_ne_bytes());
                    Some(u64::from_ne_bytes(bytes))
                };
                let old = word.fetch_update(order, order, merge).unwrap_or_else(|old| old);
                Some(part(old).into())
            }
            8 => window
                .atomic_u64()
                .map(|word| word.fetch_update(order, order, &next).unwrap_or_else(|old| old)),
            _ => None,
        }
    }
}

/// For tests: creates a window of `length` zero bytes, aligned to 64 and leaked so that they stay
/// valid.
#[cfg(test)]
pub(crate) fn leaked(length: usize) -> Window {
    #[derive(Clone)]
    #[repr(align(64))]
    struct Line {
        _bytes: [u8; 64],
    }
    let lines = Box::leak(vec![Line { _bytes: [0; 64] }; length.div_ceil(64)].into_boxed_slice());
    // SAFETY: leaked memory is never freed, and only the window accesses it from here on.
    unsafe { Window::new(NonNull::from(lines).cast(), length) }
}

#[cfg(test)]
impl Window {
    /// For tests: returns a copy of all bytes.
    pub(crate) fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        self.read(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_arrives_whole() {
        let source: Vec<u8> = (1..=40).collect();
        for length in 0..=40 {
            for offset in 0..8 {
                let memory = leaked(48);
                memory.slice(offset, length).unwrap().write(&source[..length]);
                let mut want = vec![0; 48];
                want[offset..offset + length].copy_from_slice(&source[..length]);
                assert_eq!(memory.bytes(), want, "{length} bytes at {offset}");
            }
        }
    }

    #[test]
    fn nothing_leaves_the_window() {
        let memory = leaked(16);
        let inner = memory.slice(4, 8).unwrap();
        inner.write(&[0xff; 100]);
        assert_eq!(
            memory.bytes(),
            [0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0]
        );
        let mut target = [7; 10];
        inner.read(&mut target);
        assert_eq!(target, [255, 255, 255, 255, 255, 255, 255, 255, 7, 7]);
        assert!(memory.slice(9, 8).is_none());
        assert!(memory.slice(usize::MAX, 2).is_none());
        assert!(memory.slice(16, 0).is_some());
        Window::EMPTY.write(&[1]);
        Window::EMPTY.publish_byte(1);
        assert_eq!(Window::EMPTY.load_be32(0), 0);
    }

    #[test]
    fn words_are_big_endian() {
        let memory = leaked(8);
        memory.write(&[0, 0, 0, 1, 0, 0, 0, 2]);
        assert_eq!((memory.load_be32(0), memory.load_be32(4)), (1, 2));
        assert_eq!((memory.load_be32(5), memory.load_be32(2)), (0, 0));
        memory.publish_byte(0x80);
        assert_eq!(memory.load_be32(0), 0x8000_0001);
    }

    #[test]
    fn atomics_work_in_host_order() {
        let memory = leaked(16);
        memory.write(&[5_u64.to_ne_bytes(), u64::MAX.to_ne_bytes()].concat());
        let part = |offset, length| Span::new(memory.slice(offset, length).unwrap());
        let add = |operand: u64| move |old: u64| Some(old.wrapping_add(operand));
        assert_eq!(Span::new(memory).update(8, add(3)), Some(5));
        assert_eq!(Span::new(memory).update(8, |_| None), Some(8));
        assert_eq!(part(8, 8).update(8, add(2)), Some(u64::MAX));
        assert_eq!(memory.bytes()[..8], 8_u64.to_ne_bytes());
        assert_eq!(memory.bytes()[8..], 1_u64.to_ne_bytes());
        assert_eq!(part(4, 4).update(4, add(7)), Some(8 >> 32));
        assert_eq!(memory.bytes()[4..8], 7_u32.to_ne_bytes());
        assert_eq!(part(4, 8).update(8, add(1)), None);
        assert_eq!(part(8, 4).update(8, add(1)), None);
        assert_eq!(part(2, 4).update(4, add(1)), None);
        assert_eq!(part(8, 8).update(2, add(1)), None);
    }
}
