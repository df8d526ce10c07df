//! The FIFO: a ring with many senders and one receiver.
//!
//! Line 0 holds a hint of the first free slot, which the senders maintain. The other lines are
//! slots, laid out as in an SPSC ring except for word 0: bits 0..2 are the state, 2..32 the lap,
//! 32..40 the tag, 40..48 the length, 48..64 the sender's number. A slot goes from free (of this
//! lap) to claimed to filled to free (of the next lap). The compare-and-swap that claims a slot
//! also stores the sender's number, so the receiver always knows which sender it waits for. It
//! frees a claimed slot whose sender has ended, and sets aside a slot whose sender is stopped, so
//! that the messages behind it can be received.

use crate::atomic::Ordering;
use crate::line::{Lines, Ring};
use crate::poll::Cursor;
use crate::spsc::{Label, MESSAGE_WORDS, read_message, write_message};

const FREE: u64 = 0;
const CLAIMED: u64 = 1;
const FILLED: u64 = 2;
/// Set aside by the receiver because the sender is stopped. Both sides skip it.
const SET_ASIDE: u64 = 3;
const STATE: u64 = 3;
/// Mask of state and lap.
const STATE_AND_LAP: u64 = 0xffff_ffff;
const LAPS: u64 = 1 << 30;
/// One lap behind, modulo laps.
const BEHIND: u64 = LAPS - 1;
const HEAD: usize = 1;
/// How often a sender searches the ring before it reports that the ring is full.
const MAX_SEARCHES: usize = 8;

/// Lines of a FIFO with `slots` slots.
pub(crate) const fn lines(slots: usize) -> usize {
    HEAD + slots
}

fn parts(lines: &Lines) -> Option<(Lines, Ring)> {
    let slots = lines.count().checked_sub(HEAD)?;
    Some((lines.part(0, HEAD)?, Ring::new(lines.part(HEAD, slots)?)?))
}

/// The low half of word 0.
fn low_half(lap: u64, state: u64) -> u64 {
    (lap % LAPS) << 2 | state
}

fn sender_of(word: u64) -> u16 {
    (word >> 48) as u16
}

/// One of the sending ends.
#[derive(Debug)]
pub(crate) struct FifoSender {
    ring: Ring,
    head: Lines,
    number: u16,
}

/// A slot that this sender claimed and must fill.
#[derive(Debug)]
pub(crate) struct Claim {
    index: u64,
}

impl FifoSender {
    /// Creates the sending end with sender number `number` over the receiver's lines.
    pub(crate) fn new(lines: &Lines, number: u16) -> Option<Self> {
        let (head, ring) = parts(lines)?;
        Some(Self { ring, head, number })
    }

    /// Sends a message of at most [`INLINE`](crate::spsc::INLINE) bytes of payload. Returns false
    /// if the ring is full.
    pub(crate) fn send(&mut self, label: Label, header: u64, payload: &[u8]) -> bool {
        while let Some(claim) = self.claim() {
            if self.fill(&claim, label, header, payload) {
                return true;
            }
        }
        false
    }

    /// Claims the first free slot. Returns `None` if there is none. Terminates for any contents of
    /// the ring; the receiver detects corruption.
    pub(crate) fn claim(&mut self) -> Option<Claim> {
        let hint = self.head.line(0).word(0);
        for _ in 0..MAX_SEARCHES {
            let start = hint.load(Ordering::Acquire);
            // Under the protocol the hint may lag behind, but never passes a free slot.
            for step in 0..self.ring.slots() {
                let index = start.wrapping_add(step);
                let lap = self.ring.lap(index);
                let word = self.ring.slot(index).word(0);
                let found = word.load(Ordering::Acquire);
                let ahead = ((found & STATE_AND_LAP) >> 2).wrapping_sub(lap % LAPS) % LAPS;
                match (ahead, found & STATE) {
                    (0, FREE) => {
                        let claimed = low_half(lap, CLAIMED) | u64::from(self.number) << 48;
                        if word
                            .compare_exchange(found, claimed, Ordering::AcqRel, Ordering::Relaxed)
                            .is_ok()
                        {
                            hint.store(index.wrapping_add(1), Ordering::Release);
                            return Some(Claim { index });
                        }
                    }
                    // The slot still has its message of the previous lap: the ring is full.
                    (BEHIND, CLAIMED | FILLED) => return None,
                    // Claimed, filled or already freed in this lap, or set aside.
                    _ => {}
                }
            }
            if hint.load(Ordering::Acquire) == start {
                return None;
            }
            // Other senders claimed slots meanwhile: search again.
        }
        None
    }

    /// Fills a claimed slot. Returns false if the receiver set the slot aside meanwhile; the
    /// message must then be sent again.
    pub(crate) fn fill(&self, claim: &Claim, label: Label, header: u64, payload: &[u8]) -> bool {
        let (line, lap) = (self.ring.slot(claim.index), self.ring.lap(claim.index));
        let number = u64::from(self.number) << 48;
        write_message(line, header, payload);
        let filled = low_half(lap, FILLED) | label.pack() | number;
        let claimed = low_half(lap, CLAIMED) | number;
        if line
            .word(0)
            .compare_exchange(claimed, filled, Ordering::Release, Ordering::Relaxed)
            .is_ok()
        {
            return true;
        }
        // The slot was set aside. Removing the sender's number tells the receiver that this sender
        // does not write to the slot any more; only the receiver changes it from now on.
        line.word(0).store(low_half(lap, SET_ASIDE), Ordering::Release);
        false
    }
}

#[cfg(all(test, not(loom)))]
impl FifoSender {
    /// Writes a word to an arbitrary slot or to the hint.
    pub(crate) fn scribble(&mut self, number: u64, step: u64) {
        match step % 16 {
            0 => self.head.line(0).store(0, number),
            // A hint that is wrong by a few slots.
            1 => self.head.line(0).store(0, self.head.line(0).load(0).wrapping_add(number % 8)),
            _ => self.ring.slot(number >> 32).store(0, number.rotate_left(16)),
        }
    }
}

/// The state of the slot at the head of the FIFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head {
    /// No message.
    Empty,
    /// A message of the sender with this number.
    Message(u16, Label),
    /// The sender with this number claimed the slot and has not filled it.
    Claimed(u16),
    /// A state that the protocol cannot produce.
    Corrupt,
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct FifoReceiver {
    ring: Ring,
    head: Lines,
    index: u64,
}

impl FifoReceiver {
    /// Creates the receiving end over zeroed lines. Returns `None` unless their count is [`lines`]
    /// of a power of two.
    pub(crate) fn new(lines: &Lines) -> Option<Self> {
        let (head, ring) = parts(lines)?;
        Some(Self { ring, head, index: 0 })
    }

    pub(crate) fn lines(&self) -> &Lines {
        self.ring.lines()
    }

    /// The slot of the next message.
    pub(crate) fn cursor(&self) -> Cursor {
        let filled = low_half(self.ring.lap(self.index), FILLED) as u32;
        Cursor { half: self.ring.half(2 * self.index), filled, remaining: 1 }
    }

    /// Reads the state of the head, after skipping slots that were set aside. `has_ended` returns
    /// true for a sender that will not write any more.
    pub(crate) fn peek(&mut self, has_ended: impl Fn(u16) -> bool) -> Head {
        for _ in 0..self.ring.slots() {
            let lap = self.ring.lap(self.index);
            let found = self.ring.slot(self.index).word(0).load(Ordering::Acquire);
            let state = found & STATE;
            if found & STATE_AND_LAP == low_half(lap, state) && state != SET_ASIDE {
                return match state {
                    FREE => Head::Empty,
                    CLAIMED => Head::Claimed(sender_of(found)),
                    _ => Head::Message(
                        sender_of(found),
                        Label { length: u16::from((found >> 40) as u8), ..Label::unpack(found) },
                    ),
                };
            }
            if state != SET_ASIDE {
                return Head::Corrupt;
            }
            // A resumed sender clears its number in a slot that was set aside.
            let sender = sender_of(found);
            if sender == 0 || has_ended(sender) {
                self.advance();
            } else {
                self.index += 1;
            }
        }
        Head::Empty
    }

    /// Repairs the senders' hint if it is wrong: a sender that was stopped for long may have stored
    /// an old value, and a misbehaving one any value. Returns true if the hint was ahead of a free
    /// slot, which the protocol cannot produce.
    pub(crate) fn repair_hint(&self) -> bool {
        let hint = self.head.line(0).word(0);
        let ahead = hint.load(Ordering::Acquire).wrapping_sub(self.index) as i64;
        let slots = self.ring.slots() as i64;
        let free = low_half(self.ring.lap(self.index), FREE);
        let is_free =
            self.ring.slot(self.index).word(0).load(Ordering::Acquire) & STATE_AND_LAP == free;
        let broken = ahead > slots || (ahead > 0 && is_free);
        if broken || ahead < -slots {
            hint.store(self.index, Ordering::Release);
        }
        broken
    }

    /// Copies the message at the head.
    pub(crate) fn read(&self, length: u16, into: &mut [u64; MESSAGE_WORDS]) {
        read_message(self.ring.slot(self.index), length.into(), into);
    }

    /// Frees the slot at the head and moves to the next one.
    pub(crate) fn advance(&mut self) {
        let free = low_half(self.ring.lap(self.index) + 1, FREE);
        self.ring.slot(self.index).word(0).store(free, Ordering::Release);
        self.index += 1;
    }

    /// Sets aside the claimed slot at the head and moves to the next one. Returns false if the
    /// sender filled the slot in the meantime.
    pub(crate) fn set_aside(&mut self, sender: u16) -> bool {
        let lap = self.ring.lap(self.index);
        let number = u64::from(sender) << 48;
        let word = self.ring.slot(self.index).word(0);
        let claimed = low_half(lap, CLAIMED) | number;
        let aside = low_half(lap, SET_ASIDE) | number;
        if word.compare_exchange(claimed, aside, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return false;
        }
        self.index += 1;
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn ring(slots: usize) -> Lines {
        Lines::private(lines(slots))
    }

    fn label(tag: u8) -> Label {
        Label { tag, length: 8 }
    }

    fn take(receiver: &mut FifoReceiver, has_ended: impl Fn(u16) -> bool) -> Option<(u16, u64)> {
        let Head::Message(sender, label) = receiver.peek(has_ended) else { return None };
        let mut message = [0; MESSAGE_WORDS];
        receiver.read(label.length, &mut message);
        receiver.advance();
        Some((sender, message[0]))
    }

    proptest! {
        /// Three senders and the receiver, in any order and over many laps, behave like a queue.
        #[test]
        fn equals_a_queue(steps in proptest::collection::vec(0u16..6, 1..400)) {
            let lines = ring(8);
            let mut senders: Vec<_> = (1..=3).map(|number| FifoSender::new(&lines, number).unwrap()).collect();
            let mut receiver = FifoReceiver::new(&lines).unwrap();
            let mut oracle = VecDeque::new();
            for (step, header) in steps.into_iter().zip(0u64..) {
                if let Some(sender) = senders.get_mut(usize::from(step)) {
                    let sent = sender.send(label(1), header, &header.to_ne_bytes());
                    prop_assert_eq!(sent, oracle.len() < 8);
                    if sent {
                        oracle.push_back((step + 1, header));
                    }
                } else {
                    prop_assert_eq!(take(&mut receiver, |_| false), oracle.pop_front());
                }
            }
        }

        /// Both ends terminate for any contents of the ring.
        #[test]
        fn any_words_are_handled(words in proptest::collection::vec(any::<u64>(), 9)) {
            let lines = ring(8);
            for (at, word) in words.iter().enumerate() {
                lines.line(at).store(0, *word);
            }
            let mut sender = FifoSender::new(&lines, 1).unwrap();
            for _ in 0..20 {
                let _ = sender.send(label(1), 0, &[]);
            }
            let mut receiver = FifoReceiver::new(&lines).unwrap();
            for _ in 0..40 {
                match receiver.peek(|_| true) {
                    Head::Empty => break,
                    Head::Message(..) | Head::Claimed(_) | Head::Corrupt => receiver.advance(),
                }
            }
        }
    }

    #[test]
    fn a_slot_of_an_ended_sender_is_skipped_and_one_of_a_stopped_sender_is_set_aside() {
        let lines = ring(4);
        let [mut dead, mut stopped, mut live] =
            [1, 2, 3].map(|number| FifoSender::new(&lines, number).unwrap());
        let mut receiver = FifoReceiver::new(&lines).unwrap();
        dead.claim().unwrap();
        let claim = stopped.claim().unwrap();
        assert!(live.send(label(7), 77, &[]));
        assert_eq!(receiver.peek(|_| false), Head::Claimed(1));
        receiver.advance();
        assert_eq!(receiver.peek(|_| false), Head::Claimed(2));
        assert!(receiver.set_aside(2));
        assert_eq!(take(&mut receiver, |_| false), Some((3, 77)));
        // The other senders use the rest of the ring for many laps.
        for header in 0..50 {
            assert!(live.send(label(1), header, &[]));
            assert_eq!(take(&mut receiver, |_| false), Some((3, header)));
        }
        // The stopped sender resumes, finds its slot set aside and sends again; the slot is reused.
        assert!(!stopped.fill(&claim, label(1), 5, &[]));
        assert!(stopped.send(label(1), 6, &[]));
        assert_eq!(take(&mut receiver, |_| false), Some((2, 6)));
        let mut room = 0;
        for header in 0..8 {
            while live.send(label(1), header, &[]) {
                room += 1;
            }
            while take(&mut receiver, |_| false).is_some() {}
        }
        assert!(room > 24, "{room}");
    }

    #[test]
    fn every_message_of_eight_senders_arrives_once() {
        const EACH: u64 = 20_000;
        let lines = ring(64);
        std::thread::scope(|scope| {
            for number in 1..=8 {
                let lines = &lines;
                scope.spawn(move || {
                    let mut sender = FifoSender::new(lines, number).unwrap();
                    for header in 0..EACH {
                        while !sender.send(label(1), header, &header.to_ne_bytes()) {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut receiver = FifoReceiver::new(&lines).unwrap();
            let mut next = [0; 8];
            let mut taken = 0;
            while taken < 8 * EACH {
                let Some((sender, header)) = take(&mut receiver, |_| false) else {
                    std::thread::yield_now();
                    continue;
                };
                let due = &mut next[usize::from(sender) - 1];
                assert_eq!(header, *due, "header of sender {sender}");
                *due += 1;
                taken += 1;
            }
        });
    }
}
