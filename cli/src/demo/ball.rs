//! The ping-pongs: 8 bytes that go to and fro.

use super::table::Outcome;
use crate::control::{Message, Step};
use crate::error::{Error, local};
use crate::session::{Remote, Session};
use crate::units;
use barewire::Memory;
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The active-message id of the ball.
const BALL: u8 = 3;
const DURING: &str = "the ping-pong";
/// The size of the ball.
const BYTES: u64 = 8;

/// How the ball goes.
enum Way {
    /// Into the other's memory; both poll theirs.
    Put { own: Memory, remote: Remote },
    /// As the header of an active message; `last` is what came last.
    Am { last: Rc<Cell<u64>> },
}

impl Way {
    /// Sets one side up. Nothing goes before both are.
    fn open(session: &mut Session<'_>, step: &Step) -> Result<Self, Error> {
        let way = if let Step::PutPingPong { .. } = step {
            let own = session.allocate(BYTES as usize)?;
            let remote = session.exchange(&own, BYTES as usize)?;
            Self::Put { own, remote }
        } else {
            let last = Rc::new(Cell::new(0));
            let slot = Rc::clone(&last);
            session
                .interface
                .set_handler(BALL, move |message| {
                    // What is not exactly a header is no ball.
                    let ball = message.split_short().filter(|(_, rest)| rest.is_empty());
                    slot.set(ball.map_or(u64::MAX, |(number, _)| number));
                })
                .map_err(|error| local(DURING, &error))?;
            Self::Am { last }
        };
        session.wait.barrier(DURING)?;
        Ok(way)
    }

    fn throw(&self, session: &mut Session<'_>, number: u64) -> Result<(), Error> {
        let endpoint = &session.endpoint;
        let posted = match self {
            Self::Put { remote, .. } => session
                .wait
                .post(DURING, || endpoint.put_short(&number.to_le_bytes(), remote.address, &remote.key)),
            Self::Am { .. } => session.wait.post(DURING, || endpoint.am_short(BALL, number, &[])),
        };
        posted.map(|_| ())
    }

    /// Waits for a ball other than the one before; true if it is the right one.
    fn catch(&self, session: &mut Session<'_>, number: u64) -> Result<bool, Error> {
        let before = number - 1;
        session.wait.until(DURING, || {
            let here = match self {
                Self::Put { own, .. } => u64::from_le(own.load_u64(0)?),
                Self::Am { last } => last.get(),
            };
            Ok((here != before).then_some(here == number))
        })
    }
}

/// Throws first; one way is half of a round trip, and the middle one of all is told.
pub(super) fn lead(session: &mut Session<'_>, step: &Step) -> Result<Outcome, Error> {
    let (Step::PutPingPong { rounds } | Step::AmPingPong { rounds }) = *step else {
        return Err(Error::Local("that step is no ping-pong".into()));
    };
    session.wait.send(&Message::Demo(step.clone()), DURING)?;
    let way = Way::open(session, step)?;
    let mut correct = true;
    let mut times: Vec<Duration> = Vec::with_capacity(rounds as usize);
    let started = Instant::now();
    for number in 1..=rounds {
        let thrown = Instant::now();
        way.throw(session, number)?;
        correct &= way.catch(session, number)?;
        times.push(thrown.elapsed() / 2);
    }
    let total = started.elapsed();
    session.flush(DURING, BYTES)?;
    session.wait.barrier(DURING)?;
    times.sort_unstable();
    let time = times.get(times.len() / 2).copied().unwrap_or_default();
    Ok(Outcome { bytes: BYTES, time, rate: units::message_rate(2 * rounds, total), correct })
}

/// Throws back what comes.
pub(super) fn follow(session: &mut Session<'_>, step: &Step) -> Result<(), Error> {
    let (Step::PutPingPong { rounds } | Step::AmPingPong { rounds }) = *step else {
        return Err(Error::Local("that step is no ping-pong".into()));
    };
    let way = Way::open(session, step)?;
    for number in 1..=rounds {
        if !way.catch(session, number)? {
            return Err(Error::Mismatch(format!(
                "ball {number} of the ping-pong is not the one that was sent"
            )));
        }
        way.throw(session, number)?;
    }
    session.flush(DURING, BYTES)?;
    session.wait.barrier(DURING)
}
