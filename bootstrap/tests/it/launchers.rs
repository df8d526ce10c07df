//! Jobs that real launchers start. A launcher that is not installed is reported and left out.

use crate::support;

use std::io::{self, Write};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use barewire_bootstrap::{Runtime, all_gather, detect};
use support::{Slurm, is_installed, not_run};

/// What a rank does; set for processes that a launcher starts.
const ROLE: &str = "BAREWIRE_BOOTSTRAP_TEST";
const FENCE: Duration = Duration::from_mins(1);

fn value(rank: u32, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u32).wrapping_mul(31).wrapping_add(rank) as u8).collect()
}

/// What the ranks of these tests do: nothing in a normal run.
#[test]
fn rank() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut job = detect().unwrap();
    match role.split_once(' ').unwrap() {
        ("gather", length) => {
            let length = length.parse().unwrap();
            let own = value(job.rank(), length);
            let all = all_gather(&mut *job, "value", &own, FENCE).unwrap();
            assert!((0..).zip(&all).all(|(rank, found)| *found == value(rank, length)));
            assert!(job.node_peers().is_none_or(|peers| peers.len() == all.len()));
            // One line, for the test to count.
            let line = format!(
                "\nrank {} of {} by {} is content\n",
                job.rank(),
                job.size(),
                job.runtime()
            );
            io::stdout().write_all(line.as_bytes()).unwrap();
            job.fence(FENCE).unwrap();
        }
        ("abort", _) => {
            if job.rank() == 1 {
                job.abort(7, "this is a test");
                std::process::exit(7);
            }
            // The launcher ends this process, or the fence says why not.
            assert!(job.fence(FENCE).is_err());
            std::process::exit(8);
        }
        ("alone", _) => assert_eq!(job.runtime(), Runtime::Single),
        other => panic!("{other:?}"),
    }
}

/// Starts this program's [`rank`] under a launcher, and waits for all of it.
fn launch(launcher: &mut Command, role: &str) -> Output {
    launcher.arg(std::env::current_exe().unwrap());
    launcher
        .args(["--exact", "launchers::rank", "--nocapture", "--test-threads=1"])
        .env(ROLE, role);
    support::wait(launcher)
}

/// Jobs of several sizes, and one that is aborted.
fn works(runtime: Runtime, launcher: impl Fn(u32) -> Command) {
    for (size, length) in [(2, 0), (4, 4_000), (16, 600), (3, 64_000)] {
        let output = launch(&mut launcher(size), &format!("gather {length}"));
        let text = String::from_utf8_lossy(&output.stdout);
        for rank in 0..size {
            let line = format!("rank {rank} of {size} by {runtime} is content");
            assert!(text.contains(&line), "{line}: {output:?}");
        }
        assert!(output.status.success(), "{output:?}");
    }
    let start = Instant::now();
    let output = launch(&mut launcher(3), "abort 0");
    assert!(!output.status.success(), "{output:?}");
    assert!(start.elapsed() < FENCE / 2, "the others were ended: {output:?}");
}

#[test]
fn open_mpi() {
    if let Some(mpirun) = support::open_mpi() {
        works(Runtime::Pmix, mpirun);
    }
}

#[test]
fn hydra() {
    if !is_installed("mpiexec.hydra") {
        return not_run("Hydra is not installed (Debian: mpich)");
    }
    works(Runtime::Pmi1, |size| {
        let mut command = Command::new("mpiexec.hydra");
        command.args(["-launcher", "fork", "-n", &size.to_string()]);
        command
    });
}

#[test]
fn slurm() {
    let Some(slurm) = Slurm::start() else { return };
    for (plugin, runtime) in [("pmi2", Runtime::Pmi1), ("pmix", Runtime::Pmix)] {
        works(runtime, |size| slurm.run(plugin, size));
    }
    // Without an interface by which the ranks find each other, each is a job of one rank, and
    // warns.
    let output = launch(&mut slurm.run("none", 2), "alone 0");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output:?}");
    let warning = "SLURM_STEP_NUM_TASKS is 2, and this process is a job of one rank";
    assert_eq!(text.matches(warning).count(), 2, "{text}");
}
