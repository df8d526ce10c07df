//! `barewire hello` and `perf` as two ranks of real launchers, without a host name.

use std::path::Path;
use std::process::Command;

use crate::hca;
use crate::launching::{self as support, Slurm};
use crate::uct;

/// Runs each command as two ranks.
fn works(launcher: impl Fn() -> Command) {
    let run = |words: &[&str]| {
        let mut launcher = launcher();
        launcher.arg(env!("CARGO_BIN_EXE_barewire")).args(words);
        launcher.env_remove("BAREWIRE_KEY").env_remove("BAREWIRE_KEY_FILE");
        let output = support::wait(&mut launcher);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let greeted = run(&["hello", "-t", "shm"]);
    assert!(greeted.contains("16 bytes by am_short from the client"), "{greeted}");
    assert!(greeted.contains("16 bytes by am_short from the server"), "{greeted}");
    let perf = ["perf", "-x", "shm", "-n", "1000", "-w", "10", "--json"];
    for test in ["am_lat", "put_bw", "tag_lat", "tag_bw"] {
        let printed = run(&[&perf[..], &["-t", test]].concat());
        // Only the client prints a result.
        let result: serde_json::Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(result["test"], test, "{printed}");
        assert!(result["message_rate_overall_per_s"].as_f64().unwrap() > 0.0, "{printed}");
    }
}

#[test]
fn open_mpi() {
    let Some(mpirun) = support::open_mpi() else { return };
    works(|| mpirun(2));
    // Other sizes are refused by each rank, and nothing waits.
    let mut three = mpirun(3);
    let output =
        support::wait(three.arg(env!("CARGO_BIN_EXE_barewire")).args(["hello", "-t", "shm"]));
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the job has 3 ranks, and this needs 2"), "{said}");
    // A client that fails ends the server.
    let mut two = mpirun(2);
    let wrong = ["perf", "-x", "tcp", "-d", "lo", "-n", "10"];
    two.env_remove("BAREWIRE_KEY").env_remove("BAREWIRE_KEY_FILE");
    let output = support::wait(two.arg(env!("CARGO_BIN_EXE_barewire")).args(wrong));
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("key"), "{output:?}");
}

#[test]
fn slurm() {
    let Some(slurm) = Slurm::start() else { return };
    works(|| slurm.run("pmi2", 2));
}

/// Both ways to start ranks of Open MPI on the C interface: `uct run` around `srun`, and within it.
#[test]
fn slurm_starts_ranks_over_the_c_interface() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/uct/exchange.c");
    let compiled = uct::compiled("mpicc", "libopenmpi-dev", Path::new(source), &[]);
    let Some(program) = compiled else { return };
    let Some(slurm) = Slurm::start() else { return };
    hca::library();
    let plugins = slurm.run("list", 2).output().unwrap();
    if ![plugins.stdout, plugins.stderr].iter().any(|text| text.windows(4).any(|at| at == b"pmix"))
    {
        return println!("skipped: Slurm has no plugin for PMIx");
    }
    let run = [env!("CARGO_BIN_EXE_barewire"), "uct", "run", "--"];
    let ranks = |around: bool| {
        let srun = slurm.run("pmix", 2);
        let mut command = if around { Command::new(run[0]) } else { slurm.run("pmix", 2) };
        if around {
            command.args(&run[1..]).arg(srun.get_program()).args(srun.get_args());
            command.envs(srun.get_envs().filter_map(|(name, value)| Some((name, value?))));
        } else {
            command.args(run).env("BAREWIRE_KEY", uct::KEY);
        }
        for (name, value) in [("pml", "ucx"), ("osc", "ucx")] {
            command.env(format!("OMPI_MCA_{name}"), value);
        }
        for name in ["tls", "devices"] {
            command.env(format!("OMPI_MCA_opal_common_ucx_{name}"), "any");
        }
        command.env("UCX_TLS", "tcp,self").env("UCX_LOG_LEVEL", "info");
        support::wait(command.arg(program.path()).arg("1"))
    };
    for around in [true, false] {
        let output = ranks(around);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && printed.contains("contents are right"), "{output:?}");
        assert_eq!(printed.matches("those of barewire").count(), 2, "{output:?}");
    }
}
