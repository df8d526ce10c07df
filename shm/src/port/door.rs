//! The listening socket: what newcomers and strangers cost, and for how long.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::LISTENER;
use crate::link::{Link, Listener};

/// Connections that are taken at a time.
const AT_ONCE: usize = 4;
/// After [`AT_ONCE`] connections that were admitted, the door is closed for so many times what they took.
const SHARE: u32 = 40;
/// The same if one was refused. What they took is wall-clock time, of which a process on a busy machine
/// has only a part for itself, so this is more than the share of 5 % asks for.
const SHARE_OF_STRANGERS: u32 = 200;
/// The door is never closed for longer.
const LONGEST: Duration = Duration::from_millis(50);
/// Newcomers say who they are within this time, or leave.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most newcomers that have not said it. The oldest leaves for the next.
const MOST_NEWCOMERS: usize = 64;

/// A listening socket whose costs are bounded: a few connections at a time, and a small share of the time.
#[derive(Debug)]
pub(crate) struct Door {
    listener: Listener,
    /// While set, no connection is accepted before this time, and the socket wakes no sleeper.
    closed: Option<Instant>,
    /// Numbers of connections that were taken in, and when, the oldest first.
    newcomers: VecDeque<(u16, Instant)>,
    /// It was reported that descriptors ran out.
    pub(super) reported: bool,
}

impl Door {
    pub(super) fn new(listener: Listener) -> Self {
        Self { listener, closed: None, newcomers: VecDeque::new(), reported: false }
    }

    /// When the door opens again, if it is closed.
    pub(super) fn opens(&self) -> Option<Instant> {
        self.closed
    }

    /// Takes up to [`AT_ONCE`] connections with `admit`, which returns the number of one that it takes in.
    ///
    /// # Errors
    /// What accept(2) says, once the door is closed for a while.
    pub(super) fn work(
        &mut self,
        epoll: &OwnedFd,
        now: Instant,
        mut admit: impl FnMut(Link) -> Option<u16>,
    ) -> io::Result<()> {
        if self.closed.is_some_and(|until| now < until) {
            return Ok(());
        }
        let mut taken = 0;
        let mut failed = None;
        let mut strangers = false;
        while taken < AT_ONCE {
            match self.listener.accept() {
                Ok(Some(link)) => match admit(link) {
                    Some(number) => self.newcomers.push_back((number, now)),
                    None => strangers = true,
                },
                Ok(None) => break,
                Err(errno) => {
                    failed = Some(errno);
                    break;
                }
            }
            taken += 1;
        }
        if strangers || failed.is_some() || taken == AT_ONCE {
            let share = if strangers { SHARE_OF_STRANGERS } else { SHARE };
            let pause = if failed.is_some() { LONGEST } else { (now.elapsed() * share).min(LONGEST) };
            self.set_watched(epoll, false);
            self.closed = Some(Instant::now() + pause);
        } else if self.closed.take().is_some() {
            self.set_watched(epoll, true);
        }
        failed.map_or(Ok(()), Err)
    }

    /// While the door is closed, what waits in front of it does not wake a sleeper.
    fn set_watched(&self, epoll: &OwnedFd, on: bool) {
        let flags = if on { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        // Refused, it is watched on: a sleeper wakes up too often.
        let _ = epoll::modify(epoll, self.listener.as_fd(), epoll::EventData::new_u64(LISTENER), flags);
    }

    /// The next newcomer whose time is over, or for whom there are too many others; and when it came. It
    /// may have said who it is meanwhile.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<(u16, Instant)> {
        let &(_, since) = self.newcomers.front()?;
        let is_over = self.newcomers.len() > MOST_NEWCOMERS || now.duration_since(since) > PATIENCE;
        if is_over { self.newcomers.pop_front() } else { None }
    }
}
