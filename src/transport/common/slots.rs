//! Numbers by which the slices of views name their lists.

use crate::base::memory::Access;

/// Where the slot is in the `key` of slices, above the rights.
const SHIFT: u32 = 8;
const _: () = assert!(Access::all().bits() < 1 << SHIFT, "the rights end below the slot");
/// Slots above which a `key` has no room: it holds the slot plus one.
const MOST: usize = (u32::MAX >> SHIFT) as usize;

/// Lists by their slots.
#[derive(Debug)]
pub(crate) struct Slots<L>(Vec<Option<L>>);

impl<L> Default for Slots<L> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<L: Clone> Slots<L> {
    /// Returns a slot for a list; `None` if all are in use.
    pub(crate) fn claim(&mut self, list: L) -> Option<u32> {
        let free = self.0.iter().position(Option::is_none);
        let slot = match free {
            Some(free) => free,
            None if self.0.len() < MOST => {
                self.0.push(None);
                self.0.len() - 1
            }
            None => return None,
        };
        self.0[slot] = Some(list);
        Some(slot as u32)
    }

    pub(crate) fn release(&mut self, slot: u32) {
        if let Some(list) = self.0.get_mut(slot as usize) {
            *list = None;
        }
    }

    /// Returns the list whose slices have `key`.
    pub(crate) fn of_slice(&self, key: u32) -> Option<L> {
        let slot = (key >> SHIFT).checked_sub(1)?;
        self.0.get(slot as usize)?.clone()
    }
}

/// Returns the `key` of slices: the rights, and the slot of a list.
pub(crate) fn slice_key(access: Access, slot: Option<u32>) -> u32 {
    access.bits() | slot.map_or(0, |slot| (slot + 1) << SHIFT)
}
