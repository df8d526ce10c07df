//! Completion queues.

use std::fmt;
use std::sync::Arc;

use crate::dv::{self, CompletionQueueFacts};
use crate::sys::Cq;
use crate::{Context, Error};

/// Verbs have access to the rings of a queue. Nobody else has.
#[derive(Debug)]
pub struct ByVerbs(());

impl ByVerbs {
    pub(crate) fn new() -> Self {
        Self(())
    }
}

/// A completion queue. `A` says who has access to its entries: verbs, or a driver of the program's own
/// ([`dv::CompletionQueue`]).
pub struct CompletionQueue<A = ByVerbs> {
    queue: Arc<Cq>,
    access: A,
}

/// Names a completion queue to those that complete there, and keeps it alive.
#[derive(Clone)]
pub struct CompletionQueueRef(Arc<Cq>);

impl CompletionQueue {
    /// A queue with room for at least `entries` completions, whose events come by completion vector 0.
    ///
    /// # Errors
    /// If the device has none of this size.
    pub fn new(context: &Context, entries: u32) -> Result<Self, Error> {
        let queue = Cq::create(context.open_context(), entries, 0).map_err(|source| {
            Error::new(context.name(), format!("create a completion queue of {entries}"), source)
        })?;
        Ok(Self { queue: Arc::new(queue), access: ByVerbs::new() })
    }

    /// Gives the queue's entries to a driver of the program's own.
    ///
    /// # Errors
    /// If the device is not one of libmlx5, or that is not installed.
    pub fn open_direct(self) -> Result<dv::CompletionQueue, Error> {
        let context = self.queue.context();
        let facts = dv::open(context, "a completion queue", &*self.queue)?;
        let access = CompletionQueueFacts::try_from(facts)
            .map_err(|source| Error::new(context.name(), "open a completion queue", source))?;
        Ok(CompletionQueue { queue: self.queue, access })
    }
}

impl<A> CompletionQueue<A> {
    /// How many completions it has room for.
    pub fn entries(&self) -> u32 {
        self.queue.entries()
    }

    /// What queue pairs name it by.
    pub fn reference(&self) -> CompletionQueueRef {
        CompletionQueueRef(Arc::clone(&self.queue))
    }
}

impl CompletionQueue<CompletionQueueFacts> {
    /// A queue of an mlx5 device with entries of `entry_size` bytes (64 or 128), made for direct access: the device does not check for
    /// overruns, so that the consumer index need not be told to it.
    ///
    /// # Errors
    /// As [`CompletionQueue::new`] and [`CompletionQueue::open_direct`].
    pub fn create(context: &Context, entries: u32, entry_size: u16) -> Result<Self, Error> {
        let library = dv::library(context.name())?;
        let queue = Cq::create_mlx5(library, context.open_context(), entries, 0, entry_size);
        let queue = queue.map_err(|source| {
            let action = format!("create a completion queue of {entries} entries of {entry_size} bytes");
            Error::new(context.name(), action, source)
        })?;
        CompletionQueue { queue: Arc::new(queue), access: ByVerbs::new() }.open_direct()
    }

    /// Where it is.
    pub fn facts(&self) -> &CompletionQueueFacts {
        &self.access
    }
}

impl CompletionQueueRef {
    pub(crate) fn handle(&self) -> &Arc<Cq> {
        &self.0
    }
}

impl<A: fmt::Debug> fmt::Debug for CompletionQueue<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("entries", &self.entries())
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for CompletionQueueRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueueRef").finish_non_exhaustive()
    }
}
