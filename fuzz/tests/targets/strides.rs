//! A shared receive queue with strides, whose device writes any completions.

use std::cell::UnsafeCell;
use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::Arc;

use barewire_layouts::be::{Be16, Be32};
use barewire_layouts::cqe::{Cqe64, CqeOpcode, PacketFields};
use barewire_layouts::wqe::DataSegment;
use barewire_mlx5::queue::completion::CompletionQueue;
use barewire_mlx5::queue::shared_receive::{
    List, Packet, SharedReceiveParts, SharedReceiveQueue, Strides, StridingReceiveQueue, wqe_bytes,
};
use bolero::check;
use zerocopy::{FromZeros, IntoBytes, transmute};

use crate::completions::{ENTRIES, Ring};
use crate::script::{Script, bytes_to};

const WQES: u32 = 4;
const SEGMENTS: usize = 16;
const WQE: usize = wqe_bytes(SEGMENTS);

/// WQEs and doorbell record, accessed through pointers only.
#[repr(C, align(64))]
struct Memory {
    wqes: UnsafeCell<[u8; WQES as usize * WQE]>,
    record: UnsafeCell<u32>,
}

// SAFETY: only the thread of the test uses it.
unsafe impl Send for Memory {}
// SAFETY: only the thread of the test uses it.
unsafe impl Sync for Memory {}

fn striding(strides: Strides) -> StridingReceiveQueue {
    let wqes = UnsafeCell::new([0; WQES as usize * WQE]);
    let memory = Arc::new(Memory { wqes, record: UnsafeCell::new(0) });
    let ring = NonNull::from(&memory.wqes).cast();
    // SAFETY: the ring has `WQES` WQEs of `WQE` bytes, and lives as long as the queue, which is the
    // only user of it and of the record.
    let queue = unsafe {
        SharedReceiveQueue::<List>::from_parts(SharedReceiveParts {
            ring,
            entries: WQES,
            segments: SEGMENTS,
            doorbell_record: NonNull::from(&memory.record).cast(),
            keep: memory,
        })
    };
    StridingReceiveQueue::new(queue, strides).expect("room for a segment per stride")
}

/// No two packets share a stride, and each lies in the buffer of its WQE, whatever the device
/// writes.
#[test]
fn any_packets_of_strides() {
    check!().with_generator(bytes_to(4096)).for_each(|bytes| {
        let mut script = Script::new(bytes);
        let strides = Strides::new(3 + script.byte() % 2, 6 + script.byte() % 8).expect("valid");
        let mut queue = striding(strides);
        let length = queue.buffer_bytes();
        let buffer = |index| DataSegment::new(u64::from(index) * u64::from(length), length, 7);
        assert!(queue.fill(buffer) && !queue.fill(buffer));
        let ring = Ring::<Cqe64>::new();
        // SAFETY: the ring is initialised, lives as long as the queue, and only this thread writes
        // it.
        let mut completions = unsafe { CompletionQueue::from_parts(ring.parts()) };
        let mut held: Vec<Packet> = Vec::new();
        let mut next = 0_u32;
        while !script.is_over() {
            let what = script.byte();
            match what % 4 {
                // A completion in the next slot, of which the script changes up to three bytes.
                0 | 1 => {
                    let [stride, counter] = script.array();
                    let mut packet = PacketFields::new_zeroed();
                    packet.checksum = Be16::new(u16::from(stride % 32));
                    let lap = (next / ENTRIES % 2) as u8;
                    let mut entry = Cqe64 {
                        metadata: transmute!(packet),
                        byte_count: Be32::new(u32::from(script.number()) | u32::from(what) << 24),
                        wqe_counter: Be16::new(counter.into()),
                        op_own: (CqeOpcode::ResponderSend as u8) << 4 | lap,
                        ..Cqe64::INITIAL
                    };
                    script.mutate(entry.as_mut_bytes());
                    ring.write((next % ENTRIES) as u8, entry.as_bytes());
                    next += 1;
                    while let Some(polled) = completions.poll() {
                        held.extend(queue.take(polled));
                    }
                    completions.publish_consumer();
                }
                2 if !held.is_empty() => {
                    let at = usize::from(script.byte()) % held.len();
                    if queue.release(held.swap_remove(at)) {
                        queue.publish();
                    }
                }
                _ => {
                    if queue.fail(script.number()) {
                        queue.publish();
                    }
                }
            }
            let places: HashSet<_> = held.iter().map(|held| (held.wqe(), held.offset())).collect();
            assert_eq!(places.len(), held.len(), "two packets in a stride");
            assert!(held.len() <= (WQES * strides.count()) as usize);
            for packet in &held {
                assert!(u32::from(packet.wqe()) < WQES);
                assert!(packet.offset() + u32::from(packet.length()) <= length, "{packet:?}");
            }
        }
    });
}
