//! Reasons to doubt a result: other programs on the same CPUs, or too few messages.

use super::figures::Outcome;
use super::job::{Job, size_name};
use crate::affinity::Ends;
use crate::test::Test;
use barewire::TransportId;

/// A polling thread that no other thread disturbs runs for at least this share of the time.
const WHOLE_SHARE: f64 = 0.8;
/// The average of latencies, in medians, above which some of them contain the time of other
/// programs, and the fewest messages for this: a single interrupt can double the average of fewer.
const UNEVEN: f64 = 2.0;
const ENOUGH_FOR_AVERAGE: u64 = 1000;
/// The fewest messages that a test of limited time sends on an idle machine.
const ENOUGH: u64 = 100;
/// The ratio of a median to those of the sizes beside it that no message size explains.
const PEAK: f64 = 5.0;
/// Most lines.
const MOST_LINES: usize = 8;

/// The tests so far, with the reasons to doubt their results.
#[derive(Debug, Default)]
pub(super) struct Doubts(Vec<Tested>);

#[derive(Debug)]
struct Tested {
    transport: TransportId,
    device: String,
    test: Test,
    size: u64,
    /// The median in microseconds.
    median: f64,
    reasons: Vec<String>,
}

impl Doubts {
    pub(super) fn add(&mut self, job: &Job, ends: Option<Ends>, outcome: &Outcome) {
        let Job { choice, plan, .. } = job;
        let mut reasons = Vec::new();
        // The threads of emulated devices take a part of the CPUs, and so does the thread that
        // serves puts and gets of tcp. Of a peer on another host, this one waits for the network.
        let has_threads = choice.is_emulator()
            || (choice.transport == TransportId::Tcp && !plan.test.is_message());
        if !has_threads && (ends.is_some_and(|ends| !ends.share_a_cpu()) || job.loopback) {
            reasons.extend(disturbed(plan.test, outcome));
        }
        if job.paced && job.iterations < ENOUGH {
            reasons.push(format!("it sent {} messages in its time (--time)", job.iterations));
        }
        self.0.push(Tested {
            transport: choice.transport,
            device: choice.device.clone(),
            test: plan.test,
            size: plan.size(),
            median: outcome.percentiles.p50,
            reasons,
        });
    }

    /// The reasons for each test, in the order of the tests.
    pub(super) fn all(&self) -> Vec<Vec<String>> {
        let mut all: Vec<Vec<String>> = self.0.iter().map(|test| test.reasons.clone()).collect();
        for (at, [before, test, after]) in self.0.array_windows().enumerate() {
            let [height, other] = [before, after].map(|beside| {
                if test.is_beside(beside) { test.median / beside.median } else { 0.0 }
            });
            let height = height.min(other);
            if height > PEAK {
                all[at + 1]
                    .push(format!("its median is {height:.0} times those of the sizes beside it"));
            }
        }
        all
    }

    /// A line for each test whose result is doubtful.
    pub(super) fn lines(&self) -> Vec<String> {
        let all = self.all();
        let doubtful = self.0.iter().zip(&all).filter(|(_, reasons)| !reasons.is_empty());
        let line = |(test, reasons): (&Tested, &Vec<String>)| {
            let Tested { transport, device, test, size, .. } = test;
            let size = usize::try_from(*size).map_or_else(|_| size.to_string(), size_name);
            let reasons = reasons.join("; ");
            format!("doubtful {} {size} over {transport} on {device}: {reasons}", test.name())
        };
        let mut lines: Vec<String> = doubtful.clone().map(line).take(MOST_LINES).collect();
        let more = doubtful.count() - lines.len();
        if more > 0 {
            lines.push(format!("doubtful: {more} more tests"));
        }
        lines
    }
}

impl Tested {
    /// Returns whether both are of one series.
    fn is_beside(&self, other: &Self) -> bool {
        let of = |test: &Self| (test.transport, test.test, test.device.clone());
        of(self) == of(other) && self.size != other.size
    }
}

/// The reason to assume that other programs ran on the CPUs of a test.
fn disturbed(test: Test, outcome: &Outcome) -> Option<String> {
    let Outcome { figures, percentiles, cpu_share, .. } = outcome;
    let uneven = figures.overall / percentiles.p50;
    if *cpu_share < WHOLE_SHARE {
        let share = cpu_share * 100.0;
        Some(format!("the measuring thread ran for {share:.0} % of the time: the CPUs are busy"))
    } else if !test.is_stream() && figures.iterations >= ENOUGH_FOR_AVERAGE && uneven > UNEVEN {
        Some(format!("its average is {uneven:.0} times its median: the CPUs are busy"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tested(size: u64, median: f64) -> Tested {
        Tested {
            transport: TransportId::Shm,
            device: "memory".to_owned(),
            test: Test::PutLat,
            size,
            median,
            reasons: Vec::new(),
        }
    }

    #[test]
    fn a_median_far_above_those_of_the_sizes_beside_it_is_doubtful() {
        let doubts = Doubts(vec![tested(16, 0.33), tested(32, 5214.8), tested(64, 0.335)]);
        let line = "doubtful put_lat 32 over shm on memory: its median is 15567 times those of the \
                    sizes beside it";
        assert_eq!(doubts.lines(), [line]);
        let rising =
            Doubts(vec![tested(1 << 10, 0.5), tested(1 << 20, 50.0), tested(2 << 20, 99.0)]);
        assert_eq!(rising.lines(), [""; 0]);
        // A test of another transport is not beside it.
        let mut others = [tested(16, 0.33), tested(32, 9.0), tested(64, 0.33)];
        others[2].transport = TransportId::Cma;
        assert_eq!(Doubts(others.into()).lines(), [""; 0]);
    }

    #[test]
    fn many_lines_end_with_their_number() {
        let mut tests: Vec<Tested> = (0..12).map(|power| tested(8 << power, 1.0)).collect();
        for test in &mut tests {
            test.reasons.push("it is noisy".to_owned());
        }
        let lines = Doubts(tests).lines();
        assert_eq!(lines.len(), MOST_LINES + 1);
        assert_eq!(lines.last().unwrap(), "doubtful: 4 more tests");
    }
}
