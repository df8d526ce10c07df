//! Repository tasks. `cargo xtask test` is the check that people and CI run.
#![warn(clippy::all)]

mod closure;
mod count;
mod packages;
mod process;
mod report;
mod steps;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask test [--no-install]

  test           every check of this repository: format, lints, tests, doc tests, documentation, and that
                 the default build needs no system library. As root on Debian it first installs the
                 packages that the optional features need and that are missing, and says which.
  --no-install   install nothing; features whose packages are missing are left out and named";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["test"] => steps::test(packages::Install::Missing),
        ["test", "--no-install"] => steps::test(packages::Install::Nothing),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        [] => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
        ["test", unknown, ..] | [unknown, ..] => {
            eprintln!("xtask: do not know '{unknown}'\n{USAGE}");
            ExitCode::from(2)
        }
    }
}
