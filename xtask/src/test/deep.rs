//! The deep tier: everything that takes too long for every change.

use std::time::Duration;

use super::jobs::{self, Job};
use super::quick::SUITE;
use super::{Outcome, Part, Setting, command, has, part, suite, tests_of};
use crate::arm;
use crate::bench;
use crate::closure;
use crate::count::Tally;
use crate::documents;
use crate::foreign::{self, By};
use crate::kill;
use crate::libnccl;
use crate::machine::{self, Way};
use crate::miri;
use crate::new_ucx;
use crate::packages;
use crate::process::{self, Failure, Invocation};
use crate::release;
use crate::sanitize;
use crate::vm;

pub(super) const PARTS: &[Part] = &[
    part("all-waits", "behaviours that wait for time-outs, at every place", all_waits),
    part("set-ups", "every behaviour on mlx5_0, set up in every way", set_ups),
    part("demanding", "every behaviour on devices that require all they may", demanding),
    part("lossy", "datagrams that get lost, repeated and reordered", lossy),
    part("libnccl", "channels by NVIDIA's loader and beside its own network", nccl),
    part("ucx", "UCX 1.22 over the C interface", ucx),
    Part::of_suite(&foreign::MPI4PY_OPENMPI, "tests of mpi4py 3.1 over Open MPI"),
    Part::of_suite(&foreign::MPI4PY_MPICH, "tests of mpi4py 4.1 over MPICH"),
    Part::of_suite(&foreign::MPICH, "MPICH's test suite"),
    Part::of_suite(&foreign::HPCC, "the HPC Challenge over Open MPI"),
    Part::of_suite(&foreign::LAMMPS, "a melt of LAMMPS over Open MPI"),
    Part::of_suite(&foreign::SCALAPACK, "drivers of ScaLAPACK over Open MPI and MPICH"),
    Part::of_suite(&foreign::NIXL, "transfers of NIXL with the UCX of its Python package"),
    Part::of_suite(
        &foreign::UCXX,
        "clients and servers of UCXX with the UCX of its Python package",
    ),
    Part::of_suite(&foreign::GTEST_1_13, "UCX 1.13's own tests of UCT"),
    Part::of_suite(&foreign::GTEST_HEAD, "the same of UCX's head"),
    Part::of_suite(&foreign::VERBS, "programs of libibverbs and librdmacm on the software HCA"),
    Part::of_suite(&foreign::MOONCAKE, "transfers of Mooncake on the software HCA"),
    part("address-sanitizer", "the suite under AddressSanitizer", address),
    part("thread-sanitizer", "the suite under ThreadSanitizer", thread),
    part("all-miri", "all code on plain memory, interpreted by Miri", all_miri),
    part("aarch64", "tests and barriers of code for aarch64", aarch64),
    part("guest", "the kernel's Soft-RoCE in a guest", guest),
    part("features", "each feature alone; no system library by default", features),
    part("crates", "a package of each crate for crates.io", crates),
    part("bindings", "bindgen generates the checked-in bindings of libmlx5", bindings),
    part("all-documents", "every command of the documents as printed", all_documents),
    part("bare-machine", "README's two commands on a bare Debian", bare_machine),
    part("release", "the files of a release, on a bare Debian", release),
    part("peers", "instructions beside libmlx5 and UCX", peers),
    part("kills", "one side of barewire perf is killed, 200 times", kills),
    part("hosts", "networks and hosts that come and go; 100 failures of four hosts", hosts),
    part("soaks", "long random runs of devices, keys, channels and shm", soaks),
];

const DEADLINE: Duration = Duration::from_mins(30);

fn all_waits(setting: &Setting) -> Result<Outcome, Failure> {
    jobs::run(suite::waits(setting.programs()?.test("", SUITE)?)?).map(Outcome::from)
}

/// Returns why tests on `mlx5_0` are left out, if they are.
fn no_devices() -> Option<Outcome> {
    let missing = !has(&[&packages::VERBS, &packages::PROGRAMS]);
    missing.then(|| Outcome::LeftOut("libibverbs or libmlx5 is missing".to_owned()))
}

fn set_ups(setting: &Setting) -> Result<Outcome, Failure> {
    if let Some(left_out) = no_devices() {
        return Ok(left_out);
    }
    let programs = setting.programs()?;
    let barewire = programs.program("barewire")?;
    let mut jobs = Vec::new();
    for way in [&machine::DEVX, &machine::INIT_OBJ, &machine::VERBS, &machine::UNSHARED] {
        jobs.extend(suite::on_devices(programs.test("", SUITE)?, barewire, way, None)?);
    }
    let own = |way: &Way, folder: &str, tests: &str, arguments: &[&str]| {
        let command = machine::on_devices(programs.test(folder, tests)?, barewire, way);
        let package = if folder.is_empty() { "barewire" } else { folder };
        let name = format!("{package}: {tests}, {}", way.name);
        Ok::<_, Failure>(Job {
            name,
            command: command.with(arguments),
            deadline: DEADLINE,
            must_run: true,
        })
    };
    for way in [&machine::DEVX, &machine::INIT_OBJ] {
        jobs.push(own(way, "mlx5", "it", &machine::DRIVER_TESTS)?);
        jobs.push(own(way, "channel", "channel", &[])?);
        let one = Way { transports: "rc_mlx5", ..*way };
        // `init_obj` sets up no DC, which `dynamic::` uses; the others need no RDMA device.
        let skip = ["--skip", "cma::", "--skip", "sockets::", "--skip", "dynamic::"];
        jobs.push(own(&one, "", "transport", &skip)?);
    }
    let verbs = Way { transports: "rc_verbs", ..machine::VERBS };
    jobs.push(own(&verbs, "", "transport", &["--skip", "cma::", "--skip", "sockets::"])?);
    for (way, transports) in [(&machine::VERBS, "ud_verbs"), (&machine::INIT_OBJ, "ud_mlx5")] {
        jobs.push(own(&Way { transports, ..*way }, "", "transport", &["datagrams"])?);
    }
    jobs::run(jobs).map(Outcome::from)
}

/// Adapters whose capabilities the software HCA can have (`barewire_hca::Adapter::PUBLISHED`).
const PUBLISHED: [&str; 5] = ["cx5", "cx6", "cx6dx", "cx7", "vf"];

fn demanding(setting: &Setting) -> Result<Outcome, Failure> {
    let programs = setting.programs()?;
    let suite = programs.test("", SUITE)?;
    let command = suite.run().with(&["rc_mlx5"]).environment(machine::REQUIREMENTS, "all,no-wc");
    let name = "demanding software HCA".to_owned();
    let mut jobs = vec![Job { name, command, deadline: DEADLINE, must_run: true }];
    for adapter in PUBLISHED {
        let device = format!("device={adapter}");
        let command = suite.run().with(&["rc_mlx5"]).environment(machine::REQUIREMENTS, &device);
        jobs.push(Job { name: device, command, deadline: DEADLINE, must_run: true });
    }
    if no_devices().is_none() {
        let barewire = programs.program("barewire")?;
        jobs.extend(suite::on_devices(suite, barewire, &machine::DEMANDING, None)?);
    }
    jobs::run(jobs).map(Outcome::from)
}

fn lossy(setting: &Setting) -> Result<Outcome, Failure> {
    if let Some(left_out) = no_devices() {
        return Ok(left_out);
    }
    let programs = setting.programs()?;
    let (suite, barewire) = (programs.test("", SUITE)?, programs.program("barewire")?);
    let mut jobs = suite::on_devices(suite, barewire, &machine::LOSSY, None)?;
    let transport = programs.test("", "transport")?;
    let command = machine::on_devices(transport, barewire, &machine::LOSSY).with(&["datagrams"]);
    let name = "datagrams, lossy".to_owned();
    jobs.push(Job { name, command, deadline: DEADLINE, must_run: true });
    jobs::run(jobs).map(Outcome::from)
}

/// Libtest runs the behaviours in one process, which loads the library once.
fn nccl(setting: &Setting) -> Result<Outcome, Failure> {
    if let Some(left_out) = no_devices() {
        return Ok(left_out);
    }
    let library = match libnccl::find(setting.install) {
        Ok(library) => library,
        Err(why) => return Ok(Outcome::LeftOut(why)),
    };
    let programs = setting.programs()?;
    let barewire = programs.program("barewire")?;
    let mut jobs = Vec::new();
    for folder in ["channel", "nccl"] {
        let Ok(suite) = programs.test(folder, "suite") else { continue };
        let command = machine::on_devices(suite, barewire, &machine::DEVX)
            .with(&["--skip", "table_"])
            .environment(libnccl::VARIABLE, &library.to_string_lossy())
            .environment("NCCL_SOCKET_IFNAME", "lo");
        let name = format!("{folder} by libnccl");
        jobs.push(Job { name, command, deadline: DEADLINE, must_run: true });
    }
    jobs::run(jobs).map(Outcome::from)
}

fn ucx(setting: &Setting) -> Result<Outcome, Failure> {
    // The tests find it in the target folder.
    if let Err(why) = new_ucx::find(setting.install) {
        return Ok(Outcome::LeftOut(why));
    }
    let command = setting.programs()?.test("cli", "it")?.run().with(&["uct_"]);
    let name = "programs of UCX".to_owned();
    jobs::run(vec![Job { name, command, deadline: DEADLINE, must_run: true }]).map(Outcome::from)
}

/// Builds what a suite of others runs by, and runs the suite.
pub(super) fn of_others(setting: &Setting, suite: &foreign::Suite) -> Result<Outcome, Failure> {
    let packages: &[&str] = match suite.by {
        // As README says, with the default features.
        By::Uct => &[],
        // Cargo does not build the library that `hca run` preloads with the program.
        By::Hca => &["-p", "barewire-cli", "-p", "barewire-hca-uverbs"],
    };
    command(&Invocation::cargo(&["build"]).with(packages), 30)?;
    let barewire = process::target().join("debug/barewire");
    Ok(match foreign::run(suite, &barewire, setting.install)? {
        Ok(passed) => passed.into(),
        Err(why) => Outcome::LeftOut(why),
    })
}

fn address(_: &Setting) -> Result<Outcome, Failure> {
    sanitize::by("address").map(Outcome::from)
}

fn thread(setting: &Setting) -> Result<Outcome, Failure> {
    match miri::prepare(setting.install) {
        Ok(()) => sanitize::by("thread").map(Outcome::from),
        Err(why) => Ok(Outcome::LeftOut(why)),
    }
}

fn all_miri(setting: &Setting) -> Result<Outcome, Failure> {
    match miri::prepare(setting.install) {
        Ok(()) => miri::check(DEADLINE).map(Outcome::from),
        Err(why) => Ok(Outcome::LeftOut(why)),
    }
}

fn aarch64(setting: &Setting) -> Result<Outcome, Failure> {
    packages::install(setting.install, &[&packages::ARM], Duration::from_mins(10))?;
    let missing = packages::left_out(&[&packages::ARM]).pop();
    if let Some(why) = missing.or_else(|| arm::prepare(setting.install).err()) {
        return Ok(Outcome::LeftOut(why));
    }
    bench::aarch64_assembly()?;
    let mut tests = Tally::default();
    for arguments in arm::RUNS {
        match tests_of(&arm::run(arguments), 30)? {
            Outcome::Passed(passed) => tests.add(passed),
            left_out @ Outcome::LeftOut(_) => return Ok(left_out),
        }
    }
    Ok(tests.into())
}

fn guest(setting: &Setting) -> Result<Outcome, Failure> {
    let parts = [&packages::VERBS, &packages::GUEST];
    packages::install(setting.install, &parts, Duration::from_mins(10))?;
    if let Some(why) = packages::left_out(&parts).pop() {
        return Ok(Outcome::LeftOut(why));
    }
    let passed = vm::check(setting.programs()?)?;
    Ok(Tally { passed, failed: 0 }.into())
}

fn features(_: &Setting) -> Result<Outcome, Failure> {
    closure::check(Duration::from_mins(20))?;
    let mut tests = Tally::default();
    for (feature, _, _) in closure::ALONE {
        let arguments =
            ["test", "-p", "barewire", "--test", "each_transport", "--no-default-features"];
        let outcome = tests_of(&Invocation::cargo(&arguments).with(&["--features", feature]), 10)?;
        if let Outcome::Passed(passed) = outcome {
            tests.add(passed);
        }
    }
    // Lints of the libraries and programs with default features.
    command(&Invocation::cargo(&["clippy", "--workspace", "--", "-D", "warnings"]), 20)?;
    Ok(tests.into())
}

fn crates(_: &Setting) -> Result<Outcome, Failure> {
    // Without `--no-verify` it builds every package anew, in several minutes. What that would find is
    // mostly a file that a package lacks, for which `xtask/tests/publish.rs` looks.
    let package =
        ["package", "--workspace", "--no-verify", "--allow-dirty", "--offline", "--quiet"];
    command(&Invocation::cargo(&package), 10)
}

fn bindings(_: &Setting) -> Result<Outcome, Failure> {
    if !has(&[&packages::VERBS]) {
        return Ok(Outcome::LeftOut(
            "the headers of libibverbs or libclang are missing".to_owned(),
        ));
    }
    let manifest = "verbs/mlx5dv-sys/generate/Cargo.toml";
    let run = ["run", "--quiet", "--locked", "--target-dir", "target/generate", "--manifest-path"];
    command(&Invocation::cargo(&run).with(&[manifest]), 20)
}

fn all_documents(_: &Setting) -> Result<Outcome, Failure> {
    documents::check_all().map(Outcome::from)
}

fn bare_machine(_: &Setting) -> Result<Outcome, Failure> {
    documents::check_bare()?;
    Ok(Tally::default().into())
}

fn release(_: &Setting) -> Result<Outcome, Failure> {
    release::check()?;
    Ok(Tally::default().into())
}

fn peers(setting: &Setting) -> Result<Outcome, Failure> {
    bench::check(setting.install, false)?;
    Ok(Tally::default().into())
}

fn kills(setting: &Setting) -> Result<Outcome, Failure> {
    let binary = setting.programs()?.program("barewire")?.to_owned();
    kill::check(&kill::Plan { count: 200, seed: 1, binary: Some(binary) })?;
    Ok(Tally::default().into())
}

/// One after the other: each is about times, and has as many processes as the machine bears.
fn hosts(setting: &Setting) -> Result<Outcome, Failure> {
    let programs = setting.programs()?;
    let mut tests = Tally::default();
    let program = programs.test("wireup", "hosts")?;
    for filter in ["deep::", "kills::"] {
        let command = program.run().with(&[filter, "--ignored", "--test-threads=1"]);
        let command = command.environment("BAREWIRE_HOSTS_KILLS", "100");
        let name = format!("wireup hosts, {filter}");
        tests.add(jobs::run(vec![Job { name, command, deadline: DEADLINE, must_run: true }])?);
    }
    Ok(tests.into())
}

fn soaks(setting: &Setting) -> Result<Outcome, Failure> {
    let programs = setting.programs()?;
    let soak = |folder: &str, tests: &str, filter: &str, variable: &'static str, value: &str| {
        let command = programs.test(folder, tests)?.run().environment(variable, value);
        let name = format!("{folder} {filter}, {variable}={value}");
        let command = command.with(&[filter, "--include-ignored"]);
        Ok::<_, Failure>(Job { name, command, deadline: DEADLINE, must_run: true })
    };
    jobs::run(vec![
        soak("hca", "it", "soak", "BAREWIRE_HCA_SOAK_SEEDS", "2000")?,
        soak("mlx5", "it", "key_changes::", "BAREWIRE_KEY_CHANGES", "20000")?,
        soak("channel", "channel", "soak", "BAREWIRE_SOAK_SECONDS", "300")?,
        soak("wireup", "nodes", "every_flood", "BAREWIRE_FLOOD_ROUNDS", "15")?,
        soak("channel", "channel", "every_flood", "BAREWIRE_FLOOD_ROUNDS", "8")?,
        soak("bootstrap", "it", "every_flood", "BAREWIRE_FLOOD_ROUNDS", "8")?,
        soak("shm", "it", "all_to_all::", "BAREWIRE_SHM_ALL_TO_ALL", "32 400000")?,
    ])
    .map(Outcome::from)
}
