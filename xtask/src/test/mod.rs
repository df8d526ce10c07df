//! `cargo xtask test`: the checks of this repository in two tiers, each made of parts.

mod deep;
pub(crate) mod jobs;
pub(crate) mod programs;
mod quick;
mod record;
pub(crate) mod suite;

use std::cell::OnceCell;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::count::Tally;
use crate::foreign::Suite;
use crate::packages::{self, Install};
use crate::process::{self, Failure, Invocation, Output};
use crate::report::{self, Done};
use programs::Programs;

/// A part of a tier, which can run alone.
struct Part {
    name: &'static str,
    /// What it checks, for the list of parts.
    checks: &'static str,
    work: Work,
}

type Step = fn(&Setting) -> Result<Outcome, Failure>;

/// What a part does.
enum Work {
    Step(Step),
    Suite(&'static Suite),
}

const fn part(name: &'static str, checks: &'static str, run: Step) -> Part {
    Part { name, checks, work: Work::Step(run) }
}

impl Part {
    /// The part that runs a suite of others.
    const fn of_suite(suite: &'static Suite, checks: &'static str) -> Self {
        Self { name: suite.name, checks, work: Work::Suite(suite) }
    }

    fn run(&self, setting: &Setting) -> Result<Outcome, Failure> {
        match self.work {
            Work::Step(run) => run(setting),
            Work::Suite(suite) => deep::of_others(setting, suite),
        }
    }
}

/// The outcome of a part that did not fail.
enum Outcome {
    Passed(Tally),
    /// The machine lacks something, which the text names.
    LeftOut(String),
}

impl From<Tally> for Outcome {
    fn from(tests: Tally) -> Self {
        Self::Passed(tests)
    }
}

/// What the parts of a run share.
struct Setting {
    install: Install,
    programs: OnceCell<Programs>,
}

impl Setting {
    /// Returns the arguments that select all features that this machine allows.
    fn features() -> &'static [&'static str] {
        if has(&[&packages::VERBS]) { &["--all-features"] } else { &[] }
    }

    /// Returns the programs and tests, which the first call builds.
    fn programs(&self) -> Result<&Programs, Failure> {
        if let Some(programs) = self.programs.get() {
            return Ok(programs);
        }
        let built = Programs::build(Self::features())?;
        Ok(self.programs.get_or_init(|| built))
    }
}

/// Returns whether this machine has the packages of all `parts`.
fn has(parts: &[&packages::Part]) -> bool {
    packages::left_out(parts).is_empty()
}

/// What to run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    deep: bool,
    /// The names of parts; empty for all of the tier.
    parts: Vec<String>,
    install: Install,
}

impl Plan {
    /// Parses the arguments of `cargo xtask test`.
    ///
    /// # Errors
    /// The argument that is not understood, and what is.
    pub(crate) fn parse(words: &[&str]) -> Result<Self, String> {
        let mut plan = Self { deep: false, parts: Vec::new(), install: Install::Missing };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--deep" => plan.deep = true,
                "--no-install" => plan.install = Install::Nothing,
                "--part" => {
                    let name = *words.next().ok_or_else(|| format!("--part NAME\n{}", list()))?;
                    if find(name).is_none() {
                        return Err(format!("no part is called '{name}'\n{}", list()));
                    }
                    plan.parts.push(name.to_owned());
                }
                other => return Err(format!("unknown argument '{other}'\n{}", list())),
            }
        }
        Ok(plan)
    }
}

/// Returns the part of this name, and whether it is one of the deep tier.
fn find(name: &str) -> Option<(&'static Part, bool)> {
    let quick = quick::PARTS.iter().map(|part| (part, false));
    quick.chain(deep::PARTS.iter().map(|part| (part, true))).find(|(part, _)| part.name == name)
}

/// Returns a line for each part.
pub(crate) fn list() -> String {
    let line = |part: &Part| format!("  {:20} {}\n", part.name, part.checks);
    let quick: String = quick::PARTS.iter().map(line).collect();
    let deep: String = deep::PARTS.iter().map(line).collect();
    format!("parts of `cargo xtask test`:\n{quick}parts of `cargo xtask test --deep`:\n{deep}")
}

/// Runs the parts. Those of the quick tier end with the first that fails; those of the deep tier
/// all run, and docs/DEEP.md records each.
pub(crate) fn test(plan: &Plan) -> ExitCode {
    process::watch_signals();
    let parts: Vec<_> = if plan.parts.is_empty() {
        let tier = if plan.deep { deep::PARTS } else { quick::PARTS };
        tier.iter().map(|part| (part, plan.deep)).collect()
    } else {
        plan.parts.iter().filter_map(|name| find(name)).collect()
    };
    let setting = Setting { install: plan.install, programs: OnceCell::new() };
    let mut run = Run::default();
    for (part, is_deep) in parts {
        let ended = run.part(part, is_deep, &setting);
        if ended == Ended::Interrupted || (ended == Ended::Failed && !is_deep) {
            break;
        }
    }
    println!();
    for complaint in &run.complaints {
        println!("{complaint}");
    }
    print!("{}", report::closing(&run.done, run.tests, &run.left_out));
    if run.complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Passed,
    LeftOut,
    Failed,
    Interrupted,
}

/// The progress of a run.
#[derive(Default)]
struct Run {
    done: Vec<Done>,
    tests: Tally,
    left_out: Vec<String>,
    complaints: Vec<String>,
}

impl Run {
    /// Announces, runs and times one part.
    fn part(&mut self, part: &'static Part, is_deep: bool, setting: &Setting) -> Ended {
        println!("\n==> {}: {}", part.name, part.checks);
        let (started, processor) = (Instant::now(), process::processor_time());
        let outcome = part.run(setting);
        let took = started.elapsed();
        let processor = process::processor_time().saturating_sub(processor);
        let (ended, tests) = match outcome {
            Ok(Outcome::Passed(tests)) => (Ended::Passed, tests),
            Ok(Outcome::LeftOut(why)) => {
                println!("left out: {why}");
                self.left_out.push(format!("{}: {why}", part.name));
                (Ended::LeftOut, Tally::default())
            }
            Err(failure) => {
                let (name, disk) = (part.name, full_disk().unwrap_or_default());
                self.complaints.push(format!(
                    "part '{name}' failed: {failure}\nto repeat it: cargo xtask test --part {name}{disk}"
                ));
                let interrupted = matches!(failure, Failure::Interrupted(_));
                let ended = if interrupted { Ended::Interrupted } else { Ended::Failed };
                (ended, Tally { passed: 0, failed: 1 })
            }
        };
        self.tests.add(tests);
        if ended != Ended::LeftOut {
            let passed = ended == Ended::Passed;
            self.done.push(Done { name: part.name, took, processor, passed });
        }
        println!("==> {}: {ended:?} after {:.1} s", part.name, took.as_secs_f64());
        if is_deep
            && matches!(ended, Ended::Passed | Ended::Failed)
            && let Err(failure) = record::write(part.name, took, tests, ended == Ended::Passed)
        {
            self.complaints.push(failure.to_string());
        }
        ended
    }
}

/// Runs one command, whose output is shown.
fn command(command: &Invocation, minutes: u64) -> Result<Outcome, Failure> {
    println!("{command}");
    process::run(command, Duration::from_mins(minutes), Output::Inherit)?;
    Ok(Tally::default().into())
}

/// Runs one command that runs tests by libtest, and counts them.
fn tests_of(command: &Invocation, minutes: u64) -> Result<Outcome, Failure> {
    println!("{command}");
    let mut tests = Tally::default();
    let mut read = |line: &str| tests.read(line);
    process::run(command, Duration::from_mins(minutes), Output::Watch(&mut read))?;
    match tests.passed {
        0 => Err(Failure::Found("the command succeeded, but no test ran".to_owned())),
        _ => Ok(tests.into()),
    }
}

/// Returns a line for a failure if the disk of the repository is nearly full, since programs report
/// that in many ways.
fn full_disk() -> Option<String> {
    const NEARLY: u64 = 1 << 30;
    let disk = rustix::fs::statvfs(process::repository()).ok()?;
    let free = disk.f_bavail * disk.f_frsize;
    (free < NEARLY).then(|| {
        format!(
            "\nthe disk has {} MiB left; a run from a new clone needs about 8 GB in target/",
            free >> 20
        )
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn arguments_select_a_tier_or_parts() {
        let plan = Plan::parse(&[]).unwrap();
        assert!(!plan.deep && plan.parts.is_empty() && plan.install == Install::Missing);
        let plan = Plan::parse(&["--deep", "--part", "guest", "--no-install"]).unwrap();
        assert!(plan.deep && plan.install == Install::Nothing);
        assert_eq!(plan.parts, ["guest"]);
        for (bad, named) in
            [(&["--part", "no"][..], "'no'"), (&["--part"], "NAME"), (&["fast"], "'fast'")]
        {
            let complaint = Plan::parse(bad).unwrap_err();
            assert!(complaint.contains(named) && complaint.contains("clippy"), "{complaint}");
        }
    }

    #[test]
    fn parts_have_different_names() {
        let parts = || quick::PARTS.iter().chain(deep::PARTS);
        let names: BTreeSet<_> = parts().map(|part| part.name).collect();
        assert_eq!(names.len(), parts().count());
    }
}
