//! The receiving side of an endpoint: which buffer lies in which slot of the receive ring.

use std::cell::Cell;

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
    /// Buffers posted, free running; its low bits are the next slot.
    producer: Cell<u32>,
    /// Posted, but not yet published to the device.
    unpublished: Cell<u32>,
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
            slots: (0..entries).map(|_| Cell::new(None)).collect(),
            producer: Cell::new(0),
            unpublished: Cell::new(0),
            // The device never has less than three quarters of the ring because of batching.
            batch: (entries / 4).clamp(1, BATCH),
        })
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Cell<Option<Lease>>> {
        // The length is a power of two.
        self.slots.get(index as usize & (self.slots.len() - 1))
    }

    /// The buffer that the WQE `counter` was posted with; it is the caller's from now on.
    #[inline]
    pub(super) fn take(&self, queue: &mut ReceiveQueue, counter: u16) -> Option<Lease> {
        queue.reap();
        self.slot(counter.into())?.take()
    }

    /// Posts `buffer` again.
    #[inline]
    pub(super) fn post(&self, queue: &mut ReceiveQueue, buffer: Lease) {
        let address = self.pool.start_of(&buffer).addr().get() as u64 + MESSAGE as u64;
        if !queue.push(DataSegment::new(address, SEGMENT as u32, self.key)) {
            return self.pool.give(buffer);
        }
        let producer = self.producer.get();
        self.producer.set(producer.wrapping_add(1));
        if let Some(slot) = self.slot(producer) {
            slot.set(Some(buffer));
        }
        let unpublished = self.unpublished.get() + 1;
        self.unpublished.set(unpublished);
        // With room left the ring is short of buffers, and the device must not wait for a batch to fill.
        if unpublished >= self.batch || queue.room() > 0 {
            self.publish(queue);
        }
    }

    /// Posts as many free buffers as the ring takes.
    pub(super) fn refill(&self, queue: &mut ReceiveQueue) {
        while queue.room() > 0
            && let Some(buffer) = self.pool.take()
        {
            self.post(queue, buffer.into_lease());
        }
        self.publish(queue);
    }

    #[inline]
    fn publish(&self, queue: &mut ReceiveQueue) {
        if self.unpublished.replace(0) > 0 {
            queue.publish();
        }
    }

    /// Forgets which buffers are posted: messages still to be reaped are not delivered.
    pub(super) fn close(&self) {
        for slot in &self.slots {
            slot.set(None);
        }
    }
}
