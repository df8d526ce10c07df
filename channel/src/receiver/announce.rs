//! Announcing buffers: lines in the ring of the sender.

use core::hint::cold_path;
use core::mem;

use super::Receiver;
use super::slot::Slot;
use crate::config::{MAX_GROUP, MAX_GROUPS};
use crate::error::Error;
use crate::queues::Queues;
use crate::rails::Rails;
use crate::region::Region;
use crate::request::Request;
use crate::ring::{Announcement, Label, Lines, NEXT_MEMBER};

/// A buffer of a group.
#[derive(Clone, Copy, Debug)]
pub struct Target<'r> {
    /// The memory, of [`Usage::Receive`](crate::Usage::Receive).
    pub region: &'r Region,
    /// Offset of the first byte.
    pub offset: usize,
    /// Longest message in bytes that is accepted.
    pub length: usize,
    /// The tag that the send must have.
    pub tag: u32,
}

impl Receiver {
    /// Announces `length` bytes at `offset` of `region` for the next send with `tag`. Returns
    /// `None` if 32 requests are outstanding, or no rail works at the moment: test requests, then
    /// call again. The region stays registered until the request is complete.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::Foreign`] and [`Error::SendOnly`], without effect;
    /// [`Error::Failed`].
    #[inline]
    pub fn receive(
        &mut self,
        region: &Region,
        offset: usize,
        length: usize,
        tag: u32,
    ) -> Result<Option<Request>, Error> {
        self.announce_one(&Target { region, offset, length, tag })
    }

    /// Announces a group of 1 to 8 buffers as one request. Each gets one message: the first without
    /// one whose tag is that of the send. The next group is used when every buffer of this one has
    /// its send.
    ///
    /// # Errors
    /// Those of [`Self::receive`], and [`Error::Group`].
    #[inline]
    pub fn receive_group(&mut self, buffers: &[Target<'_>]) -> Result<Option<Request>, Error> {
        match buffers {
            [buffer] => self.announce_one(buffer),
            [] | [_, _, _, _, _, _, _, _, _, ..] => Err(Error::Group(buffers.len())),
            _ => self.announce_group(buffers),
        }
    }

    /// Announces a buffer.
    #[inline(always)]
    fn announce_one(&mut self, buffer: &Target<'_>) -> Result<Option<Request>, Error> {
        let Target { region, offset, length, tag } = *buffer;
        region.admit(&self.rails, offset, length)?;
        if !region.receives() {
            return Err(Error::SendOnly);
        }
        let group = self.group;
        let requests = &mut self.requests;
        let Some((request, queues)) = free_slot(requests, &mut self.queues, group, self.turn)
        else {
            return self.full();
        };
        let slot = &mut self.slots[group as usize % MAX_GROUPS];
        let (place, address) = (queues.place(), region.address(offset));
        // A rail that does not work at the moment may be used for the message.
        let (length, keys) = (length as u64, region.keys());
        let line = Announcement { address, length, keys, tag, count: 1, member: 0 };
        if !queues.write_line(&line.to_line(group), self.ring.line(group, 0, place)) {
            return self.full();
        }
        (slot.address, slot.tag, slot.others) = (address, tag, 0);
        slot.rooms[0] = length as usize;
        // There is nothing to drop, since the slot is free.
        mem::forget(slot.regions[0].replace(region.clone()));
        queues.turn();
        slot.open::<false>(group, 1, place);
        *request = Request::new(group, 0);
        Ok(Some(self.announced(group)))
    }

    /// Announces 2 to 8 buffers.
    #[inline(always)]
    fn announce_group(&mut self, buffers: &[Target<'_>]) -> Result<Option<Request>, Error> {
        let (group, count) = (self.group, buffers.len() as u8);
        let requests = &mut self.requests;
        let Some((request, queues)) = free_slot(requests, &mut self.queues, group, self.turn)
        else {
            admit(&self.rails, buffers)?;
            return self.full();
        };
        let slot = &mut self.slots[group as usize % MAX_GROUPS];
        if !slot.store_one_region(&self.copies, &self.rails, group, buffers) {
            admit(&self.rails, buffers)?;
            slot.store_several_regions(&self.copies, group, buffers);
        }
        if buffers.len() < MAX_GROUP {
            slot.lift_limits(buffers.len());
        }
        let place = queues.place();
        let local = self.copies.lines(group, count, queues.rail());
        if !queues.write_lines(local, self.ring.line(group, 0, place)) {
            cold_path();
            slot.regions.fill(None);
            return self.full();
        }
        queues.turn();
        slot.open::<true>(group, count, place);
        *request = Request::new(group, 0);
        Ok(Some(self.announced(group)))
    }

    /// Notes that a group is announced.
    #[inline(always)]
    fn announced(&mut self, group: u64) -> Request {
        let next = self.turn + 1;
        self.turn = if next < self.in_use { next } else { 0 };
        self.group = group.wrapping_add(1);
        Request::new(group, 0)
    }

    /// The result of a receive that cannot be posted now.
    #[cold]
    #[inline(never)]
    fn full(&mut self) -> Result<Option<Request>, Error> {
        // Completions of lines make room.
        self.progress_all();
        if self.failure.is_some() || self.peer.idle() {
            self.check()?;
        }
        Ok(None)
    }
}

impl Slot {
    /// Stores the lines of a group of several buffers if all of them are in one region, as mostly.
    /// Returns `false` if they are not, or one cannot be announced.
    #[inline(always)]
    fn store_one_region(
        &mut self,
        copies: &Lines,
        rails: &Rails,
        group: u64,
        buffers: &[Target<'_>],
    ) -> bool {
        let Some(&Target { region: first, .. }) = buffers.first() else { return false };
        if !first.receives() || first.admit(rails, 0, 0).is_err() {
            return false;
        }
        // The lines mostly have the keys of the region since an earlier group.
        let count = buffers.len() as u8;
        let stored = if self.keyed >= count && self.keys == *first.key_words() {
            self.store_lines::<false>(copies, group, first, buffers)
        } else {
            cold_path();
            self.keyed = 0;
            let stored = self.store_lines::<true>(copies, group, first, buffers);
            (self.keyed, self.keys) = (if stored { count } else { 0 }, *first.key_words());
            stored
        };
        if stored {
            // There is nothing to drop, since the slot is free.
            mem::forget(self.regions[0].replace(first.clone()));
            self.others = 0;
        }
        stored
    }

    /// Stores the lines of buffers in one region, with its keys if `KEYS`.
    #[inline(always)]
    fn store_lines<const KEYS: bool>(
        &mut self,
        copies: &Lines,
        group: u64,
        first: &Region,
        buffers: &[Target<'_>],
    ) -> bool {
        let (start, size) = (first.address(0), first.len());
        let mut label = Label { tag: 0, count: buffers.len() as u8 }.to_word(0);
        let places = copies.group(group).zip(&mut self.rooms);
        for (buffer, (line, room)) in buffers.iter().zip(places) {
            let Target { region, offset, length, tag } = *buffer;
            let is_inside = size.checked_sub(length).is_some_and(|last| offset <= last);
            if !region.is(first) || !is_inside {
                return false;
            }
            *room = length;
            if KEYS {
                // A rail that does not work at the moment may be used for the message.
                line.store_keys(first.key_words());
            }
            let address = start.wrapping_add(offset as u64);
            line.store(group, (address, length as u64), label | u64::from(tag));
            label = label.wrapping_add(NEXT_MEMBER);
        }
        true
    }

    /// Removes the limits of the buffers that a group of `count` does not have.
    #[inline(never)]
    fn lift_limits(&mut self, count: usize) {
        for room in self.rooms.iter_mut().skip(count) {
            *room = usize::MAX;
        }
    }

    /// Stores the lines of buffers in several regions.
    #[cold]
    #[inline(never)]
    fn store_several_regions(&mut self, copies: &Lines, group: u64, buffers: &[Target<'_>]) {
        let label = Label { tag: 0, count: buffers.len() as u8 };
        let places = copies.group(group).zip(&mut self.rooms).zip(&mut self.regions).zip(0..);
        for (buffer, (((line, room), held), member)) in buffers.iter().zip(places) {
            let Target { region, offset, length, tag } = *buffer;
            *room = length;
            *held = Some(region.clone());
            line.store_keys(region.key_words());
            let label = label.to_word(member) | u64::from(tag);
            line.store(group, (region.address(offset), length as u64), label);
        }
        (self.others, self.keyed) = (buffers.len() as u16 - 1, 0);
    }
}

/// Fails if one of the buffers cannot be announced.
#[cold]
#[inline(never)]
fn admit(rails: &Rails, buffers: &[Target<'_>]) -> Result<(), Error> {
    for Target { region, offset, length, .. } in buffers {
        region.admit(rails, *offset, *length)?;
        if !region.receives() {
            return Err(Error::SendOnly);
        }
    }
    Ok(())
}

/// The place for the request of a group, if it is free, and the queues that carry its lines. There
/// is no rail in use after a failure.
#[inline(always)]
fn free_slot<'r>(
    requests: &'r mut [Request; MAX_GROUPS],
    queues: &'r mut [Queues],
    group: u64,
    turn: usize,
) -> Option<(&'r mut Request, &'r mut Queues)> {
    let request = &mut requests[group as usize % MAX_GROUPS];
    let queues = queues.get_mut(turn)?;
    (*request == Request::NONE).then_some((request, queues))
}
