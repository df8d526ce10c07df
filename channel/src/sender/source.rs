//! Where a message comes from: a region, or the WQE itself.

use barewire_mlx5::RemoteAddressSegment;

use super::Sender;
use super::post::Step;
use super::writer::{Message, Writer};
use crate::error::Error;
use crate::queues::{MAX_INLINE, Queues};
use crate::rails::Rails;
use crate::region::Region;
use crate::request::Request;

/// The bytes of a message.
pub(super) trait Source: Copy {
    /// Whether one rail carries the message, whatever its length.
    const IS_WHOLE: bool;

    /// Length in bytes.
    fn length(self) -> usize;

    /// Fails if a sender of these rails cannot send it.
    fn admit(self, rails: &Rails) -> Result<(), Error>;

    /// The region that has to stay registered until the message is acknowledged.
    fn region(self) -> Option<Region>;

    /// Sends to a group of several that has begun: see [`Sender::post_to_group`].
    fn post_to_group(self, sender: &mut Sender, tag: u32) -> Request;

    /// Continues with another step, to which the parts are passed in registers.
    fn step<S: Step>(self, sender: &mut Sender, tag: u32) -> Request;

    /// Writes the share of `bytes` bytes at `start`. Returns `false` if there is no room.
    fn write(
        self,
        queues: &mut Queues,
        share: (u64, u64),
        remote: RemoteAddressSegment,
        immediate: Option<u32>,
        owner: u16,
    ) -> bool;

    /// Returns whether the message is written with a record if it is not shorter than `least`.
    fn has_record(self, least: u64) -> bool;

    /// Writes a message over several rails. Returns the number of shares, or 0 if a queue has no
    /// room.
    fn cut<const GROUP: bool>(writer: &mut Writer, message: &Message<'_, Self>) -> u8;
}

/// A part of a region.
#[derive(Clone, Copy)]
pub(super) struct InRegion<'r> {
    pub(super) region: &'r Region,
    pub(super) offset: usize,
    pub(super) length: usize,
}

impl Source for InRegion<'_> {
    const IS_WHOLE: bool = false;

    #[inline(always)]
    fn length(self) -> usize {
        self.length
    }

    #[inline(always)]
    fn admit(self, rails: &Rails) -> Result<(), Error> {
        self.region.admit(rails, self.offset, self.length)
    }

    #[inline(always)]
    fn region(self) -> Option<Region> {
        Some(self.region.clone())
    }

    #[inline(always)]
    fn post_to_group(self, sender: &mut Sender, tag: u32) -> Request {
        sender.post_to_group(self.region, self.offset, self.length, tag)
    }

    #[inline(always)]
    fn step<S: Step>(self, sender: &mut Sender, tag: u32) -> Request {
        #[inline(never)]
        fn post<S: Step>(
            sender: &mut Sender,
            region: &Region,
            offset: usize,
            length: usize,
            tag: u32,
        ) -> Request {
            S::post(sender, InRegion { region, offset, length }, tag)
        }
        post::<S>(sender, self.region, self.offset, self.length, tag)
    }

    #[inline(always)]
    fn write(
        self,
        queues: &mut Queues,
        (start, bytes): (u64, u64),
        remote: RemoteAddressSegment,
        immediate: Option<u32>,
        owner: u16,
    ) -> bool {
        let local = self.region.segment(self.offset as u64 + start, bytes, queues.rail());
        match immediate {
            Some(immediate) => queues.write_share(local, remote, immediate, owner),
            None => queues.write_plain(local, remote, owner),
        }
    }

    #[inline(always)]
    fn has_record(self, least: u64) -> bool {
        self.length as u64 >= least
    }

    #[inline(always)]
    fn cut<const GROUP: bool>(writer: &mut Writer, message: &Message<'_, Self>) -> u8 {
        writer.cut::<GROUP>(message)
    }
}

/// Bytes that are copied to the WQE, so that they need no memory key.
#[derive(Clone, Copy)]
pub(super) struct Inline<'b>(pub(super) &'b [u8]);

impl Source for Inline<'_> {
    const IS_WHOLE: bool = true;

    #[inline(always)]
    fn length(self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    fn admit(self, _rails: &Rails) -> Result<(), Error> {
        match self.0.len() {
            0..=MAX_INLINE => Ok(()),
            length => Err(Error::TooLong { length: length as u64, limit: MAX_INLINE as u64 }),
        }
    }

    #[inline(always)]
    fn region(self) -> Option<Region> {
        None
    }

    #[inline(always)]
    fn post_to_group(self, sender: &mut Sender, tag: u32) -> Request {
        sender.post_inline_to_group(self.0, tag)
    }

    #[inline(never)]
    fn step<S: Step>(self, sender: &mut Sender, tag: u32) -> Request {
        S::post(sender, self, tag)
    }

    /// The share is the whole message.
    #[inline(always)]
    fn write(
        self,
        queues: &mut Queues,
        _share: (u64, u64),
        remote: RemoteAddressSegment,
        immediate: Option<u32>,
        owner: u16,
    ) -> bool {
        queues.write_inline(self.0, remote, immediate, owner)
    }

    /// It is a single packet, which takes one path.
    #[inline(always)]
    fn has_record(self, _least: u64) -> bool {
        false
    }

    #[inline(always)]
    fn cut<const GROUP: bool>(writer: &mut Writer, message: &Message<'_, Self>) -> u8 {
        writer.write::<GROUP>(*message)
    }
}
