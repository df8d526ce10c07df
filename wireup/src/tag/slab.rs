//! Objects under numbers that are not reused: a late message to a freed object finds nothing.

/// The number of an object: its slot, and how often the slot was used before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    slot: u32,
    generation: u32,
}

impl Key {
    /// The number as it is sent to the peer.
    pub fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    pub(super) fn slot(self) -> u32 {
        self.slot
    }

    /// The number that [`to_u64`](Self::to_u64) made. Any value is a key; most name nothing.
    pub fn from_u64(value: u64) -> Self {
        Self { slot: value as u32, generation: (value >> 32) as u32 }
    }
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// A table whose free slots are used again. A slot is retired once its generations are used up.
#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    used: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), used: 0 }
    }
}

impl<T> Slab<T> {
    pub(super) fn len(&self) -> usize {
        self.used
    }

    pub(super) fn insert(&mut self, value: T) -> Key {
        self.insert_with(|| value)
    }

    /// Inserts what `make` returns, which it makes in its slot.
    #[inline(always)]
    pub(super) fn insert_with(&mut self, make: impl FnOnce() -> T) -> Key {
        self.used += 1;
        let slot = self.free.pop().unwrap_or_else(|| self.grow());
        let mut key = Key { slot, generation: 0 };
        if let Some(entry) = self.slots.get_mut(slot as usize) {
            key.generation = entry.generation;
            // A free slot has no value that would have to be dropped.
            std::mem::forget(entry.value.replace(make()));
        }
        key
    }

    /// Adds a slot.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> u32 {
        self.slots.push(Slot { generation: 0, value: None });
        self.free.reserve(self.slots.len());
        self.slots.len() as u32 - 1
    }

    #[inline]
    pub(super) fn get(&self, key: Key) -> Option<&T> {
        self.slots
            .get(key.slot as usize)
            .filter(|slot| slot.generation == key.generation)?
            .value
            .as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.slots
            .get_mut(key.slot as usize)
            .filter(|slot| slot.generation == key.generation)?
            .value
            .as_mut()
    }

    /// The object in a slot, if the slot is in use.
    #[inline]
    pub(super) fn at(&self, slot: u32) -> Option<(Key, &T)> {
        let entry = self.slots.get(slot as usize)?;
        Some((Key { slot, generation: entry.generation }, entry.value.as_ref()?))
    }

    #[inline]
    pub(super) fn at_mut(&mut self, slot: u32) -> Option<(Key, &mut T)> {
        let entry = self.slots.get_mut(slot as usize)?;
        Some((Key { slot, generation: entry.generation }, entry.value.as_mut()?))
    }

    /// The key that the next [`insert`](Self::insert) returns.
    #[inline]
    pub(super) fn next_key(&self) -> Key {
        let slot = self.free.last().copied().unwrap_or(self.slots.len() as u32);
        let generation = self.slots.get(slot as usize).map_or(0, |entry| entry.generation);
        Key { slot, generation }
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<T> {
        self.get(key)?;
        self.take(key.slot)
    }

    /// Removes the object in a slot, if the slot is in use.
    #[inline]
    pub(super) fn take(&mut self, slot: u32) -> Option<T> {
        let entry = self.slots.get_mut(slot as usize)?;
        let value = entry.value.take()?;
        self.used -= 1;
        if let Some(next) = entry.generation.checked_add(1) {
            entry.generation = next;
            self.free.push(slot);
        }
        Some(value)
    }

    /// Drops an object where it is: one that is large is not moved.
    #[inline]
    pub(super) fn discard(&mut self, key: Key) {
        if let Some(slot) = self.slots.get_mut(key.slot as usize)
            && slot.generation == key.generation
            && slot.value.is_some()
        {
            slot.value = None;
            self.used -= 1;
            if let Some(next) = key.generation.checked_add(1) {
                slot.generation = next;
                self.free.push(key.slot);
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.slots.iter().zip(0..).filter_map(|(slot, number)| {
            let value = slot.value.as_ref()?;
            Some((Key { slot: number, generation: slot.generation }, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_number_finds_nothing() {
        let mut slab = Slab::default();
        let first = slab.insert('a');
        assert_eq!((slab.get(first), slab.len()), (Some(&'a'), 1));
        assert_eq!(slab.remove(first), Some('a'));
        let second = slab.next_key();
        assert_eq!(slab.insert('b'), second);
        assert_eq!((second.slot, slab.get(first)), (first.slot, None));
        assert_eq!(slab.remove(first), None);
        assert_eq!(Key::from_u64(second.to_u64()), second);
        assert_eq!(slab.iter().collect::<Vec<_>>(), [(second, &'b')]);
        slab.discard(first);
        slab.discard(second);
        slab.discard(second);
        assert_eq!((slab.len(), slab.next_key().slot, slab.get(second)), (0, second.slot, None));
        let third = slab.insert('c');
        assert_eq!(
            (slab.next_key(), slab.remove(third)),
            (Key { slot: 1, generation: 0 }, Some('c'))
        );
    }

    #[test]
    fn a_slot_is_retired_after_its_last_generation() {
        let mut slab = Slab::default();
        let key = slab.insert(0);
        slab.slots[0].generation = u32::MAX;
        assert_eq!(slab.remove(Key { generation: u32::MAX, ..key }), Some(0));
        assert_eq!(slab.insert(1).slot, 1);
    }
}
