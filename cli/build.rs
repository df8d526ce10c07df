//! Links the libraries for LD_PRELOAD as shared objects.
//!
//! `cargo install` installs programs only, and `barewire hca run` and `uct run` need a library each.
//! They are therefore declared as programs, whose linker gets `-shared`. Their code is in crates of
//! its own, because code of a program may assume that it is one.

use std::path::Path;

/// The programs that are libraries, and their sonames.
const LIBRARIES: [(&str, &str); 2] =
    [("barewire-hca-preload", "libbarewire_hca.so"), ("barewire-uct-preload", "libuct.so.0")];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/preload/exports.map");
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let exports = Path::new(&folder).join("src/preload/exports.map");
    for (program, soname) in LIBRARIES {
        let exports = format!("-Wl,--version-script={}", exports.display());
        for argument in ["-shared", &format!("-Wl,-soname,{soname}"), &exports] {
            println!("cargo::rustc-link-arg-bin={program}={argument}");
        }
    }
}
