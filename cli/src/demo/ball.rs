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
/// The ball's number is the count of throws; this bit marks the last.
const LAST: u64 = 1 << 63;
/// A ping-pong takes no longer than about this: on a crowded machine a throw can take milliseconds.
const LONGEST: Duration = Duration::from_secs(1);

/// How the ball goes.
enum Way {
    /// Into the other's memory; both poll theirs.
    Put { own: Box<Memory>, remote: Remote },
    /// As the header of an active message; `last` is what came last.
    Am { last: Rc<Cell<u64>> },
}

impl Way {
    /// Sets one side up. Nothing goes before both are.
    fn open(session: &mut Session<'_>, step: &Step) -> Result<Self, Error> {
        let way = if *step == Step::PutPingPong {
            let own = session.allocate(BYTES as usize)?;
            let remote = session.exchange(&own, BYTES as usize)?;
            Self::Put { own: Box::new(own), remote }
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

    fn throw(&self, session: &mut Session<'_>, ball: u64) -> Result<(), Error> {
        let endpoint = &session.endpoint;
        let posted = match self {
            Self::Put { remote, .. } => session
                .wait
                .post(DURING, || endpoint.put_short(&ball.to_le_bytes(), remote.address, &remote.key)),
            Self::Am { .. } => session.wait.post(DURING, || endpoint.am_short(BALL, ball, &[])),
        };
        posted.map(|_| ())
    }

    /// Waits for a ball other than number `before`.
    fn catch(&self, session: &mut Session<'_>, before: u64) -> Result<u64, Error> {
        session.wait.until(DURING, || {
            let here = match self {
                Self::Put { own, .. } => u64::from_le(own.load_u64(0)?),
                Self::Am { last } => last.get(),
            };
            Ok((here != before).then_some(here))
        })
    }
}

/// Throws first; one way is half of a round trip, and the middle one of all is told.
pub(super) fn lead(session: &mut Session<'_>, step: &Step, most: u64) -> Result<Outcome, Error> {
    session.wait.send(&Message::Demo(step.clone()), DURING)?;
    let way = Way::open(session, step)?;
    let mut correct = true;
    let mut times: Vec<Duration> = Vec::new();
    let started = Instant::now();
    let mut last = false;
    for number in 1..=most {
        let thrown = Instant::now();
        last = number == most || thrown.duration_since(started) > LONGEST;
        let ball = if last { number | LAST } else { number };
        way.throw(session, ball)?;
        correct &= way.catch(session, number - 1)? == ball;
        times.push(thrown.elapsed() / 2);
        if last {
            break;
        }
    }
    let total = started.elapsed();
    session.flush(DURING, BYTES)?;
    session.wait.barrier(DURING)?;
    times.sort_unstable();
    let time = times.get(times.len() / 2).copied().unwrap_or_default();
    let rate = units::message_rate(2 * times.len() as u64, total);
    Ok(Outcome { bytes: BYTES, time, rate, correct: correct && last })
}

/// Throws back what comes, until the last.
pub(super) fn follow(session: &mut Session<'_>, step: &Step) -> Result<(), Error> {
    let way = Way::open(session, step)?;
    for number in 1..LAST {
        let ball = way.catch(session, number - 1)?;
        if ball & !LAST != number {
            return Err(Error::Mismatch(format!("ball {number} of the ping-pong came as {ball:#x}")));
        }
        way.throw(session, ball)?;
        if ball & LAST != 0 {
            break;
        }
    }
    session.flush(DURING, BYTES)?;
    session.wait.barrier(DURING)
}
