//! The receiving side of an endpoint: which buffer lies in which slot of the receive ring.

use std::cell::Cell;
use std::ptr::NonNull;

use barewire_mlx5::{DataSegment, ReceiveQueue};

use super::domain::{Domain, Registered};
use super::{BUFFER, MESSAGE, SEGMENT};
use crate::error::MemoryError;
use crate::pool::{Lease, Pool};

/// Most buffers that are given back to the device at a time.
const BATCH: u32 = 16;

pub(super) struct Receiver {
    pub(super) pool: Pool<Registered, BUFFER>,
    key: u32,
    /// The buffer in each slot of the ring.
    slots: Box<[Cell<Option<Lease>>]>,
    closed: Cell<bool>,
    /// Buffers are given to the device whenever the producer is a multiple of this, a power of two.
    batch: u32,
}

impl Receiver {
    /// Buffers for a ring of `entries`, a power of two, and `spare` more that stand in for kept ones.
    pub(super) fn new(domain: &Domain, entries: u32, spare: u32) -> Result<Self, MemoryError> {
        let count = entries as usize + spare as usize;
        let block = Registered::allocate(domain, count * BUFFER)?;
        Ok(Self {
            key: block.key(),
            pool: Pool::new(block),
            closed: Cell::new(false),
            slots: (0..entries).map(|_| Cell::new(None)).collect(),
            // The device never has less than three quarters of the ring because of batching.
            batch: (entries / 4).clamp(1, BATCH),
        })
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Cell<Option<Lease>>> {
        // The length is a power of two.
        self.slots.get(index as usize & (self.slots.len() - 1))
    }

    /// First byte of the buffer that the WQE `counter` was posted with; `None` after [`Self::close`].
    #[inline]
    pub(super) fn start(&self, counter: u16) -> Option<NonNull<u8>> {
        if self.closed.get() {
            return None;
        }
        let slot = self.slot(counter.into())?;
        let lease = slot.take()?;
        let start = self.pool.start_of(&lease);
        slot.set(Some(lease));
        Some(start)
    }

    /// Takes the buffer of WQE `counter` out of its slot.
    pub(super) fn take(&self, counter: u16) -> Option<Lease> {
        self.slot(counter.into())?.take()
    }

    /// The message of WQE `counter` is done with: its buffer goes back to the device.
    #[inline]
    pub(super) fn repost(&self, queue: &mut ReceiveQueue, counter: u16) {
        // As a rule it is the turn of the very slot, whose WQE is there already.
        if !queue.push_again(counter.into()) {
            return self.repost_elsewhere(queue, counter);
        }
        if queue.producer() & (self.batch - 1) == 0 {
            queue.publish();
        }
    }

    /// Slots before this one are empty: their buffers were kept.
    #[cold]
    fn repost_elsewhere(&self, queue: &mut ReceiveQueue, counter: u16) {
        queue.reap();
        if let Some(buffer) = self.take(counter) {
            self.post(queue, buffer);
        }
        // The ring is short of buffers: the device must not wait for a batch to fill.
        queue.publish();
    }

    /// A buffer was taken for good: another takes its place, if there is one.
    #[cold]
    pub(super) fn replace(&self, queue: &mut ReceiveQueue) {
        queue.reap();
        self.refill(queue);
    }

    /// Posts `buffer` in the next slot.
    fn post(&self, queue: &mut ReceiveQueue, buffer: Lease) {
        let address = self.pool.start_of(&buffer).addr().get() as u64 + MESSAGE as u64;
        let producer = queue.producer();
        if !queue.push(DataSegment::new(address, SEGMENT as u32, self.key)) {
            return self.pool.give(buffer);
        }
        if let Some(slot) = self.slot(producer) {
            slot.set(Some(buffer));
        }
    }

    /// Posts as many free buffers as the ring takes.
    pub(super) fn refill(&self, queue: &mut ReceiveQueue) {
        while queue.room() > 0
            && let Some(buffer) = self.pool.take()
        {
            self.post(queue, buffer.into_lease());
        }
        queue.publish();
    }

    /// Messages still to be reaped are not delivered from now on.
    pub(super) fn close(&self) {
        self.closed.set(true);
    }
}
