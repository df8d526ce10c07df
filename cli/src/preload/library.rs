//! Finds the libraries for LD_PRELOAD.

use crate::error::{Error, local};
use std::path::PathBuf;

/// A library and the package that builds it.
pub(crate) struct Library {
    pub(crate) file: &'static str,
    pub(crate) package: &'static str,
    /// Its name where `cargo install` puts it: see `build.rs`.
    pub(crate) installed: &'static str,
}

/// Directories relative to this program: cargo uses the second when it builds tests, packages use
/// the third.
const PLACES: [&str; 3] = ["", "deps", "../lib/barewire"];

impl Library {
    /// Finds the library.
    pub(crate) fn find(&self) -> Result<PathBuf, Error> {
        let Self { file, package, installed } = self;
        let program =
            std::env::current_exe().map_err(|error| local("cannot find this program", &error))?;
        let folder = program.parent().unwrap_or(&program);
        let places = PLACES.map(|place| folder.join(place).join(file));
        let mut places = places.into_iter().chain([folder.join(installed)]);
        // The dynamic loader splits the variable at colons and spaces.
        let usable =
            |path: &PathBuf| path.is_file() && !path.to_string_lossy().contains([':', ' ']);
        places.find(usable).ok_or_else(|| {
            Error::Local(format!(
                "the library {installed} ({file} in a checkout) is not beside {}, or its path has a space or a colon: \
                 copy it there from where both were built, or in a checkout build it with: cargo build -p {package}",
                program.display()
            ))
        })
    }
}
