//! From a completion's queue pair number to the endpoint, in two loads.

use std::cell::{Cell, OnceCell};
use std::ptr::NonNull;

const LEAF_BITS: u32 = 12;
const LEAF: usize = 1 << LEAF_BITS;

/// A map from 24-bit queue pair numbers to pointers: a table of tables, of which those in use are made.
pub(super) struct Peers<T> {
    leaves: Box<[OnceCell<Leaf<T>>]>,
}

type Leaf<T> = Box<[Cell<Option<NonNull<T>>>]>;

impl<T> Peers<T> {
    pub(super) fn new() -> Self {
        Self { leaves: (0..LEAF).map(|_| OnceCell::new()).collect() }
    }

    /// Sets or clears the pointer of `qpn`.
    pub(super) fn set(&self, qpn: u32, pointer: Option<NonNull<T>>) {
        let leaf = self.leaves.get((qpn >> LEAF_BITS) as usize);
        let leaf = leaf.map(|leaf| leaf.get_or_init(|| (0..LEAF).map(|_| Cell::new(None)).collect()));
        if let Some(place) = leaf.and_then(|leaf| leaf.get(qpn as usize % LEAF)) {
            place.set(pointer);
        }
    }

    #[inline]
    pub(super) fn get(&self, qpn: u32) -> Option<NonNull<T>> {
        let leaf = self.leaves.get((qpn >> LEAF_BITS) as usize)?.get()?;
        leaf.get(qpn as usize % LEAF)?.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_set() {
        let peers = Peers::new();
        let values: Vec<u32> = [0, 0x48, 0xfff, 0x1000, 0xff_ffff].into();
        for value in &values {
            peers.set(*value, Some(NonNull::from(value)));
        }
        for value in &values {
            assert_eq!(peers.get(*value), Some(NonNull::from(value)));
        }
        assert_eq!(peers.get(0x49), None);
        assert_eq!(peers.get(0x0fff_ffff), None);
        peers.set(0x48, None);
        peers.set(0x0fff_ffff, None);
        assert_eq!(peers.get(0x48), None);
    }
}
