//! The device of this machine that tests run on, if the environment names one: `BAREWIRE_TEST_DEVICE=mlx5_0`. `cargo xtask test` does, with
//! the software HCA behind libmlx5, once for each way to set it up.

use barewire_mlx5::Context;

/// The device, open; `None` if none is named.
#[cfg(feature = "verbs")]
pub(crate) fn context() -> Option<Context> {
    let name = std::env::var("BAREWIRE_TEST_DEVICE").ok()?;
    let way = std::env::var("BAREWIRE_MLX5_SETUP").ok().map(|way| way.parse().expect("a way of set-up"));
    let opened = barewire_mlx5::setup::open(&name, 1, way).expect("the device that the environment names");
    Some(opened.context)
}

/// None: this build knows no device of the machine.
#[cfg(not(feature = "verbs"))]
pub(crate) fn context() -> Option<Context> {
    None
}
