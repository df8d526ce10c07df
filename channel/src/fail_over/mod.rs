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
//! The messages of the ends go over the control connection and over the rails that are left
//! (`mail.rs`), since the failed rail may be of the same network as the control connection. If that
//! fails, the channel goes on without it, until no rail is left.
//!
//! Meanwhile the rail is tried again, with new queue pairs: TRY and MADE exchange them,
//! the sender writes nothing to the receiver, and USE says that it was acknowledged.
//!
//! Without any rail, the sender tries all of them for as long as a channel of one rail survives.
//! Then both ends fail, with the causes that the FENCEs have exchanged.

mod half;

use std::time::{Duration, Instant};

use barewire_mlx5::{Enhancements, Failure as Syndrome};
use barewire_tcp::stall_timer::StallTimer;
use barewire_tcp::time::after;

use crate::counters::RailCounters;
use crate::error::{End, Failure, RailFailure};
use crate::handshake::message::Epoch;
use crate::plan::Plan;
use crate::queues::{Doubt, Queues};
use crate::rails::Rail;

pub(crate) use half::{Half, SETTLE};

/// Until the first attempt to use a failed rail again. Doubled by each failure.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest time between attempts while another rail works. A rail that works for longer starts
/// with the first delay.
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

    /// Returns whether a rail of the channel does not work.
    fn lacks_rails(&self) -> bool {
        self.places.iter().any(|place| !matches!(place.state, State::Up))
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
                *again = (*again).min(after(now, FIRST_DELAY));
            }
        }
        let is_broken = |place| plan.rail(place).is_none_or(Rail::is_broken);
        let limit = || if waits { plan.config().timeout } else { plan.survival() };
        let timer = alone.get_or_insert_with(|| StallTimer::new(limit(), now));
        timer.is_over(now) || (!waits && (0..places.len()).all(is_broken))
    }

    /// The queue pairs of a place that are or were in use last.
    pub(crate) fn at(&self, place: usize) -> Epoch {
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
