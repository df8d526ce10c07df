//! Output of perf: the table or the CSV of ucx_perftest, so that scripts that parse the one parse
//! the other, or JSON.

use super::doubts::Doubts;
use super::figures::{Figures, Middle, Outcome};
use super::job::Job;
use super::survey;
use crate::affinity::Ends;
use crate::args::PerfArgs;
use crate::error::Error;
use crate::output::{self, DEBUG, DEBUG_BUILD, EMULATOR, Output};
use crate::test::Test;
use crate::units;
use barewire::Absent;
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

/// The width of the table of ucx_perftest.
const WIDTH: usize = 108;
/// The width between the borders of the table for narrow terminals.
const NARROW: usize = 73;
/// The line between the rows of that table.
const THIN: &str = "+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+";
/// The MB of ucx_perftest.
const MEBIBYTE: f64 = 1024.0 * 1024.0;

/// The format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Table,
    Csv,
    Json,
    /// A row for each test of a survey.
    Rows,
    /// No output for single tests.
    Silent,
}

/// The result of a test as JSON.
#[derive(Debug, Serialize)]
struct Json {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    names: Vec<String>,
    test: Test,
    transport: String,
    device: String,
    layout: String,
    size_bytes: u64,
    warm_up_iterations: u64,
    outstanding: u32,
    window: u32,
    latency_is: &'static str,
    emulator: bool,
    debug_build: bool,
    /// The CPUs of the two ends, if this program selected them.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpus: Option<[usize; 2]>,
    cpu_share: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    doubts: Vec<String>,
    #[serde(flatten)]
    figures: Figures,
    percentile_rank: f64,
    latency_percentiles_us: super::figures::Percentiles,
    latency_median_interval_us: Option<Middle>,
    counters: BTreeMap<&'static str, u64>,
}

/// Prints tests one after the other.
#[derive(Debug)]
pub(super) struct Printer<'a> {
    out: &'a mut Output,
    form: Form,
    final_only: bool,
    numeric: bool,
    info: bool,
    /// There may be several tests, which have names.
    several: bool,
    /// The tests are of a series of sizes.
    series: bool,
    /// Batch files, for the first line of the CSV.
    columns: Vec<String>,
    /// What the times of the table are.
    time: &'static str,
    /// The longest name of a device, for rows.
    device: usize,
    /// The terminal has no room for the table of ucx_perftest.
    narrow: bool,
    begun: bool,
    emulator: bool,
    /// The only CPU, if both ends run on it.
    shared_cpu: Option<usize>,
    json: Vec<Json>,
    doubts: Doubts,
    notes: Vec<String>,
}

impl<'a> Printer<'a> {
    /// Prints nothing.
    pub(super) fn silent(out: &'a mut Output) -> Self {
        Self { form: Form::Silent, ..Self::new(&PerfArgs::default(), out) }
    }

    pub(super) fn new(args: &PerfArgs, out: &'a mut Output) -> Self {
        let form = match (args.json, args.csv, args.all) {
            (true, _, _) => Form::Json,
            (_, true, _) => Form::Csv,
            (_, _, true) => Form::Silent,
            _ => Form::Table,
        };
        let base = |file: &std::path::PathBuf| {
            file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned()
        };
        let mut columns: Vec<String> = args.batch.iter().map(base).collect();
        if args.plot.is_some() && args.test.test.is_none() {
            columns.push("test".into());
        }
        let series = survey::sizes(args).is_some();
        if series {
            columns.push("size".into());
        }
        Self {
            out,
            form,
            final_only: args.final_only,
            numeric: args.numeric,
            info: args.info,
            several: !columns.is_empty(),
            series,
            columns,
            time: "time",
            device: 0,
            narrow: output::terminal().is_some_and(|columns| columns < WIDTH),
            begun: false,
            emulator: false,
            shared_cpu: None,
            json: Vec::new(),
            doubts: Doubts::default(),
            notes: Vec::new(),
        }
    }

    /// Adds a note to be printed at the end.
    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Prepares the heading for these tests: ucx_perftest's words, unless the tests are of both
    /// kinds.
    pub(super) fn expect(&mut self, jobs: &[Job]) {
        let streams = jobs.iter().filter(|job| job.plan.test.is_stream()).count();
        self.time = match streams {
            0 => "latency",
            all if all == jobs.len() => "overhead",
            _ => "time",
        };
    }

    /// Prints a row for each test from now on, instead of nothing.
    pub(super) fn row_per_test(&mut self, device: usize) {
        if self.form == Form::Silent {
            (self.form, self.device) = (Form::Rows, device);
        }
    }

    /// Prints how long the tests take, if their time is limited.
    pub(super) fn estimate(&mut self, jobs: &[Job], each: Duration) -> Result<(), Error> {
        let paced = jobs.iter().filter(|job| job.paced).count();
        let is_read = matches!(self.form, Form::Table | Form::Silent);
        if paced < 2 || self.final_only || !is_read {
            return Ok(());
        }
        let each = each.as_secs_f64();
        let whole = (each * paced as f64).ceil();
        self.out.line(format!(
            "{paced} tests of up to {each} s (--time): about {whole:.0} s in all on an idle machine"
        ))
    }

    /// Prints the head of a test.
    pub(super) fn begin(&mut self, job: &Job, ends: Option<Ends>) -> Result<(), Error> {
        self.emulator |= job.choice.is_emulator();
        let shared = ends.filter(|ends| ends.share_a_cpu());
        self.shared_cpu = self.shared_cpu.or(shared.map(|ends| ends.this));
        let first = !std::mem::replace(&mut self.begun, true);
        match self.form {
            Form::Csv if first => {
                let numbers = format!(
                    "iterations,{:.1}_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr",
                    job.rank
                );
                self.out.line(fields(&self.columns, numbers))
            }
            Form::Rows if first => {
                let device = self.device.max("device".len());
                self.out.line(format!(
                    "transport  {:<device$}  test           size    median       99%          rate",
                    "device"
                ))
            }
            Form::Csv | Form::Rows | Form::Json | Form::Silent => Ok(()),
            Form::Table => {
                if first {
                    if !self.several {
                        self.banner(job, ends)?;
                    } else if self.series {
                        let Job { choice, plan, .. } = job;
                        let test = if self.columns.len() == 1 { plan.test.name() } else { "tests" };
                        self.out.line(format!(
                            "{test} over {} on {}",
                            choice.transport, choice.device
                        ))?;
                    }
                    self.header(job)?;
                }
                if !self.several || self.final_only {
                    return Ok(());
                }
                let mut name = job.names.join("/");
                // Scripts read the line as that of ucx_perftest.
                if !self.series && output::terminal().is_some() {
                    let Job { choice, plan, .. } = job;
                    let (test, size) = (plan.test.name(), plan.size());
                    let _ = write!(name, ": {test} of {size} bytes over {}", choice.transport);
                }
                self.out.line(named(&name, self.narrow))
            }
        }
    }

    fn banner(&mut self, job: &Job, ends: Option<Ends>) -> Result<(), Error> {
        let plan = &job.plan;
        let across = if self.narrow { NARROW } else { 106 };
        let cpus = ends.map(|ends| format!("{} and {}", ends.this, ends.peer));
        self.out.line(format!("+{:-<across$}+", ""))?;
        let lines = [
            ("API:", "transport layer".to_owned()),
            ("Test:", plan.test.words().to_owned()),
            ("Transport:", format!("{} on {}", job.choice.transport, job.choice.device)),
            ("Data layout:", plan.layout.to_string()),
            ("Message size:", plan.size().to_string()),
            ("Window size:", job.outstanding.to_string()),
            ("Latency is:", job.latency_is().to_owned()),
        ];
        for (what, value) in lines.into_iter().chain(cpus.map(|cpus| ("CPUs:", cpus))) {
            let value = format!("{what:<13} {value}");
            self.out.line(format!("| {value:<width$} |", width = across - 2))?;
        }
        Ok(())
    }

    fn header(&mut self, job: &Job) -> Result<(), Error> {
        const THICK: &str = "+--------------+--------------+------------------------------+---------------------+-----------------------+";
        let time = self.time;
        let stage = if self.final_only { "Test" } else { "Stage" };
        if self.narrow {
            let percentile = format!("{:.1}%ile", job.rank);
            self.out.line(format!("+{:-<NARROW$}+", ""))?;
            self.out.line(format!(
                "| {stage:>8} {:>10} {percentile:>9} {:>9} {:>9} {:>9} {:>11} |",
                "iterations", "average", "overall", "MB/s", "messages/s"
            ))?;
            return self.out.line(format!("+{:-<NARROW$}+", ""));
        }
        self.out.line(THICK)?;
        self.out.line(format!(
            "|              |              |       {time:>8} (usec)        |   bandwidth (MB/s)  |  message rate (msg/s) |"
        ))?;
        self.out.line(THIN)?;
        self.out.line(format!(
            "|    {stage:>5}     | # iterations | {:>4.1}%ile | average | overall |  average |  overall |  average  |  overall  |",
            job.rank
        ))?;
        self.out.line(THIN)
    }

    /// Prints the line of one second.
    pub(super) fn line(&mut self, job: &Job, figures: &Figures) -> Result<(), Error> {
        if self.final_only {
            return Ok(());
        }
        match self.form {
            Form::Table => self.out.line(self.row("[thread 0]", figures)),
            Form::Csv => self.out.line(csv(&self.fields_of(job), figures)),
            Form::Json | Form::Rows | Form::Silent => Ok(()),
        }
    }

    /// Prints the result of a test.
    pub(super) fn end(
        &mut self,
        job: &Job,
        ends: Option<Ends>,
        outcome: &Outcome,
    ) -> Result<(), Error> {
        self.doubts.add(job, ends, outcome);
        let Outcome { figures, percentiles, middle, cpu_share, counters } = outcome;
        let mut more = format!(
            "latency percentiles (usec): 50% {:.3}, 90% {:.3}, 99% {:.3}, 99.9% {:.3}, greatest {:.3}",
            percentiles.p50, percentiles.p90, percentiles.p99, percentiles.p99_9, percentiles.max
        );
        if let Some(Middle { median, low, high, parts }) = middle {
            let _ = write!(
                more,
                "; median of {parts} parts {median:.3}, 95% interval {low:.3} to {high:.3}"
            );
        }
        match self.form {
            Form::Table => {
                let name = if self.final_only { job.names.join("/") } else { "Final:".into() };
                let name =
                    if self.final_only { format!("{name:>10}") } else { format!("{name:<10}") };
                self.out.line(self.row(&name, figures))?;
                if !self.info {
                    return Ok(());
                }
                self.out.line(output::entry(&more))?;
                self.out.line(output::entry(&format!("counters: {counters}")))
            }
            Form::Csv => {
                self.out.line(csv(&self.fields_of(job), figures))?;
                if self.info {
                    self.out.line(format!("# {more}"))?;
                }
                self.out.line(format!("# counters: {counters}"))
            }
            Form::Json => {
                self.json.push(Json {
                    names: job.names.clone(),
                    test: job.plan.test,
                    transport: job.choice.transport.to_string(),
                    device: job.choice.device.clone(),
                    layout: job.plan.layout.to_string(),
                    size_bytes: job.plan.size(),
                    warm_up_iterations: job.warm_up,
                    outstanding: job.outstanding,
                    window: job.plan.window,
                    latency_is: job.latency_is(),
                    emulator: job.choice.is_emulator(),
                    debug_build: DEBUG_BUILD,
                    cpus: ends.map(|ends| [ends.this, ends.peer]),
                    cpu_share: *cpu_share,
                    // Known when all tests have ended.
                    doubts: Vec::new(),
                    figures: figures.clone(),
                    percentile_rank: job.rank,
                    latency_percentiles_us: *percentiles,
                    latency_median_interval_us: *middle,
                    counters: counters.named().into_iter().collect(),
                });
                Ok(())
            }
            Form::Rows => {
                let time = |time: f64| units::time(Duration::from_secs_f64(time / 1e6));
                let [median, p99, rate] = if job.plan.test.is_stream() {
                    ["-".to_owned(), "-".to_owned(), survey::shown(job, outcome)]
                } else {
                    [time(figures.typical), time(percentiles.p99), "-".to_owned()]
                };
                let Job { choice, plan, names, .. } = job;
                self.out.line(format!(
                    "{:<9}  {:<device$}  {:<11}  {:>6}  {median:>8}  {p99:>8}  {rate:>12}",
                    choice.transport.name(),
                    choice.device,
                    plan.test.name(),
                    names.last().map_or("", String::as_str),
                    device = self.device.max("device".len()),
                ))
            }
            Form::Silent => Ok(()),
        }
    }

    /// Returns `true` for JSON output.
    pub(super) fn is_json(&self) -> bool {
        self.form == Form::Json
    }

    /// Prints a line that concerns several tests.
    pub(super) fn text(&mut self, line: &str) -> Result<(), Error> {
        self.out.line(line)
    }

    /// Prints the end of a survey of all transports.
    pub(super) fn finish_survey(
        mut self,
        absent: &[Absent],
        failed: &[Absent],
    ) -> Result<(), Error> {
        if self.form != Form::Json {
            return self.finish();
        }
        let list = |absent: &[Absent]| -> Vec<_> {
            absent
                .iter()
                .map(|Absent { what, reason, .. }| json!({ "what": what, "reason": reason }))
                .collect()
        };
        let tests = self.tests();
        let whole = json!({ "tests": tests, "failed": list(failed), "absent": list(absent) });
        self.out.line(format!("{whole:#}"))
    }

    /// A line for each test whose result is doubtful.
    pub(super) fn doubts(&self) -> Vec<String> {
        self.doubts.lines()
    }

    /// Takes the results for JSON.
    fn tests(&mut self) -> Vec<Json> {
        for (test, doubts) in self.json.iter_mut().zip(self.doubts.all()) {
            test.doubts = doubts;
        }
        std::mem::take(&mut self.json)
    }

    /// Prints the end of all tests.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        if let Some(cpu) = self.shared_cpu {
            self.notes
                .push(format!("Both ends ran on CPU {cpu}: the times include its scheduling."));
        }
        if self.emulator && matches!(self.form, Form::Rows | Form::Silent) {
            // It concerns only some of the transports in the table.
            self.notes.push(format!("soft0: {EMULATOR}"));
        } else if self.emulator {
            self.notes.push(EMULATOR.into());
        }
        if DEBUG_BUILD && self.form == Form::Csv {
            self.notes.push(DEBUG.into());
        }
        match self.form {
            Form::Table | Form::Rows | Form::Silent => {
                let width = output::columns();
                let doubts = self.doubts.lines();
                let doubts = doubts.iter().map(|doubt| output::entry(doubt));
                let notes = self.notes.iter().map(|note| output::wrapped(note, 4, width));
                doubts.chain(notes).try_for_each(|note| self.out.line(note))
            }
            Form::Csv => {
                let notes = self.doubts.lines().into_iter().chain(self.notes);
                notes.into_iter().try_for_each(|note| self.out.line(format!("# {note}")))
            }
            Form::Json => {
                let text = match &*self.tests() {
                    [one] if !self.several => serde_json::to_string_pretty(one),
                    list => serde_json::to_string_pretty(list),
                };
                self.out.line(text.map_err(|error| Error::Local(error.to_string()))?)
            }
        }
    }

    /// Returns the names of a test for CSV, where the size of a series is a number.
    fn fields_of(&self, job: &Job) -> Vec<String> {
        let mut names = job.names.clone();
        if let Some(size) = names.last_mut().filter(|_| self.series) {
            *size = job.plan.size().to_string();
        }
        names
    }

    fn row(&self, stage: &str, figures: &Figures) -> String {
        let whole = |number: f64| {
            let digits = format!("{number:.0}");
            if self.numeric { thousands(&digits) } else { digits }
        };
        if self.narrow {
            return format!(
                "{stage:<10} {:>10} {:>9.3} {:>9.3} {:>9.3} {:>9.2} {:>11}",
                whole(figures.iterations as f64),
                figures.typical,
                figures.average,
                figures.overall,
                figures.bandwidth / MEBIBYTE,
                whole(figures.rate),
            );
        }
        format!(
            "{stage}{:>18} {:>10.3} {:>9.3} {:>9.3} {:>11.2} {:>10.2} {:>11} {:>11}",
            whole(figures.iterations as f64),
            figures.typical,
            figures.average,
            figures.overall,
            figures.average_bandwidth / MEBIBYTE,
            figures.bandwidth / MEBIBYTE,
            whole(figures.average_rate),
            whole(figures.rate),
        )
    }
}

/// A line with the name of a test, which separates it from the previous one. It is as wide as the
/// table, unless the name is wider.
fn named(name: &str, narrow: bool) -> String {
    let line = if narrow { format!("+{:-<NARROW$}+", "") } else { THIN.to_owned() };
    let rest: String = line.chars().skip(1 + name.chars().count()).collect();
    format!("+{name}{rest}")
}

fn csv(names: &[String], figures: &Figures) -> String {
    let numbers = format!(
        "{},{:.3},{:.3},{:.3},{:.2},{:.2},{:.0},{:.0}",
        figures.iterations,
        figures.typical,
        figures.average,
        figures.overall,
        figures.average_bandwidth / MEBIBYTE,
        figures.bandwidth / MEBIBYTE,
        figures.average_rate,
        figures.rate,
    );
    fields(names, numbers)
}

fn fields(names: &[String], numbers: String) -> String {
    let fields: Vec<String> = names.iter().map(|name| field(name)).chain([numbers]).collect();
    fields.join(",")
}

/// A name as a field of CSV (RFC 4180).
fn field(name: &str) -> String {
    if name.contains([',', '"']) {
        format!("\"{}\"", name.replace('"', "\"\""))
    } else {
        name.to_owned()
    }
}

fn thousands(digits: &str) -> String {
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names() {
        assert_eq!(thousands("1"), "1");
        assert_eq!(thousands("1234567"), "1,234,567");
        assert_eq!(thousands("123456"), "123,456");
        assert_eq!(field("a,\"b"), "\"a,\"\"b\"");
        let line = named("foo/baz", false);
        assert!(line.starts_with("+foo/baz-------+--------------+"), "{line}");
        assert_eq!(line.len(), THIN.len());
        let line = named("foo/baz", true);
        assert!(line.ends_with("---+") && line.len() == NARROW + 2, "{line}");
    }
}
