//! Memory that peers may access, and the only way to access it.
//!
//! The kernel, other threads and the program itself may write such memory at any time, so no
//! reference covers its bytes: they are copied by [`SharedBytes`].
//!
//! This is the crate's only `unsafe` code. The caller of [`Region::new`] promises that the memory
//! is valid.
#![allow(unsafe_code, reason = "raw memory is this module's purpose")]

use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::ops::Range;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, TryLockError};

use barewire_shared_bytes::{Layout, SharedBytes};

use crate::key::random;
use crate::socket::Socket;

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

/// The region is revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revoked;

/// The owner of a region's memory, which frees it when it is dropped.
pub type Owner = Box<dyn Any + Send + Sync + UnwindSafe + RefUnwindSafe>;

/// What a region is made of.
#[derive(Debug)]
enum Source {
    /// Memory that is not a part of another region.
    Memory,
    /// A range of another region, as long as that one is not revoked.
    Part(Arc<Region>, Range<usize>),
    /// Ranges of other regions. Their bytes have the addresses from 0 on.
    List(Layout<Arc<Region>>),
}

/// A range of memory, until it is revoked.
pub struct Region {
    bytes: SharedBytes,
    rights: Rights,
    /// Locked for reading by every access, and for writing by [`Self::revoke`].
    live: RwLock<bool>,
    source: Source,
    /// The owner of the memory, if the region keeps it.
    _owner: Option<Owner>,
}

impl Region {
    /// The region of the `len` bytes at `start`. `owner` is dropped with the region.
    ///
    /// # Safety
    /// Until [`Self::revoke`] returns or the region is dropped, the bytes are mapped, and are
    /// accessed only by [`SharedBytes`] of the same bounds or by the kernel.
    pub unsafe fn new(
        start: NonNull<u8>,
        len: usize,
        rights: Rights,
        owner: Option<Owner>,
    ) -> Self {
        Self::over(SharedBytes::new(start, len), rights, Source::Memory, owner)
    }

    fn over(bytes: SharedBytes, rights: Rights, source: Source, owner: Option<Owner>) -> Self {
        Self { bytes, rights, live: RwLock::new(true), source, _owner: owner }
    }

    /// A range of `whole`, with its addresses and other rights. The range lies inside.
    pub fn part(whole: &Arc<Self>, range: Range<usize>, rights: Rights) -> Self {
        // Users of one memory have equal bounds, as `SharedBytes` requires.
        Self::over(whole.bytes, rights, Source::Part(Arc::clone(whole), range), None)
    }

    /// Ranges of regions with [memory of their own](Self::new), as one region. Access to a range
    /// that does not lie in its region fails.
    pub fn list(layout: Layout<Arc<Self>>, rights: Rights) -> Self {
        let nothing = SharedBytes::at(NonNull::dangling(), 0, 0);
        Self::over(nothing, rights, Source::List(layout), None)
    }

    /// Returns whether all bytes are contiguous, so that system calls access them.
    pub fn is_contiguous(&self) -> bool {
        !matches!(self.source, Source::List(_))
    }

    /// The region, whose first byte peers name by `address`.
    #[must_use]
    pub fn at(mut self, address: u64) -> Self {
        self.bytes = SharedBytes::at(self.bytes.start(), self.bytes.len(), address);
        self
    }

    /// Ends every access. After it returns, no access is in progress, and none begins.
    pub fn revoke(&self) {
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Delays [`Self::revoke`] and allows accesses. Returns `None` once the region is revoked.
    ///
    /// A region that is not [contiguous](Self::is_contiguous) has no bytes itself.
    ///
    /// It waits for a revocation in progress. A thread that has entered a region uses
    /// [`Self::try_enter`] for others: the revocation may wait for that thread.
    pub(crate) fn enter(&self) -> Option<Entered<'_>> {
        self.enter_by(|live| Some(live.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// As [`Self::enter`], but returns `None` instead of waiting.
    pub(crate) fn try_enter(&self) -> Option<Entered<'_>> {
        self.enter_by(|live| match live.try_read() {
            Ok(live) => Some(live),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        })
    }

    fn enter_by<'a>(
        &'a self,
        lock: impl Fn(&'a RwLock<bool>) -> Option<RwLockReadGuard<'a, bool>>,
    ) -> Option<Entered<'a>> {
        let whole = match &self.source {
            Source::Memory | Source::List(_) => None,
            // Parts are of regions with memory of their own, so there is no third lock.
            Source::Part(whole, _) => Some(lock(&whole.live)?),
        };
        let live = lock(&self.live)?;
        let is_live = *live && whole.as_ref().is_none_or(|whole| **whole);
        is_live.then_some(Entered { bytes: self.bytes, _live: live, _whole: whole })
    }

    pub(crate) fn rights(&self) -> Rights {
        self.rights
    }

    /// Returns the offset of an address range, if it lies inside.
    pub(crate) fn offset_of(&self, address: u64, length: u64) -> Option<usize> {
        match &self.source {
            Source::Memory => self.bytes.offset_of(address, usize::try_from(length).ok()?),
            Source::Part(_, range) => {
                let length = usize::try_from(length).ok()?;
                let offset = self.bytes.offset_of(address, length)?;
                (range.start <= offset && offset + length <= range.end).then_some(offset)
            }
            Source::List(layout) => {
                layout.contains(address, length).then(|| usize::try_from(address).ok())?
            }
        }
    }

    /// Copies `source` to `offset`.
    ///
    /// # Errors
    /// [`Revoked`], also if the range does not lie inside.
    pub fn write(&self, offset: usize, source: &[u8]) -> Result<(), Revoked> {
        let entered = self.enter().ok_or(Revoked)?;
        let Source::List(layout) = &self.source else {
            return entered.write(offset, source).map_err(|_| Revoked);
        };
        if !layout.contains(offset as u64, source.len() as u64) {
            return Err(Revoked);
        }
        let mut rest = source;
        for piece in layout.pieces(offset as u64, source.len() as u64) {
            let (data, behind) = rest.split_at_checked(piece.length).ok_or(Revoked)?;
            piece.memory.write(piece.offset, data)?;
            rest = behind;
        }
        Ok(())
    }

    /// Copies from `offset` into `target`.
    ///
    /// # Errors
    /// [`Revoked`], also if the range does not lie inside.
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), Revoked> {
        let entered = self.enter().ok_or(Revoked)?;
        let Source::List(layout) = &self.source else {
            return entered.read(offset, target).map_err(|_| Revoked);
        };
        if !layout.contains(offset as u64, target.len() as u64) {
            return Err(Revoked);
        }
        let mut rest = target;
        for piece in layout.pieces(offset as u64, rest.len() as u64) {
            let (place, behind) = rest.split_at_mut_checked(piece.length).ok_or(Revoked)?;
            piece.memory.read(piece.offset, place)?;
            rest = behind;
        }
        Ok(())
    }

    /// Atomically replaces the value of `width` bytes (4 or 8) at `offset` by the result of
    /// `change`. Returns the old value, or `None` if the region is revoked, or the value is not
    /// aligned, or its aligned 8 bytes do not lie inside contiguously.
    pub(crate) fn update(
        &self,
        offset: usize,
        width: usize,
        change: impl Fn(u64) -> u64,
    ) -> Option<u64> {
        let entered = self.enter()?;
        match &self.source {
            Source::Memory | Source::Part(..) => entered.update(offset, width, change),
            Source::List(layout) => {
                let piece = layout.pieces(offset as u64, width as u64).next()?;
                if piece.length < width {
                    return None;
                }
                piece.memory.enter()?.update(piece.offset, width, change)
            }
        }
    }

    /// Receives up to `length` bytes of an unprotected connection to `offset`, without a copy. The
    /// region is [contiguous](Self::is_contiguous).
    /// Returns `None` if there is nothing to receive, and zero at the end of the stream.
    ///
    /// # Errors
    /// `None` if the region is revoked or the range does not lie inside; otherwise the error of
    /// readv(2).
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
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("bytes", &self.bytes)
            .field("rights", &self.rights)
            .finish_non_exhaustive()
    }
}

/// A live region, which is not revoked before this is dropped. Ranges that do not lie inside are
/// refused.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    bytes: SharedBytes,
    _live: RwLockReadGuard<'a, bool>,
    _whole: Option<RwLockReadGuard<'a, bool>>,
}

/// `struct iovec` of readv(2).
#[repr(C)]
struct IoVec {
    base: *mut u8,
    len: usize,
}

impl Entered<'_> {
    fn check(&self, offset: usize, length: usize) -> io::Result<()> {
        if self.bytes.contains(offset, length) {
            Ok(())
        } else {
            Err(ErrorKind::InvalidInput.into())
        }
    }

    fn vector(&self, offset: usize, length: usize) -> io::Result<IoVec> {
        self.check(offset, length)?;
        // SAFETY: `offset` is at most the region's length, so the result lies in the region or at
        // its end.
        let base = unsafe { self.bytes.start().as_ptr().add(offset) };
        Ok(IoVec { base, len: length })
    }

    /// A range for a system call to read from. The bytes may change, so the slice is not
    /// dereferenced.
    pub(crate) fn source(&self, offset: usize, length: usize) -> io::Result<IoSlice<'_>> {
        let vector = self.vector(offset, length)?;
        // SAFETY: `IoSlice` has the layout of `struct iovec`, as its documentation guarantees. The
        // range lies in the region, which stays live while `self` is borrowed by the result.
        Ok(unsafe { std::mem::transmute::<IoVec, IoSlice<'_>>(vector) })
    }

    /// A range for a system call to write to. As with [`Self::source`], the slice is not
    /// dereferenced.
    pub(crate) fn target(&self, offset: usize, length: usize) -> io::Result<IoSliceMut<'_>> {
        let vector = self.vector(offset, length)?;
        // SAFETY: `IoSliceMut` has the layout of `struct iovec`, as its documentation guarantees.
        // The range lies in the region, which stays live while `self` is borrowed by the result.
        Ok(unsafe { std::mem::transmute::<IoVec, IoSliceMut<'_>>(vector) })
    }

    /// Copies `source` to `offset`.
    pub(crate) fn write(&self, offset: usize, source: &[u8]) -> io::Result<()> {
        self.check(offset, source.len())?;
        // SAFETY: the range lies inside, by the check, and the memory is alive while the region is
        // live.
        unsafe { self.bytes.write(offset, source) };
        Ok(())
    }

    /// Copies from `offset` into `target`.
    pub(crate) fn read(&self, offset: usize, target: &mut [u8]) -> io::Result<()> {
        self.check(offset, target.len())?;
        // SAFETY: the range lies inside, by the check, and the memory is alive while the region is
        // live.
        unsafe { self.bytes.read(offset, target) };
        Ok(())
    }

    /// Atomically replaces the value of `width` bytes (4 or 8) at `offset` by the result of
    /// `change`. Returns the old value, or `None` if it is not aligned, or its aligned 8 bytes do
    /// not lie inside.
    pub(crate) fn update(
        &self,
        offset: usize,
        width: usize,
        change: impl Fn(u64) -> u64,
    ) -> Option<u64> {
        // SAFETY: the memory is alive while the region is live.
        unsafe { self.bytes.update(offset, width, change) }
    }
}

/// The regions that peers may access, each by a random number.
#[derive(Debug, Default)]
pub struct Regions(RwLock<HashMap<u64, Arc<Region>>>);

impl Regions {
    /// Adds a region. Returns its number.
    ///
    /// # Errors
    /// The kernel has no random bytes.
    pub fn add(&self, region: &Arc<Region>) -> io::Result<u64> {
        let mut regions = self.0.write().unwrap_or_else(PoisonError::into_inner);
        loop {
            let token = u64::from_le_bytes(random()?);
            if let Entry::Vacant(place) = regions.entry(token) {
                place.insert(Arc::clone(region));
                return Ok(token);
            }
        }
    }

    /// Removes the region with this number.
    pub fn remove(&self, token: u64) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&token);
    }

    pub(crate) fn get(&self, token: u64) -> Option<Arc<Region>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&token).cloned()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use barewire_shared_bytes::LayoutRange;

    use super::*;

    /// A region of `len` zeros.
    pub(crate) fn owned(len: usize) -> Region {
        let mut memory = vec![0u8; len];
        let start = NonNull::new(memory.as_mut_ptr()).unwrap();
        // SAFETY: the region owns the memory, which does not move with the vector.
        unsafe { Region::new(start, len, Rights::default(), Some(Box::new(memory))) }
    }

    fn over(backing: &mut [u64], from: usize, len: usize) -> Region {
        let base = NonNull::new(backing.as_mut_ptr().cast::<u8>()).unwrap();
        // SAFETY: the tests keep the range inside `backing`, which outlives the region and is not
        // used meanwhile.
        unsafe { Region::new(base.add(from), len, Rights::default(), None) }
    }

    #[test]
    fn ranges_are_checked_without_overflow() {
        let mut backing = [0u64; 2];
        let region = over(&mut backing, 0, 16);
        let base = region.bytes.address();
        assert_eq!(region.offset_of(base + 16, 0), Some(16));
        for (address, length) in
            [(base + 16, 1), (base - 1, 1), (base, 17), (base + 1, u64::MAX), (u64::MAX, 2)]
        {
            assert_eq!(region.offset_of(address, length), None);
        }
        let entered = region.enter().unwrap();
        assert!(entered.write(9, &[0; 8]).is_err() && entered.read(17, &mut []).is_err());
        assert!(entered.source(usize::MAX, 2).is_err() && entered.target(0, 17).is_err());
        assert_eq!(entered.update(12, 8, |old| old), None);
    }

    #[test]
    fn what_is_revoked_is_not_entered() {
        let mut backing = [0u64; 1];
        let region = over(&mut backing, 0, 8);
        region.revoke();
        assert!(region.enter().is_none());
    }

    #[test]
    fn a_part_ends_with_itself_and_with_the_whole() {
        let mut backing = [0u64; 4];
        let rights = Rights { write: true, ..Rights::default() };
        for revoke_whole in [false, true] {
            let whole = Arc::new(over(&mut backing, 0, 32));
            let base = whole.bytes.address();
            let part = Region::part(&whole, 8..16, rights);
            assert_eq!(part.rights(), rights);
            assert_eq!(part.offset_of(base + 8, 8), Some(8));
            for (address, length) in [(base + 7, 2), (base + 8, 9), (base + 16, 1), (base, 0)] {
                assert_eq!(part.offset_of(address, length), None);
            }
            assert!(part.write(8, &[1; 8]).is_ok());
            if revoke_whole { &whole } else { &part }.revoke();
            assert_eq!(part.write(8, &[1; 8]), Err(Revoked));
            assert_eq!(whole.write(8, &[2; 8]).is_ok(), !revoke_whole);
        }
    }

    #[test]
    fn a_list_is_used_as_one_region() {
        let (mut one, mut other) = ([0u64; 4], [0u64; 4]);
        let one = Arc::new(over(&mut one, 0, 32));
        let other = Arc::new(over(&mut other, 0, 32));
        let range = |memory: &Arc<Region>, offset, bytes, stride| LayoutRange {
            memory: Arc::clone(memory),
            offset,
            bytes,
            stride,
        };
        let layout = Layout::new(vec![range(&one, 1, 2, 8), range(&other, 4, 3, 10)], 3).unwrap();
        let list = Region::list(layout, Rights::default());
        assert!(!list.is_contiguous());
        assert_eq!((list.offset_of(3, 12), list.offset_of(3, 13)), (Some(3), None));
        assert_eq!(list.offset_of(u64::MAX, 2), None);
        let data: Vec<u8> = (1..=15).collect();
        list.write(0, &data).unwrap();
        let mut found = [0; 12];
        list.read(3, &mut found).unwrap();
        assert_eq!(found, data[3..]);
        let mut bytes = [0; 32];
        one.read(0, &mut bytes).unwrap();
        assert_eq!((&bytes[..3], &bytes[8..11], bytes[17]), (&[0, 1, 2][..], &[0, 6, 7][..], 11));
        assert_eq!(list.write(10, &[0; 6]), Err(Revoked));
        assert_eq!(list.update(0, 8, |old| old), None, "no word is contiguous");
        let words = Layout::new(vec![range(&one, 8, 8, 8)], 2).unwrap();
        let words = Region::list(words, Rights::default());
        words.write(8, &5_u64.to_le_bytes()).unwrap();
        assert_eq!(words.update(8, 8, |old| old + 1), Some(5));
        assert_eq!(words.update(12, 8, |old| old), None, "beyond the end");
        other.revoke();
        assert_eq!(list.read(0, &mut found), Err(Revoked));
        let wrong = Layout::new(vec![range(&one, 30, 4, 0)], 1).unwrap();
        assert_eq!(Region::list(wrong, Rights::default()).write(0, &[7; 4]), Err(Revoked));
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
