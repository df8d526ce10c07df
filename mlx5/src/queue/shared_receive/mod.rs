//! The shared receive queue (SRQ): one pool of buffers for many queue pairs.
//!
//! Its WQEs complete in any order, as the queue pairs' messages do, so that the ring alone does not say which entry is free:
//! - in a [`List`] every WQE names the next, and the device follows. A completed WQE is released to the end of the list, whatever its
//!   place in memory was. The device stands on the last WQE that it was given and reads there where to go on, so one always stays
//!   behind: `entries - 1` can be posted.
//! - in a [`Cyclic`] queue the device takes the WQEs in order. A completed WQE is free again when all before it are.
//!
//! Sources: rdma-core srq.c (`mlx5_post_srq_recv`, `mlx5_free_srq_wqe`), UCX `uct_rc_mlx5_iface_srq_post_recv` and
//! `uct_rc_mlx5_iface_release_srq_seg`; PRM: RMP context, wq_type.

mod topology;

use core::any::Any;
use core::fmt;
use core::ptr::NonNull;
use std::sync::Arc;

use barewire_layouts::wqe::{DS, DataSegment, SharedReceiveHeader};

use super::receive::write_scatter;
use crate::barrier;
use crate::doorbell::RecordWord;
use topology::{Posted, Wqes};

pub use topology::{Cyclic, List, Topology};

/// What a shared receive queue is built from. See [`SharedReceiveQueue::from_parts`].
#[derive(Debug)]
pub struct SharedReceiveParts {
    /// The ring: `entries` WQEs of [`wqe_bytes`] bytes.
    pub ring: NonNull<u8>,
    /// WQEs in the ring, a power of two from 2 to 2^15.
    pub entries: u32,
    /// Segments that every WQE shall have room for, at least 1.
    pub segments: usize,
    /// The receive word of the doorbell record.
    pub doorbell_record: NonNull<u32>,
    /// Keeps ring and record alive, and the device's object with them.
    pub keep: Arc<dyn Any + Send + Sync>,
}

/// Bytes of a WQE with room for `segments` segments: header and segments, rounded up to a power of two (PRM: WQ context, log_wq_stride).
pub const fn wqe_bytes(segments: usize) -> usize {
    (DS + segments * DS).next_power_of_two()
}

/// A shared receive queue over memory that a device, or a test, reads.
///
/// Queue pairs that receive from it complete with the index of the WQE ([`crate::Completion::wqe_counter`]), which is to be given to
/// [`Self::release`] when the message was looked at.
pub struct SharedReceiveQueue<T: Topology = List> {
    wqes: Wqes,
    segments: usize,
    topology: T,
    /// WQEs that may be posted.
    room: u32,
    /// WQEs posted, free running.
    counter: u32,
    posted: Posted,
    doorbell_record: RecordWord,
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the queue is the only one that writes ring and record; the pointers are not tied to a thread.
unsafe impl<T: Topology> Send for SharedReceiveQueue<T> {}

impl<T: Topology> fmt::Debug for SharedReceiveQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue")
            .field("entries", &self.entries())
            .field("topology", &self.topology)
            .field("counter", &self.counter)
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}

impl<T: Topology> SharedReceiveQueue<T> {
    /// Builds a queue and writes the headers of its WQEs. To be done before the device learns of the ring.
    ///
    /// # Safety
    /// Until `parts.keep` is dropped: `ring` is valid for reads and writes of `entries` times [`wqe_bytes`] bytes and aligned to 16, the
    /// doorbell record word is valid and 4-byte aligned, and nothing but this queue writes them. A device
    /// that is part of this process reads the ring by atomic loads of whole aligned 8-byte words, unless
    /// it does so while the queue is not used. `entries` and `segments` are as [`SharedReceiveParts`]
    /// says.
    pub unsafe fn from_parts(parts: SharedReceiveParts) -> Self {
        let SharedReceiveParts { ring, entries, segments, doorbell_record, keep } = parts;
        debug_assert!(entries.is_power_of_two() && (2..=1 << 15).contains(&entries) && segments > 0);
        let stride = wqe_bytes(segments);
        Self {
            // SAFETY: the caller's contract covers the ring.
            wqes: unsafe { Wqes::new(ring, entries, stride) },
            // All that the stride has room for: where the list is shorter its end is written.
            segments: stride / DS - 1,
            topology: T::new(entries),
            room: T::capacity(entries),
            counter: 0,
            posted: Posted::new(entries),
            // SAFETY: the caller's contract covers the record.
            doorbell_record: unsafe { RecordWord::new(doorbell_record) },
            _keep: keep,
        }
    }

    /// Writes a receive WQE that scatters a message over `buffers`; the device sees it after [`Self::publish`]. Returns its index, by
    /// which its completion will name it, or `None` if the queue is full. Empty buffers are left out.
    ///
    /// More buffers than a WQE has room for, or none that is not empty, are refused like a full queue.
    #[inline]
    pub fn push(&mut self, buffers: &[DataSegment]) -> Option<u16> {
        if self.room == 0 {
            return None;
        }
        let filled = buffers.iter().filter(|buffer| buffer.byte_count.get() != 0).count();
        if filled == 0 || filled > self.segments {
            return None;
        }
        self.room -= 1;
        let index = self.topology.take(&self.wqes);
        // SAFETY: behind its header a WQE has room for `segments` segments, valid for writes by the contract of `from_parts`.
        unsafe {
            let list = self.wqes.wqe(index).add(size_of::<SharedReceiveHeader>()).cast();
            write_scatter(list, self.segments, buffers);
        }
        self.posted.set(index);
        self.counter = self.counter.wrapping_add(1);
        Some(index as u16)
    }

    /// Gives everything that was pushed to the device.
    #[inline]
    pub fn publish(&mut self) {
        barrier::wqe_before_doorbell_record();
        self.doorbell_record.store(self.counter & 0xffff);
    }

    /// The WQE that a completion names is done and its buffers are the caller's again. In a [`Cyclic`] queue `wqe_counter` counts on
    /// beyond the ring's size, in a [`List`] it is the index itself; either is taken modulo the size.
    ///
    /// Returns the WQE's index. `None`, and nothing changes, if that WQE is not the device's: it was released already, or never posted.
    #[inline]
    pub fn release(&mut self, wqe_counter: u16) -> Option<u16> {
        let index = u32::from(wqe_counter) & self.wqes.mask();
        if !self.posted.clear(index) {
            return None;
        }
        self.room += self.topology.release(&self.wqes, &self.posted, index);
        Some(index as u16)
    }

    /// WQEs that may be pushed now.
    #[inline]
    pub fn room(&self) -> u32 {
        self.room
    }

    /// WQEs of the ring.
    #[inline]
    pub fn entries(&self) -> u32 {
        self.wqes.mask() + 1
    }

    /// Segments that a WQE has room for: what was asked for, or more.
    #[inline]
    pub fn segments(&self) -> usize {
        self.segments
    }
}
