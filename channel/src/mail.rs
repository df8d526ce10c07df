//! Control messages over the rails.
//!
//! The network of the control connection may be cut although rails are left. After the handshake,
//! every control message therefore goes two ways: over the control connection, and as a letter that
//! is written over a rail that works. The peer counts the messages of both ways, and takes each
//! once, in order, from the way by which it comes first.
//!
//! Each end has one letter, in the memory of the lines and records, and writes it to the same
//! memory of the peer. Its words are little-endian:
//!
//! | word | contents |
//! |---|---|
//! | 0 | a sum over the others: a letter that is being written is not read |
//! | 1 | number of the message, from 1 |
//! | 2 | how many messages of the peer this end has taken |
//! | 3 | 0, or from an end that is closed 1 more than the `done` of its CLOSE |
//! | 4 | bytes of the frame, 0 if there is no message |
//! | 5 | the frame |
//!
//! The message is the oldest that the peer has not taken. The letter is written again when it
//! changes, after a rail has failed, and as long as the peer has not taken the message.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use barewire_tcp::time::after;

use crate::handshake::message::{Malformed, Message, first_frame};
use crate::queues::Queues;
use crate::ring::{Lines, RemoteLines};

/// Words of a letter.
pub(crate) const WORDS: usize = 64;
/// Words before the frame.
pub(crate) const HEAD: usize = 5;
/// Bytes of the longest frame: those of rails are shorter.
const MOST: usize = (WORDS - HEAD) * size_of::<u64>();
/// Messages that are kept for the peer. Rails fail and return less often while it is there.
pub(crate) const MOST_FRAMES: usize = 4096;
/// Until a message that the peer has not taken is written again, over another rail if there is one.
const AGAIN: Duration = Duration::from_millis(100);
/// The same for a letter that only shows whether the peer is there.
const PROBE: Duration = Duration::from_secs(1);

/// A letter.
pub(crate) type Letter = [u64; WORDS];

/// What goes to the peer and comes from it.
#[derive(Debug)]
pub(crate) struct Mail {
    /// The frames that the peer has not taken, the oldest first.
    frames: VecDeque<Vec<u8>>,
    /// How many the peer has taken.
    given: u64,
    /// How many of the peer were taken.
    taken: u64,
    /// Word 3 of the letter.
    closed: u64,
    /// The letter differs from the last one that was written, or that may be lost.
    is_due: bool,
    /// When it is due in any case, if it has a message or shows whether the peer is there.
    next: Instant,
    /// Counts the letters, which go over the rails in turn.
    turn: usize,
    /// The place of the rail that carries the last one, and its WQE there.
    carrier: Option<(usize, u16)>,
}

/// What a letter says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    Message(Message),
    Closed { done: u64 },
}

fn sum(words: &[u64]) -> u64 {
    words.iter().fold(WORDS as u64, |sum, word| {
        (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

impl Mail {
    pub(crate) fn new() -> Self {
        Self {
            frames: VecDeque::new(),
            given: 0,
            taken: 0,
            closed: 0,
            is_due: false,
            next: Instant::now(),
            turn: 0,
            carrier: None,
        }
    }

    /// Returns whether the peer has taken no message for so long that no more are kept for it.
    pub(crate) fn is_full(&self) -> bool {
        self.frames.len() >= MOST_FRAMES
    }

    /// Has a message written.
    pub(crate) fn push(&mut self, frame: Vec<u8>) {
        debug_assert!(frame.len() <= MOST);
        self.frames.push_back(frame);
        self.is_due = true;
    }

    /// Has the peer learn that this end is closed.
    pub(crate) fn close(&mut self, done: u64) {
        (self.closed, self.is_due) = (done.saturating_add(1), true);
    }

    /// The letter may be lost, with its rail, or overwritten by an earlier one.
    pub(crate) fn repeat(&mut self) {
        self.is_due |= self.given > 0 || self.taken > 0 || !self.frames.is_empty();
    }

    /// The message of this number came over the control connection. Returns whether it is new.
    pub(crate) fn take(&mut self, number: u64) -> bool {
        let is_new = number > self.taken;
        if is_new {
            (self.taken, self.is_due) = (number, true);
        }
        is_new
    }

    /// Returns whether a letter with this head says something new, if it is whole.
    pub(crate) fn is_news(&self, [_, number, taken, closed, length]: &[u64; HEAD]) -> bool {
        *taken > self.given || *closed > 0 || (*length > 0 && *number > self.taken)
    }

    /// Reads the letter of the peer.
    pub(crate) fn read(&mut self, letter: &Letter) -> Result<Option<News>, Malformed> {
        let [found, number, taken, closed, length, frame @ ..] = letter;
        if *found != sum(letter.get(1..).unwrap_or_default()) {
            return Ok(None);
        }
        // An earlier letter, or one of a peer that counts wrongly, changes nothing.
        while self.given < *taken && self.frames.pop_front().is_some() {
            self.given = self.given.saturating_add(1);
            self.is_due = true;
        }
        if let Some(done) = closed.checked_sub(1) {
            return Ok(Some(News::Closed { done }));
        }
        if *length == 0 || *number != self.taken.saturating_add(1) {
            return Ok(None);
        }
        let bytes: Vec<u8> = frame.iter().flat_map(|word| word.to_le_bytes()).collect();
        let bytes = usize::try_from(*length).ok().and_then(|length| bytes.get(..length));
        let Some((message, _)) = first_frame(bytes.ok_or(Malformed::Size)?)? else {
            return Err(Malformed::Size);
        };
        (self.taken, self.is_due) = (*number, true);
        Ok(Some(News::Message(message)))
    }

    fn letter(&self) -> Letter {
        let mut letter = [0; WORDS];
        let (head, words) = letter.split_at_mut(HEAD);
        let frame = self.frames.front().map_or(&[][..], Vec::as_slice);
        for (word, bytes) in words.iter_mut().zip(frame.chunks(size_of::<u64>())) {
            let mut whole = [0; size_of::<u64>()];
            whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            *word = u64::from_le_bytes(whole);
        }
        let number = self.given.saturating_add(1);
        head.copy_from_slice(&[0, number, self.taken, self.closed, frame.len() as u64]);
        letter[0] = sum(letter.get(1..).unwrap_or_default());
        letter
    }

    /// Writes the letter if it is due. If `alone`, it also shows now and then whether the peer is
    /// there.
    #[cold]
    pub(crate) fn post(
        &mut self,
        queues: &mut [Queues],
        (lines, peer): (&Lines, &RemoteLines),
        alone: bool,
        now: Instant,
    ) {
        let repeats = alone || !self.frames.is_empty();
        if !(self.is_due || repeats && now >= self.next) {
            return;
        }
        let Some(at) = self.turn.checked_rem(queues.len()) else { return };
        let Some(queues) = queues.get_mut(at).filter(|queues| queues.has_room(1)) else { return };
        lines.store_letter(&self.letter());
        let (from, to) = (lines.letter(queues.rail()), peer.letter(queues.place()));
        if let Some(wqe) = queues.write_letter(from, to) {
            self.carrier = Some((queues.place(), wqe));
            self.is_due = false;
            self.turn = self.turn.wrapping_add(1);
            self.next = after(now, if self.frames.is_empty() { PROBE } else { AGAIN });
        }
    }

    /// Returns whether the peer's memory has the letter.
    pub(crate) fn is_delivered(&self, queues: &[Queues]) -> bool {
        let Some((place, wqe)) = self.carrier.filter(|_| !self.is_due) else { return false };
        queues.iter().any(|queues| queues.place() == place && queues.has_acknowledged(wqe))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::message::Epoch;

    fn message(epoch: u32) -> Message {
        Message::Use { at: Epoch { place: 1, epoch } }
    }

    #[test]
    fn each_message_is_taken_once_and_in_order_by_either_way() {
        let (mut here, mut there) = (Mail::new(), Mail::new());
        for epoch in 0..3 {
            here.push(message(epoch).to_frame());
        }
        let first = here.letter();
        assert_eq!(there.read(&first).unwrap(), Some(News::Message(message(0))));
        assert_eq!(there.read(&first).unwrap(), None, "it was taken");
        // The first two come over the control connection as well.
        assert!(!there.take(1) && there.take(2));
        assert_eq!(here.read(&there.letter()).unwrap(), None);
        let last = here.letter();
        assert_eq!(there.read(&last).unwrap(), Some(News::Message(message(2))));
        // A late letter takes nothing back.
        assert_eq!(there.read(&first).unwrap(), None);
        here.read(&there.letter()).unwrap();
        assert!(here.frames.is_empty());
        assert_eq!(there.read(&here.letter()).unwrap(), None, "nothing waits");
        let is_news = |mail: &Mail, letter: Letter| mail.is_news(letter.first_chunk().unwrap());
        assert!(!is_news(&there, here.letter()) && !is_news(&here, there.letter()));
        assert!(is_news(&Mail::new(), last) && !is_news(&there, last));
    }

    #[test]
    fn a_closed_end_is_noticed_although_messages_wait() {
        let (mut here, mut there) = (Mail::new(), Mail::new());
        here.push(message(0).to_frame());
        here.close(7);
        assert!(there.is_news(here.letter().first_chunk().unwrap()));
        assert_eq!(there.read(&here.letter()).unwrap(), Some(News::Closed { done: 7 }));
    }

    #[test]
    fn letters_that_are_not_whole_are_not_read_and_wrong_ones_are_refused() {
        let (mut here, mut there) = (Mail::new(), Mail::new());
        assert_eq!(there.read(&[0; WORDS]).unwrap(), None);
        here.push(message(5).to_frame());
        let good = here.letter();
        for at in 0..HEAD + 2 {
            let mut other = good;
            other[at] ^= 1 << 9;
            assert_eq!(there.read(&other).unwrap(), None, "word {at}");
        }
        for (at, value) in [(4, u64::MAX), (4, 3), (HEAD, u64::MAX)] {
            let mut wrong = good;
            wrong[at] = value;
            wrong[0] = sum(&wrong[1..]);
            assert!(there.read(&wrong).is_err(), "word {at}");
        }
        let mut counts = good;
        (counts[2], counts[4]) = (u64::MAX, 0);
        counts[0] = sum(&counts[1..]);
        assert_eq!(there.read(&counts).unwrap(), None);
        assert_eq!(there.read(&good).unwrap(), Some(News::Message(message(5))));
    }
}
