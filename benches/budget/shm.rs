//! The budgets of the transport `shm`.

use super::{Budget, Level, Shape};

const HELD: (Level, Shape) = (Level::Shm, Shape::Held);

const AM_SHORT_8: &str = "shm: am_short, 8 B header and 8 B";
const PROGRESS_EMPTY: &str = "shm: progress with nothing to do";
const PROGRESS_EMPTY_WITH_LANE: &str = "shm: progress with nothing to do, after messages by a lane";
const PROGRESS_RECEIVE: &str = "shm: progress that receives one am_short, handler excluded";
const PUT_SHORT_8: &str = "shm: put_short, 8 B";
const FETCH_ADD: &str = "shm: atomic_fetch_add64";

pub(super) const BUDGETS: &[Budget] = &[
    Budget::new(HELD, "am_short_8", AM_SHORT_8, (15, 50)).must(50).aim(35),
    Budget::new(HELD, "progress_empty", PROGRESS_EMPTY, (6, 12)).must(12).aim(8),
    Budget::new(HELD, "progress_empty_with_lane", PROGRESS_EMPTY_WITH_LANE, (6, 13)),
    Budget::new(HELD, "progress_receive", PROGRESS_RECEIVE, (20, 45)).must(45).aim(30),
    // One more each than before: accesses to mapped memory succeed after the peer's death too, so each
    // is counted, and the post that finds the allowance spent reads the connection's socket.
    Budget::new(HELD, "put_short_8", PUT_SHORT_8, (15, 45)),
    Budget::new(HELD, "fetch_add_8", FETCH_ADD, (15, 51)),
];
