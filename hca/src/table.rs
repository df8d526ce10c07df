//! Tables of numbered objects.

use std::fmt;

/// Objects of one kind by number.
///
/// Numbers increase and are reused only after the whole range, so that a stale number does not soon
/// name another object. The slot of a number is its low bits: a lookup is one index and one
/// comparison.
pub(crate) struct Table<T> {
    /// A power of two of slots, at least twice the number of objects.
    slots: Vec<Option<(u32, T)>>,
    live: usize,
    limit: usize,
    first: u32,
    last: u32,
    next: u32,
}

impl<T> Table<T> {
    const SMALLEST: usize = 16;

    /// Creates an empty table for at most `limit` objects, numbered `first` to `last`.
    pub(crate) fn new(first: u32, last: u32, limit: usize) -> Self {
        debug_assert!(first <= last && limit <= (last - first) as usize / 4);
        Self { slots: Vec::new(), live: 0, limit, first, last, next: first }
    }

    /// Sets the number of the first object by `random`.
    pub(crate) fn starting_at(self, random: u64) -> Self {
        let numbers = u64::from(self.last - self.first) + 1;
        Self { next: self.first + (random % numbers) as u32, ..self }
    }

    /// Creates an object with the next number and returns both; `None` if the table is full.
    pub(crate) fn insert_with(&mut self, object: impl FnOnce(u32) -> T) -> Option<(u32, &mut T)> {
        if self.is_full() {
            return None;
        }
        if self.slots.len() < 2 * (self.live + 1) {
            self.grow();
        }
        let mask = self.slots.len() as u32 - 1;
        let number = loop {
            let number = self.next;
            self.next = if number == self.last { self.first } else { number + 1 };
            // Terminates: half of the slots are free, and consecutive numbers have consecutive
            // slots.
            if self.slots[(number & mask) as usize].is_none() {
                break number;
            }
        };
        self.live += 1;
        let slot = self.slots[(number & mask) as usize].insert((number, object(number)));
        Some((number, &mut slot.1))
    }

    /// Returns whether the table is full.
    pub(crate) fn is_full(&self) -> bool {
        self.live >= self.limit
    }

    fn grow(&mut self) {
        let length = (self.slots.len() * 2).max(Self::SMALLEST);
        let mut slots = Vec::with_capacity(length);
        slots.resize_with(length, || None);
        for entry in self.slots.drain(..).flatten() {
            // Numbers that differ in the old low bits also differ in the new ones.
            let slot = entry.0 as usize & (length - 1);
            slots[slot] = Some(entry);
        }
        self.slots = slots;
    }

    fn slot(&self, number: u32) -> Option<usize> {
        let slot = number as usize & self.slots.len().checked_sub(1)?;
        matches!(&self.slots[slot], Some((held, _)) if *held == number).then_some(slot)
    }

    /// Returns the object of that number.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.slot(number).and_then(|slot| self.slots[slot].as_ref()).map(|(_, object)| object)
    }

    /// Returns the object of that number.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.slot(number).and_then(|slot| self.slots[slot].as_mut()).map(|(_, object)| object)
    }

    /// Removes the object.
    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let slot = self.slot(number)?;
        self.live -= 1;
        self.slots[slot].take().map(|(_, object)| object)
    }

    /// Returns all objects, in an order that depends only on past insertions and removals.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().flatten().map(|(number, object)| (*number, object))
    }

    /// Returns all objects, in the same order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten().map(|(_, object)| object)
    }

    /// Returns the number of objects.
    pub(crate) fn len(&self) -> usize {
        self.live
    }
}

impl<T: fmt::Debug> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn numbers_come_back_late() {
        let mut table = Table::new(3, 100, 4);
        let first = *table.insert_with(|number| number).unwrap().1;
        assert_eq!(first, 3);
        table.remove(first);
        for _ in 0..97 {
            let number = *table.insert_with(|number| number).unwrap().1;
            assert_ne!(number, first);
            assert_eq!(table.remove(number), Some(number));
        }
        assert_eq!(table.insert_with(|number| number), Some((3, &mut 3)));
    }

    #[test]
    fn the_limit_holds() {
        let mut table = Table::new(0, 63, 3);
        let numbers: Vec<u32> = (0..3)
            .filter_map(|_| table.insert_with(|number| number).map(|(_, &mut held)| held))
            .collect();
        assert_eq!(numbers, [0, 1, 2]);
        assert!(table.is_full());
        assert_eq!(table.insert_with(|number| number), None);
        assert_eq!((table.remove(1), table.remove(1), table.get(1)), (Some(1), None, None));
        assert!(table.insert_with(|number| number).is_some());
    }

    #[test]
    fn behaves_as_a_map() {
        let mut table = Table::new(1, 4095, 300);
        let mut map = BTreeMap::new();
        let mut random = 1_u32;
        for step in 0..20_000_u32 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if random >> 31 == 0 || map.is_empty() {
                if let Some(number) =
                    table.insert_with(|number| (number, step)).map(|(number, _)| number)
                {
                    assert_eq!(map.insert(number, step), None);
                } else {
                    assert_eq!(map.len(), 300);
                }
            } else {
                let nth = (random >> 8) as usize % map.len();
                let number = *map.keys().nth(nth).unwrap();
                assert_eq!(table.remove(number).map(|held| held.1), map.remove(&number));
            }
            let probe = random >> 20;
            assert_eq!(table.get(probe).map(|held| held.1), map.get(&probe).copied());
            assert_eq!(table.len(), map.len());
        }
        let all: BTreeMap<u32, u32> = table.iter().map(|(number, held)| (number, held.1)).collect();
        assert_eq!(all, map);
    }

    #[test]
    fn an_empty_table_has_nothing() {
        let mut table = Table::<u8>::new(0, 63, 1);
        assert_eq!((table.get(0), table.len()), (None, 0));
        assert_eq!(table.get_mut(u32::MAX), None);
        assert_eq!(table.remove(7), None);
    }
}
