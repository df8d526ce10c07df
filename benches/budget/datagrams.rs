//! The budgets of messages over `ud_mlx5`.

use super::{Budget, Level, Limit, ROUNDS, Shape, limit};

/// An operation with its limit. The transport's code is not inlined into the caller.
const fn row(bench: &'static str, operation: &'static str, held: Limit) -> Budget {
    Budget::new((Level::Datagrams, Shape::Held), bench, operation, ROUNDS, held)
}

// Required: 0.45 and 0.6 of what UCX takes. Of the second row, 8 instructions are the share of a
// message in the acknowledgement of 16; the first has the copy that a retransmission needs.
pub(super) const BUDGETS: &[Budget] = &[
    row("am_short_8", "ud_mlx5: am_short, 8 B header and 8 B", limit(100, 221).must(221)),
    row(
        "progress_receive",
        "ud_mlx5: progress that receives one am_short, handler excluded",
        limit(100, 132).must(132),
    ),
];
