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

pub(super) const BUDGETS: &[Budget] = &[
    row("receive_1", "1 rail: receive", limit(60, 175).met(230).aim(155)),
    row("send_1", "1 rail: send", limit(60, 192).met(245).aim(160)),
    row("not_yet_1", "1 rail: send before the announcement", limit(5, 20).must(20).aim(12)),
    row("nothing_1", "1 rail: test, nothing", limit(5, 24).met(30).aim(15)),
    row("received_1", "1 rail: test, received", limit(30, 128).met(150).aim(100)),
    row("sent_1", "1 rail: test, sent", limit(30, 134).met(140).aim(90)),
    row("receive_2", "2 rails: receive", limit(60, 175).met(270).aim(185)),
    row("send_2", "2 rails: send", limit(60, 346).met(370).aim(240)),
    row("not_yet_2", "2 rails: send before the announcement", limit(5, 20).must(20).aim(12)),
    row("nothing_2", "2 rails: test, nothing", limit(5, 40).met(45).aim(25)),
    row("received_2", "2 rails: test, received", limit(30, 238).met(250).aim(170)),
    row("sent_2", "2 rails: test, sent", limit(30, 203).met(230).aim(150)),
    // A standby rail costs only a check of its completion queue.
    row("receive_standby", "1 rail, 1 on standby: receive", limit(60, 175)),
    row("send_standby", "1 rail, 1 on standby: send", limit(60, 192)),
    row("nothing_standby", "1 rail, 1 on standby: test, nothing", limit(5, 40)),
    row("received_standby", "1 rail, 1 on standby: test, received", limit(30, 134)),
    row("sent_standby", "1 rail, 1 on standby: test, sent", limit(30, 134)),
    // Each buffer of a group costs a line and a write; the completion is one for all.
    group("receive_group", "group of 8: receive", limit(100, 384).met(420).aim(300)),
    row("send_group", "group of 8: send", limit(60, 194).met(195).aim(130)),
    group("received_group", "group of 8: test, received", limit(40, 164).met(165).aim(110)),
    row("sent_group", "group of 8: test, sent", limit(10, 55).met(60).aim(40)),
];
