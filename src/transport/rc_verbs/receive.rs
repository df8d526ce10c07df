//! The receiving side of an endpoint: its buffers, which of them the device has, and which were kept.

use std::cell::Cell;
use std::ptr::NonNull;

use barewire_verbs::Element;

use super::{BUFFER, MESSAGE, SEGMENT};
use crate::active_message::{Keeper, write_home};
use crate::error::MemoryError;
use crate::pool::{Lease, Pool};
use crate::transport::rdma::Pair;
use crate::transport::rdma::{Domain, Registered};

pub(super) struct Receiver {
    pool: Pool<Registered, BUFFER>,
    key: u32,
    /// For each buffer where it starts, while its message is not kept.
    starts: Box<[Cell<Option<NonNull<u8>>>]>,
    /// Receive requests that the queue has room for.
    room: Cell<u32>,
}

impl Receiver {
    /// Buffers for a queue of `entries`, and `spare` more that stand in for kept ones. `keeper` keeps their messages.
    pub(super) fn new(domain: &Domain, entries: u32, spare: u32) -> Result<Self, MemoryError> {
        let count = entries as usize + spare as usize;
        let block = Registered::allocate(domain, count * BUFFER)?;
        Ok(Self {
            key: block.key(),
            pool: Pool::new(block),
            starts: (0..count).map(|_| Cell::new(None)).collect(),
            room: Cell::new(entries),
        })
    }

    /// The message in this buffer was received: where the buffer starts.
    #[inline(always)]
    pub(super) fn arrived(&self, buffer: u32) -> Option<NonNull<u8>> {
        self.room.set(self.room.get() + 1);
        self.start(buffer)
    }

    /// Where the buffer starts, unless its message was kept.
    #[inline(always)]
    pub(super) fn start(&self, buffer: u32) -> Option<NonNull<u8>> {
        self.starts.get(buffer as usize)?.get()
    }

    /// The message of the buffer that starts at `start` is kept: the buffer is its own now.
    pub(super) fn keep(&self, start: NonNull<u8>) -> Option<Lease> {
        let lease = self.pool.lease_of(start);
        self.starts.get(lease.index())?.take().map(|_| lease)
    }

    /// A kept message is dropped.
    pub(super) fn reclaim(&self, buffer: Lease) {
        self.pool.give(buffer);
    }

    /// The buffer's message is done with: it goes back to the device.
    #[inline(always)]
    pub(super) fn repost(&self, pair: &Pair, buffer: u32, start: NonNull<u8>) {
        let address = start.addr().get() as u64 + MESSAGE as u64;
        // A queue pair in error may refuse; the buffer is then not used any more.
        if pair.receive(buffer, Element::new(address, SEGMENT as u32, self.key)).is_ok() {
            self.room.set(self.room.get() - 1);
        }
    }

    /// Posts as many free buffers as the queue takes.
    pub(super) fn refill(&self, pair: &Pair, keeper: &dyn Keeper) {
        while self.room.get() > 0
            && let Some(buffer) = self.pool.take()
        {
            let lease = buffer.into_lease();
            let (index, start) = (lease.index(), self.pool.start_of(&lease));
            // SAFETY: the first bytes of a buffer, which are not the device's.
            unsafe { write_home(start, keeper) };
            if let Some(place) = self.starts.get(index) {
                place.set(Some(start));
            }
            let room = self.room.get();
            self.repost(pair, index as u32, start);
            if self.room.get() == room {
                return;
            }
        }
    }
}
