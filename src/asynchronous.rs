//! A worker as a task of tokio (feature `tokio`).

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::event::{Armed, EventError};
use crate::worker::Worker;

/// A worker whose progress is a future: its task sleeps until an event occurs. It stays on its
/// thread, so it needs a runtime of
/// [`new_current_thread`](tokio::runtime::Builder::new_current_thread), or a task in a
/// [`LocalSet`](tokio::task::LocalSet).
///
/// ```
/// use barewire::{AsyncWorker, Domain, Interface, InterfaceConfig, Worker};
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// let mut worker = Worker::new();
/// let domain = Domain::open(&"shm/memory".parse()?)?;
/// let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
/// let mut worker = AsyncWorker::new(worker)?;
/// tokio::select! {
///     // Runs handlers and callbacks on every event.
///     error = worker.run() => error?,
///     () = tokio::time::sleep(std::time::Duration::from_millis(1)) => return Ok(()),
/// };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping the worker closes its interfaces"]
pub struct AsyncWorker {
    worker: Worker,
    descriptor: AsyncFd<OwnedFd>,
}

impl AsyncWorker {
    /// Registers the worker with the current runtime, whose I/O driver must be enabled.
    ///
    /// # Errors
    /// [`EventError::Missing`] if one of the transports has no event descriptor,
    /// [`EventError::System`]
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn new(mut worker: Worker) -> Result<Self, EventError> {
        let system =
            |source: io::Error| EventError::System { step: "register with the runtime", source };
        let descriptor = worker.event_fd()?.try_clone_to_owned().map_err(system)?;
        // SAFETY: an owned descriptor stays open, and the same, as long as it lives.
        let descriptor = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
        Ok(Self { worker, descriptor: descriptor.map_err(|error| system(error.into()))? })
    }

    /// Returns the worker, to open interfaces.
    pub fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    /// Makes progress, and sleeps while there is none to make. Returns the number of events, at
    /// least one. Dropping the future loses no event.
    ///
    /// # Errors
    /// [`EventError::Missing`], [`EventError::System`]
    pub async fn wait(&mut self) -> Result<usize, EventError> {
        loop {
            let events = self.worker.progress();
            if events > 0 {
                return Ok(events);
            }
            if self.worker.arm()? != Armed::Ready {
                let ready = self.descriptor.readable().await;
                let mut ready =
                    ready.map_err(|source| EventError::System { step: "sleep", source })?;
                // Cleared before the next progress, so that no later event is missed.
                ready.clear_ready();
            }
        }
    }

    /// Makes progress for ever, and yields to other tasks in between.
    ///
    /// # Errors
    /// As [`Self::wait`]; it never returns otherwise.
    pub async fn run(&mut self) -> Result<Infallible, EventError> {
        loop {
            self.wait().await?;
            tokio::task::yield_now().await;
        }
    }
}
