//! Completion queues.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::dv::{self, CompletionQueueInfo};
use crate::sys::Cq;
use crate::{CompletionChannel, Context, Error, WorkCompletion};

/// Only verbs poll the queue ([`CompletionQueue::poll`]).
#[derive(Debug)]
pub struct Poller(());

/// A completion queue. `A` is the kind of access to its entries: by verbs, or directly by a driver
/// in this program ([`dv::CompletionQueue`]).
#[must_use = "dropping it destroys the queue"]
pub struct CompletionQueue<A = Poller> {
    queue: Arc<Cq>,
    access: A,
}

/// A handle by which queue pairs refer to a completion queue. It keeps the queue alive.
#[derive(Clone)]
pub struct CompletionQueueRef(Arc<Cq>);

/// The identity of a completion queue in events. It is unique in the process while the queue
/// exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompletionQueueId(pub(crate) usize);

impl CompletionQueue {
    /// Creates a queue with room for at least `entries` completions.
    ///
    /// # Errors
    /// If the device does not support this size.
    pub fn new(context: &Context, entries: u32) -> Result<Self, Error> {
        Self::made(context, entries, None)
    }

    /// Creates a queue with room for at least `entries` completions, whose events are reported to
    /// `channel`. See [`Self::arm`].
    ///
    /// # Errors
    /// Those of [`Self::new`].
    pub fn with_channel(channel: &CompletionChannel, entries: u32) -> Result<Self, Error> {
        Self::made(&channel.context(), entries, Some(channel))
    }

    fn made(
        context: &Context,
        entries: u32,
        channel: Option<&CompletionChannel>,
    ) -> Result<Self, Error> {
        let channel = channel.map(|channel| Arc::clone(channel.handle()));
        let queue = Cq::create(context.open_context(), entries, channel).map_err(|source| {
            Error::new(context.name(), format!("create a completion queue of {entries}"), source)
        })?;
        Ok(Self { queue: Arc::new(queue), access: Poller(()) })
    }

    /// Polls the queue: moves up to `completions.len()` completions into `completions` and returns
    /// the filled part.
    ///
    /// # Errors
    /// If the queue overflowed or the device failed.
    #[inline]
    pub fn poll<'a>(
        &self,
        completions: &'a mut [WorkCompletion],
    ) -> io::Result<&'a [WorkCompletion]> {
        let count = self.queue.poll(WorkCompletion::as_verbs(completions))?;
        Ok(completions.get(..count).unwrap_or_default())
    }

    /// Requests one event on the channel for the next completion, or with `solicited_only` for the
    /// next one that failed or that its sender marked as solicited. Completions that are already in
    /// the queue cause no event: arm, then poll until the queue is empty, then wait.
    ///
    /// # Errors
    /// If the device failed.
    pub fn arm(&self, solicited_only: bool) -> io::Result<()> {
        self.queue.arm(solicited_only)
    }

    /// Hands the queue's entries over to a driver in this program.
    ///
    /// # Errors
    /// If the device's driver is not libmlx5, or libmlx5 is not installed.
    pub fn open_direct(self) -> Result<dv::CompletionQueue, Error> {
        let context = self.queue.context();
        let info = dv::open(context, "a completion queue", &*self.queue)?;
        let access = CompletionQueueInfo::try_from(info)
            .map_err(|source| Error::new(context.name(), "open a completion queue", source))?;
        Ok(CompletionQueue { queue: self.queue, access })
    }
}

impl<A> CompletionQueue<A> {
    /// The number of completions that the queue has room for.
    pub fn entries(&self) -> u32 {
        self.queue.entries()
    }

    /// The identity of the queue in events.
    pub fn id(&self) -> CompletionQueueId {
        CompletionQueueId(self.queue.identity())
    }

    /// The handle by which queue pairs refer to the queue.
    pub fn reference(&self) -> CompletionQueueRef {
        CompletionQueueRef(Arc::clone(&self.queue))
    }
}

impl CompletionQueue<CompletionQueueInfo> {
    /// Creates a queue of an mlx5 device for direct access, with entries of `entry_size` bytes (64
    /// or 128). The device does not check for overruns, so the consumer index need not be reported
    /// to it.
    ///
    /// # Errors
    /// Those of [`CompletionQueue::new`] and [`CompletionQueue::open_direct`].
    pub fn create(context: &Context, entries: u32, entry_size: u16) -> Result<Self, Error> {
        Self::created(context, entries, None, entry_size)
    }

    /// Like [`Self::create`]; events are reported to `channel` after the queue was armed by its
    /// doorbell.
    ///
    /// # Errors
    /// Those of [`Self::create`].
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
            let action =
                format!("create a completion queue of {entries} entries of {entry_size} bytes");
            Error::new(context.name(), action, source)
        })?;
        CompletionQueue { queue: Arc::new(queue), access: Poller(()) }.open_direct()
    }

    /// The addresses of the queue's entries and doorbells.
    pub fn info(&self) -> &CompletionQueueInfo {
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
