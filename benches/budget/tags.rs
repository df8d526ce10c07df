//! The budgets of tagged messages over `rc_mlx5`.

use super::{Budget, Level, Limit, ROUNDS, Shape, limit};

/// An operation with its limit. The transport's code is not inlined into the caller.
const fn row(bench: &'static str, operation: &'static str, held: Limit) -> Budget {
    Budget::new((Level::Tags, Shape::Held), bench, operation, ROUNDS, held)
}

pub(super) const BUDGETS: &[Budget] = &[
    row("tag_short_8", "tag_short, 8 B", limit(40, 80)),
    row("tag_receive", "tag_receive into the device's list", limit(40, 145)),
    row("progress_appended", "progress that takes an appended receive", limit(20, 331)),
    row("progress_matched", "progress that receives a match, handler excluded", limit(20, 310)),
];
