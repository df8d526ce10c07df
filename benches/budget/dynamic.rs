//! The budgets of `dc_mlx5`.

use super::{Budget, Level, Limit, ROUNDS, Shape, limit};

/// An operation with its limit. The transport's code is not inlined into the caller.
const fn row(bench: &'static str, operation: &'static str, held: Limit) -> Budget {
    Budget::new((Level::Dynamic, Shape::Held), bench, operation, ROUNDS, held)
}

// Still to be reached: 90 for a put, and 93 for a message, 0.45 of what UCX takes. Receiving shares its
// code with `rc_mlx5`, which takes 35 instructions from a message and adds 2 to other completions.
pub(super) const BUDGETS: &[Budget] = &[
    row("put_short_8", "dc_mlx5: put_short, 8 B", limit(40, 90).met(90)),
    row("am_short_8", "dc_mlx5: am_short, 8 B header and 8 B", limit(40, 91).met(93)),
    row("am_short_8_taken", "dc_mlx5: am_short that takes an initiator", limit(40, 162)),
    row(
        "progress_receive",
        "dc_mlx5: progress that receives one am_short, handler excluded",
        limit(40, 66),
    ),
    row("progress_complete", "dc_mlx5: progress that returns an initiator", limit(40, 130)),
];
