//! From a completion's user index to the endpoint, in one load.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

/// User indices that are looked up in one load where a system's library chooses them: it counts from 0, over all its queues.
const CHOSEN_ELSEWHERE: u32 = 4096;

/// A table of pointers by user index, and the indices that are free.
pub(crate) struct Peers<T> {
    places: Box<[Cell<Option<NonNull<T>>>]>,
    free: RefCell<Vec<u32>>,
}

impl<T> Peers<T> {
    /// For `size` endpoints, whose user indices are ours to choose, or not.
    pub(crate) fn new(size: u32, ours: bool) -> Self {
        let places = if ours { size } else { CHOSEN_ELSEWHERE };
        Self {
            places: (0..places).map(|_| Cell::new(None)).collect(),
            free: RefCell::new((0..size).rev().collect()),
        }
    }

    /// Takes a free index. Where a library chooses them it is the right to one more endpoint, and no user index.
    pub(crate) fn claim(&self) -> Option<u32> {
        self.free.borrow_mut().pop()
    }

    /// From now on `user_index` leads to `pointer`.
    pub(crate) fn set(&self, user_index: u32, pointer: NonNull<T>) {
        if let Some(place) = self.places.get(user_index as usize) {
            place.set(Some(pointer));
        }
    }

    /// Gives a claimed index back. `user_index` leads nowhere from now on.
    pub(crate) fn release(&self, claimed: u32, user_index: Option<u32>) {
        if let Some(place) = user_index.and_then(|index| self.places.get(index as usize)) {
            place.set(None);
        }
        self.free.borrow_mut().push(claimed);
    }

    #[inline(always)]
    pub(crate) fn get(&self, user_index: u32) -> Option<NonNull<T>> {
        self.places.get(user_index as usize)?.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_set() {
        let peers = Peers::new(2, true);
        let values = [5_u32, 6];
        let (first, second) = (peers.claim().unwrap(), peers.claim().unwrap());
        assert_eq!((first, second, peers.claim()), (0, 1, None));
        peers.set(first, NonNull::from(&values[0]));
        peers.set(second, NonNull::from(&values[1]));
        assert_eq!(peers.get(first), Some(NonNull::from(&values[0])));
        assert_eq!(peers.get(2), None);
        assert_eq!(peers.get(0x00ff_ffff), None);
        peers.release(first, Some(first));
        assert_eq!(peers.get(first), None);
        assert_eq!(peers.claim(), Some(first));
    }

    #[test]
    fn indices_chosen_elsewhere_are_learned() {
        let peers = Peers::new(1, false);
        let claimed = peers.claim().unwrap();
        assert_eq!((peers.claim(), peers.get(17)), (None, None));
        peers.set(17, NonNull::from(&5_u32));
        assert!(peers.get(17).is_some());
        // Beyond the table every completion is looked up by its queue pair's number.
        peers.set(CHOSEN_ELSEWHERE, NonNull::from(&5_u32));
        assert_eq!(peers.get(CHOSEN_ELSEWHERE), None);
        peers.release(claimed, Some(17));
        assert_eq!((peers.get(17), peers.claim()), (None, Some(claimed)));
    }
}
