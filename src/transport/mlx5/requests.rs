//! The requests that posts write to a queue, so that the posts are compiled for each kind of queue:
//! that of an endpoint of `rc_mlx5`, and that of [`xrc_mlx5`](crate::transport::xrc_mlx5), which
//! several endpoints share.

use barewire_mlx5 as mlx5;
use barewire_mlx5::queue::send::{MaskedAdd, MaskedSwap, PREFIX};
use barewire_mlx5::{ControlFlags, DataSegment, RemoteAddressSegment, WqeIndex};

use super::change::{Changing, Queue};
use crate::transport::rc;

/// The result of a posting function.
pub(in crate::transport) type Posting = Result<WqeIndex, mlx5::PostError>;

/// A queue to which posts write requests. The functions are those of
/// [`SendQueue`](barewire_mlx5::SendQueue).
pub(crate) trait Requests: rc::Queue<Segment = DataSegment> {
    /// Longest payload of an inline send, in bytes.
    const MAX_SEND_INLINE: usize;
    /// Longest payload of an inline write, in bytes.
    const MAX_WRITE_INLINE: usize;
    /// Most segments of a send.
    const MAX_SEND_SEGMENTS: usize;
    /// Most segments of a write or read.
    const MAX_RDMA_SEGMENTS: usize;

    /// Blocks of the ring.
    fn blocks(&self) -> u32;

    fn send_inline_prefixed_8(
        &mut self,
        prefix: [u8; PREFIX],
        payload: [u8; 8],
        flags: ControlFlags,
    ) -> Posting;
    fn send_inline_prefixed(
        &mut self,
        prefix: [u8; PREFIX],
        payload: &[u8],
        flags: ControlFlags,
    ) -> Posting;
    fn send(&mut self, local: DataSegment, flags: ControlFlags) -> Posting;
    fn send_pair(
        &mut self,
        header: DataSegment,
        local: DataSegment,
        flags: ControlFlags,
    ) -> Posting;
    fn send_gather(&mut self, local: &[DataSegment], flags: ControlFlags) -> Posting;
    fn write_inline_8(
        &mut self,
        payload: [u8; 8],
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Posting;
    fn write_inline_64(
        &mut self,
        line: &[u8; 64],
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Posting;
    fn write_inline(
        &mut self,
        payload: &[u8],
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Posting;
    fn write(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Posting;
    fn write_gather(
        &mut self,
        local: &[DataSegment],
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Posting;
    fn read(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Posting;
    fn read_scatter(
        &mut self,
        local: &[DataSegment],
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Posting;
    fn fetch_add(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        operand: u64,
        flags: ControlFlags,
    ) -> Posting;
    fn compare_swap(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        compare: u64,
        swap: u64,
        flags: ControlFlags,
    ) -> Posting;
    fn masked_compare_swap_32(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        operands: MaskedSwap<u32>,
        flags: ControlFlags,
    ) -> Posting;
    fn masked_compare_swap_64(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        operands: MaskedSwap<u64>,
        flags: ControlFlags,
    ) -> Posting;
    fn masked_fetch_add_32(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        operands: MaskedAdd<u32>,
        flags: ControlFlags,
    ) -> Posting;
    fn masked_fetch_add_64(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        operands: MaskedAdd<u64>,
        flags: ControlFlags,
    ) -> Posting;

    /// Posts a change of a key by `run`, for which the next post waits.
    fn change_key(&mut self, run: impl FnOnce(&mut Queue) -> Changing) -> Changing;

    /// Posts a write (`PUT`) or a read of each transfer with one doorbell. The last one has `flags`.
    /// The caller has checked the room.
    fn post_list<const PUT: bool>(
        &mut self,
        transfers: impl ExactSizeIterator<Item = (DataSegment, RemoteAddressSegment)>,
        flags: ControlFlags,
    ) -> Posting;
}
