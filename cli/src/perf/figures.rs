//! The numbers of one line, and their collection during a test.

use super::clock::{Clock, ticks};
use super::job::Job;
use super::printer::Printer;
use super::sample::Sample;
use super::statistics;
use crate::affinity::Ends;
use crate::error::Error;
use barewire::Counters;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Messages of a stream that are timed as a group.
const TOGETHER: u64 = 64;
/// Times that are buffered before they are counted. A post must not wait for memory that is written
/// for the first time, because stores leave a CPU in order.
const NOTED: usize = 512;
/// Parts of a test whose medians give the interval: as many as the pairs of `cargo xtask compare`.
const PARTS: usize = 15;
/// Nanoseconds between two lines.
const INTERVAL: f64 = 1e9;

/// The numbers of one line. Latencies are per message in microseconds, rates per second. Averages
/// start at the previous line.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Figures {
    pub(super) iterations: u64,
    #[serde(rename = "latency_typical_us")]
    pub(super) typical: f64,
    #[serde(rename = "latency_average_us")]
    pub(super) average: f64,
    #[serde(rename = "latency_overall_us")]
    pub(super) overall: f64,
    #[serde(rename = "bandwidth_average_bytes_per_s")]
    pub(super) average_bandwidth: f64,
    #[serde(rename = "bandwidth_overall_bytes_per_s")]
    pub(super) bandwidth: f64,
    #[serde(rename = "message_rate_average_per_s")]
    pub(super) average_rate: f64,
    #[serde(rename = "message_rate_overall_per_s")]
    pub(super) rate: f64,
}

/// The distribution of a whole test's latencies in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Percentiles {
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    #[serde(rename = "p99.9")]
    pub(super) p99_9: f64,
    pub(super) max: f64,
}

/// The median latency of a whole test in microseconds: that of consecutive parts of it, with a
/// bootstrap interval of 95 %.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Middle {
    #[serde(skip)]
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// Parts whose medians were taken.
    pub(super) parts: usize,
}

impl Middle {
    /// `medians` of the parts, at least one.
    fn of(medians: &[f64]) -> Option<Self> {
        let middle = |drawn: &[f64]| statistics::median(drawn.to_vec());
        (!medians.is_empty()).then(|| {
            let [low, high] = statistics::interval(medians, middle);
            Self { median: middle(medians), low, high, parts: medians.len() }
        })
    }
}

/// The result of a test.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub(super) figures: Figures,
    pub(super) percentiles: Percentiles,
    /// `None` without a latency.
    pub(super) middle: Option<Middle>,
    /// The part of the test's time for which the measuring thread ran, of 1.
    pub(super) cpu_share: f64,
    /// The counters of the measuring endpoint, including warm-up and set-up.
    pub(super) counters: Counters,
}

/// Collects the times of a test, and prints a line every second.
#[derive(Debug)]
pub(super) struct Recorder<'a, 'b> {
    job: &'a Job,
    printer: &'a mut Printer<'b>,
    ends: Option<Ends>,
    clock: Clock,
    done: u64,
    /// CPU time of this thread when the measurement started, and in the end that of the whole
    /// measurement, in nanoseconds.
    cpu: i64,
    /// All times are in ticks.
    started: u64,
    last: u64,
    ended: u64,
    line: u64,
    line_done: u64,
    /// Ticks between two lines.
    interval: u64,
    /// Fewer than [`NOTED`].
    noted: Vec<u64>,
    /// Buffered times must be counted, or a line is due.
    unsettled: bool,
    sample: Sample,
    line_sample: Sample,
}

impl<'a, 'b> Recorder<'a, 'b> {
    pub(super) fn new(job: &'a Job, printer: &'a mut Printer<'b>, ends: Option<Ends>) -> Self {
        Self {
            job,
            printer,
            ends,
            clock: Clock::start(),
            done: 0,
            cpu: 0,
            started: 0,
            last: 0,
            ended: 0,
            line: 0,
            line_done: 0,
            interval: u64::MAX,
            noted: Vec::with_capacity(NOTED),
            unsettled: false,
            sample: Sample::new(),
            line_sample: Sample::new(),
        }
    }

    pub(super) fn job(&self) -> &'a Job {
        self.job
    }

    /// Called when everything is set up and the first iteration starts.
    pub(super) fn begin(&mut self) -> Result<(), Error> {
        self.printer.begin(self.job, self.ends)?;
        self.interval = (INTERVAL / self.clock.tick()) as u64;
        self.restart(self.job.warm_up);
        Ok(())
    }

    /// Starts the measurement at this iteration; of several calls the last counts.
    fn restart(&mut self, number: u64) {
        // A system call: not in all iterations of the warm-up.
        if number.saturating_add(1) >= self.job.warm_up {
            self.cpu = cpu_time();
        }
        let now = ticks();
        (self.started, self.line, self.last) = (now, now, now);
    }

    /// Called after each iteration. Those of the warm-up are not counted.
    #[inline(always)]
    pub(super) fn iteration(&mut self, number: u64) -> Result<(), Error> {
        if number < self.job.warm_up {
            self.restart(number);
            return Ok(());
        }
        let now = ticks();
        self.add(now, 1, now.wrapping_sub(self.last))
    }

    /// Called in each iteration of a ping-pong before its post. Everything that takes time is done
    /// here, since no message is in flight now, and its time is counted for no iteration.
    #[inline(always)]
    pub(super) fn before(&mut self) -> Result<(), Error> {
        if self.unsettled { self.settle_between() } else { Ok(()) }
    }

    /// Called in each iteration of a ping-pong while its message is in flight: ends the time of the
    /// previous iteration, as ucx_perftest does. A clock that is read between a message and the
    /// response to it would add its own time to the latency. The first iteration that counts begins
    /// here, so [`Self::iteration`] must be called once more after the last one.
    #[inline(always)]
    pub(super) fn in_flight(&mut self, number: u64) {
        if number <= self.job.warm_up {
            return self.restart(number);
        }
        let now = ticks();
        self.note(now, 1, now.wrapping_sub(self.last));
        self.unsettled = self.is_unsettled(now);
    }

    /// Like [`Self::iteration`], for the messages of a stream, which are timed in groups.
    #[inline]
    pub(super) fn message(&mut self, number: u64) -> Result<(), Error> {
        if number < self.job.warm_up {
            self.restart(number);
            return Ok(());
        }
        let done = number - self.job.warm_up + 1;
        if !done.is_multiple_of(TOGETHER) && done != self.job.iterations {
            return Ok(());
        }
        let (now, count) = (ticks(), done - self.done);
        self.add(now, count, now.wrapping_sub(self.last) / count.max(1))
    }

    /// Adds `count` iterations that took `time` each.
    #[inline(always)]
    fn add(&mut self, now: u64, count: u64, time: u64) -> Result<(), Error> {
        self.note(now, count, time);
        if self.is_unsettled(now) { self.settle(now) } else { Ok(()) }
    }

    #[inline(always)]
    fn note(&mut self, now: u64, count: u64, time: u64) {
        self.last = now;
        self.done += count;
        self.noted.push(time);
    }

    #[inline(always)]
    fn is_unsettled(&self, now: u64) -> bool {
        self.noted.len() >= NOTED || now.wrapping_sub(self.line) >= self.interval
    }

    /// Like [`Self::settle`], in an iteration whose time runs.
    #[cold]
    #[inline(never)]
    fn settle_between(&mut self) -> Result<(), Error> {
        self.unsettled = false;
        let (last, now) = (self.last, ticks());
        self.settle(now)?;
        self.last = last.wrapping_add(self.last.wrapping_sub(now));
        Ok(())
    }

    /// Counts the buffered times, and prints a line if it is due.
    #[cold]
    #[inline(never)]
    fn settle(&mut self, now: u64) -> Result<(), Error> {
        self.count();
        if now.wrapping_sub(self.line) >= self.interval {
            self.print(now)?;
        }
        // The time of the printing does not belong to a message.
        self.last = ticks();
        Ok(())
    }

    fn count(&mut self) {
        for time in self.noted.drain(..) {
            self.sample.add(time);
            self.line_sample.add(time);
        }
    }

    /// Prints a line and starts the next. The last one is the final line.
    fn print(&mut self, now: u64) -> Result<(), Error> {
        if self.done == self.job.iterations {
            return Ok(());
        }
        let figures = self.figures(&self.line_sample, now);
        self.printer.line(self.job, &figures)?;
        (self.line, self.line_done) = (now, self.done);
        self.line_sample.clear();
        Ok(())
    }

    /// Called after the last iteration, for a stream when its last message has arrived.
    pub(super) fn end(&mut self) {
        self.ended = ticks();
        self.cpu = cpu_time().saturating_sub(self.cpu);
        self.count();
    }

    fn figures(&self, typical: &Sample, now: u64) -> Figures {
        let (ways, tick) = (self.job.ways(), self.clock.tick());
        let size = self.job.plan.size() as f64;
        let rates = |count: u64, since: u64| {
            let seconds = (now.wrapping_sub(since) as f64 * tick / 1e9).max(1e-9);
            let messages = count as f64 * ways;
            (seconds / messages.max(1.0) * 1e6, messages * size / seconds, messages / seconds)
        };
        let (average, average_bandwidth, average_rate) =
            rates(self.done - self.line_done, self.line);
        let (overall, bandwidth, rate) = rates(self.done, self.started);
        let [middle] = typical.percentiles([self.job.rank]);
        Figures {
            iterations: self.done,
            typical: middle as f64 * tick / ways / 1000.0,
            average,
            overall,
            average_bandwidth,
            bandwidth,
            average_rate,
            rate,
        }
    }

    /// The numbers of the whole test.
    pub(super) fn finish(&self, counters: Counters) -> Outcome {
        let unit = self.clock.tick() / self.job.ways() / 1000.0;
        let ranks = self.sample.percentiles([50.0, 90.0, 99.0, 99.9, 100.0]);
        let [p50, p90, p99, p99_9, max] = ranks.map(|time| time as f64 * unit);
        let medians: Vec<_> =
            self.sample.medians(PARTS).into_iter().map(|time| time * unit).collect();
        let time = self.ended.wrapping_sub(self.started) as f64 * self.clock.tick();
        Outcome {
            cpu_share: (self.cpu as f64 / time.max(1.0)).min(1.0),
            figures: self.figures(&self.sample, self.ended),
            percentiles: Percentiles { p50, p90, p99, p99_9, max },
            middle: Middle::of(&medians),
            counters,
        }
    }
}

/// The CPU time of this thread in nanoseconds.
fn cpu_time() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}
