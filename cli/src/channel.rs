//! Messages over one connected socket: the length of a message in bytes as a little-endian `u32`,
//! then its bytes.
//!
//! The peer is authenticated before a channel is created from the socket: by its user
//! (`SO_PEERCRED`) on a Unix socket, by the job key ([`keyed`](crate::keyed)) over TCP.

use barewire_tcp::outbox::{Outbox, SendError, Spare};
use barewire_tcp::socket::{RECEIVE, Socket};
use barewire_tcp::time::after;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Bytes of the longest message.
pub const LIMIT: usize = 64 << 10;
/// Bytes of the length in front of a message.
const LENGTH: usize = size_of::<u32>();

/// The reason why a message could not be sent or received.
#[derive(Debug, Error)]
pub enum ChannelError {
    /// The peer closed the connection between two messages.
    #[error("peer closed the connection")]
    PeerClosed,
    /// The peer closed the connection in the middle of a message.
    #[error(
        "peer closed the connection in the middle of a message, after {received} of at least {expected} bytes"
    )]
    PeerClosedEarly {
        /// Bytes of the message and its length that were received.
        received: usize,
        /// Bytes of the message and its length, as far as known.
        expected: usize,
    },
    /// The peer reset the connection.
    #[error("peer closed the connection by a reset")]
    PeerReset,
    /// The timeout expired.
    #[error("no {what} within {:.1} s", .waited.as_secs_f64())]
    TimedOut {
        /// `message` or `room to send`.
        what: &'static str,
        /// The timeout.
        waited: Duration,
    },
    /// A message is longer than [`LIMIT`], or the peer does not send messages.
    #[error(
        "a message of {length} bytes is over the limit of {LIMIT} bytes: use the same barewire at both ends"
    )]
    TooLong {
        /// The length of the message in bytes.
        length: usize,
    },
    /// Any other error of the connection.
    #[error(transparent)]
    Io(io::Error),
}

impl ChannelError {
    /// Returns `true` if the peer closed or reset the connection.
    pub fn is_peer_gone(&self) -> bool {
        matches!(self, Self::PeerClosed | Self::PeerClosedEarly { .. } | Self::PeerReset)
    }
}

impl From<io::Error> for ChannelError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
                Self::PeerReset
            }
            _ => Self::Io(error),
        }
    }
}

/// The result of parsing the start of a byte stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// A complete message.
    Message(&'a [u8]),
    /// The start of a message. At least this many bytes are needed.
    Need(usize),
}

/// Parses the start of a byte stream.
///
/// # Errors
/// [`ChannelError::TooLong`]: the stream cannot be parsed any further.
pub fn parse(bytes: &[u8]) -> Result<Parsed<'_>, ChannelError> {
    let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(Parsed::Need(LENGTH)) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > LIMIT {
        return Err(ChannelError::TooLong { length });
    }
    Ok(rest.get(..length).map_or(Parsed::Need(LENGTH + length), Parsed::Message))
}

/// A nonblocking socket, and the bytes that it has not accepted yet.
#[derive(Debug)]
enum Wire {
    Unix { socket: UnixStream, unsent: Vec<u8> },
    Tcp { socket: Socket, outbox: Outbox, spare: Spare },
}

impl Wire {
    /// Reads into `buffer`, which has room for [`RECEIVE`] bytes. Returns `None` if there is
    /// nothing to read, and zero at the end of the stream.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self {
            Self::Tcp { socket, .. } => socket.receive(buffer),
            Self::Unix { socket, .. } => loop {
                match socket.read(buffer) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                    read => return read.map(Some),
                }
            },
        }
    }

    /// Appends bytes to the unsent ones. There is room for one message if none are unsent.
    fn push(&mut self, bytes: &[u8]) -> bool {
        match self {
            Self::Tcp { outbox, spare, .. } => outbox.push(spare, bytes),
            Self::Unix { unsent, .. } => {
                unsent.extend_from_slice(bytes);
                true
            }
        }
    }

    /// Sends as much as the socket accepts. Returns `true` once nothing is unsent.
    fn flush(&mut self) -> io::Result<bool> {
        match self {
            Self::Tcp { socket, outbox, spare } => {
                outbox.flush(socket, spare).map_err(|error| match error {
                    SendError::Io(error) => error,
                    SendError::Revoked => io::Error::other(error),
                })
            }
            Self::Unix { socket, unsent } => {
                while !unsent.is_empty() {
                    match socket.write(unsent) {
                        Ok(count) => drop(unsent.drain(..count)),
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                        Err(error) => return Err(error),
                    }
                }
                Ok(true)
            }
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix { socket, .. } => socket.as_fd(),
            Self::Tcp { socket, .. } => socket.as_fd(),
        }
    }
}

/// One end of a control connection.
///
/// After any error of [`receive`](Self::receive) and [`try_receive`](Self::try_receive) except
/// [`ChannelError::TimedOut`], no message follows.
#[derive(Debug)]
pub struct Channel {
    wire: Wire,
    peer: Option<SocketAddr>,
    /// Bytes that were read and not returned yet.
    inbound: Vec<u8>,
}

impl From<Socket> for Channel {
    fn from(socket: Socket) -> Self {
        let peer = Some(socket.peer());
        let wire = Wire::Tcp { socket, outbox: Outbox::default(), spare: Spare::default() };
        Self { wire, peer, inbound: Vec::new() }
    }
}

impl Channel {
    /// Creates a channel from a connected Unix socket.
    ///
    /// # Errors
    /// The descriptor is not a connected socket.
    pub fn unix(socket: UnixStream) -> io::Result<Self> {
        socket.peer_addr()?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            wire: Wire::Unix { socket, unsent: Vec::new() },
            peer: None,
            inbound: Vec::new(),
        })
    }

    /// The peer's address, or `None` for a Unix socket.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// The address of this end, or `None` for a Unix socket.
    ///
    /// # Errors
    /// The kernel no longer has the address.
    pub fn local(&self) -> io::Result<Option<SocketAddr>> {
        Ok(SockRef::from(&self.wire).local_addr()?.as_socket())
    }

    /// Sends one message.
    ///
    /// # Errors
    /// The message is longer than [`LIMIT`] (nothing is sent), the peer closed the connection, or
    /// the socket had no room within `timeout`. In the last case the rest of the message is sent
    /// with the next one.
    pub fn send(&mut self, message: &[u8], timeout: Duration) -> Result<(), ChannelError> {
        let length = message.len();
        if length > LIMIT {
            return Err(ChannelError::TooLong { length });
        }
        let deadline = after(Instant::now(), timeout);
        let timed_out = ChannelError::TimedOut { what: "room to send", waited: timeout };
        if !self.flush(deadline)? {
            return Err(timed_out);
        }
        let has_room = self.wire.push(&(length as u32).to_le_bytes()) && self.wire.push(message);
        debug_assert!(has_room, "an empty outbox takes a message");
        if self.flush(deadline)? { Ok(()) } else { Err(timed_out) }
    }

    /// Sends the unsent bytes. Returns `false` if the deadline passed before.
    fn flush(&mut self, deadline: Instant) -> Result<bool, ChannelError> {
        while !self.wire.flush()? {
            if !self.wait(PollFlags::OUT, deadline)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits up to `timeout` for one message.
    ///
    /// # Errors
    /// The peer closed the connection, its message is too long, or no complete message was received
    /// in time.
    pub fn receive(&mut self, timeout: Duration) -> Result<Vec<u8>, ChannelError> {
        let deadline = after(Instant::now(), timeout);
        loop {
            if let Some(message) = self.try_receive()? {
                return Ok(message);
            }
            if !self.wait(PollFlags::IN, deadline)? {
                return Err(ChannelError::TimedOut { what: "message", waited: timeout });
            }
        }
    }

    /// Returns a message if a complete one was received, without waiting.
    ///
    /// # Errors
    /// The peer closed the connection and all its messages were returned, or a message is too long.
    pub fn try_receive(&mut self) -> Result<Option<Vec<u8>>, ChannelError> {
        loop {
            let expected = match parse(&self.inbound)? {
                Parsed::Need(expected) => expected,
                Parsed::Message(message) => {
                    let message = message.to_vec();
                    self.inbound.drain(..LENGTH + message.len());
                    return Ok(Some(message));
                }
            };
            let received = self.inbound.len();
            self.inbound.resize(received + RECEIVE, 0);
            let read = self.wire.read(&mut self.inbound[received..]);
            let count = read.as_ref().map_or(0, |count| count.unwrap_or(0));
            self.inbound.truncate(received + count);
            match read? {
                None => return Ok(None),
                Some(0) if received == 0 => return Err(ChannelError::PeerClosed),
                Some(0) => return Err(ChannelError::PeerClosedEarly { received, expected }),
                Some(_) => {}
            }
        }
    }

    /// Waits for an event of the socket. Returns `false` if the deadline passed.
    fn wait(&self, events: PollFlags, deadline: Instant) -> io::Result<bool> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        wait(&self.wire, events, left)?;
        Ok(true)
    }

    /// Closes the connection in order: shuts down the outgoing half, then discards received bytes
    /// until the peer closes its half or `timeout` expires. With unread bytes the kernel would
    /// reset the connection, and the reset may overtake the last message.
    pub fn close(mut self, timeout: Duration) {
        let deadline = after(Instant::now(), timeout);
        let mut rest = vec![0; RECEIVE];
        let mut is_open = SockRef::from(&self.wire).shutdown(Shutdown::Write).is_ok();
        while is_open && Instant::now() < deadline {
            is_open = match self.wire.read(&mut rest) {
                Ok(Some(0)) | Err(_) => false,
                Ok(Some(_)) => true,
                Ok(None) => self.wait(PollFlags::IN, deadline).unwrap_or(false),
            };
        }
    }
}

/// Waits for an event of a descriptor, at most for `time`.
pub(crate) fn wait(descriptor: &impl AsFd, events: PollFlags, time: Duration) -> io::Result<()> {
    let seconds = time.as_secs().min(u32::MAX.into());
    let timeout = Timespec { tv_sec: seconds as _, tv_nsec: time.subsec_nanos().into() };
    match poll(&mut [PollFd::new(descriptor, events)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
