//! The budgets of channels.

use super::{Budget, Level, Limit, ROUNDS, Shape, limit};

/// A call with its limit.
const fn row(bench: &'static str, operation: &'static str, held: Limit) -> Budget {
    Budget::new((Level::Channel, Shape::Held), bench, operation, ROUNDS, held)
}

/// As above, for a call per group of eight.
const fn group(bench: &'static str, operation: &'static str, held: Limit) -> Budget {
    Budget::new((Level::Channel, Shape::Held), bench, operation, ROUNDS / 8, held)
}

/// A requirement that is not reached: the limit is a little above the count.
const fn missed(floor: u64, most: u64, must: u64, aim: u64) -> Limit {
    Limit { floor, most, must: Some(must), aim: Some(aim) }
}

pub(super) const BUDGETS: &[Budget] = &[
    row("receive_1", "1 rail: receive", limit(60, 230).must(230).aim(155)),
    row("send_1", "1 rail: send", limit(60, 245).must(245).aim(160)),
    row("not_yet_1", "1 rail: send before the announcement", missed(5, 23, 20, 12)),
    row("nothing_1", "1 rail: test, nothing", missed(5, 54, 30, 15)),
    row("received_1", "1 rail: test, received", missed(30, 184, 150, 100)),
    row("sent_1", "1 rail: test, sent", limit(30, 140).must(140).aim(90)),
    row("receive_2", "2 rails: receive", limit(60, 270).must(270).aim(185)),
    row("send_2", "2 rails: send", missed(60, 456, 370, 240)),
    row("not_yet_2", "2 rails: send before the announcement", missed(5, 23, 20, 12)),
    row("nothing_2", "2 rails: test, nothing", missed(5, 63, 45, 25)),
    row("received_2", "2 rails: test, received", missed(30, 299, 250, 170)),
    row("sent_2", "2 rails: test, sent", limit(30, 230).must(230).aim(150)),
    // Each buffer of a group costs a line, and a completion of its own, since its send does not
    // wait for the others. net_ib has one completion for a group.
    group("receive_group", "group of 8: receive", missed(100, 874, 420, 300)),
    row("send_group", "group of 8: send", missed(60, 322, 195, 130)),
    group("received_group", "group of 8: test, received", missed(40, 994, 165, 110)),
    row("sent_group", "group of 8: test, sent", missed(10, 126, 60, 40)),
];
