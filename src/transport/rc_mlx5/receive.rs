//! Receiving from a ring that an endpoint has for itself: its buffers, and their messages.

use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;

use barewire_mlx5::{DataSegment, MemoryRegion, ReceiveQueue};

use super::Domain;
use super::driver::State;
use crate::base::error::MemoryError;
use crate::transport::common::handlers::DispatchGuard;
use crate::transport::common::message::{BufferOwner, Keeper, KeptMessage, Message, write_keeper};
use crate::transport::common::pool::{Lease, Pool};
use crate::transport::common::registered::{Domain as _, Registered};
use crate::transport::rc::{AM_ID, BUFFER, DATA, MAX_AM, MESSAGE, SEGMENT};

/// Most buffers posted with one update of the doorbell record.
const BATCH: u32 = 16;

pub(super) struct Receiver {
    pub(super) pool: Pool<Registered<MemoryRegion>, BUFFER>,
    key: u32,
    /// Address of the buffer in each slot of the ring; `None` after it was kept, and after
    /// [`Self::close`].
    slots: Box<[Cell<Option<NonNull<u8>>>]>,
    /// Number of slots - 1.
    mask: u32,
    /// For each buffer, the slot in which it was posted last.
    last_slots: Box<[Cell<u32>]>,
    /// The doorbell record is updated whenever the producer index is a multiple of a power of two;
    /// this is that power - 1.
    batch_mask: u32,
}

impl Receiver {
    /// Creates the buffers for a ring of `entries`, a power of two, and `spare` more that replace
    /// kept ones.
    pub(super) fn new(domain: &Domain, entries: u32, spare: u32) -> Result<Self, MemoryError> {
        let count = entries as usize + spare as usize;
        let block = domain.blocks(count * BUFFER)?;
        Ok(Self {
            key: block.key(),
            pool: Pool::new(block),
            slots: (0..entries).map(|_| Cell::new(None)).collect(),
            mask: entries - 1,
            last_slots: (0..count).map(|_| Cell::new(0)).collect(),
            // Batching leaves the device at least three quarters of the ring.
            batch_mask: (entries / 4).clamp(1, BATCH) - 1,
        })
    }

    /// Returns the index of WQE `counter` in the ring. It identifies the WQE, since a slot holds
    /// one at a time.
    #[inline(always)]
    pub(super) fn index(&self, counter: u32) -> u32 {
        counter & self.mask
    }

    /// Returns the slot of WQE `counter`.
    #[inline(always)]
    pub(super) fn slot(&self, counter: u32) -> &Cell<Option<NonNull<u8>>> {
        // SAFETY: `index` masks the counter to less than the length, which is a power of two.
        unsafe { self.slots.get_unchecked(self.index(counter) as usize) }
    }

    /// Removes the buffer of WQE `counter` from its slot.
    fn take(&self, counter: u32) -> Option<Lease> {
        self.slot(counter).take().map(|start| self.pool.lease_of(start))
    }

    /// Removes the buffer at `start` from its slot, if it is there.
    pub(super) fn take_at(&self, start: NonNull<u8>) -> Option<Lease> {
        let slot = self.last_slots.get(self.pool.lease_of(start).index())?.get();
        if self.slot(slot).get() == Some(start) { self.take(slot) } else { None }
    }

    /// Posts the buffer of WQE `counter` again, after its message has ended.
    #[inline(always)]
    fn repost(&self, queue: &mut ReceiveQueue, counter: u32) {
        // Usually the next slot is the same one, which still holds its WQE.
        if !queue.push_again(counter) {
            return self.repost_elsewhere(queue, counter);
        }
        if queue.producer() & self.batch_mask == 0 {
            queue.publish();
        }
    }

    /// Handles empty slots before this one, whose buffers were kept.
    #[cold]
    #[inline(never)]
    fn repost_elsewhere(&self, queue: &mut ReceiveQueue, counter: u32) {
        queue.reap();
        if let Some(buffer) = self.take(counter) {
            self.post(queue, buffer);
        }
        // The ring is short of buffers, so this one is published without waiting for a batch.
        queue.publish();
    }

    /// Posts a spare buffer in place of a kept one, if there is one.
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
        if let Some(slot) = self.last_slots.get(buffer.index()) {
            slot.set(producer);
        }
    }

    /// Posts as many free buffers as the ring has room for. `keeper` keeps their messages.
    pub(super) fn refill(&self, queue: &mut ReceiveQueue, keeper: &dyn Keeper) {
        while queue.room() > 0
            && let Some(buffer) = self.pool.take()
        {
            let buffer = buffer.into_lease();
            // SAFETY: the headroom of a buffer that was taken from the pool, so no one else uses
            // it, and which the device does not write.
            unsafe { write_keeper(self.pool.start_of(&buffer), keeper) };
            self.post(queue, buffer);
        }
        queue.publish();
    }

    /// Drops messages that were received but not delivered, from now on.
    pub(super) fn close(&self) {
        self.slots.iter().for_each(|slot| slot.set(None));
    }
}

impl State {
    /// Delivers the message of `length` bytes ([`am_length`](crate::transport::rc::am_length)) in
    /// the buffer of receive WQE `counter`, of which only the low half has a meaning.
    #[inline(always)]
    pub(super) fn receive(
        &self,
        running: &mut DispatchGuard<'_, false>,
        counter: u32,
        length: usize,
    ) {
        let Some(receiver) = &self.driver.receiver else { return };
        // Only the index: fewer values stay live across the handler.
        let counter = receiver.index(counter);
        let slot = receiver.slot(counter);
        let Some(start) = slot.get() else { return };
        // A message shorter than its header, or longer than a buffer, is not of this transport.
        if length > MAX_AM {
            running.count_unhandled();
        } else {
            let unwinding = Received { state: self, receiver, counter };
            // SAFETY: the header lies before `DATA`, and `MAX_AM` bytes follow from `DATA` on. The
            // receive WQE is complete, so the device writes the buffer only after it is posted
            // again: below, after the handler has returned and the message has ended, or, if the
            // handler kept the message, when the kept message is dropped (the slot is empty until
            // then). `refill` wrote the headroom, which names this state.
            let (id, message) = unsafe {
                (start.add(MESSAGE + AM_ID).read(), Message::new(start.add(DATA), length))
            };
            running.dispatch(id, message);
            std::mem::forget(unwinding);
        }
        self.give_back(receiver, slot, counter);
    }

    /// Posts the buffer of receive WQE `counter` again, unless its slot is empty.
    #[inline(always)]
    fn give_back(&self, receiver: &Receiver, slot: &Cell<Option<NonNull<u8>>>, counter: u32) {
        if slot.get().is_none() {
            return self.replace(receiver);
        }
        self.with_ring(|ring| receiver.repost(ring, counter));
    }

    /// Handles a panic in the handler of the message of receive WQE `counter`.
    #[cold]
    #[inline(never)]
    fn repost(&self, receiver: &Receiver, counter: u32) {
        self.give_back(receiver, receiver.slot(counter), counter);
    }

    /// Handles an empty slot: the message was kept, or the endpoint was closed.
    #[cold]
    #[inline(never)]
    fn replace(&self, receiver: &Receiver) {
        if self.posting.is_alive() {
            self.with_ring(|ring| receiver.replace(ring, self));
        }
    }
}

impl Keeper for State {
    #[cold]
    fn keep(&self, start: NonNull<u8>, data: &[u8]) -> KeptMessage {
        let owner: Rc<dyn BufferOwner> =
            self.me.upgrade().expect("a state that is borrowed is alive");
        // If the handler closed the endpoint first, the slot is empty: the buffer is not returned,
        // and lives as long as its owner.
        let buffer = self.driver.receiver.as_ref().and_then(|receiver| receiver.take_at(start));
        // SAFETY: `data` lies in the buffer, which from now on only the kept message accesses, and
        // the kept message keeps its owner alive.
        unsafe { KeptMessage::new(data, buffer, owner) }
    }

    /// A spare buffer replaces the kept one.
    fn lends(&self) -> bool {
        self.driver.receiver.as_ref().is_some_and(|receiver| !receiver.pool.is_empty())
    }
}

/// Posts a message's buffer again if its handler panics.
struct Received<'a> {
    state: &'a State,
    receiver: &'a Receiver,
    counter: u32,
}

impl Drop for Received<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.state.repost(self.receiver, self.counter);
    }
}

impl BufferOwner for State {
    fn reclaim(&self, buffer: Lease) {
        let Some(receiver) = &self.driver.receiver else { return };
        receiver.pool.give(buffer);
        if self.posting.is_alive() {
            self.with_ring(|ring| receiver.refill(ring, self));
        }
    }
}
