//! From a completion's user index to the endpoint, in one load.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

/// A table of as many pointers as an interface has endpoints, and the places in it that are free.
pub(super) struct Peers<T> {
    places: Box<[Cell<Option<NonNull<T>>>]>,
    free: RefCell<Vec<u32>>,
}

impl<T> Peers<T> {
    /// A table of `size` places.
    pub(super) fn new(size: u32) -> Self {
        Self {
            places: (0..size).map(|_| Cell::new(None)).collect(),
            free: RefCell::new((0..size).rev().collect()),
        }
    }

    /// Takes a free place.
    pub(super) fn claim(&self) -> Option<u32> {
        self.free.borrow_mut().pop()
    }

    /// Fills a claimed place.
    pub(super) fn set(&self, index: u32, pointer: NonNull<T>) {
        if let Some(place) = self.places.get(index as usize) {
            place.set(Some(pointer));
        }
    }

    /// Gives a claimed place back.
    pub(super) fn release(&self, index: u32) {
        if let Some(place) = self.places.get(index as usize) {
            place.set(None);
            self.free.borrow_mut().push(index);
        }
    }

    #[inline(always)]
    pub(super) fn get(&self, index: u32) -> Option<NonNull<T>> {
        self.places.get(index as usize)?.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_set() {
        let peers = Peers::new(2);
        let values = [5_u32, 6];
        let (first, second) = (peers.claim().unwrap(), peers.claim().unwrap());
        assert_eq!((first, second, peers.claim()), (0, 1, None));
        peers.set(first, NonNull::from(&values[0]));
        peers.set(second, NonNull::from(&values[1]));
        assert_eq!(peers.get(first), Some(NonNull::from(&values[0])));
        assert_eq!(peers.get(2), None);
        assert_eq!(peers.get(0x00ff_ffff), None);
        peers.release(first);
        assert_eq!(peers.get(first), None);
        assert_eq!(peers.claim(), Some(first));
    }
}
