//! The SPSC ring: one sender, one receiver; a message moves with one cache line or with half of
//! one.
//!
//! | line | written by | what |
//! |---|---|---|
//! | 0 | receiver | half lines freed so far, published every half lap and at least every 64 lines |
//! | 1.. | sender | slots |
//!
//! A message of up to 16 bytes takes half a slot, so that two of them move from one core to the
//! other with one line. A longer one, of up to 48 bytes, takes a whole slot; where the second half
//! of a slot is next, a filler takes that.
//!
//! Word 0 of a message: bits 0..32 are the lap plus one, which marks it as filled; 32..40 the tag,
//! 40..56 the length in bytes. Word 1 is the header, and the payload follows. So a long message has
//! payload in word 4 of its slot, where in other laps word 0 of the second half is. The sender
//! clears word 4 before it uses the slot again.
//!
//! The receiver's line moves twice per lap, or every 64 lines.

use crate::atomic::{AtomicU64, Ordering};
use crate::error::Corrupt;
use crate::line::{HALF, Half, Line, Lines, Ring, Run, WORDS};
use crate::peer::{FILLER, LONG, LONG_END, MAX_IDS};
use crate::poll::Cursor;
use crate::reply::NextSlot;

/// Bytes of payload that fit into a slot.
pub const INLINE: usize = (WORDS - 2) * 8;
/// Bytes of payload that fit into half a slot.
pub(crate) const HALF_INLINE: usize = (HALF - 2) * 8;
/// Words of a message: header and payload.
pub const MESSAGE_WORDS: usize = WORDS - 1;
/// Lines before the slots.
const HEAD: usize = 1;
/// Parts of a lap; after each of them the receiver publishes its position.
const PARTS: u64 = 2;
/// The maximum number of half lines in a part.
const LONGEST_PART: u64 = 128;

/// Bits in the upper half of word 0 that are zero for every message in half a slot: those of tags
/// from [`MAX_IDS`] on and of lengths from 32 on.
pub(crate) const NOT_SHORT: u32 = !((MAX_IDS as u32 - 1) | (0x1f << 8));

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

/// The low half of word 0 when the half line with this index is filled.
#[inline(always)]
fn filled(ring: &Ring, index: u64) -> u32 {
    (ring.lap(index / 2) as u32).wrapping_add(1)
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

/// Writes `header` and `payload`, which has at most [`HALF_INLINE`] bytes, to half a slot.
#[inline(always)]
fn write_half(half: &Half, header: u64, payload: &[u8]) {
    half.store(1, header);
    if let Ok(word) = payload.try_into() {
        half.store(2, u64::from_ne_bytes(word));
    } else if !payload.is_empty() {
        let mut words = [0; HALF_INLINE];
        words[..payload.len()].copy_from_slice(payload);
        for (place, word) in (2..HALF).zip(words.as_chunks().0) {
            half.store(place, u64::from_ne_bytes(*word));
        }
    }
}

/// Copies the header and at least `length` bytes of payload out of half a slot. Returns the length
/// of the payload, at most [`HALF_INLINE`].
#[inline(always)]
pub(crate) fn read_half(half: &Half, length: usize, into: &mut [u64; MESSAGE_WORDS]) -> usize {
    into[0] = half.load(1);
    into[1] = half.load(2);
    if length <= 8 {
        return length;
    }
    into[2] = half.load(3);
    length.min(HALF_INLINE)
}

/// The sending end. Indices count half lines.
#[derive(Debug)]
pub(crate) struct SpscSender {
    /// Free half lines up to the end of the lap.
    run: Run,
    filled: u32,
    head: Lines,
    /// Index behind `run`.
    end: u64,
    /// Index behind the last message that took a whole slot; 0 if there was none.
    long_end: u64,
}

impl SpscSender {
    /// Creates the sending end over zeroed lines. Returns `None` unless their count is [`lines`] of
    /// a power of two. There is no room before the first [`Self::renew`].
    pub(crate) fn new(lines: &Lines) -> Option<Self> {
        let (head, ring) = parts(lines)?;
        Some(Self { run: Run::empty(ring), filled: 0, head, end: 0, long_end: 0 })
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

    /// Sends a message of at most [`INLINE`] bytes of payload; of more than [`HALF_INLINE`] only
    /// with a tag below [`MAX_IDS`]. Reports the address of the next message to `next_slot`.
    /// Returns false if there is no room as of the last [`Self::renew`].
    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        label: Label,
        header: u64,
        payload: &[u8],
        next_slot: &NextSlot,
    ) -> bool {
        if payload.len() > HALF_INLINE {
            return self.send_long(label, header, payload, next_slot);
        }
        let Some((half, next)) = self.run.take() else { return false };
        next_slot.set(next);
        write_half(half, header, payload);
        half.word(0).store(label.pack() | u64::from(self.filled), Ordering::Release);
        true
    }

    #[inline(never)]
    fn send_long(
        &mut self,
        label: Label,
        header: u64,
        payload: &[u8],
        next_slot: &NextSlot,
    ) -> bool {
        let filled = u64::from(self.filled);
        if !self.run.left().is_multiple_of(2)
            && let Some((half, _)) = self.run.take()
        {
            let filler = Label { tag: FILLER, length: 0 };
            half.word(0).store(filler.pack() | filled, Ordering::Release);
        }
        let Some((line, next)) = self.run.take_line() else { return false };
        next_slot.set(next);
        write_message(line, header, payload);
        let label = Label { tag: LONG + label.tag % MAX_IDS, ..label };
        line.word(0).store(label.pack() | filled, Ordering::Release);
        self.long_end = self.index();
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
        let (index, halves) = (self.index(), 2 * self.run.ring().slots());
        if emptied > index || index - emptied > halves {
            return Err(Corrupt("the number of messages it has received from the SPSC ring"));
        }
        self.filled = filled(self.run.ring(), index);
        let room = self.run.start(index, emptied + halves - index);
        self.end = index + room;
        // Only payload of the last lap can be in word 4: the second half of a slot, too, is filled
        // in every lap in which its first half is not part of a long message.
        if self.long_end > 0 && self.long_end + halves > index {
            for slot in index.div_ceil(2)..self.end / 2 {
                self.run.ring().slot(slot).store(HALF, 0);
            }
        }
        Ok(room > 0)
    }
}

#[cfg(all(test, not(loom)))]
impl SpscSender {
    pub(crate) fn scribble(&mut self, number: u64, step: u64) {
        let ring = self.run.ring();
        let next = self.index() / 2;
        let line = ring.slot(if step.is_multiple_of(2) { number >> 32 } else { next });
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
    /// Counts half lines.
    index: u64,
    /// Half lines in a part of a lap, a power of two and at least 2.
    part: u64,
}

impl SpscReceiver {
    /// Creates the receiving end over the sender's lines. Returns `None` unless their count is
    /// [`lines`] of a power of two.
    pub(crate) fn new(lines: &Lines) -> Option<Self> {
        let (head, ring) = parts(lines)?;
        let part = (2 * ring.slots() / PARTS).min(LONGEST_PART);
        Some(Self { ring, head, index: 0, part })
    }

    pub(crate) fn lines(&self) -> &Lines {
        self.ring.lines()
    }

    /// The half lines from the next message to the end of its part of the lap.
    #[inline(always)]
    pub(crate) fn cursor(&self) -> Cursor {
        let remaining = self.part - (self.index & (self.part - 1));
        Cursor {
            half: self.ring.half(self.index),
            filled: filled(&self.ring, self.index),
            remaining: remaining as u32,
        }
    }

    /// Returns the label of the next message, if there is one. Frees a filler in front of it.
    pub(crate) fn peek(&mut self) -> Option<Label> {
        let label = self.label()?;
        if label.tag == FILLER && !self.index.is_multiple_of(2) {
            self.advance(1);
            return self.label();
        }
        Some(label)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        let line = self.ring.slot(self.index / 2);
        line.word((self.index % 2) as usize * HALF + index)
    }

    fn label(&self) -> Option<Label> {
        let word = self.word(0).load(Ordering::Acquire);
        (word as u32 == filled(&self.ring, self.index)).then(|| Label::unpack(word))
    }

    /// The header of the message whose label [`Self::peek`] returned.
    pub(crate) fn header(&self) -> u64 {
        self.word(1).load(Ordering::Relaxed)
    }

    /// Copies the message whose label [`Self::peek`] returned, and frees it. Returns its id and its
    /// length; `None` if it is of another kind.
    pub(crate) fn take(
        &mut self,
        label: Label,
        into: &mut [u64; MESSAGE_WORDS],
    ) -> Option<(u8, usize)> {
        let (line, length) = (self.ring.slot(self.index / 2), usize::from(label.length));
        match label.tag {
            id @ 0..MAX_IDS if length <= HALF_INLINE => {
                let half = line.half((self.index % 2) as usize);
                let length = read_half(half, length, into);
                self.advance(1);
                Some((id, length))
            }
            tag @ LONG..LONG_END if length <= INLINE && self.index.is_multiple_of(2) => {
                let length = read_message(line, length, into);
                self.advance(2);
                Some((tag - LONG, length))
            }
            _ => None,
        }
    }

    /// Frees half lines that were read. They must not extend beyond the end of the current part. At
    /// the end of a part the position is published to the sender.
    #[inline(always)]
    pub(crate) fn advance(&mut self, halves: u32) {
        self.index += u64::from(halves);
        if halves > 0 && self.index & (self.part - 1) == 0 {
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

    fn send(sender: &mut SpscSender, label: Label, header: u64, payload: &[u8]) -> bool {
        sender.send(label, header, payload, &NextSlot::default())
    }

    fn take(receiver: &mut SpscReceiver) -> Option<(u8, Vec<u8>)> {
        let label = receiver.peek()?;
        let mut message = [0; MESSAGE_WORDS];
        let (id, length) = receiver.take(label, &mut message).expect("a message");
        let bytes: Vec<u8> = message.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Some((id, bytes[..8 + length].to_vec()))
    }

    proptest! {
        /// Sends of any length and receives in any order behave like a queue over many laps.
        #[test]
        fn equals_a_queue(steps in proptest::collection::vec((any::<bool>(), 0..=INLINE), 1..300)) {
            let lines = Lines::private(lines(8));
            let mut sender = SpscSender::new(&lines).unwrap();
            let mut receiver = SpscReceiver::new(&lines).unwrap();
            let mut oracle: VecDeque<(u8, Vec<u8>)> = VecDeque::new();
            for ((sends, length), step) in steps.into_iter().zip(0u64..) {
                if !sends {
                    prop_assert_eq!(take(&mut receiver), oracle.pop_front());
                    continue;
                }
                // Payload that looks like word 0 of a message in the next laps.
                let word = (step / 8 % 8 + 1) << 40 | (step / 16 + 1);
                let payload: Vec<u8> = word.to_ne_bytes().into_iter().cycle().take(length).collect();
                let tag = (step % 32) as u8;
                let label = Label { tag, length: length as u16 };
                let sent = send(&mut sender, label, step, &payload)
                    || (sender.renew().unwrap() && send(&mut sender, label, step, &payload));
                // The receiver publishes its position once per half of the ring, in which half of
                // the half lines can be fillers.
                prop_assert!(sent || oracle.len() >= (8 - 8 / PARTS as usize) / 2);
                prop_assert!(!sent || oracle.len() < 2 * 8);
                if sent {
                    oracle.push_back((tag, [&step.to_ne_bytes()[..], &payload].concat()));
                }
            }
        }
    }

    #[test]
    fn impossible_counts_are_refused() {
        let lines = Lines::private(lines(4));
        let mut sender = SpscSender::new(&lines).unwrap();
        assert_eq!(sender.renew(), Ok(true));
        for _ in 0..8 {
            assert!(send(&mut sender, Label { tag: 0, length: 0 }, 0, &[]));
        }
        assert_eq!(sender.renew(), Ok(false));
        for emptied in [9, u64::MAX] {
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
        let near = 8 * u64::from(u32::MAX) - 16;
        (sender.end, receiver.index) = (near, near);
        lines.line(0).store(0, near);
        for step in 0..40 {
            assert_eq!(take(&mut receiver), None, "{step}");
            assert!(
                sender.renew().unwrap()
                    && send(&mut sender, Label { tag: 1, length: 0 }, step, &[])
            );
            assert_eq!(take(&mut receiver), Some((1, step.to_ne_bytes().to_vec())));
        }
    }
}
