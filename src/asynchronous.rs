//! A worker as a task of tokio (feature `tokio`).

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::event::EventError;
use crate::worker::Worker;

/// A worker whose progress is a future: its task sleeps until something happens. It stays on its thread, so the runtime is one of
/// [`new_current_thread`](tokio::runtime::Builder::new_current_thread), or the task is in a [`LocalSet`](tokio::task::LocalSet).
///
/// ```
/// use barewire::{AsyncWorker, Domain, Interface, InterfaceConfig, Worker};
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// let mut worker = Worker::new();
/// let domain = Domain::open("shm", "memory")?;
/// let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
/// let mut worker = AsyncWorker::new(worker)?;
/// tokio::select! {
///     // Runs handlers and callbacks whenever there are some to run.
///     error = worker.run() => error?,
///     () = tokio::time::sleep(std::time::Duration::from_millis(1)) => return Ok(()),
/// };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AsyncWorker {
    worker: Worker,
    descriptor: AsyncFd<OwnedFd>,
}

impl AsyncWorker {
    /// Inside a runtime with its I/O driver enabled.
    ///
    /// # Errors
    /// [`EventError::Missing`] if one of the transports cannot tell when something happens, [`EventError::System`]
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn new(mut worker: Worker) -> Result<Self, EventError> {
        let system = |source: io::Error| EventError::System { step: "register with the runtime", source };
        let descriptor = worker.event_fd()?.try_clone_to_owned().map_err(system)?;
        // SAFETY: an owned descriptor is open, and the same one, as long as it lives.
        let descriptor = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
        Ok(Self { worker, descriptor: descriptor.map_err(|error| system(error.into()))? })
    }

    /// The worker, to open interfaces.
    pub fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    /// Makes progress, and sleeps until there is some to make. Answers the number of events, at least one. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`EventError::Missing`], [`EventError::System`]
    pub async fn wait(&mut self) -> Result<usize, EventError> {
        loop {
            let events = self.worker.progress();
            if events > 0 {
                return Ok(events);
            }
            match self.worker.arm() {
                Ok(()) => {
                    let ready = self.descriptor.readable().await;
                    let mut ready = ready.map_err(|source| EventError::System { step: "sleep", source })?;
                    // Forgotten before the next progress, so that what comes after that is not.
                    ready.clear_ready();
                }
                Err(EventError::Busy) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes progress for ever, with a turn for other tasks in between.
    ///
    /// # Errors
    /// As [`Self::wait`]; it ends in no other way.
    pub async fn run(&mut self) -> Result<Infallible, EventError> {
        loop {
            self.wait().await?;
            tokio::task::yield_now().await;
        }
    }
}
