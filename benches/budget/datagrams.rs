//! The budgets of messages over `ud_mlx5`.

use super::{Budget, Level, Limit, ROUNDS, Shape, limit};

/// An operation with its limit. The transport's code is not inlined into the caller.
const fn row(bench: &'static str, operation: &'static str, held: Limit) -> Budget {
    Budget::new((Level::Datagrams, Shape::Held), bench, operation, ROUNDS, held)
}

// Still to be reached: 0.45 and 0.6 of what UCX takes, 221 and 132.
pub(super) const BUDGETS: &[Budget] = &[
    row("am_short_8", "ud_mlx5: am_short, 8 B header and 8 B", limit(100, 440)),
    row(
        "progress_receive",
        "ud_mlx5: progress that receives one am_short, handler excluded",
        // Sending inlined its transmission, which moved registers in progress: 9 more here, 24 less
        // in am_short.
        limit(100, 506),
    ),
];
