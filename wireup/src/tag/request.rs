//! Handles to requests.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::buffer::Buffer;
use super::protocol::{Envelope, TagResult};
use super::slab::Key;
use super::tags::Inner;

/// A send or a receive. Its result is there exactly once it is complete, and stays.
///
/// Progress of the worker completes requests. A request can be polled, or awaited: then something
/// must drive the worker on this thread. Dropping the handle does not cancel the request.
#[must_use = "the result tells whether the message was sent or received"]
pub struct Request(State);

enum State {
    Complete(TagResult),
    Open { tags: Rc<Inner>, key: Key },
}

impl Request {
    pub(super) fn complete(result: TagResult) -> Self {
        Self(State::Complete(result))
    }

    pub(super) fn open(tags: &Rc<Inner>, key: Key) -> Self {
        Self(State::Open { tags: Rc::clone(tags), key })
    }

    /// The result, once the request is complete.
    #[inline]
    pub fn poll(&self) -> Option<TagResult> {
        match &self.0 {
            State::Complete(result) => Some(*result),
            State::Open { tags, key } => tags.result(*key),
        }
    }

    /// Asks for the cancellation of the request. Returns whether it may end as
    /// [`Canceled`](super::TagError::Canceled); the result tells.
    ///
    /// A receive that has got its message goes on. So does a send whose payload has left or is
    /// being fetched; one that is only announced ends when the peer has confirmed.
    pub fn cancel(&self) -> bool {
        match &self.0 {
            State::Complete(_) => false,
            State::Open { tags, key } => tags.cancel(*key),
        }
    }
}

impl Future for Request {
    type Output = TagResult;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<TagResult> {
        if let Some(result) = Request::poll(&self) {
            return Poll::Ready(result);
        }
        if let State::Open { tags, key } = &self.0 {
            tags.wake(*key, context.waker());
        }
        Poll::Pending
    }
}

impl Drop for Request {
    #[inline]
    fn drop(&mut self) {
        if let State::Open { tags, key } = &self.0 {
            tags.detach(*key);
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Request").field(&self.poll()).finish()
    }
}

/// A message that was taken from those that wait for a receive. No other receive gets it.
///
/// Dropping it discards the message; its sender completes as if it had been received.
#[must_use = "dropping it discards the message"]
pub struct Found {
    tags: Rc<Inner>,
    claim: Option<Key>,
    envelope: Envelope,
}

impl Found {
    pub(super) fn new(tags: &Rc<Inner>, claim: Key, envelope: Envelope) -> Self {
        Self { tags: Rc::clone(tags), claim: Some(claim), envelope }
    }

    /// Its tag, length and link.
    pub fn envelope(&self) -> Envelope {
        self.envelope
    }

    /// Receives the message.
    pub fn receive(mut self, buffer: &Buffer) -> Request {
        let claim = self.claim.take();
        let key = claim.and_then(|claim| self.tags.receive_claimed(claim, buffer));
        key.map_or(Request::complete(Err(super::TagError::Closed)), |key| {
            Request::open(&self.tags, key)
        })
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            self.tags.discard(claim);
        }
    }
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Found").field("envelope", &self.envelope).finish_non_exhaustive()
    }
}
