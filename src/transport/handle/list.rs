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

/// Endpoints that stay until they are removed, each under a number.
#[derive(Debug)]
pub(crate) struct Slots<S> {
    slots: RefCell<Vec<Option<Rc<S>>>>,
    /// The numbers of removed endpoints.
    free: RefCell<Vec<u32>>,
}

impl<S> Default for Slots<S> {
    fn default() -> Self {
        Self { slots: RefCell::default(), free: RefCell::default() }
    }
}

impl<S> Slots<S> {
    /// Adds the endpoint that `make` creates with its number; `None` if there are `limit`.
    pub(crate) fn add(&self, limit: u32, make: impl FnOnce(u32) -> Rc<S>) -> Option<Rc<S>> {
        let mut slots = self.slots.borrow_mut();
        let number = match self.free.borrow_mut().pop() {
            Some(number) => number,
            None if slots.len() < limit as usize => {
                slots.push(None);
                slots.len() as u32 - 1
            }
            None => return None,
        };
        let state = make(number);
        slots[number as usize] = Some(Rc::clone(&state));
        Some(state)
    }

    /// Returns the endpoint with this number.
    pub(crate) fn get(&self, number: u32) -> Option<Rc<S>> {
        self.slots.borrow().get(number as usize).cloned().flatten()
    }

    /// Returns the number of endpoints.
    #[cfg(feature = "verbs")]
    pub(crate) fn count(&self) -> usize {
        self.slots.borrow().len() - self.free.borrow().len()
    }

    pub(crate) fn remove(&self, number: u32) {
        let state = self.slots.borrow_mut().get_mut(number as usize).and_then(Option::take);
        if state.is_some() {
            self.free.borrow_mut().push(number);
        }
    }

    /// Removes all endpoints, of an interface that is closed.
    pub(crate) fn take(&self) -> Vec<Rc<S>> {
        self.slots.take().into_iter().flatten().collect()
    }
}

impl<S> EndpointList<S> for Slots<S> {
    fn all(&self) -> Vec<Rc<S>> {
        self.slots.borrow().iter().flatten().cloned().collect()
    }

    fn for_each(&self, mut run: impl FnMut(&S)) {
        if let Ok(slots) = self.slots.try_borrow() {
            slots.iter().flatten().for_each(|state| run(state));
        }
    }
}
