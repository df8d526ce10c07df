//! The time that two cores need to hand a cache line to each other and back: a lower bound.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::process::Failure;

/// A number on its own pair of cache lines, since lines are fetched in pairs.
#[repr(align(128))]
struct Line(AtomicU64);

/// Round trips timed together.
const TOGETHER: u64 = 64;
/// Round trips of a measurement.
pub(super) const ROUNDS: usize = 20_000;
const DEADLINE: Duration = Duration::from_secs(20);

/// Returns the median of half a round trip, in microseconds, between threads on these CPUs.
pub(super) fn one_way(cpus: &[String; 2], rounds: usize) -> Result<f64, Failure> {
    let (there, back) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let last = TOGETHER * rounds as u64;
    let started = Instant::now();
    // Reading the clock for each round trip would dominate the time.
    let await_number = |line: &Line, number: u64| {
        let mut looks = 0u32;
        while line.0.load(Ordering::Acquire) != number {
            looks = looks.wrapping_add(1);
            if looks == 0 && started.elapsed() > DEADLINE {
                return false;
            }
        }
        true
    };
    let respond = || {
        let pinned = pin(&cpus[0]);
        for number in 1..=last {
            if !await_number(&there, number) {
                break;
            }
            back.0.store(number, Ordering::Release);
        }
        pinned
    };
    let send = || {
        pin(&cpus[1])?;
        let mut times = Vec::with_capacity(rounds);
        for round in 0..rounds as u64 {
            let start = Instant::now();
            for number in round * TOGETHER + 1..=(round + 1) * TOGETHER {
                there.0.store(number, Ordering::Release);
                if !await_number(&back, number) {
                    return Err(Failure::Deadline(DEADLINE));
                }
            }
            times.push(start.elapsed());
        }
        Ok(times)
    };
    // Two threads besides this one, which stays on all CPUs.
    let (pinned, times) = thread::scope(|scope| {
        let threads = (scope.spawn(respond), scope.spawn(send));
        (threads.0.join(), threads.1.join())
    });
    let panicked = |_| Failure::Found("a thread of the ping-pong panicked".to_owned());
    pinned.map_err(panicked)??;
    let mut times = times.map_err(panicked)??;
    let middle = times.len() / 2;
    let median = *times.select_nth_unstable(middle).1;
    Ok(median.as_secs_f64() * 1e6 / (2 * TOGETHER) as f64)
}

/// Pins the calling thread to a CPU.
fn pin(cpu: &str) -> Result<(), Failure> {
    let cpu: usize = cpu.parse().map_err(|_| Failure::Found(format!("'{cpu}' is no CPU")))?;
    if cpu >= CpuSet::MAX_CPU {
        return Err(Failure::Found(format!("no CPU {cpu}")));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
        .map_err(|error| Failure::Found(format!("cannot run on CPU {cpu}: {error}")))
}

#[cfg(test)]
mod tests {
    /// On one CPU each round trip would wait for the scheduler.
    #[test]
    fn a_line_takes_some_time() {
        let cpus = super::super::allowed_cpus();
        let [first, second, ..] = &cpus[..] else { return };
        let time = super::one_way(&[first.to_string(), second.to_string()], 50);
        assert!(time.is_ok_and(|time| time > 0.001));
        assert_eq!(super::super::allowed_cpus(), cpus, "this thread is pinned");
    }
}
