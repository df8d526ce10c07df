//! The active-message handlers and the error handler of an interface.

use std::cell::{Cell, UnsafeCell};
use std::rc::Rc;

use crate::base::error::{EndpointError, HandlerError};
use crate::transport::common::message::{MAX_HANDLERS, Message, NO_HANDLER};

type Handler = Box<dyn FnMut(Message<'_>)>;
type ErrorHandler = Box<dyn FnMut(&EndpointError)>;

/// The handlers of one interface.
#[expect(missing_debug_implementations, reason = "not part of the API; it holds closures")]
pub struct Handlers {
    /// One for each value of an id, so that a message's id needs no check. From [`MAX_HANDLERS`] on
    /// they count the message, except that of [`NO_HANDLER`], which ignores it. Accessed only
    /// through [`DispatchGuard`], of which one exists at a time.
    slots: [UnsafeCell<Handler>; 1 << u8::BITS],
    running: Cell<bool>,
    /// Handlers that [`DispatchGuard::install_pending`] installs before the next message.
    newer: Cell<Vec<(u8, Handler)>>,
    error: Cell<Option<ErrorHandler>>,
    unhandled: Rc<Cell<u64>>,
    /// Set by [`Handlers::close`]: further handlers are refused.
    closed: Cell<bool>,
}

/// The handler of an id without one: it counts the message.
fn counting(unhandled: &Rc<Cell<u64>>) -> Handler {
    let unhandled = Rc::clone(unhandled);
    Box::new(move |_| unhandled.set(unhandled.get() + 1))
}

impl Handlers {
    pub(crate) fn new() -> Self {
        let unhandled = Rc::default();
        Self {
            slots: std::array::from_fn(|id| {
                UnsafeCell::new(if id == usize::from(NO_HANDLER) {
                    Box::new(|_: Message<'_>| ())
                } else {
                    counting(&unhandled)
                })
            }),
            running: Cell::new(false),
            newer: Cell::default(),
            error: Cell::new(None),
            unhandled,
            closed: Cell::new(false),
        }
    }

    /// Stores a handler. [`DispatchGuard::install_pending`] must be called before the next message.
    pub(crate) fn set(&self, id: u8, handler: Handler) -> Result<(), HandlerError> {
        if id >= MAX_HANDLERS {
            return Err(HandlerError::UnknownHandlerId(id));
        }
        if self.closed.get() {
            return Err(HandlerError::Closed);
        }
        let mut newer = self.newer.take();
        newer.push((id, handler));
        self.newer.set(newer);
        Ok(())
    }

    pub(crate) fn set_error(&self, handler: ErrorHandler) {
        if !self.closed.get() {
            drop(self.error.replace(Some(handler)));
        }
    }

    /// Returns how many messages came for an id without handler.
    pub(crate) fn unhandled(&self) -> u64 {
        self.unhandled.get()
    }

    /// Returns the exclusive right to run handlers; `None` while another holds it, such as the
    /// caller of a handler.
    pub(crate) fn enter(&self) -> Option<DispatchGuard<'_, true>> {
        (!self.running.replace(true)).then(|| DispatchGuard(self))
    }

    /// As [`Self::enter`], for a caller that already has exclusive access: nothing is checked.
    ///
    /// # Safety
    /// While the result lives, no other exists, neither from this function nor from
    /// [`Self::enter`].
    #[inline(always)]
    pub(crate) unsafe fn enter_unchecked(&self) -> DispatchGuard<'_, false> {
        DispatchGuard(self)
    }

    #[cold]
    fn count_unhandled(&self) {
        self.unhandled.set(self.unhandled.get() + 1);
    }

    #[cold]
    pub(crate) fn dispatch_error(&self, error: &EndpointError) {
        let handler = self.error.take();
        if handler.is_none() {
            tracing::warn!(%error, "an endpoint failed, and the interface has no error handler");
        }
        if let Some(handler) = handler {
            let mut lent = LentErrorHandler { handlers: self, handler: Some(handler) };
            if let Some(handler) = &mut lent.handler {
                handler(error);
            }
        }
    }

    /// Refuses further handlers; the next [`DispatchGuard::install_pending`] drops the present
    /// ones.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        drop((self.error.take(), self.newer.take()));
    }
}

/// The error handler while it runs. The drop puts it back, also after a panic, unless it was
/// replaced meanwhile.
struct LentErrorHandler<'a> {
    handlers: &'a Handlers,
    handler: Option<ErrorHandler>,
}

impl Drop for LentErrorHandler<'_> {
    fn drop(&mut self) {
        let newer = self.handlers.error.take();
        if newer.is_some() || self.handlers.closed.get() {
            self.handlers.error.set(newer);
        } else {
            self.handlers.error.set(self.handler.take());
        }
    }
}

/// The exclusive right to run handlers. If `CHECKED`, a flag in [`Handlers`] is set, which the drop
/// clears, also after a panic of a handler.
pub(crate) struct DispatchGuard<'h, const CHECKED: bool>(&'h Handlers);

impl<const CHECKED: bool> DispatchGuard<'_, CHECKED> {
    /// Runs the handler for `id`.
    #[inline(always)]
    pub(crate) fn dispatch(&mut self, id: u8, message: Message<'_>) {
        let slot = &self.0.slots[usize::from(id)];
        // SAFETY: only the one `DispatchGuard` accesses the slots, and this one is borrowed mutably
        // while the handler runs.
        let handler = unsafe { &mut *slot.get() };
        handler(message);
    }

    /// Counts a message that has no valid id.
    #[cold]
    pub(crate) fn count_unhandled(&self) {
        self.0.count_unhandled();
    }

    /// Installs the handlers that were set since the last call. After [`Handlers::close`] it drops
    /// all of them, and with them the endpoints that they captured.
    pub(crate) fn install_pending(&mut self) {
        let newer = self.0.newer.take();
        if !newer.is_empty() || self.0.closed.get() {
            self.place(newer);
        }
    }

    #[cold]
    fn place(&mut self, mut newer: Vec<(u8, Handler)>) {
        if self.0.closed.get() {
            newer.extend((0..MAX_HANDLERS).map(|id| (id, counting(&self.0.unhandled))));
        }
        let older: Vec<_> =
            newer.into_iter().map(|(id, handler)| self.replace(id, handler)).collect();
        // Dropping runs the user's code, so it comes after all are installed.
        drop(older);
    }

    /// Installs `handler` and returns the one that it replaces.
    fn replace(&mut self, id: u8, handler: Handler) -> Handler {
        let slot = &self.0.slots[usize::from(id)];
        // SAFETY: only the one `DispatchGuard` accesses the slots, it is borrowed mutably, and no
        // user code runs during the replacement.
        unsafe { std::mem::replace(&mut *slot.get(), handler) }
    }
}

impl<const CHECKED: bool> Drop for DispatchGuard<'_, CHECKED> {
    #[inline(always)]
    fn drop(&mut self) {
        if CHECKED {
            self.0.running.set(false);
        }
    }
}
