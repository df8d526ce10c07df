//! The endpoints of an interface.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

/// The endpoints of an interface, in any order.
pub(crate) trait EndpointList<S> {
    /// Returns every endpoint.
    fn all(&self) -> Vec<Rc<S>>;

    /// Calls `run` for every endpoint, or for none while the list is borrowed. Allocates nothing.
    fn for_each(&self, run: impl FnMut(&S));
}

impl<S> EndpointList<S> for RefCell<Vec<Rc<S>>> {
    fn all(&self) -> Vec<Rc<S>> {
        self.borrow().clone()
    }

    fn for_each(&self, mut run: impl FnMut(&S)) {
        if let Ok(endpoints) = self.try_borrow() {
            endpoints.iter().for_each(|state| run(state));
        }
    }
}

/// Endpoints that are dropped with their last handle.
#[derive(Debug)]
pub(crate) struct WeakEndpoints<S>(RefCell<Vec<Weak<S>>>);

impl<S> Default for WeakEndpoints<S> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<S> WeakEndpoints<S> {
    pub(crate) fn add(&self, state: &Rc<S>) {
        let mut endpoints = self.0.borrow_mut();
        if endpoints.len() == endpoints.capacity() {
            endpoints.retain(|endpoint| endpoint.strong_count() > 0);
        }
        endpoints.push(Rc::downgrade(state));
    }
}

impl<S> EndpointList<S> for WeakEndpoints<S> {
    fn all(&self) -> Vec<Rc<S>> {
        self.0.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    fn for_each(&self, mut run: impl FnMut(&S)) {
        if let Ok(endpoints) = self.0.try_borrow() {
            endpoints.iter().filter_map(Weak::upgrade).for_each(|state| run(&state));
        }
    }
}
