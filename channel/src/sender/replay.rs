//! What a sender does when a rail has failed: it writes again what the receiver lacks.

use std::time::{Duration, Instant};

use barewire_mlx5::DataSegment;
use barewire_tcp::time::after;

use super::{Sender, acknowledge};
use crate::control::Peer;
use crate::fail_over::{FailOver, Half};
use crate::handshake::message::Held;
use crate::queues::{Doubt, NO_OWNER, Part, Queues, Share};
use crate::ring::{Immediate, Lines, RemoteLines};

/// Between reads of what the receiver has received.
const READ_INTERVAL: Duration = Duration::from_millis(10);

impl Sender {
    /// Posts a missing part again. Returns whether there was room.
    fn write_again(&mut self, part: &Part) -> Result<bool, &'static str> {
        let blocks = part.len() as u32;
        let mut in_use = self.writer.queues.iter().take(self.writer.in_use);
        let Some(at) = in_use.position(|queues| queues.has_room(blocks)) else {
            return Ok(false);
        };
        self.announce(at);
        for share in part {
            self.write_share_again(at, share)?;
        }
        self.announce(at);
        if part.last().is_some_and(|share| share.immediate.is_none()) {
            // They belong to the group that is not complete. Its record follows them.
            self.writer.used |= self.writer.queues.get(at).map_or(0, Queues::bit);
        }
        Ok(true)
    }

    fn announce(&mut self, at: usize) {
        if let Some(queues) = self.writer.queues.get_mut(at) {
            queues.announce();
        }
    }

    fn write_share_again(&mut self, at: usize, share: &Share) -> Result<(), &'static str> {
        let now = self.group();
        let Some(queues) = self.writer.queues.get_mut(at) else { return Ok(()) };
        let (group, member) = match (self.slots.get(usize::from(share.owner)), share.immediate) {
            (Some(slot), _) => (slot.request.number(), slot.request.member()),
            (None, Some(immediate)) => {
                let immediate = Immediate::from_bits(immediate).ok_or("a share without a group")?;
                // The group is one of the last 32.
                let behind = (now as u16).wrapping_sub(immediate.group);
                (now.wrapping_sub(behind.into()), 0)
            }
            (None, None) => return Err("a share without a request"),
        };
        let line = self.ring.line(group, member);
        if !line.is_announced(group) {
            return Err("it overwrote a line that is in use");
        }
        let immediate = share.immediate.and_then(Immediate::from_bits);
        let (key, mut remote) = if immediate.is_some_and(|immediate| immediate.is_group) {
            (self.ring.key(queues.rail()), self.records.record(group, queues.place()))
        } else {
            let slot = self.slots.get(usize::from(share.owner));
            let region = slot.and_then(|slot| slot.region.as_ref());
            let key = region.map_or(0, |region| region.key(queues.rail()));
            (key, line.remote(0, queues.partner()))
        };
        remote.address = share.remote.into();
        let local = DataSegment::new(share.address, share.length, key);
        // There is room for the whole part.
        if let Some(bytes) = &share.inline {
            let bytes = bytes.get(..share.length as usize).unwrap_or_default();
            queues.write_inline(bytes, remote, share.immediate, share.owner);
            return Ok(());
        }
        match share.immediate {
            Some(immediate) => queues.write_share(local, remote, immediate, share.owner),
            None => queues.write_plain(local, remote, share.owner),
        };
        Ok(())
    }
}

impl Half for Sender {
    fn parts(&mut self) -> (&mut Vec<Queues>, &mut FailOver, &mut Peer) {
        (&mut self.writer.queues, &mut self.fail_over, &mut self.peer)
    }

    fn post(&mut self) -> (&mut Vec<Queues>, &mut Peer, (&Lines, &RemoteLines)) {
        (&mut self.writer.queues, &mut self.peer, (&self.ring, &self.records))
    }

    fn settle(&mut self) {
        self.progress(usize::MAX);
    }

    fn drain(&mut self, queues: &mut Queues) -> Result<(), &'static str> {
        let slots = &mut *self.slots;
        while queues.poll(|owner| acknowledge(slots, owner)).is_some() {}
        Ok(())
    }

    fn state(&mut self, queues: &Queues) -> (Held, Doubt) {
        // The record waits until the messages of its group have arrived, or are posted again.
        self.doubts += 1;
        self.writer.used &= !queues.bit();
        let (next, announced) = (self.group(), self.ring.announced(self.group()));
        (Held { taken: Vec::new(), next, announced }, queues.doubtful())
    }

    fn resolve(&mut self, _place: usize, doubt: Doubt, held: &Held) -> Result<(), &'static str> {
        self.doubts = self.doubts.saturating_sub(1);
        let slots = &mut *self.slots;
        self.writer
            .missing
            .extend(doubt.resolve(&held.taken, |share| acknowledge(slots, share.owner))?);
        Ok(())
    }

    fn wait(&mut self, now: Instant) {
        let (slots, ring) = (&mut *self.slots, &self.ring);
        for share in self.fail_over.doubts().flat_map(Doubt::shares) {
            let slot = slots.get(usize::from(share.owner));
            if slot.is_some_and(|slot| ring.is_received(slot.request.number())) {
                acknowledge(slots, share.owner);
                // The slot may get another request.
                share.owner = NO_OWNER;
            }
        }
        if now < self.next_read {
            return;
        }
        let in_use = self.writer.queues.iter_mut().take(self.writer.in_use);
        for queues in in_use.filter(|queues| queues.has_room(1)).take(1) {
            let (to, from) = (ring.received(queues.rail()), self.records.received(queues.place()));
            if queues.read(to, from) {
                self.next_read = after(now, READ_INTERVAL);
            }
        }
    }

    fn replay(&mut self) -> Result<bool, &'static str> {
        while let Some(part) = self.writer.missing.pop_front() {
            if !self.write_again(&part)? {
                self.writer.missing.push_front(part);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn adapt(&mut self) {
        let in_use = self.fail_over.select(&mut self.writer.queues);
        self.writer.adapt(in_use);
        if self.left != 0 {
            self.writer.use_all();
        }
    }
}
