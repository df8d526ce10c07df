//! The budgets of links: what a post costs more than on the endpoint of its lane.

use super::{Budget, Difference, Level, Limit, ROUNDS, Shape, limit};

/// An operation, which is measured only as a call.
const fn row(bench: &'static str, operation: &'static str, held: Limit) -> Budget {
    Budget::new((Level::Link, Shape::Held), bench, operation, ROUNDS, held)
}

pub(super) const BUDGETS: &[Budget] = &[
    // Two instructions report the slot of the next message, whose line a response needs.
    row("endpoint_am_short", "shm: am_short, 8 B, on the lane's endpoint", limit(15, 69)),
    row("link_am_short", "shm: am_short, 8 B, on the link", limit(15, 72)),
    // The same function looks up keys of views.
    row("endpoint_put_short", "shm: put_short, 8 B, on the lane's endpoint", limit(15, 68)),
    row("link_put_short", "shm: put_short, 8 B, on the link", limit(15, 73)),
    // The sum of the four was 1437 while a posted receive was an entry of three tables. Progress
    // also examines sockets, by the clock.
    row("tag_send", "shm: tagged send, 8 B, and the drop of its request", limit(100, 228)),
    row("tag_receive", "shm: tagged receive posted, no message there", limit(80, 193)),
    row("tag_progress", "shm: progress, per tagged message of 8 B received", limit(150, 430)),
    row("tag_finish", "shm: poll and drop of a complete receive", limit(40, 111)),
];

/// The additional cost of a link.
const fn link(
    operation: &'static str,
    bench: &'static str,
    minus: &'static str,
    limit: u64,
) -> Difference {
    Difference {
        operation,
        level: Level::Link,
        shape: Shape::Held,
        bench,
        minus,
        limit,
        must: 3,
        aim: 2,
    }
}

pub(super) const DIFFERENCES: &[Difference] = &[
    // Two find the lane, two test that there is one.
    link("link: am_short, 8 B", "link_am_short", "endpoint_am_short", 4),
    // It was 2 before there were keys of views. Of the 5, one more is a register move, which comes
    // and goes with the code of other transports.
    link("link: put_short, 8 B", "link_put_short", "endpoint_put_short", 5),
];
