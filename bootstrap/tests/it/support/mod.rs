//! Real launchers, for tests.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::port::free_port;

const DEADLINE: Duration = Duration::from_mins(2);
/// Seconds that a launcher may run after all of its processes have ended.
const GRACE: u32 = 10;

pub(crate) fn not_run(reason: &str) {
    let _ = writeln!(io::stderr(), "not run: {reason}");
}

pub(crate) fn is_installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths)
        .chain([PathBuf::from("/usr/sbin")])
        .any(|path| path.join(program).exists())
}

/// Returns whether a process has children, and all of them have ended without being waited for.
fn children_have_ended(process: u32) -> bool {
    let mut states = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // Behind the name in parentheses, which may contain anything: the state and the parent.
        let mut words = stat.rsplit_once(')')?.1.split_whitespace();
        let state = words.next()?.to_owned();
        (words.next()?.parse() == Ok(process)).then_some(state)
    });
    states.next().is_some_and(|state| state == "Z") && states.all(|state| state == "Z")
}

/// Starts a launcher, and waits for all of its job.
///
/// A launcher that does not end after its processes is killed. After an abort during a fence,
/// `orterun` of Open MPI 4.1.4 sometimes waits for ever, or crashes: the thread of libpmix 4.2.2,
/// for which `PMIx_server_finalize` waits, locks a mutex in memory that was freed. A program of MPI
/// whose ranks call `MPI_Abort` and `MPI_Finalize` shows the same, once in about 30 runs on a busy
/// machine.
pub(crate) fn wait(launcher: &mut Command) -> Output {
    let child = launcher
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
        let (mut checked, mut alone) = (start, 0);
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if checked.elapsed() > Duration::from_secs(1) {
                checked = Instant::now();
                alone = if children_have_ended(child.id()) { alone + 1 } else { 0 };
            }
            if alone > GRACE {
                not_run("the end of the launcher: it was killed after its processes had ended");
                child.kill().unwrap();
                break child.wait().unwrap();
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

/// Open MPI's `mpirun` for so many ranks. `None` if it is not installed, with the reason on
/// standard error.
pub(crate) fn open_mpi() -> Option<impl Fn(u32) -> Command> {
    let Some(program) = ["orterun", "prterun"].into_iter().find(|name| is_installed(name)) else {
        not_run("Open MPI's mpirun is not installed (Debian: openmpi-bin)");
        return None;
    };
    Some(move |size: u32| {
        let mut command = Command::new(program);
        command.args(["--allow-run-as-root", "--oversubscribe", "-np", &size.to_string()]);
        command
    })
}

/// Slurm with one node, this host.
pub(crate) struct Slurm {
    path: PathBuf,
    daemons: Vec<Child>,
    /// The daemons of a host end those that were started before.
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Slurm {
    /// `None` if it cannot run here, with the reason on standard error.
    pub(crate) fn start() -> Option<Self> {
        if !is_installed("slurmctld") || !is_installed("srun") {
            not_run("Slurm is not installed (Debian: slurm-wlm)");
            return None;
        }
        let user = fs::metadata("/proc/self").map(|own| std::os::unix::fs::MetadataExt::uid(&own));
        if user.is_ok_and(|user| user != 0) {
            not_run("only root can start Slurm's daemons");
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let path = std::env::temp_dir().join(format!("barewire-slurm-{}", std::process::id()));
        for part in ["state", "spool"] {
            fs::create_dir_all(path.join(part)).unwrap();
        }
        let mut this = Self { path, daemons: Vec::new(), _alone: alone };
        fs::write(this.path.join("slurm.conf"), this.configuration()).unwrap();
        this.daemon("slurmctld");
        this.daemon("slurmd");
        let start = Instant::now();
        loop {
            let state = this.command("sinfo").args(["-h", "-o", "%T"]).output().unwrap();
            if String::from_utf8_lossy(&state.stdout).trim() == "idle" {
                return Some(this);
            }
            assert!(start.elapsed() < DEADLINE, "no idle node: {state:?}, {}", this.logs());
            thread::sleep(Duration::from_millis(200));
        }
    }

    fn configuration(&self) -> String {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let host = host.trim().split('.').next().unwrap();
        let path = self.path.display();
        let ports = [free_port(), free_port()];
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

    /// `srun` of so many ranks with a plugin of PMI.
    pub(crate) fn run(&self, plugin: &str, size: u32) -> Command {
        let mut command = self.command("srun");
        let (plugin, size) = (format!("--mpi={plugin}"), size.to_string());
        command.args([&plugin, "--overcommit", "--kill-on-bad-exit=1", "-n", &size]);
        command
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
