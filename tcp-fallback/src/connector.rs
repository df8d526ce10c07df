//! Opening a connection, without waiting.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use socket2::Socket as Raw;
use thiserror::Error;

use crate::address::{HostAddress, is_link_local};
use crate::handshake::{
    CHALLENGE_BYTES, Claim, HandshakeError, Initiator, Session, VERDICT_BYTES, Verdict,
};
use crate::interfaces::{advise, scopes};
use crate::key::{Key, random};
use crate::listener::Limits;
use crate::socket::{Socket, open, send_whole};
use crate::stall_timer::StallTimer;
use crate::time::after;

/// The first pause between two attempts; each later one is twice as long.
const PAUSE: Duration = Duration::from_millis(5);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause after [`Verdict::Busy`]: among many connectors, the chance of each depends on
/// how often it tries.
const LONGEST_PAUSE_IF_BUSY: Duration = Duration::from_millis(100);
/// Refused attempts after which no process is assumed to listen.
const REFUSALS: u32 = 4;
/// How long the kernel may take to connect on one link before another is tried; each later attempt
/// may take longer by this.
const TURN: Duration = Duration::from_millis(500);

/// Why no connection was made.
#[derive(Debug, Error)]
pub enum ConnectFailure {
    /// No process listens at the address.
    #[error("no process listens there: the peer has ended, or its address is old")]
    Refused,
    /// The deadline passed.
    #[error("no response within {:.1} s{}", .waited.as_secs_f64(), .last.as_deref().unwrap_or_default())]
    TimedOut {
        /// The time that counted ([`StallTimer`]).
        waited: Duration,
        /// The result of the last attempt.
        last: Option<String>,
    },
    /// The handshake failed.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// A system call failed.
    #[error(transparent)]
    Io(io::Error),
}

#[derive(Debug)]
enum State {
    /// Until the next attempt.
    Pausing(Instant),
    /// The kernel connects.
    Connecting(Raw),
    /// The hello was sent.
    Greeted(Raw, Initiator),
    /// The claim was sent.
    Claimed(Raw, Session),
}

/// A connection that is being opened.
#[derive(Debug)]
pub struct Connector {
    peer: SocketAddr,
    /// The same address in the other scopes in which the peer may be.
    others: VecDeque<SocketAddr>,
    /// Until another is tried, and how long the next one gets.
    turn: (Instant, Duration),
    source: Option<HostAddress>,
    key: Key,
    claim: Claim,
    limits: Limits,
    timer: StallTimer,
    pause: Duration,
    refusals: u32,
    last: Option<String>,
    state: State,
    held: [u8; CHALLENGE_BYTES],
    count: usize,
}

/// A peer that has version 1 of the handshake, or is busy, closes the connection without a
/// response.
fn unchallenged(error: io::Error) -> io::Error {
    let words = "it closes the connection at the first message: it is busy, or has an older version of barewire";
    match error.kind() {
        kind @ (ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
            io::Error::new(kind, words)
        }
        _ => error,
    }
}

/// The addresses at which `peer` may be: one, unless it lacks the scope that it needs.
fn in_scopes(peer: SocketAddr, source: Option<HostAddress>) -> io::Result<VecDeque<SocketAddr>> {
    if !is_link_local(peer.ip()) {
        return Ok([peer].into());
    }
    let (peer, own) = match source {
        Some(source) => (source.toward(peer), source),
        None => (peer, HostAddress::from(peer)),
    };
    if own.scope() != 0 {
        return Ok([peer].into());
    }
    let found: VecDeque<_> = scopes()?
        .into_iter()
        .map(|scope| HostAddress::new(peer.ip(), scope).at(peer.port()))
        .collect();
    if found.is_empty() {
        let text = "no network interface of this host has a link-local address, which that of the \
                    peer needs: ip addr add ADDRESS dev INTERFACE";
        return Err(io::Error::new(ErrorKind::AddrNotAvailable, text));
    }
    Ok(found)
}

impl Connector {
    /// Begins to connect to `peer`, from the address `source` if one is given. Failed attempts are
    /// repeated until `timeout`, measured by a [`StallTimer`].
    ///
    /// If the peer's address is of one link, its scope is that of `source`. Without both, every
    /// interface that has such an address is tried in turn.
    ///
    /// # Errors
    /// There is no descriptor left, or `peer` cannot be reached from `source`.
    pub fn start(
        peer: SocketAddr,
        source: Option<HostAddress>,
        key: &Key,
        claim: Claim,
        timeout: Duration,
        limits: Limits,
    ) -> io::Result<Self> {
        let begun = Instant::now();
        let mut others = in_scopes(peer, source)?;
        let peer = others.pop_front().unwrap_or(peer);
        let mut this = Self {
            peer,
            others,
            turn: (begun, TURN),
            source,
            key: key.clone(),
            claim,
            limits,
            timer: StallTimer::new(timeout, begun),
            pause: PAUSE,
            refusals: 0,
            last: None,
            state: State::Pausing(begun),
            held: [0; CHALLENGE_BYTES],
            count: 0,
        };
        if this.others.is_empty() {
            this.state = this.attempt()?;
        }
        Ok(this)
    }

    /// The address that it connects to; in the scope that is being tried.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns whether the peer's kernel has accepted the connection, so that its address is right.
    pub fn is_answered(&self) -> bool {
        matches!(self.state, State::Greeted(..) | State::Claimed(..))
    }

    fn attempt(&self) -> io::Result<State> {
        let socket = open(self.peer)?;
        if let Some(source) = self.source {
            // The kernel chooses the port per peer, so that there can be more connections than
            // ports.
            socket.set_reuse_address(true)?;
            let source = source.at(0);
            socket.bind(&source.into()).map_err(|error| advise(source, error))?;
        }
        match socket.connect(&self.peer.into()) {
            Err(error)
                if error.kind() != ErrorKind::WouldBlock
                    && error.raw_os_error()
                        != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) =>
            {
                Err(advise(self.peer, error))
            }
            _ => Ok(State::Connecting(socket)),
        }
    }

    /// Advances until the connection is open, and calls `between` in between.
    pub fn wait(mut self, mut between: impl FnMut()) -> Result<Socket, ConnectFailure> {
        loop {
            if let Some(socket) = self.advance(Instant::now())? {
                return Ok(socket);
            }
            between();
        }
    }

    /// Does what can be done without waiting. Returns the connection once it is open.
    pub fn advance(&mut self, now: Instant) -> Result<Option<Socket>, ConnectFailure> {
        match self.step(now) {
            Ok(None) => {}
            Ok(Some((socket, session))) => {
                let made = session.seal_connecting().and_then(|seal| {
                    Socket::new(socket, self.peer, self.limits.peer_timeout, seal)
                });
                return made.map(Some).map_err(ConnectFailure::Io);
            }
            Err(ConnectFailure::Io(error)) => self.again(now, error)?,
            Err(ConnectFailure::Handshake(busy @ HandshakeError::Verdict(Verdict::Busy))) => {
                self.pause(now, LONGEST_PAUSE_IF_BUSY, &busy);
            }
            Err(failure) => match self.others.pop_front() {
                // Another host has the same address on this link.
                Some(other) => {
                    self.peer = other;
                    self.last = Some(format!(" ({failure})"));
                    self.state = State::Pausing(now);
                }
                None => return Err(failure),
            },
        }
        if self.timer.is_over(now) {
            return Err(ConnectFailure::TimedOut {
                waited: self.timer.spent(),
                last: self.last.take(),
            });
        }
        Ok(None)
    }

    /// An attempt failed: plans another one if that may help.
    fn again(&mut self, now: Instant, error: io::Error) -> Result<(), ConnectFailure> {
        match error.kind() {
            ErrorKind::ConnectionRefused => {
                self.refusals = self.refusals.saturating_add(1);
                if self.refusals as usize / REFUSALS as usize > self.others.len() {
                    return Err(ConnectFailure::Refused);
                }
            }
            // A busy peer may have dropped the handshake, and a link may come back.
            ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
            | ErrorKind::UnexpectedEof
            | ErrorKind::TimedOut
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown => {}
            // The interface of this scope has no such address any more.
            _ if !self.others.is_empty() => {}
            _ => return Err(ConnectFailure::Io(error)),
        }
        if let Some(other) = self.others.pop_front() {
            self.others.push_back(std::mem::replace(&mut self.peer, other));
        }
        self.pause(now, LONGEST_PAUSE, &error);
        Ok(())
    }

    /// Plans another attempt, after a pause of at most `longest`.
    fn pause(&mut self, now: Instant, longest: Duration, reason: &dyn Display) {
        self.last = Some(format!(" ({reason})"));
        self.state = State::Pausing(after(now, self.pause.min(longest)));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    fn step(&mut self, now: Instant) -> Result<Option<(Raw, Session)>, ConnectFailure> {
        let failed = ConnectFailure::Io;
        loop {
            let state = std::mem::replace(&mut self.state, State::Pausing(now));
            match state {
                State::Pausing(until) if now < until => {
                    self.state = State::Pausing(until);
                    return Ok(None);
                }
                State::Pausing(_) => {
                    let (_, length) = self.turn;
                    self.turn = (after(now, length), length.saturating_add(TURN));
                    self.state = self.attempt().map_err(failed)?;
                }
                State::Connecting(socket) => {
                    if let Some(error) = socket.take_error().map_err(failed)? {
                        return Err(failed(error));
                    }
                    if socket.peer_addr().is_err() {
                        if !self.others.is_empty() && now >= self.turn.0 {
                            return Err(failed(ErrorKind::TimedOut.into()));
                        }
                        self.state = State::Connecting(socket);
                        return Ok(None);
                    }
                    // If no process listens, TCP's simultaneous open may connect a socket to
                    // itself.
                    if socket.local_addr().map_err(failed)?.as_socket() == Some(self.peer) {
                        return Err(failed(ErrorKind::ConnectionRefused.into()));
                    }
                    let challenge = random().map_err(failed)?;
                    let initiator = Initiator::new(self.claim, challenge, self.limits.protected);
                    send_whole(&socket, initiator.hello()).map_err(failed)?;
                    self.count = 0;
                    self.state = State::Greeted(socket, initiator);
                }
                State::Greeted(socket, initiator) => {
                    if !self
                        .receive(&socket, CHALLENGE_BYTES)
                        .map_err(|error| failed(unchallenged(error)))?
                    {
                        self.state = State::Greeted(socket, initiator);
                        return Ok(None);
                    }
                    let (claim, session) = initiator.prove(&self.key, &self.held)?;
                    send_whole(&socket, &claim).map_err(failed)?;
                    self.state = State::Claimed(socket, session);
                }
                State::Claimed(socket, session) => {
                    if !self.receive(&socket, VERDICT_BYTES).map_err(failed)? {
                        self.state = State::Claimed(socket, session);
                        return Ok(None);
                    }
                    session.judge(self.held.first_chunk().ok_or(HandshakeError::Foreign)?)?;
                    return Ok(Some((socket, session)));
                }
            }
        }
    }

    /// Receives up to `wanted` bytes of the handshake, and not one that follows it. Returns true
    /// once they are complete.
    fn receive(&mut self, socket: &Raw, wanted: usize) -> io::Result<bool> {
        use rustix::io::Errno;
        while self.count < wanted {
            let flags = rustix::net::RecvFlags::DONTWAIT;
            match rustix::net::recv(socket, &mut self.held[self.count..wanted], flags) {
                Ok((0, _)) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok((count, _)) => self.count += count,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.count = 0;
        Ok(true)
    }
}
