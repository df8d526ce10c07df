//! `cargo xtask many`: what a message costs with many connected endpoints, into `benches/MANY.md`.
//!
//! The bench `many` runs under callgrind over the software HCA, and by itself over `shm` and `tcp`,
//! whose work is system calls and cache lines.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::bench::callgrind::{self, Counted};
use crate::compare::{
    self,
    statistics::{Estimate, estimate, median},
};
use crate::process::{self, Failure, Invocation};
use crate::test::programs::Programs;

const FILE: &str = "benches/MANY.md";
/// Deadline of a run: connecting ten thousand endpoints under valgrind takes most of it.
const DEADLINE: Duration = Duration::from_mins(15);
const BATCH: u64 = 16;
/// Connected endpoints.
const ENDPOINTS: [u64; 4] = [1, 100, 1000, 10_000];
/// Messages of a counted run.
const COUNTED: u64 = 2048;
/// Messages of a timed run, and runs of which the median counts.
const TIMED: u64 = 200_000;
const RUNS: usize = 5;
/// Pairs of runs, with idle endpoints and without, whose ratio is what idle endpoints cost in time.
const PAIRS: usize = 15;
/// The share of a message that idle endpoints may cost.
const IDLE_MUST: f64 = 0.02;

/// A transport, and how it is measured.
struct Subject {
    transport: &'static str,
    counted: bool,
    /// Most endpoints: a process may open 20 000 descriptors on some machines, and a connection of
    /// `tcp` has two here.
    most: u64,
    /// Most bytes of memory for each endpoint.
    bytes: u64,
}

const SUBJECTS: [Subject; 5] = [
    Subject { transport: "rc_mlx5", counted: true, most: 10_000, bytes: 20 << 10 },
    Subject { transport: "dc_mlx5", counted: true, most: 10_000, bytes: 128 },
    Subject { transport: "ud_mlx5", counted: true, most: 10_000, bytes: 1536 },
    Subject { transport: "shm", counted: false, most: 10_000, bytes: 4608 },
    Subject { transport: "tcp", counted: false, most: 9_900, bytes: 1228 },
];

/// Which endpoints are busy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Busy {
    One,
    Sixteen,
    All,
}

const BUSY: [Busy; 3] = [Busy::One, Busy::Sixteen, Busy::All];

impl Busy {
    /// Returns the number of busy endpoints of `endpoints`, if it differs from that of the others.
    fn of(self, endpoints: u64) -> Option<u64> {
        match self {
            Self::One => Some(1),
            Self::Sixteen => (endpoints > 16).then_some(16),
            Self::All => (endpoints > 1).then_some(endpoints),
        }
    }
}

/// Values of a subject by number of endpoints and busy ones.
type Cells = [[Option<f64>; BUSY.len()]; ENDPOINTS.len()];

/// The results of a subject.
struct Measured {
    subject: &'static Subject,
    cells: Cells,
    /// One busy endpoint of that many against one of one. The interval of counts is a point.
    idle: [Option<Estimate>; ENDPOINTS.len()],
    /// Memory of an endpoint.
    bytes: u64,
}

/// Measures everything and writes the tables.
pub(crate) fn write() -> Result<(), Failure> {
    process::watch_signals();
    let program = build()?;
    let mut tables = Vec::new();
    for subject in &SUBJECTS {
        let (mut cells, mut bytes) = (Cells::default(), 0);
        let mut idle = [None; ENDPOINTS.len()];
        for ((row, idle), endpoints) in cells.iter_mut().zip(&mut idle).zip(ENDPOINTS) {
            let endpoints = endpoints.min(subject.most);
            for (cell, busy) in row.iter_mut().zip(BUSY) {
                let Some(busy) = busy.of(endpoints) else { continue };
                let value = if subject.counted {
                    count(&program, subject.transport, endpoints, busy)?
                } else if busy == 1 && endpoints > 1 {
                    let pairs = pairs(&program, subject.transport, endpoints)?;
                    *idle = Some(estimate(&pairs));
                    median(pairs.iter().map(|pair| pair.0).collect())
                } else {
                    time(&program, subject.transport, endpoints, busy)?
                };
                println!("{}: {endpoints} endpoints, {busy} busy: {value:.1}", subject.transport);
                *cell = Some(value);
            }
            if endpoints >= 1000 {
                bytes = run(&program, subject.transport, [endpoints, endpoints, BATCH, COUNTED])?.1;
            }
        }
        if let Some(one) = cells[0][0].filter(|_| subject.counted) {
            for ((row, idle), endpoints) in cells.iter().zip(&mut idle).zip(ENDPOINTS) {
                let ratio = row[0].filter(|_| endpoints > 1).map(|value| value / one);
                *idle = ratio.map(|ratio| Estimate { ratio, low: ratio, high: ratio });
            }
        }
        tables.push(Measured { subject, cells, idle, bytes });
    }
    process::write(FILE, &render(&tables))
}

fn build() -> Result<PathBuf, Failure> {
    let bench = ["bench", "-p", "barewire-benches", "--bench", "many", "--no-run"];
    Ok(Programs::by(Invocation::cargo(&bench))?.bench("many")?.into())
}

/// Returns the command of the bench.
fn bench(program: &Path, transport: &str, numbers: [u64; 4]) -> Invocation {
    let words = numbers.map(|number| number.to_string());
    Invocation::new(&program.to_string_lossy(), &[transport])
        .with(&words.each_ref().map(|word| &**word))
}

/// Returns the nanoseconds of a message and the bytes of an endpoint.
fn run(program: &Path, transport: &str, numbers: [u64; 4]) -> Result<(f64, u64), Failure> {
    let run = bench(program, transport, numbers);
    let text = process::text(&run, DEADLINE)?;
    let value: Value = serde_json::from_str(&text)
        .map_err(|error| Failure::Found(format!("{run}: {error}: {text:?}")))?;
    match (value["nanoseconds"].as_f64(), value["bytes_per_endpoint"].as_u64()) {
        (Some(nanoseconds), Some(bytes)) => Ok((nanoseconds, bytes)),
        _ => Err(Failure::Found(format!("{run}: {text:?}"))),
    }
}

/// Returns the median of several runs.
fn time(program: &Path, transport: &str, endpoints: u64, busy: u64) -> Result<f64, Failure> {
    let mut times = Vec::new();
    for _ in 0..RUNS {
        times.push(run(program, transport, [endpoints, busy, BATCH, TIMED])?.0);
    }
    Ok(median(times))
}

/// Returns the times of runs with one busy endpoint of `endpoints` and of one, in turns: the speed of
/// a machine changes in the time that one after the other takes.
fn pairs(program: &Path, transport: &str, endpoints: u64) -> Result<Vec<(f64, f64)>, Failure> {
    let time = |endpoints| Ok(run(program, transport, [endpoints, 1, BATCH, TIMED])?.0);
    (0..PAIRS).map(|_| Ok((time(endpoints)?, time(1)?))).collect()
}

/// Returns the instructions of a message: the median of the batches, since what depends on time,
/// such as timers, is too frequent under callgrind.
fn count(program: &Path, transport: &str, endpoints: u64, busy: u64) -> Result<f64, Failure> {
    let counted = Counted {
        functions: "*counted*",
        parts: Some("*batch_done*"),
        folder: &process::target().join("many-counts"),
        deadline: DEADLINE,
    };
    let numbers = [endpoints, busy, BATCH, COUNTED];
    let parts = callgrind::count(&counted, bench(program, transport, numbers), &[])?;
    // The last part is what follows the last batch.
    let batches = parts.iter().map(|part| part.instructions).filter(|count| *count > 0);
    let batches: Vec<f64> = batches.map(|count| count as f64).collect();
    let wanted = (COUNTED / BATCH) as usize;
    if batches.len() < wanted {
        let found = batches.len();
        return Err(Failure::Found(format!("{transport}: {found} of {wanted} batches")));
    }
    Ok(median(batches) / BATCH as f64)
}

fn render(tables: &[Measured]) -> String {
    let mut text = format!(
        "# Many connected endpoints\n\n\
         Written by `cargo xtask many`; edits are lost. {}.\n\n\
         Both ends are in one process, on one thread. Batches of {BATCH} active messages of 8 bytes are posted over the busy endpoints \
         in turn, received and completed: posts and calls of progress of both ends count, the software HCA does not. Over the \
         transports of mlx5 a value is the instructions of a message, the median of {} batches; over `shm` and `tcp` its nanoseconds, \
         the median of {RUNS} runs of {TIMED} messages. *Idle* is what the idle endpoints cost: one busy of that many, against one of \
         one; at most {:.0} %. In time it is the ratio of the medians of {PAIRS} alternating pairs of runs, with its bootstrap interval \
         of 95 %; *undecided* if the interval includes the limit.\n\n\
         | transport | endpoints | 1 busy | 16 busy | all busy | idle |\n|---|---:|---:|---:|---:|---:|\n",
        compare::machine(),
        COUNTED / BATCH,
        IDLE_MUST * 100.0,
    );
    for Measured { subject: Subject { transport, counted, most, .. }, cells, idle, .. } in tables {
        let unit = if *counted { "instructions" } else { "ns" };
        for ((row, cost), endpoints) in cells.iter().zip(idle).zip(ENDPOINTS) {
            let _ = write!(text, "| `{transport}`, {unit} | {} |", endpoints.min(*most));
            for cell in row {
                let _ = write!(
                    text,
                    " {} |",
                    cell.map_or(String::new(), |value| format!("{value:.1}"))
                );
            }
            let cost = cost.map_or(String::new(), |cost| verdict(&cost));
            let _ = writeln!(text, " {cost} |");
        }
    }
    text.push_str(
        "\n# Memory\n\nResident memory that each connected endpoint adds, both rings and buffers that were used included.\n\n\
         | transport | bytes | at most |\n|---|---:|---:|\n",
    );
    for Measured { subject: Subject { transport, bytes: most, .. }, bytes, .. } in tables {
        let missed = if bytes > most { " **missed**" } else { "" };
        let _ = writeln!(text, "| `{transport}` | {bytes}{missed} | {most} |");
    }
    text.push_str(
        "\n# One busy endpoint\n\nRelative to one endpoint, in percent.\n\n```mermaid\nxychart-beta\n    \
         title \"Cost of a message over one endpoint, by connected endpoints\"\n    \
         x-axis [1, 100, 1000, 10000]\n    y-axis \"percent\" 0 --> 200\n",
    );
    for Measured { cells, .. } in tables {
        let one = cells[0][0].unwrap_or(f64::NAN);
        let line: Vec<_> =
            cells.iter().map(|row| format!("{:.0}", row[0].unwrap_or(0.0) * 100.0 / one)).collect();
        let _ = writeln!(text, "    line [{}]", line.join(", "));
    }
    text.push_str("```\n\nThe lines are, in this order: ");
    let names: Vec<_> = tables.iter().map(|one| format!("`{}`", one.subject.transport)).collect();
    let _ = writeln!(text, "{}.", names.join(", "));
    text
}

/// Returns what idle endpoints cost, and whether that is at most [`IDLE_MUST`].
fn verdict(cost: &Estimate) -> String {
    let [share, low, high] = [cost.ratio, cost.low, cost.high].map(|ratio| ratio - 1.0);
    let verdict = match (low > IDLE_MUST, high > IDLE_MUST) {
        (true, _) => " **missed**",
        (false, true) => " undecided",
        (false, false) => "",
    };
    let share = share * 100.0;
    if low < high {
        format!("{share:+.1} % ({:+.1} to {:+.1}){verdict}", low * 100.0, high * 100.0)
    } else {
        format!("{share:+.1} %{verdict}")
    }
}
