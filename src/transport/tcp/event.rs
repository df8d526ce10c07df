//! Sleeping until a socket has something, or somebody posts.

use std::cell::{Cell, OnceCell};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};

use super::NAME;
use super::interface::{Interface, Shared};
use super::progress::TICK;
use crate::event::EventError;

/// The bell's number among the connections'.
pub(super) const BELL: u64 = u64::MAX - 1;
/// How often connections in the making are looked at: until they are there nobody tells.
const CONNECTING: Duration = Duration::from_millis(1);

/// Tells a sleeping thread of what a post left to progress. There since the first who wanted to sleep.
#[derive(Debug, Default)]
pub(super) struct Bell {
    descriptor: OnceCell<OwnedFd>,
    armed: Cell<bool>,
}

impl Bell {
    /// Somebody may sleep, and progress has something to do.
    #[inline]
    pub(super) fn ring(&self) {
        if self.armed.get() {
            self.strike();
        }
    }

    #[cold]
    fn strike(&self) {
        self.armed.set(false);
        if let Some(descriptor) = self.descriptor.get() {
            // It only fails if it was rung already.
            let _ = rustix::io::write(descriptor, &1u64.to_ne_bytes());
        }
    }

    /// Nobody sleeps any more. True if somebody was to.
    #[inline]
    pub(super) fn disarm(&self) -> bool {
        self.armed.replace(false)
    }

    /// Takes what was rung.
    pub(super) fn still(&self) {
        if let Some(descriptor) = self.descriptor.get() {
            let _ = rustix::io::read(descriptor, &mut [0; 8]);
        }
    }
}

impl Interface {
    /// Readable while a socket has something, or something was posted since [`Self::arm`] that progress is to send.
    ///
    /// # Errors
    /// None.
    pub fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(Some(self.0.epoll.as_fd()))
    }

    /// Answers when progress is wanted at the latest, if it is: while connections are made or closed.
    ///
    /// # Errors
    /// [`EventError::Busy`] if progress has something to do, [`EventError::System`] if there is no descriptor left.
    pub fn arm(&self) -> Result<Option<Instant>, EventError> {
        if self.0.closed.get() {
            return Err(EventError::Closed { transport: NAME });
        }
        let shared = &*self.0;
        let failed = |step| move |error: rustix::io::Errno| EventError::System { step, source: error.into() };
        if shared.bell.descriptor.get().is_none() {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            let bell = eventfd(0, flags).map_err(failed("make an event descriptor"))?;
            epoll::add(&shared.epoll, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)
                .map_err(failed("watch an event descriptor"))?;
            let _ = shared.bell.descriptor.set(bell);
        }
        if shared.has_work()
            || !shared.favourite.dismiss()
            || shared.is_ready().map_err(failed("look at the sockets"))?
        {
            return Err(EventError::Busy);
        }
        shared.bell.armed.set(true);
        Ok(shared.next_look())
    }
}

impl Shared {
    /// Progress has something to do without any socket.
    fn has_work(&self) -> bool {
        let some = |list: &std::cell::RefCell<Vec<u32>>| !list.borrow().is_empty();
        some(&self.dirty) || some(&self.resuming) || some(&self.ailing) || some(&self.closing)
    }

    /// A socket has something.
    fn is_ready(&self) -> Result<bool, rustix::io::Errno> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&now)) {
            Ok(count) => Ok(count > 0),
            Err(rustix::io::Errno::INTR) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// When to look at what nobody tells of.
    fn next_look(&self) -> Option<Instant> {
        let guests = self.door.borrow().deadline();
        let connecting = !self.connecting.borrow().is_empty();
        let awaited = || {
            let waits = |index: &u32| self.endpoint(*index).is_some_and(|state| state.is_waited_for());
            self.awaiting.borrow().iter().any(waits)
        };
        let tick = match () {
            () if connecting => Some(CONNECTING),
            () if !self.lingering.borrow().is_empty() || awaited() => Some(TICK),
            () => None,
        };
        [tick.map(|tick| Instant::now() + tick), guests].into_iter().flatten().min()
    }
}
