//! What happens when a rail fails.
//!
//! The end that notices it moves the rail's queue pairs to error, destroys them and sends FENCE,
//! with what it holds. The other end does the same and sends its own FENCE. From then on nothing
//! can be written over these queue pairs, and each end knows what the other one lacks: the sender
//! which shares, by the immediates that the receiver has taken on each queue pair; the receiver
//! which lines, by the groups that the sender has seen. Both post that again over the other rails.
//! What a share was is read from the send ring, so posting keeps no record.
//!
//! A receiver whose requests are all complete may not be called for a long time. So that its peer
//! does not wait for its FENCE, it keeps the numbers of the groups that it has received in memory
//! that the sender reads over another rail: shares of these groups have arrived.
//!
//! Meanwhile the rail is tried again, with new queue pairs: TRY and MADE exchange them,
//! the sender writes nothing to the receiver, and USE says that it was acknowledged.
//!
//! Without any rail, the sender tries all of them for as long as a channel of one rail survives.
//! Then both ends fail, with the causes that the FENCEs have exchanged.

use std::time::{Duration, Instant};

use barewire_mlx5::{Enhancements, Failure as Syndrome};
use barewire_tcp::stall_timer::StallTimer;

use crate::control::Peer;
use crate::counters::RailCounters;
use crate::error::{End, Failure, RailFailure};
use crate::handshake::message::{Epoch, Held, Message, QueuePairs};
use crate::plan::Plan;
use crate::queues::{Doubt, Event, Queues, Role};
use crate::rails::Rail;

/// Until the first attempt to use a failed rail again. Doubled by each failure.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest time between attempts while another rail works. A rail that works for longer starts with the first delay.
const LAST_DELAY: Duration = Duration::from_secs(30);

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Operation {
    Write = 1,
    Receive = 2,
    Device = 3,
}

/// Why a rail failed, as the end that noticed it tells the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// What failed.
    pub operation: Operation,
    /// The syndrome, the vendor's syndrome and the opcode of the completion with error.
    pub codes: [u8; 3],
    /// Number of the queue pair at the end that noticed it.
    pub pair: u32,
    /// Number of the other one.
    pub remote: u32,
    /// How long they had been connected, in milliseconds.
    pub connected: Duration,
    /// How long the operation had been posted at least, in milliseconds; 0 if that is not known.
    pub age: Duration,
}

impl Cause {
    /// The failure of a device that makes no queue pairs.
    const NO_PAIRS: Self = Self {
        operation: Operation::Device,
        codes: [0; 3],
        pair: 0,
        remote: 0,
        connected: Duration::ZERO,
        age: Duration::ZERO,
    };
}

/// The rails of a channel.
#[derive(Debug)]
pub(crate) struct FailOver {
    plan: Plan,
    places: Vec<Place>,
    /// Runs while there is no rail, since the last FENCE.
    alone: Option<StallTimer>,
}

/// A rail of the channel.
#[derive(Debug)]
struct Place {
    epoch: u32,
    state: State,
    /// When its queue pairs were connected.
    connected: Instant,
    /// Until the next attempt after the next failure.
    delay: Duration,
    /// Why this end has fenced the queue pairs, if it noticed the failure.
    ours: Option<Cause>,
    /// The last failure while the rail worked, and whether this end noticed it.
    last: Option<(Cause, bool)>,
    /// Shares that went over earlier queue pairs.
    shares: u64,
    losses: u64,
}

#[derive(Debug)]
enum State {
    Up,
    /// The queue pairs are destroyed at this end, and the peer's FENCE is awaited.
    Fenced {
        doubt: Doubt,
        /// Whether the rail worked, in use or on standby.
        worked: bool,
    },
    Down {
        again: Instant,
    },
    /// New queue pairs are not in use yet.
    Trying(Box<Queues>),
    /// As above, and they are connected.
    Probing(Box<Queues>),
}

impl FailOver {
    pub(crate) fn new(plan: Plan) -> Self {
        let now = Instant::now();
        let place = |_| Place {
            epoch: 0,
            state: State::Up,
            connected: now,
            delay: FIRST_DELAY,
            ours: None,
            last: None,
            shares: 0,
            losses: 0,
        };
        let places = (0..plan.places()).map(place).collect();
        Self { plan, places, alone: None }
    }

    pub(crate) fn places(&self) -> usize {
        self.places.len()
    }

    /// Sorts the queues so that those in use come first, and returns their number.
    pub(crate) fn select(&self, queues: &mut [Queues]) -> usize {
        self.plan.select(queues)
    }

    /// What went over each rail. The first `in_use` queues are in use.
    pub(crate) fn counters(&self, queues: &[Queues], in_use: usize) -> Vec<RailCounters> {
        let of_place = |(at, place): (usize, &Place)| {
            let works = queues.iter().position(|queues| queues.place() == at);
            let shares = works
                .and_then(|works| queues.get(works))
                .map_or(0, |queues| queues.immediates(self.plan.role()));
            RailCounters {
                rail: self.plan.rail(at).map(|rail| rail.info.name.clone()).unwrap_or_default(),
                shares: place.shares + shares,
                losses: place.losses,
                enhancements: works
                    .and_then(|works| queues.get(works))
                    .map_or(Enhancements::NONE, Queues::enhancements),
                in_use: works.is_some_and(|works| works < in_use),
            }
        };
        self.places.iter().enumerate().map(of_place).collect()
    }

    /// Tries failed rails without delay, for a test.
    #[cfg(all(test, feature = "soft"))]
    pub(crate) fn recover_at_once(&mut self) {
        self.places.iter_mut().for_each(|place| place.delay = Duration::ZERO);
    }

    /// How long the queue pairs of a place have been connected.
    fn age(&self, place: usize, now: Instant) -> Duration {
        let age =
            self.places.get(place).map(|place| now.saturating_duration_since(place.connected));
        // Both ends report the same, and milliseconds cross the wire.
        Duration::from_millis(age.unwrap_or_default().as_millis() as u64)
    }

    /// Of rails that the peer has not fenced yet, what this end does not know.
    pub(crate) fn doubts(&mut self) -> impl Iterator<Item = &mut Doubt> {
        self.places.iter_mut().filter_map(|place| match &mut place.state {
            State::Fenced { doubt, .. } => Some(doubt),
            _ => None,
        })
    }

    /// Returns whether the peer's FENCE of a rail that worked is awaited.
    fn is_waiting(&self) -> bool {
        self.places.iter().any(|place| matches!(place.state, State::Fenced { worked: true, .. }))
    }

    /// Destroys the queue pairs that are being tried: the peer writes nothing over them any more.
    pub(crate) fn abandon(&mut self, now: Instant) {
        for place in &mut self.places {
            if matches!(place.state, State::Trying(_) | State::Probing(_)) {
                place.state = State::Down { again: now };
            }
        }
    }

    /// Returns whether the channel fails, because there has been no rail for too long, or because
    /// no device of this end works. Until then, the rails are tried soon.
    #[cold]
    fn is_over(&mut self, now: Instant) -> bool {
        let waits = self.is_waiting();
        let Self { plan, places, alone } = self;
        for place in places.iter_mut() {
            if let State::Down { again } = &mut place.state {
                *again = (*again).min(now + FIRST_DELAY);
            }
        }
        let is_broken = |place| plan.rail(place).is_none_or(Rail::is_broken);
        let limit = || if waits { plan.config().timeout } else { plan.survival() };
        let timer = alone.get_or_insert_with(|| StallTimer::new(limit(), now));
        timer.is_over(now) || (!waits && (0..places.len()).all(is_broken))
    }

    fn at(&self, place: usize) -> Epoch {
        let epoch = self.places.get(place).map_or(0, |place| place.epoch);
        Epoch { place: place as u8, epoch }
    }

    /// The failure without any rail.
    #[cold]
    fn failure(&self) -> Failure {
        let failure = |(at, place): (usize, &Place)| {
            let (cause, is_ours) = match (&place.last, &place.ours) {
                (Some((cause, is_ours)), _) => (cause, *is_ours),
                (None, Some(cause)) => (cause, true),
                (None, None) => return None,
            };
            let end = |info: &crate::RailInfo, pair| End {
                rail: info.name.clone(),
                address: info.address.to_string(),
                pair,
            };
            let (local, remote) = (&self.plan.rail(at)?.info, self.plan.remote(at)?);
            let (from, to) = if is_ours { (local, remote) } else { (remote, local) };
            let [code, vendor_code, opcode] = cause.codes;
            let syndrome = Syndrome::new(code, vendor_code, opcode);
            let (operation, syndrome) = match cause.operation {
                Operation::Write => ("a write", Some(syndrome)),
                Operation::Receive => ("a receive", Some(syndrome)),
                Operation::Device => ("a connection", None),
            };
            Some(RailFailure {
                operation,
                from: end(from, cause.pair),
                to: end(to, cause.remote),
                syndrome,
                connected: cause.connected,
                age: cause.age,
            })
        };
        Failure::Rails(self.places.iter().enumerate().filter_map(failure).collect())
    }
}

/// An end of a channel, as far as rails that fail are concerned.
pub(crate) trait Half {
    /// The rails that work, the state of all rails, and the control connection.
    fn parts(&mut self) -> (&mut Vec<Queues>, &mut FailOver, &mut Peer);

    /// Takes the completions of queue pairs that are in error.
    fn drain(&mut self, queues: &mut Queues) -> Result<(), &'static str>;

    /// What this end holds, and of what it does not know whether the peer holds it.
    fn state(&mut self, queues: &Queues) -> (Held, Doubt);

    /// Learns what the peer holds, which can no longer change.
    fn resolve(&mut self, place: usize, doubt: Doubt, held: &Held) -> Result<(), &'static str>;

    /// Called while the peer has not fenced a rail that this end has fenced; perhaps the peer's
    /// program does not call its end.
    fn wait(&mut self, _now: Instant) {}

    /// Posts again what is missing, as far as there is room. Returns whether something is left.
    fn replay(&mut self) -> Result<bool, &'static str>;

    /// The rails that work have changed.
    fn adapt(&mut self);

    /// Reads the control connection, and carries on with rails that are not in use.
    #[cold]
    fn control(&mut self, now: Instant) -> Result<(), Failure> {
        let peer = self.parts().2.address();
        let violated = |what| Failure::Protocol { peer, what };
        loop {
            let (queues, state, peer) = self.parts();
            match peer.receive(now) {
                Ok(Some(message)) => self.handle(message, now).map_err(violated)?,
                Ok(None) => break,
                // The peer has stopped trying the rails a little earlier.
                Err(Failure::Closed { .. }) if queues.is_empty() && !state.is_waiting() => {
                    return Err(state.failure());
                }
                Err(failure) => return Err(failure),
            }
        }
        let (queues, state, _) = self.parts();
        for queues in queues.iter_mut() {
            queues.sample(now);
        }
        let broken = queues
            .iter()
            .find(|queues| state.plan.rail(queues.place()).is_some_and(Rail::is_broken))
            .map(|queues| {
                let place = queues.place();
                (place, queues.device_cause(state.age(place, now)))
            });
        if let Some((place, cause)) = broken {
            self.fence(place, Some(cause), now).map_err(violated)?;
        }
        for place in 0..self.parts().1.places() {
            self.recover(place, now).map_err(violated)?;
        }
        if self.parts().1.is_waiting() {
            self.wait(now);
        }
        let is_left = self.replay().map_err(violated)?;
        let (queues, state, peer) = self.parts();
        if !queues.is_empty() {
            state.alone = None;
        } else if state.is_over(now) {
            return Err(state.failure());
        }
        if queues.is_empty() || state.is_waiting() || is_left {
            peer.hurry();
        }
        Ok(())
    }

    /// The completion queue of a rail has an error.
    #[cold]
    fn broke(&mut self, place: usize, now: Instant) -> Result<(), &'static str> {
        let (queues, state, _) = self.parts();
        let age = state.age(place, now);
        let Some(queues) = queues.iter_mut().find(|queues| queues.place() == place) else {
            return Ok(());
        };
        let cause = queues.cause(age, now)?;
        self.fence(place, Some(cause), now)
    }

    /// Stops to use a rail, so that nothing can be written over its queue pairs any more.
    #[cold]
    fn fence(
        &mut self,
        place: usize,
        cause: Option<Cause>,
        now: Instant,
    ) -> Result<(), &'static str> {
        let (queues, state, _) = self.parts();
        let Some(one) = state.places.get_mut(place) else { return Ok(()) };
        let at = queues.iter().position(|queues| queues.place() == place);
        let worked = at.is_some();
        let mut fenced = match (at, std::mem::replace(&mut one.state, State::Up)) {
            (Some(at), _) => queues.remove(at),
            (None, State::Trying(queues) | State::Probing(queues)) => *queues,
            (None, other) => {
                one.state = other;
                return Ok(());
            }
        };
        fenced.fence();
        self.drain(&mut fenced)?;
        let (held, doubt) = self.state(&fenced);
        let shares = fenced.immediates(self.parts().1.plan.role());
        drop(fenced);
        let (_, state, peer) = self.parts();
        let at = state.at(place);
        if let Some(one) = state.places.get_mut(place) {
            let delay = if now.saturating_duration_since(one.connected) > LAST_DELAY {
                FIRST_DELAY
            } else {
                one.delay
            };
            one.delay = delay;
            one.shares += shares;
            one.losses += u64::from(worked);
            one.ours.clone_from(&cause);
            one.state = State::Fenced { doubt, worked };
        }
        if worked {
            state.alone = None;
            tracing::warn!(rail = place, ?cause, "a rail of a channel is lost");
        }
        peer.send(&Message::Fence { at, cause, held });
        peer.hurry();
        self.adapt();
        Ok(())
    }

    /// Handles a message of the peer. Returns what the peer did wrong, if so.
    fn handle(&mut self, message: Message, now: Instant) -> Result<(), &'static str> {
        let role = self.parts().1.plan.role();
        match message {
            Message::Fence { at, cause, held } => self.fenced(at, cause, &held, now),
            Message::Try { at, pairs } if role == Role::Receiver => self.tried(at, &pairs, now),
            Message::Made { at, pairs } if role == Role::Sender => self.made(at, &pairs, now),
            Message::Use { at } if role == Role::Receiver => self.used(at, now),
            _ => Err("an unexpected control message"),
        }
    }

    /// The peer has fenced a rail.
    fn fenced(
        &mut self,
        at: Epoch,
        cause: Option<Cause>,
        held: &Held,
        now: Instant,
    ) -> Result<(), &'static str> {
        let place = usize::from(at.place);
        if self.parts().1.at(place) != at {
            return Err("a FENCE of other queue pairs");
        }
        self.fence(place, None, now)?;
        let (_, state, _) = self.parts();
        let first = state.plan.role();
        let one = state.places.get_mut(place).ok_or("a FENCE of no rail")?;
        let State::Fenced { doubt, worked } =
            std::mem::replace(&mut one.state, State::Down { again: now + one.delay })
        else {
            return Err("a second FENCE");
        };
        one.delay = (one.delay * 2).min(LAST_DELAY);
        if worked {
            state.alone = None;
            let ours = one.ours.take().map(|cause| (cause, true));
            let theirs = cause.map(|cause| (cause, false));
            // Both ends select the same: the sender's, if it has one.
            one.last = if first == Role::Sender { ours.or(theirs) } else { theirs.or(ours) };
        }
        self.resolve(place, doubt, held)
    }

    /// Tries a rail that is down, and uses one that works again. For the sender.
    #[cold]
    fn recover(&mut self, place: usize, now: Instant) -> Result<(), &'static str> {
        let (queues, state, peer) = self.parts();
        let Some(one) = state.places.get_mut(place) else { return Ok(()) };
        if state.plan.role() == Role::Receiver {
            return Ok(());
        }
        match &mut one.state {
            State::Down { again } if now >= *again => {
                *again = now + one.delay;
                one.delay = (one.delay * 2).min(LAST_DELAY);
                let is_broken = state.plan.rail(place).is_some_and(Rail::is_broken);
                let made = state.plan.create(place).filter(|_| !is_broken);
                if let Some((made, epoch)) = made.and_then(Result::ok).zip(one.epoch.checked_add(1))
                {
                    one.epoch = epoch;
                    let pairs = made.pairs();
                    one.state = State::Trying(Box::new(made));
                    peer.send(&Message::Try { at: state.at(place), pairs });
                }
                Ok(())
            }
            State::Probing(probing) => match probing.poll(|_| {}) {
                None => Ok(()),
                Some(Event::Sent) => {
                    one.connected = now;
                    if let State::Probing(probed) = std::mem::replace(&mut one.state, State::Up) {
                        queues.push(*probed);
                    }
                    tracing::info!(rail = place, "a rail of a channel works again");
                    peer.send(&Message::Use { at: state.at(place) });
                    self.adapt();
                    Ok(())
                }
                Some(_) => {
                    let cause = probing.cause(Duration::ZERO, now).unwrap_or(Cause::NO_PAIRS);
                    self.fence(place, Some(cause), now)
                }
            },
            _ => Ok(()),
        }
    }

    /// The sender tries a rail.
    fn tried(&mut self, at: Epoch, pairs: &QueuePairs, now: Instant) -> Result<(), &'static str> {
        let (_, state, peer) = self.parts();
        let place = usize::from(at.place);
        let one = state.places.get_mut(place).ok_or("a TRY of no rail")?;
        let is_next = one.epoch.checked_add(1) == Some(at.epoch);
        if !is_next || !matches!(one.state, State::Down { .. }) {
            return Err("a TRY of a rail that is not down");
        }
        if pairs.numbers.len() != state.plan.pairs() {
            return Err("a TRY with other queue pairs");
        }
        one.epoch = at.epoch;
        let is_broken = state.plan.rail(place).is_some_and(Rail::is_broken);
        let made = state.plan.create(place).filter(|_| !is_broken).and_then(Result::ok);
        let made = made.and_then(|mut made| {
            state.plan.connect(&mut made, pairs, at.epoch).is_ok().then_some(made)
        });
        if let Some(made) = made {
            peer.send(&Message::Made { at, pairs: made.pairs() });
            one.state = State::Trying(Box::new(made));
            one.connected = now;
        } else {
            let held = Held { taken: vec![0; pairs.numbers.len()], ..Held::default() };
            one.state = State::Fenced { doubt: Doubt::default(), worked: false };
            peer.send(&Message::Fence { at, cause: Some(Cause::NO_PAIRS), held });
        }
        Ok(())
    }

    /// The receiver has new queue pairs as well.
    fn made(&mut self, at: Epoch, pairs: &QueuePairs, now: Instant) -> Result<(), &'static str> {
        let (_, state, _) = self.parts();
        let place = usize::from(at.place);
        if state.at(place) != at {
            return Err("a MADE of other queue pairs");
        }
        let one = state.places.get_mut(place).ok_or("a MADE of no rail")?;
        match std::mem::replace(&mut one.state, State::Up) {
            State::Trying(mut queues) => {
                if pairs.numbers.len() != state.plan.pairs() {
                    return Err("a MADE with other queue pairs");
                }
                let connected = state.plan.connect(&mut queues, pairs, at.epoch);
                queues.check_enhancements(pairs.enhancements);
                let probes = connected.is_ok() && queues.probe();
                one.state = State::Probing(queues);
                if probes { Ok(()) } else { self.fence(place, Some(Cause::NO_PAIRS), now) }
            }
            // It has failed again meanwhile.
            fenced @ State::Fenced { .. } => {
                one.state = fenced;
                Ok(())
            }
            _ => Err("a MADE that was not asked for"),
        }
    }

    /// The sender uses a rail again.
    fn used(&mut self, at: Epoch, now: Instant) -> Result<(), &'static str> {
        let (queues, state, _) = self.parts();
        let place = usize::from(at.place);
        if state.at(place) != at {
            return Err("a USE of other queue pairs");
        }
        let one = state.places.get_mut(place).ok_or("a USE of no rail")?;
        match std::mem::replace(&mut one.state, State::Up) {
            State::Trying(tried) => {
                queues.push(*tried);
                one.connected = now;
                self.adapt();
                Ok(())
            }
            fenced @ State::Fenced { .. } => {
                one.state = fenced;
                Ok(())
            }
            _ => Err("a USE of a rail that was not tried"),
        }
    }
}
