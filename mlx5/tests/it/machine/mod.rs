//! The device of this machine that tests use, if `BAREWIRE_TEST_DEVICE` (such as `mlx5_0`) names
//! one. `cargo xtask test` sets it once per backend, with the software HCA behind libmlx5.

use barewire_mlx5::Context;

/// Opens the device; `None` if the variable is not set.
#[cfg(feature = "verbs")]
pub(crate) fn context() -> Option<Context> {
    let name = std::env::var("BAREWIRE_TEST_DEVICE").ok()?;
    let way =
        std::env::var("BAREWIRE_MLX5_SETUP").ok().map(|way| way.parse().expect("a way of set-up"));
    let opened =
        barewire_mlx5::setup::open(&name, 1, way).expect("the device that the environment names");
    Some(opened.context)
}

/// `None`: this build does not support devices of the machine.
#[cfg(not(feature = "verbs"))]
pub(crate) fn context() -> Option<Context> {
    None
}
