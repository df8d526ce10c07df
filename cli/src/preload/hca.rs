//! `libbarewire_hca.so` under the name that `cargo install` gives it; see `build.rs`.

use uverbs as _;

fn main() {}
