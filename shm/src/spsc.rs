//! The SPSC ring: one sender, one receiver; a short message occupies one cache line.
//!
//! | line | written by | what |
//! |---|---|---|
//! | 0 | receiver | slots freed so far, published every half lap and at least every 64 slots |
//! | 1.. | sender | slots |
//!
//! Word 0 of a slot: bits 0..32 are the lap plus one, which marks the slot as filled; 32..40 the
//! tag, 40..56 the length in bytes. Word 1 is the header, words 2..8 are up to 48 bytes of payload.
//! A message moves one cache line from one core to the other; the receiver's line moves twice per
//! lap, or every 64 slots.

use crate::atomic::Ordering;
use crate::error::Corrupt;
use crate::line::{Line, Lines, Ring, Run, WORDS};
use crate::peer::MAX_IDS;
use crate::poll::Cursor;

/// Bytes of payload that fit into a slot.
pub const INLINE: usize = (WORDS - 2) * 8;
/// Words of a message: header and payload.
pub const MESSAGE_WORDS: usize = WORDS - 1;
/// Lines before the slots.
const HEAD: usize = 1;
/// Parts of a lap; after each of them the receiver publishes its position.
const PARTS: u64 = 2;
/// The maximum number of slots in a part.
const LONGEST_PART: u64 = 64;

/// Bits in the upper half of word 0 that are zero for every short message: those of tags from
/// [`MAX_IDS`] on and of lengths from 64 on.
pub(crate) const NOT_SHORT: u32 = !((MAX_IDS as u32 - 1) | (0x3f << 8));

/// Describes the message in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label {
    /// The id of a short message, or the kind of another one.
    pub(crate) tag: u8,
    /// Bytes of payload.
    pub(crate) length: u16,
}

impl Label {
    #[inline(always)]
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.tag) << 32 | u64::from(self.length) << 40
    }

    #[inline(always)]
    pub(crate) fn unpack(word: u64) -> Self {
        Self { tag: (word >> 32) as u8, length: (word >> 40) as u16 }
    }
}

/// Lines of a ring with `slots` slots.
pub(crate) const fn lines(slots: usize) -> usize {
    HEAD + slots
}

/// The low half of word 0 when the slot with this index is filled.
#[inline(always)]
fn filled(ring: &Ring, index: u64) -> u32 {
    (ring.lap(index) as u32).wrapping_add(1)
}

/// Writes `header` and `payload`, which has at most [`INLINE`] bytes, to a slot.
#[inline(always)]
pub(crate) fn write_message(line: &Line, header: u64, payload: &[u8]) {
    line.store(1, header);
    if let Ok(word) = payload.try_into() {
        line.store(2, u64::from_ne_bytes(word));
    } else if !payload.is_empty() {
        write_payload(line, payload);
    }
}

#[inline(never)]
fn write_payload(line: &Line, payload: &[u8]) {
    let (whole, rest) = payload.as_chunks();
    for (place, word) in (2..WORDS).zip(whole) {
        line.store(place, u64::from_ne_bytes(*word));
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        line.store(2 + whole.len(), u64::from_ne_bytes(last));
    }
}

/// Copies the header and at least `length` bytes of payload out of a slot. Returns the length of
/// the payload, at most [`INLINE`].
#[inline(always)]
pub(crate) fn read_message(line: &Line, length: usize, into: &mut [u64; MESSAGE_WORDS]) -> usize {
    into[0] = line.load(1);
    into[1] = line.load(2);
    if length <= 8 {
        return length;
    }
    for (place, word) in into[2..].iter_mut().zip(3..) {
        *place = line.load(word);
    }
    length.min(INLINE)
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct SpscSender {
    /// Free slots up to the end of the lap.
    run: Run,
    filled: u32,
    head: Lines,
    /// Index of the slot behind `run`.
    end: u64,
}

impl SpscSender {
    /// Creates the sending end over zeroed lines. Returns `None` unless their count is [`lines`] of
    /// a power of two. There is no room before the first [`Self::renew`].
    pub(crate) fn new(lines: &Lines) -> Option<Self> {
        let (head, ring) = parts(lines)?;
        Some(Self { run: Run::empty(ring), filled: 0, head, end: 0 })
    }

    /// Removes all room until the next [`Self::renew`].
    pub(crate) fn clear_room(&mut self) {
        self.end = self.index();
        self.run.clear();
    }

    /// Index of the next message.
    fn index(&self) -> u64 {
        self.end - self.run.left()
    }

    /// Sends a message of at most [`INLINE`] bytes of payload. Returns false if there is no room as
    /// of the last [`Self::renew`].
    #[inline(always)]
    pub(crate) fn send(&mut self, label: Label, header: u64, payload: &[u8]) -> bool {
        let Some(line) = self.run.take() else { return false };
        write_message(line, header, payload);
        line.word(0).store(label.pack() | u64::from(self.filled), Ordering::Release);
        true
    }

    /// Reads the receiver's position. Returns true if there is room.
    ///
    /// # Errors
    /// [`Corrupt`] if the receiver claims to have freed slots that were not filled, or fewer than
    /// before.
    #[inline(never)]
    pub(crate) fn renew(&mut self) -> Result<bool, Corrupt> {
        let emptied = self.head.line(0).word(0).load(Ordering::Acquire);
        let (index, slots) = (self.index(), self.run.ring().slots());
        if emptied > index || index - emptied > slots {
            return Err(Corrupt("the number of messages it has received from the SPSC ring"));
        }
        self.filled = filled(self.run.ring(), index);
        let room = self.run.start(index, emptied + slots - index);
        self.end = index + room;
        Ok(room > 0)
    }
}

#[cfg(all(test, not(loom)))]
impl SpscSender {
    pub(crate) fn scribble(&mut self, number: u64, step: u64) {
        let ring = self.run.ring();
        let line = ring.slot(if step.is_multiple_of(2) { number >> 32 } else { self.index() });
        let filled = u64::from(filled(ring, self.index()));
        line.store(1, number);
        line.store(0, if step.is_multiple_of(3) { number & !0xffff_ffff | filled } else { number });
    }
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct SpscReceiver {
    ring: Ring,
    head: Lines,
    index: u64,
    /// Slots in a part of a lap, a power of two.
    part: u64,
}

impl SpscReceiver {
    /// Creates the receiving end over the sender's lines. Returns `None` unless their count is
    /// [`lines`] of a power of two.
    pub(crate) fn new(lines: &Lines) -> Option<Self> {
        let (head, ring) = parts(lines)?;
        let part = (ring.slots() / PARTS).min(LONGEST_PART);
        Some(Self { ring, head, index: 0, part })
    }

    pub(crate) fn lines(&self) -> &Lines {
        self.ring.lines()
    }

    /// The slots from the next message to the end of its part of the lap.
    #[inline(always)]
    pub(crate) fn cursor(&self) -> Cursor<'_> {
        let remaining = self.part - (self.index & (self.part - 1));
        Cursor {
            line: self.ring.slot(self.index),
            filled: filled(&self.ring, self.index),
            remaining: remaining as u32,
        }
    }

    /// Returns the next message, if there is one.
    pub(crate) fn peek(&self) -> Option<(Label, &Line)> {
        let Cursor { line, filled, .. } = self.cursor();
        let word = line.word(0).load(Ordering::Acquire);
        (word as u32 == filled).then(|| (Label::unpack(word), line))
    }

    /// Frees the slots of `messages` messages that were copied. They must not extend beyond the end
    /// of the current part. At the end of a part the position is published to the sender.
    #[inline(always)]
    pub(crate) fn advance(&mut self, messages: u32) {
        self.index += u64::from(messages);
        if messages > 0 && self.index & (self.part - 1) == 0 {
            self.head.line(0).word(0).store(self.index, Ordering::Release);
        }
    }
}

fn parts(lines: &Lines) -> Option<(Lines, Ring)> {
    let slots = lines.count().checked_sub(HEAD).filter(|slots| *slots as u64 >= PARTS)?;
    Some((lines.part(0, HEAD)?, Ring::new(lines.part(HEAD, slots)?)?))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn take(receiver: &mut SpscReceiver) -> Option<(u8, Vec<u8>)> {
        let (label, line) = receiver.peek()?;
        let mut message = [0; MESSAGE_WORDS];
        read_message(line, label.length.into(), &mut message);
        receiver.advance(1);
        let bytes: Vec<u8> = message.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Some((label.tag, bytes[..8 + usize::from(label.length)].to_vec()))
    }

    proptest! {
        /// Sends of any length and receives in any order behave like a queue over many laps.
        #[test]
        fn equals_a_queue(steps in proptest::collection::vec((any::<bool>(), 0..=INLINE), 1..300)) {
            let lines = Lines::private(lines(8));
            let mut sender = SpscSender::new(&lines).unwrap();
            let mut receiver = SpscReceiver::new(&lines).unwrap();
            let mut oracle: VecDeque<(u8, Vec<u8>)> = VecDeque::new();
            for ((send, length), step) in steps.into_iter().zip(0u64..) {
                if !send {
                    prop_assert_eq!(take(&mut receiver), oracle.pop_front());
                    continue;
                }
                let payload: Vec<u8> = (0..length).map(|at| (step as usize + at) as u8).collect();
                let label = Label { tag: step as u8, length: length as u16 };
                let sent = sender.send(label, step, &payload)
                    || (sender.renew().unwrap() && sender.send(label, step, &payload));
                // The receiver publishes its position once per half of the ring.
                prop_assert!(sent || oracle.len() > 8 - 8 / PARTS as usize);
                prop_assert!(!sent || oracle.len() < 8);
                if sent {
                    oracle.push_back((step as u8, [&step.to_ne_bytes()[..], &payload].concat()));
                }
            }
        }
    }

    #[test]
    fn impossible_counts_are_refused() {
        let lines = Lines::private(lines(4));
        let mut sender = SpscSender::new(&lines).unwrap();
        assert_eq!(sender.renew(), Ok(true));
        for _ in 0..4 {
            assert!(sender.send(Label { tag: 0, length: 0 }, 0, &[]));
        }
        assert_eq!(sender.renew(), Ok(false));
        for emptied in [5, u64::MAX] {
            lines.line(0).store(0, emptied);
            assert!(sender.renew().is_err());
        }
        lines.line(0).store(0, 4);
        assert_eq!(sender.renew(), Ok(true));
    }

    #[test]
    fn laps_beyond_32_bits_are_told_apart() {
        let lines = Lines::private(lines(4));
        let mut sender = SpscSender::new(&lines).unwrap();
        let mut receiver = SpscReceiver::new(&lines).unwrap();
        let near = 4 * u64::from(u32::MAX) - 8;
        (sender.end, receiver.index) = (near, near);
        lines.line(0).store(0, near);
        for step in 0..40 {
            assert_eq!(take(&mut receiver), None, "{step}");
            assert!(sender.renew().unwrap() && sender.send(Label { tag: 1, length: 0 }, step, &[]));
            assert_eq!(take(&mut receiver), Some((1, step.to_ne_bytes().to_vec())));
        }
    }
}
