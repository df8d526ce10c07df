//! Matching sends with the buffers that the receiver has announced.

use core::hint::cold_path;

use barewire_mlx5::DataSegment;

use super::Sender;
use super::source::{InRegion, Inline, Source};
use super::writer::Message;
use crate::config::MAX_GROUP;
use crate::error::Error;
use crate::queues::REFUSAL;
use crate::region::Region;
use crate::request::Request;
use crate::ring::{Immediate, Label, NEXT_MEMBER, REFUSED};

/// A way to post a send that most sends do not need.
pub(super) trait Step {
    fn post(sender: &mut Sender, source: impl Source, tag: u32) -> Request;
}

/// To a buffer of a group of several that is not the next in order.
struct Other;

/// To a group of several that has not begun.
struct Begin;

/// To a single buffer as to a group of one: with a record.
struct WithRecord;

impl Step for Other {
    #[inline(always)]
    fn post(sender: &mut Sender, source: impl Source, tag: u32) -> Request {
        let (group, first) = (sender.group(), sender.next as u8 & 7);
        // Buffers with equal tags are used in their order, so the search ends at one that is not
        // announced yet.
        for member in first..sender.count.min(MAX_GROUP as u8) {
            if sender.taken >> member & 1 != 0 {
                continue;
            }
            let line = sender.ring.line(group, member);
            if !line.is_announced(group) {
                break;
            }
            match line.label(member) {
                Some(label) if label.count == sender.count => {
                    if label.tag == tag {
                        let buffer = group << 3 | u64::from(member);
                        return sender.post_to::<_, true, false>(buffer, source);
                    }
                }
                _ => {
                    cold_path();
                    let error = sender.violated("lines of one group that contradict each other");
                    return sender.fails(error);
                }
            }
        }
        sender.later()
    }
}

impl Step for Begin {
    #[inline(always)]
    fn post(sender: &mut Sender, source: impl Source, tag: u32) -> Request {
        if !sender.begin() {
            return sender.later();
        }
        source.post_to_group(sender, tag)
    }
}

impl Step for WithRecord {
    #[inline(always)]
    fn post(sender: &mut Sender, source: impl Source, _tag: u32) -> Request {
        (sender.left, sender.count) = (1, 1);
        let request = sender.post_to::<_, true, true>(sender.next, source);
        // The group has ended, or nothing was written.
        sender.left = 0;
        request
    }
}

impl Sender {
    /// The group of the next send, from 0.
    #[inline(always)]
    pub(super) fn group(&self) -> u64 {
        self.next >> 3
    }

    /// Sends to the group that is announced. Returns [`Request::NONE`] if that is not possible yet,
    /// or fails with the error that is stored.
    #[inline(never)]
    pub(super) fn post(
        &mut self,
        region: &Region,
        offset: usize,
        length: usize,
        tag: u32,
    ) -> Request {
        // The arguments fit registers, which a structure of them does not.
        self.post_first(InRegion { region, offset, length }, tag)
    }

    /// As above, to a group of several that has begun.
    #[inline(never)]
    pub(super) fn post_to_group(
        &mut self,
        region: &Region,
        offset: usize,
        length: usize,
        tag: u32,
    ) -> Request {
        self.post_next(InRegion { region, offset, length }, tag)
    }

    /// As [`Self::post`], for bytes of any memory.
    #[inline(never)]
    pub(super) fn post_inline(&mut self, bytes: &[u8], tag: u32) -> Request {
        self.post_first(Inline(bytes), tag)
    }

    /// As [`Self::post_to_group`], for bytes of any memory.
    #[inline(never)]
    pub(super) fn post_inline_to_group(&mut self, bytes: &[u8], tag: u32) -> Request {
        self.post_next(Inline(bytes), tag)
    }

    /// Sends to the buffer that is alone in its group, or begins a group of several.
    #[inline(always)]
    fn post_first(&mut self, source: impl Source, tag: u32) -> Request {
        if let Err(error) = source.admit(&self.rails) {
            return self.fails(error);
        }
        let buffer = self.next;
        if self.ring.line_of_buffer(buffer).has_label(Label { tag, count: 1 }.to_word(0)) {
            return self.post_to::<_, false, true>(buffer, source);
        }
        source.step::<Begin>(self, tag)
    }

    /// Sends to a group of several that has begun. Mostly, the sends come in the order of the
    /// buffers.
    #[inline(always)]
    fn post_next(&mut self, source: impl Source, tag: u32) -> Request {
        if let Err(error) = source.admit(&self.rails) {
            return self.fails(error);
        }
        let (buffer, label) = (self.next, self.label);
        let expected = label | u64::from(tag);
        if label != 0 && self.ring.line_of_buffer(buffer).has_label(expected) {
            return self.post_to::<_, true, true>(buffer, source);
        }
        source.step::<Other>(self, tag)
    }

    /// Sends to a buffer: the first one without a send, if `IN_ORDER`.
    #[inline(always)]
    fn post_to<S: Source, const GROUP: bool, const IN_ORDER: bool>(
        &mut self,
        buffer: u64,
        source: S,
    ) -> Request {
        if GROUP && self.left == 1 && !self.may_end() {
            return self.later();
        }
        let request = Request::of(buffer);
        let slot = &mut self.slots[usize::from(request.slot())];
        // The request of an earlier group may not have been tested yet.
        if slot.request != Request::NONE {
            return self.later();
        }
        let (line, bytes) = (self.ring.line_of_buffer(buffer), source.length() as u64);
        let room = line.length();
        if bytes > room {
            return self.refuse(buffer, bytes, room);
        }
        if !GROUP && source.has_record(self.writer.adaptive_from) {
            return source.step::<WithRecord>(self, 0);
        }
        let owner = request.slot().into();
        let message = Message { source, length: bytes, line, group: buffer >> 3, owner };
        let whole = if S::IS_WHOLE { self.limit } else { self.writer.whole };
        let shares = if bytes <= whole {
            self.writer.write::<GROUP>(message)
        } else if bytes <= self.limit {
            S::cut::<GROUP>(&mut self.writer, &{ message })
        } else {
            return self.refuse(buffer, bytes, room);
        };
        if shares == 0 {
            return self.later();
        }
        slot.fill(request, shares, source.length(), source.region());
        if !GROUP {
            self.next = buffer.wrapping_add(8);
            return request;
        }
        self.ring.store_size(buffer, bytes);
        if IN_ORDER {
            self.next = buffer.wrapping_add(1);
            self.label = self.label.wrapping_add(NEXT_MEMBER);
            self.left = self.left.wrapping_sub(1);
            return if self.left == 0 { self.end_group(buffer, false) } else { request };
        }
        self.take(buffer, false);
        request
    }

    /// Begins a group. Returns whether it has several buffers: a single one has no state.
    #[inline(always)]
    fn begin(&mut self) -> bool {
        let Some(Label { count, .. }) = self.ring.line_of_buffer(self.next).label(0) else {
            return self.malformed();
        };
        if count > 1 {
            (self.left, self.count) = (count, count);
            self.label = Label { tag: 0, count }.to_word(0);
            self.peer.expect();
        }
        count > 1
    }

    #[cold]
    #[inline(never)]
    fn malformed(&mut self) -> bool {
        self.error = Some(self.violated("a malformed line in the clear-to-send ring"));
        false
    }

    /// Notes that a buffer of a group has its send, which may have been refused.
    fn take(&mut self, buffer: u64, is_refused: bool) {
        let group = buffer >> 3;
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            let _ = self.end_group(buffer, is_refused);
            return;
        }
        let taken = self.taken | 1 << (buffer & 7);
        let first = self.next as u8 & 7;
        // Not all buffers have a send, so that the first one without is below 8.
        let next = first + (taken >> first).trailing_ones() as u8;
        self.taken = if taken.unbounded_shr(next.into()) == 0 { 0 } else { taken };
        self.next = group << 3 | u64::from(next & 7);
        let is_in_order = self.taken == 0;
        let label = Label { tag: 0, count: self.count }.to_word(next);
        self.label = if is_in_order { label } else { 0 };
        self.peer.expect();
    }

    /// Returns whether the record of the group can be written, which must follow all messages.
    #[inline(always)]
    fn may_end(&self) -> bool {
        self.doubts == 0 && self.writer.missing.is_empty() && self.writer.may_end()
    }

    /// Writes the record of the group of `buffer`, which has the last send. Its request is not
    /// complete before, so that the group is when all of its requests are. Returns the request.
    #[inline(never)]
    fn end_group(&mut self, buffer: u64, is_refused: bool) -> Request {
        let group = buffer >> 3;
        let owner = if is_refused { REFUSAL } else { u16::from(buffer as u8) };
        let lines = (&self.ring, &self.records);
        let shares = self.writer.end_group(lines, group, self.count, owner);
        if let Some(slot) = self.slots.get_mut(usize::from(owner)) {
            slot.pending = slot.pending.wrapping_add(shares);
        }
        (self.left, self.taken, self.label) = (0, 0, 0);
        self.next = group.wrapping_add(1) << 3;
        Request::of(buffer)
    }

    /// The result of a send that is not possible yet, unless there is an error already.
    #[cold]
    #[inline(never)]
    fn later(&mut self) -> Request {
        if self.error.is_none()
            && let Err(error) = self.not_yet()
        {
            return self.fails(error);
        }
        Request::NONE
    }

    /// The result of a send that fails.
    #[cold]
    #[inline(never)]
    fn fails(&mut self, error: Error) -> Request {
        self.error = Some(error);
        Request::NONE
    }

    /// Refuses a send. Unless it is longer than any message, the buffer is used up, and the peer
    /// learns it: from the record, or by an immediate without data if the group has no other
    /// buffer.
    #[cold]
    #[inline(never)]
    fn refuse(&mut self, buffer: u64, length: u64, room: u64) -> Request {
        if length > self.limit {
            return self.fails(Error::TooLong { length, limit: self.limit });
        }
        if self.left > 0 {
            self.ring.store_size(buffer, REFUSED);
            self.take(buffer, true);
            return self.fails(Error::Overlong { length, room });
        }
        let group = buffer >> 3;
        let immediate = Immediate { group: group as u16, is_group: false, shares: 0 };
        let nothing = DataSegment::new(0, 0, 0);
        let line = self.ring.line(group, 0);
        let posted = self.writer.queues.first_mut().is_some_and(|queues| {
            let remote = line.remote(0, queues.partner());
            queues.write_share(nothing, remote, immediate.to_bits(), REFUSAL)
        });
        if !posted {
            // Completions that make room are otherwise taken by tests only.
            self.progress(usize::MAX);
            return match self.check() {
                Ok(()) => Request::NONE,
                Err(error) => self.fails(error),
            };
        }
        self.next = group.wrapping_add(1) << 3;
        self.fails(Error::Overlong { length, room })
    }
}
