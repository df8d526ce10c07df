//! The listening socket, with limits on the time that new connections cost.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::LISTENER;
use crate::link::{Link, Listener};

/// The maximum number of connections accepted per call.
const MAX_PER_CALL: usize = 4;
/// After [`MAX_PER_CALL`] connections of admitted users, accepting pauses for this multiple of the
/// time that they took.
const PAUSE_FACTOR: u32 = 40;
/// The same after a refused connection. The measured time is wall-clock time, of which a process on
/// a busy machine has only a part, so this is more than a CPU factor of 5 % requires.
const PAUSE_FACTOR_REFUSED: u32 = 200;
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_millis(50);
/// A new connection is closed if its greeting does not arrive within this time, which a peer on a busy
/// machine may spend waiting for a processor.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of connections without a greeting. For the next one, the oldest is closed.
const MAX_NEWCOMERS: usize = 64;

/// Accepts connections at a bounded cost: a few at a time, and with pauses that limit the factor of
/// time.
#[derive(Debug)]
pub(crate) struct Acceptor {
    listener: Listener,
    /// During a pause: its end. Until then no connection is accepted, and the socket wakes no
    /// sleeper.
    pause: Option<Instant>,
    /// Sender numbers of recent connections and the times of their accept, the oldest first.
    newcomers: VecDeque<(u16, Instant)>,
    /// The lack of file descriptors was reported.
    pub(super) reported: bool,
}

impl Acceptor {
    pub(super) fn new(listener: Listener) -> Self {
        Self { listener, pause: None, newcomers: VecDeque::new(), reported: false }
    }

    /// The end of the present pause, if there is one.
    pub(super) fn paused_until(&self) -> Option<Instant> {
        self.pause
    }

    /// Accepts up to [`MAX_PER_CALL`] connections. `admit` returns the sender number of a
    /// connection, or `None` if it refuses it.
    ///
    /// # Errors
    /// The error of accept(2). A pause begins then.
    pub(super) fn accept(
        &mut self,
        epoll: &OwnedFd,
        now: Instant,
        mut admit: impl FnMut(Link) -> Option<u16>,
    ) -> io::Result<()> {
        if self.pause.is_some_and(|until| now < until) {
            return Ok(());
        }
        let mut accepted = 0;
        let mut failed = None;
        let mut refused = false;
        while accepted < MAX_PER_CALL {
            match self.listener.accept() {
                Ok(Some(link)) => match admit(link) {
                    Some(number) => self.newcomers.push_back((number, now)),
                    None => refused = true,
                },
                Ok(None) => break,
                Err(errno) => {
                    failed = Some(errno);
                    break;
                }
            }
            accepted += 1;
        }
        if refused || failed.is_some() || accepted == MAX_PER_CALL {
            let factor = if refused { PAUSE_FACTOR_REFUSED } else { PAUSE_FACTOR };
            let pause =
                if failed.is_some() { MAX_PAUSE } else { (now.elapsed() * factor).min(MAX_PAUSE) };
            self.set_watched(epoll, false);
            #[expect(clippy::arithmetic_side_effects, reason = "at most MAX_PAUSE")]
            let end = Instant::now() + pause;
            self.pause = Some(end);
        } else if self.pause.take().is_some() {
            self.set_watched(epoll, true);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Sets whether pending connections wake a sleeper.
    fn set_watched(&self, epoll: &OwnedFd, on: bool) {
        let flags = if on { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        // If epoll_ctl(2) fails, the socket stays watched and a sleeper wakes up too often.
        let _ =
            epoll::modify(epoll, self.listener.as_fd(), epoll::EventData::new_u64(LISTENER), flags);
    }

    /// Removes and returns the oldest new connection if its time is over or there are too many
    /// others: its sender number and the time of its accept. Its greeting may have arrived
    /// meanwhile.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<(u16, Instant)> {
        let &(_, since) = self.newcomers.front()?;
        let is_over =
            self.newcomers.len() > MAX_NEWCOMERS || now.duration_since(since) > GREETING_TIMEOUT;
        if is_over { self.newcomers.pop_front() } else { None }
    }
}
