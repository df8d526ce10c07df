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
const WRITE_BATCH: &str = "batch of 16 inline writes, per write";
const POLL_EMPTY: &str = "CQ poll, nothing there";
const REAP: &str = "one send CQE polled and reaped";
const RECEIVE: &str = "post one receive";
const RECEIVE_BATCH: &str = "post one receive, share of a batch of 16";

pub(super) const BUDGETS: &[Budget] = &[
    Budget::new(HELD, "write_8", WRITE_8, (30, 70)).must(70).aim(52),
    Budget::new(INLINED, "write_8", WRITE_8, (20, 70)),
    // A length at run time may cost at most 20 more.
    Budget::new(HELD, "write_8_run_time", WRITE_8_RUN_TIME, (30, 90)).must(90).aim(72),
    Budget::new(INLINED, "write_8_run_time", WRITE_8_RUN_TIME, (20, 90)),
    Budget::new(HELD, "write_8_plain", WRITE_8_PLAIN, (25, 70)),
    Budget::new(INLINED, "write_8_plain", WRITE_8_PLAIN, (15, 70)),
    Budget::new(HELD, "write_64", WRITE_64, (40, 130)),
    Budget::new(INLINED, "write_64", WRITE_64, (30, 130)),
    Budget::new(HELD, "write_segment", WRITE_SEGMENT, (30, 70)).must(70).aim(52),
    Budget::new(INLINED, "write_segment", WRITE_SEGMENT, (20, 70)),
    Budget::new(HELD, "read_segment", READ_SEGMENT, (30, 75)),
    Budget::new(INLINED, "read_segment", READ_SEGMENT, (20, 75)),
    Budget::new(HELD, "send_8", SEND_8, (25, 100)),
    Budget::new(INLINED, "send_8", SEND_8, (15, 100)),
    Budget::new(HELD, "send_prefixed", SEND_PREFIXED, (30, 100)),
    Budget::new(INLINED, "send_prefixed", SEND_PREFIXED, (20, 100)),
    Budget::new(HELD, "send_segment", SEND_SEGMENT, (25, 75)),
    Budget::new(INLINED, "send_segment", SEND_SEGMENT, (15, 75)),
    Budget::new(HELD, "fetch_add", FETCH_ADD, (30, 90)),
    Budget::new(INLINED, "fetch_add", FETCH_ADD, (20, 90)),
    Budget::new(HELD, "compare_swap", COMPARE_SWAP, (30, 90)),
    Budget::new(INLINED, "compare_swap", COMPARE_SWAP, (20, 90)),
    Budget::new(HELD, "write_batch", WRITE_BATCH, (12, 50)).operations(ROUNDS * BATCH).must(40).aim(28),
    Budget::new(INLINED, "write_batch", WRITE_BATCH, (12, 50)).operations(ROUNDS * BATCH),
    Budget::new(HELD, "poll_empty", POLL_EMPTY, (5, 16)).misses(10).aim(6),
    Budget::new(INLINED, "poll_empty", POLL_EMPTY, (3, 16)),
    Budget::new(HELD, "reap", REAP, (15, 45)).must(45).aim(30),
    Budget::new(INLINED, "reap", REAP, (10, 45)),
    Budget::new(HELD, "receive", RECEIVE, (10, 40)),
    Budget::new(INLINED, "receive", RECEIVE, (6, 40)),
    Budget::new(HELD, "receive_batch", RECEIVE_BATCH, (5, 20)).operations(ROUNDS * BATCH).must(20).aim(12),
    Budget::new(INLINED, "receive_batch", RECEIVE_BATCH, (5, 20)).operations(ROUNDS * BATCH),
];
