//! A send queue over plain memory that exposes what was written.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;

use barewire_mlx5::ControlFlags;
use barewire_mlx5::queue::send::{SendParts, SendQueue};
use barewire_mlx5::request::Nop;

/// Size of a block of the send ring in bytes.
pub(crate) const BLOCK: usize = 64;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Block([u8; BLOCK]);

/// Ring, register and doorbell record.
#[repr(C, align(512))]
struct Memory {
    register: UnsafeCell<[u8; 512]>,
    ring: Box<[UnsafeCell<Block>]>,
    record: UnsafeCell<[u32; 2]>,
}

// SAFETY: a queue over this memory stays on one thread, and nothing else accesses the memory.
unsafe impl Sync for Memory {}
// SAFETY: a queue over this memory stays on one thread, and nothing else accesses the memory.
unsafe impl Send for Memory {}

/// A send queue over plain memory.
pub(crate) struct PlainQueue {
    pub(crate) queue: SendQueue,
    memory: Arc<Memory>,
    /// Blocks posted.
    producer: u32,
}

impl PlainQueue {
    /// A queue of `blocks` blocks.
    pub(crate) fn new(qpn: u32, blocks: u32, signal_period: u32) -> Self {
        let memory = Arc::new(Memory {
            register: UnsafeCell::new([0; 512]),
            ring: (0..blocks).map(|_| UnsafeCell::new(Block([0; BLOCK]))).collect(),
            record: UnsafeCell::new([0; 2]),
        });
        let ring = NonNull::from(&*memory.ring).cast();
        let record =
            NonNull::new(memory.record.get()).expect("a reference is not null").cast::<u32>();
        // SAFETY: the memory has the required sizes and alignments, and `keep` keeps it alive.
        let queue = unsafe {
            SendQueue::from_parts(SendParts {
                ring,
                blocks,
                doorbell_record: record.add(1),
                register: NonNull::new(memory.register.get())
                    .expect("a reference is not null")
                    .cast(),
                qpn,
                signal_period,
                keep: memory.clone(),
            })
        };
        Self { queue, memory, producer: 0 }
    }

    /// Advances to counter value `producer`, modulo 2^16, by posting and reaping NOPs.
    pub(crate) fn advance(&mut self, producer: u32) {
        while self.producer as u16 != producer as u16 {
            self.queue.post(Nop, ControlFlags::empty()).expect("all of the ring is free");
            self.reap();
        }
    }

    /// Treats everything posted as complete.
    pub(crate) fn reap(&mut self) {
        let posted = self.queue.blocks() - self.queue.room();
        self.producer = self.producer.wrapping_add(posted);
        if let Some(last) = self.queue.last_index() {
            self.queue.reap(last.0);
        }
    }

    /// Sets every byte of ring and register to `filler`.
    pub(crate) fn fill(&mut self, filler: u8) {
        // SAFETY: nothing else accesses the memory during the call.
        unsafe {
            self.memory.ring.iter().for_each(|block| *block.get() = Block([filler; BLOCK]));
            (*self.memory.register.get()).fill(filler);
        }
    }

    /// The blocks that were posted and not reaped.
    pub(crate) fn posted(&self) -> Vec<u8> {
        let blocks = (self.queue.blocks() - self.queue.room()) as usize;
        self.ring(self.producer as usize % self.queue.blocks() as usize, blocks * BLOCK)
    }

    /// `bytes` bytes from `slot` on, in ring order.
    pub(crate) fn ring(&self, slot: usize, bytes: usize) -> Vec<u8> {
        let ring = &self.memory.ring;
        // SAFETY: nothing writes the memory during the call.
        let block = |at: usize| unsafe { *ring[at % ring.len()].get() };
        (0..bytes).map(|at| block(slot + at / BLOCK).0[at % BLOCK]).collect()
    }

    /// Both words of the doorbell record.
    pub(crate) fn record(&self) -> Vec<u8> {
        // SAFETY: nothing writes the memory during the call.
        unsafe { (*self.memory.record.get()).iter().flat_map(|word| word.to_ne_bytes()).collect() }
    }

    /// Both halves of the register.
    pub(crate) fn register(&self) -> Vec<u8> {
        // SAFETY: nothing writes the memory during the call.
        unsafe { (*self.memory.register.get()).to_vec() }
    }
}
