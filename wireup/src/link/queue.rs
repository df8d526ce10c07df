//! Requests that wait for a link to be connected.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use barewire::PendingResult;
use barewire::error::Busy;

use super::{Inner, Link};
use crate::plan::Kind;

type Request = Rc<RefCell<dyn FnMut(&Link) -> PendingResult>>;

/// A request that returns [`PendingResult::Again`] although its lane has resources is called so
/// often before it has to wait for the next progress.
const ATTEMPTS: usize = 16;

/// Requests in order, each with the kind of the lane that it waits for.
#[derive(Default)]
pub(crate) struct Queue(RefCell<VecDeque<(Kind, Request)>>);

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Drops what waits. The queue is not borrowed meanwhile, as a request may call anything.
    pub(crate) fn clear(&self) {
        drop(self.0.take());
    }

    fn push(&self, kind: Kind, request: impl FnMut(&Link) -> PendingResult + 'static) {
        self.0.borrow_mut().push_back((kind, Rc::new(RefCell::new(request))));
    }

    fn pop(&self) -> Option<(Kind, Request)> {
        self.0.borrow_mut().pop_front()
    }
}

impl Link {
    /// Queues a request that runs, in order, once the lane of `kind` has resources. Before the link
    /// is connected, all requests wait in one line.
    ///
    /// # Errors
    /// [`Busy`] if a post on that lane would not return
    /// [`NoResource`](barewire::PostError::NoResource) now, or there is no such lane.
    pub fn pending_add(
        &self,
        kind: Kind,
        mut request: impl FnMut(&Self) -> PendingResult + 'static,
    ) -> Result<(), Busy> {
        match self.lane(kind) {
            _ if !self.0.queue.is_empty() => self.0.queue.push(kind, request),
            Some(endpoint) => {
                let link = Rc::downgrade(&self.0);
                endpoint.pending_add(move |_| run(&link, &mut request))?;
            }
            None if self.0.may_connect() => self.0.queue.push(kind, request),
            None => return Err(Busy),
        }
        Ok(())
    }

    /// Hands the requests over to the lanes, in order. The link was connected just now, and nothing
    /// but these requests can post before this returns, so nothing overtakes them.
    pub(crate) fn hand_over(&self) {
        while let Some((kind, request)) = self.0.queue.pop() {
            if !self.place(kind, &request) {
                return self.0.queue.0.borrow_mut().push_front((kind, request));
            }
        }
    }

    /// Runs a request, or queues it on its lane if the lane lacks resources. False for neither.
    fn place(&self, kind: Kind, request: &Request) -> bool {
        (0..ATTEMPTS).any(|_| {
            let added = self.lane(kind).map_or(Err(Busy), |endpoint| {
                let (link, request) = (Rc::downgrade(&self.0), Rc::clone(request));
                endpoint.pending_add(move |_| run(&link, &mut *request.borrow_mut()))
            });
            added.is_ok() || (request.borrow_mut())(self) == PendingResult::Done
        })
    }
}

/// A request of a link without handles has nothing to post on.
fn run(
    link: &Weak<Inner>,
    request: &mut (impl FnMut(&Link) -> PendingResult + ?Sized),
) -> PendingResult {
    link.upgrade().map_or(PendingResult::Done, |inner| request(&Link(inner)))
}
