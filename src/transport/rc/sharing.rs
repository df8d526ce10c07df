//! Endpoints that post to one queue pair: they are connected to several interfaces of the same node.
//!
//! Completions carry the user index of the queue pair, which belongs to one of the endpoints at a
//! time: when that one is closed, it passes the index on. The queue pair ends with the last endpoint.

use std::ptr::NonNull;
use std::rc::Rc;

use super::{Created, Driver, Queue as _, Shared, State};
use crate::base::error::{ConnectError, OpenError, Operation, OperationError};
use crate::base::panics::Panics;

impl<D: Driver> State<D> {
    /// Returns whether `other` posts to the same queue pair.
    fn shares_with(&self, other: &Self) -> bool {
        // Two borrows of one queue would overlap.
        !std::ptr::eq(self, other)
            && self.with_queue(|queue| other.with_queue(|others| queue.is_same(others)))
    }
}

impl<D: Driver> Shared<D> {
    /// Opens an endpoint that posts to the queue pair of `first`. The caller connects it.
    pub(crate) fn open_beside(
        self: &Rc<Self>,
        first: &State<D>,
        created: Created<D>,
    ) -> Result<Rc<State<D>>, ConnectError>
    where
        D::InFlight: Clone,
    {
        self.core.check_opening()?;
        let limit = self.core.attributes.max_endpoints;
        let slot = self
            .user_indices
            .claim()
            .ok_or(OpenError::TooManyEndpoints { transport: D::ID, limit })?;
        let state = State::new(created, first.own, slot, first.in_flight.clone(), Rc::clone(self));
        self.core.endpoints.borrow_mut().push(Rc::clone(&state));
        Ok(state)
    }

    /// Fails the other endpoints on the queue pair of `failed`.
    #[cold]
    pub(super) fn fail_sharing(
        &self,
        failed: &State<D>,
        operation: Operation,
        error: OperationError,
        panics: &mut Panics,
    ) {
        self.for_each_sharing(failed, |state| {
            if let Some(report) = state.enter_failed(operation, error) {
                panics.catch(|| self.core.handlers.dispatch_error(&report));
            }
        });
    }

    /// Calls `run` for the other endpoints on the queue pair of `state`. `run` may open and close
    /// endpoints.
    pub(super) fn for_each_sharing(&self, state: &State<D>, mut run: impl FnMut(&State<D>)) {
        if !state.is_sharing() {
            return;
        }
        let mut endpoints = self.core.endpoints.borrow().clone();
        endpoints.retain(|other| other.shares_with(state));
        for other in &endpoints {
            run(other);
        }
    }

    /// Releases the slot of an endpoint that is closed, while others use its queue pair: `closing`
    /// and the open ones. If the queue pair has the slot as user index, another endpoint gets it.
    pub(super) fn pass_on(&self, state: &State<D>, closing: &[Rc<State<D>>]) {
        let Some(user_index) = state.user_index.get() else {
            return self.user_indices.release(state.slot.get(), None);
        };
        let endpoints = self.core.endpoints.borrow();
        let Some(heir) = endpoints.iter().chain(closing).find(|other| other.shares_with(state))
        else {
            return self.user_indices.release(state.slot.get(), Some(user_index));
        };
        self.user_indices.release(heir.slot.get(), None);
        heir.slot.set(state.slot.get());
        heir.user_index.set(Some(user_index));
        self.user_indices.set(user_index, NonNull::from(&**heir));
    }
}
