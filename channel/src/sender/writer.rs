//! Writing messages: whole, in shares over several rails, and in groups.
//!
//! A message that is alone in its group is written with an immediate by each share, unless it is
//! long and the network routes adaptively: then it is written like a group. The messages of
//! a group are written without. The last one is followed by the record with their lengths, over
//! each queue pair that carries some of them, with an immediate: since it arrives after the writes
//! before it, the receiver takes one completion for all of them. The doorbell of the record is that
//! of all writes of the group.

use core::hint::cold_path;
use std::collections::VecDeque;

use crate::config::MAX_RAILS;
use crate::plan::Plan;
use crate::queues::{Part, Queues, Share};
use crate::ring::{Immediate, Line, Lines, RemoteLines};
use crate::sender::source::{InRegion, Source};
use crate::share::{Cut, Weights, share_bytes};

/// The blocks that every queue pair needs for the last message of a group, in up to 8 shares, and
/// the record.
const LAST_BLOCKS: u32 = MAX_RAILS as u32 + 1;

/// A message to a buffer.
#[derive(Clone, Copy)]
pub(super) struct Message<'m, S> {
    pub(super) source: S,
    pub(super) length: u64,
    pub(super) line: Line<'m>,
    pub(super) group: u64,
    pub(super) owner: u16,
}

impl<S: Source> Message<'_, S> {
    /// Writes the share of `bytes` bytes at `start`. Returns `false` if there is no room.
    #[inline(always)]
    fn write<const GROUP: bool>(
        self,
        queues: &mut Queues,
        (start, bytes): (u64, u64),
        shares: u8,
    ) -> bool {
        let remote = self.line.remote(start, queues.partner());
        let immediate = if GROUP { None } else { Some(self.immediate(shares)) };
        self.source.write(queues, (start, bytes), remote, immediate, self.owner)
    }

    #[inline(always)]
    fn immediate(self, shares: u8) -> u32 {
        Immediate { group: self.group as u16, is_group: false, shares }.to_bits()
    }
}

impl Message<'_, InRegion<'_>> {
    /// The same share, to be written later.
    #[cold]
    fn part<const GROUP: bool>(self, (start, bytes): (u64, u64), shares: u8) -> Part {
        vec![Share {
            address: self.source.region.address(self.source.offset + start as usize),
            length: bytes as u32,
            remote: self.line.remote(start, 0).address.get(),
            immediate: (!GROUP).then(|| self.immediate(shares)),
            inline: None,
            owner: self.owner,
        }]
    }
}

/// The rails in use, and how messages are distributed over them.
#[derive(Debug)]
pub(super) struct Writer {
    /// One per rail that works. Those in use come first.
    pub(super) queues: Vec<Queues>,
    /// Rails in use: standby rails may not be.
    pub(super) in_use: usize,
    /// The rail of the next message, or of the next messages of a group, that one rail carries.
    turn: usize,
    /// Longest message that one rail carries.
    pub(super) whole: u64,
    /// How messages are cut over the rails in use, if all of them carry the same.
    cut: Cut,
    /// The places of rails, besides that of the next message, that may carry messages of a group
    /// that is not complete, as bits.
    pub(super) used: u8,
    /// Longest message that one rail of several carries.
    wanted: u64,
    /// How messages are distributed, unless all rails in use carry the same.
    weights: Option<Box<Weights>>,
    /// Shares that have to be posted, again or for the first time: those of failed rails, and those
    /// of messages for which a rail had no room.
    pub(super) missing: VecDeque<Part>,
    /// Shortest message of a single buffer that is written like a group: see
    /// [`Config::adaptive_from`](crate::Config::adaptive_from).
    pub(super) adaptive_from: u64,
    /// Longest message.
    limit: u64,
    /// Longest share.
    share: u64,
    /// Rails of the channel.
    places: usize,
}

impl Writer {
    /// `limit` and `share` are the longest message and share.
    pub(super) fn new(mut queues: Vec<Queues>, plan: &Plan, (limit, share): (u64, u64)) -> Self {
        let (wanted, places) = (plan.config().whole, plan.places());
        let in_use = plan.select(&mut queues);
        let mut writer = Self {
            queues,
            in_use,
            turn: 0,
            whole: 0,
            cut: Cut::NONE,
            used: 0,
            wanted,
            weights: None,
            missing: VecDeque::new(),
            adaptive_from: plan.adaptive_from(),
            limit,
            share,
            places,
        };
        writer.adapt(in_use);
        writer
    }

    /// The rails in use have changed: they are the first `in_use`.
    pub(super) fn adapt(&mut self, in_use: usize) {
        self.in_use = in_use;
        let whole = if in_use > 1 { self.wanted.min(self.share) } else { self.share };
        self.whole = whole.min(self.limit);
        let weights = self.queues.iter().take(in_use).map(Queues::weight);
        self.weights = Weights::new(weights, self.share).map(Box::new);
        self.cut = if self.weights.is_none() && in_use > 1 {
            Cut::new(in_use, self.share)
        } else {
            Cut::NONE
        };
        self.turn = 0;
        if self.weights.is_some() {
            self.turn();
        }
    }

    /// The rails in use have changed while a group is not complete. Any of them may carry messages
    /// of it.
    pub(super) fn use_all(&mut self) {
        self.used = self.queues.iter().fold(0, |bits, queues| bits | queues.bit());
    }

    #[cfg(all(test, feature = "soft"))]
    pub(super) fn limit_shares(&mut self, share: u64) {
        self.share = share;
        self.adapt(self.in_use);
    }

    /// Writes a message of at most `whole` bytes over one rail. Returns the number of shares, or 0
    /// if a queue has no room.
    #[inline(always)]
    pub(super) fn write<const GROUP: bool>(&mut self, message: Message<'_, impl Source>) -> u8 {
        // There is no rail in use after a failure.
        let Some(queues) = self.queues.get_mut(self.turn) else { return 0 };
        if !message.write::<GROUP>(queues, (0, message.length), 1) {
            return 0;
        }
        if !GROUP {
            queues.turn();
            self.turn();
        }
        1
    }

    /// The next message, or group, that one rail carries goes over the next rail.
    #[inline(always)]
    fn turn(&mut self) {
        if let Some(weights) = &mut self.weights {
            cold_path();
            self.turn = weights.next();
            return;
        }
        let next = self.turn + 1;
        self.turn = if next < self.in_use { next } else { 0 };
    }

    /// Writes a longer message as one share per rail. Returns the number of shares, or 0 if the
    /// first queue has no room.
    #[inline(never)]
    pub(super) fn cut<const GROUP: bool>(&mut self, message: &Message<'_, InRegion<'_>>) -> u8 {
        let Some(part) = self.cut.share_bytes(message.length) else {
            return self.cut_otherwise::<GROUP>(message);
        };
        self.cut_evenly::<GROUP>(message, part, self.in_use)
    }

    /// Writes shares of `part` bytes over the first `rails`; the last one has the rest.
    #[inline(always)]
    fn cut_evenly<const GROUP: bool>(
        &mut self,
        message: &Message<'_, InRegion<'_>>,
        part: u64,
        rails: usize,
    ) -> u8 {
        let queues = self.queues.get_mut(..rails).unwrap_or_default();
        let shares = queues.len() as u8;
        let mut start = 0;
        for queues in queues {
            let bytes = part.min(message.length - start);
            if !message.write::<GROUP>(queues, (start, bytes), shares) {
                cold_path();
                if start == 0 {
                    return 0;
                }
                self.missing.push_back(message.part::<GROUP>((start, bytes), shares));
            } else if GROUP {
                self.used |= queues.bit();
            } else {
                queues.turn();
            }
            start += bytes;
        }
        shares
    }

    /// As above, where not all rails have the same, or the message is too short or too long.
    #[cold]
    #[inline(never)]
    fn cut_otherwise<const GROUP: bool>(&mut self, message: &Message<'_, InRegion<'_>>) -> u8 {
        let length = message.length;
        if let Some(weights) = &self.weights
            && length <= weights.most()
        {
            return self.cut_by_weight::<GROUP>(message);
        }
        let rails = self.in_use.max(1);
        let part = share_bytes(length, rails);
        if part <= self.share && self.in_use > 0 {
            // The first rails have whole parts, then one has the rest; the others nothing.
            return self.cut_evenly::<GROUP>(message, part, length.div_ceil(part) as usize);
        }
        self.cut_short::<GROUP>(message)
    }

    /// As above, with shares in proportion to the weights of the rails. Those that would be empty
    /// are left out.
    #[inline(never)]
    fn cut_by_weight<const GROUP: bool>(&mut self, message: &Message<'_, InRegion<'_>>) -> u8 {
        let length = message.length;
        let Some(weights) = &self.weights else { return 0 };
        let queues = self.queues.get_mut(..self.in_use).unwrap_or_default();
        let (mut start, mut shares) = (0, 0);
        for (at, queues) in queues.iter().enumerate() {
            let end = weights.end(at, length);
            if end > start {
                shares += 1;
                if !queues.has_room(1) {
                    return 0;
                }
            }
            start = end;
        }
        start = 0;
        for (at, queues) in queues.iter_mut().enumerate() {
            let end = weights.end(at, length);
            if end > start {
                // There is room, as checked above.
                message.write::<GROUP>(queues, (start, end - start), shares);
                if GROUP {
                    self.used |= queues.bit();
                } else {
                    queues.turn();
                }
            }
            start = end;
        }
        shares
    }

    /// As above, where a rail would have to carry more than the longest share: it has several,
    /// because others have failed or carry less.
    #[cold]
    #[inline(never)]
    fn cut_short<const GROUP: bool>(&mut self, message: &Message<'_, InRegion<'_>>) -> u8 {
        let length = message.length;
        let part = share_bytes(length, self.places).max(1);
        let shares = length.div_ceil(part) as usize;
        let in_use = self.queues.get_mut(..self.in_use).unwrap_or_default();
        if in_use.is_empty() || !in_use.iter().all(|queues| queues.has_room(shares as u32)) {
            return 0;
        }
        for share in 0..shares {
            let (start, at) = (share as u64 * part, share % in_use.len());
            let Some(queues) = in_use.get_mut(at) else { continue };
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

    /// The place of the rail of the next message, as a bit.
    #[inline(always)]
    fn bit(&self) -> u8 {
        self.queues.get(self.turn).map_or(0, Queues::bit)
    }

    /// Writes the record of a group of `count` for `owner`, over each queue pair that may carry a
    /// message of the group. Returns the number of queue pairs.
    #[inline(always)]
    pub(super) fn end_group(
        &mut self,
        (from, to): (&Lines, &RemoteLines),
        group: u64,
        count: u8,
        owner: u16,
    ) -> u8 {
        let used = self.used | self.bit();
        // A processor of the baseline has no instruction that counts bits.
        let shares = if let [_] = &*self.queues { 1 } else { used.count_ones() as u8 };
        let immediate = Immediate { group: group as u16, is_group: true, shares }.to_bits();
        for queues in &mut self.queues {
            if used & queues.bit() != 0 {
                let local = from.record(group, count, queues.rail());
                // There is room: see `may_end`.
                queues.write_record(local, to.record(group, queues.place()), immediate, owner);
                queues.turn();
            }
        }
        self.used = 0;
        self.turn();
        shares
    }

    /// Rings the doorbells for the messages of a group that wait for them.
    pub(super) fn announce(&mut self) {
        for queues in &mut self.queues {
            queues.announce();
        }
    }

    /// Requests completions for the messages of a group that is not complete. Returns whether some
    /// were requested.
    #[cold]
    pub(super) fn request_completions(&mut self) -> bool {
        let used = self.used | self.bit();
        let requested = |any, queues: &mut Queues| {
            (used & queues.bit() != 0 && queues.request_completion()) || any
        };
        self.queues.iter_mut().fold(false, requested)
    }
}
