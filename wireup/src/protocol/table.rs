//! The links of a node: by slot, and by peer and number.
//!
//! A link that is not connected costs a slot and its peer's entry. Slots are kept in small chunks,
//! and peers in a B-tree, so that no growth doubles the memory, and closed links return theirs.

use std::collections::{BTreeMap, BTreeSet};

use super::id::{LinkId, Uuid};
use super::link::Live;

/// Slots of a chunk: the bits of `Chunk::used`.
const CHUNK: usize = 32;
const NONE: u32 = u32::MAX;

/// A link.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) peer: Uuid,
    generation: u32,
    /// Number of the link among those with its peer.
    pub(super) sn: u32,
    /// The peer's next link.
    next: u32,
    /// Whether the user opened it. Otherwise only the peer did.
    pub(super) requested: bool,
    /// Whether the peer's links contain it. A link that is closed here does not count as a link
    /// with the peer any more.
    paired: bool,
    /// Everything that a silent link does not need.
    pub(super) live: Option<Box<Live>>,
}

const _: () = assert!(size_of::<Slot>() <= 40);

#[derive(Debug)]
struct Chunk {
    used: u32,
    slots: [Option<Slot>; CHUNK],
}

#[derive(Debug)]
struct Peer {
    /// Number of the next link that the user opens.
    next_sn: u32,
    first: u32,
}

#[derive(Debug)]
pub(super) struct Table {
    chunks: Vec<Option<Box<Chunk>>>,
    /// Chunks with room.
    room: BTreeSet<u32>,
    peers: BTreeMap<Uuid, Peer>,
    first_sn: u32,
    next_generation: u32,
    used: usize,
}

impl Table {
    pub(super) fn new(first_sn: u32, first_generation: u32) -> Self {
        Self {
            chunks: Vec::new(),
            room: BTreeSet::new(),
            peers: BTreeMap::new(),
            first_sn,
            next_generation: first_generation,
            used: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// Returns the number of the next link with `peer` that the user opens, and counts it.
    pub(super) fn count_opened(&mut self, peer: &Uuid) -> u32 {
        let first_sn = self.first_sn;
        let entry = self.peers.entry(*peer).or_insert(Peer { next_sn: first_sn, first: NONE });
        let sn = entry.next_sn;
        entry.next_sn = sn.wrapping_add(1);
        sn
    }

    /// Returns the link with `peer` of this number.
    pub(super) fn find(&self, peer: &Uuid, sn: u32) -> Option<LinkId> {
        let mut slot = self.peers.get(peer)?.first;
        while let Some(entry) = self.slot(slot) {
            if entry.sn == sn {
                return Some(LinkId { slot, generation: entry.generation });
            }
            slot = entry.next;
        }
        None
    }

    /// Returns the links with `peer`, the latest first.
    pub(super) fn with_peer(&self, peer: &Uuid) -> impl Iterator<Item = &Slot> {
        let mut next = self.peers.get(peer).map_or(NONE, |peer| peer.first);
        std::iter::from_fn(move || {
            let slot = self.slot(next)?;
            next = slot.next;
            Some(slot)
        })
    }

    /// Adds a link with `peer`. `None` if 2^32 - 32 links exist.
    pub(super) fn add(&mut self, peer: Uuid, sn: u32, requested: bool) -> Option<LinkId> {
        let index = self.chunk_with_room()?;
        let chunk = self.chunks[index as usize].as_mut()?;
        let place = chunk.used.trailing_ones();
        let slot = index * CHUNK as u32 + place;
        chunk.used |= 1 << place;
        if chunk.used == u32::MAX {
            self.room.remove(&index);
        }
        let generation = self.next_generation.max(1);
        self.next_generation = generation.wrapping_add(1);
        let first_sn = self.first_sn;
        let entry = self.peers.entry(peer).or_insert(Peer { next_sn: first_sn, first: NONE });
        let next = std::mem::replace(&mut entry.first, slot);
        chunk.slots[place as usize] =
            Some(Slot { peer, generation, sn, next, requested, paired: true, live: None });
        self.used += 1;
        Some(LinkId { slot, generation })
    }

    fn chunk_with_room(&mut self) -> Option<u32> {
        if let Some(index) = self.room.first() {
            return Some(*index);
        }
        let index = match self.chunks.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.chunks.len() < NONE as usize / CHUNK => {
                self.chunks.reserve_exact(self.chunks.len() / 8 + 1);
                self.chunks.push(None);
                self.chunks.len() - 1
            }
            None => return None,
        };
        self.chunks[index] = Some(Box::new(Chunk { used: 0, slots: [const { None }; CHUNK] }));
        self.room.insert(index as u32);
        Some(index as u32)
    }

    fn slot(&self, slot: u32) -> Option<&Slot> {
        let chunk = self.chunks.get(slot as usize / CHUNK)?.as_ref()?;
        chunk.slots[slot as usize % CHUNK].as_ref()
    }

    fn slot_mut(&mut self, slot: u32) -> Option<&mut Slot> {
        let chunk = self.chunks.get_mut(slot as usize / CHUNK)?.as_mut()?;
        chunk.slots[slot as usize % CHUNK].as_mut()
    }

    pub(super) fn get(&self, link: LinkId) -> Option<&Slot> {
        self.slot(link.slot).filter(|slot| slot.generation == link.generation)
    }

    pub(super) fn get_mut(&mut self, link: LinkId) -> Option<&mut Slot> {
        self.slot_mut(link.slot).filter(|slot| slot.generation == link.generation)
    }

    /// Returns the link that uses `slot`.
    pub(super) fn in_slot(&self, slot: u32) -> Option<LinkId> {
        Some(LinkId { slot, generation: self.slot(slot)?.generation })
    }

    /// Takes the link out of its peer's links. Without any, the peer's count starts again.
    pub(super) fn unpair(&mut self, link: LinkId) {
        let Some(entry) = self.get_mut(link).filter(|slot| slot.paired) else { return };
        entry.paired = false;
        let (peer, next) = (entry.peer, entry.next);
        let Some(head) = self.peers.get_mut(&peer) else { return };
        if head.first == link.slot {
            head.first = next;
            if next == NONE {
                self.peers.remove(&peer);
            }
            return;
        }
        let mut before = head.first;
        while let Some(entry) = self.slot_mut(before) {
            if entry.next == link.slot {
                entry.next = next;
                return;
            }
            before = entry.next;
        }
    }

    /// Frees the slot.
    pub(super) fn remove(&mut self, link: LinkId) -> Option<Slot> {
        self.get(link)?;
        self.unpair(link);
        let index = link.slot as usize / CHUNK;
        let chunk = self.chunks[index].as_mut()?;
        let slot = chunk.slots[link.slot as usize % CHUNK].take();
        chunk.used &= !(1 << (link.slot as usize % CHUNK));
        self.room.insert(index as u32);
        if chunk.used == 0 {
            self.chunks[index] = None;
            self.room.remove(&(index as u32));
        }
        self.used -= 1;
        if self.used == 0 {
            // An emptied B-tree keeps a node.
            (self.chunks, self.room, self.peers) = (Vec::new(), BTreeSet::new(), BTreeMap::new());
        }
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Uuid = [1; 16];
    const B: Uuid = [2; 16];

    #[test]
    fn a_link_is_found_by_peer_and_number_until_it_is_unpaired() {
        let mut table = Table::new(u32::MAX, u32::MAX);
        assert_eq!([table.count_opened(&A), table.count_opened(&A)], [u32::MAX, 0]);
        let ids: Vec<_> = (0..3).map(|sn| table.add(A, sn, true).unwrap()).collect();
        let other = table.add(B, 1, false).unwrap();
        assert_eq!(table.find(&A, 1), Some(ids[1]));
        assert_eq!(table.find(&B, 1), Some(other));
        assert_eq!(table.find(&B, 0), None);
        for order in [1, 2, 0] {
            table.unpair(ids[order]);
            assert_eq!(table.find(&A, order as u32), None);
            assert!(table.get(ids[order]).is_some());
        }
        assert_eq!(table.count_opened(&A), u32::MAX, "the count starts again");
    }

    #[test]
    fn a_slot_is_used_again_under_another_generation() {
        let mut table = Table::new(0, u32::MAX);
        let old = table.add(A, 0, true).unwrap();
        table.remove(old);
        let new = table.add(A, 0, true).unwrap();
        assert_eq!((old.slot, old.generation), (new.slot, u32::MAX));
        assert_eq!(new.generation, 1);
        assert!(table.get(old).is_none() && table.remove(old).is_none());
        assert_eq!(table.in_slot(new.slot), Some(new));
    }

    #[test]
    fn everything_is_freed_with_the_last_link() {
        let mut table = Table::new(0, 1);
        let ids: Vec<_> = (0..1000).map(|sn| table.add(A, sn, true).unwrap()).collect();
        assert_eq!(table.len(), 1000);
        assert_eq!(ids[999].slot, 999);
        for id in ids.iter().step_by(2).chain(ids.iter().skip(1).step_by(2)) {
            assert!(table.remove(*id).is_some());
        }
        assert_eq!(table.len(), 0);
        assert!(table.chunks.is_empty() && table.room.is_empty() && table.peers.is_empty());
    }
}
