//! Writing messages: whole, in shares over several rails, and in groups.
//!
//! A message that is alone in its group is written with an immediate by each share. The messages of
//! a group are written without, as soon as each is sent. The last one is followed by the record
//! with their lengths, over each queue pair that carries some of them, with an immediate: since it
//! arrives after the writes before it, the receiver takes one completion for all of them.

use core::hint::cold_path;

use crate::config::MAX_RAILS;
use crate::plan::Plan;
use crate::queues::Queues;
use crate::region::Region;
use crate::ring::{Immediate, Line, Lines, RemoteLines};
use crate::share::share_bytes;

/// The blocks that every queue pair needs for the last message of a group, in up to 8 shares, and
/// the record.
const LAST_BLOCKS: u32 = MAX_RAILS as u32 + 1;

/// A message to a buffer.
#[derive(Clone, Copy)]
pub(super) struct Message<'m> {
    pub(super) region: &'m Region,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) line: Line<'m>,
    pub(super) group: u64,
    pub(super) owner: u16,
}

impl Message<'_> {
    /// Writes the share of `bytes` bytes at `start`. Returns `false` if there is no room.
    #[inline(always)]
    fn write<const GROUP: bool>(
        self,
        queues: &mut Queues,
        (start, bytes): (u64, u64),
        shares: u8,
    ) -> bool {
        let local = self.region.segment(self.offset + start, bytes, queues.rail());
        let remote = self.line.remote(start, queues.partner());
        if GROUP {
            return queues.write_plain(local, remote, self.owner);
        }
        let immediate = Immediate { group: self.group as u16, is_group: false, shares };
        queues.write_share(local, remote, immediate.to_bits(), self.owner)
    }
}

/// The rails in use, and how messages are distributed over them.
#[derive(Debug)]
pub(super) struct Writer {
    /// One per rail.
    pub(super) queues: Vec<Queues>,
    /// The rail of the next message, or of the next messages of a group, that one rail carries.
    turn: usize,
    /// Longest message that one rail carries.
    whole: u64,
    /// Longest message that has a share per rail.
    most: u64,
    /// The places of rails that carry messages of a group that is not complete, as bits.
    pub(super) used: u8,
    /// Longest message that one rail of several carries.
    wanted: u64,
    /// Longest share.
    share: u64,
    /// Rails of the channel.
    places: usize,
}

impl Writer {
    pub(super) fn new(queues: Vec<Queues>, plan: &Plan, share: u64) -> Self {
        let (wanted, places) = (plan.config().whole, plan.places());
        let mut writer =
            Self { queues, turn: 0, whole: 0, most: 0, used: 0, wanted, share, places };
        writer.adapt();
        writer
    }

    /// The rails in use have changed.
    pub(super) fn adapt(&mut self) {
        let rails = self.queues.len();
        self.whole = if rails > 1 { self.wanted.min(self.share) } else { self.share };
        self.most = self.share.saturating_mul(rails as u64);
        self.turn = 0;
    }

    #[cfg(all(test, feature = "soft"))]
    pub(super) fn limit_shares(&mut self, share: u64) {
        self.share = share;
        self.adapt();
    }

    /// Writes a message. Returns the number of shares, or 0 if a queue has no room.
    #[inline(always)]
    pub(super) fn write<const GROUP: bool>(&mut self, message: Message<'_>) -> u8 {
        if message.length > self.whole {
            return self.cut::<GROUP>(&{ message });
        }
        // There is no rail in use after a failure.
        let Some(queues) = self.queues.get_mut(self.turn) else { return 0 };
        if !message.write::<GROUP>(queues, (0, message.length), 1) {
            return 0;
        }
        if GROUP {
            self.used |= queues.bit();
        } else {
            queues.turn();
            self.turn();
        }
        1
    }

    /// The next message, or group, that one rail carries goes over the next rail.
    #[inline(always)]
    fn turn(&mut self) {
        let next = self.turn + 1;
        self.turn = if next < self.queues.len() { next } else { 0 };
    }

    /// Writes a message as one share per rail.
    #[inline(never)]
    fn cut<const GROUP: bool>(&mut self, message: &Message<'_>) -> u8 {
        let (rails, length) = (self.queues.len(), message.length);
        if length > self.most {
            return self.cut_short::<GROUP>(message);
        }
        let part = share_bytes(length, rails);
        // The first rails have whole parts, then one has the rest; the others nothing.
        let queues = if part.wrapping_mul(rails as u64 - 1) < length {
            &mut *self.queues
        } else {
            few(&mut self.queues, part, length)
        };
        let shares = queues.len() as u8;
        if !queues.iter().all(|queues| queues.has_room(1)) {
            return 0;
        }
        let mut start = 0;
        for queues in queues {
            let bytes = part.min(length - start);
            // There is room, as checked above.
            message.write::<GROUP>(queues, (start, bytes), shares);
            if GROUP {
                self.used |= queues.bit();
            } else {
                queues.turn();
            }
            start += bytes;
        }
        shares
    }

    /// As above, where rails have failed and the others write several shares, because one is not
    /// long enough.
    #[cold]
    #[inline(never)]
    fn cut_short<const GROUP: bool>(&mut self, message: &Message<'_>) -> u8 {
        let length = message.length;
        let part = share_bytes(length, self.places).max(1);
        let shares = length.div_ceil(part) as usize;
        if self.queues.is_empty()
            || !self.queues.iter().all(|queues| queues.has_room(shares as u32))
        {
            return 0;
        }
        for share in 0..shares {
            let (start, at) = (share as u64 * part, share % self.queues.len());
            let Some(queues) = self.queues.get_mut(at) else { continue };
            let bytes = part.min(length - start);
            // There is room, as checked above, since the queue pair stays the same.
            message.write::<GROUP>(queues, (start, bytes), shares as u8);
            if GROUP {
                self.used |= queues.bit();
            }
        }
        shares as u8
    }

    /// Returns whether the queue pairs have room for the last message of a group and its record.
    #[inline(always)]
    pub(super) fn may_end(&self) -> bool {
        !self.queues.is_empty() && self.queues.iter().all(|queues| queues.has_room(LAST_BLOCKS))
    }

    /// Writes the record of a group of `count` for `owner`, over each queue pair that carries a
    /// message of the group. Returns the number of queue pairs.
    #[inline(always)]
    pub(super) fn end_group(
        &mut self,
        (from, to): (&Lines, &RemoteLines),
        group: u64,
        count: u8,
        owner: u16,
    ) -> u8 {
        if self.used == 0 {
            // Nothing was written, or it has arrived over rails that have failed.
            cold_path();
            self.used = self.queues.first().map_or(0, Queues::bit);
        }
        let shares = self.used.count_ones() as u8;
        let immediate = Immediate { group: group as u16, is_group: true, shares }.to_bits();
        for queues in &mut self.queues {
            if self.used & queues.bit() != 0 {
                let local = from.record(group, count, queues.rail());
                // There is room: see `may_end`.
                queues.write_share(local, to.record(group, queues.place()), immediate, owner);
                queues.turn();
            }
        }
        self.used = 0;
        self.turn();
        shares
    }

    /// Requests completions for the messages of a group that is not complete. Returns whether some
    /// were requested.
    #[cold]
    pub(super) fn request_completions(&mut self) -> bool {
        let used = self.used;
        let requested = |any, queues: &mut Queues| {
            (used & queues.bit() != 0 && queues.request_completion()) || any
        };
        self.queues.iter_mut().fold(false, requested)
    }
}

/// The first rails, as many as a message of `length` has shares of at most `part` bytes.
#[cold]
#[inline(never)]
fn few(queues: &mut [Queues], part: u64, length: u64) -> &mut [Queues] {
    let shares = length.div_ceil(part.max(1)) as usize;
    queues.get_mut(..shares).unwrap_or_default()
}
