//! `cargo xtask deb`: a Debian package of the command line, by cargo-deb.

use std::fs;
use std::time::Duration;

use crate::process::{self, Failure, Invocation, Output, repository};

const BUILD: Duration = Duration::from_mins(30);
const PROGRAM: &str = "target/release/barewire";
const SHELLS: [(&str, &str); 3] =
    [("bash", "barewire.bash"), ("fish", "barewire.fish"), ("zsh", "_barewire")];

/// Builds the programs, makes the manual, the completions and the pkg-config file, and packages
/// them.
pub(crate) fn package() -> Result<(), Failure> {
    let version = Invocation::cargo(&["deb", "--version"]);
    if process::run(&version, BUILD, Output::Discard).is_err() {
        let missing = "cargo-deb is not installed: cargo install cargo-deb";
        return Err(Failure::Found(missing.to_owned()));
    }
    let build = Invocation::cargo(&["build", "--release", "-p", "barewire-cli"]);
    println!("{build}");
    process::run(&build, BUILD, Output::Inherit)?;
    let texts = repository().join("target/deb");
    let written = |error: std::io::Error| Failure::Found(format!("{}: {error}", texts.display()));
    fs::create_dir_all(&texts).map_err(written)?;
    let manual = Invocation::new(PROGRAM, &["man", "target/deb/man1"]);
    process::run(&manual, BUILD, Output::Inherit)?;
    let linker = ["uct", "pkg-config", "target/deb", "--libdir", "/usr/lib/barewire/uct"];
    process::run(&Invocation::new(PROGRAM, &linker), BUILD, Output::Inherit)?;
    for (shell, file) in SHELLS {
        let mut script = String::new();
        let print = Invocation::new(PROGRAM, &["completions", shell]);
        process::run(&print, BUILD, Output::Collect(&mut script))?;
        fs::write(texts.join(file), script).map_err(written)?;
    }
    let package = Invocation::cargo(&["deb", "--no-build", "-p", "barewire-cli"]);
    println!("{package}");
    process::run(&package, BUILD, Output::Inherit)
}
