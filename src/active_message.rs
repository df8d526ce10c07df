//! Active messages on the receiving side: handlers and the messages they get.

use std::cell::Cell;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::error::{EndpointError, HandlerError};
use crate::pool::Lease;

/// Active-message ids per interface.
pub const MAX_HANDLERS: u8 = 32;
/// Bytes of the header that `am_short` puts before the payload.
pub const SHORT_HEADER: usize = size_of::<u64>();

/// A message as its handler sees it. The bytes live until the handler returns, or longer if it keeps them.
pub struct Message<'a> {
    data: &'a [u8],
    keeper: &'a dyn Keeper,
}

impl<'a> Message<'a> {
    pub(crate) fn new(data: &'a [u8], keeper: &'a dyn Keeper) -> Self {
        Self { data, keeper }
    }

    /// Everything that was sent: for `am_short` the 8-byte header and the payload, for `am_zcopy` the header
    /// and the slices, for `am_bcopy` what was packed.
    #[inline]
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// A message of `am_short` as its header and payload; `None` if it is shorter than a header.
    #[inline]
    pub fn split_short(&self) -> Option<(u64, &'a [u8])> {
        let (header, payload) = self.data.split_first_chunk::<SHORT_HEADER>()?;
        Some((u64::from_le_bytes(*header), payload))
    }

    /// Keeps the bytes beyond the handler without copying them. The receive buffer is missing from its queue
    /// until the result is dropped; a receiver out of buffers slows its senders down and loses nothing.
    pub fn keep(self) -> KeptMessage {
        self.keeper.keep(self.data)
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("data", &self.data).finish_non_exhaustive()
    }
}

/// Bytes of a message that its handler kept. Dropping it gives the buffer back.
pub struct KeptMessage {
    data: NonNull<[u8]>,
    /// Taken when it is dropped.
    buffer: Option<Lease>,
    owner: Rc<dyn Reclaim>,
}

impl KeptMessage {
    /// # Safety
    /// `data` lies in `buffer`, a buffer of `owner`, and stays valid and unwritten until `owner.reclaim(buffer)` is
    /// called.
    pub(crate) unsafe fn new(data: &[u8], buffer: Lease, owner: Rc<dyn Reclaim>) -> Self {
        Self { data: NonNull::from(data), buffer: Some(buffer), owner }
    }
}

impl Deref for KeptMessage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: valid and unwritten until `reclaim`, by the contract of `new`.
        unsafe { self.data.as_ref() }
    }
}

impl Drop for KeptMessage {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.owner.reclaim(buffer);
        }
    }
}

impl fmt::Debug for KeptMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeptMessage").field(&&**self).finish()
    }
}

/// Turns the message being handled into a kept one.
pub(crate) trait Keeper {
    /// Called once per message, if at all, with its data.
    fn keep(&self, data: &[u8]) -> KeptMessage;
}

/// Takes the buffer of a kept message back.
pub(crate) trait Reclaim {
    fn reclaim(&self, buffer: Lease);
}

type Handler = Box<dyn FnMut(Message<'_>)>;
type ErrorHandler = Box<dyn FnMut(&EndpointError)>;

/// The handlers of one interface.
pub(crate) struct Handlers {
    slots: [Cell<Option<Handler>>; MAX_HANDLERS as usize],
    error: Cell<Option<ErrorHandler>>,
    unhandled: Cell<u64>,
    /// No handler is taken any more.
    closed: Cell<bool>,
}

impl Handlers {
    pub(crate) fn new() -> Self {
        Self {
            slots: [const { Cell::new(None) }; MAX_HANDLERS as usize],
            error: Cell::new(None),
            unhandled: Cell::new(0),
            closed: Cell::new(false),
        }
    }

    pub(crate) fn set(&self, id: u8, handler: Handler) -> Result<(), HandlerError> {
        let slot = self.slots.get(usize::from(id)).ok_or(HandlerError::UnknownHandlerId(id))?;
        if self.closed.get() {
            return Err(HandlerError::Closed);
        }
        drop(slot.replace(Some(handler)));
        Ok(())
    }

    pub(crate) fn set_error(&self, handler: ErrorHandler) {
        if !self.closed.get() {
            drop(self.error.replace(Some(handler)));
        }
    }

    /// Messages that came for an id without handler.
    pub(crate) fn unhandled(&self) -> u64 {
        self.unhandled.get()
    }

    /// Runs the handler for `id`. It is out of its slot meanwhile, so it may replace itself; nothing may
    /// dispatch the same id from inside it, which the transports see to.
    #[inline]
    pub(crate) fn dispatch(&self, id: u8, message: Message<'_>) {
        if let Some(slot) = self.slots.get(usize::from(id))
            && let Some(mut handler) = slot.take()
        {
            handler(message);
            restore(slot, handler);
        } else {
            self.count_unhandled();
        }
    }

    #[cold]
    pub(crate) fn count_unhandled(&self) {
        self.unhandled.set(self.unhandled.get() + 1);
    }

    #[cold]
    pub(crate) fn dispatch_error(&self, error: &EndpointError) {
        if let Some(mut handler) = self.error.take() {
            handler(error);
            restore(&self.error, handler);
        }
    }

    /// Drops every handler for good, and with them the endpoints they captured.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        for slot in &self.slots {
            drop(slot.take());
        }
        drop(self.error.take());
    }
}

/// Puts a handler back after it ran, unless it was replaced meanwhile.
#[inline]
fn restore<T>(slot: &Cell<Option<T>>, handler: T) {
    let newer = slot.replace(Some(handler));
    if newer.is_some() {
        drop(slot.replace(newer));
    }
}
