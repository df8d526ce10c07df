//! Suites of other projects over `barewire uct run`, and beside it over UCX's own transports; and
//! programs of verbs over `barewire hca run`. Each is a script of this folder, and a part of the
//! deep tier.

mod results;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::count::Tally;
use crate::packages::{self, Install};
use crate::process::{self, Failure, Invocation, Output};
use results::{Results, known};

/// A suite: a script with its first arguments, and the packages that the script needs.
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    script: &'static str,
    arguments: &'static [&'static str],
    needs: &'static packages::Part,
    /// Longest time of one unit on a busy machine.
    deadline: Duration,
    pub(crate) by: By,
}

/// What runs the programs of a suite.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// `barewire uct run`, over each of the transports.
    Uct,
    /// `barewire hca run`.
    Hca,
}

impl Suite {
    /// By `barewire uct run`, without arguments.
    const fn new(name: &'static str, script: &'static str, needs: &'static packages::Part) -> Self {
        let deadline = Duration::from_mins(5);
        Self { name, script, arguments: &[], needs, deadline, by: By::Uct }
    }
}

pub(crate) const MPI4PY_OPENMPI: Suite = Suite {
    arguments: &["openmpi"],
    ..Suite::new("mpi4py-openmpi", "mpi4py.sh", &packages::MPI4PY)
};
pub(crate) const MPI4PY_MPICH: Suite =
    Suite { name: "mpi4py-mpich", arguments: &["mpich"], ..MPI4PY_OPENMPI };
pub(crate) const MPICH: Suite = Suite::new("mpich", "mpich.sh", &packages::MPICH);
pub(crate) const HPCC: Suite = Suite::new("hpcc", "hpcc.sh", &packages::HPCC);
pub(crate) const LAMMPS: Suite = Suite::new("lammps", "lammps.sh", &packages::LAMMPS);
pub(crate) const SCALAPACK: Suite = Suite::new("scalapack", "scalapack.sh", &packages::SCALAPACK);
pub(crate) const NIXL: Suite = Suite::new("nixl", "nixl.sh", &packages::NIXL);
pub(crate) const UCXX: Suite = Suite::new("ucxx", "ucxx.sh", &packages::UCXX);
pub(crate) const GTEST_1_13: Suite = Suite {
    arguments: &["1.13"],
    deadline: Duration::from_mins(20),
    ..Suite::new("gtest-1.13", "gtest.sh", &packages::GTEST)
};
pub(crate) const GTEST_HEAD: Suite =
    Suite { name: "gtest-head", arguments: &["head"], ..GTEST_1_13 };
pub(crate) const VERBS: Suite =
    Suite { by: By::Hca, ..Suite::new("verbs-programs", "verbs.sh", &packages::VERBS_PROGRAMS) };
pub(crate) const MOONCAKE: Suite =
    Suite { by: By::Hca, ..Suite::new("mooncake", "mooncake.sh", &packages::MOONCAKE) };

const FOLDER: &str = "xtask/src/foreign";
/// For downloads and the builds of a suite, on two busy processors.
const PREPARE: Duration = Duration::from_mins(90);
const SOON: Duration = Duration::from_mins(1);

/// Transports by their names in `UCX_TLS`: those of barewire, and of UCX for the same run.
struct Way {
    name: &'static str,
    barewire: Option<&'static str>,
    ucx: &'static str,
}

const WAYS: [Way; 5] = [
    Way { name: "default", barewire: None, ucx: "all" },
    Way { name: "shm", barewire: Some("self,shm"), ucx: "self,shm" },
    Way { name: "tcp", barewire: Some("self,tcp"), ucx: "self,tcp" },
    Way { name: "rc_mlx5", barewire: Some("self,rc_mlx5"), ucx: "all" },
    Way { name: "all", barewire: Some("all"), ucx: "all" },
];

/// Installs and prepares a suite. Returns its folder and its units, or why it is left out.
fn prepare(suite: &Suite, install: Install) -> Result<Result<(PathBuf, String), String>, Failure> {
    packages::install(install, &[suite.needs], Duration::from_mins(10))?;
    if let Some(why) = packages::left_out(&[suite.needs]).pop() {
        return Ok(Err(why));
    }
    let folder = process::target().join("foreign").join(suite.name);
    let cannot = |error: std::io::Error| Failure::Found(format!("{}: {error}", folder.display()));
    let prepared = folder.join("prepared");
    if !prepared.exists() {
        if install == Install::Nothing {
            return Ok(Err("not downloaded, as asked".to_owned()));
        }
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(cannot)?;
        process::run(&script(suite, &folder, &["prepare"]), PREPARE, Output::Inherit)?;
        fs::write(&prepared, "").map_err(cannot)?;
    }
    let units = process::text(&script(suite, &folder, &["units"]), SOON)?;

    Ok(Ok((folder, units)))
}

/// Runs a suite. The error of the inner result says why it is left out.
///
/// # Errors
/// The tests that fail; of those of UCX's programs, the tests that fail over barewire only.
pub(crate) fn run(
    suite: &Suite,
    barewire: &Path,
    install: Install,
) -> Result<Result<Tally, String>, Failure> {
    let (folder, units) = match prepare(suite, install)? {
        Ok(prepared) => prepared,
        Err(why) => return Ok(Err(why)),
    };
    let total = match suite.by {
        By::Uct => over_transports(suite, barewire, &folder, &units),
        By::Hca => over_devices(suite, barewire, &folder, &units),
    };
    total.map(Ok)
}

/// Runs programs of verbs over the software HCA.
fn over_devices(
    suite: &Suite,
    barewire: &Path,
    folder: &Path,
    units: &str,
) -> Result<Tally, Failure> {
    let by = format!("{} hca run --", barewire.display());
    let (mut total, mut found) = (Tally::default(), Vec::new());
    for unit in units.lines() {
        let command = script(suite, folder, &["run", unit]).environment("BY", &by);
        let (results, printed) = one(&command, unit, suite.deadline)?;
        if !results.failed.is_empty() {
            println!("{printed}\n-- end of the output of {unit}");
        }
        println!("{unit}: {} passed, {} failed", results.passed, results.failed.len());
        total.passed += results.passed;
        found.extend(results.failed);
    }
    conclude(total, &found, "")
}

/// Runs a suite over each of the transports. A unit with a failure that is not among the known
/// differences runs over UCX's own transports as well.
fn over_transports(
    suite: &Suite,
    barewire: &Path,
    folder: &Path,
    units: &str,
) -> Result<Tally, Failure> {
    let by = format!("{} uct run --", barewire.display());
    let (mut total, mut found) = (Tally::default(), Vec::new());
    for way in &WAYS {
        let (started, mut tests) = (Instant::now(), Tally::default());
        for unit in units.lines() {
            let over = |by, transports: Option<&str>| {
                let mut command = script(suite, folder, &["run", unit]).environment("BY", by);
                if let Some(transports) = transports {
                    command = command.environment("UCX_TLS", transports);
                }
                one(&command, unit, suite.deadline)
            };
            let (ours, printed) = over(&by, way.barewire)?;
            tests.passed += ours.passed;
            let mut failed = ours.without(&known(suite.name, way.name));
            if !failed.is_empty() {
                failed = failed.difference(&over("", Some(way.ucx))?.0.failed).cloned().collect();
            }
            if !failed.is_empty() {
                println!("{printed}\n-- end of the output of {unit} over {}", way.name);
            }
            tests.failed += failed.len() as u64;
            found.extend(failed.iter().map(|test| format!("{} over {}", test, way.name)));
        }
        let took = started.elapsed().as_secs_f64();
        println!(
            "{took:7.1} s  {} over {}: {} passed, {} fail over barewire only",
            suite.name, way.name, tests.passed, tests.failed
        );
        total.add(tests);
    }
    conclude(total, &found, " that pass over UCX's own transports")
}

/// Returns the sum of a run, or an error with the tests that failed, of which `kind` says more.
fn conclude(total: Tally, found: &[String], kind: &str) -> Result<Tally, Failure> {
    match found.len() {
        0 if total.passed == 0 => Err(Failure::Found("no test ran".to_owned())),
        0 => Ok(total),
        count => Err(Failure::Found(format!(
            "{} passed, and {count} failed{kind}:\n  {}",
            total.passed,
            found.join("\n  ")
        ))),
    }
}

fn script(suite: &Suite, folder: &Path, arguments: &[&str]) -> Invocation {
    let script = process::repository().join(FOLDER).join(suite.script);
    Invocation::new("sh", &[&script.to_string_lossy()])
        .with(suite.arguments)
        .with(arguments)
        .in_folder(folder)
}

/// Runs a unit. Returns its results and what it printed.
fn one(command: &Invocation, unit: &str, deadline: Duration) -> Result<(Results, String), Failure> {
    let mut printed = String::new();
    let outcome = process::run(command, deadline, Output::Capture(&mut printed));
    let mut results = Results::of(&printed);
    match outcome {
        Err(Failure::Interrupted(signal)) => return Err(Failure::Interrupted(signal)),
        Err(failure) => results.add_failed(format!("{unit}: {failure}")),
        Ok(()) => {}
    }
    Ok((results, printed))
}
