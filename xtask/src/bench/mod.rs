//! `cargo xtask bench`: the instructions of each operation against its budget. `cargo xtask asm`:
//! the machine code of the same binaries.

mod assembly;
#[path = "../../../benches/budget/mod.rs"]
mod budget;
pub(crate) mod build;
mod judge;
mod measure;
mod peers;
mod results;
mod side_by_side;
mod tools;

use std::process::ExitCode;
use std::time::Duration;

use crate::arm;
use crate::packages::{self, Install};
use crate::process::{self, Failure};

/// Deadline of a query.
const SOON: Duration = Duration::from_mins(2);
/// Deadline of a build.
const BUILD: Duration = Duration::from_mins(20);

/// Checks the assembly, counts, judges, and writes `benches/RESULTS.md`.
pub(crate) fn bench(install: Install) -> ExitCode {
    finish(check(install))
}

/// Only compares and checks the assembly.
pub(crate) fn asm(install: Install) -> ExitCode {
    finish(check_assembly(install))
}

fn finish(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\nxtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// The steps of `bench`.
pub(crate) fn check(install: Install) -> Result<(), Failure> {
    process::watch_signals();
    if !cfg!(target_arch = "x86_64") {
        return Err(Failure::Found("the budgets are for x86-64".to_owned()));
    }
    let workspace = build::Workspace::ask()?;
    tools::debian(install, &[tools::VALGRIND, tools::OBJDUMP, tools::UCX])?;
    let valgrind = tools::valgrind_version()?;
    let runner = tools::runner(install, &workspace)?;
    let binaries = build::binaries()?;

    let mut complaints = assembly::check(&binaries, &workspace.rustc)?;
    complaints.extend(aarch64(install, &workspace.rustc)?);
    let (ran, counts) = measure::run(&workspace, &runner)?;
    let verdict = judge::judge(&counts);
    if verdict.is_complete {
        let beside = side_by_side::measure(&workspace)?;
        let header =
            results::Header { valgrind, rustc: workspace.rustc, harness: workspace.harness };
        results::write(&header, &counts, &peers::read()?, &beside)?;
    }
    complaints.extend(verdict.complaints);
    verdict.notes.iter().for_each(|note| println!("note: {note}"));
    match (complaints.is_empty(), ran) {
        // Exceeded limits are reported with the budget below; any other failure is the runner's.
        (true, ran) => ran,
        (false, _) => Err(failure(&complaints)),
    }
}

fn check_assembly(install: Install) -> Result<(), Failure> {
    process::watch_signals();
    let workspace = build::Workspace::ask()?;
    tools::debian(install, &[tools::OBJDUMP])?;
    packages::install(install, &[&packages::ARM], Duration::from_mins(10))?;
    let mut complaints = assembly::check(&build::binaries()?, &workspace.rustc)?;
    complaints.extend(aarch64(install, &workspace.rustc)?);
    if complaints.is_empty() { Ok(()) } else { Err(failure(&complaints)) }
}

/// Checks the code for aarch64 if this machine can build it. Returns the complaints.
fn aarch64(install: Install, rustc: &str) -> Result<Vec<String>, Failure> {
    let missing = packages::left_out(&[&packages::ARM]).pop();
    if let Some(why) = missing.or_else(|| arm::prepare(install).err()) {
        println!("assembly of aarch64: not checked, {why}");
        return Ok(Vec::new());
    }
    assembly::check_aarch64(&build::aarch64()?, rustc)
}

fn failure(complaints: &[String]) -> Failure {
    Failure::Found(complaints.join("\n       "))
}
