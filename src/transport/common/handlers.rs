//! The handlers of an interface: of active messages, and of errors.

use std::cell::{Cell, UnsafeCell};
use std::rc::Rc;

use crate::error::{EndpointError, HandlerError};
use crate::message::{MAX_HANDLERS, Message};

type Handler = Box<dyn FnMut(Message<'_>)>;
type ErrorHandler = Box<dyn FnMut(&EndpointError)>;

/// The handlers of one interface.
pub(crate) struct Handlers {
    /// Reached by [`Running`] alone, of which there is one at a time.
    slots: [UnsafeCell<Handler>; MAX_HANDLERS as usize],
    running: Cell<bool>,
    /// Those that were set take their places before the next message.
    newer: Cell<Vec<(u8, Handler)>>,
    error: Cell<Option<ErrorHandler>>,
    unhandled: Rc<Cell<u64>>,
    /// No handler is taken any more.
    closed: Cell<bool>,
}

/// The handler of an id that has none.
fn counting(unhandled: &Rc<Cell<u64>>) -> Handler {
    let unhandled = Rc::clone(unhandled);
    Box::new(move |_| unhandled.set(unhandled.get() + 1))
}

impl Handlers {
    pub(crate) fn new() -> Self {
        let unhandled = Rc::default();
        Self {
            slots: std::array::from_fn(|_| UnsafeCell::new(counting(&unhandled))),
            running: Cell::new(false),
            newer: Cell::default(),
            error: Cell::new(None),
            unhandled,
            closed: Cell::new(false),
        }
    }

    /// Sets a handler; who owns these calls [`Running::renew`] before the next message.
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

    /// Messages that came for an id without handler.
    pub(crate) fn unhandled(&self) -> u64 {
        self.unhandled.get()
    }

    /// The right to run handlers, one at a time; `None` to one of them that asks for it again.
    pub(crate) fn run(&self) -> Option<Running<'_, true>> {
        (!self.running.replace(true)).then(|| Running(self))
    }

    /// As [`Self::run`], for who has this right to himself anyway.
    ///
    /// # Safety
    /// While the result lives, there is no other, neither by this function nor by [`Self::run`].
    #[inline(always)]
    pub(crate) unsafe fn run_alone(&self) -> Running<'_, false> {
        Running(self)
    }

    #[cold]
    fn count_unhandled(&self) {
        self.unhandled.set(self.unhandled.get() + 1);
    }

    #[cold]
    pub(crate) fn dispatch_error(&self, error: &EndpointError) {
        tracing::debug!(%error, "an endpoint failed");
        if let Some(handler) = self.error.take() {
            let mut lent = LentErrorHandler { handlers: self, handler: Some(handler) };
            if let Some(handler) = &mut lent.handler {
                handler(error);
            }
        }
    }

    /// Takes no handler any more; those that are set go with the next [`Running::renew`].
    pub(crate) fn close(&self) {
        self.closed.set(true);
        drop((self.error.take(), self.newer.take()));
    }
}

/// An error handler that runs. It goes back also when it panics, unless it was replaced meanwhile.
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

/// The right to run handlers. `NOTED`: it is given back when it is dropped, also by a handler that panics.
pub(crate) struct Running<'h, const NOTED: bool>(&'h Handlers);

impl<const NOTED: bool> Running<'_, NOTED> {
    /// Runs the handler for `id`.
    #[inline(always)]
    pub(crate) fn dispatch(&mut self, id: u8, message: Message<'_>) {
        let Some(slot) = self.0.slots.get(usize::from(id)) else { return self.0.count_unhandled() };
        // SAFETY: only this value reaches the slots, and it is borrowed while the handler runs.
        let handler = unsafe { &mut *slot.get() };
        handler(message);
    }

    /// A message came that has no id.
    #[cold]
    pub(crate) fn count_unhandled(&self) {
        self.0.count_unhandled();
    }

    /// Handlers that were set since take their places; after [`Handlers::close`] all are dropped, and with them the endpoints that
    /// they captured.
    pub(crate) fn renew(&mut self) {
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
        let older: Vec<_> = newer.into_iter().map(|(id, handler)| self.replace(id, handler)).collect();
        // The user's code, when all of them have their places.
        drop(older);
    }

    /// Returns the handler that it replaces.
    fn replace(&mut self, id: u8, handler: Handler) -> Handler {
        match self.0.slots.get(usize::from(id)) {
            // SAFETY: only this value reaches the slots, and nothing is called meanwhile.
            Some(slot) => unsafe { std::mem::replace(&mut *slot.get(), handler) },
            None => handler,
        }
    }
}

impl<const NOTED: bool> Drop for Running<'_, NOTED> {
    #[inline(always)]
    fn drop(&mut self) {
        if NOTED {
            self.0.running.set(false);
        }
    }
}
