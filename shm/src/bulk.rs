//! Buffers for messages that do not fit into a slot. The sender fills a buffer and sends a message
//! with its number; the receiver returns the buffer after use.
//!
//! The segment begins with one word per buffer, in whole cache lines, through which the receiver
//! returns buffers. The buffers follow. Each side records which side owns each buffer and does not
//! trust the other's record: a number that is out of turn is an error.
#![allow(unsafe_code, reason = "computes the addresses of buffers in a mapping")]

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::atomic::Ordering;
use crate::error::Corrupt;
use crate::line::{LINE, Lines, WORDS};
use crate::segment::Segment;

/// Bytes of a buffer.
pub const BUFFER: usize = 8320;
/// The maximum number of buffers of a connection: each side keeps them in a 64-bit mask.
pub const MAX_BUFFERS: usize = 64;

/// Lines that hold the return words of `count` buffers.
const fn head(count: usize) -> usize {
    count.div_ceil(WORDS)
}

/// Bytes of a segment with `count` buffers.
pub(crate) const fn size(count: usize) -> usize {
    head(count) * LINE + count * BUFFER
}

/// The layout of the segment, common to both sides.
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
            // SAFETY: the size of the segment was checked to be `head(count) * LINE + count *
            // BUFFER`, so this offset lies inside its mapping.
            let start = unsafe { segment.as_ptr().add(head(count) * LINE) };
            Self { returns, count, start, _segment: Arc::clone(segment) }
        })
    }

    /// The first byte of buffer `number`, which must be less than the count.
    fn buffer(&self, number: u8) -> NonNull<u8> {
        assert!(usize::from(number) < self.count, "buffer {number} of {}", self.count);
        // SAFETY: `number` is less than `count`, and `start` is followed by `count * BUFFER` bytes
        // of the mapping that `_segment` keeps alive.
        unsafe { self.start.add(usize::from(number) * BUFFER) }
    }

    /// The word of the return with index `turn`, and the value of its low half once the return was
    /// written.
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
    /// Mask of the buffers that the receiver has.
    out: u64,
    turn: u64,
    /// Buffers sent so far.
    sent: u32,
}

impl BulkSender {
    pub(crate) fn new(segment: &Arc<Segment>, count: usize) -> Option<Self> {
        let buffers = Buffers::over(segment, count)?;
        Some(Self { buffers, free: (0..count as u8).rev().collect(), out: 0, turn: 0, sent: 0 })
    }

    /// Takes a free buffer. The most recently returned one is first, because it is most likely in
    /// this core's caches. For the same reason, buffers are collected as soon as their returns fill
    /// a line, and not only when none is free: a line moves as often, and fewer buffers are in use.
    pub(crate) fn take(&mut self) -> Result<Option<u8>, Corrupt> {
        if self.sent.is_multiple_of(WORDS as u32) {
            self.collect()?;
        }
        Ok(if self.has_buffer()? { self.free.pop() } else { None })
    }

    /// Returns true if [`Self::take`] would return a buffer.
    pub(crate) fn has_buffer(&mut self) -> Result<bool, Corrupt> {
        if self.free.is_empty() {
            self.collect()?;
        }
        Ok(!self.free.is_empty())
    }

    /// Reads the buffers that the receiver has returned.
    fn collect(&mut self) -> Result<(), Corrupt> {
        while self.out != 0 {
            let (word, done) = self.buffers.returned(self.turn);
            let word = word.load(Ordering::Acquire);
            if word as u32 != done {
                break;
            }
            let number = word >> 32;
            if number >= self.buffers.count as u64 || self.out & 1 << number == 0 {
                return Err(Corrupt("the number of a returned buffer"));
            }
            self.out &= !(1 << number);
            self.free.push(number as u8);
            self.turn += 1;
        }
        Ok(())
    }

    /// Puts back a buffer that was taken and not sent. Does nothing for another number.
    pub(crate) fn put_back(&mut self, number: u8) {
        let exists = usize::from(number) < self.buffers.count;
        if exists && self.out >> number & 1 == 0 && !self.free.contains(&number) {
            self.free.push(number);
        }
    }

    /// Records that a message with the buffer was sent.
    pub(crate) fn sent(&mut self, number: u8) {
        // The receiver refuses the message if there is no such buffer.
        self.out |= 1_u64.wrapping_shl(number.into());
        self.sent = self.sent.wrapping_add(1);
    }

    pub(crate) fn buffer(&self, number: u8) -> NonNull<u8> {
        self.buffers.buffer(number)
    }
}

/// The side that receives filled buffers and returns them in any order. It keeps the buffers
/// mapped.
#[derive(Debug)]
pub struct BulkReceiver {
    buffers: Buffers,
    /// Mask of the buffers that this side has.
    held: Cell<u64>,
    turn: Cell<u64>,
}

impl BulkReceiver {
    pub(crate) fn new(segment: &Arc<Segment>, count: usize) -> Option<Self> {
        let buffers = Buffers::over(segment, count)?;
        Some(Self { buffers, held: Cell::new(0), turn: Cell::new(0) })
    }

    /// Takes the buffer that a message names, and returns its first byte.
    pub(crate) fn take(&self, number: u64) -> Result<NonNull<u8>, Corrupt> {
        let held = self.held.get();
        if number >= self.buffers.count as u64 || held & 1 << number != 0 {
            return Err(Corrupt("the number of the buffer of a message"));
        }
        self.held.set(held | 1 << number);
        Ok(self.buffers.buffer(number as u8))
    }

    /// Returns a buffer to the sender. Does nothing if this side does not have buffer `number`.
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
        (
            BulkSender::new(&segment, count).unwrap(),
            BulkReceiver::new(&segment, count).unwrap(),
            segment,
        )
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
    fn numbers_that_were_not_taken_do_no_harm() {
        let (mut sender, receiver, _segment) = pair(2);
        let number = sender.take().unwrap().unwrap();
        sender.sent(number);
        receiver.take(number.into()).unwrap();
        // Beyond the buffers and beyond a word, a free one, and one that the receiver has.
        for wrong in [2, 63, 64, 200, u8::MAX, 1 - number, number] {
            sender.put_back(wrong);
        }
        assert_eq!(sender.take().unwrap(), Some(1 - number), "the other one");
        assert_eq!(sender.take().unwrap(), None);
        for wrong in [64, u8::MAX] {
            sender.sent(wrong);
        }
        sender.put_back(1 - number);
        assert_eq!(sender.take().unwrap(), Some(1 - number));
    }

    #[test]
    fn what_is_out_of_turn_is_refused() {
        let (mut sender, receiver, segment) = pair(2);
        let number = sender.take().unwrap().unwrap();
        sender.sent(number);
        receiver.take(number.into()).unwrap();
        assert!(receiver.take(number.into()).is_err(), "a buffer was taken twice");
        assert!(receiver.take(2).is_err() && receiver.take(u64::MAX).is_err(), "no such buffer");
        // A number that this side does not have is ignored.
        receiver.give(1 - number);
        receiver.give(200);
        assert!(sender.take().unwrap().is_some() && sender.take().unwrap().is_none());
        // The sender refuses numbers that the receiver does not have.
        segment.write(0, &(u64::from(1 - number) << 32 | 1).to_ne_bytes()).unwrap();
        assert_eq!(sender.take(), Err(Corrupt("the number of a returned buffer")));
        segment.write(0, &(77u64 << 32 | 1).to_ne_bytes()).unwrap();
        assert_eq!(sender.take(), Err(Corrupt("the number of a returned buffer")));
    }

    #[test]
    fn a_segment_of_another_size_is_refused() {
        let segment = Arc::new(Segment::create("test", size(2)).unwrap());
        for count in [0, 1, 3, MAX_BUFFERS + 1] {
            assert!(
                BulkSender::new(&segment, count).is_none()
                    && BulkReceiver::new(&segment, count).is_none()
            );
        }
    }
}
