//! Waiting for events: one descriptor for all interfaces of a worker.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use thiserror::Error;

use crate::address::TransportId;
use crate::interface::Interface;

/// How long a thread may sleep once a worker or an interface is armed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "progress may have something to do"]
pub enum Armed {
    /// Not at all: progress has something to do. Call progress, and arm again.
    Ready,
    /// Until the descriptor is readable, and at the latest until this time. The descriptor of a
    /// worker becomes readable then; that of an interface does not.
    Until(Instant),
    /// Until the descriptor is readable.
    Indefinitely,
}

impl Armed {
    /// Returns the state of something armed that needs progress at `deadline`, if there is one.
    pub fn until(deadline: Option<Instant>) -> Self {
        deadline.map_or(Self::Indefinitely, Self::Until)
    }

    /// Returns the state of both together: the shorter sleep.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Ready, _) | (_, Self::Ready) => Self::Ready,
            (Self::Until(one), Self::Until(other)) => Self::Until(one.min(other)),
            (Self::Until(time), Self::Indefinitely) | (Self::Indefinitely, Self::Until(time)) => {
                Self::Until(time)
            }
            (Self::Indefinitely, Self::Indefinitely) => Self::Indefinitely,
        }
    }

    /// Returns the time of [`Until`](Self::Until).
    pub fn deadline(self) -> Option<Instant> {
        if let Self::Until(time) = self { Some(time) } else { None }
    }
}

/// Why a thread cannot sleep until an event.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EventError {
    /// The transport cannot signal events.
    #[error("{transport} has no event descriptor: {reason}; call Worker::progress instead")]
    Missing {
        /// The transport.
        transport: TransportId,
        /// The reason.
        reason: &'static str,
    },
    /// The interface is closed: its worker was dropped, or this process is a forked child.
    #[error(
        "{transport}: the interface is closed: its worker was dropped, or belongs to the parent process"
    )]
    Closed {
        /// The transport.
        transport: TransportId,
    },
    /// A system call failed.
    #[error("could not {step}: {source}")]
    System {
        /// The step that failed.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl EventError {
    fn system<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::System { step, source: error.into() }
    }
}

/// The descriptors of a worker's interfaces and a timer, combined in one descriptor.
pub(crate) struct EventSet {
    /// Tells the set from all others of the process.
    #[cfg(feature = "tokio")]
    number: u64,
    epoll: OwnedFd,
    timer: OwnedFd,
    /// The timer is set, or has expired.
    is_timed: Cell<bool>,
    /// Number of interfaces in the set.
    known: usize,
}

impl EventSet {
    pub(crate) fn new() -> Result<Self, EventError> {
        let failed = |error: rustix::io::Errno| EventError::system("create an event set")(error);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(failed)?;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(failed)?;
        Ok(Self {
            #[cfg(feature = "tokio")]
            number: next_number(),
            epoll,
            timer,
            is_timed: Cell::new(false),
            known: 0,
        })
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Adds the interfaces that were opened since the last call.
    pub(crate) fn take_in(&mut self, interfaces: &[Interface]) -> Result<(), EventError> {
        for interface in &interfaces[self.known..] {
            if let Some(descriptor) = interface.event_fd()? {
                let data = epoll::EventData::new_u64(self.known as u64 + 1);
                epoll::add(&self.epoll, descriptor, data, epoll::EventFlags::IN)
                    .map_err(EventError::system("watch an interface"))?;
            }
            self.known += 1;
        }
        Ok(())
    }

    /// Makes the descriptor readable at `time`; with `None`, on events only.
    pub(crate) fn wake_at(&self, time: Option<Instant>) -> Result<(), EventError> {
        // Most transports set no deadline, and then arming needs no system call here.
        if !self.is_timed.replace(time.is_some()) && time.is_none() {
            return Ok(());
        }
        // A zero time would disarm the timer.
        let rest = time.map(|time| {
            time.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1))
        });
        let value = timespec(rest.unwrap_or_default());
        let never = timespec(Duration::ZERO);
        let timer = Itimerspec { it_interval: never, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer)
            .map_err(EventError::system("set the timer"))?;
        Ok(())
    }

    /// Sleeps until the descriptor is readable, a signal arrives or `timeout` has passed.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) -> Result<(), EventError> {
        let timeout = timeout.map(timespec);
        match poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(EventError::system("sleep")(error)),
        }
    }
}

impl AsFd for EventSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(feature = "tokio")]
fn next_number() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static SETS: AtomicU64 = AtomicU64::new(0);
    SETS.fetch_add(1, Ordering::Relaxed)
}

/// More than a century, which fits the kernel's type and [`Instant`].
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

pub(crate) fn timespec(time: Duration) -> Timespec {
    let time = time.min(LONGEST);
    Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos().into() }
}

/// Returns the time `duration` after `now`; of a longer duration, a century counts.
#[inline(always)]
pub(crate) fn after(now: Instant, duration: Duration) -> Instant {
    #[expect(clippy::arithmetic_side_effects, reason = "the sum exists")]
    let time = now + duration.min(LONGEST);
    time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shorter_sleep_counts() {
        let now = Instant::now();
        let (soon, late) = (Armed::Until(now), Armed::Until(now + Duration::from_secs(1)));
        for (one, other, both) in [
            (Armed::Ready, soon, Armed::Ready),
            (Armed::Ready, Armed::Indefinitely, Armed::Ready),
            (soon, late, soon),
            (late, Armed::Indefinitely, late),
            (Armed::Indefinitely, Armed::Indefinitely, Armed::Indefinitely),
        ] {
            assert_eq!((one.and(other), other.and(one)), (both, both));
        }
        assert_eq!((Armed::until(Some(now)), Armed::until(None)), (soon, Armed::Indefinitely));
        assert_eq!((soon.deadline(), Armed::Ready.deadline()), (Some(now), None));
    }
}
