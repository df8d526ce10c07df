//! Sleeping until an event.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire::{Armed, Flags};

use super::super::outcome::{Checked, Halt, ensure};
use super::super::target::Target;
use super::session;

/// The active message of this row.
const WAKE: u8 = 4;
const ROUNDS: u32 = 100;
/// The most time from a message to the wake-up.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sleeps until a message arrives, many times.
pub(in super::super) fn events(target: &Target) -> Checked {
    const DURING: &str = "waiting for events";
    let mut session = session(target)?;
    if !session.attributes().flags.contains(Flags::EVENT_FD | Flags::AM_SHORT) {
        return Err(Halt::Skipped("the transport has no events of messages".to_owned()));
    }
    let arrived = Rc::new(Cell::new(0));
    let count = Rc::clone(&arrived);
    session.interface.set_handler(WAKE, move |_| count.set(count.get() + 1))?;
    let endpoint = session.endpoint.clone();
    let started = Instant::now();
    for round in 1..=ROUNDS {
        // Nothing is left to do, so only the message can wake the thread.
        while session.wait.worker().arm()? == Armed::Ready {
            session.wait.worker().progress();
        }
        session.wait.post(DURING, || endpoint.am_short(WAKE, 0, &[]))?;
        let start = Instant::now();
        while arrived.get() < round {
            session.wait.worker().wait(Some(PATIENCE))?;
            ensure(start.elapsed() < PATIENCE, || format!("message {round} woke no thread"))?;
        }
    }
    let time = started.elapsed().as_secs_f64() / f64::from(ROUNDS);
    Ok(format!("{ROUNDS} messages woke the thread, each in {:.0} us", time * 1e6))
}
