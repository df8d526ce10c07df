//! A node as a task of tokio (feature `tokio`).
#![allow(unsafe_code, reason = "tokio requires a promise that the descriptor stays open")]

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use barewire::{Armed, EventError};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::Node;

/// A node whose progress is a future: its task sleeps until something happens. It stays on its
/// thread, so the runtime is a [`new_current_thread`](tokio::runtime::Builder::new_current_thread),
/// or the task is in a [`LocalSet`](tokio::task::LocalSet).
///
/// ```
/// use barewire_wireup::node::{AsyncNode, Node, Rules};
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// let mut node = AsyncNode::new(Node::open(&Rules::default().only(["shm"]))?)?;
/// tokio::select! {
///     // Runs handlers, and connects and closes links, whenever there is something to do.
///     error = node.run() => { error?; },
///     () = tokio::time::sleep(std::time::Duration::from_millis(1)) => {}
/// };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AsyncNode {
    node: Node,
    descriptor: AsyncFd<OwnedFd>,
}

impl AsyncNode {
    /// Inside a runtime with its I/O driver enabled.
    ///
    /// # Errors
    /// [`EventError::Missing`] if one of the transports has no descriptor, [`EventError::System`]
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn new(mut node: Node) -> Result<Self, EventError> {
        let system =
            |source: io::Error| EventError::System { step: "register with the runtime", source };
        let descriptor = node.event_fd()?.as_fd().try_clone_to_owned().map_err(system)?;
        // SAFETY: an owned descriptor is open, and the same one, as long as it lives.
        let descriptor = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
        Ok(Self { node, descriptor: descriptor.map_err(|error| system(error.into()))? })
    }

    /// The node, to connect links and set handlers.
    pub fn node(&mut self) -> &mut Node {
        &mut self.node
    }

    /// Makes progress, and sleeps until there is some to make. Returns the number of events, at
    /// least one. Dropping the future loses nothing.
    pub async fn wait(&mut self) -> Result<usize, EventError> {
        loop {
            let events = self.node.progress();
            if events > 0 {
                return Ok(events);
            }
            if self.node.arm()? != Armed::Ready {
                let ready = self.descriptor.readable().await;
                let mut ready =
                    ready.map_err(|source| EventError::System { step: "sleep", source })?;
                // Cleared before the next progress, so that what comes after it is not lost.
                ready.clear_ready();
            }
        }
    }

    /// Makes progress for ever.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn run(&mut self) -> Result<Infallible, EventError> {
        loop {
            self.wait().await?;
            // Other tasks get their turn under a stream of events.
            tokio::task::yield_now().await;
        }
    }
}
