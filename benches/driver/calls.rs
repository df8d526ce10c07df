//! *held*: each operation behind a call, with arguments that arrive in registers. `benches/asm/` has the assembly of some.
//!
//! The functions are exported, so that the optimiser keeps them whole and knows nothing of their arguments.

#![allow(clippy::no_mangle_with_rust_abi, reason = "the name is for the assembly listings")]

use std::hint::black_box;

use barewire_mlx5::doorbell::PlainDoorbell;
use barewire_mlx5::layouts::wqe::AddressVector;
use barewire_mlx5::queue::shared_receive::SharedReceiveQueue;
use barewire_mlx5::{CompletionQueue, Polled, ReceiveQueue, SendQueue};
use iai_callgrind::{library_benchmark, library_benchmark_group};

use crate::budget::{BATCH, Level, ROUNDS, Shape};
use crate::operation::{self, Local, Remote};
use crate::queues::{
    completed, destination, empty_completion_queue, posted, pushed, pushed_shared, reaped, receive_queue,
    send_queue, shared_receive_queue, still_empty,
};

fn gate(bench: &str) -> iai_callgrind::LibraryBenchmarkConfig {
    crate::gate::gate(Level::Driver, Shape::Held, bench)
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_write_8(queue: &mut SendQueue, payload: u64, address: u64, rkey: u32) -> bool {
    operation::write_8(queue, payload, Remote { address, rkey })
}

#[library_benchmark(config = gate("write_8"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn write_8(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let (address, rkey) = black_box((0x1000, 7));
    for round in 0..ROUNDS {
        held_write_8(queue, round, address, rkey);
    }
    queue
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_write_slice(queue: &mut SendQueue, payload: &[u8], address: u64, rkey: u32) -> bool {
    operation::write_slice(queue, payload, Remote { address, rkey })
}

#[library_benchmark(config = gate("write_8_run_time"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn write_8_run_time(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let (payload, address, rkey) = black_box((&[7; 8][..], 0x1000, 7));
    for _ in 0..ROUNDS {
        held_write_slice(queue, payload, address, rkey);
    }
    queue
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_write_8_plain(queue: &mut SendQueue<PlainDoorbell>, payload: u64, address: u64, rkey: u32) -> bool {
    operation::write_8(queue, payload, Remote { address, rkey })
}

#[library_benchmark(config = gate("write_8_plain"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn write_8_plain(queue: &'static mut SendQueue<PlainDoorbell>) -> &'static mut SendQueue<PlainDoorbell> {
    let (address, rkey) = black_box((0x1000, 7));
    for round in 0..ROUNDS {
        held_write_8_plain(queue, round, address, rkey);
    }
    queue
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_write_64(queue: &mut SendQueue, payload: &[u8; 64], address: u64, rkey: u32) -> bool {
    operation::write_slice(queue, payload, Remote { address, rkey })
}

#[library_benchmark(config = gate("write_64"))]
#[bench::run(args = (send_queue()), teardown = posted::<2, _>)]
fn write_64(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let (payload, address, rkey) = black_box((&[7; 64], 0x1000, 7));
    for _ in 0..ROUNDS {
        held_write_64(queue, payload, address, rkey);
    }
    queue
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_write_segment(
    queue: &mut SendQueue,
    local: u64,
    length: u32,
    lkey: u32,
    address: u64,
    rkey: u32,
) -> bool {
    operation::write_segment(queue, Local { address: local, length, lkey }, Remote { address, rkey })
}

#[library_benchmark(config = gate("write_segment"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn write_segment(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let (local, length, lkey, address, rkey) = black_box((0x2000, 64, 9, 0x1000, 7));
    for _ in 0..ROUNDS {
        held_write_segment(queue, local, length, lkey, address, rkey);
    }
    queue
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_read_segment(
    queue: &mut SendQueue,
    local: u64,
    length: u32,
    lkey: u32,
    address: u64,
    rkey: u32,
) -> bool {
    operation::read_segment(queue, Local { address: local, length, lkey }, Remote { address, rkey })
}

#[library_benchmark(config = gate("read_segment"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn read_segment(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let (local, length, lkey, address, rkey) = black_box((0x2000, 64, 9, 0x1000, 7));
    for _ in 0..ROUNDS {
        held_read_segment(queue, local, length, lkey, address, rkey);
    }
    queue
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_send_8(queue: &mut SendQueue, payload: u64) -> bool {
    operation::send_8(queue, payload)
}

#[library_benchmark(config = gate("send_8"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn send_8(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    for round in 0..ROUNDS {
        held_send_8(queue, round);
    }
    queue
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_send_prefixed(queue: &mut SendQueue, id: u8, header: u64, payload: u64) -> bool {
    operation::send_prefixed(queue, id, header, payload)
}

#[library_benchmark(config = gate("send_prefixed"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn send_prefixed(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let (id, payload) = black_box((1, 5));
    for round in 0..ROUNDS {
        held_send_prefixed(queue, id, round, payload);
    }
    queue
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_send_segment(queue: &mut SendQueue, local: u64, length: u32, lkey: u32) -> bool {
    operation::send_segment(queue, Local { address: local, length, lkey })
}

#[library_benchmark(config = gate("send_segment"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn send_segment(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let (local, length, lkey) = black_box((0x2000, 64, 9));
    for _ in 0..ROUNDS {
        held_send_segment(queue, local, length, lkey);
    }
    queue
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_fetch_add(
    queue: &mut SendQueue,
    local: u64,
    lkey: u32,
    address: u64,
    rkey: u32,
    operand: u64,
) -> bool {
    let local = Local { address: local, length: 8, lkey };
    operation::fetch_add(queue, local, Remote { address, rkey }, operand)
}

#[library_benchmark(config = gate("fetch_add"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn fetch_add(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let (local, lkey, address, rkey) = black_box((0x2000, 9, 0x1000, 7));
    for round in 0..ROUNDS {
        held_fetch_add(queue, local, lkey, address, rkey, round);
    }
    queue
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_compare_swap(
    queue: &mut SendQueue,
    local: u64,
    lkey: u32,
    address: u64,
    rkey: u32,
    compare: u64,
    swap: u64,
) -> bool {
    let local = Local { address: local, length: 8, lkey };
    operation::compare_swap(queue, local, Remote { address, rkey }, compare, swap)
}

#[library_benchmark(config = gate("compare_swap"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn compare_swap(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let (local, lkey, address, rkey) = black_box((0x2000, 9, 0x1000, 7));
    for round in 0..ROUNDS {
        held_compare_swap(queue, local, lkey, address, rkey, round, round + 1);
    }
    queue
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_masked_fetch_add(
    queue: &mut SendQueue,
    local: u64,
    lkey: u32,
    address: u64,
    rkey: u32,
    operand: u64,
) -> bool {
    let local = Local { address: local, length: 8, lkey };
    operation::masked_fetch_add(queue, local, Remote { address, rkey }, operand)
}

#[library_benchmark(config = gate("masked_fetch_add"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn masked_fetch_add(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let (local, lkey, address, rkey) = black_box((0x2000, 9, 0x1000, 7));
    for round in 0..ROUNDS {
        held_masked_fetch_add(queue, local, lkey, address, rkey, round);
    }
    queue
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_send_datagram(queue: &mut SendQueue, destination: &AddressVector, payload: u64) -> bool {
    operation::send_datagram(queue, destination, payload)
}

#[library_benchmark(config = gate("send_datagram"))]
#[bench::run(args = (send_queue(), destination()), teardown = posted::<2, _>)]
fn send_datagram(queue: &'static mut SendQueue, destination: AddressVector) -> &'static mut SendQueue {
    for round in 0..ROUNDS {
        held_send_datagram(queue, &destination, round);
    }
    queue
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_write_batch(queue: &mut SendQueue, words: &[u64; BATCH as usize], address: u64, rkey: u32) -> bool {
    operation::write_batch(queue, words, Remote { address, rkey })
}

#[library_benchmark(config = gate("write_batch"))]
#[bench::run(args = (send_queue()), teardown = posted::<BATCH, _>)]
fn write_batch(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let (words, address, rkey) = black_box((&[7; _], 0x1000, 7));
    for _ in 0..ROUNDS {
        held_write_batch(queue, words, address, rkey);
    }
    queue
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_poll(queue: &mut CompletionQueue) -> Option<Polled<'_>> {
    operation::poll(queue)
}

#[library_benchmark(config = gate("poll_empty"))]
#[bench::run(args = (empty_completion_queue()), teardown = still_empty)]
fn poll_empty(queue: &'static mut CompletionQueue) -> &'static mut CompletionQueue {
    // Eight in a round, as the loop would be a quarter of what is counted.
    for _ in 0..ROUNDS / 8 {
        held_poll(queue);
        held_poll(queue);
        held_poll(queue);
        held_poll(queue);
        held_poll(queue);
        held_poll(queue);
        held_poll(queue);
        held_poll(queue);
    }
    queue
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_reap(completions: &mut CompletionQueue, queue: &mut SendQueue) -> bool {
    operation::reap(completions, queue)
}

#[library_benchmark(config = gate("reap"))]
#[bench::run(args = (completed()), teardown = reaped)]
fn reap(queues: &'static mut (CompletionQueue, SendQueue)) -> &'static mut (CompletionQueue, SendQueue) {
    let (completions, queue) = &mut *queues;
    for _ in 0..ROUNDS {
        held_reap(completions, queue);
    }
    queues
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_receive(queue: &mut ReceiveQueue, address: u64, length: u32, lkey: u32) -> bool {
    operation::receive(queue, Local { address, length, lkey })
}

#[library_benchmark(config = gate("receive"))]
#[bench::run(args = (receive_queue()), teardown = pushed::<1>)]
fn receive(queue: &'static mut ReceiveQueue) -> &'static mut ReceiveQueue {
    let (address, length, lkey) = black_box((0x1000, 8192, 7));
    for _ in 0..ROUNDS {
        held_receive(queue, address, length, lkey);
    }
    queue
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_receive_batch(queue: &mut ReceiveQueue, address: u64, length: u32, lkey: u32) -> bool {
    operation::receive_batch(queue, Local { address, length, lkey })
}

#[library_benchmark(config = gate("receive_batch"))]
#[bench::run(args = (receive_queue()), teardown = pushed::<BATCH>)]
fn receive_batch(queue: &'static mut ReceiveQueue) -> &'static mut ReceiveQueue {
    let (address, length, lkey) = black_box((0x1000, 8192, 7));
    for _ in 0..ROUNDS {
        held_receive_batch(queue, address, length, lkey);
    }
    queue
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_shared_receive(queue: &mut SharedReceiveQueue, address: u64, length: u32, lkey: u32) -> bool {
    operation::shared_receive(queue, Local { address, length, lkey })
}

#[library_benchmark(config = gate("shared_receive"))]
#[bench::run(args = (shared_receive_queue()), teardown = pushed_shared)]
fn shared_receive(queue: &'static mut SharedReceiveQueue) -> &'static mut SharedReceiveQueue {
    let (address, length, lkey) = black_box((0x1000, 8192, 7));
    for _ in 0..ROUNDS {
        held_shared_receive(queue, address, length, lkey);
    }
    queue
}

library_benchmark_group!(
    name = held;
    benchmarks = write_8, write_8_run_time, write_8_plain, write_64, write_segment, read_segment, send_8,
        send_prefixed, send_segment, fetch_add, compare_swap, masked_fetch_add, send_datagram, write_batch,
        poll_empty, reap, receive, receive_batch, shared_receive
);
