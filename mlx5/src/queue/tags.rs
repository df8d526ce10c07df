//! The list with which a device matches tags, from the side of software: which entry the next
//! append fills, which completions are due, and how many unexpected messages the program has
//! processed.
//!
//! - Every append names the entry that the append *after* it fills, so one entry is always
//!   reserved.
//! - An entry is filled again only after its append has completed and its message is complete, or
//!   its removal succeeded.
//! - The device counts the messages that matched nothing. While the program has processed fewer of
//!   them, entries that are appended do not match: the program may find their message among those
//!   that it receives. Every operation reports how many the program has processed.
//!
//! Sources: rdma-core srq.c, cq.c (`handle_tag_matching`), UCX rc_mlx5.inl
//! (`uct_rc_mlx5_iface_common_tag_recv`).

use core::fmt;

use barewire_layouts::cqe::{CqeOpcode, TagEvent, TagListResult};
use barewire_layouts::tag::TagHeader;
use barewire_layouts::wqe::{ControlFlags, DataSegment, TagFlags, TagSegment};

use super::completion::Polled;
use super::send::{PostError, SendQueue};
use crate::doorbell::{BlueFlame, Doorbell};
use crate::request::{AppendTag, ChangeTags};

/// After so many unexpected messages, the list reports their number to the device even if no entry
/// waits for it, so that counters modulo 2^16 stay comparable (UCX: every 2^14).
const REPORT: u16 = 1 << 14;
/// No entry.
const NONE: u16 = u16::MAX;

/// What a completion of a list reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TagReport {
    /// The entry is in the list.
    Appended(u16),
    /// The entry was removed: its buffer belongs to the caller again.
    Removed(u16),
    /// The entry could not be removed, because a message has matched it.
    NotRemoved(u16),
    /// The device knows how many unexpected messages the program had processed.
    Synchronized,
    /// A message matched the entry. Another report of the entry follows when it has ended.
    Matched {
        /// The entry.
        entry: u16,
        /// The header of the message.
        header: TagHeader,
    },
    /// The data of the message is in the buffer of the entry.
    Arrived {
        /// The entry.
        entry: u16,
        /// The header of the message, unless [`TagReport::Matched`] had it.
        header: Option<TagHeader>,
        /// Bytes.
        length: u32,
        /// The immediate of the message, if it has one.
        immediate: Option<u32>,
    },
    /// A rendezvous message matched, whose data the program has to read: what follows the header of
    /// the message is in the buffer of the entry.
    Announced {
        /// The entry.
        entry: u16,
        /// The header of the message, unless [`TagReport::Matched`] had it.
        header: TagHeader,
        /// Bytes in the buffer.
        length: u32,
    },
    /// The data of a message that matched does not arrive.
    Cancelled {
        /// The entry.
        entry: u16,
        /// The header of the message.
        header: TagHeader,
    },
    /// A message is in a receive WQE, with its header, because its tag matches nothing.
    Unexpected(Plain),
    /// A message without a tag, or the end of a rendezvous, is in a receive WQE.
    Untagged(Plain),
}

/// A message in a receive WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plain {
    /// The WQE, for `SharedReceiveQueue::release`.
    pub wqe: u16,
    /// Bytes, with those of the header.
    pub length: u32,
    /// The immediate, if there is one.
    pub immediate: Option<u32>,
}

/// An entry.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// The next of the free entries.
    next: u16,
    /// Completions that are due before it is free.
    due: u8,
    /// Its removal is under way.
    removing: bool,
}

/// An operation under way.
#[derive(Clone, Copy, Debug, Default)]
struct Operation {
    entry: u16,
    /// Unexpected messages that it reported as processed.
    processed: u16,
}

/// The list of a shared receive queue with tag matching.
pub struct TagList<D: Doorbell = BlueFlame> {
    send: SendQueue<D>,
    entries: Box<[Entry]>,
    /// By position in the ring, whose size is a power of two.
    operations: Box<[Operation]>,
    /// The entry that the next append fills.
    next: u16,
    /// The first of the other free entries.
    free: u16,
    /// Operations that have completed, modulo 2^16.
    completed: u16,
    /// Unexpected messages that the program has processed, modulo 2^16.
    processed: u16,
    /// Those that the last operation reported.
    reported: u16,
    /// Entries may wait for a report.
    inactive: bool,
}

impl<D: Doorbell> fmt::Debug for TagList<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TagList")
            .field("capacity", &self.capacity())
            .field("next", &self.next)
            .field("processed", &self.processed)
            .field("reported", &self.reported)
            .field("inactive", &self.inactive)
            .finish_non_exhaustive()
    }
}

impl<D: Doorbell> TagList<D> {
    /// A list of `entries` entries, a power of two from 2 to 2^15, which operations of `send`
    /// change. Nothing else posts to `send`, which requests no completions
    /// ([`UNMODERATED`](super::send::UNMODERATED)).
    pub fn new(send: SendQueue<D>, entries: u32) -> Self {
        debug_assert!(entries.is_power_of_two() && (2..=1 << 15).contains(&entries));
        let last = entries as u16 - 1;
        let link =
            |at: u16| Entry { next: if at == last { NONE } else { at + 1 }, ..Entry::default() };
        let operations = vec![Operation::default(); send.blocks() as usize];
        Self {
            send,
            entries: (0..=last).map(link).collect(),
            operations: operations.into(),
            next: 0,
            free: 1,
            completed: 0,
            processed: 0,
            reported: 0,
            inactive: false,
        }
    }

    /// Appends an entry for messages whose tag is equal to `tag` in the bits of `mask`. Their data
    /// is written to `buffer`, which may be empty. Returns the index of the entry.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], also if the list is full.
    #[inline(always)]
    pub fn append(&mut self, tag: u64, mask: u64, buffer: DataSegment) -> Result<u16, PostError> {
        let (index, next) = (self.next, self.free);
        let Some(after) = self.entries.get(usize::from(next)) else {
            return Err(PostError::QueueFull);
        };
        let free = after.next;
        // The device compares the tag with the masked one of the message.
        let segment = TagSegment::append(next, tag & mask, mask, TagFlags::COMPLETION)
            .with_software_count(self.processed);
        let wqe = self.send.post(AppendTag { entry: &segment, buffer }, ControlFlags::empty())?;
        self.note(wqe.0, index);
        (self.next, self.free) = (next, free);
        if let Some(entry) = self.entries.get_mut(usize::from(index)) {
            entry.due = 2;
        }
        Ok(index)
    }

    /// Requests the removal of an entry: [`TagReport::Removed`], or [`TagReport::NotRemoved`] if a
    /// message matched it before. Returns `false`, without effect, if the entry is free or its
    /// removal has been requested.
    #[inline(always)]
    pub fn remove(&mut self, index: u16) -> Result<bool, PostError> {
        let Some(entry) = self.entries.get_mut(usize::from(index)) else { return Ok(false) };
        if entry.due == 0 || entry.removing {
            return Ok(false);
        }
        let segment =
            TagSegment::remove(index, TagFlags::COMPLETION).with_software_count(self.processed);
        let wqe = self.send.post(ChangeTags(&segment), ControlFlags::empty())?;
        (entry.due, entry.removing) = (entry.due + 1, true);
        self.note(wqe.0, index);
        Ok(true)
    }

    /// Reports to the device how many unexpected messages the program has processed, so that
    /// entries appended in the meantime match: [`TagReport::Synchronized`].
    pub fn synchronize(&mut self) -> Result<(), PostError> {
        let segment = TagSegment::nop(TagFlags::COMPLETION).with_software_count(self.processed);
        let wqe = self.send.post(ChangeTags(&segment), ControlFlags::empty())?;
        self.note(wqe.0, NONE);
        Ok(())
    }

    /// Whether entries may wait for [`Self::synchronize`]. Test it after the completions at hand
    /// were processed.
    #[inline]
    pub fn is_behind(&self) -> bool {
        let unreported = self.processed.wrapping_sub(self.reported);
        self.inactive && unreported != 0 || unreported >= REPORT
    }

    /// Takes note of a completion of the list's completion queue, and returns what it reports;
    /// `None` for a completion that the list has nothing to do with, as of an error.
    ///
    /// An unexpected message counts as processed from here on: match it with the receives that are
    /// not in the list, and those that are, before the next operation.
    #[inline]
    pub fn completed(&mut self, polled: Polled<'_>) -> Option<TagReport> {
        let (event, index) = (polled.tag_event()?, polled.tag_entry());
        let length = polled.byte_count();
        let has_immediate = polled.opcode() == CqeOpcode::ResponderSendImmediate as u8;
        let immediate = has_immediate.then(|| polled.immediate());
        let plain = || Plain { wqe: polled.wqe_counter(), length, immediate };
        Some(match event {
            TagEvent::Append => self.appended(polled.tag_result()),
            TagEvent::Remove => self.removed(polled.tag_result()),
            TagEvent::Nop => {
                self.finish_operation(polled.tag_result());
                TagReport::Synchronized
            }
            TagEvent::Consumed | TagEvent::ConsumedSoftware => {
                TagReport::Matched { entry: index, header: polled.tag_header() }
            }
            TagEvent::Expected => {
                self.settle(index, 1);
                TagReport::Arrived { entry: index, header: None, length, immediate }
            }
            TagEvent::ConsumedMessage => {
                self.settle(index, 1);
                let header = Some(polled.tag_header());
                TagReport::Arrived { entry: index, header, length, immediate }
            }
            TagEvent::ConsumedMessageSoftware => {
                self.settle(index, 1);
                TagReport::Announced { entry: index, header: polled.tag_header(), length }
            }
            TagEvent::Cancelled => {
                self.settle(index, 1);
                TagReport::Cancelled { entry: index, header: polled.tag_header() }
            }
            TagEvent::Unexpected => {
                self.processed = self.processed.wrapping_add(1);
                TagReport::Unexpected(plain())
            }
            TagEvent::NoTag => TagReport::Untagged(plain()),
        })
    }

    fn appended(&mut self, result: TagListResult) -> TagReport {
        let operation = self.finish_operation(result);
        if operation.processed != result.hardware_count.get() {
            self.inactive = true;
        }
        self.settle(operation.entry, 1);
        TagReport::Appended(operation.entry)
    }

    fn removed(&mut self, result: TagListResult) -> TagReport {
        let Operation { entry: index, .. } = self.finish_operation(result);
        let removed = result.success.get() & TagListResult::SUCCESS != 0;
        if let Some(entry) = self.entries.get_mut(usize::from(index)) {
            entry.removing = false;
        }
        // If it succeeds, no message completes the entry.
        self.settle(index, if removed { 2 } else { 1 });
        if removed { TagReport::Removed(index) } else { TagReport::NotRemoved(index) }
    }

    /// Notes the operation that was posted as `wqe`.
    #[inline(always)]
    fn note(&mut self, wqe: u16, entry: u16) {
        let at = usize::from(wqe) & (self.operations.len() - 1);
        if let Some(operation) = self.operations.get_mut(at) {
            *operation = Operation { entry, processed: self.processed };
        }
        self.reported = self.processed;
    }

    /// Returns the oldest operation under way, which has ended, and frees its WQE: operations
    /// complete in order.
    fn finish_operation(&mut self, result: TagListResult) -> Operation {
        let at = usize::from(self.completed) & (self.operations.len() - 1);
        let operation = self.operations.get(at).copied().unwrap_or_default();
        self.send.reap(self.completed);
        self.completed = self.completed.wrapping_add(1);
        // The device has made all entries before this operation match, if it knew all messages.
        self.inactive &= operation.processed != result.hardware_count.get();
        operation
    }

    /// Counts `count` completions of an entry, and frees it if no more are due.
    #[inline]
    fn settle(&mut self, index: u16, count: u8) {
        let free = self.free;
        let Some(entry) = self.entries.get_mut(usize::from(index)) else { return };
        if entry.due == 0 {
            return;
        }
        entry.due = entry.due.saturating_sub(count);
        if entry.due == 0 {
            entry.next = free;
            self.free = index;
        }
    }

    /// Whether an entry is in the list or a completion of it is due.
    #[inline]
    pub fn is_used(&self, index: u16) -> bool {
        self.entries.get(usize::from(index)).is_some_and(|entry| entry.due > 0)
    }

    /// The entry that the next append fills.
    #[inline]
    pub fn next(&self) -> u16 {
        self.next
    }

    /// Entries that the list has room for.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.entries.len() as u32 - 1
    }

    /// Number of the queue pair whose operations change the list.
    #[inline]
    pub fn number(&self) -> u32 {
        self.send.qpn()
    }

    /// Unexpected messages that the program has processed, modulo 2^16.
    #[inline]
    pub fn processed(&self) -> u16 {
        self.processed
    }
}
