//! Runs of the conformance suite: its places, and the kinds of behaviours that a run selects.

use std::path::Path;
use std::time::Duration;

use super::jobs::Job;
use super::programs::Program;
use crate::machine;
use crate::process::{self, Failure, Invocation};

/// The variable that selects places, and the one that selects kinds of behaviours
/// (`tests/conformance/main.rs`).
const PLACES: &str = "BAREWIRE_TEST_PLACES";
const KINDS: &str = "BAREWIRE_TEST_KINDS";

/// Behaviours that share a process with others, and do not wait for time-outs.
const SHARED: &str = "plain,operation";
/// Behaviours that fork, set limits or leave a panicked process behind.
const ALONE: &str = "alone";
/// Behaviours that wait for a time-out.
const WAITING: &str = "waiting";
/// A behaviour of each operation.
pub(super) const OPERATIONS: &str = "operation";

/// Places in which the quick tier waits for time-outs: one of each implementation of them.
const WHERE_TO_WAIT: [&str; 4] = ["shm", "tcp", "rc_mlx5_soft0-soft1", "ud_mlx5_soft0-soft1"];

const DEADLINE: Duration = Duration::from_mins(15);
const SOON: Duration = Duration::from_mins(1);

/// Returns the jobs of the quick tier: every behaviour at every place, but waits in few places.
pub(super) fn quick(program: &Program) -> Result<Vec<Job>, Failure> {
    let mut jobs = Vec::new();
    for place in first_segments(&program.run())? {
        let at = program.run().environment(PLACES, &place);
        if WHERE_TO_WAIT.contains(&&*place) {
            jobs.push(job(&place, &at, WAITING));
        }
        jobs.push(job(&place, &at, SHARED));
        jobs.push(job(&place, &at, ALONE));
    }
    Ok(jobs)
}

/// Returns the jobs of every behaviour at every place.
pub(crate) fn everywhere(program: &Program) -> Result<Vec<Job>, Failure> {
    let kinds = |place: String| {
        let at = program.run().environment(PLACES, &place);
        [SHARED, ALONE, WAITING].map(|kind| job(&place, &at, kind))
    };
    Ok(first_segments(&program.run())?.into_iter().flat_map(kinds).collect())
}

/// Returns the jobs of all waits, at every place.
pub(super) fn waits(program: &Program) -> Result<Vec<Job>, Failure> {
    let at = |place: String| job(&place, &program.run().environment(PLACES, &place), WAITING);
    Ok(first_segments(&program.run())?.into_iter().map(at).collect())
}

/// Returns the jobs for one way to set up the devices of the machine, with each of the transports:
/// the given kinds of behaviours, or all.
pub(crate) fn on_devices(
    program: &Program,
    barewire: &Path,
    way: &machine::Way,
    kinds: Option<&str>,
) -> Result<Vec<Job>, Failure> {
    let command = machine::on_devices(program, barewire, way);
    let mut jobs = Vec::new();
    for place in first_segments(&machine::with(program.run(), way))? {
        let at = command.clone().environment(PLACES, &place);
        for kind in kinds.map_or(&[SHARED, ALONE, WAITING][..], |_| &[""]) {
            let name = format!("{}, {place}", way.name);
            jobs.push(job(&name, &at, kinds.unwrap_or(kind)));
        }
    }
    Ok(jobs)
}

fn job(place: &str, command: &Invocation, kind: &str) -> Job {
    // A child inherits the locks that other threads hold.
    let threads: &[&str] = if kind == ALONE { &["--test-threads=1"] } else { &[] };
    Job {
        name: format!("conformance: {place} ({kind})"),
        command: command.clone().environment(KINDS, kind).with(threads),
        deadline: DEADLINE,
        must_run: true,
    }
}

/// Asks a test program for the first segments of its tests' names: the places of the suite, or
/// the modules of another program.
pub(super) fn first_segments(program: &Invocation) -> Result<Vec<String>, Failure> {
    Ok(segments_in(&process::text(&program.clone().with(&["--list"]), SOON)?))
}

/// Lines are `place::module::behaviour: test`, with `_` for a space in the place's name.
fn segments_in(list: &str) -> Vec<String> {
    let mut segments = Vec::new();
    for (segment, _) in list.lines().filter_map(|line| line.split_once("::")) {
        if !segments.iter().any(|known| known == segment) {
            segments.push(segment.to_owned());
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_segments_are_read_from_the_list() {
        let list = "shm::rma::put_short: test\nshm::rma::put_bcopy: test\n\
                    rc_mlx5_soft0::rma::put_short: test\n\n3 tests, 0 benchmarks\n";
        assert_eq!(segments_in(list), ["shm", "rc_mlx5_soft0"]);
    }
}
