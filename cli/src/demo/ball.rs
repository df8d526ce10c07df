//! The ping-pong tests: 8 bytes that both sides send back and forth.

use super::table::Outcome;
use crate::control::{Message, Step};
use crate::error::{Error, local};
use crate::session::{Remote, Session};
use crate::units;
use barewire::Memory;
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The active-message id of a ping.
const BALL: u8 = 3;
const DURING: &str = "the ping-pong";
/// Size of a ping in bytes.
const BYTES: u64 = 8;
/// A ping contains its number; this bit marks the last one.
const LAST: u64 = 1 << 63;
/// Approximate limit for the time of a ping-pong: on a busy machine one direction can take
/// milliseconds.
const LONGEST: Duration = Duration::from_secs(1);

/// The operation that transfers the ping.
enum Way {
    /// A put to the peer's memory; both sides poll their own.
    Put { own: Box<Memory>, remote: Remote },
    /// The header of an active message; `last` is the last one received.
    Am { last: Rc<Cell<u64>> },
}

impl Way {
    /// Sets up one side. Nothing is sent before both are set up.
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
                    // A message that is not exactly a header is no ping.
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
        match self {
            Self::Put { remote, .. } => session.wait.post(DURING, || {
                endpoint.put_short(&ball.to_le_bytes(), remote.address, &remote.key)
            }),
            Self::Am { .. } => session.wait.post(DURING, || endpoint.am_short(BALL, ball, &[])),
        }
    }

    /// Waits for a ping with a number other than `before`.
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

/// Sends the first ping. Reports the median of half round trips.
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

/// Sends every ping back, until the last.
pub(super) fn follow(session: &mut Session<'_>, step: &Step) -> Result<(), Error> {
    let way = Way::open(session, step)?;
    for number in 1..LAST {
        let ball = way.catch(session, number - 1)?;
        if ball & !LAST != number {
            return Err(Error::Mismatch(format!("ping {number} arrived as {ball:#x}")));
        }
        way.throw(session, ball)?;
        if ball & LAST != 0 {
            break;
        }
    }
    session.flush(DURING, BYTES)?;
    session.wait.barrier(DURING)
}
