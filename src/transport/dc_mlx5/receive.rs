//! Receiving: the buffers in the shared receive queue, and their messages.

use std::cell::{Cell, UnsafeCell};
use std::ptr::NonNull;
use std::rc::{Rc, Weak};

use barewire_mlx5::queue::shared_receive::{List, SharedReceiveQueue};
use barewire_mlx5::{DataSegment, MemoryRegion};

use super::Domain;
use crate::error::OpenError;
use crate::message::{BufferOwner, Keeper, KeptMessage, write_keeper};
use crate::transport::common::pool::{Lease, Pool};
use crate::transport::common::registered::{Domain as _, Registered};
use crate::transport::rc::{BUFFER, MESSAGE, SEGMENT};

/// Most buffers posted with one update of the doorbell record.
const BATCH: u32 = 16;

/// The buffers of an interface. WQE `n` of the queue always has buffer `n`.
pub(crate) struct Receiver {
    /// Declared before the memory that it uses, so that it is dropped first.
    queue: UnsafeCell<SharedReceiveQueue<List>>,
    /// Every buffer is taken: it is in the queue, or in a message.
    pool: Pool<Registered<MemoryRegion>, BUFFER>,
    start: NonNull<u8>,
    /// The buffer whose message is being delivered; [`NONE`] if it was kept.
    delivering: Cell<u32>,
    /// Number of buffers - 1.
    mask: u32,
    /// The doorbell record is updated whenever the count of posts is a multiple of a power of two;
    /// this is that power - 1.
    batch_mask: u32,
    me: Weak<Self>,
}

/// No buffer.
const NONE: u32 = u32::MAX;

impl Receiver {
    /// Creates a queue of `entries` buffers, a power of two, and posts all but one of them.
    pub(super) fn new(domain: &Domain, entries: u32) -> Result<Rc<Self>, OpenError> {
        let block = domain
            .blocks(entries as usize * BUFFER)
            .map_err(|e| domain.refused("register receive buffers", e))?;
        let key = block.key();
        let mut queue = SharedReceiveQueue::create(domain.protection(), entries, 1)
            .map_err(|e| domain.refused("create a shared receive queue", e))?;
        let pool = Pool::<_, BUFFER>::new(block);
        let Some(first) = pool.take() else {
            return Err(domain.refused("cut receive buffers", "there is none"));
        };
        let first = first.into_lease();
        let start = pool.start_of(&first);
        debug_assert_eq!(first.index(), 0);
        while let Some(buffer) = pool.take() {
            drop(buffer.into_lease());
        }
        let base = start.addr().get() as u64 + MESSAGE as u64;
        let segment = |index: u16| {
            DataSegment::new(base + u64::from(index) * BUFFER as u64, SEGMENT as u32, key)
        };
        if !queue.fill(segment) {
            return Err(domain.refused("post receive buffers", "the queue is in use"));
        }
        let receiver = Rc::new_cyclic(|me| Self {
            queue: UnsafeCell::new(queue),
            pool,
            start,
            delivering: Cell::new(NONE),
            mask: entries - 1,
            // Batching leaves the device at least three quarters of the buffers.
            batch_mask: (entries / 4).clamp(1, BATCH) - 1,
            me: me.clone(),
        });
        for index in 0..entries {
            // SAFETY: the headroom of a buffer that was taken from the pool, so no one else uses
            // it, and which the device does not write. A message, which reads it, is delivered by
            // the receiver, which thus lives.
            unsafe { write_keeper(receiver.buffer(index), &*receiver) };
        }
        receiver.with_queue(SharedReceiveQueue::publish);
        Ok(receiver)
    }

    /// Runs `run` with the queue. This is the only access to it.
    #[inline(always)]
    pub(super) fn with_queue<R>(&self, run: impl FnOnce(&mut SharedReceiveQueue<List>) -> R) -> R {
        // SAFETY: the receiver stays on its thread. Every `run` calls only the driver, which calls
        // no code of the transport or of the user. So no second reference to the queue exists while
        // this one does.
        run(unsafe { &mut *self.queue.get() })
    }

    /// Returns the start of the buffer of WQE `counter`.
    #[inline(always)]
    pub(super) fn buffer(&self, counter: u32) -> NonNull<u8> {
        // SAFETY: the pool's block has `mask + 1` buffers, and the mask keeps the index below.
        unsafe { self.start.add((counter & self.mask) as usize * BUFFER) }
    }

    /// Notes that the message in the buffer of WQE `counter` is being delivered.
    #[inline(always)]
    pub(super) fn begin(&self, counter: u32) {
        self.delivering.set(counter & self.mask);
    }

    /// Posts the buffer of the message that was delivered, unless it was kept.
    #[inline(always)]
    pub(super) fn end(&self) {
        let index = self.delivering.get();
        if index != NONE {
            self.recycle(index);
        }
    }

    #[inline(always)]
    fn recycle(&self, index: u32) {
        self.with_queue(|queue| {
            if queue.recycle(index as u16) && queue.posted() & self.batch_mask == 0 {
                queue.publish();
            }
        });
    }
}

impl Keeper for Receiver {
    #[cold]
    fn keep(&self, start: NonNull<u8>, data: &[u8]) -> KeptMessage {
        let owner: Rc<dyn BufferOwner> =
            self.me.upgrade().expect("a receiver that is borrowed is alive");
        let buffer = self.pool.lease_of(start);
        // Only the message that is being delivered can be kept.
        debug_assert_eq!(self.delivering.get() as usize, buffer.index());
        self.delivering.set(NONE);
        // SAFETY: `data` lies in the buffer, which from now on only the kept message accesses, and
        // the kept message keeps its owner alive.
        unsafe { KeptMessage::new(data, Some(buffer), owner) }
    }
}

impl BufferOwner for Receiver {
    fn reclaim(&self, buffer: Lease) {
        self.recycle(buffer.index() as u32);
        // The queue may be short of buffers.
        self.with_queue(SharedReceiveQueue::publish);
    }
}
