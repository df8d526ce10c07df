//! Operations in progress of a shared worker. A ticket connects the completion, result and unpacker
//! of the single-threaded API, which posts take, with those of the user. Tickets are reused.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use super::completion::{SharedCompletion, SharedFetchResult, SharedUnpack};
use crate::base::completion::{Completion, FetchResult, Unpack};
use crate::base::error::OperationError;
use crate::base::status::{Post, Posted};

/// What the user gave to one operation.
#[derive(Default)]
pub(super) struct Target {
    pub(super) completion: Option<SharedCompletion>,
    pub(super) unpack: Option<SharedUnpack>,
    pub(super) fetch: Option<SharedFetchResult>,
}

impl Target {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.completion.is_none() && self.unpack.is_none() && self.fetch.is_none()
    }
}

/// The objects that one operation in progress uses.
pub(super) struct Ticket {
    pub(super) completion: Completion,
    pub(super) result: FetchResult,
    pub(super) unpack: Unpack,
    target: RefCell<Target>,
    /// The ticket itself while its operation is in progress.
    itself: Cell<Option<Rc<Ticket>>>,
}

/// The tickets of a worker.
#[derive(Default)]
pub(super) struct Tickets {
    free: RefCell<Vec<Rc<Ticket>>>,
    /// Something happened for which other threads may wait.
    pub(super) news: Cell<bool>,
}

impl Tickets {
    /// Posts an operation with a ticket.
    pub(super) fn post(
        self: &Rc<Self>,
        target: Target,
        post: impl FnOnce(&Ticket) -> Post,
    ) -> Post {
        let free = self.free.borrow_mut().pop();
        let ticket = free.unwrap_or_else(|| Ticket::new(self));
        if let Some(completion) = &target.completion {
            completion.begin();
        }
        ticket.target.replace(target);
        ticket.itself.set(Some(Rc::clone(&ticket)));
        let mut posting = Posting { tickets: self, ticket: &ticket, fetched: false };
        let posted = post(&ticket);
        posting.fetched = posted == Ok(Posted::Done);
        posted
    }
}

/// A post that is running. The drop takes the ticket back if its operation is not in progress, also
/// after a panic of a handler that the post ran.
struct Posting<'a> {
    tickets: &'a Tickets,
    ticket: &'a Rc<Ticket>,
    /// The operation is done and its result valid.
    fetched: bool,
}

impl Drop for Posting<'_> {
    fn drop(&mut self) {
        if self.ticket.completion.pending() > 0 {
            return;
        }
        // `None` if the operation was finished inside the post.
        let Some(ticket) = self.ticket.itself.take() else { return };
        let target = ticket.target.take();
        if self.fetched
            && let Some(fetch) = target.fetch
        {
            fetch.set(ticket.result.get());
        }
        self.tickets.free.borrow_mut().push(ticket);
        if let Some(completion) = target.completion {
            self.tickets.news.set(true);
            completion.undo();
        }
    }
}

impl Ticket {
    fn new(tickets: &Rc<Tickets>) -> Rc<Self> {
        let tickets = Rc::downgrade(tickets);
        Rc::new_cyclic(|ticket: &Weak<Self>| {
            let unpacking = Weak::clone(ticket);
            let finishing = Weak::clone(ticket);
            Self {
                completion: Completion::new(move |result| {
                    if let (Some(ticket), Some(tickets)) = (finishing.upgrade(), tickets.upgrade())
                    {
                        ticket.finish(&tickets, result);
                    }
                }),
                result: FetchResult::new(),
                unpack: Unpack::new(move |bytes| {
                    let Some(ticket) = unpacking.upgrade() else { return };
                    let unpack = ticket.target.borrow().unpack.clone();
                    if let Some(unpack) = unpack {
                        unpack.call(bytes);
                    }
                }),
                target: RefCell::default(),
                itself: Cell::new(None),
            }
        })
    }

    /// The operation is finished. The user's callback may post, so the ticket is free only after
    /// it.
    fn finish(&self, tickets: &Tickets, result: Result<(), OperationError>) {
        let (target, ticket) = (self.target.take(), self.itself.take());
        if let Some(fetch) = target.fetch {
            fetch.set(self.result.get());
        }
        tickets.news.set(true);
        if let Some(completion) = target.completion {
            completion.finish(result);
        }
        tickets.free.borrow_mut().extend(ticket);
    }
}
