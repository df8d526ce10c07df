//! `cargo xtask bench`: the instructions of each operation against its budget. `cargo xtask asm`:
//! the machine code of the same binaries.

mod assembly;
#[path = "../../../benches/budget/mod.rs"]
mod budget;
pub(crate) mod build;
pub(crate) mod callgrind;
mod channels;
mod judge;
mod measure;
mod peers;
mod results;
pub(crate) mod side_by_side;
mod tools;

use std::process::ExitCode;
use std::time::Duration;

pub(crate) use channels::write as channels;

use crate::arm;
use crate::packages::{self, Install};
use crate::process::{self, Failure};

/// Deadline of a query.
const SOON: Duration = Duration::from_mins(2);
/// Deadline of a build.
const BUILD: Duration = Duration::from_mins(20);

/// The row that is no operation: the table of all libraries on `mlx5_0`.
const SIDE_BY_SIDE: &str = "side-by-side";

/// What to count, and where the result goes.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Only operations with this text in their name.
    row: Option<String>,
    /// The processor to build for, instead of the baseline, for which the limits are.
    cpu: Option<String>,
    /// Writes `benches/RESULTS.md`.
    write: bool,
    may_install: bool,
}

impl Plan {
    /// Parses the arguments of `cargo xtask bench`.
    ///
    /// # Errors
    /// The reason why they are not understood.
    pub(crate) fn parse(words: &[&str]) -> Result<Self, String> {
        let mut plan = Self { may_install: true, ..Self::default() };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--write" => plan.write = true,
                "--no-install" => plan.may_install = false,
                "--target-cpu" => {
                    let cpu = words.next().ok_or("--target-cpu needs a processor")?;
                    plan.cpu = Some((*cpu).to_owned());
                }
                option if option.starts_with('-') => return Err(format!("unknown '{option}'")),
                row if plan.row.is_none() => plan.row = Some(row.to_owned()),
                more => return Err(format!("one ROW only, not '{more}' as well")),
            }
        }
        if plan.write && (plan.row.is_some() || plan.cpu.is_some()) {
            return Err("--write needs all rows, for the baseline processor".to_owned());
        }
        let beside = plan.row.as_deref() == Some(SIDE_BY_SIDE);
        if beside && plan.cpu.is_some() {
            return Err(format!("{SIDE_BY_SIDE} is for the baseline processor"));
        }
        if let Some(row) = &plan.row
            && !beside
            && !budget::all().any(|budget| is_named(budget, row))
        {
            let mut names: Vec<&str> = budget::all().map(|budget| budget.bench).collect();
            names.dedup();
            return Err(format!(
                "no operation '{row}'; there are {}, and the table {SIDE_BY_SIDE}",
                names.join(", ")
            ));
        }
        Ok(plan)
    }
}

/// Returns `true` if `row` is the name of the bench's binary, or part of the bench's or the
/// operation's.
fn is_named(budget: &budget::Budget, row: &str) -> bool {
    budget.level.name() == row || budget.bench.contains(row) || budget.operation.contains(row)
}

/// Counts and prints a table. Of all rows, checks the limits and the assembly.
pub(crate) fn bench(plan: &Plan) -> ExitCode {
    let install = if plan.may_install { Install::Missing } else { Install::Nothing };
    finish(match (plan.row.as_deref(), plan.cpu.as_deref()) {
        (None, None) => check(install, plan.write),
        (Some(SIDE_BY_SIDE), None) => beside(install),
        (row, cpu) => show(install, row, cpu),
    })
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

/// Counts some operations, or all for another processor, and prints them. There is no verdict.
fn show(install: Install, row: Option<&str>, cpu: Option<&str>) -> Result<(), Failure> {
    process::watch_signals();
    build::name_ignored();
    let workspace = build::Workspace::ask()?;
    tools::debian(install, &[tools::VALGRIND])?;
    let runner = tools::runner(install, &workspace)?;
    let (ran, counts) = measure::run(&workspace, &runner, row, cpu)?;
    results::print(&counts, &peers::read()?, row);
    if let Some(cpu) = cpu {
        println!("built for {cpu}: the limits and the peers' counts are for baseline x86-64");
        // Limits may be exceeded: they do not apply.
        return Ok(());
    }
    ran
}

/// Counts the libraries on `mlx5_0`, and prints their table.
fn beside(install: Install) -> Result<(), Failure> {
    process::watch_signals();
    build::name_ignored();
    tools::debian(install, &[tools::VALGRIND, tools::UCX])?;
    let mut text = String::new();
    side_by_side::measure(&build::Workspace::ask()?)?.render(&mut text);
    println!("{text}");
    Ok(())
}

/// Checks the limits of all operations, and the assembly for x86-64.
pub(crate) fn limits(install: Install) -> Result<(), Failure> {
    build::name_ignored();
    let workspace = build::Workspace::ask()?;
    tools::debian(install, &[tools::VALGRIND, tools::OBJDUMP])?;
    let runner = tools::runner(install, &workspace)?;
    let mut complaints = assembly::check(&build::binaries()?, &workspace.rustc)?;
    let (ran, counts) = measure::run(&workspace, &runner, None, None)?;
    results::print(&counts, &peers::read()?, None);
    let verdict = judge::judge(&counts);
    complaints.extend(verdict.complaints);
    verdict.notes.iter().for_each(|note| println!("note: {note}"));
    // Exceeded limits are reported with the budget; any other failure is the runner's.
    if complaints.is_empty() { ran } else { Err(failure(&complaints)) }
}

/// Checks the assembly for aarch64, on a machine that can build it.
pub(crate) fn aarch64_assembly() -> Result<(), Failure> {
    let complaints = assembly::check_aarch64(&build::aarch64()?, &build::Workspace::ask()?.rustc)?;
    if complaints.is_empty() { Ok(()) } else { Err(failure(&complaints)) }
}

/// The steps of `bench` for all operations.
pub(crate) fn check(install: Install, write: bool) -> Result<(), Failure> {
    process::watch_signals();
    if !cfg!(target_arch = "x86_64") {
        return Err(Failure::Found("the budgets are for x86-64".to_owned()));
    }
    build::name_ignored();
    let workspace = build::Workspace::ask()?;
    tools::debian(install, &[tools::VALGRIND, tools::OBJDUMP, tools::UCX])?;
    let valgrind = tools::valgrind_version()?;
    let runner = tools::runner(install, &workspace)?;
    let binaries = build::binaries()?;

    let mut complaints = assembly::check(&binaries, &workspace.rustc)?;
    complaints.extend(aarch64(install, &workspace.rustc)?);
    let (ran, counts) = measure::run(&workspace, &runner, None, None)?;
    let peers = peers::read()?;
    results::print(&counts, &peers, None);
    let verdict = judge::judge(&counts);
    if verdict.is_complete {
        let beside = side_by_side::measure(&workspace)?;
        let header =
            results::Header { valgrind, rustc: workspace.rustc, harness: workspace.harness };
        let text = results::text(&header, &counts, &peers, &beside);
        results::finish(&text, write)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_understood_or_named() {
        let plan = Plan::parse(&["put_short", "--target-cpu", "x86-64-v3"]).unwrap();
        assert_eq!(
            (plan.row.as_deref(), plan.cpu.as_deref()),
            (Some("put_short"), Some("x86-64-v3"))
        );
        assert!(Plan::parse(&["--write", "--no-install"]).unwrap().write);
        assert!(Plan::parse(&["side-by-side"]).is_ok());
        for (bad, named) in [
            (&["--fast"][..], "--fast"),
            (&["put_short", "get"], "get"),
            (&["carrier pigeon"], "put_short"),
            (&["put_short", "--write"], "all rows"),
            (&["--target-cpu"], "processor"),
            (&["side-by-side", "--target-cpu", "native"], "baseline"),
        ] {
            let error = Plan::parse(bad).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
