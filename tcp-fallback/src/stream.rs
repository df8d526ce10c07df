//! A message stream over one connected socket, TCP or unix.

use crate::frame::{self, FrameError, Header, Parsed};
use crate::seal::Seal;
use crate::socket::RECEIVE;
use rustix::net::SendFlags;
use socket2::Socket;
use std::fmt;
use std::io::{self, ErrorKind, IoSlice, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use thiserror::Error;

/// How much is asked of the socket at a time while no frame has been announced.
const READ_AHEAD: usize = 4096;
/// A peer that is gone is an error, not a SIGPIPE.
const NO_SIGNAL: i32 = SendFlags::NOSIGNAL.bits() as i32;

/// A message as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The frame's kind.
    pub kind: u16,
    /// The frame's payload.
    pub payload: Vec<u8>,
}

/// An error of a [`Stream`]: the peer and what happened.
#[derive(Debug, Error)]
pub struct StreamError {
    peer: Option<SocketAddr>,
    #[source]
    cause: StreamCause,
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer {
            Some(peer) => write!(f, "{peer}: {}", self.cause),
            None => write!(f, "unix socket: {}", self.cause),
        }
    }
}

impl StreamError {
    fn new(peer: SocketAddr, cause: impl Into<StreamCause>) -> Self {
        Self { peer: Some(peer), cause: cause.into() }
    }

    /// The peer's address, or `None` for a unix socket.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// What happened.
    pub fn cause(&self) -> &StreamCause {
        &self.cause
    }
}

/// What happened to a [`Stream`].
#[derive(Debug, Error)]
pub enum StreamCause {
    /// The peer ended the connection between two frames.
    #[error("peer closed the connection")]
    PeerClosed,
    /// The peer ended the connection in the middle of a frame.
    #[error(
        "peer closed the connection in the middle of a message, after {received} of at least {expected} bytes"
    )]
    PeerClosedEarly {
        /// Bytes of the frame that came.
        received: usize,
        /// Bytes of the frame that were known to come.
        expected: usize,
    },
    /// The peer's end is gone without a proper close.
    #[error("peer closed the connection by a reset")]
    PeerReset,
    /// Nobody listens at the address.
    #[error("connection refused: nobody listens there")]
    Refused,
    /// The deadline passed.
    #[error("no {what} within {:.1} s", .waited.as_secs_f64())]
    TimedOut {
        /// What was waited for: `connection`, `message` or `room to send`.
        what: &'static str,
        /// How long it was waited for.
        waited: Duration,
    },
    /// What came is no frame, or what should go is too long.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// What came is not what the peer sent.
    #[error(transparent)]
    Altered(crate::seal::Altered),
    /// A send was cut off by its deadline earlier, so the frame boundaries are lost.
    #[error("an earlier message was cut off by its deadline")]
    Desynchronised,
    /// Anything else that the system says.
    #[error(transparent)]
    Io(io::Error),
}

impl StreamCause {
    /// True if the connection is over because of the peer, whichever way it went.
    pub fn is_peer_gone(&self) -> bool {
        matches!(self, Self::PeerClosed | Self::PeerClosedEarly { .. } | Self::PeerReset)
    }
}

impl From<io::Error> for StreamCause {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            _ if crate::seal::is_altered(&error) => Self::Altered(crate::seal::Altered),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
                Self::PeerReset
            }
            ErrorKind::ConnectionRefused => Self::Refused,
            _ => Self::Io(error),
        }
    }
}

/// A message stream over one connected socket, TCP or unix.
///
/// After an error of [`receive`](Self::receive) or [`try_receive`](Self::try_receive) other than
/// [`StreamCause::TimedOut`] nothing more will come.
#[derive(Debug)]
pub struct Stream {
    socket: Socket,
    peer: Option<SocketAddr>,
    limit: u32,
    inbound: Vec<u8>,
    desynchronised: bool,
    /// Of a protected connection.
    seal: Option<Box<Seal>>,
}

impl Stream {
    /// Makes a stream of a connected TCP or unix stream socket. Payloads over `limit` bytes are
    /// refused both ways.
    ///
    /// # Errors
    /// The socket is not connected, or the system refuses to set it up.
    pub fn new(socket: impl Into<Socket>, limit: u32) -> io::Result<Self> {
        let socket = socket.into();
        let peer = socket.peer_addr()?.as_socket();
        socket.set_nonblocking(false)?;
        if peer.is_some() {
            // A message is one write, and the peer waits for it: nothing is gained by delay.
            socket.set_tcp_nodelay(true)?;
        }
        Ok(Self { socket, peer, limit, inbound: Vec::new(), desynchronised: false, seal: None })
    }

    /// What follows is in records ([`seal`](crate::seal)), if there is a seal.
    pub(crate) fn protect(&mut self, seal: Option<Box<Seal>>) {
        self.seal = seal;
    }

    /// The messages are encrypted and authenticated.
    pub fn is_protected(&self) -> bool {
        self.seal.is_some()
    }

    /// Connects to `peer`.
    ///
    /// # Errors
    /// Refused, not reachable, or not answered within `timeout`.
    pub fn connect(peer: SocketAddr, limit: u32, timeout: Duration) -> Result<Self, StreamError> {
        let fail = |error: io::Error| match error.kind() {
            ErrorKind::TimedOut => {
                StreamError::new(peer, StreamCause::TimedOut { what: "connection", waited: timeout })
            }
            _ => StreamError::new(peer, error),
        };
        let socket = TcpStream::connect_timeout(&peer, at_least_a_moment(timeout)).map_err(fail)?;
        // With nobody listening, TCP's simultaneous open may join a socket on an ephemeral port with itself.
        if socket.local_addr().map_err(fail)? == peer {
            return Err(StreamError::new(peer, StreamCause::Refused));
        }
        Self::new(socket, limit).map_err(fail)
    }

    /// The peer's address, or `None` for a unix socket.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// The address of this end, or `None` for a unix socket. Packets to the peer leave from there.
    ///
    /// # Errors
    /// The system does not know it any more.
    pub fn local(&self) -> io::Result<Option<SocketAddr>> {
        Ok(self.socket.local_addr()?.as_socket())
    }

    /// Sends one message.
    ///
    /// # Errors
    /// The payload is over the limit (nothing was sent), the peer is gone, or there was no room within
    /// `timeout`; if part of the frame had gone by then, later sends fail with
    /// [`StreamCause::Desynchronised`].
    pub fn send(&mut self, kind: u16, payload: &[u8], timeout: Duration) -> Result<(), StreamError> {
        self.send_frame(kind, payload, timeout).map_err(|cause| StreamError { peer: self.peer, cause })
    }

    fn send_frame(&mut self, kind: u16, payload: &[u8], timeout: Duration) -> Result<(), StreamCause> {
        if self.desynchronised {
            return Err(StreamCause::Desynchronised);
        }
        let header = Header::new(kind, payload.len(), self.limit)?.to_bytes();
        let records;
        let (header, payload) = match &mut self.seal {
            None => (&header[..], payload),
            Some(seal) => {
                records = seal.wrap(&[&[&header, payload].concat()])?;
                (&records[..], &[][..])
            }
        };
        let deadline = Instant::now() + timeout;
        let mut sent = 0;
        while sent < header.len() + payload.len() {
            let (head, body) =
                (&header[sent.min(header.len())..], &payload[sent.saturating_sub(header.len())..]);
            let left = deadline.saturating_duration_since(Instant::now());
            self.socket.set_write_timeout(Some(at_least_a_moment(left)))?;
            let parts = [IoSlice::new(head), IoSlice::new(body)];
            match self.socket.send_vectored_with_flags(&parts, NO_SIGNAL) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => {
                    if left.is_zero() {
                        // A record that was made has its number, sent or not.
                        self.desynchronised = sent > 0 || self.seal.is_some();
                        return Err(StreamCause::TimedOut { what: "room to send", waited: timeout });
                    }
                }
                Err(error) => {
                    self.desynchronised = true;
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Waits up to `timeout` for one message.
    ///
    /// # Errors
    /// The peer is gone, what it sent is no frame, or nothing whole came in time; after a
    /// [`StreamCause::TimedOut`] the stream is as good as before.
    pub fn receive(&mut self, timeout: Duration) -> Result<Message, StreamError> {
        self.receive_by(timeout).map_err(|cause| StreamError { peer: self.peer, cause })
    }

    fn receive_by(&mut self, timeout: Duration) -> Result<Message, StreamCause> {
        let deadline = Instant::now() + timeout;
        let mut expired = false;
        loop {
            if let Some(message) = self.take()? {
                return Ok(message);
            }
            if expired {
                return Err(StreamCause::TimedOut { what: "message", waited: timeout });
            }
            // One read always takes place, so that what is there already counts whatever the deadline says.
            let left = deadline.saturating_duration_since(Instant::now());
            expired = left.is_zero();
            self.socket.set_read_timeout(Some(at_least_a_moment(left)))?;
            self.fill()?;
        }
    }

    /// Takes a message if a whole one is there, without waiting.
    ///
    /// # Errors
    /// The peer is gone (once all its messages are taken) or what it sent is no frame.
    pub fn try_receive(&mut self) -> Result<Option<Message>, StreamError> {
        let received = match self.socket.set_nonblocking(true) {
            Ok(()) => self.receive_now(),
            Err(error) => Err(error.into()),
        };
        let restored = self.socket.set_nonblocking(false).map_err(StreamCause::from);
        received
            .and_then(|message| restored.map(|()| message))
            .map_err(|cause| StreamError { peer: self.peer, cause })
    }

    fn receive_now(&mut self) -> Result<Option<Message>, StreamCause> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Takes a message out of what was read already.
    fn take(&mut self) -> Result<Option<Message>, StreamCause> {
        match frame::parse(&self.inbound, self.limit)? {
            Parsed::Frame { kind, payload, consumed } => {
                let message = Message { kind, payload: payload.to_vec() };
                self.inbound.drain(..consumed);
                Ok(Some(message))
            }
            Parsed::Need(_) => Ok(None),
        }
    }

    /// Reads once; false if nothing was there.
    fn fill(&mut self) -> Result<bool, StreamCause> {
        let held = self.inbound.len();
        let expected = match frame::parse(&self.inbound, self.limit)? {
            Parsed::Frame { .. } => held,
            Parsed::Need(need) => need,
        };
        self.inbound.resize(expected.max(held + READ_AHEAD), 0);
        let read = match &mut self.seal {
            None => self.socket.read(&mut self.inbound[held..]),
            Some(seal) => {
                self.inbound.resize(expected.max(held + RECEIVE), 0);
                let socket = &mut self.socket;
                match seal.receive(&mut self.inbound[held..], |room| socket.read(room).map(Some)) {
                    Ok(Some(count)) => Ok(count),
                    Ok(None) => Err(ErrorKind::WouldBlock.into()),
                    Err(error) => Err(error),
                }
            }
        };
        self.inbound.truncate(held + read.as_ref().map_or(0, |count| *count));
        match read {
            Ok(0) if held == 0 => Err(StreamCause::PeerClosed),
            Ok(0) => Err(StreamCause::PeerClosedEarly { received: held, expected }),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Interrupted || is_timeout(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the stream in order: sends the end of the stream, then discards what the peer still sends until it
    /// ends its side too, or `timeout` has passed. Without that, unread bytes would turn the close into a
    /// reset, which may overtake the last message.
    pub fn close(mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut rest = [0; READ_AHEAD];
        let mut open = self.socket.shutdown(Shutdown::Write).is_ok();
        while open {
            let left = deadline.saturating_duration_since(Instant::now());
            open = !left.is_zero()
                && self.socket.set_read_timeout(Some(at_least_a_moment(left))).is_ok()
                && matches!(self.socket.read(&mut rest), Ok(count) if count > 0);
        }
    }
}

/// The system reads a timeout of zero as 'wait for ever'.
fn at_least_a_moment(timeout: Duration) -> Duration {
    timeout.max(Duration::from_millis(1))
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
