//! The receiving side of an endpoint: which buffer lies in which slot of the receive ring.

use std::cell::Cell;
use std::ptr::NonNull;

use barewire_mlx5::{DataSegment, ReceiveQueue};

use super::domain::{Domain, Registered};
use super::{BUFFER, MESSAGE, SEGMENT};
use crate::error::MemoryError;
use crate::message::{Keeper, write_home};
use crate::transport::common::pool::{Lease, Pool};

/// Most buffers that are given back to the device at a time.
const BATCH: u32 = 16;

pub(super) struct Receiver {
    pub(super) pool: Pool<Registered, BUFFER>,
    key: u32,
    /// Where the buffer in each slot of the ring starts; `None` once it was kept, and after [`Self::close`].
    slots: Box<[Cell<Option<NonNull<u8>>>]>,
    /// Slots - 1.
    mask: u32,
    /// The slot that each buffer was put in last.
    homes: Box<[Cell<u32>]>,
    /// Buffers are given to the device whenever the producer is a multiple of a power of two; this is one less.
    batch_mask: u32,
}

impl Receiver {
    /// Buffers for a ring of `entries`, a power of two, and `spare` more that stand in for kept ones.
    pub(super) fn new(domain: &Domain, entries: u32, spare: u32) -> Result<Self, MemoryError> {
        let count = entries as usize + spare as usize;
        let block = Registered::allocate(domain, count * BUFFER)?;
        Ok(Self {
            key: block.key(),
            pool: Pool::new(block),
            slots: (0..entries).map(|_| Cell::new(None)).collect(),
            mask: entries - 1,
            homes: (0..count).map(|_| Cell::new(0)).collect(),
            // The device never has less than three quarters of the ring because of batching.
            batch_mask: (entries / 4).clamp(1, BATCH) - 1,
        })
    }

    /// The place of WQE `counter` in the ring, which stands for it: one WQE at a time is there.
    #[inline(always)]
    pub(super) fn index(&self, counter: u32) -> u32 {
        counter & self.mask
    }

    /// The slot of WQE `counter`.
    #[inline(always)]
    pub(super) fn slot(&self, counter: u32) -> &Cell<Option<NonNull<u8>>> {
        // SAFETY: the mask keeps the index below the length, a power of two.
        unsafe { self.slots.get_unchecked(self.index(counter) as usize) }
    }

    /// Takes the buffer of WQE `counter` out of its slot.
    fn take(&self, counter: u32) -> Option<Lease> {
        self.slot(counter).take().map(|start| self.pool.lease_of(start))
    }

    /// Takes the buffer that starts at `start` out of its slot, if it is in it.
    pub(super) fn take_at(&self, start: NonNull<u8>) -> Option<Lease> {
        let home = self.homes.get(self.pool.lease_of(start).index())?.get();
        if self.slot(home).get() == Some(start) { self.take(home) } else { None }
    }

    /// The message of WQE `counter` is done with: its buffer goes back to the device.
    #[inline(always)]
    pub(super) fn repost(&self, queue: &mut ReceiveQueue, counter: u32) {
        // As a rule it is the turn of the very slot, whose WQE is there already.
        if !queue.push_again(counter) {
            return self.repost_elsewhere(queue, counter);
        }
        if queue.producer() & self.batch_mask == 0 {
            queue.publish();
        }
    }

    /// Slots before this one are empty: their buffers were kept.
    #[cold]
    #[inline(never)]
    fn repost_elsewhere(&self, queue: &mut ReceiveQueue, counter: u32) {
        queue.reap();
        if let Some(buffer) = self.take(counter) {
            self.post(queue, buffer);
        }
        // The ring is short of buffers: the device must not wait for a batch to fill.
        queue.publish();
    }

    /// A buffer was taken for good: another takes its place, if there is one.
    #[cold]
    pub(super) fn replace(&self, queue: &mut ReceiveQueue, keeper: &dyn Keeper) {
        queue.reap();
        self.refill(queue, keeper);
    }

    /// Posts `buffer` in the next slot.
    fn post(&self, queue: &mut ReceiveQueue, buffer: Lease) {
        let address = self.pool.start_of(&buffer).addr().get() as u64 + MESSAGE as u64;
        let producer = queue.producer();
        if !queue.push(DataSegment::new(address, SEGMENT as u32, self.key)) {
            return self.pool.give(buffer);
        }
        self.slot(producer).set(Some(self.pool.start_of(&buffer)));
        if let Some(home) = self.homes.get(buffer.index()) {
            home.set(producer);
        }
    }

    /// Posts as many free buffers as the ring takes. `keeper` keeps their messages.
    pub(super) fn refill(&self, queue: &mut ReceiveQueue, keeper: &dyn Keeper) {
        while queue.room() > 0
            && let Some(buffer) = self.pool.take()
        {
            let buffer = buffer.into_lease();
            // SAFETY: the first bytes of a buffer, which are not the device's.
            unsafe { write_home(self.pool.start_of(&buffer), keeper) };
            self.post(queue, buffer);
        }
        queue.publish();
    }

    /// Messages still to be reaped are not delivered from now on.
    pub(super) fn close(&self) {
        self.slots.iter().for_each(|slot| slot.set(None));
    }
}
