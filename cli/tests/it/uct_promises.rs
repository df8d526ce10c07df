//! What libucp and MPI expect of transports beyond their data: `barewire uct run -- PROGRAM`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::hca::{alone_by, installed};
use crate::support::TestFile;
use crate::uct::{self, UCT};

/// Compiles a program of `uct/`: see [`uct::compiled`].
fn compiled(compiler: &str, package: &str, source: &str, libraries: &[&str]) -> Option<TestFile> {
    let source = format!("{}/tests/it/uct/{source}.c", env!("CARGO_MANIFEST_DIR"));
    uct::compiled(compiler, package, Path::new(&source), libraries)
}

/// Runs `promises.c` over these transports, by a command of `barewire`.
fn promises(command: &[&str], transports: &[&str], arguments: &[&str]) {
    let Some(program) = compiled("cc", "gcc", "promises", &["-lucp", "-lucs"]) else { return };
    for transports in transports {
        let selected = format!("UCX_TLS={transports}");
        let words = [&["env", &selected, program.path()], arguments].concat();
        let printed = alone_by(command, &[], &words);
        assert!(printed.contains("promises are kept"), "{transports}: {printed}");
    }
}

/// Less than the timeout of a connection, and enough for a job on a busy machine.
const SOON: Duration = Duration::from_secs(20);

const DEFAULT: &str = "self,shm,cma,tcp";

#[test]
fn a_flush_of_the_worker_waits_for_resources() {
    promises(UCT, &["tcp", "rc_mlx5", "dc_mlx5", DEFAULT], &["flush"]);
}

/// Flush and close end although the peer makes no progress any more.
#[test]
fn an_endpoint_is_flushed_and_closed_without_progress_of_the_peer() {
    promises(UCT, &["tcp", "rc_mlx5", "shm", DEFAULT, "all"], &["silent"]);
}

#[test]
fn a_put_behind_a_fence_does_not_change_an_earlier_get() {
    for size in ["8", "8192", "8193", "100000"] {
        promises(UCT, &["tcp", "rc_mlx5", "dc_mlx5", DEFAULT], &["order", size]);
    }
}

/// The fence of UCX's own transports: it sets none in the queue pair, but relies on the order in
/// which adapters execute requests.
#[test]
fn the_fence_of_ucx_works_on_the_device() {
    for size in ["8", "4096", "100000"] {
        promises(&["hca", "run"], &["rc_x", "rc_v", "dc_x"], &["order", size]);
    }
}

/// Runs two ranks of `sender.c`.
fn ranks(compiler: (&str, &str), launcher: &[&str], transports: &str, command: &[&str]) {
    if !installed(launcher[0], compiler.1) || !installed(compiler.0, compiler.1) {
        return;
    }
    // Debian's package of MPICH has the compiler, and another one its header.
    let mut header = Command::new(compiler.0);
    header.args(["-E", "-include", "mpi.h", "-xc", "/dev/null"]);
    if !header.output().unwrap().status.success() {
        println!("skipped: no mpi.h for {} (Debian: {})", compiler.0, compiler.1);
        return;
    }
    let Some(program) = compiled(compiler.0, compiler.1, "sender", &[]) else { return };
    let received = format!("{}-{}-received", program.path(), transports.replace(',', "-"));
    let selected = format!("UCX_TLS={transports}");
    let environment = ["env", &selected, "MPIR_CVAR_NOLOCAL=1"];
    let words = [&environment[..], launcher, &[program.path(), &received]].concat();
    let printed = alone_by(command, &[], &words);
    let _ = fs::remove_file(&received);
    assert!(printed.contains("promises are kept"), "{transports}: {printed}");
}

const OPEN_MPI: [&str; 17] = [
    "mpirun.openmpi",
    "--allow-run-as-root",
    "--oversubscribe",
    "--mca",
    "pml",
    "ucx",
    "--mca",
    "osc",
    "ucx",
    "--mca",
    "opal_common_ucx_tls",
    "any",
    "--mca",
    "opal_common_ucx_devices",
    "any",
    "-n",
    "2",
];

#[test]
fn a_message_of_open_mpi_needs_no_further_call_of_its_sender() {
    for transports in ["tcp", "rc_mlx5", DEFAULT] {
        ranks(("mpicc.openmpi", "libopenmpi-dev"), &OPEN_MPI, transports, UCT);
    }
}

/// Open MPI's osc posts a get and, without a fence, a put of the same memory.
#[test]
fn open_mpi_gets_old_values_over_ucx_on_the_device() {
    for transports in ["rc_x,self", "dc_x,self"] {
        ranks(("mpicc.openmpi", "libopenmpi-dev"), &OPEN_MPI, transports, &["hca", "run"]);
    }
}

#[test]
fn a_message_of_mpich_needs_no_further_call_of_its_sender() {
    let launcher = ["mpiexec.mpich", "-n", "2"];
    for transports in ["tcp", DEFAULT] {
        ranks(("mpicc.mpich", "libmpich-dev"), &launcher, transports, UCT);
    }
}

#[test]
fn processes_that_open_mpi_starts_exchange_messages() {
    let Some(program) = compiled("mpicc.openmpi", "libopenmpi-dev", "spawn", &[]) else { return };
    for transports in ["tcp,self", "rc_mlx5,self", DEFAULT] {
        let selected = format!("UCX_TLS={transports}");
        let words = [&["env", &selected][..], &OPEN_MPI, &[program.path()]].concat();
        let printed = alone_by(UCT, &[], &words);
        assert!(printed.contains("promises are kept"), "{transports}: {printed}");
    }
}

/// A job that waits for a peer that makes no progress ends after 30 s.
#[test]
fn each_of_fifty_jobs_of_mpich_ends_soon() {
    if !installed("mpiexec.mpich", "mpich") {
        return;
    }
    let Some(program) = compiled("mpicc.mpich", "libmpich-dev", "finish", &[]) else { return };
    let words = ["env", "MPIR_CVAR_NOLOCAL=1", "mpiexec.mpich", "-n", "2", program.path()];
    for job in 0..50 {
        let started = Instant::now();
        alone_by(UCT, &[], &words);
        assert!(started.elapsed() < SOON, "job {job} took {:?}", started.elapsed());
    }
}

/// The libraries of UCX under other names, as those of Python packages have.
struct Renamed(PathBuf);

impl Renamed {
    fn new() -> Option<Self> {
        let folder = Path::new("/usr/lib/x86_64-linux-gnu");
        let own = std::env::temp_dir().join(format!("barewire-renamed-{}", std::process::id()));
        fs::create_dir_all(&own).unwrap();
        let this = Self(own);
        for name in ["libucp", "libucs", "libuct", "libucm"] {
            let file = format!("{name}.so.0");
            let Ok(mut bytes) = fs::read(folder.join(&file)) else {
                println!("skipped: no {file} (Debian: libucx0)");
                return None;
            };
            // Names of the same length, also where the libraries name each other.
            for at in 0..bytes.len() - 11 {
                let found = &bytes[at..at + 11];
                if found.starts_with(b"libuc") && found.ends_with(b".so.0") {
                    bytes[at + 3] = b'x';
                }
            }
            fs::write(this.0.join(file.replace("libuc", "libxc")), bytes).unwrap();
        }
        Some(this)
    }
}

impl Drop for Renamed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn libucs_is_found_under_another_name() {
    let Some(renamed) = Renamed::new() else { return };
    let folder = renamed.0.to_str().unwrap();
    let (search, link) = (format!("-L{folder}"), format!("-Wl,-rpath-link,{folder}"));
    let libraries = [&search, &link, "-l:libxcp.so.0", "-l:libxcs.so.0"];
    let Some(program) = compiled("cc", "gcc", "promises", &libraries) else { return };
    let loaded = TestFile::new("renamed-loaded", 0);
    // The second argument has the dynamic loader report what it loads.
    let report = format!("LD_DEBUG_OUTPUT={}", loaded.path());
    let libraries = format!("LD_LIBRARY_PATH={folder}");
    let environment = ["env", "UCX_TLS=shm,self", "LD_DEBUG=files", &report, &libraries];
    let words = [&environment[..], &[program.path(), "order", "100"]].concat();
    let printed = alone_by(UCT, &[], &words);
    assert!(printed.contains("promises are kept"), "{printed}");
    let reports = fs::read_dir(std::env::temp_dir()).unwrap().flatten().filter(|entry| {
        entry.path().to_str().is_some_and(|path| path.starts_with(&format!("{}.", loaded.path())))
    });
    let mut count = 0;
    for entry in reports {
        let text = fs::read_to_string(entry.path()).unwrap();
        fs::remove_file(entry.path()).unwrap();
        count += 1;
        assert!(!text.contains("file=libucs.so.0"), "another libucs is loaded");
    }
    assert!(count > 0, "the loader reports nothing");
}
