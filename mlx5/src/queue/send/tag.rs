//! Tag matching: operations on the list of a shared receive queue, and sends with a tag.
//!
//! Sources: mlx5dv.h `struct mlx5_wqe_tm_seg`, rdma-core qp.c `mlx5_post_srq_ops`; tm_types.h
//! `struct ibv_tmh`, `struct ibv_rvh`.

use barewire_layouts::tag::{MAX_RENDEZVOUS_HEADER, RendezvousHeader, TagHeader};
use barewire_layouts::wqe::{ControlFlags, DS, DataSegment, InlineHeader, Opcode, TagSegment};
use zerocopy::{IntoBytes, transmute};

use super::{MAX_SEGMENTS, MAX_SEND_INLINE, PostError, SendQueue, WqeIndex};
use crate::doorbell::Doorbell;
use crate::wqe::{Body, Inline, Segments, Sink, Unit};

/// Longest payload of an inline send with a tag, in bytes.
pub const MAX_TAGGED_INLINE: usize = MAX_SEND_INLINE - size_of::<TagHeader>();
/// Most bytes of the program in the announcement of a rendezvous.
pub const MAX_RENDEZVOUS_DATA: usize =
    MAX_RENDEZVOUS_HEADER - size_of::<TagHeader>() - size_of::<RendezvousHeader>();

/// A tag matching header as an inline segment, which pads it to two units, and the data.
#[derive(Clone, Copy, Debug)]
struct Tagged<'a> {
    header: [Unit; 2],
    data: Segments<'a>,
}

impl<'a> Tagged<'a> {
    #[inline(always)]
    fn new(header: &TagHeader, data: &'a [DataSegment]) -> Self {
        let inline = InlineHeader::new(size_of::<TagHeader>() as u32);
        let (first, four) = Unit::tagged(inline, header);
        Self { header: [first, Unit::from_low(four)], data: Segments::new(None, data) }
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

/// Operations on the list of the shared receive queue of this queue pair. Their completions are
/// written to the completion queue of the list, in the order of the operations:
/// [`Polled::tag_event`](crate::Polled::tag_event).
impl<D: Doorbell> SendQueue<D> {
    /// Appends an entry ([`TagSegment::append`]) with a buffer for messages that match, which may
    /// be empty. The device refuses WQEs whose entry is in the list: [`crate::tags`] keeps track.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline(always)]
    pub fn append_tag(
        &mut self,
        entry: &TagSegment,
        buffer: DataSegment,
    ) -> Result<WqeIndex, PostError> {
        let [first, second] = tag_units(entry);
        // The device does not read the segment of an empty buffer with an invalid key.
        let buffer = if buffer.byte_count.get() == 0 { DataSegment::END } else { buffer };
        let units = [first, second, Unit::local(&buffer)];
        self.post_block::<4>(Opcode::TagMatching, 0, ControlFlags::empty(), units)
    }

    /// Removes an entry ([`TagSegment::remove`]), or reports how many unexpected messages the
    /// caller has processed ([`TagSegment::nop`]).
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline(always)]
    pub fn change_tags(&mut self, change: &TagSegment) -> Result<WqeIndex, PostError> {
        let [first, second] = tag_units(change);
        let units = [first, second, Unit::zero()];
        self.post_block::<3>(Opcode::TagMatching, 0, ControlFlags::empty(), units)
    }
}

/// Sends to a queue pair whose receive queue matches tags.
impl<D: Doorbell> SendQueue<D> {
    /// Sends a tag matching header and up to [`MAX_TAGGED_INLINE`] bytes, which are copied to the
    /// WQE.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`].
    #[inline(always)]
    pub fn send_tagged_inline(
        &mut self,
        header: &TagHeader,
        payload: &[u8],
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        // An 8-byte payload stays in a CPU register, as in `send_inline_prefixed`.
        if let Ok(word) = payload.try_into() {
            let length = size_of::<TagHeader>() as u32 + 8;
            let (first, four) = Unit::tagged(InlineHeader::new(length), header);
            let units = [first, Unit::inline_8(transmute!(four), word), Unit::zero()];
            return self.post_block::<3>(Opcode::Send, 0, flags, units);
        }
        self.send_tagged_any(header, payload, flags)
    }

    #[inline(never)]
    fn send_tagged_any(
        &mut self,
        header: &TagHeader,
        payload: &[u8],
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        if payload.len() > MAX_TAGGED_INLINE {
            return Err(PostError::TooLong);
        }
        self.post_wqe(Opcode::Send, 0, flags, Inline::tagged(header, payload))
    }

    /// Sends a tag matching header and up to 14 segments as one message.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`] for too many segments.
    #[inline]
    pub fn send_tagged(
        &mut self,
        header: &TagHeader,
        data: &[DataSegment],
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let body = Tagged::new(header, data);
        if body.units() as usize > MAX_SEGMENTS {
            return Err(PostError::TooLong);
        }
        self.post_wqe(Opcode::Send, 0, flags, body)
    }

    /// Announces data that the peer reads: a tag matching header of kind
    /// [`Rendezvous`](barewire_layouts::tag::TagOpcode::Rendezvous), where the data is, and up to
    /// [`MAX_RENDEZVOUS_DATA`] bytes for the peer's program.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`].
    #[inline]
    pub fn send_rendezvous(
        &mut self,
        header: &TagHeader,
        data: &RendezvousHeader,
        program: &[u8],
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        const FIXED: usize = size_of::<RendezvousHeader>();
        let mut payload = [0; FIXED + MAX_RENDEZVOUS_DATA];
        payload[..FIXED].copy_from_slice(data.as_bytes());
        let length = FIXED + program.len();
        let Some(place) = payload.get_mut(FIXED..length) else { return Err(PostError::TooLong) };
        place.copy_from_slice(program);
        self.send_tagged_any(header, &payload[..length], flags)
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
