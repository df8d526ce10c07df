//! Buffers for what does not fit into a slot: the sender fills one, names it in a message, and gets it back when the receiver is done.
//!
//! The segment has one word per buffer through which the receiver gives buffers back, in whole lines, and the buffers behind. A buffer
//! belongs to one side at a time, and each side knows by its own books whose turn it is: a number that is out of turn is an error.
#![allow(unsafe_code, reason = "the addresses of buffers in a mapping are made here")]

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::atomic::Ordering;
use crate::error::Corrupt;
use crate::line::{LINE, Lines, WORDS};
use crate::segment::Segment;

/// Bytes of a buffer.
pub const BUFFER: usize = 8320;
/// The most buffers between two processes: each side has a bit for each.
pub const MAX_BUFFERS: usize = 64;

/// Lines through which so many buffers are given back.
const fn head(count: usize) -> usize {
    count.div_ceil(WORDS)
}

/// Bytes of the segment with `count` buffers.
pub(crate) const fn size(count: usize) -> usize {
    head(count) * LINE + count * BUFFER
}

/// What the segment holds, seen by either side.
#[derive(Debug)]
struct Buffers {
    returns: Lines,
    count: usize,
    start: NonNull<u8>,
    _segment: Arc<Segment>,
}

impl Buffers {
    fn over(segment: &Arc<Segment>, count: usize) -> Option<Self> {
        let fits = (1..=MAX_BUFFERS).contains(&count) && segment.size() == size(count);
        let returns = Lines::of(segment, head(count))?;
        fits.then(|| {
            // SAFETY: inside the segment, as its size is that of so many buffers.
            let start = unsafe { segment.as_ptr().add(head(count) * LINE) };
            Self { returns, count, start, _segment: Arc::clone(segment) }
        })
    }

    /// The first byte of buffer `number`, which is below the count.
    fn buffer(&self, number: u8) -> NonNull<u8> {
        assert!(usize::from(number) < self.count, "buffer {number} of {}", self.count);
        // SAFETY: inside the segment.
        unsafe { self.start.add(usize::from(number) * BUFFER) }
    }

    /// The word for the `turn`th return, and what its low half is once it was made.
    fn returned(&self, turn: u64) -> (&crate::atomic::AtomicU64, u32) {
        let (at, lap) = (turn as usize % self.count, turn / self.count as u64);
        (self.returns.line(at / WORDS).word(at % WORDS), (lap as u32).wrapping_add(1))
    }
}

/// The side that fills buffers.
#[derive(Debug)]
pub(crate) struct BulkSender {
    buffers: Buffers,
    free: Vec<u8>,
    /// A bit for each that the receiver has.
    out: u64,
    turn: u64,
}

impl BulkSender {
    pub(crate) fn new(segment: &Arc<Segment>, count: usize) -> Option<Self> {
        let buffers = Buffers::over(segment, count)?;
        Some(Self { buffers, free: (0..count as u8).rev().collect(), out: 0, turn: 0 })
    }

    /// Takes a buffer; the one that came back last, as it is in this core's caches.
    pub(crate) fn take(&mut self) -> Result<Option<u8>, Corrupt> {
        Ok(if self.has_buffer()? { self.free.pop() } else { None })
    }

    /// True if [`Self::take`] would find one.
    pub(crate) fn has_buffer(&mut self) -> Result<bool, Corrupt> {
        if self.free.is_empty() {
            self.collect()?;
        }
        Ok(!self.free.is_empty())
    }

    /// Takes in what the receiver gave back.
    fn collect(&mut self) -> Result<(), Corrupt> {
        while self.out != 0 {
            let (word, done) = self.buffers.returned(self.turn);
            let word = word.load(Ordering::Acquire);
            if word as u32 != done {
                break;
            }
            let number = word >> 32;
            if number >= self.buffers.count as u64 || self.out & 1 << number == 0 {
                return Err(Corrupt("which buffer it gives back"));
            }
            self.out &= !(1 << number);
            self.free.push(number as u8);
            self.turn += 1;
        }
        Ok(())
    }

    /// The buffer was not used.
    pub(crate) fn put_back(&mut self, number: u8) {
        self.free.push(number);
    }

    /// The buffer was named in a message.
    pub(crate) fn sent(&mut self, number: u8) {
        self.out |= 1 << number;
    }

    pub(crate) fn buffer(&self, number: u8) -> NonNull<u8> {
        self.buffers.buffer(number)
    }
}

/// The side that gets filled buffers and gives them back, in any order. It keeps them mapped.
#[derive(Debug)]
pub struct BulkReceiver {
    buffers: Buffers,
    /// A bit for each that is here.
    held: Cell<u64>,
    turn: Cell<u64>,
}

impl BulkReceiver {
    pub(crate) fn new(segment: &Arc<Segment>, count: usize) -> Option<Self> {
        let buffers = Buffers::over(segment, count)?;
        Some(Self { buffers, held: Cell::new(0), turn: Cell::new(0) })
    }

    /// Takes the buffer that a message named.
    pub(crate) fn take(&self, number: u64) -> Result<NonNull<u8>, Corrupt> {
        let held = self.held.get();
        if number >= self.buffers.count as u64 || held & 1 << number != 0 {
            return Err(Corrupt("which buffer its message is in"));
        }
        self.held.set(held | 1 << number);
        Ok(self.buffers.buffer(number as u8))
    }

    /// Gives a buffer back that a message came in. One that is not here stays where it is.
    pub fn give(&self, number: u8) {
        let bit = 1u64.checked_shl(number.into()).unwrap_or(0);
        if self.held.get() & bit == 0 {
            return;
        }
        self.held.set(self.held.get() & !bit);
        let turn = self.turn.replace(self.turn.get() + 1);
        let (word, done) = self.buffers.returned(turn);
        word.store(u64::from(number) << 32 | u64::from(done), Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn pair(count: usize) -> (BulkSender, BulkReceiver, Arc<Segment>) {
        let segment = Arc::new(Segment::create("test", size(count)).unwrap());
        (BulkSender::new(&segment, count).unwrap(), BulkReceiver::new(&segment, count).unwrap(), segment)
    }

    #[test]
    fn buffers_come_back_in_any_order() {
        let (mut sender, receiver, _segment) = pair(3);
        let mut held = Vec::new();
        for round in 0..100 {
            while let Some(number) = sender.take().unwrap() {
                sender.sent(number);
                receiver.take(number.into()).unwrap();
                held.push(number);
            }
            assert_eq!(held.len(), 3);
            receiver.give(held.remove(round % 3));
        }
    }

    #[test]
    fn what_is_out_of_turn_is_refused() {
        let (mut sender, receiver, segment) = pair(2);
        let number = sender.take().unwrap().unwrap();
        sender.sent(number);
        receiver.take(number.into()).unwrap();
        assert!(receiver.take(number.into()).is_err(), "twice");
        assert!(receiver.take(2).is_err() && receiver.take(u64::MAX).is_err(), "no such buffer");
        // Never given back twice, whoever asks for it.
        receiver.give(1 - number);
        receiver.give(200);
        assert!(sender.take().unwrap().is_some() && sender.take().unwrap().is_none());
        // A receiver that gives back what it does not have.
        segment.write(0, &(u64::from(1 - number) << 32 | 1).to_ne_bytes()).unwrap();
        assert_eq!(sender.take(), Err(Corrupt("which buffer it gives back")));
        segment.write(0, &(77u64 << 32 | 1).to_ne_bytes()).unwrap();
        assert_eq!(sender.take(), Err(Corrupt("which buffer it gives back")));
    }

    #[test]
    fn a_segment_of_another_size_is_refused() {
        let segment = Arc::new(Segment::create("test", size(2)).unwrap());
        for count in [0, 1, 3, MAX_BUFFERS + 1] {
            assert!(
                BulkSender::new(&segment, count).is_none() && BulkReceiver::new(&segment, count).is_none()
            );
        }
    }
}
