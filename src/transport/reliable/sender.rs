//! The sending end: holds messages until they are acknowledged.

use std::hint::cold_path;

use super::congestion::Congestion;
use super::round_trip::RoundTrip;
use super::{Acknowledged, Sequence, Time, WINDOW};

/// Later messages that must have arrived before a missing one counts as lost.
const OVERTAKEN: u32 = 3;

/// Slots for the first messages.
const FEW: usize = 4;

/// The timeouts for a silent peer.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Patience {
    /// The longest wait for a response before the next try.
    pub(in super::super) between: Time,
    /// Time from the first try to giving up.
    pub(in super::super) whole: Time,
}

/// The result of a timer check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Overdue {
    /// Nothing to do.
    No,
    /// Messages must be sent again.
    Lost,
    /// The peer has not responded to `tries` tries.
    GivenUp { tries: u32 },
}

#[derive(Debug)]
struct Slot<S> {
    packet: S,
    /// It was sent more than once.
    again: bool,
}

/// The retransmission timer. Posts and acknowledgements do not read the clock: they only mark the
/// timer, and the next check starts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    /// Nothing is in flight, or the peer was given up.
    Off,
    /// It starts at the next check.
    Starting,
    /// It ends then.
    Until(Time),
}

/// The sending half of a connection.
#[derive(Debug)]
pub(in super::super) struct Sender<S> {
    /// Messages in flight, at their numbers modulo the length: a power of two, which grows up to
    /// [`WINDOW`].
    slots: Box<[Option<Slot<S>>]>,
    /// The first message that is held.
    first: Sequence,
    /// The first message that is not acknowledged: those before can be taken.
    unacknowledged: Sequence,
    next: Sequence,
    /// Bit `i`: the message `i` behind the first unacknowledged one arrived.
    arrived: u64,
    /// As `arrived`, for messages that count as lost.
    lost: u64,
    /// The first message that must not be sent now: [`Self::update_limit`] sets it.
    limit: Sequence,
    timer: Timer,
    /// The next message is a sample for the round-trip time: the first, and one after each check of
    /// the timer.
    samples: bool,
    /// The sample in flight, and when it was sent. Its retransmission discards it, because the
    /// acknowledgement may then be that of either packet (Karn).
    sample: Option<(Sequence, Time)>,
    /// Losses of messages before this one have reduced the window already.
    recovered: Sequence,
    congestion: Congestion,
    round_trip: RoundTrip,
    patience: Patience,
    /// Since when nothing was acknowledged, and the number of tries since.
    silent_since: Time,
    tries: u32,
    #[cfg(test)]
    resends: u64,
}

/// Returns a mask of the lowest `count` bits.
fn low(count: u32) -> u64 {
    if count >= u64::BITS { u64::MAX } else { (1 << count) - 1 }
}

impl<S> Sender<S> {
    pub(in super::super) fn new(patience: Patience) -> Self {
        let congestion = Congestion::new();
        Self {
            slots: Box::default(),
            first: Sequence(0),
            unacknowledged: Sequence(0),
            next: Sequence(0),
            arrived: 0,
            lost: 0,
            limit: Sequence(congestion.window().min(WINDOW)),
            timer: Timer::Off,
            samples: true,
            sample: None,
            recovered: Sequence(0),
            congestion,
            round_trip: RoundTrip::new(patience.between),
            patience,
            silent_since: 0,
            tries: 0,
            #[cfg(test)]
            resends: 0,
        }
    }

    /// Returns the number of messages that are not acknowledged.
    fn in_flight(&self) -> u32 {
        self.next.since(self.unacknowledged)
    }

    /// Returns how many of them are neither known to have arrived nor lost.
    fn on_the_way(&self) -> u32 {
        self.in_flight() - (self.arrived | self.lost).count_ones()
    }

    /// Returns whether another message may be sent.
    #[inline(always)]
    pub(in super::super) fn has_room(&self) -> bool {
        self.next != self.limit
    }

    /// Computes how many messages may be sent, so that [`Self::has_room`] is one comparison.
    fn update_limit(&mut self) {
        let held = WINDOW - self.next.since(self.first);
        let window = self.congestion.window().saturating_sub(self.on_the_way());
        self.limit = self.next.plus(if self.lost == 0 { held.min(window) } else { 0 });
    }

    /// Returns the acknowledgement that changes nothing; `None` while messages wait to be sent
    /// again.
    pub(in super::super) fn awaited(&self) -> Option<Sequence> {
        (self.lost == 0).then_some(self.unacknowledged)
    }

    /// Returns whether every message was acknowledged and taken.
    pub(in super::super) fn is_idle(&self) -> bool {
        self.first == self.next
    }

    /// Returns the number of the next message.
    pub(in super::super) fn next(&self) -> Sequence {
        self.next
    }

    /// Returns the number before which all messages are acknowledged and taken.
    pub(in super::super) fn first(&self) -> Sequence {
        self.first
    }

    /// Returns how many messages were sent again.
    #[cfg(test)]
    pub(in super::super) fn resends(&self) -> u64 {
        self.resends
    }

    /// Adds the next message, which is sent `now`. The caller has checked [`Self::has_room`].
    #[inline(always)]
    pub(in super::super) fn push(&mut self, packet: S, now: impl FnOnce() -> Time) {
        debug_assert!(self.next.since(self.first) < WINDOW);
        if self.next.since(self.first) as usize == self.slots.len() {
            self.grow();
        }
        if let Some(place) = self.slots.get_mut(self.place(self.next)) {
            *place = Some(Slot { packet, again: false });
        }
        if self.samples {
            cold_path();
            self.samples = false;
            self.sample = Some((self.next, now()));
        }
        if self.timer == Timer::Off {
            self.timer = Timer::Starting;
        }
        self.next = self.next.plus(1);
    }

    /// The index in `slots` of the message with this number.
    #[inline(always)]
    fn place(&self, number: Sequence) -> usize {
        number.0 as usize & self.slots.len().wrapping_sub(1)
    }

    /// Doubles the slots.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let length = (2 * self.slots.len()).clamp(FEW, WINDOW as usize);
        let mut larger: Box<[_]> = (0..length).map(|_| None).collect();
        for ahead in 0..self.next.since(self.first) {
            let number = self.first.plus(ahead);
            let place = self.place(number);
            if let (Some(from), Some(to)) =
                (self.slots.get_mut(place), larger.get_mut(number.0 as usize & (length - 1)))
            {
                *to = from.take();
            }
        }
        self.slots = larger;
    }

    /// Processes an acknowledgement, ignoring impossible values. [`Self::take_done`] then returns
    /// the acknowledged messages.
    pub(in super::super) fn acknowledged(
        &mut self,
        told: Acknowledged,
        now: impl FnOnce() -> Time,
    ) {
        let count = told.expected.since(self.unacknowledged);
        if count > self.in_flight() {
            return;
        }
        if count > 0 {
            if let Some((sample, sent)) = self.sample
                && sample.is_before(told.expected)
            {
                self.sample = None;
                self.round_trip.measured(now().saturating_sub(sent));
            }
            self.congestion.acknowledged(count);
            self.unacknowledged = told.expected;
            self.arrived = self.arrived.checked_shr(count).unwrap_or(0);
            self.lost = self.lost.checked_shr(count).unwrap_or(0);
            self.timer = if self.in_flight() == 0 { Timer::Off } else { Timer::Starting };
        }
        let beyond = told.beyond << 1 & low(self.in_flight());
        if beyond & !self.arrived != 0 {
            self.arrived |= beyond;
            self.lost &= !beyond;
            self.find_lost();
        }
        self.update_limit();
    }

    /// Marks messages as lost that enough later ones have overtaken.
    #[cold]
    fn find_lost(&mut self) {
        let mut newly_lost = false;
        for ahead in 0..self.in_flight() {
            let later = self.arrived & !low(ahead + 1);
            if later.count_ones() < OVERTAKEN {
                break;
            }
            let bit = 1 << ahead;
            let sequence = self.unacknowledged.plus(ahead);
            let slot = self.slots.get(self.place(sequence));
            // A message that was sent again counts as lost only after a timeout.
            if (self.arrived | self.lost) & bit == 0
                && matches!(slot, Some(Some(Slot { again: false, .. })))
            {
                self.lost |= bit;
                newly_lost |= !sequence.is_before(self.recovered);
            }
        }
        if newly_lost {
            self.congestion.lost();
            self.recovered = self.next;
        }
    }

    /// Removes and returns the first message if it is acknowledged.
    pub(in super::super) fn take_done(&mut self) -> Option<S> {
        if self.first == self.unacknowledged {
            return None;
        }
        self.take_first()
    }

    /// Removes and returns the first message, acknowledged or not, when the connection ends.
    pub(in super::super) fn take_first(&mut self) -> Option<S> {
        if self.first == self.next {
            return None;
        }
        let slot = self.slots.get_mut(self.place(self.first))?.take();
        if self.first == self.unacknowledged {
            self.unacknowledged = self.unacknowledged.plus(1);
            (self.arrived, self.lost, self.timer) = (0, 0, Timer::Off);
        }
        self.first = self.first.plus(1);
        self.update_limit();
        slot.map(|slot| slot.packet)
    }

    /// Returns the next message to send again now, with its number; [`Self::resent`] records that
    /// it was sent.
    pub(in super::super) fn next_lost(&mut self) -> Option<(Sequence, &mut S)> {
        if self.lost == 0 || self.on_the_way() >= self.congestion.window() {
            return None;
        }
        let sequence = self.unacknowledged.plus(self.lost.trailing_zeros());
        let slot = self.slots.get_mut(self.place(sequence))?.as_mut()?;
        Some((sequence, &mut slot.packet))
    }

    /// Records that the message of [`Self::next_lost`] was sent.
    pub(in super::super) fn resent(&mut self) {
        let sequence = self.unacknowledged.plus(self.lost.trailing_zeros());
        self.lost &= self.lost.wrapping_sub(1);
        if let Some(Some(slot)) = self.slots.get_mut(self.place(sequence)) {
            slot.again = true;
        }
        if self.sample.is_some_and(|(sample, _)| sample == sequence) {
            self.sample = None;
        }
        self.update_limit();
        #[cfg(test)]
        {
            self.resends += 1;
        }
    }

    /// Returns when to check the timer, which starts `now` if it has not started yet.
    pub(in super::super) fn due(&mut self, now: Time) -> Option<Time> {
        if self.timer == Timer::Starting {
            (self.silent_since, self.tries) = (now, 0);
            self.timer = Timer::Until(now + self.round_trip.timeout(0));
        }
        match self.timer {
            Timer::Until(deadline) => Some(deadline),
            _ => None,
        }
    }

    /// Checks the timer.
    pub(in super::super) fn look(&mut self, now: Time) -> Overdue {
        self.samples = self.sample.is_none();
        if self.due(now).is_none_or(|deadline| now < deadline) {
            return Overdue::No;
        }
        self.tries += 1;
        if now.saturating_sub(self.silent_since) >= self.patience.whole {
            self.timer = Timer::Off;
            return Overdue::GivenUp { tries: self.tries };
        }
        self.timer = Timer::Until(now + self.round_trip.timeout(self.tries));
        // A receiver without room may have dropped messages that it had acknowledged selectively
        // (RFC 2018, section 8).
        (self.arrived, self.lost) = (0, low(self.in_flight()));
        self.congestion.timed_out();
        self.recovered = self.next;
        self.sample = None;
        self.update_limit();
        Overdue::Lost
    }
}

#[cfg(test)]
mod tests {
    use super::super::TICK;
    use super::*;

    const PATIENCE: Patience = Patience { between: 100 * TICK, whole: 1000 * TICK };

    fn told(expected: u32, beyond: u64) -> Acknowledged {
        Acknowledged { expected: Sequence(expected), beyond }
    }

    fn sent(count: u32) -> Sender<u32> {
        let mut sender = Sender::new(PATIENCE);
        (0..count).for_each(|message| sender.push(message, || 0));
        sender
    }

    #[test]
    fn what_is_overtaken_is_sent_again_once() {
        let mut sender = sent(8);
        sender.acknowledged(told(2, 0b11), || TICK);
        assert_eq!(std::iter::from_fn(|| sender.take_done()).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(sender.next_lost(), None, "two are not enough");
        sender.acknowledged(told(2, 0b111), || TICK);
        assert_eq!(sender.next_lost(), Some((Sequence(2), &mut 2)));
        assert!(!sender.has_room(), "nothing new before what was lost");
        sender.resent();
        assert_eq!(sender.next_lost(), None);
        assert_eq!(sender.resends(), 1);
        sender.acknowledged(told(2, 0b1111), || TICK);
        assert_eq!(sender.next_lost(), None);
        sender.acknowledged(told(8, 0), || TICK);
        assert_eq!(std::iter::from_fn(|| sender.take_done()).count(), 6);
        assert!(sender.is_idle() && sender.look(u64::MAX) == Overdue::No);
    }

    #[test]
    fn what_cannot_be_is_ignored() {
        let mut sender = sent(4);
        for impossible in [told(5, 0), told(u32::MAX, u64::MAX), told(1 << 31, 1)] {
            sender.acknowledged(impossible, || TICK);
            assert_eq!(sender.take_done(), None);
        }
        sender.acknowledged(told(0, u64::MAX), || TICK);
        assert_eq!(sender.on_the_way(), 0, "beyond what was sent there is nothing");
    }

    #[test]
    fn silence_is_waited_out_longer_each_time_and_then_given_up() {
        let mut sender = sent(4);
        let (mut now, mut tries) = (0, 0);
        let given_up = loop {
            now += TICK;
            match sender.look(now) {
                Overdue::No => {}
                Overdue::Lost => {
                    tries += 1;
                    // One at a time, whatever else is lost.
                    assert_eq!(sender.next_lost(), Some((Sequence(0), &mut 0)));
                    sender.resent();
                    assert_eq!(sender.next_lost(), None);
                }
                Overdue::GivenUp { tries } => break tries,
            }
        };
        let in_time = PATIENCE.whole..=PATIENCE.whole + PATIENCE.between;
        assert!(in_time.contains(&now), "{now}");
        assert_eq!(given_up, tries + 1);
        assert!((10..14).contains(&given_up), "{given_up}");
        assert_eq!(std::iter::from_fn(|| sender.take_first()).count(), 4);
        assert!(sender.is_idle());
    }

    /// One message after each check of the timer is a sample, unless it is sent again.
    #[test]
    fn round_trips_are_sampled() {
        let mut sender = sent(1);
        sender.push(1, || unreachable!("it is no sample"));
        sender.acknowledged(told(1, 0), || 10 * TICK);
        assert_eq!(sender.round_trip.timeout(0), 30 * TICK, "the time and four times its half");
        assert_eq!((sender.look(20 * TICK), sender.due(20 * TICK)), (Overdue::No, Some(50 * TICK)));
        (2..6).for_each(|message| sender.push(message, || 20 * TICK));
        // Message 1 is lost, which does not affect the sample, message 2.
        sender.acknowledged(told(1, 0b111), || unreachable!("nothing new"));
        assert_eq!(sender.next_lost(), Some((Sequence(1), &mut 1)));
        sender.resent();
        assert_eq!(sender.sample, Some((Sequence(2), 20 * TICK)));
        assert_eq!(sender.look(60 * TICK), Overdue::Lost);
        assert_eq!(sender.sample, None, "it is sent again");
    }

    #[test]
    fn the_window_is_all_there_is() {
        let mut sender = Sender::new(PATIENCE);
        let mut message = 0;
        while sender.has_room() {
            sender.push(message, || 0);
            message += 1;
        }
        assert_eq!(sender.on_the_way(), WINDOW);
        sender.acknowledged(told(message - 1, 0), || TICK);
        assert!(!sender.has_room(), "before they are taken there is no place");
    }
}
