//! The control connection: frames over an authenticated socket, during and after the handshake.
//!
//! What messages of the peer of a connected channel cost is bounded: each channel has a [`Share`]
//! of the elapsed time, and nothing is read while it is spent.

use core::ffi::c_int;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use barewire_tcp::frames::Stream;
use barewire_tcp::share::{Share, Slice, Terms};
use barewire_tcp::socket::is_disconnected;
use rustix::ioctl::{Getter, Opcode, ioctl};

use crate::error::Failure;
use crate::handshake::message::Message;
use crate::mail::{HEAD, Mail, News};
use crate::queues::Queues;
use crate::ring::{Lines, RemoteLines};

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

/// Sends a message, or as much of it as the kernel takes.
pub(crate) fn send(stream: &mut Stream, message: &Message) -> io::Result<()> {
    Ok(stream.post(&message.to_bytes())?)
}

/// Receives a message, if one is there.
pub(crate) fn receive(stream: &mut Stream) -> io::Result<Option<Message>> {
    let read = |bytes: Vec<u8>| Message::from_bytes(&bytes).map_err(io::Error::other);
    stream.try_receive()?.map(read).transpose()
}

/// Returns whether the peer's host has all that was sent.
fn is_acknowledged(stream: &Stream) -> bool {
    /// SIOCOUTQ of linux/sockios.h.
    const UNACKNOWLEDGED: Opcode = 0x5411;
    // SAFETY: this ioctl(2) of a TCP socket writes an `int`, to which the getter has a pointer, and
    // accesses no other memory.
    let bytes = unsafe { ioctl(stream, Getter::<UNACKNOWLEDGED, c_int>::new()) };
    stream.is_flushed() && bytes == Ok(0)
}

/// The peer of a connected channel, as seen over the control connection and by its letters.
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
    /// Messages that came over the control connection.
    streamed: u64,
    mail: Box<Mail>,
    /// The first error of sending over the control connection.
    unsent: Option<io::Error>,
    /// Why the control connection has failed, although the peer may be there.
    cut: Option<String>,
}

impl Peer {
    pub(crate) fn new(stream: Stream) -> Self {
        CHANNELS.fetch_add(1, Ordering::Relaxed);
        let (terms, now) = (Terms::CONNECTIONS, Instant::now());
        let mut share = Share::new(terms, now);
        share.spend(terms.burst.saturating_sub(AT_FIRST), now);
        let mail = Box::new(Mail::new());
        Self {
            stream,
            calls: CALLS,
            pace: 0,
            share,
            slice: None,
            left: None,
            done: 0,
            streamed: 0,
            mail,
            unsent: None,
            cut: None,
        }
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

    /// Reads the control connection and the letter of the peer, in `lines`, unless too much was
    /// spent. Fails once the peer has left and its last completions had time to arrive. What the
    /// caller does with a message is spent, until [`Self::settle`].
    #[cold]
    pub(crate) fn receive(
        &mut self,
        lines: &Lines,
        now: Instant,
    ) -> Result<Option<Message>, Failure> {
        self.calls = CALLS;
        // A check that finds nothing is no cost of the peer, and reads no clock.
        let may_read = match self.slice {
            None => self.share.has_slice(now),
            Some(_) => self.may_spend(now),
        };
        if self.left.is_none() && may_read {
            let peer = self.address();
            let failure = match self.next(lines) {
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

    /// The next message that was not taken yet.
    fn next(&mut self, lines: &Lines) -> io::Result<Option<Message>> {
        while self.cut.is_none() {
            // A message may wait.
            if let Err(error) = self.stream.flush() {
                self.unsent.get_or_insert(error.into());
            }
            match receive(&mut self.stream) {
                Ok(Some(message)) => {
                    self.streamed = self.streamed.saturating_add(1);
                    if self.mail.take(self.streamed) {
                        return Ok(Some(message));
                    }
                }
                Ok(None) => break,
                Err(error) => self.lose(error)?,
            }
        }
        if !self.mail.is_news(&lines.peer_letter::<HEAD>()) {
            return Ok(None);
        }
        match self.mail.read(&lines.peer_letter()).map_err(io::Error::other)? {
            Some(News::Message(message)) => Ok(Some(message)),
            Some(News::Closed { done }) => Ok(Some(Message::Close { done })),
            None => Ok(None),
        }
    }

    /// The control connection has failed. If it did not end in order, its network may be cut: then
    /// the rails tell whether the peer is there.
    fn lose(&mut self, error: io::Error) -> io::Result<()> {
        // The kernel reports why only once.
        let error = match error.kind() {
            ErrorKind::UnexpectedEof => self.unsent.take().unwrap_or(error),
            _ => error,
        };
        if !is_disconnected(&error) {
            return Err(error);
        }
        self.cut = Some(error.to_string());
        Ok(())
    }

    /// The failure of a channel without rails, if it has no control connection either.
    pub(crate) fn cut(&self) -> Option<Failure> {
        let (peer, reason) = (self.address(), self.cut.clone()?);
        Some(Failure::Lost { peer, reason })
    }

    /// Writes the letter of this end, if it is due.
    pub(crate) fn post(&mut self, queues: &mut [Queues], memory: (&Lines, &RemoteLines)) {
        self.mail.post(queues, memory, self.cut.is_some(), Instant::now());
    }

    /// Writes the letter of this end again: a rail that carried it has failed.
    pub(crate) fn repeat(&mut self) {
        self.mail.repeat();
    }

    /// Returns whether the peer has left, as far as [`Self::receive`] has learnt.
    pub(crate) fn has_left(&self) -> bool {
        self.left.is_some()
    }

    /// Sends a message. If it fails, a later call of [`Self::receive`] reports it.
    pub(crate) fn send(&mut self, message: &Message) {
        if self.mail.is_full() {
            if self.left.is_none() {
                let reason = "the peer takes no control messages".to_owned();
                self.left = Some((Instant::now(), Failure::Lost { peer: self.address(), reason }));
            }
            return;
        }
        self.mail.push(message.to_frame());
        if self.cut.is_none()
            && let Err(error) = send(&mut self.stream, message)
        {
            // What the peer sent before shows whether it has left.
            self.unsent.get_or_insert(error);
        }
    }

    /// The first group that a peer that has closed the channel had not completed.
    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    /// Reports to the peer that this end is closed, and that the groups before `done` are complete.
    pub(crate) fn close(&mut self, done: u64) {
        // If it fails, the peer learns it from the end of the stream, or from a letter.
        let _ = send(&mut self.stream, &Message::Close { done });
        self.stream.finish();
        self.mail.close(done);
    }

    /// Returns whether the peer, or its host, knows what this end has sent last.
    pub(crate) fn is_told(&self, queues: &[Queues]) -> bool {
        let by_stream = self.cut.is_none() && is_acknowledged(&self.stream);
        by_stream || self.mail.is_delivered(queues)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        CHANNELS.fetch_sub(1, Ordering::Relaxed);
    }
}
