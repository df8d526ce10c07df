//! Completion channels: waiting for completions on a file descriptor.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::completion::CompletionQueueId;
use crate::sys::{Channel, CqEvent};
use crate::{Context, Error};

/// Receives events of completion queues. Its descriptor is readable when there is an event, for
/// poll and epoll.
#[must_use = "dropping it destroys the channel"]
pub struct CompletionChannel(Arc<Channel>);

impl CompletionChannel {
    /// Creates a channel.
    ///
    /// # Errors
    /// If the process has no free file descriptor.
    pub fn new(context: &Context) -> Result<Self, Error> {
        let channel = Channel::create(context.open_context())
            .map_err(|source| Error::new(context.name(), "create a completion channel", source))?;
        Ok(Self(Arc::new(channel)))
    }

    /// Returns the next event, or `None` if there is none. Does not block.
    ///
    /// # Errors
    /// If the device was removed.
    pub fn next_event(&self) -> Result<Option<CompletionEvent>, Error> {
        let event = self.0.next();
        let event = event.map_err(|source| {
            Error::new(self.0.parents().name(), "read a completion channel", source)
        })?;
        Ok(event.map(CompletionEvent))
    }

    pub(crate) fn handle(&self) -> &Arc<Channel> {
        &self.0
    }

    pub(crate) fn context(&self) -> Context {
        Context::from(Arc::clone(self.0.parents()))
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel").field("descriptor", &self.as_fd()).finish()
    }
}

/// An event: a completion queue that was armed has a completion. Dropping the event acknowledges
/// it. **Destroying the queue waits for the acknowledgement**, so drop the event first.
#[must_use = "dropping it acknowledges the event"]
pub struct CompletionEvent(CqEvent);

impl CompletionEvent {
    /// The identity of the queue, equal to its [`crate::CompletionQueue::id`].
    pub fn queue(&self) -> CompletionQueueId {
        CompletionQueueId(self.0.identity())
    }
}

impl fmt::Debug for CompletionEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CompletionEvent").field(&self.queue()).finish()
    }
}
