//! What perf prints: ucx_perftest's columns, or JSON.

use super::clock::{Clock, ticks};
use super::sample::Sample;
use crate::args::Test;
use crate::control::PerfPlan;
use crate::error::Error;
use crate::output::{EMULATOR, Output};
use crate::transports::Choice;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Iterations between two looks at the time of day, for the lines.
const GLANCE: u64 = 256;
/// Messages of a stream that are timed together.
const TOGETHER: u64 = 64;
/// How often a line is printed.
const INTERVAL: Duration = Duration::from_secs(1);
/// The MB of ucx_perftest, with whose numbers these are compared.
const MEBIBYTE: f64 = 1024.0 * 1024.0;

/// What is measured, and where.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) choice: &'a Choice,
    pub(super) plan: &'a PerfPlan,
    pub(super) warm_up: u64,
    pub(super) iterations: u64,
    pub(super) loopback: bool,
}

impl Setting<'_> {
    /// What of an iteration's time counts as latency: of a ping-pong's round trip one way.
    fn ways(&self) -> f64 {
        let ping_pong = matches!(self.plan.test, Test::AmLat | Test::PutLat);
        if ping_pong && !self.loopback { 2.0 } else { 1.0 }
    }

    /// Over the software HCA.
    fn is_emulator(&self) -> bool {
        self.choice.is_emulator()
    }

    fn latency_is(&self) -> &'static str {
        match self.plan.test {
            Test::AmLat | Test::PutLat if self.loopback => "one way, within this process",
            Test::AmLat | Test::PutLat => "half a round trip",
            Test::AmBw | Test::PutBw | Test::Add => "time per message of the stream",
            Test::Get | Test::Fadd | Test::Cswap => "from the post to the completion",
        }
    }
}

/// The numbers of one line. Latencies are of one message, in microseconds; rates per second.
#[derive(Debug, Clone, Serialize)]
struct Figures {
    iterations: u64,
    latency_typical_us: f64,
    latency_average_us: f64,
    latency_overall_us: f64,
    bandwidth_average_bytes_per_s: f64,
    bandwidth_overall_bytes_per_s: f64,
    message_rate_average_per_s: f64,
    message_rate_overall_per_s: f64,
}

#[derive(Debug, Serialize)]
struct Json<'a> {
    test: Test,
    transport: &'a str,
    device: &'a str,
    layout: String,
    size_bytes: u64,
    warm_up_iterations: u64,
    latency_is: &'a str,
    emulator: bool,
    #[serde(flatten)]
    figures: Figures,
}

/// Collects the times of a run and prints them.
#[derive(Debug)]
pub(super) struct Report<'a> {
    setting: Setting<'a>,
    json: bool,
    out: &'a mut Output,
    done: u64,
    clock: Clock,
    started: Instant,
    /// When the last iteration ended, in ticks.
    last: u64,
    ended: Instant,
    line: Instant,
    line_done: u64,
    line_sample: Sample,
    sample: Sample,
}

impl<'a> Report<'a> {
    pub(super) fn new(setting: Setting<'a>, json: bool, out: &'a mut Output) -> Result<Self, Error> {
        let now = Instant::now();
        let mut report = Self {
            setting,
            json,
            out,
            done: 0,
            clock: Clock::start(),
            started: now,
            last: 0,
            ended: now,
            line: now,
            line_done: 0,
            line_sample: Sample::new(),
            sample: Sample::new(),
        };
        if !json {
            report.banner()?;
        }
        Ok(report)
    }

    fn banner(&mut self) -> Result<(), Error> {
        let Setting { choice, plan, warm_up, iterations, .. } = self.setting;
        self.out.line(format!(
            "{} over {} on {}: {} bytes by {}, {iterations} iterations after {warm_up} of warm-up",
            plan.test.name(),
            choice.transport,
            choice.device,
            plan.size,
            plan.layout,
        ))?;
        self.out.line(format!("latency: {}", self.setting.latency_is()))?;
        self.out.line(format!(
            "{:8} {:>12} | {:^29} | {:^19} | {:^21}",
            "", "", "latency (usec)", "bandwidth (MB/s)", "message rate (msg/s)"
        ))?;
        self.out.line(format!(
            "{:8} {:>12} | {:>9} {:>9} {:>9} | {:>9} {:>9} | {:>10} {:>10}",
            "Stage",
            "# iterations",
            "typical",
            "average",
            "overall",
            "average",
            "overall",
            "average",
            "overall"
        ))
    }

    pub(super) fn plan(&self) -> &PerfPlan {
        self.setting.plan
    }

    /// The first iteration begins.
    pub(super) fn begin(&mut self) {
        let now = Instant::now();
        (self.started, self.line, self.last) = (now, now, ticks());
    }

    /// An iteration is over. Those of the warm-up are not counted.
    #[inline]
    pub(super) fn iteration(&mut self, number: u64) -> Result<(), Error> {
        if number < self.setting.warm_up {
            self.begin();
            return Ok(());
        }
        self.add(1);
        if self.done.is_multiple_of(GLANCE) { self.glance() } else { Ok(()) }
    }

    /// As [`Self::iteration`], for the messages of a stream: some are timed together.
    #[inline]
    pub(super) fn message(&mut self, number: u64) -> Result<(), Error> {
        if number < self.setting.warm_up {
            self.begin();
            return Ok(());
        }
        let done = number - self.setting.warm_up + 1;
        if !done.is_multiple_of(TOGETHER) && done != self.setting.iterations {
            return Ok(());
        }
        self.add(done - self.done);
        if done.is_multiple_of(GLANCE) { self.glance() } else { Ok(()) }
    }

    #[inline]
    fn add(&mut self, count: u64) {
        let now = ticks();
        let time = now.wrapping_sub(self.last) / count.max(1);
        self.last = now;
        self.done += count;
        self.sample.add(time);
        if !self.json {
            self.line_sample.add(time);
        }
    }

    /// Prints a line when it is time.
    #[inline(never)]
    fn glance(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        if now.duration_since(self.line) >= INTERVAL && !self.json {
            let figures = self.figures(&self.line_sample, now);
            self.out.line(row("", &figures))?;
            self.line = now;
            self.line_done = self.done;
            self.line_sample.clear();
        }
        Ok(())
    }

    /// The last iteration is over; for a stream, its last message has arrived.
    pub(super) fn end(&mut self) {
        self.ended = Instant::now();
    }

    fn figures(&self, typical: &Sample, now: Instant) -> Figures {
        let ways = self.setting.ways();
        let size = self.setting.plan.size as f64;
        let rates = |count: u64, time: Duration| {
            let seconds = time.as_secs_f64().max(1e-9);
            let messages = count as f64 * ways;
            (seconds / messages.max(1.0) * 1e6, messages * size / seconds, messages / seconds)
        };
        let (average, bandwidth, rate) = rates(self.done - self.line_done, now.duration_since(self.line));
        let (overall, total_bandwidth, total_rate) = rates(self.done, now.duration_since(self.started));
        Figures {
            iterations: self.done,
            latency_typical_us: typical.median() as f64 * self.clock.tick() / ways / 1000.0,
            latency_average_us: average,
            latency_overall_us: overall,
            bandwidth_average_bytes_per_s: bandwidth,
            bandwidth_overall_bytes_per_s: total_bandwidth,
            message_rate_average_per_s: rate,
            message_rate_overall_per_s: total_rate,
        }
    }

    /// Prints the final line.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        // The final line is about the whole run, so its averages are the overall ones.
        (self.line, self.line_done) = (self.started, 0);
        let figures = self.figures(&self.sample, self.ended);
        let Setting { choice, plan, warm_up, .. } = self.setting;
        if self.json {
            let json = Json {
                test: plan.test,
                transport: &choice.transport,
                device: &choice.device,
                layout: plan.layout.to_string(),
                size_bytes: plan.size,
                warm_up_iterations: warm_up,
                latency_is: self.setting.latency_is(),
                emulator: self.setting.is_emulator(),
                figures,
            };
            let text =
                serde_json::to_string_pretty(&json).map_err(|error| Error::Local(error.to_string()))?;
            return self.out.line(text);
        }
        self.out.line(row("Final:", &figures))?;
        if self.setting.is_emulator() { self.out.line(EMULATOR) } else { Ok(()) }
    }
}

fn row(stage: &str, figures: &Figures) -> String {
    format!(
        "{stage:<8} {:>12} | {:>9.3} {:>9.3} {:>9.3} | {:>9.2} {:>9.2} | {:>10.0} {:>10.0}",
        figures.iterations,
        figures.latency_typical_us,
        figures.latency_average_us,
        figures.latency_overall_us,
        figures.bandwidth_average_bytes_per_s / MEBIBYTE,
        figures.bandwidth_overall_bytes_per_s / MEBIBYTE,
        figures.message_rate_average_per_s,
        figures.message_rate_overall_per_s,
    )
}
