//! The budgets of the transport API.

use super::{Budget, Difference, Level, Limit, ROUNDS, Shape, limit};

const PUT_SHORT_8: &str = "put_short, 8 B";
const AM_SHORT_8: &str = "am_short, 8 B header and 8 B";
const PROGRESS_EMPTY: &str = "progress with nothing to do";

/// An operation with its limits in both shapes.
const fn row(
    bench: &'static str,
    operation: &'static str,
    held: Limit,
    inlined: Limit,
) -> [Budget; 2] {
    Budget::both(Level::Api, bench, operation, ROUNDS, (held, inlined))
}

/// Instructions of a post that hardware requires: one loads the half of the BlueFlame register,
/// which the queues of a register share; two store the first 8 bytes of the WQE to the second place
/// of the doorbell `Adaptive`, for pages that are not write-combining.
const HARDWARE: u64 = 3;

// Considered for the rows that are missed, by counting in the machine code, and not done:
//
// - put_zcopy: 11 instructions are the call and the loop, 10 the data segment, 5 the remote
//   address, 20 the rest of the WQE, 13 the operation in flight, 9 checks. A segment that is stored in the `Slice` in the byte order of the device saves 9, and
//   creating a slice takes as many more, also over transports without segments. 48 bytes for an
//   operation in flight, where 24 do, take one instruction more; with them and the WQEs, a ring of
//   256 blocks takes 40 KiB, and a first-level cache has 32. An operation in the slot of its WQE
//   needs no counter of its own, but a completion then visits the slots of all WQEs before it.
// - put_bcopy: the state and the room are tested before the user's function, which may post or fail
//   the endpoint, and after it: 7. The pool takes 8, the multiplication by the size of a buffer
//   among them; addresses instead of numbers would make an operation in flight longer.
// The limits of posts and of messages were raised by 1 to 5 on 2026-11-26, to what was counted when
// the id of a message moved to its second byte, keys took the byte order of requests, and progress came
// to watch a word of the next CQE.
pub(super) const BUDGETS: &[[Budget; 2]] = &[
    row("put_short_8", PUT_SHORT_8, limit(40, 60).met(85).aim(60), limit(30, 49)),
    // A length at run time may cost at most 20 more. The limits include two instructions for an
    // atomic doorbell record and for refusing posts in a child.
    row(
        "put_short_8_run_time",
        "put_short, 8 B, length at run time",
        limit(40, 77).met(105).aim(80),
        limit(30, 53),
    ),
    row("put_short_64", "put_short, 64 B", limit(50, 95).met(95 + HARDWARE).aim(70), limit(40, 88)),
    row("put_bcopy_8", "put_bcopy, 8 B", limit(50, 102).missed(85).aim(75), limit(40, 85)),
    row(
        "put_zcopy",
        "put_zcopy, one region, with completion",
        limit(50, 94).missed(80).aim(70),
        limit(40, 64),
    ),
    row(
        "put_zcopy_silent",
        "put_zcopy, one region, without completion",
        limit(40, 82),
        limit(30, 50),
    ),
    // 1 more, inlined, since the function and the length are not in the entry of the operation: those of
    // other operations, and what they take of the cache, are half as large. And 1 more, held, since
    // 2026-11-28: its read is always inlined.
    row("get_bcopy", "get_bcopy, 8 B, with completion", limit(50, 117), limit(40, 89)),
    row("get_zcopy", "get_zcopy, one region, with completion", limit(50, 96), limit(40, 64)),
    // 2 more, inlined, since requests are values; as before when held.
    row("am_short_8", AM_SHORT_8, limit(40, 62).met(90).aim(65), limit(30, 47)),
    row("am_bcopy_8", "am_bcopy, 8 B", limit(50, 104), limit(40, 86)),
    row(
        "am_zcopy",
        "am_zcopy, 8 B header and one region, with completion",
        // Posts are compiled for each kind of queue; the compiler spills one value more when held, and
        // one less when inlined.
        limit(60, 138),
        limit(50, 87),
    ),
    row("atomic_add", "atomic_post, 8 B", limit(40, 73), limit(30, 58)),
    // 11 and 7 more than with result words of the endpoint: they come from a pool of the interface, so
    // that an endpoint has neither a registration nor 4 KiB for them.
    row("fetch_add", "atomic_fetch, add, with completion", limit(50, 110), limit(40, 86)),
    row(
        "compare_swap",
        "atomic_fetch, compare and swap, with completion",
        limit(50, 115),
        limit(40, 90),
    ),
    // 7 without call and loop: the next CQE, its word, and one comparison.
    row("progress_empty", PROGRESS_EMPTY, limit(8, 11).must(11).aim(8), limit(5, 8)),
    row(
        "progress_receive",
        "progress that receives one am_short, handler excluded",
        limit(40, 65).must(65).aim(55),
        limit(40, 65),
    ),
    row("progress_batch", "progress that receives 16, per am_short", limit(30, 66), limit(30, 65)),
    row(
        "progress_complete",
        "progress that finishes one put_zcopy with completion",
        limit(40, 90).must(90).aim(70),
        limit(40, 85),
    ),
    row("dynamic_put_short", "dynamic API: put_short, 8 B", limit(40, 70), limit(30, 62)),
    row(
        "dynamic_am_short",
        "dynamic API: am_short, 8 B header and 8 B",
        limit(40, 73),
        limit(30, 55),
    ),
    row(
        "dynamic_progress_empty",
        "dynamic API: progress with nothing to do",
        limit(8, 17),
        limit(5, 14),
    ),
    // Reentrant lock, owner, waiting threads, and the check for a forked child.
    // The branch that selects the transport has one case more since `dc_mlx5`.
    row("shared_put_short", "shared worker: put_short, 8 B", limit(100, 156), limit(80, 135)),
    row(
        "shared_am_short",
        "shared worker: am_short, 8 B header and 8 B",
        // One case more since `xrc_mlx5`.
        limit(100, 155),
        // The compiler keeps one value more on the stack since endpoints are generic handles; the
        // progress between posts loads the flag of the device's watch.
        limit(80, 129),
    ),
    row(
        "shared_progress_empty",
        "shared worker: progress with nothing to do",
        // As `progress_empty`; the function is larger by the inlined fast path and saves one
        // register more.
        limit(60, 112),
        limit(50, 95),
    ),
];

/// The additional cost of selecting the transport at run time.
const fn dynamic(
    operation: &'static str,
    bench: &'static str,
    minus: &'static str,
    limit: u64,
) -> Difference {
    Difference {
        operation,
        level: Level::Api,
        shape: Shape::Held,
        bench,
        minus,
        limit,
        must: 8,
        aim: 4,
    }
}

pub(super) const DIFFERENCES: &[Difference] = &[
    dynamic(PUT_SHORT_8, "dynamic_put_short", "put_short_8", 8),
    dynamic(AM_SHORT_8, "dynamic_am_short", "am_short_8", 8),
    dynamic(PROGRESS_EMPTY, "dynamic_progress_empty", "progress_empty", 8),
];
