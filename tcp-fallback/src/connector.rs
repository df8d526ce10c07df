//! Opening a connection, without waiting.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use socket2::Socket as Raw;
use thiserror::Error;

use crate::handshake::{CHALLENGE_BYTES, Claim, HandshakeError, Initiator, Session, VERDICT_BYTES};
use crate::interfaces::advise;
use crate::key::{Key, random};
use crate::listener::Limits;
use crate::socket::{Socket, open, send_whole};
use crate::stall_timer::StallTimer;
use crate::time::after;

/// The first pause between two attempts; each later one is twice as long.
const PAUSE: Duration = Duration::from_millis(5);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Refused attempts after which no process is assumed to listen.
const REFUSALS: u32 = 4;

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
    source: Option<IpAddr>,
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

impl Connector {
    /// Begins to connect to `peer`, from the address `source` if one is given. Failed attempts are
    /// repeated until `timeout`, measured by a [`StallTimer`].
    ///
    /// # Errors
    /// There is no descriptor left, or `peer` cannot be reached from `source`.
    pub fn start(
        peer: SocketAddr,
        source: Option<IpAddr>,
        key: &Key,
        claim: Claim,
        timeout: Duration,
        limits: Limits,
    ) -> io::Result<Self> {
        let begun = Instant::now();
        let mut this = Self {
            peer,
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
        this.state = this.attempt()?;
        Ok(this)
    }

    /// The address that it connects to.
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
            let source = SocketAddr::new(source, 0);
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
    ///
    /// # Errors
    /// [`ConnectFailure`]
    pub fn wait(mut self, mut between: impl FnMut()) -> Result<Socket, ConnectFailure> {
        loop {
            if let Some(socket) = self.advance(Instant::now())? {
                return Ok(socket);
            }
            between();
        }
    }

    /// Does what can be done without waiting. Returns the connection once it is open.
    ///
    /// # Errors
    /// [`ConnectFailure`]
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
            Err(other) => return Err(other),
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
                self.refusals += 1;
                if self.refusals >= REFUSALS {
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
            _ => return Err(ConnectFailure::Io(error)),
        }
        self.last = Some(format!(" ({error})"));
        self.state = State::Pausing(after(now, self.pause));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
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
                State::Pausing(_) => self.state = self.attempt().map_err(failed)?,
                State::Connecting(socket) => {
                    if let Some(error) = socket.take_error().map_err(failed)? {
                        return Err(failed(error));
                    }
                    if socket.peer_addr().is_err() {
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
