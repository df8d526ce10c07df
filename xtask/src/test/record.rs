//! docs/DEEP.md: when each part of the deep tier last ran, and with which result.

use std::fmt::Write;
use std::fs;
use std::time::Duration;

use crate::count::Tally;
use crate::process::{self, Failure, Invocation, repository};

const FILE: &str = "docs/DEEP.md";
const SOON: Duration = Duration::from_secs(30);
const HEAD: &str = "\
# The deep tier

`cargo xtask test --deep` runs what `cargo xtask test` leaves out; `--part NAME` runs one part. Each
run of a part writes its row here. A commit with `+` had changes that were not committed.

| part | result | tests passed | tests failed | seconds | commit | date | machine |
|---|---|---:|---:|---:|---|---|---|
";

/// Replaces the row of `part`, or adds it.
pub(super) fn write(part: &str, took: Duration, tests: Tally, passed: bool) -> Result<(), Failure> {
    let path = repository().join(FILE);
    let old = fs::read_to_string(&path).unwrap_or_default();
    let result = if passed { "passed" } else { "**failed**" };
    let row = format!(
        "| {part} | {result} | {} | {} | {} | {} | {} | {} |",
        tests.passed,
        tests.failed,
        took.as_secs(),
        commit()?,
        ask("date", &["-u", "+%Y-%m-%d"])?,
        machine()
    );
    fs::write(&path, with_row(&old, part, &row))
        .map_err(|error| Failure::Found(format!("cannot write {FILE}: {error}")))
}

/// Returns the text of the file with the row of `part` replaced. Rows are in the order of names.
fn with_row(old: &str, part: &str, row: &str) -> String {
    let is_row = |line: &&str| line.starts_with("| ") && !line.starts_with("| part |");
    let name = |line: &str| line.split('|').nth(1).unwrap_or_default().trim().to_owned();
    let mut rows: Vec<&str> =
        old.lines().filter(is_row).filter(|line| name(line) != part).collect();
    rows.push(row);
    rows.sort_by_key(|line| name(line));
    rows.iter().fold(HEAD.to_owned(), |mut text, row| {
        let _ = writeln!(text, "{row}");
        text
    })
}

/// Returns the commit; with `+` if files differ from it, other than the one that is written here.
fn commit() -> Result<String, Failure> {
    let commit = ask("git", &["rev-parse", "--short=8", "HEAD"])?;
    let changes = ask("git", &["status", "--porcelain", "--untracked-files=no"])?;
    let differs = changes.lines().any(|line| !line.ends_with(FILE));
    Ok(if differs { format!("{commit}+") } else { commit })
}

fn ask(program: &str, arguments: &[&str]) -> Result<String, Failure> {
    process::text(&Invocation::new(program, arguments), SOON)
}

/// Returns the processor and the number of processors.
fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or(std::env::consts::ARCH, |(_, model)| model);
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{count} x {model}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_replaces_the_row_of_its_part() {
        let text = with_row("", "guest", "| guest | passed | 1 |");
        let text = with_row(&text, "aarch64", "| aarch64 | passed | 2 |");
        let text = with_row(&text, "guest", "| guest | **failed** | 3 |");
        let rows = "| aarch64 | passed | 2 |\n| guest | **failed** | 3 |\n";
        assert_eq!(text, format!("{HEAD}{rows}"));
    }
}
