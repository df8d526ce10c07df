//! docs/CONFORMANCE.md and the summary in docs/STATUS.md: which transport has which behaviour, from the
//! output of the suite.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crate::machine;
use crate::packages::{self, Install};
use crate::process::{self, Failure, Invocation, Output};

const DEADLINE: Duration = Duration::from_mins(20);
const TABLE: &str = "docs/CONFORMANCE.md";
const STATUS: &str = "docs/STATUS.md";
/// The marks around the summary there.
const MARKS: [&str; 2] =
    ["<!-- written by cargo xtask conformance -->\n", "<!-- end of what is written -->\n"];

/// UCX's tests of each behaviour, by the number of their section in UCX's test suite.
const ROWS: [(u8, &str); 22] = [
    (1, "every size, both directions, byte-checked"),
    (2, "active messages: ids, header and payload, kept data"),
    (3, "receiver out of buffers: the sender slows, nothing is lost"),
    (4, "ten thousand of the longest short messages"),
    (5, "no resources at the last buffer, and on after progress"),
    (7, "wrong arguments and wrong keys are errors"),
    (8, "random operations equal a model"),
    (9, "atomics are exact"),
    (10, "fence"),
    (11, "flush"),
    (12, "cancel completes everything once"),
    (13, "nothing overtakes pending requests"),
    (14, "sends from callbacks keep order"),
    (15, "pending requests take turns, and are purged once"),
    (16, "small operations finish beside large ones"),
    (17, "a killed peer is told once"),
    (18, "asking for a peer"),
    (19, "sleeping loses no wake-up"),
    (20, "dropping with operations in flight"),
    (21, "rings and counters wrap"),
    (22, "many gets, and what comes behind them"),
    (23, "two full ends do not block each other"),
];

/// Behaviours that the table lacks, and the tests that cover them.
const ELSEWHERE: &str = "\
Not in this table: row 6 (alignment and headroom of received data are no settings of this API), row 24 (shared receive queues, compressed
completions and doorbell records are the driver's: `mlx5/tests`), and of row 25 what is one transport's own (`shm/src/models.rs`,
`tcp-fallback/tests`, `src/transport/reliable`, `tests/transport`).
";

/// Runs the suite on all devices of this machine and writes the table.
pub(crate) fn conformance(install: Install) -> ExitCode {
    process::watch_signals();
    match packages::install(install, &packages::ALL, DEADLINE).and_then(|()| write()) {
        Ok(()) => {
            println!("wrote {TABLE} and the summary in {STATUS}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn write() -> Result<(), Failure> {
    let report = std::env::temp_dir().join(format!("barewire-conformance-{}", std::process::id()));
    let verbs = packages::left_out(&[&packages::VERBS]).is_empty();
    let features: &[&str] = if verbs { &["--all-features"] } else { &[] };
    let suite = Invocation::cargo(&["test", "-p", "barewire", "--test", "conformance"])
        .with(features)
        .environment("BAREWIRE_TEST_REPORT", &report.to_string_lossy());
    let run = |suite: &Invocation| {
        println!("{suite}");
        process::run(suite, DEADLINE, Output::Inherit)
    };
    run(&suite)?;
    if verbs {
        let barewire = machine::command_line(DEADLINE)?;
        for (way, transports, label) in [
            ("devx", "rc_mlx5,ud_mlx5,dc_mlx5,xrc_mlx5", "DEVX"),
            ("init_obj", "rc_mlx5,ud_mlx5", "init_obj"),
            ("verbs", "rc_verbs,ud_verbs", ""),
        ] {
            let suite = machine::under(&suite, &barewire, way)
                .environment("BAREWIRE_TEST_TRANSPORT", transports)
                .environment("BAREWIRE_TEST_LABEL", label);
            run(&suite)?;
        }
    }
    let lines = fs::read_to_string(&report)
        .map_err(|error| Failure::Found(format!("{}: {error}", report.display())))?;
    let _ = fs::remove_file(&report);
    let report = Report::of(&lines);
    let file = |name: &str| Path::new(process::repository()).join(name);
    let failed =
        |name: &'static str| move |error: io::Error| Failure::Found(format!("{name}: {error}"));
    fs::write(file(TABLE), table(&report)).map_err(failed(TABLE))?;
    let status = fs::read_to_string(file(STATUS)).map_err(failed(STATUS))?;
    let status = with_summary(&status, &summary(&report)).ok_or_else(|| {
        Failure::Found(format!("{STATUS} has no place for the summary: {MARKS:?}"))
    })?;
    fs::write(file(STATUS), status).map_err(failed(STATUS))
}

/// The output of the suite: the results of each row and behaviour by place.
struct Report<'a> {
    /// In the order of the runs.
    places: Vec<&'a str>,
    results: BTreeMap<(u8, &'a str), BTreeMap<&'a str, &'a str>>,
}

impl<'a> Report<'a> {
    /// Parses lines `place <tab> row <tab> behaviour <tab> result`.
    fn of(lines: &'a str) -> Self {
        let (mut places, mut results) = (Vec::new(), BTreeMap::<_, BTreeMap<_, _>>::new());
        for line in lines.lines() {
            let [place, row, behaviour, result] = line.split('\t').collect::<Vec<_>>()[..] else {
                continue;
            };
            let place = place.trim();
            if !places.contains(&place) {
                places.push(place);
            }
            results.entry((row.parse().unwrap_or(0), behaviour)).or_default().insert(place, result);
        }
        Self { places, results }
    }
}

/// Returns a line for each place: how many behaviours passed there, and why the others were left
/// out.
fn summary(Report { places, results }: &Report<'_>) -> String {
    let mut text = String::from(
        "| transport and device | behaviours seen | failed | it lacks |\n|---|---:|---:|---|\n",
    );
    for place in places {
        let cells: Vec<&str> =
            results.values().filter_map(|cells| cells.get(place).copied()).collect();
        let seen = cells.iter().filter(|cell| **cell == "yes").count();
        let lacks: BTreeSet<&str> = cells
            .iter()
            .filter_map(|cell| cell.strip_prefix("no "))
            .flat_map(|all| all.split(", "))
            .collect();
        let left_out = cells.iter().filter(|cell| cell.starts_with("no ")).count();
        let (all, failed) = (cells.len(), cells.len() - seen - left_out);
        let lacks = Vec::from_iter(lacks).join(", ");
        let _ = writeln!(text, "| `{place}` | {seen} of {all} | {failed} | {lacks} |");
    }
    text
}

/// Returns the text with `content` between the marks; `None` without marks.
fn with_summary(text: &str, summary: &str) -> Option<String> {
    let (before, rest) = text.split_once(MARKS[0])?;
    let (_, behind) = rest.split_once(MARKS[1])?;
    Some([before, MARKS[0], summary, MARKS[1], behind].concat())
}

fn table(Report { places, results }: &Report<'_>) -> String {
    let mut text = String::from(
        "# What every transport shows\n\nWritten by `cargo xtask conformance` from the suite in `tests/conformance`: each behaviour is one \
         test, run over every\ntransport and device of this machine (devices named `mlx5_0` are the software HCA behind Debian's libibverbs \
         and libmlx5). The\nnumber is that of UCX's test of the same behaviour.\n\nA letter stands for a capability that the interface's own \
         attributes say it lacks; `yes` was seen.\n\n",
    );
    let missing: BTreeSet<&str> = results
        .values()
        .flat_map(|row| row.values())
        .copied()
        .filter(|result| result.starts_with("no "))
        .collect();
    let letters: BTreeMap<&str, char> = missing.into_iter().zip('a'..='z').collect();
    for (reason, letter) in &letters {
        let _ = writeln!(text, "- {letter}: {reason}");
    }
    let _ = writeln!(text, "\n| behaviour | {} |", places.join(" | "));
    let _ = writeln!(text, "|---|{}", "---|".repeat(places.len()));
    let rows =
        ROWS.iter().copied().chain([(25, "of one transport or memory domain"), (0, "besides")]);
    for (number, what) in rows {
        let behaviours: Vec<_> = results.iter().filter(|((row, _), _)| *row == number).collect();
        if behaviours.is_empty() {
            continue;
        }
        let number = if number == 0 { String::new() } else { format!("{number}. ") };
        let _ = writeln!(text, "| **{number}{what}** |{}", " |".repeat(places.len()));
        for ((_, behaviour), cells) in behaviours {
            let cell = |place: &&str| match cells.get(place) {
                Some(&"yes") => "yes".to_owned(),
                Some(result) => {
                    letters.get(result).map_or_else(|| format!("**{result}**"), char::to_string)
                }
                None => "-".to_owned(),
            };
            let cells: Vec<_> = places.iter().map(cell).collect();
            let _ = writeln!(text, "| {} | {} |", behaviour.replace('_', " "), cells.join(" | "));
        }
    }
    text.push('\n');
    text.push_str(ELSEWHERE);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_cell_for_each_result() {
        let lines =
            "shm\t1\tput_short\tyes\ncma\t1\tput_short\tno put_short\ncma\t0\tmemory\tFAILED\n";
        let report = Report::of(lines);
        let text = table(&report);
        assert!(text.contains("- a: no put_short\n"), "{text}");
        assert!(text.contains("| behaviour | shm | cma |\n"), "{text}");
        assert!(text.contains("| put short | yes | a |\n"), "{text}");
        assert!(text.contains("| memory | - | **FAILED** |\n"), "{text}");
        let text =
            with_summary(&["a\n", MARKS[0], "old\n", MARKS[1], "b"].concat(), &summary(&report))
                .unwrap();
        assert!(
            text.contains("| `shm` | 1 of 1 | 0 |  |\n| `cma` | 0 of 2 | 1 | put_short |\n"),
            "{text}"
        );
        assert!(text.starts_with("a\n") && text.ends_with('b') && !text.contains("old"), "{text}");
        assert_eq!(with_summary("a", ""), None);
    }
}
