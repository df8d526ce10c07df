//! Sleeping until a socket is ready, or a post leaves something to progress.

use std::time::{Duration, Instant};

use super::agenda::Task;
use super::interface::Shared;
use super::progress::TICK;
use super::state::State;
use crate::base::event::{Armed, EventError, after};

/// How often connections that are being made are advanced: epoll does not report them.
const CONNECTING: Duration = Duration::from_millis(1);

/// Prepares the sockets for a sleep, as [`Interface::arm`](crate::Interface::arm) describes.
pub(super) fn arm(shared: &Shared) -> Result<Armed, EventError> {
    let failed = |(step, source)| EventError::System { step, source };
    shared.poller.prepare_to_sleep().map_err(failed)?;
    let is_ready =
        || shared.poller.is_ready().map_err(|error| failed(("poll the sockets", error.into())));
    if shared.has_work()
        || shared.core.arbiter.has_new()
        || !shared.poller.watch_all(State::poll_directly)
        || is_ready()?
    {
        return Ok(Armed::Ready);
    }
    shared.poller.arm();
    Ok(Armed::until(shared.next_deadline()))
}

impl Shared {
    /// Progress has something to do although no socket is ready.
    fn has_work(&self) -> bool {
        [Task::Send, Task::Resume, Task::End].iter().any(|task| self.agenda.has(*task))
    }

    /// When progress is due although no descriptor is ready.
    fn next_deadline(&self) -> Option<Instant> {
        let is_awaited =
            |slot| self.endpoint(slot).is_some_and(|state| state.is_waiting_for_peer());
        let tick = match () {
            () if self.agenda.has(Task::Connect) => Some(CONNECTING),
            () if !self.draining.borrow().is_empty() => Some(TICK),
            () if self.agenda.any(Task::AwaitPeer, is_awaited) => Some(TICK),
            () => None,
        };
        let handshakes = self.accepting.borrow().deadline();
        [tick.map(|tick| after(Instant::now(), tick)), handshakes].into_iter().flatten().min()
    }
}
