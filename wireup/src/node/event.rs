//! Sleeping until something happens to a node.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use barewire::{Armed, EventError};
use barewire_tcp::time::after;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::{Node, Shared};

/// The descriptors of the worker and the control connections, and a timer, behind one descriptor.
pub(super) struct Events {
    epoll: OwnedFd,
    timer: OwnedFd,
}

fn system<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> EventError {
    move |error| EventError::System { step, source: error.into() }
}

impl Events {
    fn new(sources: &[BorrowedFd<'_>]) -> Result<Self, EventError> {
        let failed = |error: rustix::io::Errno| system("make an event set")(error);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(failed)?;
        for source in sources.iter().copied().chain([timer.as_fd()]) {
            epoll::add(&epoll, source, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .map_err(failed)?;
        }
        Ok(Self { epoll, timer })
    }

    fn wake_at(&self, time: Option<Instant>) -> Result<(), EventError> {
        let rest = time.map(|time| time.saturating_duration_since(Instant::now()));
        // Zero would be never.
        let value = timespec(rest.map_or(Duration::ZERO, |rest| rest.max(Duration::from_nanos(1))));
        let timer = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer)
            .map_err(system("set the timer"))?;
        Ok(())
    }
}

fn timespec(time: Duration) -> Timespec {
    // Longer than anyone waits.
    let seconds = time.as_secs().min(u32::MAX.into());
    Timespec { tv_sec: seconds as _, tv_nsec: time.subsec_nanos().into() }
}

impl Shared {
    /// When progress has something to do although nothing happens.
    fn next_deadline(&self) -> Option<Instant> {
        let now = Instant::now();
        let (machine, allowance) = (self.machine.borrow(), self.allowance.borrow());
        let timer = machine.next_timer().map(|timer| timer.saturating_sub(self.now()));
        let timer = timer.map(|timer| after(now, timer));
        let keepalive = self.keepalive.as_ref();
        let keepalive =
            keepalive.map(|(_, next)| after(now, next.get().saturating_sub(self.now())));
        let streams = self.streams.borrow();
        let streams = streams.as_ref().and_then(|streams| streams.deadline(now, &allowance));
        let strangers = machine.has_strangers().then(|| allowance.next_slice());
        let held = self.refusals.borrow().release_at();
        let (dials, trials) = (self.dial_deadline(), self.trial_deadline(now));
        [timer, keepalive, streams, strangers, dials, trials, held].into_iter().flatten().min()
    }
}

impl Node {
    /// A descriptor that becomes readable when something happens to an armed node, for `poll`,
    /// `epoll` and reactors. Nothing is to be read from it. It is the same for the node's whole
    /// life.
    ///
    /// # Errors
    /// [`EventError::Missing`] if one of the transports has none, [`EventError::System`]
    pub fn event_fd(&mut self) -> Result<BorrowedFd<'_>, EventError> {
        Ok(self.event_set()?.epoll.as_fd())
    }

    fn event_set(&mut self) -> Result<&Events, EventError> {
        match &mut self.events {
            Some(events) => Ok(events),
            none => {
                let streams = self.shared.streams.borrow();
                let worker = self.worker.event_fd()?;
                let sources: Vec<_> =
                    [worker].into_iter().chain(streams.as_ref().map(AsFd::as_fd)).collect();
                Ok(none.insert(Events::new(&sources)?))
            }
        }
    }

    /// From now on [`event_fd`](Self::event_fd) reports what happens, until
    /// [`progress`](Self::progress) is called: then arm again. It also reports the next deadline.
    pub fn arm(&mut self) -> Result<Armed, EventError> {
        self.event_set()?;
        // The first progress after an event checks clock and streams, whatever round it is.
        self.rest = 0;
        if self.shared.busy.get() {
            return Ok(Armed::Ready);
        }
        let armed = self.worker.arm()?;
        if armed == Armed::Ready {
            return Ok(armed);
        }
        let own = Armed::until(self.shared.next_deadline());
        self.event_set()?.wake_at(own.deadline())?;
        Ok(armed.and(own))
    }

    /// Makes progress, and sleeps until there is some to make. Returns the number of events; zero
    /// if `timeout` passed.
    ///
    /// A message, the end of an operation of this node, a change of a link's state, a client of a
    /// listener and the decision about a [`dial`](Self::dial) are events. What a peer puts into the
    /// memory of this process, or changes there by an atomic, is none: have the peer send a message
    /// behind it, or sleep for a short time only. What an earlier call has made progress on, such
    /// as [`post`](Self::post), is no event any more: check for it before each sleep. A program of
    /// tagged messages sleeps in [`Tags::wait`](crate::tag::Tags::wait).
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, EventError> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let events = self.progress();
            if events > 0 {
                return Ok(events);
            }
            let rest = end.map(|end| end.saturating_duration_since(Instant::now()));
            if rest == Some(Duration::ZERO) {
                return Ok(0);
            }
            if self.arm()? == Armed::Ready {
                continue;
            }
            let rest = rest.map(timespec);
            let events = self.event_set()?;
            match poll(&mut [PollFd::new(&events.epoll, PollFlags::IN)], rest.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(system("sleep")(error)),
            }
        }
    }
}
