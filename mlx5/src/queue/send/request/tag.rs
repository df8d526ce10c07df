//! Tag matching: operations on the list of a shared receive queue, and sends with a tag.
//!
//! Sources: mlx5dv.h `struct mlx5_wqe_tm_seg`, rdma-core qp.c `mlx5_post_srq_ops`; tm_types.h
//! `struct ibv_tmh`, `struct ibv_rvh`.

use barewire_layouts::tag::{MAX_RENDEZVOUS_HEADER, RendezvousHeader, TagHeader};
use barewire_layouts::wqe::{ControlFlags, DS, DataSegment, InlineHeader, Opcode, TagSegment};
use zerocopy::{IntoBytes, transmute};

use super::super::{Destination, Directed, MAX_SEGMENTS, MAX_SEND_INLINE, PostError, SendQueue};
use super::{Head, Inline, Posting, Segments, ToPeer, sealed};
use crate::doorbell::Doorbell;
use crate::wqe::{self, Body, Sink, Unit};

/// Longest payload of an inline send with a tag, in bytes.
pub const MAX_TAGGED_INLINE: usize = MAX_SEND_INLINE - size_of::<TagHeader>();
/// Most bytes of the program in the announcement of a rendezvous.
pub const MAX_RENDEZVOUS_DATA: usize =
    MAX_RENDEZVOUS_HEADER - size_of::<TagHeader>() - size_of::<RendezvousHeader>();

/// Appends an entry to the list of the shared receive queue of this queue pair. The device refuses
/// WQEs whose entry is in the list: [`crate::tags`] keeps track.
///
/// The completions of operations on the list are written to its completion queue, in the order of
/// the operations: [`Polled::tag_event`](crate::Polled::tag_event).
#[derive(Clone, Copy, Debug)]
pub struct AppendTag<'a> {
    /// The entry: [`TagSegment::append`].
    pub entry: &'a TagSegment,
    /// The buffer for messages that match, which may be empty.
    pub buffer: DataSegment,
}

/// Removes an entry of the list ([`TagSegment::remove`]), or reports how many unexpected messages
/// the caller has processed ([`TagSegment::nop`]).
#[derive(Clone, Copy, Debug)]
pub struct ChangeTags<'a>(
    /// The change.
    pub &'a TagSegment,
);

/// Sends a tag matching header and a payload to a queue pair whose receive queue matches tags:
/// [`Inline`] with up to [`MAX_TAGGED_INLINE`] bytes, or up to 14 [`Segments`].
#[derive(Clone, Copy, Debug)]
pub struct SendTagged<'a, P> {
    /// The header.
    pub header: &'a TagHeader,
    /// What follows it.
    pub payload: P,
}

/// Announces data that the peer reads.
#[derive(Clone, Copy, Debug)]
pub struct SendRendezvous<'a> {
    /// A header of kind [`Rendezvous`](barewire_layouts::tag::TagOpcode::Rendezvous).
    pub header: &'a TagHeader,
    /// Where the data is.
    pub data: &'a RendezvousHeader,
    /// Up to [`MAX_RENDEZVOUS_DATA`] bytes for the peer's program.
    pub program: &'a [u8],
}

impl sealed::Request for AppendTag<'_> {
    #[inline(always)]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        flags: ControlFlags,
    ) -> Posting {
        let Self { entry, buffer } = self;
        let [first, second] = tag_units(entry);
        // The device does not read the segment of an empty buffer with an invalid key.
        let buffer = if buffer.byte_count.get() == 0 { DataSegment::END } else { buffer };
        let units = [first, second, Unit::local(&buffer)];
        to.post_units(Head::of(Opcode::TagMatching), flags, None, units)
    }
}

impl sealed::Request for ChangeTags<'_> {
    #[inline(always)]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        flags: ControlFlags,
    ) -> Posting {
        to.post_units(Head::of(Opcode::TagMatching), flags, None, tag_units(self.0))
    }
}

impl sealed::Request for SendTagged<'_, Inline<'_>> {
    #[inline(always)]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        flags: ControlFlags,
    ) -> Posting {
        let Self { header, payload: Inline(payload) } = self;
        // An 8-byte payload stays in a CPU register, as of `Inline`.
        if let Ok(word) = payload.try_into() {
            let length = size_of::<TagHeader>() as u32 + 8;
            let (first, four) = Unit::tagged(InlineHeader::new(length), header);
            let units = [first, Unit::inline_8(transmute!(four), word)];
            return to.post_units(Head::of(Opcode::Send), flags, None, units);
        }
        send_tagged(to.queue, *to.destination, header, payload, flags)
    }
}

#[inline(never)]
fn send_tagged<A: Destination, D: Doorbell>(
    queue: &mut SendQueue<D>,
    destination: A,
    header: &TagHeader,
    payload: &[u8],
    flags: ControlFlags,
) -> Posting {
    if payload.len() > A::MAX_INLINE - size_of::<TagHeader>() {
        return Err(PostError::TooLong);
    }
    let body = wqe::Inline::tagged(header, payload);
    queue.towards(&destination).post_body(Head::of(Opcode::Send), flags, body)
}

impl sealed::Request for SendTagged<'_, Segments<'_>> {
    #[inline(always)]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        flags: ControlFlags,
    ) -> Posting {
        let body = Tagged::new(self.header, self.payload.0);
        if body.units() as usize > MAX_SEGMENTS {
            return Err(PostError::TooLong);
        }
        to.post_body(Head::of(Opcode::Send), flags, body)
    }
}

impl sealed::Request for SendRendezvous<'_> {
    #[inline]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        flags: ControlFlags,
    ) -> Posting {
        const FIXED: usize = size_of::<RendezvousHeader>();
        let Self { header, data, program } = self;
        let mut payload = [0; FIXED + MAX_RENDEZVOUS_DATA];
        payload[..FIXED].copy_from_slice(data.as_bytes());
        let length = FIXED + program.len();
        let Some(place) = payload.get_mut(FIXED..length) else { return Err(PostError::TooLong) };
        place.copy_from_slice(program);
        send_tagged(to.queue, *to.destination, header, &payload[..length], flags)
    }
}

impl ToPeer for SendTagged<'_, Inline<'_>> {}
impl ToPeer for SendTagged<'_, Segments<'_>> {}
impl ToPeer for SendRendezvous<'_> {}

/// A tag matching header as an inline segment, which pads it to two units, and the data.
#[derive(Clone, Copy, Debug)]
struct Tagged<'a> {
    header: [Unit; 2],
    data: wqe::Segments<'a>,
}

impl<'a> Tagged<'a> {
    #[inline(always)]
    fn new(header: &TagHeader, data: &'a [DataSegment]) -> Self {
        let inline = InlineHeader::new(size_of::<TagHeader>() as u32);
        let (first, four) = Unit::tagged(inline, header);
        Self { header: [first, Unit::from_low(four)], data: wqe::Segments::new(None, data) }
    }
}

impl Body for Tagged<'_> {
    #[inline(always)]
    fn units(&self) -> u32 {
        self.header.len() as u32 + self.data.units()
    }

    #[inline(always)]
    fn emit(&self, sink: &mut impl Sink) {
        for unit in self.header {
            sink.unit(unit);
        }
        self.data.emit(sink);
    }
}

/// The units of a tag matching segment.
#[inline(always)]
fn tag_units(segment: &TagSegment) -> [Unit; 2] {
    let [first, second, tag, mask]: [u64; 4] = transmute!(*segment);
    [Unit::from_words(first, second), Unit::from_words(tag, mask)]
}

const _: () =
    assert!(MAX_RENDEZVOUS_DATA == 32 && MAX_TAGGED_INLINE + 2 * DS <= MAX_SEND_INLINE + DS);
