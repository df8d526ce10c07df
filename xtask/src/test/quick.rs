//! The quick tier: what every change must pass. The cheapest parts come first.

use std::time::Duration;

use super::jobs::{self, Job};
use super::programs::Program;
use super::{Outcome, Part, Setting, command, has, part, suite, tests_of};
use crate::bench;
use crate::count::Tally;
use crate::documents;
use crate::layers;
use crate::machine;
use crate::miri;
use crate::packages;
use crate::process::{Failure, Invocation};

pub(super) const PARTS: &[Part] = &[
    part("packages", "installs missing Debian packages, as root", install),
    part("format", "cargo fmt, the layers of src/", format),
    part("clippy", "clippy of all targets, warnings denied", clippy),
    part("build", "all programs, libraries and tests", build),
    part("tests", "all test programs, the suite of behaviours at every place", tests),
    part("devices", "each operation on mlx5_0, set up in every way", devices),
    part("documents", "commands, paths and figures of the documents", documents),
    part("doc-tests", "the code in documentation", doc_tests),
    part("documentation", "rustdoc, warnings denied", documentation),
    part("models", "loom: rings of shm and barriers of the driver", models),
    part("miri", "undefined behaviour in copies and layouts", cheap_miri),
    part("instructions", "instruction limits and assembly of hot paths", instructions),
];

/// Longest time of one test program on a busy machine.
const DEADLINE: Duration = Duration::from_mins(10);

/// Test programs that take longest: they start first, so that none of them runs alone at the end.
const LONG: [&str; 8] =
    ["cli: ", "barewire: transport", "wireup: ", "shm: ", "hca: ", "channel: ", "fuzz: ", "nccl: "];

/// The suite of behaviours, which runs once for each place.
pub(super) const SUITE: &str = "conformance";

fn install(setting: &Setting) -> Result<Outcome, Failure> {
    let parts = [&packages::VERBS, &packages::CAPTURES, &packages::PROGRAMS];
    packages::install(setting.install, &parts, Duration::from_mins(10))?;
    match packages::left_out(&parts) {
        left_out if left_out.is_empty() => Ok(Outcome::Passed(Tally::default())),
        left_out => Ok(Outcome::LeftOut(left_out.join("; "))),
    }
}

fn format(_: &Setting) -> Result<Outcome, Failure> {
    layers::check()?;
    command(&Invocation::cargo(&["fmt", "--all", "--check"]), 5)
}

fn clippy(_: &Setting) -> Result<Outcome, Failure> {
    let clippy = Invocation::cargo(&["clippy", "--workspace", "--all-targets"]);
    command(&clippy.with(Setting::features()).with(&["--", "-D", "warnings"]), 20)
}

fn build(setting: &Setting) -> Result<Outcome, Failure> {
    setting.programs().map(|_| Outcome::Passed(Tally::default()))
}

fn tests(setting: &Setting) -> Result<Outcome, Failure> {
    let programs = setting.programs()?;
    // These two run in parts, beside each other.
    let (suite, cli) = (programs.test("", SUITE)?, programs.test("cli", "it")?);
    let others = programs.tests().filter(|program| **program != *suite && **program != *cli);
    let mut jobs: Vec<Job> = others.map(job).collect();
    jobs.extend(suite::quick(suite)?);
    jobs.extend(by_module(cli)?);
    jobs.sort_by_key(|job| {
        LONG.iter().position(|start| job.name.starts_with(start)).unwrap_or(LONG.len())
    });
    jobs::run(jobs).map(Outcome::from)
}

/// Returns the run of a program with all its tests.
fn job(program: &Program) -> Job {
    Job { name: program.name(), command: program.run(), deadline: DEADLINE, must_run: false }
}

/// Returns a run of each module of a test program. No module's name is the end of another's.
fn by_module(program: &Program) -> Result<Vec<Job>, Failure> {
    let run = |module: String| Job {
        name: format!("{}, {module}", program.name()),
        command: program.run().with(&[&format!("{module}::")]),
        deadline: DEADLINE,
        must_run: true,
    };
    Ok(suite::first_segments(&program.run())?.into_iter().map(run).collect())
}

fn devices(setting: &Setting) -> Result<Outcome, Failure> {
    if !has(&[&packages::VERBS, &packages::PROGRAMS]) {
        return Ok(Outcome::LeftOut("libibverbs or libmlx5 is missing".to_owned()));
    }
    let programs = setting.programs()?;
    let barewire = programs.program("barewire")?;
    let suite = programs.test("", SUITE)?;
    let driver = programs.test("mlx5", "it")?;
    let drive = |way: &machine::Way| Job {
        name: format!("mlx5: the driver, {}", way.name),
        command: machine::on_devices(driver, barewire, way).with(&machine::DRIVER_TESTS),
        deadline: DEADLINE,
        must_run: true,
    };
    let mut jobs = vec![drive(&machine::DEVX), drive(&machine::DEMANDING)];
    for way in [&machine::DEVX, &machine::INIT_OBJ, &machine::VERBS, &machine::UNSHARED] {
        jobs.extend(suite::on_devices(suite, barewire, way, Some(suite::OPERATIONS))?);
    }
    jobs::run(jobs).map(Outcome::from)
}

fn documents(_: &Setting) -> Result<Outcome, Failure> {
    documents::check().map(Outcome::from)
}

fn doc_tests(_: &Setting) -> Result<Outcome, Failure> {
    // `--doc` tests a library even if its manifest says not to; that of uverbs has the name of
    // another.
    let tests = ["test", "--workspace", "--exclude", "barewire-hca-uverbs", "--doc"];
    tests_of(&Invocation::cargo(&tests).with(Setting::features()), 15)
}

fn documentation(_: &Setting) -> Result<Outcome, Failure> {
    let documentation = Invocation::cargo(&["doc", "--workspace", "--no-deps"]);
    let documentation = documentation.with(Setting::features());
    command(&documentation.environment("RUSTDOCFLAGS", "-Dwarnings"), 15)
}

fn models(_: &Setting) -> Result<Outcome, Failure> {
    // With its own target folder, since everything is built differently. The models need no device,
    // and little optimisation.
    let models = Invocation::cargo(&["test", "-p", "barewire-shm", "-p", "barewire-mlx5"])
        .with(&["--no-default-features", "--release", "--lib", "models"])
        .environment("RUSTFLAGS", "--cfg loom")
        .environment("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .environment("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .environment("CARGO_TARGET_DIR", "target/loom");
    tests_of(&models, 15)
}

fn cheap_miri(setting: &Setting) -> Result<Outcome, Failure> {
    match miri::prepare(setting.install) {
        Ok(()) => miri::cheap(Duration::from_mins(10)).map(Outcome::from),
        Err(why) => Ok(Outcome::LeftOut(why)),
    }
}

fn instructions(setting: &Setting) -> Result<Outcome, Failure> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(Outcome::LeftOut("the limits are for x86-64".to_owned()));
    }
    bench::limits(setting.install)?;
    Ok(Outcome::Passed(Tally::default()))
}
