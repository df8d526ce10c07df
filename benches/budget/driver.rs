//! The driver's budgets.

use super::{BATCH, Budget, Level, Limit, ROUNDS, limit};

/// An operation with its limits in both shapes.
const fn row(
    bench: &'static str,
    operation: &'static str,
    held: Limit,
    inlined: Limit,
) -> [Budget; 2] {
    Budget::both(Level::Driver, bench, operation, ROUNDS, (held, inlined))
}

/// Like [`row`], for a bench that runs a batch in each round.
const fn batch(
    bench: &'static str,
    operation: &'static str,
    held: Limit,
    inlined: Limit,
) -> [Budget; 2] {
    Budget::both(Level::Driver, bench, operation, ROUNDS * BATCH, (held, inlined))
}

pub(super) const BUDGETS: &[[Budget; 2]] = &[
    row("write_8", "RDMA write, 8 B inline", limit(30, 54).met(70).aim(52), limit(20, 39)),
    // A length at run time may cost at most 20 more.
    row(
        "write_8_run_time",
        "RDMA write, 8 B inline, length at run time",
        limit(30, 63).met(90).aim(72),
        limit(20, 38),
    ),
    row("write_8_plain", "RDMA write, 8 B inline, plain doorbell", limit(25, 51), limit(15, 37)),
    row("write_64", "RDMA write, 64 B inline", limit(40, 89), limit(30, 83)),
    row("write_segment", "RDMA write, one SGE", limit(30, 64).met(70).aim(52), limit(20, 35)),
    row("read_segment", "RDMA read, one SGE", limit(30, 65), limit(20, 35)),
    row("send_8", "send, 8 B inline", limit(25, 62), limit(15, 43)),
    row("send_prefixed", "send, 8 B header and 8 B inline", limit(30, 53), limit(20, 39)),
    row("send_segment", "send, one SGE", limit(25, 56), limit(15, 34)),
    row("fetch_add", "atomic fetch and add", limit(30, 65), limit(20, 43)),
    row("compare_swap", "atomic compare and swap", limit(30, 73), limit(20, 47)),
    row("masked_fetch_add", "masked atomic fetch and add, 8 B", limit(40, 66), limit(30, 44)),
    row("send_datagram", "datagram (UD), 8 B inline", limit(40, 79), limit(30, 56)),
    row("dc_write_8", "RDMA write (DC), 8 B inline", limit(40, 73).met(90), limit(30, 56)),
    row("xrc_write_8", "RDMA write (XRC), 8 B inline", limit(30, 56).met(75), limit(20, 40)),
    row("bind_window", "bind of a memory window", limit(60, 105).met(110), limit(40, 73)),
    row("local_invalidate", "local invalidate", limit(40, 67).met(90), limit(30, 55)),
    // 15 more since 2026-11-28, inlined 24, and interleaved keys 10: the units of these WQEs fill
    // the registers when a post tests for additional work. The other posts of the driver take less.
    row("join_4", "joined key of 4 ranges", limit(80, 160).must(160), limit(60, 145)),
    row("interleave_3", "interleaved key of 3 ranges", limit(90, 167).met(180), limit(60, 128)),
    // 26 for each write, and 107 for a batch: the call, the copy of the queue to registers and back,
    // and the doorbell. Posting to the queue in memory instead costs 4 more for each write.
    batch(
        "write_batch",
        "batch of 16 inline writes, per write",
        limit(12, 34).missed(30).aim(24),
        limit(12, 32),
    ),
    row("poll_empty", "CQ poll, nothing there", limit(5, 10).must(10).aim(6), limit(3, 5)),
    row("reap", "one send CQE polled and reaped", limit(15, 32).met(45).aim(30), limit(10, 25)),
    row("receive", "post one receive", limit(10, 37), limit(6, 20)),
    batch(
        "receive_batch",
        "post one receive, share of a batch of 16",
        limit(5, 20).must(20).aim(12),
        limit(5, 12),
    ),
    row("shared_receive", "post one shared receive", limit(15, 39).must(40), limit(10, 25)),
    row("tag_append", "append of a tag", limit(60, 108), limit(40, 82)),
    row("tag_remove", "removal of a tag", limit(40, 75), limit(35, 70)),
    // The tag is the number of the round. The compiler no longer knows that its upper half is zero,
    // which costs 4 instructions in this loop, if inlined.
    row("tag_send_8", "send with a tag, 8 B inline", limit(30, 55), limit(20, 45)),
    row(
        "striding_receive",
        "one packet of a shared receive queue with strides polled, taken and released",
        limit(50, 90),
        limit(40, 69),
    ),
];
