//! A shared receive queue whose WQEs have strides: many packets share a buffer.
//!
//! Each WQE has one buffer, cut into 8 or 16 strides of the same size. A packet of a message takes
//! the next stride, on whichever queue pair it arrives, and each packet has one completion. A long
//! message takes as many strides as it has packets, and these may be in several buffers. A WQE is
//! posted again once the device has taken every stride and the caller has released every packet.
//!
//! Sources: UCX `uct_rc_mlx5_devx_init_rx_common`, `uct_rc_mlx5_iface_tm_common_data`,
//! `uct_rc_mlx5_iface_release_srq_seg`; PRM: WQ context, log_wqe_num_of_strides.

use core::fmt;
use core::hint::cold_path;
use core::num::NonZeroU32;

use barewire_layouts::command::strides::Strides;
use barewire_layouts::cqe::StrideCount;
use barewire_layouts::wqe::DataSegment;

use super::super::receive::write_scatter;
use super::{List, SharedReceiveQueue};
use crate::queue::completion::Polled;

/// Most strides of a WQE: one bit each. A longer WQE exceeds what devices fetch.
pub(crate) const MOST_STRIDES: u32 = u16::BITS;

/// A shared receive queue whose WQEs have strides, each with a buffer that it keeps.
///
/// Give it buffers by [`Self::fill`]; then call [`Self::take`] for each completion of a message,
/// [`Self::release`] when the packet has been processed, [`Self::fail`] for each receive error, and
/// [`Self::publish`] after one of these returned `true`.
///
/// The completion queue of its queue pairs needs room for a CQE per stride.
pub struct StridingReceiveQueue {
    queue: SharedReceiveQueue<List>,
    strides: Strides,
    uses: Box<[Use]>,
}

/// The strides of a WQE.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    /// A bit for each stride that has no completion yet ([`Self::OPEN`]), and [`MOST_STRIDES`] above
    /// it, one that is set while the stride holds a packet. If all are clear, the WQE is free.
    strides: u32,
    /// How many of the open strides errors took, which do not name them; less than all.
    failed: u32,
}

impl Use {
    /// The bits of open strides.
    const OPEN: u32 = (1 << MOST_STRIDES) - 1;

    /// A WQE of `count` strides, at most [`MOST_STRIDES`], that the device has.
    fn posted(count: u32) -> Self {
        Self { strides: (1 << count) - 1, failed: 0 }
    }

    /// Closes the open strides if errors took all of them.
    #[inline]
    fn settle(&mut self) {
        if (self.strides & Self::OPEN).count_ones() == self.failed {
            (self.strides, self.failed) = (self.strides & !Self::OPEN, 0);
        }
    }
}

/// A packet in a stride. It holds the stride until it is [released](StridingReceiveQueue::release).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the stride stays taken until the packet is released"]
pub struct Packet {
    wqe: u16,
    stride: u16,
    length: u16,
    first: bool,
    last: bool,
    offset: u32,
}

impl Packet {
    /// Index of the WQE, and so of its buffer.
    #[inline]
    pub fn wqe(&self) -> u16 {
        self.wqe
    }

    /// Where the packet begins in the buffer.
    #[inline]
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// Bytes of the packet, at most those of a stride. An RDMA write with an immediate leaves none.
    #[inline]
    pub fn length(&self) -> u16 {
        self.length
    }

    /// The packet begins a message of its queue pair.
    #[inline]
    pub fn is_first(&self) -> bool {
        self.first
    }

    /// The packet ends a message of its queue pair. If the first packet of another message follows
    /// instead, or no packet, the message was cut off: by an error, a reset or the destruction of
    /// the queue pair.
    #[inline]
    pub fn is_last(&self) -> bool {
        self.last
    }
}

impl fmt::Debug for StridingReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StridingReceiveQueue")
            .field("queue", &self.queue)
            .field("strides", &self.strides)
            .finish_non_exhaustive()
    }
}

impl StridingReceiveQueue {
    /// Adds strides to a queue. `None` if WQEs were posted, have no room for a segment per stride,
    /// or would have more than 16 strides.
    pub fn new(queue: SharedReceiveQueue<List>, strides: Strides) -> Option<Self> {
        if queue.counter != 0
            || strides.count() as usize > queue.segments
            || strides.count() > MOST_STRIDES
        {
            return None;
        }
        let uses = vec![Use::default(); queue.entries() as usize].into();
        Some(Self { queue, strides, uses })
    }

    /// Gives each WQE the buffer `buffer(index)`, of at least [`Self::buffer_bytes`], and posts all
    /// WQEs but the one that a list keeps. Returns `false` without effect if they have buffers
    /// already, or if a buffer is shorter.
    #[must_use = "a queue that has buffers takes no others"]
    pub fn fill(&mut self, buffer: impl Fn(u16) -> DataSegment) -> bool {
        let entries = self.queue.entries();
        let (count, bytes) = (self.strides.count(), self.strides.bytes());
        let whole = 0..entries as u16;
        let Some(added) = NonZeroU32::new(entries) else { return false };
        if self.queue.filled > 0
            || whole.clone().any(|index| buffer(index).byte_count.get() < self.buffer_bytes())
        {
            return false;
        }
        let mut segments = Vec::with_capacity(count as usize);
        for (index, used) in whole.zip(&mut self.uses) {
            let buffer = buffer(index);
            segments.clear();
            segments.extend((0..count).map(|stride| {
                let start = buffer.address.get().wrapping_add(u64::from(stride * bytes));
                DataSegment::new(start, bytes, buffer.lkey.get())
            }));
            // SAFETY: `index` is less than the number of WQEs, whose scatter lists have room for
            // `segments` segments, which `count` does not exceed by the check of `new`.
            unsafe {
                let list = self.queue.scatter_list(u32::from(index));
                write_scatter(list, self.queue.segments, &segments);
            }
            *used = Use::posted(count);
        }
        self.queue.topology.extend(&self.queue.wqes, 0, added);
        self.queue.filled = entries;
        self.queue.room = 0;
        self.queue.counter = entries - 1;
        self.queue.publish();
        true
    }

    /// The packet of `completion`, which is a completion of a message from a queue pair that uses
    /// this queue. `None` if it is none of a stride that the device owns: the fields of an entry
    /// that was overrun, or a stride that the device gives back unused.
    #[inline]
    pub fn take(&mut self, completion: Polled<'_>) -> Option<Packet> {
        let index = u32::from(completion.wqe_counter()) & self.queue.wqes.mask();
        let (stride, mut count) = (completion.stride(), completion.stride_count());
        if completion.is_write_immediate() {
            // The stride is taken, and the length is that of the write.
            count = StrideCount::new(0, true, true);
        }
        let bytes = self.strides.bytes();
        let used = self.uses.get_mut(index as usize)?;
        if u32::from(stride) >= MOST_STRIDES
            || used.strides >> stride & 1 == 0
            || u32::from(count.length()) > bytes
            || count.is_filler()
        {
            cold_path();
            if count.is_filler() {
                self.give_back(completion.wqe_counter());
            }
            return None;
        }
        // The stride was open and held no packet.
        used.strides ^= (1 << MOST_STRIDES | 1) << stride;
        if used.failed > 0 {
            cold_path();
            used.settle();
        }
        Some(Packet {
            wqe: index as u16,
            stride,
            length: count.length(),
            first: count.is_first(),
            last: count.is_last(),
            offset: u32::from(stride) * bytes,
        })
    }

    /// Releases the stride of a packet. Returns `true` if its WQE is posted again, which the device
    /// sees after [`Self::publish`]: all its packets are released, and there will be no more.
    #[inline]
    #[expect(clippy::needless_pass_by_value, reason = "the packet ends")]
    pub fn release(&mut self, packet: Packet) -> bool {
        let Some(used) = self.uses.get_mut(usize::from(packet.wqe)) else { return false };
        let bit = 1 << MOST_STRIDES << (u32::from(packet.stride) % MOST_STRIDES);
        if used.strides & bit == 0 {
            // A packet of another queue.
            return false;
        }
        used.strides &= !bit;
        self.repost(packet.wqe)
    }

    /// Counts the stride that a receive error took, which held no packet. Returns `true` as
    /// [`Self::release`] does.
    pub fn fail(&mut self, wqe_counter: u16) -> bool {
        let index = u32::from(wqe_counter) & self.queue.wqes.mask();
        match self.uses.get_mut(index as usize) {
            Some(used) if used.strides & Use::OPEN != 0 => {
                used.failed += 1;
                used.settle();
            }
            _ => return false,
        }
        self.repost(index as u16)
    }

    /// Counts a stride that the device returns unused.
    #[cold]
    #[inline(never)]
    fn give_back(&mut self, wqe_counter: u16) {
        if self.fail(wqe_counter) {
            self.publish();
        }
    }

    /// Posts a WQE again if all its strides are free.
    #[inline]
    fn repost(&mut self, index: u16) -> bool {
        let Some(used) = self.uses.get_mut(usize::from(index)) else { return false };
        if used.strides != 0 || !self.queue.recycle(index.into()) {
            return false;
        }
        *used = Use::posted(self.strides.count());
        true
    }

    /// Makes all WQEs that were posted again visible to the device.
    #[inline]
    pub fn publish(&mut self) {
        self.queue.publish();
    }

    /// Bytes of the buffer of a WQE.
    pub fn buffer_bytes(&self) -> u32 {
        self.strides.count() * self.strides.bytes()
    }

    /// The strides of a WQE.
    pub fn strides(&self) -> Strides {
        self.strides
    }

    /// The queue itself, for [`RcQueuePair::create_sharing`](crate::RcQueuePair::create_sharing).
    pub fn queue(&self) -> &SharedReceiveQueue<List> {
        &self.queue
    }
}
