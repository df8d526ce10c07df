//! The tag matching list of a shared receive queue (XRQ).

use std::collections::VecDeque;

/// The buffer of an entry: one range of registered memory, which may be empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TagBuffer {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// An entry of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u64,
    mask: u64,
    buffer: TagBuffer,
    /// Software has compared the entry with every unexpected message before it.
    active: bool,
}

/// Why an entry cannot be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// The entry to fill is in the list already.
    Taken(u16),
    /// The entry named for the next append does not exist.
    Beyond,
}

/// The list, its counters, and where its completions go.
#[derive(Debug)]
pub(crate) struct Tags {
    /// The completion queue of received messages and of list operations.
    pub(crate) cqn: u32,
    /// The user index, for CQEs.
    pub(crate) user_index: u32,
    /// The device reads the data of matched rendezvous messages.
    pub(crate) rendezvous: bool,
    /// Entries by index, as far as they were filled.
    entries: Vec<Option<Entry>>,
    log_entries: u8,
    /// Indices of the filled entries, in the order of their appends.
    order: VecDeque<u16>,
    next: u16,
    software: u16,
    hardware: u16,
}

impl Tags {
    /// Creates an empty list of `1 << log_entries` entries. Its `counters` are those of unexpected
    /// messages that software has processed and that the device has received.
    pub(crate) fn new(
        (cqn, user_index): (u32, u32),
        rendezvous: bool,
        log_entries: u8,
        (software, hardware): (u16, u16),
    ) -> Self {
        Self {
            cqn,
            user_index,
            rendezvous,
            entries: Vec::new(),
            log_entries,
            order: VecDeque::new(),
            next: 0,
            software,
            hardware,
        }
    }

    /// Returns log2 of the number of entries.
    pub(crate) fn log_entries(&self) -> u8 {
        self.log_entries
    }

    /// Returns the entry that the next append fills.
    pub(crate) fn next(&self) -> u16 {
        self.next
    }

    /// Returns the unexpected messages that software has processed and that the device has
    /// received, modulo 2^16.
    pub(crate) fn counters(&self) -> (u16, u16) {
        (self.software, self.hardware)
    }

    /// An unexpected message arrives. Until software has processed it, new entries do not match.
    pub(crate) fn unexpected(&mut self) {
        self.hardware = self.hardware.wrapping_add(1);
    }

    /// An unexpected message fails: software gets no completion for it and never processes it.
    pub(crate) fn withdraw(&mut self) {
        self.hardware = self.hardware.wrapping_sub(1);
        self.activate();
    }

    /// Software has processed `count` unexpected messages.
    pub(crate) fn synchronize(&mut self, count: u16) {
        self.software = count;
        self.activate();
    }

    /// Makes every entry match if software has processed all unexpected messages.
    fn activate(&mut self) {
        if self.software == self.hardware {
            for entry in self.entries.iter_mut().flatten() {
                entry.active = true;
            }
        }
    }

    /// Fills the entry that the append before named, and names that of the append after.
    pub(crate) fn append(
        &mut self,
        next: u16,
        (tag, mask): (u64, u64),
        buffer: TagBuffer,
    ) -> Result<(), Full> {
        let index = self.next;
        if u32::from(next) >> self.log_entries != 0 {
            return Err(Full::Beyond);
        }
        if self.entries.len() <= usize::from(index) {
            self.entries.resize(usize::from(index) + 1, None);
        }
        let slot = &mut self.entries[usize::from(index)];
        if slot.is_some() {
            return Err(Full::Taken(index));
        }
        *slot = Some(Entry { tag, mask, buffer, active: self.software == self.hardware });
        self.order.push_back(index);
        self.next = next;
        Ok(())
    }

    /// Removes entry `index`. Returns `false` if it is not in the list.
    pub(crate) fn remove(&mut self, index: u16) -> bool {
        let found = self.entries.get_mut(usize::from(index)).and_then(Option::take).is_some();
        if found {
            self.order.retain(|&filled| filled != index);
        }
        found
    }

    /// Removes the oldest entry that matches `tag`, and returns its index and buffer.
    pub(crate) fn take(&mut self, tag: u64) -> Option<(u16, TagBuffer)> {
        let matches = |entry: &Entry| entry.active && (entry.tag ^ tag) & entry.mask == 0;
        let filled = |index: u16| self.entries.get(usize::from(index)).copied().flatten();
        let at =
            self.order.iter().position(|&index| filled(index).as_ref().is_some_and(matches))?;
        let index = self.order.remove(at)?;
        let entry = self.entries.get_mut(usize::from(index))?.take()?;
        Some((index, entry.buffer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> Tags {
        Tags::new((1, 2), true, 2, (0, 0))
    }

    fn buffer(length: u32) -> TagBuffer {
        TagBuffer { address: 0, length, lkey: 0 }
    }

    #[test]
    fn the_oldest_match_is_taken_once() {
        let mut list = list();
        list.append(1, (5, 0xff), buffer(0)).unwrap();
        list.append(2, (0x105, u64::MAX), buffer(1)).unwrap();
        list.append(3, (0, 0), buffer(2)).unwrap();
        assert_eq!(list.take(0x105), Some((0, buffer(0))));
        assert_eq!(list.take(0x105), Some((1, buffer(1))));
        assert_eq!(list.take(0x105), Some((2, buffer(2))));
        assert_eq!(list.take(0x105), None);
    }

    #[test]
    fn entries_are_filled_as_the_append_before_said() {
        let mut list = list();
        assert_eq!(list.append(4, (0, 0), buffer(0)), Err(Full::Beyond));
        list.append(3, (1, u64::MAX), buffer(0)).unwrap();
        list.append(0, (2, u64::MAX), buffer(1)).unwrap();
        assert_eq!(list.append(1, (3, u64::MAX), buffer(2)), Err(Full::Taken(0)));
        assert!(list.remove(0) && !list.remove(0) && !list.remove(1) && !list.remove(u16::MAX));
        list.append(1, (3, u64::MAX), buffer(2)).unwrap();
        assert_eq!((list.take(3), list.take(2)), (Some((0, buffer(2))), Some((3, buffer(1)))));
    }

    #[test]
    fn entries_wait_while_the_counters_differ() {
        let mut list = list();
        list.append(1, (1, u64::MAX), buffer(0)).unwrap();
        list.unexpected();
        list.append(2, (2, u64::MAX), buffer(1)).unwrap();
        assert_eq!((list.take(2), list.take(1)), (None, Some((0, buffer(0)))));
        list.unexpected();
        list.synchronize(1);
        assert_eq!(list.take(2), None);
        list.synchronize(2);
        assert_eq!(list.take(2), Some((1, buffer(1))));
    }

    #[test]
    fn entries_do_not_wait_for_messages_that_failed() {
        let mut list = list();
        list.unexpected();
        list.unexpected();
        list.append(1, (1, u64::MAX), buffer(0)).unwrap();
        list.withdraw();
        assert_eq!((list.take(1), list.counters()), (None, (0, 1)));
        list.synchronize(1);
        assert_eq!(list.take(1), Some((0, buffer(0))));
    }
}
