//! Queues in plain memory, with checks after the bench: a refused post would cost little.

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::Arc;

use barewire_mlx5::doorbell::Doorbell;
use barewire_mlx5::layouts::be::{Be16, Be32};
use barewire_mlx5::layouts::cqe::{Cqe64, CqeOpcode, StrideCount};
use barewire_mlx5::layouts::wqe::{AddressVector, ControlFlags, DataSegment, XrcSegment};
use barewire_mlx5::queue::completion::{CompletionParts, CompletionQueue, Polled};
use barewire_mlx5::queue::receive::{ReceiveParts, ReceiveQueue};
use barewire_mlx5::queue::send::{SendParts, SendQueue};
use barewire_mlx5::queue::shared_receive::{
    SharedReceiveParts, SharedReceiveQueue, Strides, StridingReceiveQueue,
};
use barewire_mlx5::queue::tags::TagList;
use barewire_mlx5::request::Nop;

use crate::budget::{BATCH, ROUNDS};

/// Blocks of the send ring: room for every WQE of a bench.
const BLOCKS: usize = (ROUNDS * BATCH) as usize;
/// At least one completion is requested in this many WQEs.
const SIGNAL_PERIOD: u32 = 64;

#[repr(C, align(4096))]
struct Memory {
    register: UnsafeCell<[u8; 512]>,
    record: UnsafeCell<[u32; 2]>,
    ring: UnsafeCell<Ring>,
}

#[repr(C, align(64))]
struct Ring([u8; BLOCKS * 64]);

// SAFETY: a bench uses one thread.
unsafe impl Sync for Memory {}
// SAFETY: a bench uses one thread.
unsafe impl Send for Memory {}

fn memory() -> Arc<Memory> {
    // SAFETY: the structure consists of bytes and numbers, for which zeros are valid.
    unsafe { Arc::<Memory>::new_zeroed().assume_init() }
}

fn pointer<T, U>(cell: &UnsafeCell<T>) -> NonNull<U> {
    NonNull::new(cell.get()).expect("a reference is not null").cast()
}

/// Leaks the state of a bench, so that the bench moves a reference and drops nothing.
fn leak<T>(value: T) -> &'static mut T {
    Box::leak(Box::new(value))
}

/// An empty send queue.
pub(crate) fn send_queue<D: Doorbell>() -> &'static mut SendQueue<D> {
    leak(new_send_queue())
}

fn new_send_queue<D: Doorbell>() -> SendQueue<D> {
    let memory = memory();
    // SAFETY: the parts of `memory` have the required sizes and alignments, and `keep` keeps it
    // alive.
    unsafe {
        SendQueue::from_parts(SendParts {
            ring: pointer(&memory.ring),
            blocks: BLOCKS as u32,
            doorbell_record: pointer(&memory.record),
            register: pointer(&memory.register),
            qpn: black_box(72),
            signal_period: black_box(SIGNAL_PERIOD),
            keep: memory.clone(),
        })
    }
}

/// An empty receive queue.
pub(crate) fn receive_queue() -> &'static mut ReceiveQueue {
    let memory = memory();
    // SAFETY: the parts of `memory` have the required sizes and alignments, since a receive WQE is
    // shorter than a block, and `keep` keeps it alive.
    leak(unsafe {
        ReceiveQueue::from_parts(ReceiveParts {
            ring: pointer(&memory.ring),
            entries: BLOCKS as u32,
            doorbell_record: pointer(&memory.record),
            keep: memory.clone(),
        })
    })
}

/// An empty shared receive queue.
pub(crate) fn shared_receive_queue() -> &'static mut SharedReceiveQueue {
    let memory = memory();
    // SAFETY: the parts of `memory` have the required sizes and alignments, since a WQE of one
    // segment is half a block, and `keep` keeps it alive.
    leak(unsafe {
        SharedReceiveQueue::from_parts(SharedReceiveParts {
            ring: pointer(&memory.ring),
            entries: BLOCKS as u32,
            segments: 1,
            doorbell_record: pointer(&memory.record),
            keep: memory.clone(),
        })
    })
}

/// An empty list of tags with room for an entry in each round.
pub(crate) fn tag_list() -> &'static mut TagList {
    leak(TagList::new(new_send_queue(), 2 * ROUNDS as u32))
}

/// A list with as many entries.
pub(crate) fn filled_tag_list() -> &'static mut TagList {
    let list = tag_list();
    for tag in 0..ROUNDS {
        list.append(tag, u64::MAX, DataSegment::new(0, 0, 0)).expect("room for all");
    }
    list
}

/// The destination of datagrams, opaque to the compiler.
pub(crate) fn destination() -> AddressVector {
    black_box(AddressVector::roce(9, 0x1234, [2; 6], [3; 16], 49152, 0, 64))
}

/// The receive queue of XRC requests, opaque to the compiler.
pub(crate) fn receiver() -> XrcSegment {
    black_box(XrcSegment::new(0x1234))
}

/// An empty completion queue.
pub(crate) fn empty_completion_queue() -> &'static mut CompletionQueue {
    leak(completion_queue(0))
}

/// A send queue with [`ROUNDS`] times [`BATCH`] WQEs posted, and their completions.
pub(crate) fn completed() -> &'static mut (CompletionQueue, SendQueue) {
    let mut queue = new_send_queue();
    for _ in 0..BLOCKS {
        queue.post(Nop, ControlFlags::empty()).expect("room for all");
    }
    leak((completion_queue(ROUNDS as u32), queue))
}

/// log2 of the strides of a WQE.
const LOG_STRIDES: u8 = 4;

/// A striding queue, and the completions of [`ROUNDS`] packets.
pub(crate) fn packets() -> &'static mut (CompletionQueue, StridingReceiveQueue) {
    let memory = memory();
    // A WQE of 16 strides takes eight blocks.
    let entries = BLOCKS as u32 / 8;
    // SAFETY: the parts of `memory` have the required sizes and alignments, and `keep` keeps it
    // alive.
    let queue = unsafe {
        SharedReceiveQueue::from_parts(SharedReceiveParts {
            ring: pointer(&memory.ring),
            entries,
            segments: 1 << LOG_STRIDES,
            doorbell_record: pointer(&memory.record),
            keep: memory.clone(),
        })
    };
    let strides = Strides::new(black_box(LOG_STRIDES), black_box(12)).expect("valid");
    let mut queue = StridingReceiveQueue::new(queue, strides).expect("room for the segments");
    let bytes = queue.buffer_bytes();
    assert!(queue.fill(|_| DataSegment::new(0x1000, bytes, 7)));
    let completions = completions(ROUNDS as u32, |at| {
        let mut cqe = Cqe64 {
            byte_count: Be32::new(StrideCount::new(64, true, true).0),
            wqe_counter: Be16::new((at >> LOG_STRIDES) as u16),
            op_own: (CqeOpcode::ResponderSend as u8) << 4,
            ..Cqe64::INITIAL
        };
        // Stride: the low byte of its field.
        cqe.metadata[21] = (at % (1 << LOG_STRIDES)) as u8;
        cqe
    });
    leak((completions, queue))
}

/// Asserts that every packet was taken, and its WQE posted again.
pub(crate) fn released(
    queues: &'static mut (CompletionQueue, StridingReceiveQueue),
) -> &'static mut (CompletionQueue, StridingReceiveQueue) {
    let (completions, queue) = queues;
    assert_eq!(completions.poll().map(Polled::completion), None);
    let (entries, again) = (queue.queue().entries(), (ROUNDS >> LOG_STRIDES) as u32);
    assert_eq!(queue.queue().posted(), entries - 1 + again, "WQEs posted");
    queues
}

/// A completion queue with `filled` send completions, each of the last of [`BATCH`] WQEs.
fn completion_queue(filled: u32) -> CompletionQueue {
    completions(filled, |at| Cqe64 {
        opcode_qpn: Be32::new(0x0800_0048),
        wqe_counter: Be16::new(((at + 1) * BATCH as u32 - 1) as u16),
        op_own: 0,
        ..Cqe64::INITIAL
    })
}

/// A completion queue with `filled` completions.
fn completions(filled: u32, cqe: impl Fn(u32) -> Cqe64) -> CompletionQueue {
    let memory = memory();
    let ring: NonNull<Cqe64> = pointer(&memory.ring);
    // SAFETY: the parts of `memory` have the required sizes and alignments, and `keep` keeps it
    // alive. The CQEs are written before the queue is polled.
    unsafe {
        CompletionQueue::initialise(ring, BLOCKS as u32);
        for at in 0..filled {
            ring.add(at as usize).write(cqe(at));
        }
        CompletionQueue::from_parts(CompletionParts {
            ring,
            entries: BLOCKS as u32,
            doorbell_record: pointer(&memory.record),
            keep: memory.clone(),
        })
    }
}

/// Asserts that every round posted a WQE of `N` blocks.
pub(crate) fn posted<const N: u64, D: Doorbell>(
    queue: &'static mut SendQueue<D>,
) -> &'static mut SendQueue<D> {
    assert_eq!(u64::from(queue.blocks() - queue.room()), ROUNDS * N, "blocks posted");
    queue
}

/// Asserts that every round pushed `N` receive WQEs.
pub(crate) fn pushed<const N: u64>(queue: &'static mut ReceiveQueue) -> &'static mut ReceiveQueue {
    assert_eq!(u64::from(queue.entries() - queue.room()), ROUNDS * N, "receive WQEs posted");
    queue
}

/// Asserts that every round pushed a WQE; one entry of a list always stays behind.
pub(crate) fn pushed_shared(
    queue: &'static mut SharedReceiveQueue,
) -> &'static mut SharedReceiveQueue {
    assert_eq!(u64::from(queue.entries() - 1 - queue.room()), ROUNDS, "receive WQEs posted");
    queue
}

/// Asserts that every round appended an entry.
pub(crate) fn appended(list: &'static mut TagList) -> &'static mut TagList {
    assert!((0..ROUNDS).all(|entry| list.is_used(entry as u16)), "entries appended");
    assert_eq!(u64::from(list.next()), ROUNDS);
    list
}

/// Asserts that the removal of every entry is under way.
pub(crate) fn removing(list: &'static mut TagList) -> &'static mut TagList {
    assert!((0..ROUNDS).all(|entry| list.remove(entry as u16) == Ok(false)), "entries removed");
    list
}

/// Asserts that there were no completions.
pub(crate) fn still_empty(queue: &'static mut CompletionQueue) -> &'static mut CompletionQueue {
    assert_eq!(queue.poll().map(Polled::completion), None);
    queue
}

/// Asserts that every completion was taken, and that the last one freed everything before it.
pub(crate) fn reaped(
    queues: &'static mut (CompletionQueue, SendQueue),
) -> &'static mut (CompletionQueue, SendQueue) {
    let (completions, queue) = queues;
    assert_eq!(completions.poll().map(Polled::completion), None);
    assert!(queue.is_idle(), "all blocks are free again");
    queues
}
