//! Measures every transport of a machine, and prints one table of the results.

use super::figures::{Figures, Outcome};
use super::job::{self, Job};
use super::plot::{self, Point};
use super::printer::Printer;
use crate::args::{PerfArgs, Sizes, Sweep, TestArgs};
use crate::error::{Error, one_line};
use crate::output::{self, wrapped};
use crate::test::{Layout, Test};
use crate::transports::{self, Choice};
use crate::units;
use barewire::{Absent, Flags};
use std::fmt::Write as _;
use std::time::Duration;

/// Streams of messages of at least this size are measured in bytes, not messages.
const BANDWIDTH_FROM: u64 = 1024;
/// A table with more columns does not fit a terminal.
const MOST_ACROSS: usize = 6;

/// A column of the table.
#[derive(Debug, Clone)]
struct Column {
    head: String,
    test: TestArgs,
    size: usize,
}

/// Measures every transport, and prints the results of each when it is finished. If one fails,
/// reports it and continues with the others.
pub(super) fn run(args: &PerfArgs, mut printer: Printer<'_>) -> Result<(), Error> {
    let (choices, absent) = transports::everything();
    let plans: Vec<(Choice, Vec<Option<Job>>)> = choices
        .into_iter()
        .map(|choice| {
            let job =
                |column: Column| job::of_size(column.size, &column.test, &choice, args.loopback);
            let jobs = columns(args, &choice).into_iter().map(|column| job(column).ok()).collect();
            (choice, jobs)
        })
        .collect();
    let cells: Vec<Job> = plans.iter().flat_map(|(_, jobs)| jobs).flatten().cloned().collect();
    printer.estimate(&cells, super::cell(args))?;
    let devices = plans.iter().map(|(choice, _)| choice.device.as_str());
    let heads = columns(args, &transports::find("self", None)?);
    let table = (heads.len() <= MOST_ACROSS).then(|| Table::new(&heads, devices.clone()));
    match &table {
        Some(table) if !printer.is_json() => printer.text(&table.head)?,
        Some(_) => {}
        None => printer.row_per_test(longest(devices)),
    }
    let (mut points, mut failed, mut lacking) = (Vec::new(), Vec::new(), Vec::new());
    for (choice, jobs) in plans {
        if jobs.iter().all(Option::is_none) {
            let name = choice.transport.name();
            if !lacking.contains(&name) {
                lacking.push(name);
            }
        }
        let there: Vec<Job> = jobs.iter().flatten().cloned().collect();
        match super::measure(args, &there, &mut printer) {
            Ok(outcomes) => {
                points.extend(
                    there.iter().zip(&outcomes).map(|(job, outcome)| Point::new(job, outcome)),
                );
                if let Some(table) = table.as_ref().filter(|_| !printer.is_json()) {
                    let mut outcomes = outcomes.iter();
                    let mut cell = |job: &Option<Job>| {
                        let measured = job.as_ref().and_then(|job| Some((job, outcomes.next()?)));
                        measured.map_or("-".into(), |(job, outcome)| shown(job, outcome))
                    };
                    let cells: Vec<String> = jobs.iter().map(&mut cell).collect();
                    printer.text(&table.row(&choice, &cells))?;
                }
            }
            Err(error) => failed.push(Absent::new(
                format!("{} on {}", choice.transport, choice.device),
                one_line(&error.to_string()),
            )),
        }
    }
    if !printer.is_json() {
        for (state, list) in [("failed", &failed), ("absent", &absent)] {
            for Absent { what, reason, .. } in list {
                let line = format!("{state} {what}: {reason}");
                printer.text(&wrapped(&line, 4, output::columns()))?;
            }
        }
    }
    let nothing = points.is_empty();
    let mut missing: Vec<String> =
        failed.iter().map(|failed| format!("failed: {}", failed.what)).collect();
    if !lacking.is_empty() {
        let without = format!("Without such an operation: {}.", lacking.join(", "));
        // The table has a line for each transport.
        if table.is_none() {
            printer.note(without.clone());
        }
        missing.push(without);
    }
    if let Some(file) = &args.plot {
        missing.extend(printer.doubts());
        plot::write(file, &points, &missing)?;
    }
    printer.finish_survey(&absent, &failed)?;
    if nothing { Err(Error::Local("no transport could be measured".into())) } else { Ok(()) }
}

/// The sizes of a series, if the command line has one.
pub(super) fn sizes(args: &PerfArgs) -> Option<Vec<usize>> {
    match &args.sweep {
        Some(Sweep(sizes)) => Some(sizes.clone()),
        None if args.plot.is_some() && args.test.sizes.is_none() => Some(Sweep::default().0),
        None => None,
    }
}

/// The tests of a series: the named one, or for a plot one for each of its halves.
pub(super) fn tests(args: &PerfArgs, choice: &Choice) -> Vec<TestArgs> {
    if args.plot.is_none() || args.test.test.is_some() {
        return vec![args.test.clone()];
    }
    let messages = Flags::AM_SHORT | Flags::AM_BCOPY | Flags::AM_ZCOPY;
    let tests = if choice.attributes.flags.intersects(messages) {
        [Test::AmLat, Test::AmBw]
    } else {
        [Test::PutLat, Test::PutBw]
    };
    tests.map(|test| TestArgs { test: Some(test), ..args.test.clone() }).into()
}

/// The columns of the table, which are the same for all transports.
fn columns(args: &PerfArgs, choice: &Choice) -> Vec<Column> {
    let of = |head: &str, test, size| Column {
        head: head.into(),
        test: TestArgs { test: Some(test), ..args.test.clone() },
        size,
    };
    let sizes = match (sizes(args), &args.test.sizes) {
        (Some(sizes), _) => sizes,
        (None, Some(Sizes(pieces))) => vec![pieces.iter().sum()],
        (None, None) if args.test.test.is_some() => vec![job::WORD],
        (None, None) => {
            let mut stream = of("bw 64K", Test::PutBw, 64 << 10);
            stream.test.outstanding = stream.test.outstanding.or(Some(16));
            stream.test.layout = stream.test.layout.or_else(|| {
                choice.attributes.flags.contains(Flags::PUT_ZCOPY).then_some(Layout::Zcopy)
            });
            return vec![
                of("am 8", Test::AmLat, job::WORD),
                of("put 8", Test::PutLat, job::WORD),
                of("get 8", Test::Get, job::WORD),
                of("fadd 8", Test::Fadd, job::WORD),
                of("am_bw 8", Test::AmBw, job::WORD),
                stream,
            ];
        }
    };
    let tests = tests(args, choice);
    let mut columns = Vec::new();
    for test in tests {
        for &size in &sizes {
            let name = test.test.unwrap_or(Test::AmLat);
            let head = format!("{} {}", name.name(), job::size_name(size));
            let test = test.clone();
            columns.push(Column { head, test, size });
        }
    }
    columns
}

/// The rate of a stream, or else the median latency.
pub(super) fn shown(job: &Job, outcome: &Outcome) -> String {
    if job.plan.test.is_stream() {
        rate(job, outcome)
    } else {
        units::time(Duration::from_secs_f64(outcome.figures.typical / 1e6))
    }
}

/// The rate of a stream in messages, or of long ones in bytes.
fn rate(job: &Job, outcome: &Outcome) -> String {
    let Figures { bandwidth, rate, .. } = &outcome.figures;
    let second = Duration::from_secs(1);
    if job.plan.size() < BANDWIDTH_FROM {
        units::message_rate(*rate as u64, second)
    } else {
        units::rate(*bandwidth as u64, second)
    }
}

/// The length of the longest word.
fn longest<'a>(words: impl Iterator<Item = &'a str>) -> usize {
    words.map(|word| word.chars().count()).max().unwrap_or(0)
}

/// A table with a line for each transport, which is printed when its cells are known. The columns
/// are therefore as wide as any value.
#[derive(Debug)]
struct Table {
    head: String,
    /// Of the names of devices, and of the cells.
    device: usize,
    cells: Vec<usize>,
}

impl Table {
    fn new<'a>(columns: &[Column], devices: impl Iterator<Item = &'a str>) -> Self {
        let width = |column: &Column| {
            let is_stream = column.test.test.is_some_and(Test::is_stream);
            let widest = match (is_stream, (column.size as u64) < BANDWIDTH_FROM) {
                (false, _) => "1.00 us",
                (true, true) => "1.00 k msg/s",
                (true, false) => "1.00 MB/s",
            };
            widest.len().max(column.head.len())
        };
        let mut table = Self {
            head: String::new(),
            device: longest(devices.chain(["device"])),
            cells: columns.iter().map(width).collect(),
        };
        let heads: Vec<String> = columns.iter().map(|column| column.head.clone()).collect();
        table.head = table.line("transport", "device", &heads);
        table
    }

    fn row(&self, choice: &Choice, cells: &[String]) -> String {
        self.line(choice.transport.name(), &choice.device, cells)
    }

    fn line(&self, transport: &str, device: &str, cells: &[String]) -> String {
        let mut line = format!("{transport:<9}  {device:<width$}", width = self.device);
        for (cell, width) in cells.iter().zip(&self.cells) {
            let _ = write!(line, "  {cell:>width$}");
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_fits_a_terminal() {
        let choice = transports::find("self", None).unwrap();
        let heads = columns(&PerfArgs::default(), &choice);
        let table = Table::new(&heads, ["mlx5_0:1"].into_iter());
        assert!(table.head.len() <= 80, "{}", table.head);
        let cells = ["25.0 us", "999 us", "1.23 ms", "31.5 us", "48.2 M msg/s", "48.4 GB/s"];
        let row = table.row(&choice, &cells.map(str::to_owned));
        assert_eq!(row.len(), table.head.len(), "{row}\n{}", table.head);
    }
}
