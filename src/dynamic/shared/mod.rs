//! A worker that threads share: one lock, and handles that are `Send` and `Sync`.
//!
//! A [`SharedWorker`] has the operations of a [`Worker`](crate::Worker), and its interfaces and
//! endpoints those of [`Interface`](crate::Interface) and [`Endpoint`](crate::Endpoint). Each call
//! takes the worker's lock. A program whose threads can have a worker each is faster without: see
//! [the guide](crate::guide::threads).
//!
//! Handlers, callbacks and pending requests run with the lock held, on the thread that makes
//! progress or posts. They may post through handles of the same worker, since the lock is
//! reentrant. Progress inside of progress does nothing, and a wait in a callback returns
//! [`SharedWaitError::InCallback`]. A handler that takes a lock of the program can deadlock with a
//! thread that posts while it holds that lock.
//!
//! A panic of a handler continues in the call that ran it; the worker stays usable.
//!
//! ```
//! use std::sync::atomic::{AtomicUsize, Ordering};
//! use std::sync::Arc;
//! use barewire::shared::{SharedInterface, SharedWorker};
//! use barewire::{Domain, InterfaceConfig};
//!
//! let worker = SharedWorker::new();
//! let domain = Domain::open(&"self/memory".parse()?)?;
//! let interface = SharedInterface::open(&worker, &domain, &InterfaceConfig::default())?;
//! let received = Arc::new(AtomicUsize::new(0));
//! let count = Arc::clone(&received);
//! interface.set_handler(3, move |_| {
//!     count.fetch_add(1, Ordering::Relaxed);
//! })?;
//! let endpoint = interface.connect(&interface.address())?;
//! std::thread::scope(|scope| {
//!     for thread in 0..2 {
//!         let endpoint = &endpoint;
//!         scope.spawn(move || endpoint.am_short(3, thread, b"hello").unwrap());
//!     }
//! });
//! worker.progress();
//! assert_eq!(received.load(Ordering::Relaxed), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An object of the single-threaded API cannot leave a shared worker:
//!
//! ```compile_fail
//! fn handler(interface: &barewire::shared::SharedInterface) {
//!     let mut kept = None;
//!     interface.set_handler(0, move |message| kept = Some(message.message)).unwrap();
//! }
//! ```
//!
//! Handlers and requests, which run on any thread, capture nothing that belongs to one:
//!
//! ```compile_fail,E0277
//! fn handler(interface: &barewire::shared::SharedInterface) {
//!     let count = std::rc::Rc::new(5);
//!     interface.set_handler(0, move |_| drop(count.clone())).unwrap();
//! }
//! ```
//!
//! ```compile_fail,E0277
//! use barewire::PendingResult;
//!
//! fn wait(endpoint: &barewire::shared::SharedEndpoint) {
//!     let count = std::rc::Rc::new(5);
//!     let request = move |_: &_| {
//!         drop(count.clone());
//!         PendingResult::Done
//!     };
//!     endpoint.pending_add(request).unwrap();
//! }
//! ```
//!
//! ```compile_fail,E0277
//! let cell = std::cell::Cell::new(5);
//! barewire::shared::SharedCompletion::new(move |_| cell.set(6));
//! ```
//!
//! ```compile_fail,E0277
//! let cell = std::cell::Cell::new(5);
//! barewire::shared::SharedUnpack::new(move |_| cell.set(6));
//! ```
//!
//! A message does not outlive its handler unless it is kept:
//!
//! ```compile_fail,E0521
//! use std::sync::Mutex;
//! use barewire::shared::{SharedInterface, SharedMessage};
//!
//! fn handler(interface: &SharedInterface, last: &'static Mutex<Vec<&'static [u8]>>) {
//!     interface.set_handler(0, move |message: SharedMessage<'_>| {
//!         last.lock().unwrap().push(message.data());
//!     }).unwrap();
//! }
//! ```

mod completion;
mod endpoint;
mod interface;
mod lock;
mod message;
mod ticket;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use completion::{SharedCompleted, SharedCompletion, SharedFetchResult, SharedUnpack};
pub use endpoint::SharedEndpoint;
pub use interface::SharedInterface;
use lock::Shared;
pub use message::{SharedKeptMessage, SharedMessage};
pub use wait::SharedWaitError;

/// A worker that any number of threads use at the same time. Cloning gives another handle to the
/// same worker.
///
/// Dropping the last handle closes the interfaces, as the drop of a [`Worker`](crate::Worker) does.
#[derive(Clone)]
#[must_use = "dropping the worker closes its interfaces"]
pub struct SharedWorker(Arc<Owner>);

/// The handles of the worker itself. The drop closes the worker, while endpoints may still exist.
struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        let Some(guard) = self.0.enter() else { return };
        // The worker runs callbacks when it is dropped, so it is not borrowed then. Progress never
        // runs here, because its callers have a handle.
        let worker = guard.worker.try_borrow_mut().ok().and_then(|mut worker| worker.take());
        guard.tickets.news.set(true);
        drop(worker);
    }
}

impl SharedWorker {
    /// Creates a worker without interfaces.
    pub fn new() -> Self {
        Self(Arc::new(Owner(Shared::new())))
    }

    /// Delivers messages, finishes operations and runs pending requests. It waits for the lock, and
    /// never otherwise. Returns the number of events; zero if nothing happened, inside of a
    /// handler or callback that progress runs, and in a forked child.
    #[inline(always)]
    pub fn progress(&self) -> usize {
        // `map_or` with a closure is not inlined.
        match self.0.0.enter() {
            Some(guard) => guard.progress(),
            None => 0,
        }
    }

    /// Makes progress, and sleeps while there is none to make. Any number of threads may wait: one
    /// of them sleeps on the worker's descriptors, and none holds the lock. Returns the number of
    /// events that all threads have processed since the call; zero if `timeout` has passed.
    ///
    /// A post or progress of another thread wakes the sleeping thread, by a system call.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<usize, SharedWaitError> {
        Ok(wait::wait_until(&self.0.0, timeout, |events| events > 0)?.0)
    }

    /// As [`Self::wait`], until the operations that `completion` counts are finished. They were
    /// posted through this worker; the end of others does not wake this thread.
    ///
    /// # Errors
    /// [`SharedWaitError::TimedOut`], [`SharedWaitError::Operation`] if an operation failed, and as
    /// [`Self::wait`].
    pub fn wait_for(
        &self,
        completion: &SharedCompletion,
        timeout: Option<Duration>,
    ) -> Result<(), SharedWaitError> {
        let done = |_| completion.pending() == 0;
        let (_, done) = wait::wait_until(&self.0.0, timeout, done)?;
        if done { Ok(completion.status()?) } else { Err(SharedWaitError::TimedOut) }
    }
}

impl Default for SharedWorker {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SharedWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedWorker").finish_non_exhaustive()
    }
}
