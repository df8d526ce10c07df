//! The receiving end: delivers each message once, in order.

use std::cell::{Cell, RefCell};

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
    expected: Cell<Sequence>,
    /// Messages received since the last acknowledgement.
    owed: Cell<u32>,
    urgent: Cell<bool>,
    /// Bit `i`: the message `i` behind the expected one is held.
    beyond: Cell<u64>,
    /// Messages that came too early, at their numbers modulo [`WINDOW`].
    held: RefCell<Box<[Option<R>]>>,
}

impl<R> Receiver<R> {
    pub(in super::super) fn new() -> Self {
        Self {
            expected: Cell::default(),
            owed: Cell::default(),
            urgent: Cell::default(),
            beyond: Cell::default(),
            held: RefCell::default(),
        }
    }

    /// Returns the number of the next message.
    pub(in super::super) fn expected(&self) -> Sequence {
        self.expected.get()
    }

    /// Returns whether messages that came too early are held.
    pub(in super::super) fn holds_any(&self) -> bool {
        self.beyond.get() != 0
    }

    /// Accepts a message that is the next one, while none is held; there is no effect otherwise.
    /// Returns whether [`Self::owes`] changed, or [`Self::owes_now`] may have.
    #[inline(always)]
    pub(in super::super) fn accept_next(&self, sequence: Sequence) -> Option<bool> {
        debug_assert!(!self.holds_any());
        if sequence != self.expected.get() {
            return None;
        }
        self.expected.set(sequence.plus(1));
        let owed = self.owed.get();
        self.owed.set(owed.wrapping_add(1));
        // True for 0 and from `OWED - 1` on.
        Some(owed.wrapping_sub(1) >= OWED - 2)
    }

    /// Accepts a message. One that came too early is refused unless there is `room` to hold it, so
    /// that the next one finds a buffer.
    pub(in super::super) fn accept(
        &self,
        sequence: Sequence,
        packet: R,
        ask: bool,
        room: impl FnOnce() -> bool,
    ) -> Accepted<R> {
        self.urgent.set(self.urgent.get() | ask);
        self.owed.set(self.owed.get().wrapping_add(1));
        let (ahead, beyond) = (sequence.since(self.expected.get()), self.beyond.get());
        if ahead == 0 {
            self.advance();
            return Accepted::Next(packet);
        }
        // There is a gap, or the sender missed an acknowledgement: acknowledge at once.
        self.urgent.set(true);
        if ahead >= WINDOW || beyond >> ahead & 1 == 1 || !room() {
            return Accepted::Refused(packet);
        }
        let mut held = self.held.borrow_mut();
        if held.is_empty() {
            *held = (0..WINDOW).map(|_| None).collect();
        }
        self.beyond.set(beyond | 1 << ahead);
        if let Some(place) = held.get_mut((sequence.0 % WINDOW) as usize) {
            *place = Some(packet);
        }
        Accepted::Held
    }

    /// Returns the next message, if it is held.
    pub(in super::super) fn next_held(&self) -> Option<R> {
        if self.beyond.get() & 1 == 0 {
            return None;
        }
        let place = (self.expected.get().0 % WINDOW) as usize;
        let packet = self.held.borrow_mut().get_mut(place)?.take();
        self.advance();
        packet
    }

    fn advance(&self) {
        self.expected.set(self.expected.get().plus(1));
        self.beyond.set(self.beyond.get() >> 1);
    }

    /// Returns whether an acknowledgement is due at some time.
    pub(in super::super) fn owes(&self) -> bool {
        self.owed.get() > 0
    }

    /// Returns whether an acknowledgement is due now.
    pub(in super::super) fn owes_now(&self) -> bool {
        self.urgent.get() || self.owed.get() >= OWED
    }

    /// Records that a message to the sender carried the acknowledgement.
    #[inline(always)]
    pub(in super::super) fn told(&self) {
        if !self.urgent.get() {
            self.owed.set(0);
        }
    }

    /// Returns the acknowledgement, to be sent now.
    pub(in super::super) fn acknowledge(&self) -> Acknowledged {
        self.owed.set(0);
        self.urgent.set(false);
        Acknowledged { expected: self.expected.get(), beyond: self.beyond.get() >> 1 }
    }

    /// Drops the held messages; the sender still has them.
    pub(in super::super) fn drain(&self) -> impl Iterator<Item = R> {
        self.beyond.set(0);
        self.held.take().into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_holds_what_is_behind_it_and_is_told() {
        let receiver = Receiver::new();
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
