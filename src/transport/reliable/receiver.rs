//! The receiving end: delivers each message once, in order.

use super::{Acknowledged, Sequence, WINDOW};

/// Messages without acknowledgement after which one is sent unrequested.
const OWED: u32 = WINDOW / 4;

/// The outcome of a packet.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum Accepted<R> {
    /// It is the next message; [`Receiver::next_held`] may have more.
    Next(R),
    /// It came too early and is held.
    Held,
    /// It is a duplicate, or too far ahead.
    Refused(R),
}

/// The receiving half of a connection.
#[derive(Debug)]
pub(in super::super) struct Receiver<R> {
    expected: Sequence,
    /// Messages that came too early, at their numbers modulo [`WINDOW`].
    held: Box<[Option<R>]>,
    /// Bit `i`: the message `i` behind the expected one is held.
    beyond: u64,
    /// Messages received since the last acknowledgement.
    owed: u32,
    urgent: bool,
}

impl<R> Receiver<R> {
    pub(in super::super) fn new() -> Self {
        Self { expected: Sequence(0), held: Box::default(), beyond: 0, owed: 0, urgent: false }
    }

    /// Returns the number of the next message.
    pub(in super::super) fn expected(&self) -> Sequence {
        self.expected
    }

    /// Accepts a message. One that came too early is refused unless there is `room` to hold it, so
    /// that the next one finds a buffer.
    #[inline]
    pub(in super::super) fn accept(
        &mut self,
        sequence: Sequence,
        packet: R,
        ask: bool,
        room: impl FnOnce() -> bool,
    ) -> Accepted<R> {
        self.urgent |= ask;
        self.owed += 1;
        let ahead = sequence.since(self.expected);
        if ahead == 0 {
            self.advance();
            return Accepted::Next(packet);
        }
        // There is a gap, or the sender missed an acknowledgement: acknowledge at once.
        self.urgent = true;
        if ahead >= WINDOW || self.beyond >> ahead & 1 == 1 || !room() {
            return Accepted::Refused(packet);
        }
        if self.held.is_empty() {
            self.held = (0..WINDOW).map(|_| None).collect();
        }
        self.beyond |= 1 << ahead;
        if let Some(place) = self.held.get_mut((sequence.0 % WINDOW) as usize) {
            *place = Some(packet);
        }
        Accepted::Held
    }

    /// Returns the next message, if it is held.
    pub(in super::super) fn next_held(&mut self) -> Option<R> {
        if self.beyond & 1 == 0 {
            return None;
        }
        let packet = self.held.get_mut((self.expected.0 % WINDOW) as usize)?.take();
        self.advance();
        packet
    }

    fn advance(&mut self) {
        self.expected = self.expected.plus(1);
        self.beyond >>= 1;
    }

    /// Returns whether an acknowledgement is due at some time.
    pub(in super::super) fn owes(&self) -> bool {
        self.owed > 0
    }

    /// Returns whether an acknowledgement is due now.
    pub(in super::super) fn owes_now(&self) -> bool {
        self.urgent || self.owed >= OWED
    }

    /// Records that a message to the sender carried the acknowledgement.
    pub(in super::super) fn told(&mut self) {
        if !self.urgent {
            self.owed = 0;
        }
    }

    /// Returns the acknowledgement, to be sent now.
    pub(in super::super) fn acknowledge(&mut self) -> Acknowledged {
        (self.owed, self.urgent) = (0, false);
        Acknowledged { expected: self.expected, beyond: self.beyond >> 1 }
    }

    /// Drops the held messages; the sender still has them.
    pub(in super::super) fn drain(&mut self) -> impl Iterator<Item = R> {
        self.beyond = 0;
        self.held.iter_mut().filter_map(Option::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_holds_what_is_behind_it_and_is_told() {
        let mut receiver = Receiver::new();
        assert_eq!(receiver.accept(Sequence(0), 'a', false, || true), Accepted::Next('a'));
        assert!(receiver.owes() && !receiver.owes_now());
        assert_eq!(receiver.accept(Sequence(2), 'c', false, || true), Accepted::Held);
        assert_eq!(receiver.accept(Sequence(2), 'c', false, || true), Accepted::Refused('c'));
        assert_eq!(receiver.accept(Sequence(0), 'a', false, || true), Accepted::Refused('a'));
        assert_eq!(
            receiver.accept(Sequence(1 + WINDOW), 'x', false, || true),
            Accepted::Refused('x')
        );
        assert_eq!(
            receiver.accept(Sequence(3), 'd', false, || false),
            Accepted::Refused('d'),
            "no room for it"
        );
        assert_eq!(receiver.next_held(), None);
        assert!(receiver.owes_now());
        assert_eq!(receiver.acknowledge(), Acknowledged { expected: Sequence(1), beyond: 1 });
        assert_eq!(receiver.accept(Sequence(1), 'b', false, || true), Accepted::Next('b'));
        assert_eq!((receiver.next_held(), receiver.next_held()), (Some('c'), None));
        assert_eq!(receiver.accept(Sequence(3 + WINDOW - 1), 'z', false, || true), Accepted::Held);
        assert_eq!(receiver.acknowledge(), Acknowledged { expected: Sequence(3), beyond: 1 << 62 });
        assert_eq!(receiver.drain().collect::<Vec<_>>(), ['z']);
    }
}
