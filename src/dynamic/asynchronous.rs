//! A worker as a task of tokio (feature `tokio`).

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::base::event::{Armed, EventError};
use crate::dynamic::worker::Worker;

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
    watched: Watched,
}

/// The descriptor of a worker, registered with the runtime.
#[derive(Debug)]
struct Watched {
    descriptor: AsyncFd<OwnedFd>,
    /// The number of the worker's event set.
    number: u64,
}

impl Watched {
    fn of(worker: &mut Worker) -> Result<Self, EventError> {
        let system =
            |source: io::Error| EventError::System { step: "register with the runtime", source };
        let events = worker.event_set()?;
        let (number, descriptor) = (events.number(), events.as_fd().try_clone_to_owned());
        let descriptor = descriptor.map_err(system)?;
        // SAFETY: an owned descriptor stays open, and the same, as long as it lives.
        let descriptor = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
        let descriptor = descriptor.map_err(|error| system(error.into()))?;
        Ok(Self { descriptor, number })
    }
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
        let watched = Watched::of(&mut worker)?;
        Ok(Self { worker, watched })
    }

    /// Returns the worker, to open interfaces. If another worker is put in its place, the next wait
    /// registers that one.
    pub fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    /// Makes progress, and sleeps while there is none to make. Returns the number of events, at
    /// least one. Dropping the future loses no event.
    pub async fn wait(&mut self) -> Result<usize, EventError> {
        loop {
            let events = self.worker.progress();
            if events > 0 {
                return Ok(events);
            }
            if self.worker.arm()? != Armed::Ready {
                if self.worker.event_set()?.number() != self.watched.number {
                    self.watched = Watched::of(&mut self.worker)?;
                }
                let ready = self.watched.descriptor.readable().await;
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

#[cfg(all(test, feature = "shm"))]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    use super::*;
    use crate::base::config::InterfaceConfig;
    use crate::dynamic::domain::Domain;
    use crate::dynamic::interface::Interface;

    #[test]
    fn a_worker_that_takes_the_place_of_another_is_watched() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let domain = Domain::open(&"shm/memory".parse().unwrap()).unwrap();
            let config = InterfaceConfig::default();
            let [mut first, mut second, mut sender] = [(); 3].map(|()| Worker::new());
            let _unused = Interface::open(&mut first, &domain, &config).unwrap();
            let here = Interface::open(&mut second, &domain, &config).unwrap();
            let there = Interface::open(&mut sender, &domain, &config).unwrap();
            let received = Rc::new(Cell::new(false));
            let seen = Rc::clone(&received);
            here.set_handler(1, move |_| seen.set(true)).unwrap();
            let endpoint = there.connect(&here.address()).unwrap();
            assert!(sender.until(Duration::from_mins(1), || {
                second.progress();
                !endpoint.is_connecting()
            }));
            let mut worker = AsyncWorker::new(first).unwrap();
            let first = std::mem::replace(worker.worker(), second);
            let arrives = async {
                while !received.get() {
                    worker.wait().await.unwrap();
                }
            };
            let sends = async {
                // The other future sleeps then.
                tokio::task::yield_now().await;
                sender.post(|| endpoint.am_short(1, 0, b"hello")).unwrap();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                biased;
                () = arrives => {}
                () = sends => unreachable!("it is pending"),
                () = tokio::time::sleep(Duration::from_mins(1)) => panic!("it sleeps for ever"),
            }
            drop(first);
        });
    }
}
