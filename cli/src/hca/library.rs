//! Finds the library for LD_PRELOAD.

use crate::error::{Error, local};
use std::path::PathBuf;

const NAME: &str = "libbarewire_hca.so";
/// Directories relative to this program: cargo uses the second when it builds tests, packages use
/// the third.
const PLACES: [&str; 3] = ["", "deps", "../lib/barewire"];

/// Finds the library.
pub(super) fn find() -> Result<PathBuf, Error> {
    let program =
        std::env::current_exe().map_err(|error| local("cannot find this program", &error))?;
    let folder = program.parent().unwrap_or(&program);
    let places = PLACES.map(|place| folder.join(place).join(NAME));
    // The dynamic loader splits the variable at colons and spaces.
    let usable = |path: &&PathBuf| path.is_file() && !path.to_string_lossy().contains([':', ' ']);
    places.iter().find(usable).cloned().ok_or_else(|| {
        Error::Local(format!(
            "{NAME} is not in {} (nor in a path without spaces and colons); build it with: cargo build -p barewire-hca-uverbs",
            folder.display()
        ))
    })
}
