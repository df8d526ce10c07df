//! Endpoints that an interface keeps until they are removed.

use std::cell::RefCell;
use std::rc::Rc;

use super::EndpointList;

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

    /// As [`Self::get`], without a count of references.
    ///
    /// # Safety
    /// Until the result is no longer used, the endpoint is not removed.
    #[cfg(any(feature = "mlx5", feature = "verbs"))]
    #[inline(always)]
    pub(crate) unsafe fn peek(&self, number: u32) -> Option<&S> {
        // SAFETY: the functions of this type borrow the list mutably only while they run. `make` of
        // `add` is the only code of a caller that they call, and creates an endpoint, which does
        // not access the list. So no mutable borrow exists. The list may move when an endpoint is
        // added, but the reference is to the endpoint, which its `Rc` in the list keeps.
        let state = unsafe { &*self.slots.as_ptr() }.get(number as usize)?.as_ref()?;
        // SAFETY: the endpoint stays in the list by the caller's contract, and does not move.
        Some(unsafe { &*Rc::as_ptr(state) })
    }

    /// Returns the number of endpoints.
    #[cfg(any(feature = "mlx5", feature = "verbs"))]
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
        self.free.take();
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
