//! A connection, or a request for the queue pair of a service for datagrams.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::message::{Bytes, Parameters, RETRIES};

/// The first pause before a message is repeated, which then doubles, and the longest. The kernel
/// always waits for the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(128);
const LONGEST_PAUSE: Duration = Duration::from_millis(4300);
/// How long an ended connection responds to repeated messages.
pub(super) const TIME_WAIT: Duration = Duration::from_secs(1);

/// The state of a connection (IBTA 12.9.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Sent a request.
    RequestSent,
    /// Received a request, which the program has to accept.
    RequestReceived,
    /// Received a reply, which the program has to confirm.
    ReplyReceived,
    /// Accepted a request.
    ReplySent,
    Established,
    DisconnectSent,
    /// The peer has disconnected, and the program has to.
    DisconnectReceived,
    /// Ended. Repeated messages still get a response.
    TimeWait,
    /// Sent a request for a service of datagrams.
    ServiceRequested,
    /// Received such a request, which the program has to accept.
    ServiceAsked,
    /// Responded to it.
    ServiceAnswered,
}

/// A message that is repeated until the peer responds.
#[derive(Clone, Debug)]
struct Repeated {
    bytes: Bytes,
    pause: Duration,
    left: u8,
}

/// What has to be done about a connection whose deadline has passed.
#[derive(Debug)]
pub(super) enum Due {
    Send(Box<Bytes>),
    /// The peer did not respond, or the time is over.
    End,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Link {
    /// The program's identifier, unless it was destroyed.
    pub(super) id: Option<u32>,
    pub(super) stage: Stage,
    /// Whether this side sent the request.
    pub(super) active: bool,
    /// Index of the own port.
    pub(super) port: usize,
    pub(super) peer: IpAddr,
    /// The peer's identifier of the connection.
    pub(super) remote_id: u32,
    pub(super) service: u64,
    /// The transaction of the request.
    pub(super) transaction: u64,
    pub(super) local: Parameters,
    pub(super) remote: Parameters,
    pub(super) mtu: u8,
    pub(super) traffic_class: u8,
    pub(super) ack_timeout: u8,
    repeated: Option<Repeated>,
    /// The last message that may have to be repeated on request.
    pub(super) last: Option<Box<Bytes>>,
    deadline: Option<Instant>,
}

impl Link {
    pub(super) fn new(stage: Stage, port: usize, peer: IpAddr) -> Self {
        Self {
            id: None,
            stage,
            active: matches!(stage, Stage::RequestSent | Stage::ServiceRequested),
            port,
            peer,
            remote_id: 0,
            service: 0,
            transaction: 0,
            local: Parameters::default(),
            remote: Parameters::default(),
            mtu: 0,
            traffic_class: 0,
            ack_timeout: 0,
            repeated: None,
            last: None,
            deadline: None,
        }
    }

    /// Enters a stage without a deadline.
    pub(super) fn enter(&mut self, stage: Stage) {
        (self.stage, self.repeated, self.deadline) = (stage, None, None);
    }

    /// Enters a stage that lasts until `deadline`.
    pub(super) fn enter_until(&mut self, stage: Stage, deadline: Option<Instant>) {
        self.enter(stage);
        self.deadline = deadline;
    }

    /// Enters a stage in which `bytes` are repeated.
    pub(super) fn enter_repeating(&mut self, stage: Stage, bytes: Bytes, now: Instant) {
        self.stage = stage;
        self.last = Some(Box::new(bytes));
        self.deadline = now.checked_add(FIRST_PAUSE);
        self.repeated = Some(Repeated { bytes, pause: FIRST_PAUSE, left: RETRIES });
    }

    /// The peer asks for `time`.
    pub(super) fn wait(&mut self, now: Instant, time: Duration) {
        if self.repeated.is_some() {
            self.deadline = now.checked_add(time);
        }
    }

    /// Returns when something is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns what is due at `now`.
    pub(super) fn due(&mut self, now: Instant) -> Option<Due> {
        if self.deadline? > now {
            return None;
        }
        self.deadline = None;
        let Some(repeated) = self.repeated.as_mut().filter(|repeated| repeated.left > 0) else {
            return Some(Due::End);
        };
        repeated.left -= 1;
        repeated.pause = (repeated.pause * 2).min(LONGEST_PAUSE);
        self.deadline = now.checked_add(repeated.pause);
        Some(Due::Send(Box::new(repeated.bytes)))
    }
}
