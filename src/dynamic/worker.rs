//! The worker: the only owner of the progress of every interface opened through it.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::base::completion::Completion;
use crate::base::error::{OperationError, PostError, WaitError};
use crate::base::event::{Armed, EventError};
use crate::base::fork::Maker;
use crate::base::status::{FlushMode, Post};
use crate::dynamic::endpoint::Endpoint;
use crate::dynamic::event_set::EventSet;
use crate::dynamic::interface::Interface;
use crate::dynamic::table::transports;

transports!(one_of!
    #[allow(clippy::large_enum_variant, reason = "few, and never moved once a worker has them")]
    #[allow(missing_debug_implementations, reason = "not reachable from outside")]
    pub enum Kind of Progress
);

impl Kind {
    /// Returns whether progress has nothing to do.
    fn is_idle(&self) -> bool {
        transports!(each! self, progress => progress.is_idle())
    }

    fn progress(&mut self) -> usize {
        transports!(each! self, progress => progress.progress())
    }
}

/// Drives the interfaces opened through it, on one thread.
///
/// Handlers and completion callbacks run inside [`progress`](Self::progress). They may post, but
/// they cannot access the worker, which is borrowed meanwhile. Dropping the worker closes its
/// interfaces: outstanding operations complete as cancelled, handlers are dropped, and later posts
/// return [`PostError::Closed`](crate::PostError::Closed).
///
/// In a forked child, an inherited worker makes no progress, and dropping it does nothing: see
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
    /// Handles to the same interfaces.
    interfaces: Vec<Interface>,
    events: Option<EventSet>,
    /// How long a wait polls before it sleeps.
    busy_poll: Duration,
    maker: Maker,
}

impl Worker {
    /// Creates a worker without interfaces.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn adopt(&mut self, interface: Interface, progress: Kind, busy_poll: Duration) {
        self.busy_poll = self.busy_poll.max(busy_poll);
        self.interfaces.push(interface);
        self.progress.push(progress);
    }

    /// Delivers messages, finishes operations and runs pending requests. Never blocks. Returns the
    /// number of events; zero means that nothing happened.
    #[inline(always)]
    pub fn progress(&mut self) -> usize {
        // Fast path for a single device; the other transports add nothing to it.
        if self.is_idle() {
            return 0;
        }
        self.progress_all()
    }

    /// Returns whether [`progress`](Self::progress) would find nothing to do; false for other workers
    /// than those of a single interface of `rc_mlx5`.
    #[doc(hidden)]
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        #[cfg(feature = "mlx5")]
        if let [Kind::RcMlx5(only)] = &*self.progress {
            return only.is_idle();
        }
        false
    }

    #[inline(never)]
    fn progress_all(&mut self) -> usize {
        #[cfg(feature = "shm")]
        if let [Kind::Shm(only)] = &mut *self.progress {
            return only.progress();
        }
        self.progress_each()
    }

    /// A separate function, so that the fast path of a single `shm` needs no saved registers.
    #[inline(never)]
    fn progress_each(&mut self) -> usize {
        self.progress.iter_mut().map(|one| if one.is_idle() { 0 } else { one.progress() }).sum()
    }

    /// Makes progress until `completion`, which counts operations of this worker's interfaces, is
    /// not pending, and returns its status. Uses the processor meanwhile; with [`wait`](Self::wait)
    /// or the completion's future, the thread can sleep.
    ///
    /// Every operation ends, at the latest with the timeout that declares the peer unreachable.
    ///
    /// # Errors
    /// The first [`OperationError`] of an operation counted by the completion;
    /// [`OperationError::CANCELED`] for operations in progress in a forked child, where they never
    /// end.
    pub fn wait_for(&mut self, completion: &Completion) -> Result<(), OperationError> {
        while completion.pending() > 0 {
            if self.maker.is_parent() {
                return Err(OperationError::CANCELED);
            }
            self.progress_or_yield();
        }
        completion.status()
    }

    /// Posts, and makes progress and posts again for as long as there are no resources for it.
    ///
    /// ```
    /// # use barewire::*;
    /// # let mut worker = Worker::new();
    /// # let domain = Domain::open(&"self/memory".parse()?)?;
    /// # let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
    /// # let endpoint = interface.connect(&interface.address())?;
    /// worker.post(|| endpoint.am_short(1, 0, b"hello"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `post`, except [`PostError::NoResource`].
    pub fn post<T>(
        &mut self,
        mut post: impl FnMut() -> Result<T, PostError>,
    ) -> Result<T, PostError> {
        loop {
            match post() {
                Err(PostError::NoResource) => self.progress_or_yield(),
                result => return result,
            }
        }
    }

    /// Makes progress until `done` returns true. Returns false if `timeout` passes first.
    ///
    /// ```
    /// # use barewire::*;
    /// # use std::{cell::Cell, rc::Rc, time::Duration};
    /// # let mut worker = Worker::new();
    /// # let domain = Domain::open(&"self/memory".parse()?)?;
    /// # let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
    /// # let endpoint = interface.connect(&interface.address())?;
    /// let received = Rc::new(Cell::new(false));
    /// let seen = Rc::clone(&received);
    /// interface.set_handler(1, move |_| seen.set(true))?;
    /// worker.post(|| endpoint.am_short(1, 0, b"hello"))?;
    /// assert!(worker.until(Duration::from_secs(10), || received.get()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn until(&mut self, timeout: Duration, mut done: impl FnMut() -> bool) -> bool {
        let start = Instant::now();
        while !done() {
            if self.progress() == 0 {
                if start.elapsed() >= timeout {
                    return done();
                }
                std::thread::yield_now();
            }
        }
        true
    }

    /// Posts one operation and waits until it is finished. While there are no resources for it,
    /// makes progress and tries again. `post` gets the completion to post the operation with.
    ///
    /// ```
    /// # use barewire::*;
    /// # let mut worker = Worker::new();
    /// # let domain = Domain::open(&"self/memory".parse()?)?;
    /// # let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
    /// # let endpoint = interface.connect(&interface.address())?;
    /// # let memory = domain.allocate(4096, Access::all())?;
    /// # let (key, remote) = (domain.unpack_key(&memory.pack_key())?, memory.address() + 2048);
    /// let slice = [memory.slice(0, 1024)?];
    /// worker.complete(|done| endpoint.put_zcopy(&slice, remote, &key, Some(done)))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`WaitError::Post`] if the post is refused for another reason, [`WaitError::Operation`]
    pub fn complete(&mut self, mut post: impl FnMut(&Completion) -> Post) -> Result<(), WaitError> {
        let completion = Completion::counter();
        let _ = self.post(|| post(&completion))?;
        Ok(self.wait_for(&completion)?)
    }

    /// Flushes the endpoint and waits until everything that was posted is finished; see
    /// [`FlushMode`].
    ///
    /// # Errors
    /// As [`Self::complete`].
    pub fn flush(&mut self, endpoint: &Endpoint, mode: FlushMode) -> Result<(), WaitError> {
        self.complete(|completion| endpoint.flush(mode, Some(completion)))
    }

    /// Lets other threads run if there is nothing to do, for example that of the software HCA.
    fn progress_or_yield(&mut self) {
        if self.progress() == 0 {
            std::thread::yield_now();
        }
    }

    /// Returns a descriptor that becomes readable when an event occurs on an armed worker, for
    /// `poll`, `epoll` and reactors built on them. Do not read from it. It stays the same for the
    /// life of the worker.
    ///
    /// # Errors
    /// [`EventError::Missing`] if one of the transports cannot signal events,
    /// [`EventError::System`]
    pub fn event_fd(&mut self) -> Result<BorrowedFd<'_>, EventError> {
        Ok(self.event_set()?.as_fd())
    }

    pub(crate) fn event_set(&mut self) -> Result<&EventSet, EventError> {
        let events = match &mut self.events {
            Some(events) => events,
            none => none.insert(EventSet::new()?),
        };
        events.take_in(&self.interfaces)?;
        Ok(events)
    }

    /// Makes [`Self::event_fd`] readable on the next event, and at the deadline that it returns,
    /// until [`Self::progress`] is called: then arm again. Earlier events are not lost, but
    /// reported as [`Armed::Ready`].
    pub fn arm(&mut self) -> Result<Armed, EventError> {
        self.event_set()?;
        let mut armed = Armed::Indefinitely;
        for interface in &self.interfaces {
            armed = armed.and(interface.arm()?);
            if armed == Armed::Ready {
                return Ok(armed);
            }
        }
        self.event_set()?.wake_at(armed.deadline())?;
        Ok(armed)
    }

    /// Makes progress, and sleeps while there is none to make, after polling for
    /// [`InterfaceConfig::busy_poll`](crate::InterfaceConfig). Returns the number of events; zero
    /// if `timeout` has passed.
    ///
    /// ```
    /// # use barewire::*;
    /// # let mut worker = Worker::new();
    /// # let domain = Domain::open(&"self/memory".parse()?)?;
    /// # let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
    /// let events = worker.wait(Some(std::time::Duration::from_millis(1)))?;
    /// assert_eq!(events, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
            if self.arm()? != Armed::Ready {
                self.event_set()?.sleep(rest)?;
            }
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("interfaces", &self.interfaces).finish_non_exhaustive()
    }
}
