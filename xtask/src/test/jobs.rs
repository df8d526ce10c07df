//! Runs test programs beside each other, each with a deadline.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::count::Tally;
use crate::process::{self, Failure, Invocation, Output};

/// How many programs run at a time besides one for each processor. Some of a test's time is waiting:
/// for another process, a time-out, or silence.
const MORE: usize = 1;

/// One run of a test program.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) command: Invocation,
    pub(crate) deadline: Duration,
    /// Whether it fails if no test ran: a selection that selects nothing tests nothing.
    pub(crate) must_run: bool,
}

/// Runs all jobs, those at the beginning first, and returns how many tests passed. A job that fails
/// does not stop the others.
///
/// # Errors
/// Names each job that failed, with its command. Its output has been printed.
pub(crate) fn run(jobs: Vec<Job>) -> Result<Tally, Failure> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let width = (processors + MORE).min(jobs.len());
    let count = jobs.len();
    let waiting = Mutex::new(VecDeque::from(jobs));
    let ended = Mutex::new((Tally::default(), Vec::new(), None));
    let work = || {
        loop {
            let Some(job) = lock(&waiting).pop_front() else { return };
            let (tests, outcome) = run_one(&job);
            let (total, failed, interrupted) = &mut *lock(&ended);
            total.add(tests);
            match outcome {
                Ok(()) => {}
                Err(Failure::Interrupted(signal)) => {
                    lock(&waiting).clear();
                    *interrupted = Some(Failure::Interrupted(signal));
                }
                Err(failure) => failed.push(format!("{}: {failure}: {}", job.name, job.command)),
            }
        }
    };
    thread::scope(|scope| (0..width).for_each(|_| drop(scope.spawn(work))));
    let (total, failed, interrupted) = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
    match (interrupted, failed.len()) {
        (Some(interrupted), _) => Err(interrupted),
        (None, 0) => Ok(total),
        (None, number) => {
            let failed = failed.join("\n  ");
            Err(Failure::Found(format!("{number} of {count} test programs failed:\n  {failed}")))
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a job and prints a line about it; its output as well if it failed.
fn run_one(job: &Job) -> (Tally, Result<(), Failure>) {
    let (started, mut printed) = (Instant::now(), String::new());
    let outcome = process::run(&job.command, job.deadline, Output::Capture(&mut printed));
    let tests = Tally::of(&printed);
    let outcome = match outcome {
        Ok(()) if job.must_run && tests.passed == 0 => {
            Err(Failure::Found("no test ran".to_owned()))
        }
        outcome => outcome,
    };
    let (took, name) = (started.elapsed().as_secs_f64(), &job.name);
    match &outcome {
        Ok(()) => println!("{took:7.1} s  {name}: {} passed", tests.passed),
        // One call, so that the lines of other jobs do not come between.
        Err(failure) => println!(
            "{took:7.1} s  {name}: FAILED, {failure}\n{}\n{printed}\n-- end of the output of {name}",
            job.command
        ),
    }
    (tests, outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, script: &str, must_run: bool) -> Job {
        let command = Invocation::new("sh", &["-c", script]);
        Job { name: name.to_owned(), command, deadline: Duration::from_mins(1), must_run }
    }

    const PASSES: &str = "echo 'test result: ok. 2 passed; 0 failed'";

    #[test]
    fn passed_tests_of_all_jobs_are_added() {
        let jobs = vec![job("a", PASSES, true), job("b", PASSES, true), job("c", "true", false)];
        assert_eq!(run(jobs).unwrap().passed, 4);
    }

    #[test]
    fn every_failed_job_is_named_and_the_others_run() {
        let fails = "echo 'test result: FAILED. 1 passed; 1 failed'; exit 1";
        let folder = std::env::temp_dir().join(format!("barewire-jobs-{}", std::process::id()));
        let last = format!("touch '{}'; {PASSES}", folder.display());
        let jobs =
            vec![job("first", fails, true), job("none", "true", true), job("last", &last, true)];
        let failure = run(jobs).unwrap_err().to_string();
        assert!(
            failure.contains("2 of 3") && failure.contains("first: exit status: 1"),
            "{failure}"
        );
        assert!(failure.contains("none: no test ran") && !failure.contains("last"), "{failure}");
        std::fs::remove_file(folder).expect("the last job ran");
    }

    #[test]
    fn a_job_that_hangs_ends_at_its_deadline() {
        let mut hangs = job("hangs", "sleep 300", false);
        hangs.deadline = Duration::from_millis(300);
        let failure = run(vec![hangs]).unwrap_err().to_string();
        assert!(failure.contains("hangs: did not end within 0 s"), "{failure}");
    }
}
