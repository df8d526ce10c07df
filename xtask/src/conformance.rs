//! docs/CONFORMANCE.md and the figures in docs/STATUS.md: which behaviours each transport passes,
//! from the output of the suite.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crate::machine;
use crate::packages::{self, Install};
use crate::process::{self, Failure};
use crate::test::programs::Programs;
use crate::test::{jobs, suite};

const DEADLINE: Duration = Duration::from_mins(10);
const TABLES: &str = "docs/CONFORMANCE.md";
const STATUS: &str = "docs/STATUS.md";
/// The marks around the figures there.
const MARKS: [&str; 2] =
    ["<!-- written by cargo xtask conformance -->\n", "<!-- end of what is written -->\n"];

/// The set-ups of `mlx5_0`, with their names in the tables.
const SETUPS: [machine::Way; 3] = [
    machine::Way { environment: &[(LABEL, "DEVX")], ..machine::DEVX },
    machine::Way { environment: &[(LABEL, "init_obj")], ..machine::INIT_OBJ },
    machine::VERBS,
];
/// The variable with the name of a set-up (`tests/conformance/place.rs`).
const LABEL: &str = "BAREWIRE_TEST_LABEL";

/// The headings, in order, and the modules of the suite below each. A module that is not listed gets
/// a heading of its own behind these.
const HEADINGS: [(&str, &[&str]); 15] = [
    ("Puts and gets", &["rma", "lists"]),
    ("Active messages", &["messages", "kept"]),
    ("Tagged messages that the device matches", &["tags"]),
    ("Atomics", &["atomics"]),
    ("Memory and keys", &["memory", "registration", "device_memory"]),
    ("Windows and views", &["windows", "views"]),
    ("Order, fence and flush", &["ordering", "fences"]),
    ("Full queues and pending requests", &["full_queues", "pending", "peers"]),
    ("Random operations and long runs", &["volume"]),
    ("Callbacks that post, drop or panic", &["callbacks", "reentrancy", "panics"]),
    ("Connecting and closing", &["setup", "closing"]),
    ("Failure of the peer", &["processes", "keepalive", "check"]),
    ("Sleeping and waking", &["events", "sleeping"]),
    ("Fork and resource limits", &["fork", "limits"]),
    ("Counters", &["counters"]),
];

const INTRODUCTION: &str = "\
# Conformance of the transports

Written by `cargo xtask conformance`. Each row is a test of `tests/conformance`, each column a
transport. The test runs on every device and set-up of the transport, which are listed at the
[end](#devices-and-missing-capabilities).

- `yes`: the test passes on all of them that have the capabilities that it needs.
- `-`: not applicable, since the transport lacks such a capability.
- **FAILED**: the test fails on at least one of them.
";

const DEVICES: &str = "
## Devices and missing capabilities

`soft0` and `soft1` are software HCAs in the process of the test, connected by UDP. `mlx5_0` and
`mlx5_1` are software HCAs behind unmodified libibverbs and libmlx5, set up by DEVX commands, or by
verbs objects and `mlx5dv_init_obj`. A single name stands for two endpoints on one device. The
capabilities are flags of `barewire::Flags`, as `barewire info` prints them.

";

/// Runs the suite on all devices of this machine and writes the tables.
pub(crate) fn conformance(install: Install) -> ExitCode {
    process::watch_signals();
    match packages::install(install, &packages::ALL, DEADLINE).and_then(|()| write()) {
        Ok(()) => {
            println!("wrote {TABLES} and the figures in {STATUS}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// # Errors
/// A program could not be built or run, or a behaviour failed; the latter is written all the same.
fn write() -> Result<(), Failure> {
    let path = process::target().join(format!("conformance-{}", std::process::id()));
    let verbs = packages::left_out(&[&packages::VERBS]).is_empty();
    let programs = Programs::build(if verbs { &["--all-features"] } else { &[] })?;
    let suite = programs.test("", "conformance")?;
    let mut jobs = suite::everywhere(suite)?;
    if verbs {
        let barewire = programs.program("barewire")?;
        for way in &SETUPS {
            jobs.extend(suite::on_devices(suite, barewire, way, None)?);
        }
    }
    for job in &mut jobs {
        let report = path.to_string_lossy();
        job.command = job.command.clone().environment("BAREWIRE_TEST_REPORT", &report);
    }
    // The tables show which behaviours failed.
    let outcome = jobs::run(jobs).map(drop);
    if let Err(failure @ Failure::Interrupted(_)) = outcome {
        return Err(failure);
    }
    let lines = fs::read_to_string(&path)
        .map_err(|error| Failure::Found(format!("{}: {error}", path.display())))?;
    let _ = fs::remove_file(&path);
    let report = Report::of(&lines);
    let file = |name: &str| Path::new(process::repository()).join(name);
    let failed =
        |name: &'static str| move |error: io::Error| Failure::Found(format!("{name}: {error}"));
    fs::write(file(TABLES), report.tables()).map_err(failed(TABLES))?;
    let status = fs::read_to_string(file(STATUS)).map_err(failed(STATUS))?;
    let status = with_figures(&status, &report.figures()).ok_or_else(|| {
        Failure::Found(format!("{STATUS} has no place for the figures: {MARKS:?}"))
    })?;
    fs::write(file(STATUS), status).map_err(failed(STATUS))?;
    outcome
}

/// The module and the name of a behaviour.
type Behaviour<'a> = (&'a str, &'a str);
/// A transport, and the devices and the set-up over which it ran.
type Place<'a> = (&'a str, &'a str);

enum Verdict {
    Passed,
    NotApplicable,
    Failed,
}

/// The output of the suite.
#[derive(Default)]
struct Report<'a> {
    /// The transports and the places of each, in the order of the runs.
    transports: Vec<(&'a str, Vec<&'a str>)>,
    results: BTreeMap<Behaviour<'a>, BTreeMap<Place<'a>, &'a str>>,
}

impl<'a> Report<'a> {
    /// Parses lines `transport place <tab> module <tab> behaviour <tab> result`. The result is `yes`,
    /// `no` with the missing capabilities, or anything else for a failure.
    fn of(lines: &'a str) -> Self {
        let mut report = Self::default();
        for line in lines.lines() {
            let [at, module, behaviour, result] = line.split('\t').collect::<Vec<_>>()[..] else {
                continue;
            };
            let (transport, place) = at.trim().split_once(' ').unwrap_or((at.trim(), ""));
            let known = report.transports.iter().position(|(name, _)| *name == transport);
            let known = known.unwrap_or_else(|| {
                report.transports.push((transport, Vec::new()));
                report.transports.len() - 1
            });
            let places = &mut report.transports[known].1;
            if !places.contains(&place) {
                places.push(place);
            }
            let results = report.results.entry((module, behaviour)).or_default();
            results.insert((transport, place), result);
        }
        report
    }

    /// A test without a result did not end.
    fn verdict(&self, behaviour: &Behaviour<'_>, transport: &str) -> Verdict {
        let results = self.results.get(behaviour).into_iter().flatten();
        let results =
            results.filter(|((name, _), _)| *name == transport).map(|(_, result)| *result);
        let results: Vec<&str> = results.collect();
        let lacks = |result: &&str| result.starts_with("no ");
        if results.is_empty() || results.iter().any(|result| *result != "yes" && !lacks(result)) {
            Verdict::Failed
        } else if results.iter().all(lacks) {
            Verdict::NotApplicable
        } else {
            Verdict::Passed
        }
    }

    /// Returns the capabilities that a transport lacks at a place.
    fn lacks(&self, transport: &str, place: &str) -> BTreeSet<&'a str> {
        let results = self.results.values().filter_map(|cells| cells.get(&(transport, place)));
        results
            .filter_map(|result| result.strip_prefix("no "))
            .flat_map(|all| all.split(", "))
            .collect()
    }

    /// Returns docs/STATUS.md's table: a line for each transport.
    fn figures(&self) -> String {
        let mut text = format!(
            "Of {} behaviours:\n\n| transport | passed | not applicable | failed |\n|---|---:|---:|---:|\n",
            self.results.len()
        );
        for (transport, _) in &self.transports {
            let [mut passed, mut not_applicable, mut failed] = [0; 3];
            for behaviour in self.results.keys() {
                match self.verdict(behaviour, transport) {
                    Verdict::Passed => passed += 1,
                    Verdict::NotApplicable => not_applicable += 1,
                    Verdict::Failed => failed += 1,
                }
            }
            let failed = if failed == 0 { "0".to_owned() } else { format!("**{failed}**") };
            let _ = writeln!(text, "| `{transport}` | {passed} | {not_applicable} | {failed} |");
        }
        text
    }

    /// Returns docs/CONFORMANCE.md.
    fn tables(&self) -> String {
        let mut text = INTRODUCTION.to_owned();
        let has_heading = |module: &str| HEADINGS.iter().any(|(_, all)| all.contains(&module));
        for (heading, modules) in HEADINGS {
            self.table(&mut text, heading, |module| modules.contains(&module));
        }
        let modules: BTreeSet<&str> = self.results.keys().map(|(module, _)| *module).collect();
        for other in modules.into_iter().filter(|module| !has_heading(module)) {
            self.table(&mut text, &other.replace('_', " "), |module| module == other);
        }
        text.push_str(DEVICES);
        text.push_str("| transport | device and set-up | missing capabilities |\n|---|---|---|\n");
        for (transport, places) in &self.transports {
            let mut alike: Vec<(BTreeSet<&str>, Vec<&str>)> = Vec::new();
            for place in places {
                let lacks = self.lacks(transport, place);
                match alike.iter_mut().find(|(others, _)| *others == lacks) {
                    Some((_, places)) => places.push(place),
                    None => alike.push((lacks, vec![place])),
                }
            }
            for (lacks, places) in alike {
                let lacks: Vec<_> = lacks.iter().map(|name| format!("`{name}`")).collect();
                let (places, lacks) = (places.join(", "), lacks.join(", "));
                let _ = writeln!(text, "| `{transport}` | {places} | {lacks} |");
            }
        }
        text
    }

    /// Appends the table of the behaviours in these modules, if there are any.
    fn table(&self, text: &mut String, heading: &str, includes: impl Fn(&str) -> bool) {
        let mut rows = self.results.keys().filter(|(module, _)| includes(module)).peekable();
        if rows.peek().is_none() {
            return;
        }
        let names: Vec<_> = self.transports.iter().map(|(name, _)| format!("`{name}`")).collect();
        let _ = writeln!(text, "\n## {heading}\n\n| behaviour | {} |", names.join(" | "));
        let _ = writeln!(text, "|---|{}", ":-:|".repeat(names.len()));
        for behaviour in rows {
            let cell = |(transport, _): &(&str, _)| match self.verdict(behaviour, transport) {
                Verdict::Passed => "yes",
                Verdict::NotApplicable => "-",
                Verdict::Failed => "**FAILED**",
            };
            let cells: Vec<_> = self.transports.iter().map(cell).collect();
            let _ = writeln!(text, "| {} | {} |", behaviour.1.replace('_', " "), cells.join(" | "));
        }
    }
}

/// Returns the text with `figures` between the marks; `None` without marks.
fn with_figures(text: &str, figures: &str) -> Option<String> {
    let (before, rest) = text.split_once(MARKS[0])?;
    let (_, behind) = rest.split_once(MARKS[1])?;
    Some([before, MARKS[0], figures, MARKS[1], behind].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "\
shm\tviews\twords_of_views\tyes
shm\trma\tput_short\tyes
cma\tviews\twords_of_views\tno views
cma\trma\tput_short\tno put_short, put_bcopy
rc_mlx5 soft0\tviews\twords_of_views\tyes
rc_mlx5 soft0\trma\tput_short\tyes
rc_mlx5 mlx5_0 DEVX\tviews\twords_of_views\tno views
rc_mlx5 mlx5_0 DEVX\trma\tput_short\tFAILED
";

    #[test]
    fn places_of_a_transport_share_a_column() {
        let text = Report::of(LINES).tables();
        assert!(text.contains("| behaviour | `shm` | `cma` | `rc_mlx5` |\n"), "{text}");
        assert!(text.contains("## Puts and gets\n"), "{text}");
    }

    #[test]
    fn cell_fails_if_any_place_fails() {
        let text = Report::of(LINES).tables();
        assert!(text.contains("| put short | yes | - | **FAILED** |\n"), "{text}");
    }

    #[test]
    fn cell_passes_if_another_place_lacks_a_capability() {
        let text = Report::of(LINES).tables();
        assert!(text.contains("| words of views | yes | - | yes |\n"), "{text}");
    }

    #[test]
    fn behaviour_without_a_result_is_a_failure() {
        let lines = format!("{LINES}shm\tatomics\tadd\tyes\n");
        let text = Report::of(&lines).tables();
        assert!(text.contains("| add | yes | **FAILED** | **FAILED** |\n"), "{text}");
    }

    #[test]
    fn module_without_a_heading_is_listed_under_its_name() {
        let text = Report::of("shm\tnew_module\tbehaves\tyes\n").tables();
        assert!(text.contains("## new module\n"), "{text}");
        assert!(text.contains("| behaves | yes |\n"), "{text}");
    }

    #[test]
    fn places_with_the_same_missing_capabilities_share_a_row() {
        let lines = format!("{LINES}rc_mlx5 mlx5_1 DEVX\tviews\twords_of_views\tno views\n");
        let text = Report::of(&lines).tables();
        assert!(text.contains("| `cma` |  | `put_bcopy`, `put_short`, `views` |\n"), "{text}");
        assert!(text.contains("| `rc_mlx5` | soft0 |  |\n"), "{text}");
        assert!(text.contains("| `rc_mlx5` | mlx5_0 DEVX, mlx5_1 DEVX | `views` |\n"), "{text}");
    }

    #[test]
    fn figures_count_each_verdict_and_replace_the_old_ones() {
        let status = ["a\n", MARKS[0], "old\n", MARKS[1], "b"].concat();
        let figures = Report::of(LINES).figures();
        let text = with_figures(&status, &figures).unwrap();
        assert!(text.contains("Of 2 behaviours:\n"), "{text}");
        assert!(text.contains("| `shm` | 2 | 0 | 0 |\n"), "{text}");
        assert!(text.contains("| `cma` | 0 | 2 | 0 |\n"), "{text}");
        assert!(text.contains("| `rc_mlx5` | 1 | 0 | **1** |\n"), "{text}");
        assert!(text.starts_with("a\n") && text.ends_with('b') && !text.contains("old"), "{text}");
    }

    #[test]
    fn text_without_marks_has_no_place_for_figures() {
        assert_eq!(with_figures("a", ""), None);
    }
}
