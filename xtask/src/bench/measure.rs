//! Runs the benches and reads their counts.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::budget::{self, Level};
use super::build::{self, Workspace};
use super::is_named;
use crate::process::{self, Failure, Output};

/// The count of a bench.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Count {
    /// Binary, group and function, as in `driver::held::write_8`.
    pub(super) bench: String,
    /// Instructions of the whole loop.
    pub(super) instructions: u64,
}

/// Returns whether nothing more is to be counted.
fn ends(ran: &Result<(), Failure>) -> bool {
    matches!(ran, Err(Failure::Interrupted(_) | Failure::Deadline(_) | Failure::Start { .. }))
}

/// The result of two runs: a failure that ends the run hides another one.
fn worse(first: Result<(), Failure>, second: Result<(), Failure>) -> Result<(), Failure> {
    if ends(&second) { second } else { first.and(second) }
}

/// Runs the benches of all operations, or the binaries with those that have `row` in their name, built for `cpu` or the
/// baseline processor. Returns the outcome of the run, which fails if a hard limit is exceeded, and
/// the counts.
pub(super) fn run(
    workspace: &Workspace,
    runner: &str,
    row: Option<&str>,
    cpu: Option<&str>,
) -> Result<(Result<(), Failure>, Vec<Count>), Failure> {
    // A folder that is emptied first, so that no old count remains of a bench that does not run.
    let home = workspace.target.join("bench-counts");
    match fs::remove_dir_all(&home) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Failure::Found(format!("cannot empty {}: {error}", home.display())));
        }
        _ => {}
    }
    let named: Vec<_> =
        budget::all().filter(|budget| row.is_none_or(|row| is_named(budget, row))).collect();
    let benches = |level: Level| named.iter().filter(|one| one.level == level).count();
    let mut levels: Vec<_> = Level::ALL.map(|level| (benches(level), level.name())).into();
    levels.retain(|(benches, _)| *benches > 0);
    let count = |level: &str| {
        let arguments = ["--no-fail-fast", "--", "--save-summary=json", "--nosummary"];
        let bench = build::cargo_bench_of(&[level], &arguments, cpu)
            .environment("IAI_CALLGRIND_RUNNER", runner)
            .environment("IAI_CALLGRIND_HOME", &home.to_string_lossy());
        println!("{bench}");
        let mut printed = String::new();
        let ran = process::run(&bench, Duration::from_mins(30), Output::Collect(&mut printed));
        if ran.is_err() {
            print!("{printed}");
        }
        ran
    };
    // A count does not depend on what else the machine does. Each processor takes the binary with
    // most benches of those that are left.
    levels.sort_unstable();
    let left = Mutex::new(levels);
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let work = || {
        let mut ran = Ok(());
        while let Some((_, level)) = next() {
            ran = worse(ran, count(level));
            if ends(&ran) {
                break;
            }
        }
        ran
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let ran = thread::scope(|scope| {
        let workers: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, Result<(), Failure>>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().map(join).fold(Ok(()), worse)
    });
    if ends(&ran) {
        return Ok((ran, Vec::new()));
    }
    let mut counts = Vec::new();
    for path in summaries(&home) {
        counts.push(read(&path)?);
    }
    Ok((ran, counts))
}

/// Returns every summary below `folder`.
fn summaries(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(summaries(&path));
        } else if path.file_name().is_some_and(|name| name == "summary.json") {
            found.push(path);
        }
    }
    found
}

fn read(path: &Path) -> Result<Count, Failure> {
    let unreadable = |what: &str| Failure::Found(format!("{}: {what}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| unreadable(&error.to_string()))?;
    count(&text).ok_or_else(|| unreadable("no summary of version 6 with one count of instructions"))
}

/// Returns the count in a summary (iai-callgrind's JSON, version 6).
fn count(summary: &str) -> Option<Count> {
    let summary: Value = serde_json::from_str(summary).ok()?;
    if summary["version"] != "6" {
        return None;
    }
    let total =
        &summary["profiles"][0]["summaries"]["total"]["summary"]["Callgrind"]["Ir"]["metrics"];
    Some(Count {
        bench: summary["module_path"].as_str()?.to_owned(),
        instructions: total["Left"]["Int"].as_u64()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_summary() {
        let summary = r#"{"function_name":"write_8","module_path":"driver::held::write_8","version":"6","profiles":[
            {"tool":"Callgrind","summaries":{"parts":[],"total":{"regressions":[],"summary":{"Callgrind":
            {"Ir":{"diffs":null,"metrics":{"Left":{"Int":63525}}}}}}}}]}"#;
        let wanted = Count { bench: "driver::held::write_8".to_owned(), instructions: 63525 };
        assert_eq!(count(summary), Some(wanted));
        assert_eq!(count(&summary.replace("\"6\"", "\"7\"")), None);
        assert_eq!(count(&summary.replace("Left", "Both")), None, "compared with an old run");
    }
}
