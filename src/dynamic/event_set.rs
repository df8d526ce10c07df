//! Waiting for events: one descriptor for all interfaces of a worker.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::base::event::{EventError, timespec};
use crate::dynamic::interface::Interface;

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
