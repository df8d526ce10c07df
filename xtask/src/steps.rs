//! The steps of `cargo xtask test`, the cheapest first.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::arm;
use crate::bench;
use crate::closure;
use crate::count::{Runner, Tally};
use crate::libnccl;
use crate::machine;
use crate::miri;
use crate::new_ucx;
use crate::packages::{self, Install};
use crate::process::{self, Failure, Invocation, Output};
use crate::report::{self, Done};
use crate::sanitize;
use crate::vm;

struct Step {
    name: &'static str,
    deadline: Duration,
    work: Work,
}

enum Work {
    Install(Install),
    Run(Invocation),
    /// Tests, counted from the runner's summary.
    Test(Runner, Invocation),
    /// Tests under `barewire hca run`, with the devices set up in this way.
    Machine(Runner, Invocation, &'static str),
    Closure,
    Bench(Install),
    /// Checks in the guest, counted as tests.
    Guest,
    /// Tests that Miri interprets.
    Miri,
    /// The conformance suite under AddressSanitizer.
    Sanitize,
}

impl Step {
    fn run(name: &'static str, minutes: u64, command: Invocation) -> Self {
        Self { name, deadline: Duration::from_mins(minutes), work: Work::Run(command) }
    }

    /// Returns the command that repeats this step alone.
    fn command(&self) -> String {
        match &self.work {
            Work::Install(_) => "cargo xtask test".to_owned(),
            Work::Run(command) | Work::Test(_, command) => command.to_string(),
            Work::Machine(_, command, way) => machine::under(command, "barewire", way).to_string(),
            Work::Closure => format!("{}; ldd target/debug/barewire", closure::tree()),
            Work::Bench(_) => "cargo xtask bench".to_owned(),
            Work::Guest => "cargo xtask vm".to_owned(),
            Work::Miri => "cargo xtask miri".to_owned(),
            Work::Sanitize => "cargo xtask sanitize address".to_owned(),
        }
    }
}

/// Runs the steps until one fails; those from `first` on if it is given.
pub(crate) fn test(install: Install, first: Option<&str>) -> ExitCode {
    process::watch_signals();
    let mut run = Run::default();
    let packages =
        Step { name: "packages", deadline: Duration::from_mins(10), work: Work::Install(install) };
    let outcome = run.step(&packages).and_then(|()| {
        run.left_out = packages::left_out(&packages::ALL);
        let has = |parts: &[&packages::Part]| packages::left_out(parts).is_empty();
        let features: &[&str] = if has(&[&packages::VERBS]) { &["--all-features"] } else { &[] };
        let guest = has(&[&packages::VERBS, &packages::GUEST]);
        let miri = miri::prepare(install);
        run.left_out.extend(miri.as_ref().err().cloned());
        let arm = if has(&[&packages::ARM]) { Some(arm::prepare(install)) } else { None };
        run.left_out.extend(arm.as_ref().and_then(|arm| arm.as_ref().err().cloned()));
        let arm = matches!(arm, Some(Ok(())));
        let nccl = (!features.is_empty()).then(|| libnccl::find(install));
        run.left_out.extend(nccl.as_ref().and_then(|nccl| nccl.as_ref().err().cloned()));
        let nccl = nccl.and_then(Result::ok);
        // The tests find it in the target folder.
        run.left_out.extend(new_ucx::find(install).err());
        let steps = steps(features, [guest, miri.is_ok(), arm], nccl.as_deref(), install);
        let from = first.map_or(Some(0), |first| steps.iter().position(|step| step.name == first));
        let Some(from) = from else {
            let names: Vec<_> = steps.iter().map(|step| step.name).collect();
            return Err(format!("no step has this name; the steps are: {}", names.join("; ")));
        };
        steps[from..].iter().try_for_each(|step| run.step(step))
    });
    println!();
    if let Err(complaint) = &outcome {
        println!("{complaint}");
    }
    print!("{}", report::closing(&run.done, run.tests, &run.left_out));
    outcome.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

/// Returns the steps after the packages. `features` selects all features that the machine allows;
/// `guest`, `miri` and `arm` are whether they are available, and `nccl` is NVIDIA's library if it is.
fn steps(
    features: &[&str],
    [guest, miri, arm]: [bool; 3],
    nccl: Option<&Path>,
    install: Install,
) -> Vec<Step> {
    let cargo = |arguments: &[&str]| Invocation::cargo(arguments);
    let clippy = |more: &[&str]| {
        cargo(&["clippy", "--workspace"]).with(more).with(&["--", "-D", "warnings"])
    };
    let mut steps = vec![Step::run("format", 5, cargo(&["fmt", "--all", "--check"]))];
    if features.is_empty() {
        steps.push(Step::run("clippy", 20, clippy(&["--all-targets"])));
    } else {
        // Tests, benches and examples are the same with default features.
        steps.push(Step::run("clippy", 20, clippy(&[])));
        let all = clippy(&["--all-targets", "--all-features"]);
        steps.push(Step::run("clippy, all features", 20, all));
    }
    let (runner, tests) = if has_nextest() {
        (Runner::Nextest, cargo(&["nextest", "run", "--workspace"]))
    } else {
        println!(
            "cargo-nextest is not installed: cargo test runs the tests, without a deadline for each"
        );
        // nextest builds the examples, which tests run; `cargo test` does so only together with doc
        // tests.
        steps.push(Step::run(
            "examples",
            20,
            cargo(&["build", "--workspace", "--examples"]).with(features),
        ));
        (
            Runner::Libtest,
            cargo(&["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"]),
        )
    };
    let test = |name, minutes: u64, runner, command| Step {
        name,
        deadline: Duration::from_mins(minutes),
        work: Work::Test(runner, command),
    };
    // Tests run programs and load libraries, whose cold build exceeds their deadlines.
    steps.push(Step::run("build", 30, machine::build().with(features)));
    steps.push(test("tests", 40, runner, tests.with(features)));
    steps.push(test("demanding software HCA", 10, runner, machine::demanding(features, runner)));
    if !features.is_empty() {
        let tests = machine::demanding_datagrams(features, runner);
        let work = Work::Machine(runner, tests, "devx");
        let name = "mlx5_0, demanding, by datagrams";
        steps.push(Step { name, deadline: Duration::from_mins(10), work });
        let by_devx = machine::tests(features, runner);
        let by_init_obj = machine::by_init_obj(by_devx.clone());
        for (name, tests, way) in
            [("mlx5_0, by DEVX", by_devx, "devx"), ("mlx5_0, by init_obj", by_init_obj, "init_obj")]
        {
            let work = Work::Machine(runner, tests, way);
            steps.push(Step { name, deadline: Duration::from_mins(15), work });
        }
        let work = Work::Machine(runner, machine::tests_over_verbs(runner).with(features), "verbs");
        steps.push(Step { name: "mlx5_0, by verbs", deadline: Duration::from_mins(15), work });
        let tests =
            machine::tests_without_sharing(machine::tests_over_verbs(runner).with(features));
        let (name, work) =
            ("mlx5_0, no shared receive queue", Work::Machine(runner, tests, "verbs"));
        steps.push(Step { name, deadline: Duration::from_mins(15), work });
        // The reliability layer is the same over verbs and our own driver: one of them runs it over
        // each wire.
        let tests = machine::tests_over_verbs(runner).with(features);
        let good = machine::tests_over_datagrams(tests.clone(), "ud_verbs");
        let bad = machine::lossy(machine::tests_over_datagrams(tests, "ud_mlx5"));
        for (name, tests, way) in [
            ("mlx5_0, by datagrams", good, "verbs"),
            ("mlx5_0, by datagrams that get lost", bad, "init_obj"),
        ] {
            let work = Work::Machine(runner, tests, way);
            steps.push(Step { name, deadline: Duration::from_mins(15), work });
        }
    }
    if let Some(library) = nccl {
        let tests = machine::tests_of_libnccl(features, library);
        let work = Work::Machine(Runner::Libtest, tests, "devx");
        steps.push(Step { name: "channels by libnccl", deadline: Duration::from_mins(10), work });
    }
    // With their own target folder, since everything is built differently.
    steps.push(test(
        "models",
        15,
        Runner::Libtest,
        cargo(&["test", "-p", "barewire-shm", "-p", "barewire-mlx5"])
            .with(&["--release", "--lib", "models"])
            .environment("RUSTFLAGS", "--cfg loom")
            .environment("CARGO_TARGET_DIR", "target/loom"),
    ));
    if miri {
        steps.push(Step { name: "Miri", deadline: Duration::from_mins(20), work: Work::Miri });
    }
    for (name, arguments) in arm::RUNS.iter().filter(|_| arm) {
        steps.push(test(name, 20, runner, arm::run(runner, arguments)));
    }
    steps.push(Step {
        name: "address sanitizer",
        deadline: Duration::from_mins(30),
        work: Work::Sanitize,
    });
    // `--doc` tests a library even if its manifest says not to; that of uverbs has the name of
    // another.
    steps.push(test(
        "doc tests",
        15,
        Runner::Libtest,
        cargo(&["test", "--workspace", "--exclude", "barewire-hca-uverbs", "--doc"]).with(features),
    ));
    steps.push(Step::run(
        "documentation",
        15,
        cargo(&["doc", "--workspace", "--no-deps"])
            .with(features)
            .environment("RUSTDOCFLAGS", "-Dwarnings"),
    ));
    // Without `--no-verify` it builds every package anew, in several minutes. What that would find is
    // mostly a file that a package lacks, for which `xtask/tests/publish.rs` looks.
    steps.push(Step::run(
        "packages for crates.io",
        5,
        cargo(&["package", "--workspace", "--no-verify", "--allow-dirty", "--offline", "--quiet"]),
    ));
    for (feature, name, _) in closure::ALONE {
        let arguments =
            ["test", "-p", "barewire", "--test", "each_transport", "--no-default-features"];
        let command = cargo(&arguments).with(&["--features", feature]);
        steps.push(test(name, 10, Runner::Libtest, command));
    }
    steps.push(Step {
        name: "default build",
        deadline: Duration::from_mins(10),
        work: Work::Closure,
    });
    if guest {
        // Its build, and the guest, which has its own deadline.
        steps.push(Step { name: "guest", deadline: Duration::from_mins(30), work: Work::Guest });
    }
    if cfg!(target_arch = "x86_64") && !features.is_empty() {
        steps.push(Step {
            name: "instructions",
            deadline: Duration::from_mins(20),
            work: Work::Bench(install),
        });
    }
    steps
}

fn has_nextest() -> bool {
    let ask = Invocation::cargo(&["nextest", "--version"]);
    process::run(&ask, Duration::from_secs(30), Output::Discard).is_ok()
}

/// Returns a line for a failure if the disk of the repository is nearly full, since programs report
/// that in many ways.
fn full_disk() -> Option<String> {
    const NEARLY: u64 = 1 << 30;
    let disk = rustix::fs::statvfs(process::repository()).ok()?;
    let free = disk.f_bavail * disk.f_frsize;
    (free < NEARLY).then(|| {
        format!(
            "\nthe disk has {} MiB left; a run from a new clone needs about 15 GB in target/",
            free >> 20
        )
    })
}

/// The progress of a run.
#[derive(Default)]
struct Run {
    done: Vec<Done>,
    tests: Tally,
    left_out: Vec<String>,
}

impl Run {
    /// Announces, runs and times one step. The error says what failed and how to repeat it.
    fn step(&mut self, step: &Step) -> Result<(), String> {
        println!("\n==> {}: {}", step.name, step.command());
        let started = Instant::now();
        let outcome = self.work(step);
        let took = started.elapsed();
        self.done.push(Done { name: step.name, took, passed: outcome.is_ok() });
        match outcome {
            Ok(()) => {
                println!("==> {}: passed in {:.1} s", step.name, took.as_secs_f64());
                Ok(())
            }
            Err(failure) => Err(format!(
                "step '{}' failed: {failure}\nto repeat it: {}{}",
                step.name,
                step.command(),
                full_disk().unwrap_or_default()
            )),
        }
    }

    fn tests(&mut self, step: &Step, runner: Runner, command: &Invocation) -> Result<(), Failure> {
        let before = self.tests;
        let colour = if std::io::stdout().is_terminal() { "always" } else { "auto" };
        let command = command.clone().environment("CARGO_TERM_COLOR", colour);
        let mut read = |line: &str| self.tests.read(runner, line);
        process::run(&command, step.deadline, Output::Watch(&mut read))?;
        if step.name != "doc tests" && self.tests.passed == before.passed {
            return Err(Failure::Found("the runner ended well, but no test ran".to_owned()));
        }
        Ok(())
    }

    fn work(&mut self, step: &Step) -> Result<(), Failure> {
        match &step.work {
            Work::Install(install) => packages::install(*install, &packages::ALL, step.deadline),
            Work::Run(command) => process::run(command, step.deadline, Output::Inherit),
            Work::Closure => closure::check(step.deadline),
            Work::Bench(install) => bench::check(*install, false),
            Work::Guest => vm::check().map(|passed| self.tests.passed += passed),
            Work::Miri => miri::check(step.deadline).map(|tests| self.tests.passed += tests.passed),
            Work::Sanitize => sanitize::address().map(|tests| self.tests.passed += tests.passed),
            Work::Test(runner, command) => self.tests(step, *runner, command),
            Work::Machine(runner, command, way) => {
                let barewire = machine::command_line(step.deadline)?;
                self.tests(step, *runner, &machine::under(command, &barewire, way))
            }
        }
    }
}
