//! The control connection: frames over an authenticated socket, during and after the handshake.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use barewire_tcp::outbox::{Outbox, SendError, Spare};
use barewire_tcp::socket::{RECEIVE, Socket};

use crate::error::Failure;
use crate::handshake::message::{self, Message};

/// Fruitless calls after which the control connection is read.
const CALLS: i32 = 1024;
/// The same after a message that completes only if a completion is requested, or another follows.
const FEW_CALLS: i32 = 64;
/// How long the completions of a peer that has left may still arrive.
const GRACE: Duration = Duration::from_millis(250);

/// Frames over a socket. No method waits.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    outbox: Outbox,
    spare: Spare,
    /// Received bytes of frames that are not complete yet, and room for more.
    buffer: Box<[u8]>,
    filled: usize,
}

impl Stream {
    pub(crate) fn new(socket: Socket) -> Self {
        let buffer = vec![0; message::MOST + RECEIVE].into();
        Self { socket, outbox: Outbox::default(), spare: Spare::default(), buffer, filled: 0 }
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.socket.peer()
    }

    /// Sends a frame, or as much of it as the kernel takes.
    pub(crate) fn send(&mut self, message: &Message) -> io::Result<()> {
        let bytes = message.to_frame();
        if !self.outbox.push(&self.spare, &bytes) {
            return Err(ErrorKind::OutOfMemory.into());
        }
        self.flush()
    }

    /// Sends what waits, as far as the kernel takes it.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        match self.outbox.flush(&mut self.socket, &self.spare) {
            Ok(_) => Ok(()),
            Err(SendError::Io(error)) => Err(error),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Returns whether all that was sent was handed to the kernel.
    pub(crate) fn is_flushed(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Receives a frame, if one is there. The end of the stream is
    /// [`ErrorKind::UnexpectedEof`].
    pub(crate) fn receive(&mut self) -> io::Result<Option<Message>> {
        loop {
            let held = self.buffer.get(..self.filled).unwrap_or_default();
            if let Some((message, taken)) = message::first_frame(held).map_err(io::Error::other)? {
                self.buffer.copy_within(taken..self.filled, 0);
                self.filled -= taken;
                return Ok(Some(message));
            }
            // An incomplete frame is shorter than `MOST`, so that there is room for a record.
            match self.socket.receive(self.buffer.get_mut(self.filled..).unwrap_or_default())? {
                None => return Ok(None),
                Some(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Some(count) => self.filled += count,
            }
        }
    }

    /// Ends this half after what was sent.
    pub(crate) fn finish(&self) {
        self.socket.finish();
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The peer of a connected channel, as seen over the control connection.
#[derive(Debug)]
pub(crate) struct Peer {
    stream: Stream,
    /// Calls until the next check, which is due while it is negative.
    calls: i32,
    left: Option<(Instant, Failure)>,
    /// The groups before it were complete when the peer closed the channel.
    done: u64,
}

impl Peer {
    pub(crate) fn new(stream: Stream) -> Self {
        Self { stream, calls: CALLS, left: None, done: 0 }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.stream.peer()
    }

    /// Counts a call that found nothing to do. Returns whether [`Self::receive`] is due.
    #[inline(always)]
    pub(crate) fn idle(&mut self) -> bool {
        self.calls = self.calls.wrapping_sub(1);
        self.is_due()
    }

    /// Returns whether [`Self::receive`] is due. It remains so until the count starts anew, even if
    /// the call that was to check finds something.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        self.calls < 0
    }

    /// Makes the check due after few further calls that find nothing.
    #[inline(always)]
    pub(crate) fn expect(&mut self) {
        self.calls = FEW_CALLS;
    }

    /// Makes the check due after as many further calls as usual.
    pub(crate) fn rest(&mut self) {
        self.calls = CALLS;
    }

    /// Makes the check due now.
    pub(crate) fn hurry(&mut self) {
        self.calls = -1;
    }

    /// Reads the control connection. Fails once the peer has left and its last completions had time
    /// to arrive.
    #[cold]
    pub(crate) fn receive(&mut self, now: Instant) -> Result<Option<Message>, Failure> {
        self.calls = CALLS;
        if self.left.is_none() {
            let peer = self.address();
            // A message may wait. If it cannot be sent, nothing is received.
            let _ = self.stream.flush();
            let failure = match self.stream.receive() {
                Ok(Some(Message::Close { done })) => {
                    self.done = done;
                    Failure::Closed { peer }
                }
                Ok(message) => return Ok(message),
                Err(error) => Failure::Lost { peer, reason: error.to_string() },
            };
            self.left = Some((now, failure));
        }
        match &self.left {
            Some((since, failure)) if now.saturating_duration_since(*since) >= GRACE => {
                Err(failure.clone())
            }
            _ => Ok(None),
        }
    }

    /// Returns whether the peer has left, as far as [`Self::receive`] has learnt.
    pub(crate) fn has_left(&self) -> bool {
        self.left.is_some()
    }

    /// Sends a message. If it fails, a later call of [`Self::receive`] reports it.
    pub(crate) fn send(&mut self, message: &Message) {
        if let Err(error) = self.stream.send(message)
            && self.left.is_none()
        {
            let failure = Failure::Lost { peer: self.address(), reason: error.to_string() };
            self.left = Some((Instant::now(), failure));
        }
    }

    /// The first group that a peer that has closed the channel had not completed.
    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    /// Reports to the peer that this end is closed, and that the groups before `done` are complete.
    pub(crate) fn close(&mut self, done: u64) {
        // If it fails, the peer learns it from the end of the stream.
        let _ = self.stream.send(&Message::Close { done });
        self.stream.finish();
    }
}
