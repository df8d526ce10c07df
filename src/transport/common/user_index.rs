//! The table from a completion's user index to the endpoint: one load.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

/// Size of the table where libibverbs assigns user indices: it counts from 0, over all queues of
/// the process.
const LIBRARY_INDEX_SLOTS: u32 = 4096;

/// A table of pointers by user index, and the free indices.
pub(crate) struct UserIndexTable<T> {
    slots: Box<[Cell<Option<NonNull<T>>>]>,
    free: RefCell<Vec<u32>>,
}

impl<T> UserIndexTable<T> {
    /// Creates the table for `size` endpoints. `ours`: this table assigns the user indices, not
    /// libibverbs.
    pub(crate) fn new(size: u32, ours: bool) -> Self {
        let slots = if ours { size } else { LIBRARY_INDEX_SLOTS };
        Self {
            slots: (0..slots).map(|_| Cell::new(None)).collect(),
            free: RefCell::new((0..size).rev().collect()),
        }
    }

    /// Takes a free index. Where libibverbs assigns user indices, it only counts towards the limit
    /// of endpoints.
    pub(crate) fn claim(&self) -> Option<u32> {
        self.free.borrow_mut().pop()
    }

    /// Maps `user_index` to `pointer`.
    pub(crate) fn set(&self, user_index: u32, pointer: NonNull<T>) {
        if let Some(slot) = self.slots.get(user_index as usize) {
            slot.set(Some(pointer));
        }
    }

    /// Frees a claimed index and removes the mapping of `user_index`.
    pub(crate) fn release(&self, claimed: u32, user_index: Option<u32>) {
        if let Some(slot) = user_index.and_then(|index| self.slots.get(index as usize)) {
            slot.set(None);
        }
        self.free.borrow_mut().push(claimed);
    }

    #[inline(always)]
    pub(crate) fn get(&self, user_index: u32) -> Option<NonNull<T>> {
        self.slots.get(user_index as usize)?.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_set() {
        let table = UserIndexTable::new(2, true);
        let values = [5_u32, 6];
        let (first, second) = (table.claim().unwrap(), table.claim().unwrap());
        assert_eq!((first, second, table.claim()), (0, 1, None));
        table.set(first, NonNull::from(&values[0]));
        table.set(second, NonNull::from(&values[1]));
        assert_eq!(table.get(first), Some(NonNull::from(&values[0])));
        assert_eq!(table.get(2), None);
        assert_eq!(table.get(0x00ff_ffff), None);
        table.release(first, Some(first));
        assert_eq!(table.get(first), None);
        assert_eq!(table.claim(), Some(first));
    }

    #[test]
    fn indices_chosen_elsewhere_are_learned() {
        let table = UserIndexTable::new(1, false);
        let claimed = table.claim().unwrap();
        assert_eq!((table.claim(), table.get(17)), (None, None));
        table.set(17, NonNull::from(&5_u32));
        assert!(table.get(17).is_some());
        // Indices beyond the table are found by QPN instead.
        table.set(LIBRARY_INDEX_SLOTS, NonNull::from(&5_u32));
        assert_eq!(table.get(LIBRARY_INDEX_SLOTS), None);
        table.release(claimed, Some(17));
        assert_eq!((table.get(17), table.claim()), (None, Some(claimed)));
    }
}
