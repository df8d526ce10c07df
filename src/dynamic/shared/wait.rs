//! Waiting for a shared worker: one thread sleeps on the worker's descriptors without the lock, and
//! the others wait until it has processed events or leaves its seat to them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use thiserror::Error;

use super::lock::{self, Guard, Shared};
use crate::base::error::{OperationError, debug_as_display};
use crate::base::event::{Armed, EventError, timespec};
use crate::dynamic::worker::Worker;

debug_as_display!(SharedWaitError);

/// Why a wait for a shared worker or a shared completion ended early.
#[derive(Error)]
#[non_exhaustive]
pub enum SharedWaitError {
    /// The time has passed.
    #[error("the operations were not finished in time")]
    TimedOut,
    /// An operation failed.
    #[error("an operation failed: {0}")]
    Operation(#[from] OperationError),
    /// This thread holds the lock of a shared worker, so that no other thread could make progress.
    #[error("a handler or callback of a shared worker cannot wait: return from it first")]
    InCallback,
    /// The worker belongs to the process from which this one was forked.
    #[error("the worker belongs to the parent process: create one after the fork")]
    Forked,
    /// The thread cannot sleep until an event.
    #[error(transparent)]
    Event(#[from] EventError),
}

/// What the sleeping thread waits for.
pub(super) struct Wakeup {
    events: OwnedFd,
    /// Written by the others to make it arm the worker again.
    again: OwnedFd,
}

impl Wakeup {
    /// Returns the descriptors of a worker, which stay the same.
    fn of(guard: &Guard<'_>, worker: &mut Worker) -> Result<Arc<Self>, EventError> {
        if let Some(wakeup) = guard.wakeup.get() {
            return Ok(Arc::clone(wakeup));
        }
        let system = |source| EventError::System { step: "create an event descriptor", source };
        let events = worker.event_fd()?.try_clone_to_owned().map_err(system)?;
        let again = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| system(error.into()))?;
        Ok(Arc::clone(guard.wakeup.get_or_init(|| Arc::new(Self { events, again }))))
    }

    pub(super) fn wake(&self) {
        // It fails only if it was written 2^64 times and is readable anyway.
        let _ = rustix::io::write(&self.again, &1_u64.to_ne_bytes());
    }

    /// Sleeps until there is an event, a call of [`Self::wake`], a signal, or `timeout` has passed.
    fn sleep(&self, timeout: Option<Duration>) -> Result<(), EventError> {
        let timeout = timeout.map(timespec);
        let watch = |descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN);
        let mut descriptors = [watch(self.events.as_fd()), watch(self.again.as_fd())];
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                return Err(EventError::System { step: "sleep", source: io::Error::from(error) });
            }
        }
        // It is empty if an event ended the sleep.
        let _ = rustix::io::read(&self.again, &mut [0; 8]);
        Ok(())
    }
}

/// Makes progress, and sleeps while there is none to make, until `done` returns true. It gets the
/// number of events that all threads have processed since the call. Returns that number, and
/// whether `done` was true: otherwise `timeout` has passed.
pub(super) fn wait_until(
    shared: &Shared,
    timeout: Option<Duration>,
    done: impl Fn(usize) -> bool,
) -> Result<(usize, bool), SharedWaitError> {
    if lock::is_held() {
        return Err(SharedWaitError::InCallback);
    }
    let start = Instant::now();
    let end = timeout.and_then(|timeout| start.checked_add(timeout));
    let mut guard = shared.enter().ok_or(SharedWaitError::Forked)?;
    let before = guard.events.get();
    // The first progress is a call like any other, after which the sleeper must arm again.
    guard.progress();
    loop {
        let events = guard.events.get().wrapping_sub(before);
        if done(events) {
            return Ok((events, true));
        }
        let now = Instant::now();
        let rest = end.map(|end| end.saturating_duration_since(now));
        if rest == Some(Duration::ZERO) {
            return Ok((events, false));
        }
        if guard.seat_taken.get() {
            guard = guard.sleep(rest).ok_or(SharedWaitError::InCallback)?;
            if guard.seat_taken.get() {
                continue;
            }
        } else if now.saturating_duration_since(start) < guard.busy_poll.get() {
            drop(guard);
            std::hint::spin_loop();
            guard = shared.enter_quietly().ok_or(SharedWaitError::Forked)?;
        } else if let Some(wakeup) = arm(&guard)? {
            guard.seat_taken.set(true);
            guard.armed.set(true);
            drop(guard);
            let slept = wakeup.sleep(rest);
            guard = shared.enter_quietly().ok_or(SharedWaitError::Forked)?;
            guard.armed.set(false);
            // Until this thread takes the seat again, another one may.
            guard.seat_taken.set(false);
            guard.tickets.news.set(true);
            slept?;
        } else {
            // There is work to do. Others may do it.
            drop(guard);
            guard = shared.enter_quietly().ok_or(SharedWaitError::Forked)?;
        }
        if !guard.seat_taken.get() {
            guard.progress();
        }
    }
}

/// Arms the worker and returns what to sleep on; `None` if progress has something to do.
fn arm(guard: &Guard<'_>) -> Result<Option<Arc<Wakeup>>, EventError> {
    let mut worker = guard.worker.borrow_mut();
    let Some(worker) = worker.as_mut() else { return Ok(None) };
    let wakeup = Wakeup::of(guard, worker)?;
    Ok((worker.arm()? != Armed::Ready).then_some(wakeup))
}
