//! The worker: the one owner of the progress of every interface opened through it.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::event::{EventError, EventSet};
use crate::interface::Interface;
use crate::transport::table::transports;

transports!(one_of!
    #[allow(clippy::large_enum_variant, reason = "few, and never moved once a worker has them")]
    #[allow(missing_debug_implementations, reason = "not reachable from outside")]
    pub enum Kind of Progress
);

impl Kind {
    /// Progress has nothing to do.
    fn is_idle(&self) -> bool {
        transports!(each! self, progress => progress.is_idle())
    }

    fn progress(&mut self) -> usize {
        transports!(each! self, progress => progress.progress())
    }
}

/// Drives the interfaces opened through it, on one thread.
///
/// Handlers and completion callbacks run inside [`progress`](Self::progress). They may post, but they cannot
/// reach the worker, which is borrowed meanwhile. Dropping the worker closes its interfaces: outstanding
/// operations complete as cancelled, handlers are dropped, and later posts answer
/// [`PostError::Closed`](crate::PostError::Closed).
///
/// In a child by fork, an inherited worker makes no progress, and dropping it does nothing: see
/// [fork](crate::guide::threads).
///
/// A worker stays on its thread:
///
/// ```compile_fail
/// fn send<T: Send>(_: T) {}
/// send(barewire::Worker::new());
/// ```
#[derive(Default)]
#[must_use = "dropping the worker closes its interfaces"]
pub struct Worker {
    progress: Vec<Kind>,
    /// The same, as handles.
    interfaces: Vec<Interface>,
    events: Option<EventSet>,
    /// How long a wait looks before it sleeps.
    busy_poll: Duration,
}

impl Worker {
    /// A worker without interfaces.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn adopt(&mut self, interface: Interface, progress: Kind, busy_poll: Duration) {
        self.busy_poll = self.busy_poll.max(busy_poll);
        self.interfaces.push(interface);
        self.progress.push(progress);
    }

    /// Delivers what arrived, finishes what is done and gives pending requests their turn. Never blocks.
    /// Answers how many events there were; zero says that nothing happened.
    #[inline]
    pub fn progress(&mut self) -> usize {
        // One device as a rule; what the others need costs it nothing.
        if let [Kind::RcMlx5(only)] = &*self.progress
            && only.is_idle()
        {
            return 0;
        }
        self.progress_all()
    }

    #[inline(never)]
    fn progress_all(&mut self) -> usize {
        if let [Kind::Shm(only)] = &mut *self.progress {
            return only.progress();
        }
        self.progress_each()
    }

    /// Of its own, so that a single `shm` does not save registers for it.
    #[inline(never)]
    fn progress_each(&mut self) -> usize {
        self.progress.iter_mut().map(|one| if one.is_idle() { 0 } else { one.progress() }).sum()
    }

    /// A descriptor that becomes readable when something happens to an armed worker; for `poll`, `epoll` and the reactors that are made of
    /// them. Nothing is to be read from it. It is the same for the worker's whole life.
    ///
    /// # Errors
    /// [`EventError::Missing`] if one of the transports cannot tell, [`EventError::System`]
    pub fn event_fd(&mut self) -> Result<BorrowedFd<'_>, EventError> {
        Ok(self.event_set()?.as_fd())
    }

    fn event_set(&mut self) -> Result<&EventSet, EventError> {
        if self.events.is_none() {
            self.events = Some(EventSet::new()?);
        }
        let events = self.events.as_mut().ok_or(EventError::Busy)?;
        events.take_in(&self.interfaces)?;
        Ok(events)
    }

    /// From now on [`Self::event_fd`] tells when something happens, until [`Self::progress`] is called: then arm again. What happened
    /// before is not lost, but answered by [`EventError::Busy`].
    ///
    /// # Errors
    /// [`EventError::Busy`] if something is there to be done: call progress, and arm again. [`EventError::Missing`],
    /// [`EventError::System`]
    pub fn arm(&mut self) -> Result<(), EventError> {
        self.event_set()?;
        let mut earliest: Option<Instant> = None;
        for interface in &self.interfaces {
            if let Some(time) = interface.arm()? {
                earliest = Some(earliest.map_or(time, |earliest| earliest.min(time)));
            }
        }
        self.event_set()?.wake_at(earliest)
    }

    /// Makes progress, and sleeps until there is some to make, after a look of [`InterfaceConfig::busy_poll`](crate::InterfaceConfig).
    /// Answers the number of events; zero if `timeout` passed.
    ///
    /// ```
    /// # use barewire::*;
    /// # let mut worker = Worker::new();
    /// # let domain = Domain::open("self", "memory")?;
    /// # let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
    /// let events = worker.wait(Some(std::time::Duration::from_millis(1)))?;
    /// assert_eq!(events, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`EventError::Missing`], [`EventError::System`]
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, EventError> {
        let start = Instant::now();
        let end = timeout.and_then(|timeout| start.checked_add(timeout));
        loop {
            let events = self.progress();
            if events > 0 {
                return Ok(events);
            }
            let now = Instant::now();
            let rest = end.map(|end| end.saturating_duration_since(now));
            if rest == Some(Duration::ZERO) {
                return Ok(0);
            }
            if now.saturating_duration_since(start) < self.busy_poll {
                std::hint::spin_loop();
                continue;
            }
            match self.arm() {
                Ok(()) => self.event_set()?.sleep(rest)?,
                Err(EventError::Busy) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("interfaces", &self.interfaces).finish_non_exhaustive()
    }
}
