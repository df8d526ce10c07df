//! Active messages as the handlers of a shared worker receive them.

use std::fmt;
use std::ops::Deref;
use std::sync::Weak;

use super::lock::{Handle, Shared};
use crate::transport::common::message::{KeptMessage, Message};

/// A [`Message`] of a shared worker. Its bytes are valid until the handler returns, or longer as a
/// [`SharedKeptMessage`].
pub struct SharedMessage<'a> {
    pub(super) message: Message<'a>,
    pub(super) shared: &'a Weak<Shared>,
}

impl SharedMessage<'_> {
    /// As [`Message::data`].
    #[inline]
    pub fn data(&self) -> &[u8] {
        self.message.data()
    }

    /// As [`Message::split_short`].
    #[inline]
    pub fn split_short(&self) -> Option<(u64, &[u8])> {
        self.message.split_short()
    }

    /// Keeps the bytes beyond the handler, as [`Message::keep`]. Returns `None` while the last
    /// handle of the worker is being dropped, when there is nothing left to return the buffer to.
    pub fn keep(self) -> Option<SharedKeptMessage> {
        let shared = self.shared.upgrade()?;
        let guard = shared.enter()?;
        Some(SharedKeptMessage(Handle::new(&shared, &guard, self.message.keep())))
    }
}

impl fmt::Debug for SharedMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMessage").field("data", &self.data()).finish_non_exhaustive()
    }
}

/// The bytes of a message that its handler kept. Dropping it, on any thread, returns the buffer.
#[must_use = "dropping the message gives its buffer back"]
pub struct SharedKeptMessage(Handle<KeptMessage>);

impl Deref for SharedKeptMessage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: a kept message dereferences to bytes that nobody writes while it exists, at an
        // address that does not change.
        unsafe { self.0.unlocked() }
    }
}

impl fmt::Debug for SharedKeptMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedKeptMessage").field(&&**self).finish()
    }
}
