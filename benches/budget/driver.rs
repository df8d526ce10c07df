//! The driver's budgets.

use super::{BATCH, Budget, Level, ROUNDS, Shape};

const HELD: (Level, Shape) = (Level::Driver, Shape::Held);
const INLINED: (Level, Shape) = (Level::Driver, Shape::Inlined);

const WRITE_8: &str = "RDMA write, 8 B inline";
const WRITE_8_RUN_TIME: &str = "RDMA write, 8 B inline, length at run time";
const WRITE_8_PLAIN: &str = "RDMA write, 8 B inline, plain doorbell";
const WRITE_64: &str = "RDMA write, 64 B inline";
const WRITE_SEGMENT: &str = "RDMA write, one SGE";
const READ_SEGMENT: &str = "RDMA read, one SGE";
const SEND_8: &str = "send, 8 B inline";
const SEND_PREFIXED: &str = "send, 8 B header and 8 B inline";
const SEND_SEGMENT: &str = "send, one SGE";
const FETCH_ADD: &str = "atomic fetch and add";
const COMPARE_SWAP: &str = "atomic compare and swap";
const MASKED_FETCH_ADD: &str = "masked atomic fetch and add, 8 B";
const SEND_DATAGRAM: &str = "datagram (UD), 8 B inline";
const WRITE_BATCH: &str = "batch of 16 inline writes, per write";
const POLL_EMPTY: &str = "CQ poll, nothing there";
const REAP: &str = "one send CQE polled and reaped";
const RECEIVE: &str = "post one receive";
const RECEIVE_BATCH: &str = "post one receive, share of a batch of 16";
const SHARED_RECEIVE: &str = "post one shared receive";

pub(super) const BUDGETS: &[Budget] = &[
    Budget::new(HELD, "write_8", WRITE_8, (30, 70)).must(70).aim(52),
    Budget::new(INLINED, "write_8", WRITE_8, (20, 42)),
    // A length at run time may cost at most 20 more.
    Budget::new(HELD, "write_8_run_time", WRITE_8_RUN_TIME, (30, 90)).must(90).aim(72),
    Budget::new(INLINED, "write_8_run_time", WRITE_8_RUN_TIME, (20, 41)),
    Budget::new(HELD, "write_8_plain", WRITE_8_PLAIN, (25, 56)),
    Budget::new(INLINED, "write_8_plain", WRITE_8_PLAIN, (15, 40)),
    Budget::new(HELD, "write_64", WRITE_64, (40, 93)),
    Budget::new(INLINED, "write_64", WRITE_64, (30, 87)),
    Budget::new(HELD, "write_segment", WRITE_SEGMENT, (30, 70)).must(70).aim(52),
    Budget::new(INLINED, "write_segment", WRITE_SEGMENT, (20, 38)),
    Budget::new(HELD, "read_segment", READ_SEGMENT, (30, 65)),
    Budget::new(INLINED, "read_segment", READ_SEGMENT, (20, 38)),
    Budget::new(HELD, "send_8", SEND_8, (25, 70)),
    Budget::new(INLINED, "send_8", SEND_8, (15, 46)),
    Budget::new(HELD, "send_prefixed", SEND_PREFIXED, (30, 58)),
    Budget::new(INLINED, "send_prefixed", SEND_PREFIXED, (20, 42)),
    Budget::new(HELD, "send_segment", SEND_SEGMENT, (25, 56)),
    Budget::new(INLINED, "send_segment", SEND_SEGMENT, (15, 50)),
    Budget::new(HELD, "fetch_add", FETCH_ADD, (30, 68)),
    Budget::new(INLINED, "fetch_add", FETCH_ADD, (20, 43)),
    Budget::new(HELD, "compare_swap", COMPARE_SWAP, (30, 73)),
    Budget::new(INLINED, "compare_swap", COMPARE_SWAP, (20, 47)),
    Budget::new(HELD, "masked_fetch_add", MASKED_FETCH_ADD, (40, 69)),
    Budget::new(INLINED, "masked_fetch_add", MASKED_FETCH_ADD, (30, 44)),
    Budget::new(HELD, "send_datagram", SEND_DATAGRAM, (40, 85)),
    Budget::new(INLINED, "send_datagram", SEND_DATAGRAM, (30, 59)),
    Budget::new(HELD, "write_batch", WRITE_BATCH, (12, 40)).operations(ROUNDS * BATCH).must(40).aim(28),
    Budget::new(INLINED, "write_batch", WRITE_BATCH, (12, 34)).operations(ROUNDS * BATCH),
    Budget::new(HELD, "poll_empty", POLL_EMPTY, (5, 10)).must(10).aim(6),
    Budget::new(INLINED, "poll_empty", POLL_EMPTY, (3, 5)),
    Budget::new(HELD, "reap", REAP, (15, 45)).must(45).aim(30),
    Budget::new(INLINED, "reap", REAP, (10, 27)),
    Budget::new(HELD, "receive", RECEIVE, (10, 37)),
    Budget::new(INLINED, "receive", RECEIVE, (6, 32)),
    Budget::new(HELD, "receive_batch", RECEIVE_BATCH, (5, 20)).operations(ROUNDS * BATCH).must(20).aim(12),
    Budget::new(INLINED, "receive_batch", RECEIVE_BATCH, (5, 16)).operations(ROUNDS * BATCH),
    Budget::new(HELD, "shared_receive", SHARED_RECEIVE, (15, 81)),
    Budget::new(INLINED, "shared_receive", SHARED_RECEIVE, (10, 80)),
];
