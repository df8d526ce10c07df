//! Waiting for events: how long a thread may sleep.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use thiserror::Error;

use crate::base::address::TransportId;

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
#[derive(Error)]
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
    pub(crate) fn system<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::System { step, source: error.into() }
    }
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
