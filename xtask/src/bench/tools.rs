//! The programs that count and disassemble, and their installation.

use std::path::Path;
use std::time::Duration;

use super::build::Workspace;
use super::{BUILD, SOON};
use crate::packages::{self, Install};
use crate::process::{self, Failure, Invocation, Output};

/// A program and its Debian package.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    pub(super) name: &'static str,
    package: &'static str,
    purpose: &'static str,
}

/// Counts instructions.
pub(super) const VALGRIND: Program =
    Program { name: "valgrind", package: "valgrind", purpose: "counts instructions" };
/// Shows the machine code.
pub(super) const OBJDUMP: Program =
    Program { name: "objdump", package: "binutils", purpose: "shows machine code" };

/// Headers of UCX, which is measured for comparison.
pub(super) const UCX: Program = Program {
    name: "/usr/include/uct/api/uct.h",
    package: "libucx-dev",
    purpose: "is UCX for programs",
};
const RUNNER: &str = "iai-callgrind-runner";

/// Installs missing programs, or prints what to install.
pub(super) fn debian(install: Install, programs: &[Program]) -> Result<(), Failure> {
    let missing = || programs.iter().filter(|program| !packages::on_path(program.name));
    let wanted: Vec<&str> = missing().map(|program| program.package).collect();
    for program in missing() {
        println!(
            "missing: {}, which {} (Debian package {})",
            program.name, program.purpose, program.package
        );
    }
    if !wanted.is_empty() {
        packages::debian(install, &wanted, Duration::from_mins(10))?;
    }
    match missing().map(|program| program.package).collect::<Vec<_>>() {
        still if still.is_empty() => Ok(()),
        still => {
            Err(Failure::Found(format!("install {} first (Debian packages)", still.join(" "))))
        }
    }
}

/// Returns valgrind's version.
pub(super) fn valgrind_version() -> Result<String, Failure> {
    process::text(&Invocation::new(VALGRIND.name, &["--version"]), SOON)
}

/// Returns the runner of iai-callgrind in the version of the crate; the runner of another version
/// refuses to run, or counts differently.
pub(super) fn runner(install: Install, workspace: &Workspace) -> Result<String, Failure> {
    let wanted = workspace.harness.as_str();
    let root = workspace.target.join("tools");
    let own = root.join("bin").join(RUNNER).to_string_lossy().into_owned();
    let chosen = std::env::var("IAI_CALLGRIND_RUNNER").ok();
    let candidates = chosen.into_iter().chain([RUNNER.to_owned(), own.clone()]);
    for candidate in candidates {
        match runner_version(&candidate) {
            Some(version) if version == wanted => return Ok(candidate),
            Some(version) => {
                println!("{candidate} is version {version}, the benches need {wanted}");
            }
            None => {}
        }
    }
    let by_hand = format!("cargo install --locked --version ={wanted} {RUNNER}");
    if install == Install::Nothing {
        return Err(Failure::Found(format!("install the runner of the benches first: {by_hand}")));
    }
    println!("missing: {RUNNER} {wanted}, which runs the benches under valgrind; building it once");
    fetch(&root, wanted).map_err(|failure| {
        Failure::Found(format!(
            "cannot install the runner of the benches: {failure}\nby hand: {by_hand}"
        ))
    })?;
    match runner_version(&own) {
        Some(version) if version == wanted => Ok(own),
        _ => Err(Failure::Found(format!("{own} was installed, but does not run"))),
    }
}

/// Builds the runner from crates.io into `root`.
fn fetch(root: &Path, version: &str) -> Result<(), Failure> {
    let (root, version) = (root.to_string_lossy(), format!("={version}"));
    // It starts valgrind and reads its output: optimisation would take longer than it saves.
    let install = Invocation::cargo(&["install", "--debug", "--locked", "--version", &version])
        .with(&["--root", &root, RUNNER])
        .environment("CARGO_PROFILE_DEV_DEBUG", "0");
    println!("{install}");
    process::run(&install, BUILD, Output::Inherit)
}

/// Without the arguments of a bench, the runner fails and prints its version.
fn runner_version(program: &str) -> Option<String> {
    let script = "exec \"$0\" 2>&1";
    let mut complaint = String::new();
    let ask = Invocation::new("sh", &["-c", script, program]);
    // It ends with a failure, as expected.
    let _ = process::run(&ask, SOON, Output::Collect(&mut complaint));
    version_in(&complaint)
}

fn version_in(complaint: &str) -> Option<String> {
    let (_, rest) = complaint.split_once(&format!("version of {RUNNER} is "))?;
    let version = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
    Some(version.trim_end_matches('.').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_version_out_of_the_complaint() {
        let complaint = "iai_callgrind_runner: Error: Unexpected number of arguments\n\n\
             Detected version of iai-callgrind-runner is 0.16.1. This error can be caused by";
        assert_eq!(version_in(complaint).as_deref(), Some("0.16.1"));
        assert_eq!(version_in("sh: 1: exec: iai-callgrind-runner: not found"), None);
    }
}
