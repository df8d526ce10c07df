//! Jobs that real launchers start. A launcher that is not installed is reported and left out.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use barewire_bootstrap::{Runtime, all_gather, detect};

/// What a rank does; set for processes that a launcher starts.
const ROLE: &str = "BAREWIRE_BOOTSTRAP_TEST";
const DEADLINE: Duration = Duration::from_mins(2);
const FENCE: Duration = Duration::from_mins(1);

fn not_run(reason: &str) {
    let _ = writeln!(io::stderr(), "not run: {reason}");
}

fn is_installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths)
        .chain([PathBuf::from("/usr/sbin")])
        .any(|path| path.join(program).exists())
}

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
        other => panic!("{other:?}"),
    }
}

/// Starts this program's [`rank`] under a launcher, and waits for all of it.
fn launch(launcher: &mut Command, role: &str) -> Output {
    let child = launcher
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "rank", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        // Launchers that are started by another launcher's rank behave differently.
        .env_remove("PMI_FD")
        .env_remove("PMIX_NAMESPACE")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.unwrap();
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let read = |from: &mut dyn io::Read| {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).map(|_| bytes).unwrap_or_default()
    };
    thread::scope(|scope| {
        let stderr = scope.spawn(move || read(&mut err));
        let stdout = scope.spawn(move || read(&mut out));
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > DEADLINE {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{launcher:?} did not end");
            }
            thread::sleep(Duration::from_millis(10));
        };
        Output { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
    })
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
    if !is_installed("orterun") && !is_installed("prterun") {
        return not_run("Open MPI's mpirun is not installed (Debian: openmpi-bin)");
    }
    works(Runtime::Pmix, |size| {
        let mut command = Command::new(if is_installed("orterun") { "orterun" } else { "prterun" });
        command.args(["--allow-run-as-root", "--oversubscribe", "-np", &size.to_string()]);
        command
    });
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

/// Slurm with one node, this host.
struct Slurm {
    path: PathBuf,
    daemons: Vec<Child>,
}

impl Slurm {
    fn start() -> Self {
        let path = std::env::temp_dir().join(format!("barewire-slurm-{}", std::process::id()));
        for part in ["state", "spool"] {
            fs::create_dir_all(path.join(part)).unwrap();
        }
        let mut this = Self { path, daemons: Vec::new() };
        fs::write(this.path.join("slurm.conf"), this.configuration()).unwrap();
        this.daemon("slurmctld");
        this.daemon("slurmd");
        let start = Instant::now();
        loop {
            let state = this.command("sinfo").args(["-h", "-o", "%T"]).output().unwrap();
            if String::from_utf8_lossy(&state.stdout).trim() == "idle" {
                return this;
            }
            assert!(start.elapsed() < DEADLINE, "no idle node: {state:?}, {}", this.logs());
            thread::sleep(Duration::from_millis(200));
        }
    }

    fn configuration(&self) -> String {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let host = host.trim().split('.').next().unwrap();
        let path = self.path.display();
        let ports: Vec<u16> = (0..2)
            .map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap())
            .map(|listener| listener.local_addr().unwrap().port())
            .collect();
        format!(
            "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={}\nSlurmdPort={}\n\
             AuthType=auth/none\nCredType=cred/none\nProctrackType=proctrack/linuxproc\n\
             TaskPlugin=task/none\nSelectType=select/linear\nSwitchType=switch/none\nMpiDefault=none\n\
             SlurmUser=root\nSlurmdUser=root\nStateSaveLocation={path}/state\n\
             SlurmdSpoolDir={path}/spool\nSlurmctldPidFile={path}/slurmctld.pid\n\
             SlurmdPidFile={path}/slurmd.pid\nReturnToService=2\n\
             NodeName={host} NodeAddr=127.0.0.1 CPUs=2 SocketsPerBoard=1 CoresPerSocket=2 State=UNKNOWN\n\
             PartitionName=all Nodes={host} Default=YES OverSubscribe=YES:8 MaxTime=INFINITE State=UP\n",
            ports[0], ports[1]
        )
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.path.join("slurm.conf"));
        command
    }

    fn daemon(&mut self, program: &str) {
        let log = File::create(self.path.join(format!("{program}.log"))).unwrap();
        let mut command = self.command(&format!("/usr/sbin/{program}"));
        command.args(["-D", "-f"]).arg(self.path.join("slurm.conf")).stdin(Stdio::null());
        self.daemons.push(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
    }

    fn logs(&self) -> String {
        let log = |name: &str| tail(&self.path.join(name));
        format!("{}{}", log("slurmctld.log"), log("slurmd.log"))
    }
}

fn tail(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[test]
fn slurm() {
    if !is_installed("slurmctld") || !is_installed("srun") {
        return not_run("Slurm is not installed (Debian: slurm-wlm)");
    }
    if fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) != 0) {
        return not_run("only root can start Slurm's daemons");
    }
    let slurm = Slurm::start();
    for (plugin, runtime) in [("pmi2", Runtime::Pmi1), ("pmix", Runtime::Pmix)] {
        works(runtime, |size| {
            let mut command = slurm.command("srun");
            let (plugin, size) = (format!("--mpi={plugin}"), size.to_string());
            command.args([&plugin, "--overcommit", "--kill-on-bad-exit=1", "-n", &size]);
            command
        });
    }
}
