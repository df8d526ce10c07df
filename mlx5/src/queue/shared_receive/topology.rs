//! The order in which the device takes the WQEs of a shared receive queue, and the free ones.

use core::cell::Cell;
use core::fmt;
use core::num::NonZeroU32;
use core::ptr::NonNull;

use barewire_layouts::wqe::SharedReceiveHeader;
use zerocopy::transmute;

use crate::store;

/// The order in which the device takes the WQEs: [`List`] or [`Cyclic`]. Selected by type when the
/// queue is created.
pub trait Topology: Order {}

/// The operations of a topology, private to this crate.
pub trait Order: fmt::Debug + Sized + Send + 'static {
    /// Whether every WQE names the next.
    const LINKED: bool;

    /// The state of a queue of `entries` WQEs in which nothing is posted.
    fn new(entries: u32) -> Self;

    /// The most WQEs that may be posted at a time.
    fn capacity(entries: u32) -> u32;

    /// Takes a free WQE, which the device owns from now on: the next in its order. The caller has
    /// checked that there is one. Returns less than the WQEs of the ring in any case.
    fn take(&mut self, wqes: &Wqes) -> u32;

    /// Releases WQE `index`. Returns the number of WQEs that this frees, or `None` without effect if
    /// the device does not own it.
    fn release(&mut self, wqes: &Wqes, index: u32) -> Option<u32>;
}

impl Topology for List {}
impl Topology for Cyclic {}

/// A linked list, as `ibv_create_srq` creates it (PRM: wq_type, linked list).
#[derive(Clone, Debug)]
pub struct List {
    /// The next WQE to post.
    head: u32,
    /// The WQE after which released ones are appended. The device does not own it.
    tail: u32,
    /// In a list that keeps its buffers, the first WQE, perhaps with [`STALE`] or [`DOUBT`]. Else
    /// [`NONE`].
    expected: u32,
    /// For each WQE of the ring the next one, less than their number, perhaps with [`STALE`]; or
    /// [`POSTED`], if the device owns the WQE and the list does not keep its buffers.
    links: Box<[Cell<u32>]>,
    /// For each WQE of a list that keeps its buffers the one before it, or [`NONE`] for a WQE that
    /// is not in the list.
    backs: Box<[Cell<u32>]>,
}

/// No WQE: completions name them by 16 bits.
const NONE: u32 = u32::MAX;
/// The link of a WQE that the device owns: beyond the WQEs, of which a ring has at most 2^15.
const POSTED: u32 = 1 << 15;
/// The WQE in the ring has another link, which the device may have read already.
const STALE: u32 = 1 << 31;
/// [`List::rotate`] returns `false`.
const DOUBT: u32 = 1 << 30;

/// A ring (PRM: wq_type, cyclic).
#[derive(Clone, Debug)]
pub struct Cyclic {
    /// WQEs posted, free running.
    producer: u32,
    /// WQEs freed, free running.
    consumer: u32,
    posted: Posted,
}

/// The WQEs as memory.
#[derive(Debug)]
pub struct Wqes {
    start: NonNull<u8>,
    mask: u32,
    stride: usize,
}

impl Wqes {
    /// # Safety
    /// `start` is valid for reads and writes of `entries` WQEs of `stride` bytes and aligned to 16
    /// for as long as the value is used, and nothing but its owner writes there. A device in this
    /// process reads it by atomic loads of whole aligned words. `entries` is a power of two.
    pub(super) unsafe fn new(start: NonNull<u8>, entries: u32, stride: usize) -> Self {
        let wqes = Self { start, mask: entries - 1, stride };
        for index in 0..entries {
            wqes.lead(index, (index + 1) & wqes.mask);
        }
        wqes
    }

    /// Number of WQEs less one.
    pub(super) fn mask(&self) -> u32 {
        self.mask
    }

    /// The address of WQE `index`, modulo their number.
    pub(super) fn wqe(&self, index: u32) -> NonNull<u8> {
        // SAFETY: the mask keeps the WQE inside the ring.
        unsafe { self.start.add((index & self.mask) as usize * self.stride) }
    }

    /// The address of WQE `index`.
    ///
    /// # Safety
    /// `index` is less than the number of WQEs.
    #[inline]
    pub(super) unsafe fn at(&self, index: u32) -> NonNull<u8> {
        // SAFETY: the WQE is inside the ring by the caller's contract.
        unsafe { self.start.add(index as usize * self.stride) }
    }

    /// Links WQE `index` to `next`.
    fn lead(&self, index: u32, next: u32) {
        // SAFETY: every WQE starts with a header, valid for writes by the contract of `new`; WQEs
        // are aligned to 16.
        unsafe { store::words(self.wqe(index), transmute!(SharedReceiveHeader::new(next as u16))) };
    }
}

/// One bit per WQE: set while the device owns it. A completion that names another WQE is ignored.
#[derive(Clone, Debug)]
struct Posted(Box<[u64]>);

impl Posted {
    fn new(entries: u32) -> Self {
        Self(vec![0; entries.div_ceil(64) as usize].into())
    }

    fn set(&mut self, index: u32) {
        if let Some(word) = self.0.get_mut(index as usize / 64) {
            *word |= 1 << (index % 64);
        }
    }

    /// Clears the bit. Returns whether it was set.
    fn clear(&mut self, index: u32) -> bool {
        let was = self.contains(index);
        if let Some(word) = self.0.get_mut(index as usize / 64) {
            *word &= !(1 << (index % 64));
        }
        was
    }

    fn contains(&self, index: u32) -> bool {
        self.0.get(index as usize / 64).is_some_and(|word| word >> (index % 64) & 1 != 0)
    }
}

/// A list that keeps its buffers: a circle, in which all WQEs but the last one are posted. Behind
/// the last one comes the first, which was posted before the others.
///
/// If WQEs complete in this order, posting them again changes no link. Others leave the list when a
/// later one completes, and are appended when they are posted again.
impl List {
    /// Adds the `count` WQEs from `first` on: WQEs of the ring that follow those of the list. `count`
    /// is at least 2 in the first call.
    pub(super) fn extend(&mut self, wqes: &Wqes, first: u32, count: NonZeroU32) {
        let last = first + (count.get() - 1);
        for index in first..last {
            self.lead(wqes, index, index + 1);
        }
        if first == 0 {
            self.lead(wqes, last, 0);
            self.expected = 0;
        } else {
            self.lead(wqes, self.last(), first);
            self.lead(wqes, last, self.first());
            self.expected &= !STALE;
        }
    }

    fn first(&self) -> u32 {
        self.expected & u32::from(u16::MAX)
    }

    /// Returns the last WQE, which the device does not own.
    fn last(&self) -> u32 {
        self.back(self.first())
    }

    /// Returns the link of WQE `index`, 0 for one beyond the ring.
    fn link(&self, index: u32) -> u32 {
        self.links.get(index as usize).map_or(0, Cell::get)
    }

    fn set_link(&self, index: u32, next: u32) {
        if let Some(link) = self.links.get(index as usize) {
            link.set(next);
        }
    }

    /// Returns the WQE before WQE `index`, or [`NONE`].
    fn back(&self, index: u32) -> u32 {
        self.backs.get(index as usize).map_or(NONE, Cell::get)
    }

    fn set_back(&self, index: u32, before: u32) {
        if let Some(back) = self.backs.get(index as usize) {
            back.set(before);
        }
    }

    /// Links WQE `index`, which the device does not own, to `next`.
    fn lead(&self, wqes: &Wqes, index: u32, next: u32) {
        wqes.lead(index, next);
        self.set_link(index, next);
        self.set_back(next, index);
    }

    /// Removes WQE `index`, if it is in the list and not alone.
    fn unlink(&mut self, index: u32) {
        let (before, next) = (self.back(index), self.link(index) & !STALE);
        if before == NONE || before == index {
            return;
        }
        self.set_link(before, next | STALE);
        self.set_back(next, before);
        self.set_back(index, NONE);
        if index == self.first() {
            self.expected = next | STALE;
        } else if next == self.first() {
            self.expected |= STALE;
        }
    }

    /// Posts the last WQE, and keeps `index` in its place, if `index` is the first one. Returns
    /// `false` without effect otherwise, and after [`Self::doubt`].
    ///
    /// # Safety
    /// `index` is less than 2^16.
    #[inline(always)]
    pub(super) unsafe fn rotate(&mut self, index: u32) -> bool {
        let is_first = index == self.expected;
        if is_first {
            // SAFETY: `index` is `expected` and less than 2^16 (contract of this function), so it
            // is neither `NONE` nor has a flag, all of which are larger: it is a WQE of a list that
            // keeps its buffers, and `links` has an element for each WQE of the ring.
            self.expected = unsafe { self.links.get_unchecked(index as usize) }.get();
        }
        is_first
    }

    /// As [`Self::rotate`], for a WQE in any order. Returns `false` without effect if the device does
    /// not own `index`. The list has `count` WQEs.
    pub(super) fn rotate_any(&mut self, wqes: &Wqes, index: u32, count: u32) -> bool {
        if index >= count || index == self.last() {
            return false;
        }
        if self.back(index) == NONE {
            let first = self.first();
            self.lead(wqes, self.last(), index);
            self.lead(wqes, index, first);
            self.expected = first;
            return true;
        }
        // Those before it are in use: the device took them before this one. `index` is in the
        // circle, because a WQE is before it, so it becomes the first one.
        while self.first() != index {
            self.unlink(self.first());
        }
        self.lead(wqes, self.last(), index);
        self.expected = self.link(index);
        true
    }

    /// As [`Self::rotate_any`], but posts `index` in front of the last WQE, which stays the last
    /// one. The device does not own the WQE in front of that either.
    pub(super) fn insert(&mut self, wqes: &Wqes, index: u32, count: u32) -> bool {
        let last = self.last();
        if index >= count || index == last {
            return false;
        }
        self.unlink(index);
        self.lead(wqes, self.back(last), index);
        self.lead(wqes, index, last);
        true
    }

    /// Removes `index`, if it is the last WQE. The one in front of it, which the device does not
    /// own either, becomes the last one. Returns `false` without effect otherwise.
    pub(super) fn remove(&mut self, index: u32) -> bool {
        let is_last = index == self.last() && index != self.first();
        if is_last {
            self.unlink(index);
        }
        is_last
    }

    /// Makes [`Self::rotate`] return `false` until [`Self::rotate_any`] has posted a WQE.
    pub(super) fn doubt(&mut self) {
        self.expected |= DOUBT;
    }
}

impl Order for List {
    const LINKED: bool = true;

    fn new(entries: u32) -> Self {
        debug_assert!(entries <= POSTED);
        // As `Wqes::new` links them.
        let links = (1..=entries).map(|next| Cell::new(next & (entries - 1))).collect();
        let backs = vec![Cell::new(NONE); entries as usize].into();
        Self { head: 0, tail: entries - 1, expected: NONE, links, backs }
    }

    fn capacity(entries: u32) -> u32 {
        entries - 1
    }

    #[inline]
    fn take(&mut self, _wqes: &Wqes) -> u32 {
        let index = self.head;
        // SAFETY: `head` is 0 or an element of `links` without the bit of `POSTED`: 0, or less than
        // the WQEs of the ring, of which `links` has an element each.
        let link = unsafe { self.links.get_unchecked(index as usize) };
        self.head = link.get() & !POSTED;
        link.set(POSTED);
        index
    }

    #[inline]
    fn release(&mut self, wqes: &Wqes, index: u32) -> Option<u32> {
        let link = self.links.get(index as usize)?;
        if link.get() != POSTED {
            return None;
        }
        link.set(0);
        wqes.lead(self.tail, index);
        self.set_link(self.tail, index);
        self.tail = index;
        Some(1)
    }
}

impl Order for Cyclic {
    const LINKED: bool = false;

    fn new(entries: u32) -> Self {
        Self { producer: 0, consumer: 0, posted: Posted::new(entries) }
    }

    fn capacity(entries: u32) -> u32 {
        entries
    }

    #[inline]
    fn take(&mut self, wqes: &Wqes) -> u32 {
        let index = self.producer & wqes.mask;
        self.producer = self.producer.wrapping_add(1);
        self.posted.set(index);
        index
    }

    #[inline]
    fn release(&mut self, wqes: &Wqes, index: u32) -> Option<u32> {
        if !self.posted.clear(index) {
            return None;
        }
        let before = self.consumer;
        // Every WQE is passed once per lap, so the amortised cost is one step per release.
        while self.consumer != self.producer && !self.posted.contains(self.consumer & wqes.mask) {
            self.consumer = self.consumer.wrapping_add(1);
        }
        Some(self.consumer.wrapping_sub(before))
    }
}
