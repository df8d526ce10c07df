//! Operations in flight: what to do when the device is done with a WQE.

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;

use crate::completion::{Completion, FetchResult, Unpack};
use crate::transport::common::pool::Lease;

/// What is to be done when an operation is finished.
pub(crate) enum Done {
    /// Tell the caller.
    Notify(Completion),
    /// Give the buffer back.
    Release { buffer: Lease },
    /// Give the buffer back and tell the caller.
    ReleaseNotify { buffer: Lease, completion: Completion },
    /// Hand what was read to the caller, give the buffer back and tell the caller.
    Unpack { buffer: Lease, length: u32, unpack: Unpack, completion: Option<Completion> },
    /// Store the value that was fetched and tell the caller.
    Fetch { result: FetchResult, completion: Option<Completion> },
    /// A flush: tell the caller that everything before is finished.
    Flushed(Completion),
    /// A flush: tell the caller that everything before is given up, which is no error.
    Canceled(Completion),
}

/// An operation, done when a completion covers its WQE.
pub(crate) struct InFlight {
    /// Index of its WQE; for a flush of the last one before it.
    pub(crate) index: u16,
    pub(crate) done: Done,
}

impl InFlight {
    /// `counter`, the WQE index of a completion, covers this operation. Indices wrap at 2^16 and a ring has at most
    /// 2^15 blocks, so the nearer side tells before from after.
    #[inline]
    fn is_covered_by(&self, counter: u16) -> bool {
        counter.wrapping_sub(self.index) < 1 << 15
    }
}

/// The queue of operations in flight on one endpoint, in the order of their WQEs. A fixed ring, made at creation.
pub(crate) struct InFlightQueue {
    slots: Box<[UnsafeCell<MaybeUninit<InFlight>>]>,
    mask: u32,
    /// Slots up to `tail` (free running) are filled.
    tail: Cell<u32>,
    /// The `tail` at which all slots are filled: a ring of them behind the first that is.
    limit: Cell<u32>,
    /// Entries of flushes, which need no WQE of their own.
    flushes: Cell<u32>,
    max_flushes: u32,
}

impl InFlightQueue {
    /// A queue for a send ring of `blocks` blocks, a power of two: an entry for each block, since each WQE has at least one
    /// and gives at most one entry, and as many again for flushes.
    pub(crate) fn new(blocks: u32) -> Self {
        let size = 2 * blocks;
        let slots = (0..size).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
        Self {
            slots,
            mask: size - 1,
            tail: Cell::new(0),
            limit: Cell::new(size),
            flushes: Cell::new(0),
            max_flushes: blocks,
        }
    }

    /// Slots of the ring.
    #[inline(always)]
    pub(crate) fn slots(&self) -> u32 {
        self.mask + 1
    }

    /// The slot that the next entry takes.
    #[inline]
    pub(crate) fn next_slot(&self) -> u32 {
        self.tail.get() & self.mask
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head() == self.tail.get()
    }

    /// The first slot that is filled, if one is.
    #[inline(always)]
    fn head(&self) -> u32 {
        self.limit.get().wrapping_sub(self.slots())
    }

    /// Room for another flush.
    pub(crate) fn has_flush_room(&self) -> bool {
        self.flushes.get() < self.max_flushes
    }

    /// Appends the entry of a WQE that was just posted.
    #[inline(always)]
    pub(crate) fn push(&self, entry: InFlight) {
        let tail = self.tail.get();
        // The room counter of the send queue and the count of flushes exclude more entries than slots. It is tested all the
        // same, since memory would be at stake; forgetting the entry is free, dropping it here is not.
        if tail == self.limit.get() {
            debug_assert!(false, "more operations in flight than WQEs");
            return std::mem::forget(entry);
        }
        // SAFETY: the slot is not filled, and no reference into the ring outlives a call: `pop` moves entries out.
        unsafe { self.slot(tail).write(MaybeUninit::new(entry)) };
        self.tail.set(tail.wrapping_add(1));
    }

    /// The slot of counter value `index`.
    #[inline(always)]
    fn slot(&self, index: u32) -> *mut MaybeUninit<InFlight> {
        // SAFETY: there are `mask + 1` slots.
        unsafe { self.slots.get_unchecked((index & self.mask) as usize) }.get()
    }

    /// Appends a flush; the caller saw [`Self::has_flush_room`].
    pub(crate) fn push_flush(&self, index: u16, done: Done) {
        self.flushes.set(self.flushes.get() + 1);
        self.push(InFlight { index, done });
    }

    /// Takes the first entry and its slot, if `counter` covers it.
    #[inline(always)]
    pub(crate) fn pop_covered(&self, counter: u16) -> Option<(InFlight, u32)> {
        self.pop_if(|entry| entry.is_covered_by(counter))
    }

    /// Takes the first entry and its slot, if `is_done` says so of its WQE; it runs no code of the user's.
    pub(crate) fn pop_done(&self, is_done: impl FnOnce(u16) -> bool) -> Option<(InFlight, u32)> {
        self.pop_if(|entry| is_done(entry.index))
    }

    /// Takes the first entry and its slot.
    pub(crate) fn pop(&self) -> Option<(InFlight, u32)> {
        self.pop_if(|_| true)
    }

    #[inline(always)]
    fn pop_if(&self, take: impl FnOnce(&InFlight) -> bool) -> Option<(InFlight, u32)> {
        let head = self.head();
        if head == self.tail.get() {
            return None;
        }
        let slot = self.slot(head);
        // SAFETY: slots from head to tail are filled; `take` is one of the closures above, which run no code of the
        // user's, so that nothing else reaches the slot meanwhile.
        let entry = unsafe { (*slot).assume_init_ref() };
        if !take(entry) {
            return None;
        }
        // SAFETY: filled, and given up by moving the head past it.
        let entry = unsafe { (*slot).assume_init_read() };
        self.limit.set(self.limit.get().wrapping_add(1));
        if matches!(entry.done, Done::Flushed(_) | Done::Canceled(_)) {
            self.flushes.set(self.flushes.get().saturating_sub(1));
        }
        Some((entry, head & self.mask))
    }
}

impl Drop for InFlightQueue {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 5 } else { 256 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// A `VecDeque` is the oracle, over the wrap of slots and of the 16-bit index.
        #[test]
        fn pops_what_is_covered_in_order(start: u16, steps in proptest::collection::vec((0u8..3, 1u16..5), 1..200)) {
            let queue = InFlightQueue::new(16);
            let completion = Completion::counter(1);
            let mut oracle = VecDeque::new();
            let mut index = start;
            for (step, n) in steps {
                if step < 2 && oracle.len() < 16 {
                    queue.push(InFlight { index, done: Done::Notify(completion.clone()) });
                    oracle.push_back(index);
                    index = index.wrapping_add(n);
                } else if let Some(&counter) = oracle.get(usize::from(n).min(oracle.len()).saturating_sub(1)) {
                    while let Some((entry, _)) = queue.pop_covered(counter) {
                        prop_assert_eq!(Some(entry.index), oracle.pop_front());
                    }
                    prop_assert!(oracle.front().is_none_or(|&next| next != counter));
                }
                prop_assert_eq!(queue.is_empty(), oracle.is_empty());
            }
        }
    }

    /// An entry of the oracle: the position of its WQE, counted without wrapping, and whether it is a flush.
    type Entry = (u64, bool);

    /// A queue with these entries, whose counters are at `tail` before them.
    fn queue_of(blocks: u32, tail: u32, entries: &[Entry], completion: &Completion) -> InFlightQueue {
        let queue = InFlightQueue::new(blocks);
        queue.tail.set(tail);
        queue.limit.set(tail.wrapping_add(queue.slots()));
        for &(at, is_flush) in entries {
            if is_flush {
                assert!(queue.has_flush_room());
                queue.push_flush(at as u16, Done::Flushed(completion.clone()));
            } else {
                queue.push(InFlight { index: at as u16, done: Done::Notify(completion.clone()) });
            }
        }
        queue
    }

    /// Takes what `covered` says from the queue and from the oracle, and compares them before and after.
    fn compare(
        queue: &InFlightQueue,
        tail: u32,
        entries: &[Entry],
        covered: usize,
        pop: impl Fn(&InFlightQueue) -> Option<(InFlight, u32)>,
    ) {
        let mask = queue.slots() - 1;
        let slot = |place: usize| tail.wrapping_add(place as u32) & mask;
        let flushes = |entries: &[Entry]| entries.iter().filter(|(_, is_flush)| *is_flush).count() as u32;
        for place in 0..covered {
            assert_eq!(queue.has_flush_room(), flushes(&entries[place..]) < queue.max_flushes);
            assert!(!queue.is_empty());
            let (entry, at) = pop(queue).unwrap();
            assert_eq!((entry.index, at), (entries[place].0 as u16, slot(place)));
        }
        assert!(pop(queue).is_none());
        assert_eq!(queue.is_empty(), covered == entries.len());
        assert_eq!(queue.next_slot(), slot(entries.len()));
    }

    /// Every operation on a queue with these entries.
    fn check(blocks: u32, tail: u32, entries: &[Entry], ends: std::ops::Range<u64>) {
        let completion = Completion::counter(1);
        let queue = || queue_of(blocks, tail, entries, &completion);
        for counter in ends.start - 2..=ends.end {
            let covered = entries.iter().take_while(|(at, _)| *at <= counter).count();
            compare(&queue(), tail, entries, covered, |queue| queue.pop_covered(counter as u16));
            let is_done = |index| (counter as u16).wrapping_sub(index) < 1 << 15;
            compare(&queue(), tail, entries, covered, |queue| queue.pop_done(is_done));
        }
        compare(&queue(), tail, entries, entries.len(), InFlightQueue::pop);
    }

    /// Goes on from `entries` by every WQE and every flush that there may be: WQEs have a block at least, and no more than
    /// `blocks` together.
    fn extend(blocks: u32, tail: u32, entries: &mut Vec<Entry>, start: u64, end: u64) -> u64 {
        check(blocks, tail, entries, start..end);
        let mut states = 1;
        let room = u64::from(blocks) - (end - start);
        for length in 1..=room {
            entries.push((end, false));
            states += extend(blocks, tail, entries, start, end + length);
            entries.pop();
        }
        if entries.iter().filter(|(_, is_flush)| *is_flush).count() < blocks as usize {
            let last = entries.last().map_or(start - 1, |(at, _)| *at);
            entries.push((last, true));
            states += extend(blocks, tail, entries, start, end);
            entries.pop();
        }
        states
    }

    /// Every queue of small rings, before and after the counters of slots (32 bits) and of WQEs (16 bits) wrap.
    #[test]
    #[cfg_attr(miri, ignore = "minutes")]
    fn every_state_of_small_queues_agrees_with_a_list() {
        let mut states = 0;
        for blocks in [1, 2, 4] {
            for before in 0..=2 * blocks {
                for start in 0x2_0000 - u64::from(blocks) - 1..=0x2_0000 {
                    states += extend(blocks, 0u32.wrapping_sub(before), &mut vec![], start, start);
                }
            }
        }
        assert!(states > 30_000, "{states}");
    }

    #[test]
    fn drops_what_is_left() {
        let completion = Completion::counter(3);
        let queue = InFlightQueue::new(16);
        for index in 0..3 {
            queue.push_flush(index, Done::Notify(completion.clone()));
        }
        drop(queue);
        assert_eq!(completion.pending(), 3);
    }
}
