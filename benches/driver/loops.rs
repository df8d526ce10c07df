//! *inlined*: each operation in the loop, with arguments of which the optimiser knows nothing at its beginning.

use std::hint::black_box;

use barewire_mlx5::doorbell::PlainDoorbell;
use barewire_mlx5::layouts::wqe::AddressVector;
use barewire_mlx5::queue::shared_receive::SharedReceiveQueue;
use barewire_mlx5::{CompletionQueue, ReceiveQueue, SendQueue};
use iai_callgrind::{library_benchmark, library_benchmark_group};

use crate::budget::{BATCH, Level, ROUNDS, Shape};
use crate::operation::{self, Local, Remote};
use crate::queues::{
    completed, destination, empty_completion_queue, posted, pushed, pushed_shared, reaped, receive_queue,
    send_queue, shared_receive_queue, still_empty,
};

fn gate(bench: &str) -> iai_callgrind::LibraryBenchmarkConfig {
    crate::gate::gate(Level::Driver, Shape::Inlined, bench)
}

const REMOTE: Remote = Remote { address: 0x1000, rkey: 7 };
const LOCAL: Local = Local { address: 0x2000, length: 64, lkey: 9 };
const WORD: Local = Local { length: 8, ..LOCAL };

#[library_benchmark(config = gate("write_8"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn write_8(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let remote = black_box(REMOTE);
    for round in 0..ROUNDS {
        operation::write_8(queue, round, remote);
    }
    queue
}

#[library_benchmark(config = gate("write_8_run_time"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn write_8_run_time(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let (payload, remote) = black_box((&[7; 8][..], REMOTE));
    for _ in 0..ROUNDS {
        operation::write_slice(queue, payload, remote);
    }
    queue
}

#[library_benchmark(config = gate("write_8_plain"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn write_8_plain(queue: &'static mut SendQueue<PlainDoorbell>) -> &'static mut SendQueue<PlainDoorbell> {
    let remote = black_box(REMOTE);
    for round in 0..ROUNDS {
        operation::write_8(queue, round, remote);
    }
    queue
}

#[library_benchmark(config = gate("write_64"))]
#[bench::run(args = (send_queue()), teardown = posted::<2, _>)]
fn write_64(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let (payload, remote) = black_box((&[7; 64], REMOTE));
    for _ in 0..ROUNDS {
        operation::write_slice(queue, payload, remote);
    }
    queue
}

#[library_benchmark(config = gate("write_segment"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn write_segment(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let (local, remote) = black_box((LOCAL, REMOTE));
    for _ in 0..ROUNDS {
        operation::write_segment(queue, local, remote);
    }
    queue
}

#[library_benchmark(config = gate("read_segment"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn read_segment(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let (local, remote) = black_box((LOCAL, REMOTE));
    for _ in 0..ROUNDS {
        operation::read_segment(queue, local, remote);
    }
    queue
}

#[library_benchmark(config = gate("send_8"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn send_8(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    for round in 0..ROUNDS {
        operation::send_8(queue, round);
    }
    queue
}

#[library_benchmark(config = gate("send_prefixed"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn send_prefixed(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let (id, payload) = black_box((1, 5));
    for round in 0..ROUNDS {
        operation::send_prefixed(queue, id, round, payload);
    }
    queue
}

#[library_benchmark(config = gate("send_segment"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn send_segment(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let local = black_box(LOCAL);
    for _ in 0..ROUNDS {
        operation::send_segment(queue, local);
    }
    queue
}

#[library_benchmark(config = gate("fetch_add"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn fetch_add(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let (local, remote) = black_box((WORD, REMOTE));
    for round in 0..ROUNDS {
        operation::fetch_add(queue, local, remote, round);
    }
    queue
}

#[library_benchmark(config = gate("compare_swap"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn compare_swap(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let (local, remote) = black_box((WORD, REMOTE));
    for round in 0..ROUNDS {
        operation::compare_swap(queue, local, remote, round, round + 1);
    }
    queue
}

#[library_benchmark(config = gate("masked_fetch_add"))]
#[bench::run(args = (send_queue()), teardown = posted::<1, _>)]
fn masked_fetch_add(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let (local, remote) = black_box((WORD, REMOTE));
    for round in 0..ROUNDS {
        operation::masked_fetch_add(queue, local, remote, round);
    }
    queue
}

#[library_benchmark(config = gate("send_datagram"))]
#[bench::run(args = (send_queue(), destination()), teardown = posted::<2, _>)]
fn send_datagram(queue: &'static mut SendQueue, destination: AddressVector) -> &'static mut SendQueue {
    for round in 0..ROUNDS {
        operation::send_datagram(queue, &destination, round);
    }
    queue
}

#[library_benchmark(config = gate("write_batch"))]
#[bench::run(args = (send_queue()), teardown = posted::<BATCH, _>)]
fn write_batch(queue: &'static mut SendQueue) -> &'static mut SendQueue {
    let (words, remote) = black_box((&[7; _], REMOTE));
    for _ in 0..ROUNDS {
        operation::write_batch(queue, words, remote);
    }
    queue
}

#[library_benchmark(config = gate("poll_empty"))]
#[bench::run(args = (empty_completion_queue()), teardown = still_empty)]
fn poll_empty(queue: &'static mut CompletionQueue) -> &'static mut CompletionQueue {
    for _ in 0..ROUNDS {
        if operation::poll(queue).is_some() {
            break;
        }
    }
    queue
}

#[library_benchmark(config = gate("reap"))]
#[bench::run(args = (completed()), teardown = reaped)]
fn reap(queues: &'static mut (CompletionQueue, SendQueue)) -> &'static mut (CompletionQueue, SendQueue) {
    let (completions, queue) = &mut *queues;
    for _ in 0..ROUNDS {
        operation::reap(completions, queue);
    }
    queues
}

#[library_benchmark(config = gate("receive"))]
#[bench::run(args = (receive_queue()), teardown = pushed::<1>)]
fn receive(queue: &'static mut ReceiveQueue) -> &'static mut ReceiveQueue {
    let buffer = black_box(LOCAL);
    for _ in 0..ROUNDS {
        operation::receive(queue, buffer);
    }
    queue
}

#[library_benchmark(config = gate("receive_batch"))]
#[bench::run(args = (receive_queue()), teardown = pushed::<BATCH>)]
fn receive_batch(queue: &'static mut ReceiveQueue) -> &'static mut ReceiveQueue {
    let buffer = black_box(LOCAL);
    for _ in 0..ROUNDS {
        operation::receive_batch(queue, buffer);
    }
    queue
}

#[library_benchmark(config = gate("shared_receive"))]
#[bench::run(args = (shared_receive_queue()), teardown = pushed_shared)]
fn shared_receive(queue: &'static mut SharedReceiveQueue) -> &'static mut SharedReceiveQueue {
    let buffer = black_box(LOCAL);
    for _ in 0..ROUNDS {
        operation::shared_receive(queue, buffer);
    }
    queue
}

library_benchmark_group!(
    name = inlined;
    benchmarks = write_8, write_8_run_time, write_8_plain, write_64, write_segment, read_segment, send_8,
        send_prefixed, send_segment, fetch_add, compare_swap, masked_fetch_add, send_datagram, write_batch,
        poll_empty, reap, receive, receive_batch, shared_receive
);
