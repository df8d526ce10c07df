//! The queue pair of an endpoint, and the requests that posts write to it.

use barewire_mlx5::doorbell::{Adaptive, Doorbell};
use barewire_mlx5::queue::send::{Batch, Connected, MAX_WQE_BLOCKS};
use barewire_mlx5::request::{Nop, Read, ToPeer};
use barewire_mlx5::{ControlFlags, DataSegment, ReceiveQueue, RemoteAddressSegment, WqeIndex};

use crate::base::error::Source;
use crate::transport::mlx5::change::{Changing, Queue, fenced};
use crate::transport::mlx5::requests::{Posting, Posts, Requests, post_each};
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
        let posted = self.send.post(Read { local, remote }, ControlFlags::COMPLETION);
        posted.map(drop).map_err(|_| QueueFull)
    }

    fn nop(&mut self) -> Result<(), QueueFull> {
        self.send.post(Nop, ControlFlags::COMPLETION).map(drop).map_err(|_| QueueFull)
    }

    fn to_error(&mut self) -> Result<(), Source> {
        Ok(RcQueuePair::to_error(self)?)
    }
}

impl Posts for RcQueuePair {
    #[inline(always)]
    fn post(&mut self, request: impl ToPeer, flags: ControlFlags) -> Posting {
        self.send.post(request, flags)
    }
}

impl<D: Doorbell> Posts for Batch<'_, D> {
    #[inline(always)]
    fn post(&mut self, request: impl ToPeer, flags: ControlFlags) -> Posting {
        Batch::post(self, request, flags)
    }
}

impl Requests for RcQueuePair {
    type To = Connected;

    fn blocks(&self) -> u32 {
        self.send.blocks()
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
        post_each::<PUT>(&mut self.send.batch(), transfers, flags)
    }
}
