//! How an end carries on when rails fail: it fences them, and tries them again.

use barewire_tcp::stall_timer::StallTimer;
use barewire_tcp::time::after;
use std::time::{Duration, Instant};

use super::{Cause, FIRST_DELAY, FailOver, LAST_DELAY, State};
use crate::control::Peer;
use crate::error::Failure;
use crate::handshake::message::{Epoch, Held, Message, QueuePairs};
use crate::queues::{Doubt, Event, Queues, Role};
use crate::rails::Rail;
use crate::ring::{Lines, RemoteLines};

/// Longest time that an end waits when it is dropped.
pub(crate) const SETTLE: Duration = Duration::from_secs(1);

/// An end of a channel, as far as rails that fail are concerned.
pub(crate) trait Half {
    /// The rails that work, the state of all rails, and the control connection.
    fn parts(&mut self) -> (&mut Vec<Queues>, &mut FailOver, &mut Peer);

    /// The rails that work, and what letters need: the peer, and the memory of both ends.
    fn post(&mut self) -> (&mut Vec<Queues>, &mut Peer, (&Lines, &RemoteLines));

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

    /// Reports to the peer that this end is closed. If a network may be cut, waits until the peer
    /// or its host knows.
    #[cold]
    fn leave(&mut self, done: u64) {
        let now = Instant::now();
        let (_, state, peer) = self.parts();
        let (lacks_rails, was_cut) = (state.lacks_rails(), peer.cut().is_some());
        peer.close(done);
        let mut timer = StallTimer::new(SETTLE, now);
        while lacks_rails && !timer.is_over(Instant::now()) {
            let (queues, peer, memory) = self.post();
            peer.post(queues, memory);
            if queues.is_empty() || peer.is_told(queues) {
                break;
            }
            // The peer may close its end as well, or have ended.
            let _ = peer.receive(memory.0, now);
            if peer.has_left() || peer.cut().is_some() != was_cut {
                break;
            }
            self.settle();
            std::thread::yield_now();
        }
    }

    /// Takes completions.
    fn settle(&mut self);

    /// Reads the control connection, and carries on with rails that are not in use.
    #[cold]
    fn control(&mut self, now: Instant) -> Result<(), Failure> {
        let result = self.carry_on(now);
        self.parts().2.settle(now);
        result
    }

    /// As [`Self::control`].
    fn carry_on(&mut self, now: Instant) -> Result<(), Failure> {
        let peer = self.parts().2.address();
        let violated = |what| Failure::Protocol { peer, what };
        loop {
            let (_, peer, (lines, _)) = self.post();
            let received = peer.receive(lines, now);
            let (queues, state, peer) = self.parts();
            match received {
                Ok(Some(message)) => self.handle(message, now).map_err(violated)?,
                Ok(None) => match peer.cut().filter(|_| queues.is_empty()) {
                    Some(failure) => return Err(failure),
                    None => break,
                },
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
        let (queues, peer, memory) = self.post();
        peer.post(queues, memory);
        let (queues, state, peer) = self.parts();
        if !queues.is_empty() {
            state.alone = None;
        } else if state.is_over(now) {
            return Err(state.failure());
        }
        if queues.is_empty() || state.is_waiting() || is_left {
            peer.wait();
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
        let (_, state, peer) = self.parts();
        let first = state.plan.role();
        let one = state.places.get_mut(place).ok_or("a FENCE of no rail")?;
        let State::Fenced { doubt, worked } =
            std::mem::replace(&mut one.state, State::Down { again: after(now, one.delay) })
        else {
            return Err("a second FENCE");
        };
        one.delay = (one.delay * 2).min(LAST_DELAY);
        // Nothing that was written over the rail arrives any more.
        peer.repeat();
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
            State::Down { again } if now >= *again && peer.may_spend(now) => {
                *again = after(now, one.delay);
                one.delay = (one.delay * 2).min(LAST_DELAY);
                let is_broken = state.plan.rail(place).is_some_and(Rail::is_broken);
                let made = state.plan.create(place).filter(|_| !is_broken);
                if let Some((made, epoch)) = made.and_then(Result::ok).zip(one.epoch.checked_add(1))
                {
                    one.epoch = epoch;
                    let pairs = made.ends();
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
        if pairs.ends.len() != state.plan.pairs() {
            return Err("a TRY with other queue pairs");
        }
        one.epoch = at.epoch;
        let is_broken = state.plan.rail(place).is_some_and(Rail::is_broken);
        let made = state.plan.create(place).filter(|_| !is_broken).and_then(Result::ok);
        let made =
            made.and_then(|mut made| state.plan.connect(&mut made, pairs).is_ok().then_some(made));
        if let Some(made) = made {
            peer.send(&Message::Made { at, pairs: made.ends() });
            one.state = State::Trying(Box::new(made));
            one.connected = now;
        } else {
            let held = Held { taken: vec![0; pairs.ends.len()], ..Held::default() };
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
                if pairs.ends.len() != state.plan.pairs() {
                    return Err("a MADE with other queue pairs");
                }
                let connected = state.plan.connect(&mut queues, pairs);
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
