//! Memory that peers may reach, and the one way to it.
//!
//! Such memory may be written by others at any time: by the system's calls, which act like a device, by other threads, by the
//! program itself. No reference covers its bytes. They are copied with relaxed atomics: whole aligned words of 8 bytes where they
//! lie inside the region, single bytes at its edges, so that accesses to a byte are always of the same size.
//!
//! This is the crate's only `unsafe` code: [`Region::new`] is where the caller promises that the memory is there.
#![allow(unsafe_code, reason = "raw memory is this module's purpose")]

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use crate::key::random;
use crate::socket::Socket;

const WORD: usize = size_of::<u64>();

/// What peers may do to a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rights {
    /// Put.
    pub write: bool,
    /// Get.
    pub read: bool,
    /// Atomics.
    pub atomic: bool,
}

/// The memory is not there any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revoked;

/// What owns a region's memory, and frees it when it is dropped.
pub type Owner = Box<dyn Any + Send + Sync + UnwindSafe + RefUnwindSafe>;

/// A range of memory, until it is revoked.
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    rights: Rights,
    /// Held for reading by every access, for writing by [`Self::revoke`].
    live: RwLock<bool>,
    /// What owns the memory, if it is owned.
    _owner: Option<Owner>,
}

// SAFETY: an address range; all accesses are atomic or the system's, and take place while it is live.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// The `len` bytes at `start`. `owner` is dropped with the last use of the region.
    ///
    /// # Safety
    /// Until [`Self::revoke`] returns, or as long as the region lives, the bytes are mapped, and are accessed in no other way
    /// than by atomics of this module's sizes, or by the system.
    pub unsafe fn new(start: NonNull<u8>, len: usize, rights: Rights, owner: Option<Owner>) -> Self {
        Self { start, len, rights, live: RwLock::new(true), _owner: owner }
    }

    /// Ends every access. On return none is under way, and there will be none.
    pub fn revoke(&self) {
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// The right to access it for a moment; `None` once it is revoked.
    pub(crate) fn enter(&self) -> Option<Entered<'_>> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        live.then_some(Entered { region: self, _live: live })
    }

    pub(crate) fn rights(&self) -> Rights {
        self.rights
    }

    /// The offset of an address range that lies inside.
    pub(crate) fn offset_of(&self, address: u64, length: u64) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.start.addr().get() as u64)?).ok()?;
        self.contains(offset, usize::try_from(length).ok()?).then_some(offset)
    }

    /// Copies `source` to `offset`.
    ///
    /// # Errors
    /// [`Revoked`], also if the range does not lie inside.
    pub fn write(&self, offset: usize, source: &[u8]) -> Result<(), Revoked> {
        self.enter().and_then(|entered| entered.write(offset, source).ok()).ok_or(Revoked)
    }

    /// Copies from `offset` into `target`.
    ///
    /// # Errors
    /// [`Revoked`], also if the range does not lie inside.
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), Revoked> {
        self.enter().and_then(|entered| entered.read(offset, target).ok()).ok_or(Revoked)
    }

    /// Lets the system put up to `length` bytes of what came on a connection that is not protected straight to
    /// `offset`. `None` if nothing came; zero bytes are the end of the stream.
    ///
    /// # Errors
    /// `None` if the region is revoked or the range does not lie inside; else what the system says.
    pub fn receive(
        &self,
        offset: usize,
        length: usize,
        socket: &mut Socket,
    ) -> Result<Option<usize>, Option<io::Error>> {
        let entered = self.enter().ok_or(None)?;
        let target = entered.target(offset, length).map_err(|_| None)?;
        socket.receive_vectored(&mut [target]).map_err(Some)
    }

    /// True if `[offset, offset + length)` lies inside.
    pub fn contains(&self, offset: usize, length: usize) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.len)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("start", &self.start)
            .field("len", &self.len)
            .field("rights", &self.rights)
            .finish_non_exhaustive()
    }
}

/// A region that stays where it is as long as this lives. Ranges that do not lie inside are refused.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    region: &'a Region,
    _live: RwLockReadGuard<'a, bool>,
}

/// The system's `struct iovec`.
#[repr(C)]
struct IoVec {
    base: *mut u8,
    len: usize,
}

impl Entered<'_> {
    fn pointer(&self, offset: usize, length: usize) -> io::Result<*mut u8> {
        if !self.region.contains(offset, length) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: inside the region.
        Ok(unsafe { self.region.start.as_ptr().add(offset) })
    }

    /// For the system to read from. It is handed on to a system call and never looked into, since its bytes may change.
    pub(crate) fn source(&self, offset: usize, length: usize) -> io::Result<IoSlice<'_>> {
        let vector = IoVec { base: self.pointer(offset, length)?, len: length };
        // SAFETY: `IoSlice` has the layout of `struct iovec`, as its documentation promises, and is no reference to the bytes.
        Ok(unsafe { std::mem::transmute::<IoVec, IoSlice<'_>>(vector) })
    }

    /// For the system to write into, as [`Self::source`].
    pub(crate) fn target(&self, offset: usize, length: usize) -> io::Result<IoSliceMut<'_>> {
        let vector = IoVec { base: self.pointer(offset, length)?, len: length };
        // SAFETY: `IoSliceMut` has the layout of `struct iovec`, as its documentation promises, and is no reference to the bytes.
        Ok(unsafe { std::mem::transmute::<IoVec, IoSliceMut<'_>>(vector) })
    }

    /// Calls `run` for each piece of a range: a word with the part of it that lies in the range, or a byte at an edge.
    #[inline]
    fn pieces(&self, offset: usize, length: usize, mut run: impl FnMut(usize, Piece<'_>)) -> io::Result<()> {
        let start = self.pointer(offset, length)?;
        let first = self.region.start.addr().get().next_multiple_of(WORD);
        let last = (self.region.start.addr().get() + self.region.len) & !(WORD - 1);
        let mut done = 0;
        while done < length {
            // SAFETY: inside the range.
            let at = unsafe { start.add(done) };
            let address = at.addr();
            if address >= first && address < last {
                let skip = address % WORD;
                let count = (WORD - skip).min(length - done);
                // SAFETY: the aligned word around `at` lies between the first and the last whole word of a live region.
                let word = unsafe { AtomicU64::from_ptr(at.sub(skip).cast()) };
                run(done, Piece::Word { word, skip, count });
                done += count;
            } else {
                // SAFETY: inside the live region; bytes at the edges are always accessed singly.
                run(done, Piece::Byte(unsafe { AtomicU8::from_ptr(at) }));
                done += 1;
            }
        }
        Ok(())
    }

    /// Copies `source` to `offset`.
    pub(crate) fn write(&self, offset: usize, source: &[u8]) -> io::Result<()> {
        self.pieces(offset, source.len(), |done, piece| match piece {
            Piece::Byte(byte) => byte.store(source[done], Ordering::Relaxed),
            Piece::Word { word, skip: 0, count: WORD } => {
                if let Some(bytes) = source[done..].first_chunk() {
                    word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
                }
            }
            Piece::Word { word, skip, count } => {
                let merge = |old: u64| {
                    let mut bytes = old.to_ne_bytes();
                    bytes[skip..skip + count].copy_from_slice(&source[done..done + count]);
                    Some(u64::from_ne_bytes(bytes))
                };
                let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, merge);
            }
        })
    }

    /// Copies from `offset` into `target`.
    pub(crate) fn read(&self, offset: usize, target: &mut [u8]) -> io::Result<()> {
        self.pieces(offset, target.len(), |done, piece| match piece {
            Piece::Byte(byte) => target[done] = byte.load(Ordering::Relaxed),
            Piece::Word { word, skip, count } => {
                let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
                target[done..done + count].copy_from_slice(&bytes[skip..skip + count]);
            }
        })
    }

    /// Replaces the value of `width` bytes (4 or 8) at `offset` by what `change` makes of it, at once. Answers the old value;
    /// `None` if it is not aligned, or its word of 8 bytes does not lie inside.
    pub(crate) fn update(&self, offset: usize, width: usize, change: impl Fn(u64) -> u64) -> Option<u64> {
        let mut old = None;
        let address = self.pointer(offset, width).ok()?.addr();
        if !address.is_multiple_of(width) || !matches!(width, 4 | WORD) {
            return None;
        }
        self.pieces(offset, width, |_, piece| {
            let Piece::Word { word, skip, .. } = piece else { return };
            // The half that is meant, wherever this machine has it.
            let value = |whole: u64| {
                if width == WORD {
                    return whole;
                }
                let bytes = whole.to_ne_bytes();
                u64::from(u32::from_ne_bytes(std::array::from_fn(|i| bytes[skip + i])))
            };
            let merge = |whole: u64| {
                let new = change(value(whole));
                if width == WORD {
                    return Some(new);
                }
                let mut bytes = whole.to_ne_bytes();
                bytes[skip..skip + 4].copy_from_slice(&(new as u32).to_ne_bytes());
                Some(u64::from_ne_bytes(bytes))
            };
            old = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, merge).ok().map(value);
        })
        .ok()?;
        old
    }
}

/// What lies in a range.
enum Piece<'a> {
    /// `count` bytes of a word, behind its first `skip`.
    Word {
        word: &'a AtomicU64,
        skip: usize,
        count: usize,
    },
    Byte(&'a AtomicU8),
}

/// The regions that peers may reach, each by a number that cannot be guessed.
#[derive(Debug, Default)]
pub struct Regions(RwLock<HashMap<u64, Arc<Region>>>);

impl Regions {
    /// Gives a region its number.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn add(&self, region: &Arc<Region>) -> io::Result<u64> {
        let mut regions = self.0.write().unwrap_or_else(PoisonError::into_inner);
        loop {
            let token = u64::from_le_bytes(random()?);
            if let std::collections::hash_map::Entry::Vacant(place) = regions.entry(token) {
                place.insert(Arc::clone(region));
                return Ok(token);
            }
        }
    }

    /// The number means nothing from now on.
    pub fn remove(&self, token: u64) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&token);
    }

    pub(crate) fn get(&self, token: u64) -> Option<Arc<Region>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&token).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(backing: &mut [u64], from: usize, len: usize) -> Region {
        let base = NonNull::new(backing.as_mut_ptr().cast::<u8>()).unwrap();
        // SAFETY: the tests keep the range inside `backing`, which outlives the region and is not used meanwhile.
        unsafe { Region::new(base.add(from), len, Rights::default(), None) }
    }

    #[test]
    fn copies_equal_a_plain_copy_at_every_offset_and_length() {
        for start in 0..8 {
            let mut backing = [0u64; 8];
            let region = over(&mut backing, start, 50);
            let entered = region.enter().unwrap();
            let mut oracle = vec![0u8; 50];
            let mut value = 0u8;
            for offset in 0..=50 {
                for length in 0..=(50 - offset) {
                    let source: Vec<u8> = (0..length)
                        .map(|_| {
                            value = value.wrapping_add(7);
                            value
                        })
                        .collect();
                    oracle[offset..offset + length].copy_from_slice(&source);
                    entered.write(offset, &source).unwrap();
                    let (mut back, mut all) = (vec![0; length], vec![0; 50]);
                    entered.read(offset, &mut back).unwrap();
                    entered.read(0, &mut all).unwrap();
                    assert_eq!((back, &all), (source, &oracle));
                }
            }
        }
    }

    #[test]
    fn ranges_are_checked_without_overflow() {
        let mut backing = [0u64; 2];
        let region = over(&mut backing, 0, 16);
        let base = region.start.addr().get() as u64;
        assert_eq!(region.offset_of(base + 16, 0), Some(16));
        for (address, length) in
            [(base + 16, 1), (base - 1, 1), (base, 17), (base + 1, u64::MAX), (u64::MAX, 2)]
        {
            assert_eq!(region.offset_of(address, length), None);
        }
        let entered = region.enter().unwrap();
        assert!(entered.write(9, &[0; 8]).is_err() && entered.read(17, &mut []).is_err());
        assert!(entered.source(usize::MAX, 2).is_err() && entered.target(0, 17).is_err());
    }

    #[test]
    fn updates_need_an_aligned_word_inside() {
        let mut backing = [0u64; 3];
        let region = over(&mut backing, 4, 16);
        let entered = region.enter().unwrap();
        // Bytes 4 to 20 of three words: one whole word.
        assert_eq!(entered.update(4, 8, |old| old + 5), Some(0));
        assert_eq!(entered.update(4, 8, |old| old + 5), Some(5));
        assert_eq!(entered.update(8, 4, |old| old + u64::from(u32::MAX)), Some(0));
        assert_eq!(entered.update(8, 4, |old| old + 2), Some(u32::MAX.into()));
        assert_eq!(entered.update(4, 4, |old| old), Some(10));
        for (offset, width) in [(0, 8), (5, 4), (12, 4), (0, 4), (13, 4), (4, 2), (usize::MAX, 8)] {
            assert_eq!(entered.update(offset, width, |old| old), None, "{offset} {width}");
        }
        drop(entered);
        let word = [backing[1]];
        let bytes = word[0].to_ne_bytes();
        assert_eq!(bytes[..4], 10u32.to_ne_bytes());
        assert_eq!(bytes[4..], 1u32.to_ne_bytes());
    }

    #[test]
    fn what_is_revoked_is_not_entered() {
        let mut backing = [0u64; 1];
        let region = over(&mut backing, 0, 8);
        region.revoke();
        assert!(region.enter().is_none());
    }

    #[test]
    fn numbers_are_forgotten() {
        let mut backing = [0u64; 1];
        let regions = Regions::default();
        let region = Arc::new(over(&mut backing, 0, 8));
        let (first, second) = (regions.add(&region).unwrap(), regions.add(&region).unwrap());
        assert_ne!(first, second);
        regions.remove(first);
        assert!(regions.get(first).is_none() && regions.get(second).is_some());
    }
}
