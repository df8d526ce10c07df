//! Announcing buffers: lines in the ring of the sender.

use core::mem;

use super::slot::Slot;
use super::{LINE_BLOCKS, Receiver};
use crate::config::MAX_GROUPS;
use crate::error::Error;
use crate::queues::Queues;
use crate::rails::Rails;
use crate::region::Region;
use crate::request::Request;
use crate::ring::Announcement;

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
        let Some((slot, queues)) = room(&mut self.slots, &mut self.queues, group, self.turn) else {
            return self.full();
        };
        let (place, address) = (queues.place(), region.address(offset));
        // A rail that does not work at the moment may be used for the message.
        let (length, keys) = (length as u64, region.keys());
        let line = Announcement { address, length, keys, tag, count: 1, member: 0 };
        // There is room, as checked above.
        queues.write_line(&line.to_line(group), self.ring.line(group, 0, place));
        (slot.address, slot.tag, slot.held) = (address, tag, 1);
        slot.rooms[0] = length as usize;
        // There is nothing to drop, since the slot is free.
        mem::forget(slot.regions[0].replace(region.clone()));
        queues.turn();
        slot.open(group, 1, place);
        Ok(Some(self.announced(group)))
    }

    /// Announces 2 to 8 buffers.
    #[inline(always)]
    fn announce_group(&mut self, buffers: &[Target<'_>]) -> Result<Option<Request>, Error> {
        let (group, count) = (self.group, buffers.len() as u8);
        let Some((slot, queues)) = room(&mut self.slots, &mut self.queues, group, self.turn) else {
            admit(&self.rails, buffers)?;
            return self.full();
        };
        if !slot.store_one_region(&self.copies, &self.rails, group, buffers) {
            admit(&self.rails, buffers)?;
            slot.store_several_regions(&self.copies, group, buffers);
        }
        for room in slot.rooms.iter_mut().skip(buffers.len()) {
            *room = usize::MAX;
        }
        let place = queues.place();
        let local = self.copies.lines(group, count, queues.rail());
        // There is room, as checked above.
        queues.write_lines(local, self.ring.line(group, 0, place));
        queues.turn();
        slot.open(group, count, place);
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
        self.progress(usize::MAX);
        if self.failure.is_some() || self.peer.idle() {
            self.check()?;
        }
        Ok(None)
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

/// The slot of a group, if it is free, and the queues that carry its lines, if they have room.
/// There is no rail in use after a failure.
#[inline(always)]
fn room<'r>(
    slots: &'r mut [Slot; MAX_GROUPS],
    queues: &'r mut [Queues],
    group: u64,
    turn: usize,
) -> Option<(&'r mut Slot, &'r mut Queues)> {
    let slot = &mut slots[group as usize % MAX_GROUPS];
    let queues = queues.get_mut(turn)?;
    (slot.request == Request::NONE && queues.has_room(LINE_BLOCKS)).then_some((slot, queues))
}
