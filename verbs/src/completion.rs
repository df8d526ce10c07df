//! Completion queues.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::dv::{self, CompletionQueueFacts};
use crate::sys::Cq;
use crate::{CompletionChannel, Context, Error, WorkCompletion};

/// Verbs poll the queue ([`CompletionQueue::poll`]), and nobody else does.
#[derive(Debug)]
pub struct Poller(());

/// A completion queue. `A` says who has access to its entries: verbs, or a driver of the program's own
/// ([`dv::CompletionQueue`]).
pub struct CompletionQueue<A = Poller> {
    queue: Arc<Cq>,
    access: A,
}

/// Names a completion queue to those that complete there, and keeps it alive.
#[derive(Clone)]
pub struct CompletionQueueRef(Arc<Cq>);

/// Names a completion queue in events. No other queue of the process has the same name while this one is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompletionQueueId(pub(crate) usize);

impl CompletionQueue {
    /// A queue with room for at least `entries` completions.
    ///
    /// # Errors
    /// If the device has none of this size.
    pub fn new(context: &Context, entries: u32) -> Result<Self, Error> {
        Self::made(context, entries, None)
    }

    /// A queue with room for at least `entries` completions, whose events go to `channel`. See [`Self::arm`].
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_channel(channel: &CompletionChannel, entries: u32) -> Result<Self, Error> {
        Self::made(&channel.context(), entries, Some(channel))
    }

    fn made(context: &Context, entries: u32, channel: Option<&CompletionChannel>) -> Result<Self, Error> {
        let channel = channel.map(|channel| Arc::clone(channel.handle()));
        let queue = Cq::create(context.open_context(), entries, channel, 0).map_err(|source| {
            Error::new(context.name(), format!("create a completion queue of {entries}"), source)
        })?;
        Ok(Self { queue: Arc::new(queue), access: Poller(()) })
    }

    /// Takes completions from the queue into `completions`, as many as there are and fit, and gives those.
    ///
    /// # Errors
    /// If the queue has overrun or the device failed.
    #[inline]
    pub fn poll<'a>(&self, completions: &'a mut [WorkCompletion]) -> io::Result<&'a [WorkCompletion]> {
        let count = self.queue.poll(WorkCompletion::as_verbs(completions))?;
        Ok(completions.get(..count).unwrap_or_default())
    }

    /// Asks for one event at the channel when the next completion comes: any, or with `solicited_only` one that its sender marked or that
    /// failed. A completion that came before is not told: arm, then poll until nothing is there, then wait.
    ///
    /// # Errors
    /// If the device failed.
    pub fn arm(&self, solicited_only: bool) -> io::Result<()> {
        self.queue.arm(solicited_only)
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

    /// What events name it by.
    pub fn id(&self) -> CompletionQueueId {
        CompletionQueueId(self.queue.identity())
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
        Self::created(context, entries, None, entry_size)
    }

    /// As [`Self::create`], with events that go to `channel` when the queue was armed by its doorbell.
    ///
    /// # Errors
    /// As there.
    pub fn create_with_channel(
        channel: &CompletionChannel,
        entries: u32,
        entry_size: u16,
    ) -> Result<Self, Error> {
        Self::created(&channel.context(), entries, Some(channel), entry_size)
    }

    fn created(
        context: &Context,
        entries: u32,
        channel: Option<&CompletionChannel>,
        entry_size: u16,
    ) -> Result<Self, Error> {
        let library = dv::library(context.name())?;
        let channel = channel.map(|channel| Arc::clone(channel.handle()));
        let queue = Cq::create_mlx5(library, context.open_context(), entries, channel, entry_size);
        let queue = queue.map_err(|source| {
            let action = format!("create a completion queue of {entries} entries of {entry_size} bytes");
            Error::new(context.name(), action, source)
        })?;
        CompletionQueue { queue: Arc::new(queue), access: Poller(()) }.open_direct()
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
