//! Sleeping until a socket is ready, or a post leaves something to progress.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::NAME;
use super::interface::{Interface, Shared};
use super::progress::TICK;
use super::state::State;
use crate::event::EventError;

/// How often connections that are being made are advanced: epoll does not report them.
const CONNECTING: Duration = Duration::from_millis(1);

impl Interface {
    /// Readable while a socket is ready, or a post since [`Self::arm`] left something to progress.
    ///
    /// # Errors
    /// None.
    pub fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(Some(self.0.poller.as_fd()))
    }

    /// Returns the deadline by which progress must be called although no descriptor is ready: while
    /// connections are made or closed.
    ///
    /// # Errors
    /// [`EventError::Busy`] if progress has something to do, [`EventError::System`] if there is no descriptor left.
    pub fn arm(&self) -> Result<Option<Instant>, EventError> {
        if self.0.closed.get() {
            return Err(EventError::Closed { transport: NAME });
        }
        let shared = &*self.0;
        let failed = |(step, source)| EventError::System { step, source };
        shared.poller.prepare_to_sleep().map_err(failed)?;
        let is_ready =
            || shared.poller.is_ready().map_err(|error| failed(("poll the sockets", error.into())));
        if shared.has_work() || !shared.poller.watch_all(State::poll_directly) || is_ready()? {
            return Err(EventError::Busy);
        }
        shared.poller.arm();
        Ok(shared.next_deadline())
    }
}

impl Shared {
    /// Progress has something to do without any socket.
    fn has_work(&self) -> bool {
        let some = |list: &std::cell::RefCell<Vec<u32>>| !list.borrow().is_empty();
        some(&self.dirty) || some(&self.resuming) || some(&self.failed) || some(&self.closing)
    }

    /// When progress is due although no descriptor is ready.
    fn next_deadline(&self) -> Option<Instant> {
        let guests = self.door.borrow().deadline();
        let connecting = !self.connecting.borrow().is_empty();
        let awaited = || {
            let waits = |index: &u32| self.endpoint(*index).is_some_and(|state| state.is_waiting_for_peer());
            self.expecting.borrow().iter().any(waits)
        };
        let tick = match () {
            () if connecting => Some(CONNECTING),
            () if !self.draining.borrow().is_empty() || awaited() => Some(TICK),
            () => None,
        };
        [tick.map(|tick| Instant::now() + tick), guests].into_iter().flatten().min()
    }
}
