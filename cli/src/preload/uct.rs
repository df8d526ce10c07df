//! `libbarewire_uct.so` under the name that `cargo install` gives it; see `build.rs`.

use barewire_uct as _;

fn main() {}
