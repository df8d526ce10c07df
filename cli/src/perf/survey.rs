//! Measures every transport of a machine, and prints one table of the results.

use super::figures::{Figures, Outcome};
use super::job::{self, Job};
use super::plot::{self, Point};
use super::printer::Printer;
use crate::args::{Layout, PerfArgs, Sizes, Sweep, Test, TestArgs};
use crate::error::{Error, one_line};
use crate::output::{self, wrapped};
use crate::transports::{self, Choice};
use crate::units;
use barewire::{Absent, Flags};
use comfy_table::{CellAlignment, presets};
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

/// The results of one transport.
#[derive(Debug)]
struct Row {
    choice: Choice,
    cells: Vec<String>,
}

/// Measures every transport. If one fails, reports it and continues with the others.
pub(super) fn run(args: &PerfArgs, mut printer: Printer<'_>) -> Result<(), Error> {
    let (choices, absent) = transports::everything();
    let (mut rows, mut points, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for choice in choices {
        let jobs: Vec<Option<Job>> = columns(args, &choice)
            .iter()
            .map(|column| job::of_size(column.size, &column.test, &choice, args.loopback).ok())
            .collect();
        let there: Vec<Job> = jobs.iter().flatten().cloned().collect();
        match super::measure(args, &there, &mut printer) {
            Ok(outcomes) => {
                points.extend(
                    there.iter().zip(&outcomes).map(|(job, outcome)| Point::new(job, outcome)),
                );
                let mut outcomes = outcomes.into_iter();
                let mut cell = |job: &Option<Job>| match job {
                    Some(job) => {
                        outcomes.next().map_or_else(String::new, |outcome| shown(job, &outcome))
                    }
                    None => "-".into(),
                };
                let cells = jobs.iter().map(&mut cell).collect();
                rows.push(Row { choice, cells });
            }
            Err(error) => failed.push(Absent::new(
                format!("{} on {}", choice.transport, choice.device),
                one_line(&error.to_string()),
            )),
        }
    }
    if !printer.is_json() {
        let heads = columns(args, &transports::find("self", None)?);
        print(&heads, &rows, &mut printer)?;
        for (state, list) in [("failed", &failed), ("absent", &absent)] {
            for Absent { what, reason, .. } in list {
                let line = format!("{state} {what}: {reason}");
                printer.text(&wrapped(&line, 4, output::columns()))?;
            }
        }
    }
    if let Some(file) = &args.plot {
        plot::write(file, &points)?;
    }
    let nothing = rows.is_empty();
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
            let mut stream = of("put stream 64K", Test::PutBw, 64 << 10);
            stream.test.outstanding = stream.test.outstanding.or(Some(16));
            stream.test.layout = stream.test.layout.or_else(|| {
                choice.attributes.flags.contains(Flags::PUT_ZCOPY).then_some(Layout::Zcopy)
            });
            return vec![
                of("am 8", Test::AmLat, job::WORD),
                of("put 8", Test::PutLat, job::WORD),
                of("get 8", Test::Get, job::WORD),
                of("fetch-add 8", Test::Fadd, job::WORD),
                of("am stream 8", Test::AmBw, job::WORD),
                stream,
            ];
        }
    };
    let tests = tests(args, choice);
    let named = tests.len() > 1;
    let mut columns = Vec::new();
    for test in tests {
        for &size in &sizes {
            let name = test.test.unwrap_or(Test::AmLat);
            let kind = if name.is_stream() { "stream " } else { "" };
            let head = if named { kind.to_owned() } else { format!("{} ", name.name()) };
            let (head, test) = (format!("{head}{}", job::size_name(size)), test.clone());
            columns.push(Column { head, test, size });
        }
    }
    columns
}

/// The rate of a stream, or else the median latency.
fn shown(job: &Job, outcome: &Outcome) -> String {
    let Figures { typical, bandwidth, rate, .. } = &outcome.figures;
    let second = Duration::from_secs(1);
    if !job.plan.test.is_stream() {
        return units::time(Duration::from_secs_f64(typical / 1e6));
    }
    if job.plan.size() < BANDWIDTH_FROM {
        units::message_rate(*rate as u64, second)
    } else {
        units::rate(*bandwidth as u64, second)
    }
}

fn print(columns: &[Column], rows: &[Row], printer: &mut Printer<'_>) -> Result<(), Error> {
    let mut lines: Vec<Vec<String>> = vec![vec!["transport".into()], vec!["device".into()]];
    lines.extend(columns.iter().map(|column| vec![column.head.clone()]));
    for Row { choice, cells } in rows {
        let names = [choice.transport.name(), &choice.device];
        let cells = names.into_iter().chain(cells.iter().map(String::as_str));
        for (line, cell) in lines.iter_mut().zip(cells) {
            line.push(cell.to_owned());
        }
    }
    // One line per transport, or for a series one line per size.
    let series = columns.len() > MOST_ACROSS;
    if !series {
        let across = |at: usize| lines.iter().map(|line| line[at].clone()).collect();
        lines = (0..=rows.len()).map(across).collect();
    }
    let mut table = comfy_table::Table::new();
    table.load_preset(presets::NOTHING);
    table.add_rows(lines);
    for column in table.column_iter_mut().skip(if series { 1 } else { 2 }) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.lines().try_for_each(|line| printer.text(line.trim_end()))
}
