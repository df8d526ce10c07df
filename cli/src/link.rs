//! The control connection to the peer, and detection of the peer's end.

use crate::control::{Message, PROTOCOL};
use crate::error::{Error, chain};
use crate::pair::Second;
use crate::peer::{Peer, Role, Work};
use barewire_tcp::HostAddress;
use barewire_tcp::frames::{FrameError, Stream};
use barewire_tcp::stall_timer::StallTimer;
use barewire_tcp::time::after;
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// The connection fails if nothing is received from the peer for this long.
pub(crate) const SILENCE: Duration = Duration::from_secs(5);
/// Interval of the messages that report that this process is alive.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// Interval between two checks of the control connection.
const LOOK: Duration = Duration::from_millis(1);
/// Time limit for sending one control message.
const SEND: Duration = Duration::from_secs(3);
/// How long a failing operation waits for the control connection to report a better reason.
const EXPLANATION: Duration = Duration::from_secs(1);
/// Time limit for an orderly end.
const FAREWELL: Duration = Duration::from_secs(5);
const FAREWELL_WORDS: &str = "the farewell";
/// Bytes of the longest message of the peer.
pub(crate) const LONGEST: usize = 64 << 10;
/// Most messages that are received in advance.
const INBOX: usize = 64;

/// The control connection of one side.
#[derive(Debug)]
pub(crate) struct Link {
    stream: Option<Stream>,
    peer: Peer,
    second: Option<Second>,
    inbox: VecDeque<Message>,
    heard: StallTimer,
    looked: Instant,
    sent: Instant,
    peer_finished: bool,
}

impl Link {
    /// Greets the peer at the other end of `stream` and checks that it is compatible. The peer is
    /// already authenticated. `second` is the peer process if this process started it.
    pub(crate) fn open(
        stream: Stream,
        role: Role,
        work: Work,
        place: Option<String>,
        second: Option<Second>,
    ) -> Result<Self, Error> {
        let pid = second.as_ref().map(Second::pid);
        let peer = Peer { role: role.counterpart(), pid, place };
        let now = Instant::now();
        let mut link = Self {
            stream: Some(stream),
            peer,
            second,
            inbox: VecDeque::new(),
            heard: StallTimer::new(SILENCE, now),
            looked: now,
            sent: now,
            peer_finished: false,
        };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let hello =
            Message::Hello { protocol: PROTOCOL, version, work, role, pid: std::process::id() };
        let greeted = link.send(&hello, "the greeting").and_then(|()| link.greeted(work));
        match greeted {
            Ok(()) => Ok(link),
            Err(error) => {
                link.finish(Some(&error));
                Err(error)
            }
        }
    }

    fn greeted(&mut self, ours: Work) -> Result<(), Error> {
        match self.message("the greeting")? {
            Message::Hello { protocol, version, .. } if protocol != PROTOCOL => Err(self.protocol(format!(
                "it speaks control protocol {protocol} (barewire {version}), this end speaks {PROTOCOL}"
            ))),
            Message::Hello { work, .. } if work != ours => {
                Err(self.protocol(format!("it runs 'barewire {work}', this end 'barewire {ours}'")))
            }
            Message::Hello { role, .. } if role != self.peer.role => {
                Err(self.protocol(format!("its role is {role}")))
            }
            Message::Hello { pid, .. } => {
                self.peer.pid = Some(pid);
                Ok(())
            }
            other => Err(self.unexpected(&other, "hello")),
        }
    }

    /// The peer, for errors.
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The source address of packets to the peer.
    pub(crate) fn local(&self) -> Option<HostAddress> {
        let address = self.stream.as_ref()?.local().ok()?;
        Some(address.map_or(Ipv4Addr::LOCALHOST.into(), HostAddress::from))
    }

    /// Returns whether the peer is on this machine: both ends of the connection have the same
    /// address, or it is a Unix socket.
    pub(crate) fn is_near(&self) -> bool {
        self.stream.as_ref().is_none_or(|stream| {
            let (here, peer) = (self.local(), stream.peer().ip().to_canonical());
            stream.is_unix() || here.is_some_and(|here| here.ip().to_canonical() == peer)
        })
    }

    /// Returns whether one of the two processes started the other.
    pub(crate) fn is_pair(&self) -> bool {
        matches!(self.peer.role, Role::First | Role::Second)
    }

    /// The error for a peer that violates the protocol.
    pub(crate) fn protocol(&self, what: String) -> Error {
        Error::Protocol { peer: self.peer.clone(), what }
    }

    /// The error for an unexpected message.
    pub(crate) fn unexpected(&self, got: &Message, wanted: &str) -> Error {
        self.protocol(format!("it sent '{}' instead of '{wanted}'", got.name()))
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, message: &Message, during: &str) -> Result<(), Error> {
        let Some(stream) = &mut self.stream else {
            return Err(Error::Local("the control connection is closed".into()));
        };
        self.sent = Instant::now();
        match stream.send(&message.to_bytes(), SEND) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.lost(&error, during)),
        }
    }

    /// Maintains the connection, at most once a millisecond: sends heartbeats, receives messages,
    /// and fails if the peer has ended or sends nothing. Must be called often.
    pub(crate) fn tend(&mut self, now: Instant, during: &str) -> Result<(), Error> {
        if now.saturating_duration_since(self.looked) < LOOK {
            return Ok(());
        }
        self.looked = now;
        if now.saturating_duration_since(self.sent) >= HEARTBEAT {
            match self.send(&Message::Alive, during) {
                // A peer that has finished may have closed its end.
                Err(_) if self.peer_finished => {}
                sent => sent?,
            }
        }
        if self.peer_finished {
            return Ok(());
        }
        while let Some(stream) = &mut self.stream {
            match stream.try_receive() {
                Ok(Some(message)) => {
                    self.heard = StallTimer::new(SILENCE, now);
                    self.take_in(&message, during)?;
                }
                Ok(None) => break,
                Err(error) => return Err(self.lost(&error, during)),
            }
            if self.peer_finished {
                return Ok(());
            }
        }
        if self.heard.is_over(now) {
            return Err(Error::PeerSilent {
                peer: self.peer.clone(),
                during: during.to_owned(),
                silence: SILENCE,
            });
        }
        Ok(())
    }

    fn take_in(&mut self, message: &[u8], during: &str) -> Result<(), Error> {
        match Message::from_bytes(message).map_err(|what| self.protocol(what))? {
            Message::Alive => {}
            Message::Goodbye { reason: Some(reason) } => {
                return Err(Error::PeerGaveUp {
                    peer: self.peer.clone(),
                    during: during.to_owned(),
                    reason: crate::error::one_line(&reason),
                });
            }
            message => {
                self.peer_finished = matches!(message, Message::Goodbye { .. });
                if self.inbox.len() == INBOX {
                    return Err(self.protocol("it sends unsolicited messages".into()));
                }
                self.inbox.push_back(message);
            }
        }
        Ok(())
    }

    /// Maintains the connection and returns the next message, if there is one. Messages of the peer
    /// take precedence over its end.
    pub(crate) fn next(&mut self, now: Instant, during: &str) -> Result<Option<Message>, Error> {
        match self.tend(now, during) {
            Err(Error::PeerGone { .. }) if !self.inbox.is_empty() => {}
            tended => tended?,
        }
        self.take(during)
    }

    /// Returns the oldest message that has been received.
    fn take(&mut self, during: &str) -> Result<Option<Message>, Error> {
        match self.inbox.pop_front() {
            Some(Message::Goodbye { .. }) => {
                self.inbox.clear();
                Err(self.protocol(format!("it ended its work during {during}")))
            }
            None if self.peer_finished => {
                Err(self.protocol(format!("it ended its work before {during}")))
            }
            message => Ok(message),
        }
    }

    /// Waits for the next message.
    pub(crate) fn message(&mut self, during: &str) -> Result<Message, Error> {
        loop {
            if let Some(message) = self.next(Instant::now(), during)? {
                return Ok(message);
            }
            std::thread::sleep(LOOK / 2);
        }
    }

    /// Returns a better reason for `error` if the control connection has one: when a peer ends,
    /// errors of operations may arrive before the end of the connection.
    pub(crate) fn explain(&mut self, error: Error, during: &str) -> Error {
        let deadline = after(Instant::now(), EXPLANATION);
        while Instant::now() < deadline {
            match self.tend(Instant::now(), during) {
                Ok(()) => std::thread::sleep(LOOK),
                Err(better) => return better,
            }
        }
        error
    }

    /// Maps an error of the control connection.
    fn lost(&mut self, error: &FrameError, during: &str) -> Error {
        let peer = self.peer.clone();
        if let FrameError::TooLong { .. } = error {
            return Error::Protocol { peer, what: error.to_string() };
        }
        // Sending may fail although the last message of the peer has already arrived.
        while let Some(Ok(Some(message))) = self.stream.as_mut().map(Stream::try_receive) {
            if let Err(last @ Error::PeerGaveUp { .. }) = self.take_in(&message, during) {
                return last;
            }
        }
        let ended = if error.is_peer_gone() {
            self.second.as_mut().and_then(|second| second.wait(EXPLANATION))
        } else {
            None
        };
        let cause = match ended {
            Some(status) => format!("it ended with {status}"),
            None => chain(error),
        };
        Error::PeerGone { peer, during: during.to_owned(), cause }
    }

    /// Ends the pair: in order, or by sending the reason to the peer if there is an error. On
    /// return the connection is closed and a second process started by this one has ended.
    pub(crate) fn finish(mut self, error: Option<&Error>) -> Finished {
        let told = match error {
            Some(error) if error.peer_is_done() => matches!(error, Error::PeerGaveUp { .. }),
            _ => {
                let reason = error.map(|error| crate::error::one_line(&error.to_string()));
                let silent = matches!(error, Some(Error::PeerSilent { .. }));
                self.send(&Message::Goodbye { reason }, FAREWELL_WORDS).is_ok() && !silent
            }
        };
        let mut outcome = if error.is_none() { self.farewell() } else { Ok(()) };
        let patience = match error {
            None if outcome.is_ok() => FAREWELL,
            Some(_) if told => EXPLANATION,
            _ => Duration::ZERO,
        };
        let deadline = after(Instant::now(), patience);
        if let Some(stream) = self.stream.take() {
            stream.close(patience);
        }
        if let Some(mut second) = self.second.take() {
            let ended = second.wait(deadline.saturating_duration_since(Instant::now()));
            if error.is_none() && outcome.is_ok() {
                outcome = match ended {
                    Some(status) if status.success() => Ok(()),
                    Some(status) => Err(self.gone(format!("it ended with {status}"))),
                    None => Err(self.gone("it does not end".into())),
                };
            }
        }
        Finished { told, outcome }
    }

    fn gone(&self, cause: String) -> Error {
        Error::PeerGone { peer: self.peer.clone(), during: FAREWELL_WORDS.into(), cause }
    }

    /// Waits for the peer's goodbye.
    fn farewell(&mut self) -> Result<(), Error> {
        while !self.peer_finished {
            self.tend(Instant::now(), FAREWELL_WORDS)?;
            std::thread::sleep(LOOK);
        }
        match self.inbox.pop_front() {
            Some(Message::Goodbye { .. }) | None => Ok(()),
            Some(other) => Err(self.unexpected(&other, "goodbye")),
        }
    }
}

/// The result of ending a pair.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The peer has the reason and can report it to the user.
    pub(crate) told: bool,
    /// The result of the end itself.
    pub(crate) outcome: Result<(), Error>,
}
