//! Frames: messages over one connection, each behind its length in bytes, a little-endian `u32`.
//!
//! Nothing is allocated for the length that a peer states, but for what has arrived. The peer is
//! authenticated before a [`Stream`] exists: by the job's key over TCP, by its user over a Unix
//! socket.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use socket2::SockRef;
use thiserror::Error;

use crate::Key;
use crate::connector::{ConnectFailure, Connector};
use crate::handshake::{Claim, Verdict};
use crate::listener::{Authenticated, Limits, Listener};
use crate::outbox::{Outbox, SendError, Spare};
use crate::socket::{RECEIVE, Socket, wait};
use crate::time::after;

/// Bytes of the length in front of a message.
const LENGTH: usize = size_of::<u32>();
/// Bytes of a message that are handed to the outbox at a time.
const PIECE: usize = 128 << 10;
/// Time between two calls of a connector.
const PAUSE: Duration = Duration::from_millis(1);

thread_local! {
    /// Room for what is read of any stream.
    static SCRATCH: Cell<Box<[u8]>> = Cell::default();
}

/// The reason why a message could not be sent or received.
#[derive(Debug, Error)]
pub enum FrameError {
    /// The peer closed the connection between two messages.
    #[error("peer closed the connection")]
    Closed,
    /// The peer closed the connection in the middle of a message.
    #[error(
        "peer closed the connection in the middle of a message, after {received} of at least {expected} bytes"
    )]
    ClosedEarly {
        /// Bytes of the message and its length that were received.
        received: usize,
        /// Bytes of the message and its length, as far as known.
        expected: usize,
    },
    /// The peer reset the connection.
    #[error("peer closed the connection by a reset")]
    Reset,
    /// The timeout expired.
    #[error("no {what} within {:.1} s", .waited.as_secs_f64())]
    TimedOut {
        /// `message` or `room to send`.
        what: &'static str,
        /// The timeout.
        waited: Duration,
    },
    /// A message is longer than the limit, or the peer does not send messages.
    #[error(
        "a message of {length} bytes is over the limit of {longest} bytes: use the same barewire at both ends"
    )]
    TooLong {
        /// The length of the message in bytes.
        length: usize,
        /// The limit.
        longest: usize,
    },
    /// Any other error of the connection.
    #[error(transparent)]
    Io(io::Error),
}

impl FrameError {
    /// Returns `true` if the peer closed or reset the connection.
    pub fn is_peer_gone(&self) -> bool {
        matches!(self, Self::Closed | Self::ClosedEarly { .. } | Self::Reset)
    }
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
                Self::Reset
            }
            _ => Self::Io(error),
        }
    }
}

/// Of the end of the stream, the kind is [`ErrorKind::UnexpectedEof`].
impl From<FrameError> for io::Error {
    fn from(error: FrameError) -> Self {
        let kind = match &error {
            FrameError::Closed | FrameError::ClosedEarly { .. } => ErrorKind::UnexpectedEof,
            FrameError::Reset => ErrorKind::ConnectionReset,
            FrameError::TimedOut { .. } => ErrorKind::TimedOut,
            FrameError::TooLong { .. } => ErrorKind::InvalidData,
            FrameError::Io(_) => ErrorKind::Other,
        };
        match error {
            FrameError::Io(error) => error,
            error => Self::new(kind, error),
        }
    }
}

impl From<SendError> for FrameError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Io(error) => error.into(),
            SendError::Revoked => Self::Io(io::Error::other(error)),
        }
    }
}

/// A message of less than 4 GiB behind its length.
pub fn frame(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u32).to_le_bytes()[..], message].concat()
}

/// Received bytes, of which messages are taken. Without bytes it has no memory.
#[derive(Debug)]
pub struct Received {
    bytes: Vec<u8>,
    /// Bytes at the front that were taken.
    taken: usize,
    longest: usize,
}

impl Received {
    /// Accepts messages of at most `longest` bytes.
    pub fn new(longest: usize) -> Self {
        Self { bytes: Vec::new(), taken: 0, longest }
    }

    /// Sets how long the next messages may be.
    pub fn limit(&mut self, longest: usize) {
        self.longest = longest;
    }

    fn rest(&self) -> &[u8] {
        self.bytes.get(self.taken..).unwrap_or_default()
    }

    /// Bytes that were not taken.
    pub fn waiting(&self) -> usize {
        self.rest().len()
    }

    /// Adds bytes as they were received.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes.drain(..std::mem::take(&mut self.taken));
        // At most twice what has arrived, and no more than the message needs.
        let missing = self.expected().unwrap_or(0).saturating_sub(self.bytes.len());
        let more = bytes.len().max(missing.min(self.bytes.len()));
        self.bytes.try_reserve_exact(more).map_err(|_| ErrorKind::OutOfMemory)?;
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Bytes of the first message and its length, as far as known.
    ///
    /// # Errors
    /// [`FrameError::TooLong`]: no message follows.
    pub fn expected(&self) -> Result<usize, FrameError> {
        let Some(length) = self.rest().first_chunk() else { return Ok(LENGTH) };
        let (length, longest) = (u32::from_le_bytes(*length) as usize, self.longest);
        if length > longest {
            return Err(FrameError::TooLong { length, longest });
        }
        Ok(LENGTH + length)
    }

    /// Returns whether a whole message is there.
    ///
    /// # Errors
    /// As [`Self::expected`].
    pub fn has_one(&self) -> Result<bool, FrameError> {
        Ok(self.waiting() >= LENGTH && self.waiting() >= self.expected()?)
    }

    /// Takes the first message, if it is whole.
    ///
    /// # Errors
    /// As [`Self::expected`].
    pub fn take(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        if !self.has_one()? {
            return Ok(None);
        }
        let end = self.taken + self.expected()?;
        if self.taken == 0 && end > RECEIVE {
            // Long messages are not copied: there may be no memory for a second one.
            let rest = self.bytes.split_off(end);
            let mut message = std::mem::replace(&mut self.bytes, rest);
            message.drain(..LENGTH);
            return Ok(Some(message));
        }
        let message = self.bytes.get(self.taken + LENGTH..end).unwrap_or_default().to_vec();
        self.taken = end;
        if end == self.bytes.len() {
            (self.bytes, self.taken) = (Vec::new(), 0);
        }
        Ok(Some(message))
    }

    /// The error for the end of the stream.
    fn end(&self) -> FrameError {
        match (self.waiting(), self.expected()) {
            (0, _) => FrameError::Closed,
            (received, Ok(expected)) => FrameError::ClosedEarly { received, expected },
            (_, Err(error)) => error,
        }
    }
}

/// One end of a connection that carries messages.
///
/// After any error of [`receive`](Self::receive) and [`try_receive`](Self::try_receive) except
/// [`FrameError::TimedOut`], no message follows.
#[derive(Debug)]
pub struct Stream {
    socket: Socket,
    outbox: Outbox,
    received: Received,
    /// Only a part of a long message was sent in time.
    is_cut: bool,
    is_unix: bool,
}

impl Stream {
    /// Sends messages over a connection, and receives messages of at most `longest` bytes.
    pub fn new(socket: Socket, longest: usize) -> Self {
        let (outbox, received) = (Outbox::default(), Received::new(longest));
        Self { socket, outbox, received, is_cut: false, is_unix: false }
    }

    /// The same over a connected Unix socket.
    ///
    /// # Errors
    /// The descriptor is not a connected socket.
    pub fn unix(socket: UnixStream, longest: usize) -> io::Result<Self> {
        socket.peer_addr()?;
        Ok(Self { is_unix: true, ..Self::new(Socket::unix(socket)?, longest) })
    }

    /// Connects to a [`StreamListener`] with the same key and claim, within `timeout`.
    pub fn connect(
        peer: SocketAddr,
        key: &Key,
        claim: Claim,
        longest: usize,
        timeout: Duration,
    ) -> Result<Self, ConnectFailure> {
        let limits = Limits::toward(peer.ip());
        let connector = Connector::start(peer, None, key, claim, timeout, limits);
        let socket = connector.map_err(ConnectFailure::Io)?.wait(|| std::thread::sleep(PAUSE))?;
        Ok(Self::new(socket, longest))
    }

    /// Sets how long the peer's messages may be from now on.
    pub fn limit(&mut self, longest: usize) {
        self.received.limit(longest);
    }

    /// Returns whether it is over a Unix socket.
    pub fn is_unix(&self) -> bool {
        self.is_unix
    }

    /// The peer's address, which is unspecified for a Unix socket.
    pub fn peer(&self) -> SocketAddr {
        self.socket.peer()
    }

    /// The address of this end, or `None` for a Unix socket.
    ///
    /// # Errors
    /// The kernel no longer has the address.
    pub fn local(&self) -> io::Result<Option<SocketAddr>> {
        Ok(SockRef::from(&self.socket).local_addr()?.as_socket())
    }

    /// Posts a message of up to 128 KiB, without waiting: [`Self::flush`] sends what the kernel
    /// does not take now.
    ///
    /// # Errors
    /// Too much is unsent, or the connection failed.
    pub fn post(&mut self, message: &[u8]) -> Result<(), FrameError> {
        self.push(message, &Spare::default())?;
        self.flush().map(drop)
    }

    /// Appends a message to the unsent bytes.
    fn push(&mut self, bytes: &[u8], spare: &Spare) -> Result<(), FrameError> {
        let length = (bytes.len() as u32).to_le_bytes();
        // Both or none of them.
        let has_room = !self.is_cut
            && bytes.len() <= PIECE
            && !self.outbox.is_crowded(LENGTH + bytes.len())
            && self.outbox.push(spare, &length)
            && self.outbox.push(spare, bytes);
        if has_room { Ok(()) } else { Err(io::Error::from(ErrorKind::OutOfMemory).into()) }
    }

    /// Sends the unsent bytes, as far as the kernel takes them. Returns whether that is all.
    ///
    /// # Errors
    /// The connection failed.
    pub fn flush(&mut self) -> Result<bool, FrameError> {
        // Its buffers are for many messages, and there may be many connections.
        self.flush_with(&Spare::default())
    }

    fn flush_with(&mut self, spare: &Spare) -> Result<bool, FrameError> {
        Ok(self.outbox.is_empty() || self.outbox.flush(&mut self.socket, spare)?)
    }

    /// Returns whether the kernel has everything that was posted.
    pub fn is_flushed(&self) -> bool {
        self.outbox.is_empty()
    }

    fn flush_until(&mut self, deadline: Instant, spare: &Spare) -> Result<bool, FrameError> {
        while !self.flush_with(spare)? {
            if !wait(&self.socket, PollFlags::OUT, deadline)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends a message, and returns when the kernel has all of it.
    ///
    /// # Errors
    /// The message has 4 GiB or more, the peer closed the connection, or the socket had no room
    /// within `timeout`. In the last case the rest of the message is sent with the next one, but
    /// after a message of more than 128 KiB nothing more is sent.
    pub fn send(&mut self, message: &[u8], timeout: Duration) -> Result<(), FrameError> {
        let (deadline, spare) = (after(Instant::now(), timeout), Spare::default());
        let late = FrameError::TimedOut { what: "room to send", waited: timeout };
        if self.is_cut || !self.flush_until(deadline, &spare)? {
            return Err(late);
        }
        let length = u32::try_from(message.len()).map_err(|_| FrameError::TooLong {
            length: message.len(),
            longest: u32::MAX as usize,
        })?;
        let mut pieces = message.chunks(PIECE);
        let has_room = self.outbox.push(&spare, &length.to_le_bytes())
            && self.outbox.push(&spare, pieces.next().unwrap_or_default());
        debug_assert!(has_room, "an empty outbox takes a piece");
        for piece in pieces {
            if !self.flush_until(deadline, &spare)? {
                self.is_cut = true;
                return Err(late);
            }
            self.outbox.push(&spare, piece);
        }
        if self.flush_until(deadline, &spare)? { Ok(()) } else { Err(late) }
    }

    /// Waits up to `timeout` for one message.
    ///
    /// # Errors
    /// The peer closed the connection, its message is too long, or no complete message was received
    /// in time.
    pub fn receive(&mut self, timeout: Duration) -> Result<Vec<u8>, FrameError> {
        let deadline = after(Instant::now(), timeout);
        loop {
            if let Some(message) = self.try_receive()? {
                return Ok(message);
            }
            if !wait(&self.socket, PollFlags::IN, deadline)? {
                return Err(FrameError::TimedOut { what: "message", waited: timeout });
            }
        }
    }

    /// Returns a message if a complete one was received, without waiting.
    ///
    /// # Errors
    /// The peer closed the connection and all its messages were returned, or a message is too long.
    pub fn try_receive(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        if let Some(message) = self.received.take()? {
            return Ok(Some(message));
        }
        // Where a thread or the process ends, there may be none any more.
        let mut scratch = SCRATCH.try_with(Cell::take).unwrap_or_default();
        if scratch.is_empty() {
            scratch = vec![0; RECEIVE].into();
        }
        let received = self.read_message(&mut scratch);
        let _ = SCRATCH.try_with(|kept| kept.set(scratch));
        received
    }

    /// Reads until a message is whole, or there is nothing to read.
    fn read_message(&mut self, scratch: &mut [u8]) -> Result<Option<Vec<u8>>, FrameError> {
        while self.read(scratch)? {
            if let Some(message) = self.received.take()? {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Reads once, into `scratch` of [`RECEIVE`] bytes first. Returns whether there was something.
    ///
    /// # Errors
    /// The peer closed the connection, or it failed.
    pub fn read(&mut self, scratch: &mut [u8]) -> Result<bool, FrameError> {
        match self.socket.receive(scratch)? {
            None => Ok(false),
            Some(0) => Err(self.received.end()),
            Some(count) => {
                self.received.add(scratch.get(..count).unwrap_or_default())?;
                Ok(true)
            }
        }
    }

    /// What was [read](Self::read) and not taken.
    pub fn received(&mut self) -> &mut Received {
        &mut self.received
    }

    /// Ends the outgoing half: the peer receives what was sent, and then the end of the stream.
    pub fn finish(&self) {
        self.socket.finish();
    }

    /// Closes the connection in order: shuts down the outgoing half, then discards received bytes
    /// until the peer closes its half or `timeout` expires. With unread bytes the kernel would
    /// reset the connection, and the reset may overtake the last message.
    pub fn close(self, timeout: Duration) {
        let deadline = after(Instant::now(), timeout);
        let mut is_open = SockRef::from(&self.socket).shutdown(Shutdown::Write).is_ok();
        while is_open && Instant::now() < deadline {
            is_open = !self.socket.drain()
                && wait(&self.socket, PollFlags::IN, deadline).unwrap_or(false);
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A listening socket that accepts streams from peers with the job key. The cost of other peers is
/// bounded: see [`listener`](crate::listener).
///
/// ```
/// use barewire_tcp::Key;
/// use barewire_tcp::frames::{Stream, StreamListener};
/// use barewire_tcp::handshake::{Claim, Purpose};
/// use std::{net::Ipv4Addr, thread, time::Duration};
///
/// let (key, soon) = (Key::generate()?, Duration::from_secs(30));
/// let purpose = Purpose::Control;
/// let claim = Claim { purpose, service: 7, endpoint: 0, from_service: 0, from_endpoint: 0 };
/// let here = (Ipv4Addr::LOCALHOST, 0).into();
/// let mut listener = StreamListener::bind(here, key.clone(), claim, 1024)?;
/// let address = listener.address();
/// let client = thread::spawn(move || Stream::connect(address, &key, claim, 1024, soon));
/// let mut server = listener.accept(soon)?.ok_or("no client")?;
/// let mut client = client.join().map_err(|_| "the client panicked")??;
/// client.send(b"let in", soon)?;
/// assert_eq!(server.receive(soon)?, b"let in");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StreamListener {
    listener: Listener,
    claim: Claim,
    longest: usize,
    admitted: Vec<Authenticated>,
}

impl StreamListener {
    /// Listens on `address`; port 0 selects a free port. Peers claim the purpose and service of
    /// `claim`, and their messages have at most `longest` bytes.
    ///
    /// # Errors
    /// The address does not belong to this host, or is in use.
    pub fn bind(address: SocketAddr, key: Key, claim: Claim, longest: usize) -> io::Result<Self> {
        let listener = Listener::open_at(address, key, Limits::toward(address.ip()))?;
        Ok(Self { listener, claim, longest, admitted: Vec::new() })
    }

    /// The listening address, with the selected port.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Connections so far that did not prove the key.
    pub fn refused(&self) -> u64 {
        self.listener.refused()
    }

    /// Waits up to `timeout` for a peer with the key. Returns `None` if none connected.
    ///
    /// # Errors
    /// The kernel failed to wait.
    pub fn accept(&mut self, timeout: Duration) -> io::Result<Option<Stream>> {
        let deadline = after(Instant::now(), timeout);
        loop {
            let now = Instant::now();
            self.listener.work(now, &mut self.admitted);
            while let Some(peer) = self.admitted.pop() {
                let claim = peer.claim;
                if (claim.purpose, claim.service) != (self.claim.purpose, self.claim.service) {
                    peer.refuse(Verdict::Unknown);
                } else if let Ok(socket) = peer.welcome() {
                    return Ok(Some(Stream::new(socket, self.longest)));
                }
            }
            if now >= deadline {
                return Ok(None);
            }
            let until = self.listener.deadline().map_or(deadline, |due| due.min(deadline));
            if self.listener.is_paused() {
                // Its descriptor may be readable meanwhile.
                std::thread::sleep(until.saturating_duration_since(now));
            } else {
                wait(&self.listener, PollFlags::IN, until)?;
            }
        }
    }
}
