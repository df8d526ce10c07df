//! The budgets of the transport `shm`.

use super::{Budget, Level, Limit, ROUNDS, Shape, limit};

/// An operation, which is measured only as a call.
const fn row(bench: &'static str, operation: &'static str, held: Limit) -> Budget {
    Budget::new((Level::Shm, Shape::Held), bench, operation, ROUNDS, held)
}

pub(super) const BUDGETS: &[Budget] = &[
    row("am_short_8", "shm: am_short, 8 B header and 8 B", limit(15, 50).must(50).aim(35)),
    // Progress polls all sources and reads the clock every 512 polls, or as often as the sockets must
    // be checked: under valgrind, this is a matter of the machine's speed.
    row("progress_empty", "shm: progress with nothing to do", limit(6, 15).met_by_clock(12).aim(8)),
    row(
        "progress_empty_with_lane",
        "shm: progress with nothing to do, after messages by a lane",
        // 10.3 to 11.2.
        limit(6, 15).met_by_clock(12),
    ),
    // 42.6 to 44.4. Four instructions request the line of the response: 25 ns of a latency of 170 ns
    // between two cores.
    row(
        "progress_receive",
        "shm: progress that receives one am_short, handler excluded",
        limit(20, 48).met_by_clock(45).aim(30),
    ),
    // Each access is counted, since accesses to mapped memory succeed after the peer's death as
    // well. The post that finds the allowance used up reads the socket of the connection.
    row("put_short_8", "shm: put_short, 8 B", limit(15, 45)),
    // 9 of them since keys of views, which the same function looks up; the fast path was 51.
    row("fetch_add_8", "shm: atomic_fetch, add", limit(15, 60)),
];
