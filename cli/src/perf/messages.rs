//! The tests of messages that the receiver asks for: tagged ones, and those of channels.

use super::figures::Recorder;
use super::job::{Job, OUTSTANDING};
use crate::control::PerfPlan;
use crate::error::Error;
use crate::session::Session;
use crate::wait::Fault;
use std::collections::VecDeque;

const SET_UP: &str = "the set-up";
const END: &str = "the end of the test";

/// Messages between the two sides, all of the size of the plan.
pub(super) trait Messages {
    type Request;
    /// Most sends in flight.
    const MOST: u32;
    /// Receives that the responder of a ping-pong posts before their messages are due.
    const AHEAD: u64;

    /// Posts a receive.
    fn receive(&mut self, session: &mut Session<'_>, during: &str) -> Result<Self::Request, Error>;

    /// Sends as soon as that is possible.
    fn send(&mut self, session: &mut Session<'_>, during: &str) -> Result<Self::Request, Error>;

    /// Examines whether a receive is complete.
    fn poll_received(&mut self, request: &Self::Request) -> Result<Option<()>, Fault>;

    /// Examines whether a send is complete.
    fn poll_sent(&mut self, request: &Self::Request) -> Result<Option<()>, Fault>;
}

/// The side that measures.
pub(super) fn lead<M: Messages>(
    session: &mut Session<'_>,
    recorder: &mut Recorder<'_, '_>,
    mut messages: M,
) -> Result<(), Error> {
    let Job { plan, outstanding, .. } = recorder.job();
    let during = plan.test.name();
    let loopback = session.wait.is_loopback();
    if !loopback {
        session.wait.barrier(SET_UP)?;
    }
    recorder.begin()?;
    if plan.test.is_ping_pong() {
        for number in 0..plan.total {
            let receiving = messages.receive(session, during)?;
            let sending = messages.send(session, during)?;
            session.wait.unless_ready_until(during, || messages.poll_received(&receiving))?;
            session.wait.unless_ready_until(during, || messages.poll_sent(&sending))?;
            recorder.iteration(number)?;
        }
    } else {
        let mut requests = VecDeque::new();
        let most = (*outstanding).min(M::MOST) as usize;
        for number in 0..plan.total {
            let receiving = if loopback { Some(messages.receive(session, during)?) } else { None };
            requests.push_back((messages.send(session, during)?, receiving));
            if requests.len() >= most
                && let Some(first) = requests.pop_front()
            {
                finish(&mut messages, session, first, during)?;
            }
            recorder.message(number)?;
        }
        for request in requests {
            finish(&mut messages, session, request, during)?;
        }
        if !loopback {
            let last = messages.receive(session, during)?;
            session.wait.unless_ready_until(during, || messages.poll_received(&last))?;
        }
    }
    recorder.end();
    if !loopback {
        session.wait.barrier(END)?;
    }
    Ok(())
}

/// Waits until a send is complete, and in a loopback its receive.
fn finish<M: Messages>(
    messages: &mut M,
    session: &mut Session<'_>,
    (sending, receiving): (M::Request, Option<M::Request>),
    during: &str,
) -> Result<(), Error> {
    if let Some(receiving) = receiving {
        session.wait.unless_ready_until(during, || messages.poll_received(&receiving))?;
    }
    session.wait.unless_ready_until(during, || messages.poll_sent(&sending))
}

/// The side that responds.
pub(super) fn follow<M: Messages>(
    session: &mut Session<'_>,
    plan: &PerfPlan,
    mut messages: M,
) -> Result<(), Error> {
    let during = plan.test.name();
    session.wait.barrier(SET_UP)?;
    let responds = plan.test.is_ping_pong();
    let ahead = if responds { M::AHEAD } else { OUTSTANDING.into() };
    let mut receiving = VecDeque::new();
    for _ in 0..plan.total.min(ahead) {
        receiving.push_back(messages.receive(session, during)?);
    }
    for number in 0..plan.total {
        let first = match receiving.pop_front() {
            Some(first) => first,
            None => messages.receive(session, during)?,
        };
        session.wait.unless_ready_until(during, || messages.poll_received(&first))?;
        if (1..plan.total - number).contains(&ahead) {
            receiving.push_back(messages.receive(session, during)?);
        }
        if responds {
            let sending = messages.send(session, during)?;
            session.wait.unless_ready_until(during, || messages.poll_sent(&sending))?;
        }
    }
    if !responds {
        let sending = messages.send(session, during)?;
        session.wait.unless_ready_until(during, || messages.poll_sent(&sending))?;
    }
    session.wait.barrier(END)
}
