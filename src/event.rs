//! Sleeping until something happens: one descriptor for all interfaces of a worker.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use thiserror::Error;

use crate::interface::Interface;

/// Why a thread cannot sleep on events.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EventError {
    /// Something is there to be done.
    #[error("there is something to be done: call progress first")]
    Busy,
    /// The transport cannot tell when something happens.
    #[error("{transport} has no event descriptor: {reason}; call Worker::progress instead")]
    Missing {
        /// The transport.
        transport: &'static str,
        /// Why.
        reason: &'static str,
    },
    /// The interface is closed: its worker was dropped, or this process is a child by fork.
    #[error("{transport}: the interface is closed: its worker was dropped, or belongs to the parent process")]
    Closed {
        /// The transport.
        transport: &'static str,
    },
    /// A system call failed.
    #[error("could not {step}: {source}")]
    System {
        /// What was tried.
        step: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl EventError {
    fn system<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::System { step, source: error.into() }
    }
}

/// The descriptors of a worker's interfaces, and a timer, behind one descriptor.
pub(crate) struct EventSet {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// So many interfaces are in it.
    known: usize,
}

impl EventSet {
    pub(crate) fn new() -> Result<Self, EventError> {
        let failed = |error: rustix::io::Errno| EventError::system("make an event set")(error);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(failed)?;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(failed)?;
        Ok(Self { epoll, timer, known: 0 })
    }

    /// Takes in the interfaces that came since.
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

    /// The descriptor becomes readable at `time`; without one, by events alone.
    pub(crate) fn wake_at(&self, time: Option<Instant>) -> Result<(), EventError> {
        // Zero would be never.
        let rest =
            time.map(|time| time.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1)));
        let value = timespec(rest.unwrap_or_default());
        let never = timespec(Duration::ZERO);
        let timer = Itimerspec { it_interval: never, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer)
            .map_err(EventError::system("set the timer"))?;
        Ok(())
    }

    /// Sleeps until the descriptor is readable, a signal comes or `timeout` passed.
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

fn timespec(time: Duration) -> Timespec {
    // Longer than anyone waits.
    let seconds = time.as_secs().min(u32::MAX.into());
    Timespec { tv_sec: seconds as _, tv_nsec: time.subsec_nanos().into() }
}
