//! One handler for the messages of every interface of a node.
//!
//! An interface runs its handlers one at a time. Across interfaces a handler can be reached while
//! it runs: it posts over `self`, which delivers inside of the post. Such a message waits until the
//! handler has returned.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use barewire::{HandlerError, KeptMessage, Message};

use super::{Node, Shared};
use crate::guard::{Held, Present};

/// Messages that arrived while their handler ran.
pub(super) trait Waiting {
    /// Delivers those that wait now. Returns how many.
    fn deliver(&self) -> usize;
    /// Takes them, for the handler that replaces this one.
    fn take(&self) -> VecDeque<KeptMessage>;
}

struct Relay<F> {
    handler: RefCell<F>,
    waiting: RefCell<VecDeque<KeptMessage>>,
}

impl<F: FnMut(Message<'_>)> Relay<F> {
    /// Passes a message to the handler, behind those that wait. Returns false if the message has to
    /// wait, as the handler runs further up the stack.
    #[inline]
    fn arrived(&self, message: Message<'_>) -> bool {
        let Ok(mut handler) = self.handler.try_borrow_mut() else {
            self.waiting.borrow_mut().push_back(message.keep());
            return false;
        };
        self.deliver_present(&mut *handler);
        handler(message);
        // Not those that arrive meanwhile: a handler that sends to itself would never end.
        self.deliver_present(&mut *handler);
        true
    }

    #[inline]
    fn deliver_present(&self, handler: &mut F) -> usize {
        if self.waiting.borrow().is_empty() {
            return 0;
        }
        self.deliver_each(handler)
    }

    #[cold]
    fn deliver_each(&self, handler: &mut F) -> usize {
        let present = Present::of(&self.waiting).filter_map(Held::take);
        present.map(|message| message.handle(&mut *handler)).count()
    }
}

impl<F: FnMut(Message<'_>)> Waiting for Relay<F> {
    fn deliver(&self) -> usize {
        match self.handler.try_borrow_mut() {
            Ok(mut handler) => self.deliver_present(&mut *handler),
            Err(_) => 0,
        }
    }

    fn take(&self) -> VecDeque<KeptMessage> {
        self.waiting.take()
    }
}

impl Node {
    /// Sets the handler of active messages `id`, 0 to 29, on every interface. A handler that has to
    /// know the sender puts the link's number into its header.
    ///
    /// The handler may send, also to this node: a message that arrives while it runs is delivered
    /// after it.
    ///
    /// # Errors
    /// [`HandlerError::UnknownHandlerId`] for 30 and more.
    pub fn set_handler(
        &mut self,
        id: u8,
        handler: impl FnMut(Message<'_>) + 'static,
    ) -> Result<(), HandlerError> {
        if id >= super::FIRST_RESERVED {
            return Err(HandlerError::UnknownHandlerId(id));
        }
        let before = self.shared.relays.borrow_mut().remove(&id);
        let waiting = before.map(|relay| relay.take()).unwrap_or_default();
        let relay =
            Rc::new(Relay { handler: RefCell::new(handler), waiting: RefCell::new(waiting) });
        for one in &self.shared.interfaces {
            let (relay, node) = (Rc::clone(&relay), Rc::downgrade(&self.shared));
            one.interface.set_handler(id, move |message| {
                if !relay.arrived(message)
                    && let Some(node) = node.upgrade()
                {
                    node.busy.set(true);
                }
            })?;
        }
        self.shared.relays.borrow_mut().insert(id, relay);
        Ok(())
    }

    /// As [`set_handler`](Self::set_handler), for every id, with a handler that may be called while
    /// it runs. It returns false for a message without effect.
    pub(crate) fn set_any_handler(
        &mut self,
        id: u8,
        handler: impl Fn(Message<'_>) -> bool + 'static,
    ) -> Result<(), HandlerError> {
        let handler = Rc::new(handler);
        for (number, one) in self.shared.interfaces.iter().enumerate() {
            let (handler, node) = (Rc::clone(&handler), Rc::downgrade(&self.shared));
            one.interface.set_handler(id, move |message| {
                if !handler(message)
                    && let Some(node) = node.upgrade()
                {
                    node.refuse(number, 1);
                }
            })?;
        }
        Ok(())
    }
}

impl Shared {
    /// Delivers messages whose handler sent them to this node.
    pub(super) fn deliver_waiting(&self) -> usize {
        let relays: Vec<_> = self.relays.borrow().values().cloned().collect();
        relays.iter().map(|relay| relay.deliver()).sum()
    }
}
