//! The shared receive queue (SRQ): one pool of buffers for many queue pairs.
//!
//! Its WQEs complete in any order, because several queue pairs receive from it:
//!
//! - In a [`List`] every WQE names the next, and the device follows the links. A completed WQE is
//!   appended to the end of the list, whatever its position in memory is. The device stops at the
//!   last WQE it owns and reads the next link there, so one WQE always stays behind: `entries - 1`
//!   can be posted.
//! - In a [`Cyclic`] queue the device takes the WQEs in order. A completed WQE is free once all
//!   before it are.
//!
//! In a [`StridingReceiveQueue`] packets share the buffer of a WQE.
//!
//! Sources: rdma-core srq.c (`mlx5_post_srq_recv`, `mlx5_free_srq_wqe`), UCX
//! `uct_rc_mlx5_iface_srq_post_recv` and `uct_rc_mlx5_iface_release_srq_seg`; PRM: RMP context,
//! wq_type.

mod striding;
#[cfg(test)]
mod tests;
mod topology;

use core::any::Any;
use core::fmt;
use core::hint::cold_path;
use core::num::NonZeroU32;
use core::ptr::NonNull;
use std::sync::Arc;

use barewire_layouts::wqe::{DS, DataSegment, SharedReceiveHeader};

use super::receive::write_scatter;
use crate::barrier;
use crate::doorbell::RecordWord;
use crate::store;
use topology::Wqes;
use zerocopy::transmute;

pub use barewire_layouts::command::strides::Strides;
pub(crate) use striding::MOST_STRIDES;
pub use striding::{Packet, StridingReceiveQueue};
pub use topology::{Cyclic, List, Topology};

/// The parts of a shared receive queue. See [`SharedReceiveQueue::from_parts`].
#[derive(Debug)]
pub struct SharedReceiveParts {
    /// The ring: `entries` WQEs of [`wqe_bytes`] bytes.
    pub ring: NonNull<u8>,
    /// WQEs in the ring, a power of two from 2 to 2^15.
    pub entries: u32,
    /// Segments that every WQE must have room for, at least 1.
    pub segments: usize,
    /// The receive word of the doorbell record.
    pub doorbell_record: NonNull<u32>,
    /// Keeps the ring, the record and the device's object alive.
    pub keep: Arc<dyn Any + Send + Sync>,
}

/// Size in bytes of a WQE with room for `segments` segments: header and segments, rounded up to a
/// power of two (PRM: WQ context, log_wq_stride).
pub const fn wqe_bytes(segments: usize) -> usize {
    (DS + segments * DS).next_power_of_two()
}

/// Links the WQEs of a ring, before the device gets it.
///
/// # Safety
/// The contract of [`SharedReceiveQueue::from_parts`] for `ring` holds, for WQEs of `stride` bytes,
/// until this function returns.
pub(crate) unsafe fn link(ring: NonNull<u8>, entries: u32, stride: usize) {
    // SAFETY: the ring is valid and aligned by the caller's contract.
    let _ = unsafe { Wqes::new(ring, entries, stride) };
}

/// A shared receive queue over memory that a device, or a test, reads.
///
/// Completions of queue pairs that receive from it carry the index of the WQE
/// ([`crate::Completion::wqe_counter`]). Pass it to [`Self::release`] when the message has been
/// processed.
pub struct SharedReceiveQueue<T: Topology = List> {
    wqes: Wqes,
    segments: usize,
    topology: T,
    /// WQEs that may be posted.
    room: u32,
    /// WQEs posted, free running.
    counter: u32,
    /// WQEs that keep their buffers; 0 if buffers are pushed.
    filled: u32,
    doorbell_record: RecordWord,
    keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the queue is the only writer of ring and record, and the pointers are not tied to a
// thread.
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
    /// Builds a queue and writes the headers of its WQEs. Must be called before the ring is passed
    /// to the device.
    ///
    /// # Safety
    /// Until `parts.keep` is dropped: `ring` is valid for reads and writes of `entries` times
    /// [`wqe_bytes`] bytes and aligned to 16, the doorbell record word is valid and 4-byte aligned,
    /// and nothing but this queue writes them. A device in this process reads the ring by atomic
    /// loads of whole aligned 8-byte words, except while the queue is not in use. `entries` and
    /// `segments` are as [`SharedReceiveParts`] requires.
    pub unsafe fn from_parts(parts: SharedReceiveParts) -> Self {
        let SharedReceiveParts { ring, entries, segments, doorbell_record, keep } = parts;
        debug_assert!(
            entries.is_power_of_two() && (2..=1 << 15).contains(&entries) && segments > 0
        );
        let stride = wqe_bytes(segments);
        Self {
            // SAFETY: the ring is valid and aligned by the caller's contract.
            wqes: unsafe { Wqes::new(ring, entries, stride) },
            // All that the stride has room for: a shorter list gets an end marker.
            segments: stride / DS - 1,
            topology: T::new(entries),
            room: T::capacity(entries),
            counter: 0,
            filled: 0,
            // SAFETY: the record word is valid and aligned by the caller's contract.
            doorbell_record: unsafe { RecordWord::new(doorbell_record) },
            keep,
        }
    }

    /// Writes a receive WQE that scatters a message over `buffers`; the device sees it after
    /// [`Self::publish`]. Returns its index, which its completion carries. Empty buffers are
    /// skipped. Buffers must not be memory on demand: an absent page fails the receive and its
    /// connection.
    ///
    /// Returns `None` if the queue is full or [extended](SharedReceiveQueue::extend), if there are
    /// more buffers than a WQE has room for, or if all are empty.
    #[inline]
    #[must_use = "a full queue takes no buffers"]
    pub fn push(&mut self, buffers: &[DataSegment]) -> Option<u16> {
        if self.room == 0 {
            return None;
        }
        let filled = buffers.iter().filter(|buffer| buffer.byte_count.get() != 0).count();
        if filled == 0 || filled > self.segments {
            return None;
        }
        self.room -= 1;
        let index = self.post_next();
        // SAFETY: a taken WQE is one of the ring, and `scatter_list` has room for `segments`
        // segments.
        unsafe { write_scatter(self.scatter_list(index), self.segments, buffers) };
        Some(index as u16)
    }

    /// As [`Self::push`] of one buffer, in fewer instructions.
    #[inline]
    #[must_use = "a full queue takes no buffers"]
    pub fn push_one(&mut self, buffer: DataSegment) -> Option<u16> {
        if self.room == 0 {
            return None;
        }
        // The room is taken before the buffer is tested: with a store between them, the tests stay
        // two branches, in fewer instructions than their conjunction.
        self.room -= 1;
        if buffer.byte_count.get() == 0 {
            cold_path();
            self.room += 1;
            return None;
        }
        let index = self.post_next();
        // SAFETY: a taken WQE is one of the ring, and `scatter_list` has room for `segments`
        // segments, at least one.
        unsafe {
            let list = self.scatter_list(index);
            store::words(list, transmute!(buffer));
            if self.segments > 1 {
                store::words(list.add(1), transmute!(DataSegment::END));
            }
        }
        Some(index as u16)
    }

    /// The scatter list of a WQE: `segments` segments after its header, valid for writes by the
    /// contract of [`Self::from_parts`].
    ///
    /// # Safety
    /// `index` is less than the number of WQEs.
    #[inline]
    unsafe fn scatter_list(&self, index: u32) -> NonNull<DataSegment> {
        // SAFETY: the WQE exists by the caller's contract, and the header is its first part.
        unsafe { self.wqes.at(index).add(size_of::<SharedReceiveHeader>()).cast() }
    }

    /// Takes the next WQE, which the device sees after [`Self::publish`]. The caller has checked
    /// that there was room, and taken it.
    #[inline]
    fn post_next(&mut self) -> u32 {
        let index = self.topology.take(&self.wqes);
        self.counter = self.counter.wrapping_add(1);
        index
    }

    /// Makes all pushed WQEs visible to the device.
    #[inline]
    pub fn publish(&mut self) {
        barrier::wqe_before_doorbell_record();
        self.doorbell_record.store(self.counter & 0xffff);
    }

    /// Releases the WQE that a completion names. Its buffers belong to the caller again.
    /// `wqe_counter` is taken modulo the size of the ring: in a [`Cyclic`] queue it counts beyond
    /// the size, in a [`List`] it is the index.
    ///
    /// Returns the index of the WQE, or `None` without effect if the device does not own that WQE:
    /// it was already released, or never posted. A WQE of an [extended](SharedReceiveQueue::extend)
    /// queue keeps its buffer and is not released either.
    #[inline]
    pub fn release(&mut self, wqe_counter: u16) -> Option<u16> {
        let index = u32::from(wqe_counter) & self.wqes.mask();
        if self.filled > 0 {
            return None;
        }
        self.room += self.topology.release(&self.wqes, index)?;
        Some(index as u16)
    }

    /// What keeps the queue's memory and object alive.
    pub(crate) fn keep(&self) -> &Arc<dyn Any + Send + Sync> {
        &self.keep
    }

    /// WQEs that may be pushed now.
    #[inline]
    pub fn room(&self) -> u32 {
        self.room
    }

    /// WQEs in the ring.
    #[inline]
    pub fn entries(&self) -> u32 {
        self.wqes.mask() + 1
    }

    /// Segments that a WQE has room for: at least the requested number.
    #[inline]
    pub fn segments(&self) -> usize {
        self.segments
    }
}

/// A list whose WQEs keep their buffers: posting one again writes its link only.
impl SharedReceiveQueue<List> {
    /// Gives the next `count` WQEs of the ring the buffers `buffer(index)`, and posts them, in the
    /// first call all but the one that a list keeps. The device sees them after [`Self::publish`].
    /// Returns `false` without effect if WQEs were [pushed](Self::push), if `count` is 0, if the ring
    /// has no `count` more WQEs, if the list would have less than two, or if a buffer is empty.
    #[must_use = "a queue in use is not extended"]
    pub fn extend(&mut self, count: u32, buffer: impl Fn(u16) -> DataSegment) -> bool {
        let first = self.filled;
        let Some(added) = NonZeroU32::new(count) else { return false };
        if count > self.entries() - first || first + count < 2 || (first == 0 && self.counter != 0)
        {
            return false;
        }
        let indices = first..first + count;
        if indices.clone().any(|index| buffer(index as u16).byte_count.get() == 0) {
            return false;
        }
        for index in indices {
            let buffers = [buffer(index as u16)];
            // SAFETY: `first + count` is at most the number of WQEs, and `scatter_list` has room for
            // `segments` segments.
            unsafe { write_scatter(self.scatter_list(index), self.segments, &buffers) };
        }
        self.topology.extend(&self.wqes, first, added);
        self.filled = first + count;
        self.room = 0;
        // One stays behind.
        self.counter = self.counter.wrapping_add(count - u32::from(first == 0));
        true
    }

    /// WQEs that [`Self::extend`] gave buffers.
    #[inline]
    pub fn filled(&self) -> u32 {
        self.filled
    }

    /// Posts again, in a queue that was [filled](Self::extend), a WQE that a completion named
    /// (modulo 2^16), after its buffer is free. Returns `false` without effect for the WQE that the
    /// list keeps back, which is the one recycled last, for one without a buffer, and if the queue was
    /// not filled.
    ///
    /// The queue does not know which WQEs are complete. The caller recycles a WQE once per completion:
    /// one that the device still owns would be in the list twice, and the device would write a second
    /// message to a buffer that is in use.
    #[must_use = "the WQE that the list keeps back is not posted"]
    pub fn recycle(&mut self, index: u32) -> bool {
        let index = index & u32::from(u16::MAX);
        let posted = self.topology.rotate_any(&self.wqes, index, self.filled);
        self.counter = self.counter.wrapping_add(posted.into());
        posted
    }

    /// As [`Self::recycle`], in fewer instructions, for a WQE that completed in the order in which
    /// WQEs were posted. Returns `false` without effect for any other, and after [`Self::doubt`];
    /// [`Self::recycle`] posts those.
    ///
    /// The list keeps this WQE back and posts the one before it. So its buffer may be in use until
    /// the next WQE is recycled, if the caller posts others meanwhile by [`Self::recycle_before`]
    /// only.
    #[inline(always)]
    #[must_use = "a WQE out of order is not posted"]
    pub fn recycle_next(&mut self, index: u16) -> bool {
        // SAFETY: any index of 16 bits is allowed.
        unsafe { self.recycle_next_masked(index.into()) }
    }

    /// As [`Self::recycle_next`], for an index that the caller has already masked.
    ///
    /// # Safety
    /// `index` is less than 2^16.
    #[inline(always)]
    #[must_use = "a WQE out of order is not posted"]
    pub unsafe fn recycle_next_masked(&mut self, index: u32) -> bool {
        // SAFETY: the contract of this function.
        let posted = unsafe { self.topology.rotate(index) };
        if posted {
            self.counter = self.counter.wrapping_add(1);
        }
        posted
    }

    /// As [`Self::recycle`], but the list keeps the same WQE back as before. Returns `false`
    /// without effect as well if all that was posted is [published](Self::is_published).
    #[must_use = "after a publication nothing is posted"]
    pub fn recycle_before(&mut self, index: u32) -> bool {
        if self.is_published() {
            return false;
        }
        let index = index & u32::from(u16::MAX);
        let posted = self.topology.insert(&self.wqes, index, self.filled);
        self.counter = self.counter.wrapping_add(posted.into());
        posted
    }

    /// Takes the WQE back that was recycled last, unless it was [published](Self::publish): the
    /// list has it no longer, and it may be recycled again. Returns `false` without effect for any
    /// other.
    pub fn take_back(&mut self, index: u16) -> bool {
        let taken = !self.is_published() && self.topology.remove(index.into());
        self.counter = self.counter.wrapping_sub(taken.into());
        taken
    }

    /// Returns whether the device sees all that was posted: see [`Self::publish`].
    pub fn is_published(&self) -> bool {
        self.doorbell_record.load() == self.counter & 0xffff
    }

    /// Makes [`Self::recycle_next`] return `false` until the next [`Self::recycle`]. A caller that
    /// sets the buffer of a WQE aside thus need not test each WQE for it.
    pub fn doubt(&mut self) {
        self.topology.doubt();
    }

    /// WQEs posted so far, modulo 2^32.
    #[inline]
    pub fn posted(&self) -> u32 {
        self.counter
    }
}
