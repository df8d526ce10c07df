//! Operations in flight, and what to do when the device completes their WQEs.

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;

use crate::base::completion::{Counted, FetchResult, Unpack};
use crate::transport::common::pool::Lease;

/// What to do when an operation completes.
pub(crate) enum Done {
    /// Notify the caller.
    Notify(Counted),
    /// Return the buffer.
    Release { buffer: Lease },
    /// Return the buffer and notify the caller.
    ReleaseNotify { buffer: Lease, completion: Counted },
    /// Pass the data to the caller, return the buffer and notify the caller.
    Unpack { buffer: Lease, length: u32, unpack: Unpack, completion: Option<Counted> },
    /// Store the fetched value, which the device wrote to `word`, and notify the caller.
    Fetch { word: Lease, result: FetchResult, completion: Option<Counted> },
    /// The same for a value of 4 bytes, which the device writes big-endian.
    Fetch32 { word: Lease, result: FetchResult, completion: Option<Counted> },
    /// A flush: notify the caller that all earlier operations are complete.
    Flushed(Counted),
    /// A cancelling flush: notify the caller that all earlier operations ended, which is no error.
    Canceled(Counted),
}

/// An operation, complete when a completion covers its WQE.
pub(crate) struct InFlight {
    /// Index of its WQE. A flush has the index of the last WQE before it.
    pub(crate) index: u16,
    pub(crate) done: Done,
}

/// Returns whether a completion with WQE index `counter` covers the operation at `index`. Indices wrap
/// at 2^16 and a ring has at most 2^15 blocks, so the sign of the difference decides.
#[inline]
fn covers(counter: u16, index: u16) -> bool {
    counter.wrapping_sub(index) < 1 << 15
}

/// The kinds of [`Done`]; the one that may have a completion as well is the same kind.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Notify,
    Release,
    Flushed,
    Canceled,
    Unpack,
    Fetch,
    Fetch32,
}

/// An entry in its slot, half as large as an [`InFlight`]: a ring that is used in turn with the WQEs
/// must leave them room in the cache. A get into a buffer has the rest in [`Slots::unpacks`].
struct Entry {
    /// `Some` for the kinds `Notify`, `Flushed` and `Canceled`.
    completion: Option<Counted>,
    /// Initialised for the kinds `Fetch` and `Fetch32`.
    result: MaybeUninit<FetchResult>,
    /// Initialised for the kinds `Release`, `Unpack`, `Fetch` and `Fetch32`.
    lease: MaybeUninit<Lease>,
    index: u16,
    kind: Kind,
}

const _: () = assert!(size_of::<Entry>() <= 24);

/// What [`InFlightQueue::pop_next`] found.
pub(crate) enum Popped {
    /// The completion of [`Done::Notify`], the most frequent entry: a word instead of a copy of the
    /// entry.
    Notify(Counted),
    /// Another entry, which [`InFlightQueue::pop_covered`] removes.
    Other,
}

type Slot<T> = UnsafeCell<MaybeUninit<T>>;

/// The slots of the ring.
struct Slots {
    entries: Box<[Slot<Entry>]>,
    /// As many: the rest of each entry of the kind [`Kind::Unpack`].
    unpacks: Box<[Slot<(u32, Unpack)>]>,
}

impl Slots {
    /// Returns `size` empty slots.
    fn empty(size: u32) -> Self {
        Self { entries: empty(size), unpacks: empty(size) }
    }
}

/// The operations in flight on one endpoint, in the order of their WQEs: a ring.
pub(crate) struct InFlightQueue {
    /// A power of two of slots.
    slots: UnsafeCell<Slots>,
    mask: Cell<u32>,
    /// Free-running index of the next slot to fill.
    tail: Cell<u32>,
    /// The value of `tail` at which the ring is full.
    limit: Cell<u32>,
    /// Entries of flushes, which have no WQE.
    flushes: Cell<u32>,
    max_flushes: Cell<u32>,
}

impl AsRef<Self> for InFlightQueue {
    #[inline(always)]
    fn as_ref(&self) -> &Self {
        self
    }
}

impl InFlightQueue {
    /// Creates the queue for a send ring of `blocks` blocks, a power of two. A WQE has at least one
    /// block and at most one entry; as many entries again are for flushes.
    pub(crate) fn new(blocks: u32) -> Self {
        let size = 2 * blocks;
        Self {
            slots: UnsafeCell::new(Slots::empty(size)),
            mask: Cell::new(size - 1),
            tail: Cell::new(0),
            limit: Cell::new(size),
            flushes: Cell::new(0),
            max_flushes: Cell::new(blocks),
        }
    }

    /// Makes room for `blocks` outstanding blocks, at least those of the entries present, and as
    /// many flushes.
    #[cold]
    #[cfg_attr(not(feature = "mlx5"), allow(dead_code, reason = "only reliable connections do"))]
    pub(crate) fn resize(&self, blocks: u32) {
        let (head, tail) = (self.head(), self.tail.get());
        let size = (2 * blocks).max(tail.wrapping_sub(head) + blocks).next_power_of_two();
        self.max_flushes.set(blocks);
        if size == self.slots() {
            return;
        }
        let larger = Slots::empty(size);
        let mut at = head;
        while at != tail {
            let to = (at & (size - 1)) as usize;
            // SAFETY: each slot, filled or not, is copied once, because the old ring is freed below
            // without dropping its slots. The destinations are slots of the new ring.
            unsafe {
                larger.entries[to].get().write(self.slot(at).read());
                larger.unpacks[to].get().write(self.slots_of(at).1.read());
            }
            at = at.wrapping_add(1);
        }
        // SAFETY: no reference into the ring or to the boxes outlives a call of this type, and this
        // call has none.
        drop(unsafe { self.slots.get().replace(larger) });
        self.mask.set(size - 1);
        self.limit.set(head.wrapping_add(size));
    }

    /// Number of slots.
    #[inline(always)]
    pub(crate) fn slots(&self) -> u32 {
        self.mask.get() + 1
    }

    /// Returns the slot of the next entry.
    #[inline]
    pub(crate) fn next_slot(&self) -> u32 {
        self.tail.get() & self.mask.get()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head() == self.tail.get()
    }

    /// Returns the free-running index of the first filled slot, or `tail` if none is.
    #[inline(always)]
    fn head(&self) -> u32 {
        self.limit.get().wrapping_sub(self.slots())
    }

    /// Returns whether another flush has room.
    pub(crate) fn has_flush_room(&self) -> bool {
        self.flushes.get() < self.max_flushes.get()
    }

    /// Appends the entry of a WQE that was just posted.
    #[inline(always)]
    pub(crate) fn push(&self, entry: InFlight) {
        let tail = self.tail.get();
        // The send queue's room and the flush count already bound the entries. The test stays
        // because memory safety depends on it; `forget` instead of a drop keeps it cheap.
        if tail == self.limit.get() {
            debug_assert!(false, "more operations in flight than WQEs");
            return std::mem::forget(entry);
        }
        let InFlight { index, done } = entry;
        let mut entry = Entry {
            completion: None,
            result: MaybeUninit::uninit(),
            lease: MaybeUninit::uninit(),
            index,
            kind: Kind::Notify,
        };
        let (slot, rest) = self.slots_of(tail);
        match done {
            Done::Notify(completion) => entry.completion = Some(completion),
            Done::Flushed(completion) => {
                (entry.kind, entry.completion) = (Kind::Flushed, Some(completion));
            }
            Done::Canceled(completion) => {
                (entry.kind, entry.completion) = (Kind::Canceled, Some(completion));
            }
            Done::Release { buffer } => {
                (entry.kind, entry.lease) = (Kind::Release, MaybeUninit::new(buffer));
            }
            Done::ReleaseNotify { buffer, completion } => {
                (entry.kind, entry.lease) = (Kind::Release, MaybeUninit::new(buffer));
                entry.completion = Some(completion);
            }
            Done::Unpack { buffer, length, unpack, completion } => {
                (entry.kind, entry.lease) = (Kind::Unpack, MaybeUninit::new(buffer));
                entry.completion = completion;
                // SAFETY: as below.
                unsafe { rest.write(MaybeUninit::new((length, unpack))) };
            }
            Done::Fetch { word, result, completion } => {
                (entry.kind, entry.lease) = (Kind::Fetch, MaybeUninit::new(word));
                (entry.result, entry.completion) = (MaybeUninit::new(result), completion);
            }
            Done::Fetch32 { word, result, completion } => {
                (entry.kind, entry.lease) = (Kind::Fetch32, MaybeUninit::new(word));
                (entry.result, entry.completion) = (MaybeUninit::new(result), completion);
            }
        }
        // SAFETY: the slot is empty, since `tail` has not reached `limit`. No reference into the
        // ring outlives a call of this type: `pop_if` moves entries out.
        unsafe { slot.write(MaybeUninit::new(entry)) };
        self.tail.set(tail.wrapping_add(1));
    }

    /// Returns the slots of the free-running `index`: that of the entry, and that of its rest.
    #[inline(always)]
    fn slots_of(&self, index: u32) -> (*mut MaybeUninit<Entry>, *mut MaybeUninit<(u32, Unpack)>) {
        // SAFETY: nothing replaces the boxes during the borrow.
        let slots = unsafe { &*self.slots.get() };
        let at = (index & self.mask.get()) as usize;
        // SAFETY: both boxes have `mask + 1` slots, so the masked index is in bounds.
        unsafe { (slots.entries.get_unchecked(at).get(), slots.unpacks.get_unchecked(at).get()) }
    }

    /// Returns the slot of the entry with the free-running `index`.
    #[inline(always)]
    fn slot(&self, index: u32) -> *mut MaybeUninit<Entry> {
        self.slots_of(index).0
    }

    /// Appends a flush. The caller has checked [`Self::has_flush_room`].
    pub(crate) fn push_flush(&self, index: u16, done: Done) {
        self.flushes.set(self.flushes.get() + 1);
        self.push(InFlight { index, done });
    }

    /// Removes and returns the first entry, if `counter` covers it.
    #[inline(always)]
    pub(crate) fn pop_covered(&self, counter: u16) -> Option<InFlight> {
        self.pop_if(|index| covers(counter, index))
    }

    /// As [`Self::pop_covered`], for an entry that only notifies, without a copy of it.
    #[inline(always)]
    pub(crate) fn pop_next(&self, counter: u16) -> Option<Popped> {
        let slot = self.slot(self.filled()?);
        // SAFETY: the slot is filled, by `filled`. Nothing else accesses it during the borrow.
        let entry = unsafe { (*slot).assume_init_ref() };
        if !covers(counter, entry.index) {
            return None;
        }
        if entry.kind != Kind::Notify {
            return Some(Popped::Other);
        }
        // SAFETY: moving `limit` below makes the slot empty, so the completion, which is all that the
        // entry owns, is read once. An entry of this kind has one.
        let completion = unsafe { std::ptr::read(&raw const entry.completion).unwrap_unchecked() };
        self.limit.set(self.limit.get().wrapping_add(1));
        Some(Popped::Notify(completion))
    }

    /// Removes and returns the first entry, if `is_done` returns true for its WQE. `is_done` runs no
    /// user code.
    pub(crate) fn pop_done(&self, is_done: impl FnOnce(u16) -> bool) -> Option<InFlight> {
        self.pop_if(is_done)
    }

    /// Removes and returns the first entry.
    pub(crate) fn pop(&self) -> Option<InFlight> {
        self.pop_if(|_| true)
    }

    #[inline(always)]
    fn pop_if(&self, take: impl FnOnce(u16) -> bool) -> Option<InFlight> {
        let head = self.filled()?;
        // SAFETY: the slot is filled, by `filled`. The borrow ends with this statement.
        let index = unsafe { (*self.slot(head)).assume_init_ref() }.index;
        // SAFETY: `head` is the first filled slot.
        take(index).then(|| unsafe { self.take_first(head) })
    }

    /// Returns the first slot: from head to tail, slots are filled. `None` if the queue is empty.
    #[inline(always)]
    fn filled(&self) -> Option<u32> {
        let head = self.head();
        (head != self.tail.get()).then_some(head)
    }

    /// Removes and returns the first entry.
    ///
    /// # Safety
    /// `head` is the result of [`Self::filled`] in the present state.
    #[inline(always)]
    unsafe fn take_first(&self, head: u32) -> InFlight {
        // SAFETY: the slot is filled (contract of this function), and moving `limit` below makes it
        // empty, so the entry is read once.
        let Entry { completion, result, lease, index, kind } =
            unsafe { (*self.slot(head)).assume_init_read() };
        self.limit.set(self.limit.get().wrapping_add(1));
        if matches!(kind, Kind::Flushed | Kind::Canceled) {
            self.flushes.set(self.flushes.get().saturating_sub(1));
        }
        // SAFETY: `push` initialised what an entry of the kind has, and the rest of one that unpacks,
        // whose slot was emptied with that of the entry. An entry of the kinds `Notify`, `Flushed`
        // and `Canceled` has a completion, so that the last two arms are of the kind `Release`.
        let done = unsafe {
            match (kind, completion) {
                (Kind::Notify, Some(completion)) => Done::Notify(completion),
                (Kind::Flushed, Some(completion)) => Done::Flushed(completion),
                (Kind::Canceled, Some(completion)) => Done::Canceled(completion),
                (Kind::Unpack, completion) => {
                    let (length, unpack) = (*self.slots_of(head).1).assume_init_read();
                    Done::Unpack { buffer: lease.assume_init(), length, unpack, completion }
                }
                (Kind::Fetch, completion) => {
                    let (word, result) = (lease.assume_init(), result.assume_init());
                    Done::Fetch { word, result, completion }
                }
                (Kind::Fetch32, completion) => {
                    let (word, result) = (lease.assume_init(), result.assume_init());
                    Done::Fetch32 { word, result, completion }
                }
                (_, Some(completion)) => {
                    Done::ReleaseNotify { buffer: lease.assume_init(), completion }
                }
                (_, None) => Done::Release { buffer: lease.assume_init() },
            }
        };
        InFlight { index, done }
    }
}

/// Returns a ring of `size` empty slots.
fn empty<T>(size: u32) -> Box<[Slot<T>]> {
    (0..size).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect()
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
    use crate::base::completion::Completion;
    use crate::base::error::OperationError;

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 5 } else { 256 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// Compares with a `VecDeque`, across the wrap of slots and of the 16-bit index.
        #[test]
        fn pops_what_is_covered_in_order(start: u16, steps in proptest::collection::vec((0u8..3, 1u16..5), 1..200)) {
            let queue = InFlightQueue::new(16);
            let completion = Completion::counter();
            let mut oracle = VecDeque::new();
            let mut index = start;
            for (step, n) in steps {
                if step < 2 && oracle.len() < 16 {
                    queue.push(InFlight { index, done: Done::Notify(completion.begin()) });
                    oracle.push_back(index);
                    index = index.wrapping_add(n);
                } else if let Some(&counter) = oracle.get(usize::from(n).min(oracle.len()).saturating_sub(1)) {
                    while let Some(entry) = queue.pop_covered(counter) {
                        prop_assert_eq!(Some(entry.index), oracle.pop_front());
                    }
                    prop_assert!(oracle.front().is_none_or(|&next| next != counter));
                }
                prop_assert_eq!(queue.is_empty(), oracle.is_empty());
            }
        }
    }

    /// An entry of the oracle: the position of its WQE, counted without wrapping, and whether it is
    /// a flush.
    type Entry = (u64, bool);

    /// A queue with these entries, whose counters are at `tail` before them.
    fn queue_of(
        blocks: u32,
        tail: u32,
        entries: &[Entry],
        completion: &Completion,
    ) -> InFlightQueue {
        let queue = InFlightQueue::new(blocks);
        queue.tail.set(tail);
        queue.limit.set(tail.wrapping_add(queue.slots()));
        for &(at, is_flush) in entries {
            if is_flush {
                assert!(queue.has_flush_room());
                queue.push_flush(at as u16, Done::Flushed(completion.begin()));
            } else {
                queue.push(InFlight { index: at as u16, done: Done::Notify(completion.begin()) });
            }
        }
        queue
    }

    /// Pops what `covered` covers from the queue and from the oracle, and compares them before and
    /// after.
    fn compare(
        queue: &InFlightQueue,
        tail: u32,
        entries: &[Entry],
        covered: usize,
        pop: impl Fn(&InFlightQueue) -> Option<InFlight>,
    ) {
        let mask = queue.slots() - 1;
        let flushes =
            |entries: &[Entry]| entries.iter().filter(|(_, is_flush)| *is_flush).count() as u32;
        for place in 0..covered {
            assert_eq!(
                queue.has_flush_room(),
                flushes(&entries[place..]) < queue.max_flushes.get()
            );
            assert!(!queue.is_empty());
            assert_eq!(pop(queue).unwrap().index, entries[place].0 as u16);
        }
        assert!(pop(queue).is_none());
        assert_eq!(queue.is_empty(), covered == entries.len());
        assert_eq!(queue.next_slot(), tail.wrapping_add(entries.len() as u32) & mask);
    }

    /// Tries every operation on a queue with these entries.
    fn check(blocks: u32, tail: u32, entries: &[Entry], ends: std::ops::Range<u64>) {
        let completion = Completion::counter();
        let queue = || queue_of(blocks, tail, entries, &completion);
        for counter in ends.start - 2..=ends.end {
            let covered = entries.iter().take_while(|(at, _)| *at <= counter).count();
            compare(&queue(), tail, entries, covered, |queue| queue.pop_covered(counter as u16));
            for other in [1, 2 * blocks, 8 * blocks] {
                let resized = queue();
                resized.resize(other);
                assert!(resized.slots() >= entries.len() as u32 + other);
                compare(&resized, tail, entries, covered, |q| q.pop_covered(counter as u16));
            }
            let queue_of_kinds = queue();
            let popped = std::iter::from_fn(|| queue_of_kinds.pop_next(counter as u16));
            let kinds = popped.map(|popped| match popped {
                Popped::Notify(_) => false,
                Popped::Other => queue_of_kinds.pop_covered(counter as u16).is_some(),
            });
            assert!(kinds.eq(entries[..covered].iter().map(|(_, is_flush)| *is_flush)));
            assert_eq!(queue_of_kinds.is_empty(), covered == entries.len());
            let is_done = |index| (counter as u16).wrapping_sub(index) < 1 << 15;
            compare(&queue(), tail, entries, covered, |queue| queue.pop_done(is_done));
        }
        compare(&queue(), tail, entries, entries.len(), InFlightQueue::pop);
    }

    /// Extends `entries` by every possible WQE and flush: a WQE has at least one block, and all
    /// together have at most `blocks`.
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

    /// Every queue of small rings, around the wraps of the slot counter (32 bits) and of WQE
    /// indices (16 bits).
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
        let completion = Completion::counter();
        let queue = InFlightQueue::new(16);
        for index in 0..3 {
            queue.push_flush(index, Done::Notify(completion.begin()));
        }
        assert_eq!(completion.pending(), 3);
        drop(queue);
        assert_eq!((completion.pending(), completion.status()), (0, Err(OperationError::CANCELED)));
    }
}
