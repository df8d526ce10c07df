//! The budgets of the transport API.

use super::{Budget, Difference, Level, Shape};

const HELD: (Level, Shape) = (Level::Api, Shape::Held);
const INLINED: (Level, Shape) = (Level::Api, Shape::Inlined);

const PUT_SHORT_8: &str = "put_short, 8 B";
const PUT_SHORT_8_RUN_TIME: &str = "put_short, 8 B, length at run time";
const PUT_SHORT_64: &str = "put_short, 64 B";
const PUT_BCOPY_8: &str = "put_bcopy, 8 B";
const PUT_ZCOPY: &str = "put_zcopy, one region, with completion";
const PUT_ZCOPY_SILENT: &str = "put_zcopy, one region, without completion";
const GET_BCOPY: &str = "get_bcopy, 8 B, with completion";
const GET_ZCOPY: &str = "get_zcopy, one region, with completion";
const AM_SHORT_8: &str = "am_short, 8 B header and 8 B";
const AM_BCOPY_8: &str = "am_bcopy, 8 B";
const AM_ZCOPY: &str = "am_zcopy, 8 B header and one region, with completion";
const ATOMIC_ADD: &str = "atomic_add64";
const FETCH_ADD: &str = "atomic_fetch_add64, with completion";
const COMPARE_SWAP: &str = "atomic_compare_swap64, with completion";
const PROGRESS_EMPTY: &str = "progress with nothing to do";
const PROGRESS_RECEIVE: &str = "progress that receives one am_short, handler excluded";
const PROGRESS_BATCH: &str = "progress that receives 16, per am_short";
const PROGRESS_COMPLETE: &str = "progress that finishes one put_zcopy with completion";
const DYNAMIC_PUT_SHORT: &str = "dynamic door: put_short, 8 B";
const DYNAMIC_AM_SHORT: &str = "dynamic door: am_short, 8 B header and 8 B";
const DYNAMIC_PROGRESS_EMPTY: &str = "dynamic door: progress with nothing to do";

pub(super) const BUDGETS: &[Budget] = &[
    Budget::new(HELD, "put_short_8", PUT_SHORT_8, (40, 85)).must(85).aim(60),
    Budget::new(INLINED, "put_short_8", PUT_SHORT_8, (30, 46)),
    // A length at run time may cost at most 20 more.
    Budget::new(HELD, "put_short_8_run_time", PUT_SHORT_8_RUN_TIME, (40, 105)).must(105).aim(80),
    // Two more than before the doorbell record became an atomic and posts could be refused in a child.
    Budget::new(INLINED, "put_short_8_run_time", PUT_SHORT_8_RUN_TIME, (30, 57)),
    Budget::new(HELD, "put_short_64", PUT_SHORT_64, (50, 95)).must(95).aim(70),
    Budget::new(INLINED, "put_short_64", PUT_SHORT_64, (40, 85)),
    Budget::new(HELD, "put_bcopy_8", PUT_BCOPY_8, (50, 100)).must(100).aim(75),
    Budget::new(INLINED, "put_bcopy_8", PUT_BCOPY_8, (40, 89)),
    Budget::new(HELD, "put_zcopy", PUT_ZCOPY, (50, 95)).must(95).aim(70),
    Budget::new(INLINED, "put_zcopy", PUT_ZCOPY, (40, 64)),
    Budget::new(HELD, "put_zcopy_silent", PUT_ZCOPY_SILENT, (40, 78)),
    Budget::new(INLINED, "put_zcopy_silent", PUT_ZCOPY_SILENT, (30, 47)),
    Budget::new(HELD, "get_bcopy", GET_BCOPY, (50, 116)),
    Budget::new(INLINED, "get_bcopy", GET_BCOPY, (40, 86)),
    Budget::new(HELD, "get_zcopy", GET_ZCOPY, (50, 93)),
    Budget::new(INLINED, "get_zcopy", GET_ZCOPY, (40, 64)),
    Budget::new(HELD, "am_short_8", AM_SHORT_8, (40, 90)).must(90).aim(65),
    Budget::new(INLINED, "am_short_8", AM_SHORT_8, (30, 47)),
    Budget::new(HELD, "am_bcopy_8", AM_BCOPY_8, (50, 101)),
    Budget::new(INLINED, "am_bcopy_8", AM_BCOPY_8, (40, 92)),
    Budget::new(HELD, "am_zcopy", AM_ZCOPY, (60, 140)),
    Budget::new(INLINED, "am_zcopy", AM_ZCOPY, (50, 92)),
    Budget::new(HELD, "atomic_add", ATOMIC_ADD, (40, 77)),
    Budget::new(INLINED, "atomic_add", ATOMIC_ADD, (30, 60)),
    Budget::new(HELD, "fetch_add", FETCH_ADD, (50, 98)),
    Budget::new(INLINED, "fetch_add", FETCH_ADD, (40, 78)),
    Budget::new(HELD, "compare_swap", COMPARE_SWAP, (50, 103)),
    Budget::new(INLINED, "compare_swap", COMPARE_SWAP, (40, 84)),
    Budget::new(HELD, "progress_empty", PROGRESS_EMPTY, (8, 14)).must(14).aim(8),
    Budget::new(INLINED, "progress_empty", PROGRESS_EMPTY, (5, 14)),
    Budget::new(HELD, "progress_receive", PROGRESS_RECEIVE, (40, 85)).must(85).aim(60),
    Budget::new(INLINED, "progress_receive", PROGRESS_RECEIVE, (40, 84)),
    Budget::new(HELD, "progress_batch", PROGRESS_BATCH, (30, 85)),
    Budget::new(INLINED, "progress_batch", PROGRESS_BATCH, (30, 84)),
    Budget::new(HELD, "progress_complete", PROGRESS_COMPLETE, (40, 139)),
    Budget::new(INLINED, "progress_complete", PROGRESS_COMPLETE, (40, 137)),
    Budget::new(HELD, "dynamic_put_short", DYNAMIC_PUT_SHORT, (40, 72)),
    Budget::new(INLINED, "dynamic_put_short", DYNAMIC_PUT_SHORT, (30, 59)),
    Budget::new(HELD, "dynamic_am_short", DYNAMIC_AM_SHORT, (40, 69)),
    Budget::new(INLINED, "dynamic_am_short", DYNAMIC_AM_SHORT, (30, 54)),
    Budget::new(HELD, "dynamic_progress_empty", DYNAMIC_PROGRESS_EMPTY, (8, 22)),
    Budget::new(INLINED, "dynamic_progress_empty", DYNAMIC_PROGRESS_EMPTY, (5, 20)),
];

/// What the choice of the transport at run time may add.
const fn door(operation: &'static str, bench: &'static str, minus: &'static str, limit: u64) -> Difference {
    Difference { operation, level: Level::Api, shape: Shape::Held, bench, minus, limit, must: 8, aim: 4 }
}

pub(super) const DIFFERENCES: &[Difference] = &[
    door(PUT_SHORT_8, "dynamic_put_short", "put_short_8", 8),
    door(AM_SHORT_8, "dynamic_am_short", "am_short_8", 8),
    door(PROGRESS_EMPTY, "dynamic_progress_empty", "progress_empty", 8),
];
