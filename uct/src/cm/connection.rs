//! The states of a connection.

use std::io::{self, ErrorKind};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use barewire_tcp::connector::{ConnectFailure, Connector};
use barewire_tcp::frames::Stream;
use barewire_tcp::handshake::HandshakeError;
use barewire_tcp::stall_timer::StallTimer;

use super::TIMEOUT;
use super::endpoint::{Calls, CmEp};
use super::frame::{Frame, Kind, LONGEST};
use crate::status::{
    BUSY, CONNECTION_RESET, INPROGRESS, IO_ERROR, NOT_CONNECTED, OK, REJECTED, Status, UNREACHABLE,
};

/// Where the establishment of a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Client: the connection to the listener is being opened.
    Dialing,
    /// Client: the program has to pass its data.
    Resolved,
    /// Client: the server's response is expected.
    Requested,
    /// Client: the program has the response, and has to acknowledge it.
    Accepted,
    /// Server: the client's request is expected, which depends on the client's program.
    Greeted,
    /// Server: the program has to accept or refuse.
    Offered,
    /// Server: the client's acknowledgement is expected.
    Answered,
    /// Server: refused; the client ends the connection.
    Refused,
    /// Both ends are connected.
    Connected,
    /// The peer has ended its half of a connection.
    Left,
    /// The connection was not established, or has failed.
    Failed,
}

/// What the program has to learn.
#[derive(Debug, PartialEq)]
pub(super) enum Event {
    /// Client: the connection to the server is open.
    Resolved,
    /// Client: the server has accepted.
    Response(Frame),
    /// Server: a client requests a connection.
    Request(Frame),
    /// Server: the client is connected.
    Acknowledged,
    /// The peer has disconnected.
    Disconnected,
    /// The connection was not established.
    Failed(Status),
    /// The program does not know the connection: it is over.
    Over,
}

pub(super) struct Connection {
    pub(super) phase: Phase,
    /// While it is being opened.
    connector: Option<Box<Connector>>,
    pub(super) stream: Option<Stream>,
    /// Of a server, whose listener has this number.
    pub(super) listener: Option<u64>,
    pub(super) ep: Option<NonNull<CmEp>>,
    pub(super) calls: Calls,
    /// Of the time in which a refused peer has to end the connection.
    timer: StallTimer,
    pub(super) since: Instant,
    /// The program knows the device of the connection.
    pub(super) is_resolved: bool,
    /// The program has disconnected.
    is_closing: bool,
    /// The outgoing half is over.
    is_finished: bool,
}

impl Connection {
    pub(super) fn client(
        connector: Connector,
        ep: NonNull<CmEp>,
        calls: Calls,
        now: Instant,
    ) -> Self {
        let connector = Some(Box::new(connector));
        let this = Self::new(Phase::Dialing, None, now);
        Self { connector, ep: Some(ep), calls, ..this }
    }

    pub(super) fn server(stream: Stream, listener: u64, now: Instant) -> Self {
        Self { listener: Some(listener), ..Self::new(Phase::Greeted, Some(stream), now) }
    }

    fn new(phase: Phase, stream: Option<Stream>, now: Instant) -> Self {
        Self {
            phase,
            connector: None,
            stream,
            listener: None,
            ep: None,
            calls: Calls::default(),
            timer: StallTimer::new(TIMEOUT, now),
            since: now,
            is_resolved: false,
            is_closing: false,
            is_finished: false,
        }
    }

    /// Returns after which time [`Self::step`] must be called although the descriptor is not
    /// readable.
    pub(super) fn tick(&self, now: Instant) -> Option<Duration> {
        const SOON: Duration = Duration::from_micros(100);
        const LATER: Duration = Duration::from_millis(50);
        let is_sending = self.stream.as_ref().is_some_and(|stream| !stream.is_flushed());
        match self.phase {
            Phase::Failed => None,
            // Longer and longer, as the peer may not be there for long.
            Phase::Dialing => {
                Some((now.saturating_duration_since(self.since) / 16).clamp(SOON, LATER))
            }
            _ if is_sending => Some(Duration::from_millis(1)),
            Phase::Refused => Some(Duration::from_secs(1)),
            _ => None,
        }
    }

    /// Sends a message in a phase, which then is `next`.
    ///
    /// # Errors
    /// `UCS_ERR_NOT_CONNECTED` if the connection has failed, and `UCS_ERR_BUSY` in another phase.
    pub(super) fn send(&mut self, frame: &Frame, phase: Phase, next: Phase) -> Result<(), Status> {
        if self.phase != phase {
            let is_over = matches!(self.phase, Phase::Failed | Phase::Left);
            return Err(if is_over { NOT_CONNECTED } else { BUSY });
        }
        let stream = self.stream.as_mut().ok_or(NOT_CONNECTED)?;
        match stream.post(&frame.to_bytes()) {
            Ok(()) => {
                self.phase = next;
                if next == Phase::Refused {
                    self.timer = StallTimer::new(TIMEOUT, Instant::now());
                }
                Ok(())
            }
            Err(error) => {
                crate::log::diag(&error);
                self.fail();
                Err(NOT_CONNECTED)
            }
        }
    }

    /// Its stream is closed by [`super::Core::forget`].
    pub(super) fn fail(&mut self) {
        self.phase = Phase::Failed;
        self.connector = None;
    }

    /// The program disconnects: the peer learns it, and [`Event::Disconnected`] follows once the
    /// peer has disconnected, too.
    pub(super) fn disconnect(&mut self) -> Status {
        match self.phase {
            Phase::Connected | Phase::Accepted if self.is_closing => INPROGRESS,
            Phase::Left if self.is_closing => NOT_CONNECTED,
            Phase::Connected | Phase::Accepted | Phase::Left => {
                self.is_closing = true;
                self.finish();
                OK
            }
            Phase::Failed => NOT_CONNECTED,
            _ => BUSY,
        }
    }

    /// Ends the outgoing half once everything is sent.
    fn finish(&mut self) {
        if let Some(stream) = &self.stream
            && self.is_closing
            && !self.is_finished
            && stream.is_flushed()
        {
            stream.finish();
            self.is_finished = true;
        }
    }

    /// Does what can be done without waiting.
    pub(super) fn step(&mut self, now: Instant) -> Option<Event> {
        match self.advance(now) {
            Ok(event) => event,
            Err(error) => self.end(&error),
        }
    }

    fn advance(&mut self, now: Instant) -> io::Result<Option<Event>> {
        if let Some(connector) = &mut self.connector {
            return match connector.advance(now) {
                Ok(None) => Ok(None),
                Ok(Some(socket)) => {
                    self.connector = None;
                    self.stream = Some(Stream::new(socket, LONGEST));
                    self.phase = Phase::Resolved;
                    Ok(Some(Event::Resolved))
                }
                Err(error) => {
                    let text = format!("cannot connect to {}: {error}", connector.peer());
                    crate::log::error(&text);
                    self.fail();
                    Ok(Some(Event::Failed(of_failure(&error))))
                }
            };
        }
        if matches!(self.phase, Phase::Left | Phase::Failed) {
            return Ok(None);
        }
        let Some(stream) = &mut self.stream else { return Ok(None) };
        stream.flush()?;
        let received = stream.try_receive()?;
        self.finish();
        let Some(bytes) = received else {
            // The others depend on the program of the peer.
            let is_late = self.phase == Phase::Refused && self.timer.is_over(now);
            return if is_late { Err(ErrorKind::TimedOut.into()) } else { Ok(None) };
        };
        let frame = Frame::parse(&bytes)?;
        let (next, event) = match (self.phase, frame.kind) {
            (Phase::Requested, Kind::Accept) => (Phase::Accepted, Event::Response(frame)),
            (Phase::Requested, Kind::Refuse) => (Phase::Failed, Event::Failed(REJECTED)),
            (Phase::Greeted, Kind::Request) => (Phase::Offered, Event::Request(frame)),
            (Phase::Answered, Kind::Acknowledge) => (Phase::Connected, Event::Acknowledged),
            (phase, kind) => {
                let text =
                    format!("the peer sends a message of kind {kind:?} while it is {phase:?}");
                return Err(io::Error::new(ErrorKind::InvalidData, text));
            }
        };
        self.phase = next;
        if next == Phase::Failed {
            self.fail();
        }
        Ok(Some(event))
    }

    /// The peer has ended the connection, or it has failed.
    fn end(&mut self, error: &io::Error) -> Option<Event> {
        let is_end = error.kind() == ErrorKind::UnexpectedEof;
        if !is_end {
            crate::log::diag(&format_args!("a connection of a client and a server ends: {error}"));
        }
        let status = match error.kind() {
            ErrorKind::InvalidData => IO_ERROR,
            _ => CONNECTION_RESET,
        };
        let event = match self.phase {
            Phase::Greeted | Phase::Refused => Some(Event::Over),
            // The program learns it when it accepts.
            Phase::Offered => None,
            Phase::Connected | Phase::Accepted => Some(Event::Disconnected),
            _ => Some(Event::Failed(status)),
        };
        if is_end && event == Some(Event::Disconnected) {
            // The peer may still wait for the end of this half.
            self.phase = Phase::Left;
        } else {
            self.fail();
        }
        event
    }
}

fn of_failure(error: &ConnectFailure) -> Status {
    match error {
        // UCS_ERR_REJECTED is left to programs that refuse.
        ConnectFailure::Refused => NOT_CONNECTED,
        ConnectFailure::Handshake(HandshakeError::Verdict(_)) => CONNECTION_RESET,
        _ => UNREACHABLE,
    }
}
