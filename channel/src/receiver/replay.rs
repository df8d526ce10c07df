//! What a receiver does when a rail has failed: it announces again what the sender lacks.

use super::slot::{Wrong, arrive};
use super::{Receiver, end};
use crate::control::Peer;
use crate::fail_over::{FailOver, Half};
use crate::handshake::message::Held;
use crate::queues::{Doubt, Event, Queues};
use crate::ring::{Announcement, Lines, RemoteLines};

/// Blocks of a line's WQE: control, address, and 64 bytes inline.
const LINE_BLOCKS: u32 = 2;

impl Half for Receiver {
    fn parts(&mut self) -> (&mut Vec<Queues>, &mut FailOver, &mut Peer) {
        (&mut self.queues, &mut self.fail_over, &mut self.peer)
    }

    fn post(&mut self) -> (&mut Vec<Queues>, &mut Peer, (&Lines, &RemoteLines)) {
        (&mut self.queues, &mut self.peer, (&self.copies, &self.ring))
    }

    fn settle(&mut self) {
        self.progress_all();
    }

    fn drain(&mut self, queues: &mut Queues) -> Result<(), &'static str> {
        while let Some(event) = queues.poll(|_| {}) {
            if let Event::Arrived { immediate, bytes } = event {
                let complete = arrive(&mut self.slots, immediate, bytes).map_err(Wrong::text)?;
                if let Some(at) = complete {
                    end(&mut self.requests, at);
                }
            }
        }
        Ok(())
    }

    fn state(&mut self, queues: &Queues) -> (Held, Doubt) {
        (Held { taken: queues.taken(), ..Held::default() }, Doubt::default())
    }

    fn resolve(&mut self, place: usize, _doubt: Doubt, held: &Held) -> Result<(), &'static str> {
        for (at, (slot, request)) in self.slots.iter().zip(&self.requests).enumerate() {
            if !request.is_open() || usize::from(slot.place) != place {
                continue;
            }
            // The sender is at group `next`, which is one of the last 32, or the one after them.
            let ahead = request.number().wrapping_sub(held.next);
            let is_announced =
                ahead >= 1 << 63 || held.announced.unbounded_shr(ahead as u32) & 1 != 0;
            self.unannounced |= u32::from(!is_announced) << at;
        }
        Ok(())
    }

    fn replay(&mut self) -> Result<bool, &'static str> {
        let Self { slots, requests, queues, in_use, ring, copies, unannounced, .. } = self;
        for (at, (slot, request)) in slots.iter_mut().zip(requests).enumerate() {
            if *unannounced >> at & 1 == 0 || !request.is_open() {
                continue;
            }
            let mut in_use = queues.iter_mut().take(*in_use);
            let Some(queues) = in_use.find(|queues| queues.has_room(LINE_BLOCKS)) else {
                return Ok(true);
            };
            *unannounced &= !(1 << at);
            let (group, place) = (request.number(), queues.place());
            let remote = ring.line(group, 0, place);
            if slot.count > 1 {
                queues.write_lines(copies.lines(group, slot.count, queues.rail()), remote);
            } else if let Some(region) = &slot.regions[0] {
                let (address, tag, length) = (slot.address, slot.tag, slot.rooms[0] as u64);
                let keys = region.keys();
                let line = Announcement { address, length, keys, tag, count: 1, member: 0 };
                queues.write_line(&line.to_line(group), remote);
            }
            queues.turn();
            slot.place = place as u8;
        }
        Ok(false)
    }

    fn adapt(&mut self) {
        self.in_use = self.fail_over.select(&mut self.queues);
        self.turn = 0;
    }
}
