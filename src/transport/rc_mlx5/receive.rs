//! Receiving: the buffers in the receive ring, and the messages in them.

use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;

use barewire_mlx5::{DataSegment, MemoryRegion, ReceiveQueue};

use super::domain::Domain;
use super::driver::State;
use crate::error::MemoryError;
use crate::message::{Keeper, KeptMessage, Message, Reclaim, write_home};
use crate::transport::common::handlers::Running;
use crate::transport::common::pool::{Lease, Pool};
use crate::transport::common::registered::{Domain as _, Registered};
use crate::transport::rc::{AM_HEADER, BUFFER, DATA, MAX_AM, MESSAGE, SEGMENT};

/// Most buffers that are posted with one update of the doorbell record.
const BATCH: u32 = 16;

pub(super) struct Receiver {
    pub(super) pool: Pool<Registered<MemoryRegion>, BUFFER>,
    key: u32,
    /// Start of the buffer in each slot of the ring; `None` once it was kept, and after [`Self::close`].
    slots: Box<[Cell<Option<NonNull<u8>>>]>,
    /// Slots - 1.
    mask: u32,
    /// The slot that each buffer was put in last.
    homes: Box<[Cell<u32>]>,
    /// The doorbell record is updated whenever the producer is a multiple of a power of two; this is one
    /// less.
    batch_mask: u32,
}

impl Receiver {
    /// Buffers for a ring of `entries`, a power of two, and `spare` more that stand in for kept ones.
    pub(super) fn new(domain: &Domain, entries: u32, spare: u32) -> Result<Self, MemoryError> {
        let count = entries as usize + spare as usize;
        let block = domain.blocks(count * BUFFER)?;
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

    /// The index of WQE `counter` in the ring, which identifies it: one WQE at a time is there.
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

    /// Posts the buffer of WQE `counter` again, whose message has ended.
    #[inline(always)]
    fn repost(&self, queue: &mut ReceiveQueue, counter: u32) {
        // Usually the next slot is the same one, which still has its WQE.
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
        // The ring is short of buffers, so that the device gets this one without waiting for a batch.
        queue.publish();
    }

    /// A buffer was kept: posts another, if there is one.
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

    /// Posts as many free buffers as the ring has room for. `keeper` keeps their messages.
    pub(super) fn refill(&self, queue: &mut ReceiveQueue, keeper: &dyn Keeper) {
        while queue.room() > 0
            && let Some(buffer) = self.pool.take()
        {
            let buffer = buffer.into_lease();
            // SAFETY: the first bytes of a buffer, which the device does not write.
            unsafe { write_home(self.pool.start_of(&buffer), keeper) };
            self.post(queue, buffer);
        }
        queue.publish();
    }

    /// From now on messages that were received but not delivered are dropped.
    pub(super) fn close(&self) {
        self.slots.iter().for_each(|slot| slot.set(None));
    }
}

impl State {
    /// Delivers the message of `length` bytes in the buffer of receive WQE `counter`.
    #[inline(always)]
    pub(super) fn receive(&self, running: &mut Running<'_, false>, counter: u32, length: u32) {
        // The index, so that fewer values outlive the handler.
        let counter = self.driver.receiver.index(counter);
        let slot = self.driver.receiver.slot(counter);
        let Some(start) = slot.get() else { return };
        // Shorter than its header, or longer than a buffer: no endpoint of this transport sent it.
        let length = length.wrapping_sub(AM_HEADER as u32) as usize;
        if length > MAX_AM {
            running.count_unhandled();
        } else {
            let unwinding = Received { state: self, counter };
            // SAFETY: before `DATA` lies the header, and from `DATA` on there are `MAX_AM` bytes. The
            // receive WQE is completed, so the device writes the buffer only after it is posted again:
            // below, after the handler has returned and the message has ended, or, if the handler kept
            // the message, when the kept message is dropped (its slot is empty until then). `refill`
            // wrote the buffer's home, which names this state.
            let (id, message) = unsafe { (start.add(MESSAGE).read(), Message::new(start.add(DATA), length)) };
            running.dispatch(id, message);
            std::mem::forget(unwinding);
        }
        self.give_back(slot, counter);
    }

    /// Posts the buffer of receive WQE `counter` again, unless its slot is empty.
    #[inline(always)]
    fn give_back(&self, slot: &Cell<Option<NonNull<u8>>>, counter: u32) {
        if slot.get().is_none() {
            return self.replace();
        }
        self.with_queue(|pair| self.driver.receiver.repost(&mut pair.receive, counter));
    }

    /// The handler of the message of receive WQE `counter` panicked.
    #[cold]
    #[inline(never)]
    fn repost(&self, counter: u32) {
        self.give_back(self.driver.receiver.slot(counter), counter);
    }

    /// The message was kept, or the endpoint was closed.
    #[cold]
    #[inline(never)]
    fn replace(&self) {
        if self.gate.is_alive() {
            self.with_queue(|pair| self.driver.receiver.replace(&mut pair.receive, self));
        }
    }
}

impl Keeper for State {
    #[cold]
    fn keep(&self, start: NonNull<u8>, data: &[u8]) -> KeptMessage {
        let owner: Rc<dyn Reclaim> = self.me.upgrade().expect("a state that is borrowed is alive");
        // If the handler closed the endpoint before, the slot is empty: the buffer is not given back, and
        // lives as long as its owner.
        let buffer = self.driver.receiver.take_at(start);
        // SAFETY: `data` lies in the buffer, which is now the kept message's alone, and its owner outlives it.
        unsafe { KeptMessage::new(data, buffer, owner) }
    }
}

/// Posts a message's buffer again if its handler panics.
struct Received<'a> {
    state: &'a State,
    counter: u32,
}

impl Drop for Received<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.state.repost(self.counter);
    }
}

impl Reclaim for State {
    fn reclaim(&self, buffer: Lease) {
        self.driver.receiver.pool.give(buffer);
        if self.gate.is_alive() {
            self.with_queue(|pair| self.driver.receiver.refill(&mut pair.receive, self));
        }
    }
}
