//! The queue pair of an endpoint, and the requests that posts write to it.

use barewire_mlx5::doorbell::Adaptive;
use barewire_mlx5::queue::send::{
    MAX_RDMA_SEGMENTS, MAX_SEND_INLINE, MAX_SEND_SEGMENTS, MAX_WQE_BLOCKS, MAX_WRITE_INLINE,
    MaskedAdd, MaskedSwap, PREFIX,
};
use barewire_mlx5::{ControlFlags, DataSegment, ReceiveQueue, RemoteAddressSegment, WqeIndex};

use crate::base::error::Source;
use crate::transport::mlx5::change::{Changing, Queue, fenced};
use crate::transport::mlx5::requests::{Posting, Requests};
use crate::transport::rc::{self, QueueFull};

/// A queue pair whose doorbell suits the UAR page, with or without a receive ring.
pub(crate) type RcQueuePair = barewire_mlx5::RcQueuePair<Adaptive, Option<ReceiveQueue>>;

impl rc::Queue for RcQueuePair {
    type Segment = DataSegment;
    const LARGEST_POST: u32 = MAX_WQE_BLOCKS;
    const HAS_NOP: bool = true;

    #[inline(always)]
    fn segment(address: u64, length: u32, key: u32) -> DataSegment {
        DataSegment::new(address, length, key)
    }

    #[inline(always)]
    fn room(&self) -> u32 {
        self.send.room()
    }

    #[inline]
    fn posted(&self) -> u64 {
        self.send.posted()
    }

    #[inline]
    fn operations(&self) -> Option<u64> {
        Some(self.send.wqes())
    }

    #[inline]
    fn last(&self) -> u16 {
        self.send.last_index().map_or(0, |WqeIndex(index)| index)
    }

    #[inline]
    fn is_idle(&self) -> bool {
        self.send.is_idle()
    }

    fn last_is_signaled(&self) -> bool {
        self.send.last_is_signaled()
    }

    #[inline]
    fn is_done(&self, index: u16) -> bool {
        self.send.is_done(WqeIndex(index))
    }

    #[inline]
    fn request_completion(&mut self) {
        self.send.request_completion();
    }

    fn fence(&mut self) {
        self.send.fence();
    }

    fn most_outstanding(&self) -> u32 {
        self.send.most_outstanding()
    }

    fn limit_outstanding(&mut self, most: u32) -> u32 {
        self.send.limit_outstanding(most)
    }

    #[inline(always)]
    fn reap(&mut self, index: u16) {
        self.send.reap(index);
    }

    fn read_word(&mut self, local: DataSegment, remote: u64, key: u32) -> Result<(), QueueFull> {
        let remote = RemoteAddressSegment::new(remote, key);
        self.send.read(local, remote, ControlFlags::COMPLETION).map(drop).map_err(|_| QueueFull)
    }

    fn nop(&mut self) -> Result<(), QueueFull> {
        self.send.nop(ControlFlags::COMPLETION).map(drop).map_err(|_| QueueFull)
    }

    fn to_error(&mut self) -> Result<(), Source> {
        Ok(RcQueuePair::to_error(self)?)
    }
}

/// `forward!(self => queue; name(argument: type, ...) ...)`: the functions of [`Requests`] by those
/// of the same names of `queue`.
macro_rules! forward {
    ($this:ident => $queue:expr; $($name:ident($($argument:ident: $type:ty),*))+) => {$(
        #[inline(always)]
        fn $name(&mut $this, $($argument: $type,)* flags: ControlFlags) -> Posting {
            $queue.$name($($argument,)* flags)
        }
    )+};
}

impl Requests for RcQueuePair {
    const MAX_SEND_INLINE: usize = MAX_SEND_INLINE;
    const MAX_WRITE_INLINE: usize = MAX_WRITE_INLINE;
    const MAX_SEND_SEGMENTS: usize = MAX_SEND_SEGMENTS;
    const MAX_RDMA_SEGMENTS: usize = MAX_RDMA_SEGMENTS;

    fn blocks(&self) -> u32 {
        self.send.blocks()
    }

    forward! { self => self.send;
        send_inline_prefixed_8(prefix: [u8; PREFIX], payload: [u8; 8])
        send_inline_prefixed(prefix: [u8; PREFIX], payload: &[u8])
        send(local: DataSegment)
        send_pair(header: DataSegment, local: DataSegment)
        send_gather(local: &[DataSegment])
        write_inline_8(payload: [u8; 8], remote: RemoteAddressSegment)
        write_inline_64(line: &[u8; 64], remote: RemoteAddressSegment)
        write_inline(payload: &[u8], remote: RemoteAddressSegment)
        write(local: DataSegment, remote: RemoteAddressSegment)
        write_gather(local: &[DataSegment], remote: RemoteAddressSegment)
        read(local: DataSegment, remote: RemoteAddressSegment)
        read_scatter(local: &[DataSegment], remote: RemoteAddressSegment)
        fetch_add(local: DataSegment, remote: RemoteAddressSegment, operand: u64)
        compare_swap(local: DataSegment, remote: RemoteAddressSegment, compare: u64, swap: u64)
        masked_compare_swap_32(local: DataSegment, remote: RemoteAddressSegment, operands: MaskedSwap<u32>)
        masked_compare_swap_64(local: DataSegment, remote: RemoteAddressSegment, operands: MaskedSwap<u64>)
        masked_fetch_add_32(local: DataSegment, remote: RemoteAddressSegment, operands: MaskedAdd<u32>)
        masked_fetch_add_64(local: DataSegment, remote: RemoteAddressSegment, operands: MaskedAdd<u64>)
    }

    #[inline]
    fn change_key(&mut self, run: impl FnOnce(&mut Queue) -> Changing) -> Changing {
        fenced(&mut self.send, run)
    }

    #[inline(always)]
    fn post_list<const PUT: bool>(
        &mut self,
        transfers: impl ExactSizeIterator<Item = (DataSegment, RemoteAddressSegment)>,
        flags: ControlFlags,
    ) -> Posting {
        let mut batch = self.send.batch();
        let last = transfers.len().wrapping_sub(1);
        let mut posted = Ok(WqeIndex(0));
        for (at, (local, remote)) in transfers.enumerate() {
            let flags = if at == last { flags } else { ControlFlags::empty() };
            posted = if PUT {
                batch.write(local, remote, flags)
            } else {
                batch.read(local, remote, flags)
            };
            posted?;
        }
        posted
    }
}
