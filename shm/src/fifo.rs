//! The FIFO: a ring from whoever comes to one receiver.
//!
//! Line 0 holds the senders' guess at the first free slot; the rest are slots, laid out as a lane's but for word 0: bits 0..2 are the
//! state, 2..32 the lap, 32..40 the tag, 40..48 the length, 48..64 the sender's number. A slot goes from free (of this lap) to claimed
//! to filled to free (of the next lap). Who claims a slot says so in the slot itself, in the same compare-and-swap, so that the
//! receiver always knows whom it waits for: a slot whose sender died is emptied, one whose sender is stopped is set aside, and the
//! messages behind it go on.

use crate::atomic::Ordering;
use crate::hot::Cursor;
use crate::lane::{Label, MESSAGE_WORDS, read_message, write_message};
use crate::line::{Lines, Ring};

const FREE: u64 = 0;
const CLAIMED: u64 = 1;
const FILLED: u64 = 2;
/// Set aside by the receiver while its sender is stopped: both sides step over it.
const ASIDE: u64 = 3;
const STATE: u64 = 3;
/// State and lap.
const PLACE: u64 = 0xffff_ffff;
const LAPS: u64 = 1 << 30;
/// A lap behind, modulo laps.
const BEHIND: u64 = LAPS - 1;
const HEAD: usize = 1;
/// How often a sender goes round before it says that the ring is full.
const ROUNDS: usize = 8;

/// Lines that a FIFO with so many slots needs.
pub(crate) const fn lines(slots: usize) -> usize {
    HEAD + slots
}

fn parts(lines: &Lines) -> Option<(Lines, Ring)> {
    let slots = lines.count().checked_sub(HEAD)?;
    Some((lines.part(0, HEAD)?, Ring::new(lines.part(HEAD, slots)?)?))
}

/// The low half of word 0.
fn place(lap: u64, state: u64) -> u64 {
    (lap % LAPS) << 2 | state
}

fn sender_of(word: u64) -> u16 {
    (word >> 48) as u16
}

/// A sending end; there may be many.
#[derive(Debug)]
pub(crate) struct FifoSender {
    ring: Ring,
    head: Lines,
    number: u16,
}

/// A slot that was claimed and is to be filled.
#[derive(Debug)]
pub(crate) struct Claim {
    index: u64,
}

impl FifoSender {
    /// Over the receiver's lines, as the sender of this number.
    pub(crate) fn new(lines: &Lines, number: u16) -> Option<Self> {
        let (head, ring) = parts(lines)?;
        Some(Self { ring, head, number })
    }

    /// Sends a message of at most [`INLINE`](crate::lane::INLINE) bytes of payload. False if the ring is full.
    pub(crate) fn send(&mut self, label: Label, header: u64, payload: &[u8]) -> bool {
        while let Some(claim) = self.claim() {
            if self.fill(&claim, label, header, payload) {
                return true;
            }
        }
        false
    }

    /// Takes the first free slot; `None` if there is none. Whatever is in the ring: who broke it is the receiver's to find out.
    pub(crate) fn claim(&mut self) -> Option<Claim> {
        let guess = self.head.line(0).word(0);
        for _ in 0..ROUNDS {
            let start = guess.load(Ordering::Acquire);
            // The guess is at most a little behind, and never ahead of a free slot.
            for step in 0..self.ring.slots() {
                let index = start.wrapping_add(step);
                let lap = self.ring.lap(index);
                let word = self.ring.slot(index).word(0);
                let found = word.load(Ordering::Acquire);
                let ahead = ((found & PLACE) >> 2).wrapping_sub(lap % LAPS) % LAPS;
                match (ahead, found & STATE) {
                    (0, FREE) => {
                        let claimed = place(lap, CLAIMED) | u64::from(self.number) << 48;
                        if word.compare_exchange(found, claimed, Ordering::AcqRel, Ordering::Relaxed).is_ok()
                        {
                            guess.store(index.wrapping_add(1), Ordering::Release);
                            return Some(Claim { index });
                        }
                    }
                    // Of the lap before and not emptied.
                    (BEHIND, CLAIMED | FILLED) => return None,
                    // Of this lap and taken, or emptied already, or of no use for now.
                    _ => {}
                }
            }
            if guess.load(Ordering::Acquire) == start {
                return None;
            }
            // Others were quick.
        }
        None
    }

    /// Fills a claimed slot. False if the receiver set it aside meanwhile: the message must be sent anew.
    pub(crate) fn fill(&self, claim: &Claim, label: Label, header: u64, payload: &[u8]) -> bool {
        let (line, lap) = (self.ring.slot(claim.index), self.ring.lap(claim.index));
        let number = u64::from(self.number) << 48;
        write_message(line, header, payload);
        let filled = place(lap, FILLED) | label.pack() | number;
        let claimed = place(lap, CLAIMED) | number;
        if line.word(0).compare_exchange(claimed, filled, Ordering::Release, Ordering::Relaxed).is_ok() {
            return true;
        }
        // Set aside: tell the receiver that nobody writes here any more. It alone changes the slot after this.
        line.word(0).store(place(lap, ASIDE), Ordering::Release);
        false
    }
}

#[cfg(all(test, not(loom)))]
impl FifoSender {
    /// Writes a word somewhere into the slots, or into the guess.
    pub(crate) fn scribble(&mut self, number: u64, step: u64) {
        match step % 16 {
            0 => self.head.line(0).store(0, number),
            // A little off.
            1 => self.head.line(0).store(0, self.head.line(0).load(0).wrapping_add(number % 8)),
            _ => self.ring.slot(number >> 32).store(0, number.rotate_left(16)),
        }
    }
}

/// What is at the head of the FIFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head {
    /// Nothing.
    Empty,
    /// A message of this sender.
    Message(u16, Label),
    /// A slot that this sender claimed and has not filled.
    Claimed(u16),
    /// A slot that no protocol leaves behind.
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
    /// Over zeroed lines; `None` if they are not [`lines`] of a power of two.
    pub(crate) fn new(lines: &Lines) -> Option<Self> {
        let (head, ring) = parts(lines)?;
        Some(Self { ring, head, index: 0 })
    }

    pub(crate) fn lines(&self) -> &Lines {
        self.ring.lines()
    }

    /// The slot of the next message.
    pub(crate) fn cursor(&self) -> Cursor<'_> {
        let filled = place(self.ring.lap(self.index), FILLED) as u32;
        Cursor { line: self.ring.slot(self.index), filled, left: 1 }
    }

    /// Looks at the head. `is_gone` tells whether a sender will not write any more.
    pub(crate) fn peek(&mut self, is_gone: impl Fn(u16) -> bool) -> Head {
        for _ in 0..self.ring.slots() {
            let lap = self.ring.lap(self.index);
            let found = self.ring.slot(self.index).word(0).load(Ordering::Acquire);
            let state = found & STATE;
            if found & PLACE == place(lap, state) && state != ASIDE {
                return match state {
                    FREE => Head::Empty,
                    CLAIMED => Head::Claimed(sender_of(found)),
                    _ => Head::Message(
                        sender_of(found),
                        Label { length: u16::from((found >> 40) as u8), ..Label::unpack(found) },
                    ),
                };
            }
            if state != ASIDE {
                return Head::Corrupt;
            }
            // The sender's number is wiped when it comes back.
            let sender = sender_of(found);
            if sender == 0 || is_gone(sender) {
                self.advance();
            } else {
                self.index += 1;
            }
        }
        Head::Empty
    }

    /// Puts the senders' guess right, should it be wrong: one who was stopped for long left it behind, or someone broke it. True for that: no
    /// protocol has it ahead of what is free.
    pub(crate) fn mend(&self) -> bool {
        let guess = self.head.line(0).word(0);
        let ahead = guess.load(Ordering::Acquire).wrapping_sub(self.index) as i64;
        let slots = self.ring.slots() as i64;
        let free = place(self.ring.lap(self.index), FREE);
        let is_free = self.ring.slot(self.index).word(0).load(Ordering::Acquire) & PLACE == free;
        let broken = ahead > slots || (ahead > 0 && is_free);
        if broken || ahead < -slots {
            guess.store(self.index, Ordering::Release);
        }
        broken
    }

    /// Copies the message at the head.
    pub(crate) fn read(&self, length: u16, into: &mut [u64; MESSAGE_WORDS]) {
        read_message(self.ring.slot(self.index), length.into(), into);
    }

    /// Empties the slot at the head.
    pub(crate) fn advance(&mut self) {
        let free = place(self.ring.lap(self.index) + 1, FREE);
        self.ring.slot(self.index).word(0).store(free, Ordering::Release);
        self.index += 1;
    }

    /// Steps over the claimed slot at the head. True if its sender did not fill it in the meantime.
    pub(crate) fn set_aside(&mut self, sender: u16) -> bool {
        let lap = self.ring.lap(self.index);
        let number = u64::from(sender) << 48;
        let word = self.ring.slot(self.index).word(0);
        let claimed = place(lap, CLAIMED) | number;
        let aside = place(lap, ASIDE) | number;
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

    fn take(receiver: &mut FifoReceiver, is_gone: impl Fn(u16) -> bool) -> Option<(u16, u64)> {
        let Head::Message(sender, label) = receiver.peek(is_gone) else { return None };
        let mut message = [0; MESSAGE_WORDS];
        receiver.read(label.length, &mut message);
        receiver.advance();
        Some((sender, message[0]))
    }

    proptest! {
        /// Sends of three senders and takes in any order give what a queue gives, over many laps.
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

        /// Whatever is written into the ring, both ends answer.
        #[test]
        fn any_words_are_answered(words in proptest::collection::vec(any::<u64>(), 9)) {
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
    fn a_slot_of_a_dead_sender_is_passed_and_one_of_a_stopped_sender_is_set_aside() {
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
        // The others go on for many laps over what is left of the ring.
        for header in 0..50 {
            assert!(live.send(label(1), header, &[]));
            assert_eq!(take(&mut receiver, |_| false), Some((3, header)));
        }
        // The stopped one wakes up, is told, and sends anew; its slot is used again.
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
    fn eight_senders_lose_and_double_nothing() {
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
                assert_eq!(header, *due, "of sender {sender}");
                *due += 1;
                taken += 1;
            }
        });
    }
}
