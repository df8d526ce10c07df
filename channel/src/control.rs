//! The control connection: frames over an authenticated socket, during and after the handshake.
//!
//! What messages of the peer of a connected channel cost is bounded: each channel has a [`Share`] of
//! the elapsed time, and nothing is read while it is spent.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use barewire_tcp::outbox::{Outbox, SendError, Spare};
use barewire_tcp::share::{Share, Slice, Terms};
use barewire_tcp::socket::{RECEIVE, Socket};

use crate::error::Failure;
use crate::handshake::message::{self, Message};

/// Fruitless calls after which the control connection is read.
const CALLS: i32 = 1024;
/// The same after a message that completes only if a completion is requested, or another follows.
const FEW_CALLS: i32 = 64;
/// How long the completions of a peer that has left may still arrive.
const GRACE: Duration = Duration::from_millis(250);
/// What a channel may spend that has just been connected: the peer can make channels without end.
const AT_FIRST: Duration = Duration::from_millis(2);
/// So many channels have a whole part of the elapsed time each. More of them divide as much.
const WHOLE: u32 = 4;

/// Connected channels of this process.
static CHANNELS: AtomicU32 = AtomicU32::new(0);

/// Frames over a socket. No method waits.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    outbox: Outbox,
    spare: Spare,
    /// Received bytes of frames, and room for more.
    buffer: Box<[u8]>,
    /// Those that were not taken yet.
    taken: usize,
    filled: usize,
}

impl Stream {
    pub(crate) fn new(socket: Socket) -> Self {
        let buffer = vec![0; message::MOST + RECEIVE].into();
        let (outbox, spare) = (Outbox::default(), Spare::default());
        Self { socket, outbox, spare, buffer, taken: 0, filled: 0 }
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
            Ok(true) => {
                // Little is sent: a connection on which nothing waits has no buffers.
                self.spare = Spare::default();
                Ok(())
            }
            Ok(false) => Ok(()),
            Err(SendError::Io(error)) => Err(error),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Returns whether all that was sent was handed to the kernel.
    pub(crate) fn is_flushed(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Receives a frame, if one is there. Reads at most once. The end of the stream is
    /// [`ErrorKind::UnexpectedEof`].
    pub(crate) fn receive(&mut self) -> io::Result<Option<Message>> {
        if let Some(message) = self.take()? {
            return Ok(Some(message));
        }
        // An incomplete frame is shorter than `MOST`, so that there is room for a record.
        self.buffer.copy_within(self.taken..self.filled, 0);
        self.filled -= self.taken;
        self.taken = 0;
        match self.socket.receive(self.buffer.get_mut(self.filled..).unwrap_or_default())? {
            None => Ok(None),
            Some(0) => Err(ErrorKind::UnexpectedEof.into()),
            Some(count) => {
                self.filled += count;
                self.take()
            }
        }
    }

    /// Takes a frame that was received.
    fn take(&mut self) -> io::Result<Option<Message>> {
        let held = self.buffer.get(self.taken..self.filled).unwrap_or_default();
        let first = message::first_frame(held).map_err(io::Error::other)?;
        Ok(first.map(|(message, length)| {
            self.taken += length;
            message
        }))
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
    /// Calls between checks while something is awaited. Doubled by each.
    pace: i32,
    /// What messages and attempts to use rails again may cost.
    share: Share,
    /// What of it is being spent.
    slice: Option<Slice>,
    left: Option<(Instant, Failure)>,
    /// The groups before it were complete when the peer closed the channel.
    done: u64,
}

impl Peer {
    pub(crate) fn new(stream: Stream) -> Self {
        CHANNELS.fetch_add(1, Ordering::Relaxed);
        let (terms, now) = (Terms::CONNECTIONS, Instant::now());
        let mut share = Share::new(terms, now);
        share.spend(terms.burst.saturating_sub(AT_FIRST), now);
        Self { stream, calls: CALLS, pace: 0, share, slice: None, left: None, done: 0 }
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
        self.pace = 0;
    }

    /// Makes the check due soon, and the next one later: the peer may never send what is awaited.
    pub(crate) fn wait(&mut self) {
        self.calls = self.pace - 1;
        self.pace = (2 * self.pace).clamp(1, CALLS);
    }

    /// Returns whether this end may do something for the peer now. What it does until
    /// [`Self::settle`] is spent.
    #[cold]
    pub(crate) fn may_spend(&mut self, now: Instant) -> bool {
        if self.slice.is_none() {
            self.slice = self.share.begin(now);
        }
        self.slice.is_some_and(|slice| !slice.is_over(Duration::ZERO))
    }

    /// Ends what [`Self::may_spend`] has begun.
    pub(crate) fn settle(&mut self, now: Instant) {
        if let Some(slice) = self.slice.take() {
            let whole = CHANNELS.load(Ordering::Relaxed).div_ceil(WHOLE);
            self.share.set_part(Terms::CONNECTIONS.part.saturating_mul(whole), now);
            self.share.end(slice);
        }
    }

    /// Reads the control connection, unless too much was spent. Fails once the peer has left and its
    /// last completions had time to arrive. What the caller does with a message is spent, until
    /// [`Self::settle`].
    #[cold]
    pub(crate) fn receive(&mut self, now: Instant) -> Result<Option<Message>, Failure> {
        self.calls = CALLS;
        // A check that finds nothing is no cost of the peer, and reads no clock.
        let may_read = match self.slice {
            None => self.share.has_slice(now),
            Some(_) => self.may_spend(now),
        };
        if self.left.is_none() && may_read {
            let peer = self.address();
            // A message may wait. If it cannot be sent, nothing is received.
            let _ = self.stream.flush();
            let failure = match self.stream.receive() {
                Ok(Some(Message::Close { done })) => {
                    self.done = done;
                    Failure::Closed { peer }
                }
                Ok(Some(message)) => {
                    self.pace = 0;
                    self.may_spend(now);
                    return Ok(Some(message));
                }
                Ok(None) => return Ok(None),
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

impl Drop for Peer {
    fn drop(&mut self) {
        CHANNELS.fetch_sub(1, Ordering::Relaxed);
    }
}
