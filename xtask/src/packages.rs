//! System packages for the optional features and checks, and their installation on Debian.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::{self, Failure, Invocation, Output};
use crate::vm;

/// Whether missing packages may be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Install {
    Missing,
    Nothing,
}

/// A part of the checks that needs more than a Rust toolchain.
pub(crate) struct Part {
    name: &'static str,
    needs: &'static [Need],
}

/// A requirement: how to detect it, and the Debian package that provides it.
struct Need {
    what: &'static str,
    package: &'static str,
    present: Present,
}

/// How to detect a requirement.
enum Present {
    /// A program is on the path.
    Program(&'static str),
    /// There is a file or a folder. `ARCH` stands for the architecture.
    Path(&'static str),
    By(fn() -> bool),
}

impl Need {
    fn is_present(&self) -> bool {
        match self.present {
            Present::Program(name) => on_path(name),
            Present::Path(path) => {
                Path::new(&path.replace("ARCH", std::env::consts::ARCH)).exists()
            }
            Present::By(check) => check(),
        }
    }
}

const fn program(package: &'static str, what: &'static str, name: &'static str) -> Need {
    Need { what, package, present: Present::Program(name) }
}

const fn path(package: &'static str, what: &'static str, path: &'static str) -> Need {
    Need { what, package, present: Present::Path(path) }
}

const fn by(package: &'static str, what: &'static str, check: fn() -> bool) -> Need {
    Need { what, package, present: Present::By(check) }
}

const OPEN_MPI: Need = program("openmpi-bin", "Open MPI's mpirun", "orterun");

const MPIEXEC: Need = program("mpich", "Hydra's mpiexec", "mpiexec.hydra");

const MPICH_HEADER: Need =
    path("libmpich-dev", "MPICH's header", "/usr/include/ARCH-linux-gnu/mpich/mpi.h");

/// Of Debian's Python, for which mpi4py and numpy are installed.
const PIP: Need = path("python3-pip", "pip", "/usr/lib/python3/dist-packages/pip");

/// Programs that the tests run over the software HCA (`cli/tests/it/hca_run.rs`).
pub(crate) const PROGRAMS: Part = Part {
    name: "tests of other programs",
    needs: &[
        path("ibverbs-providers", "libmlx5", "/etc/libibverbs.d/mlx5.driver"),
        program("ibverbs-utils", "ibv_devinfo and the ping-pongs", "ibv_rc_pingpong"),
        program("perftest", "perftest", "ib_write_lat"),
        program("rdmacm-utils", "rping and other programs of librdmacm", "rping"),
        OPEN_MPI,
        program("libopenmpi-dev", "Open MPI's mpicc", "mpicc"),
        MPIEXEC,
        MPICH_HEADER,
        program("slurm-wlm", "Slurm", "srun"),
        path(
            "libpmix-dev",
            "the name by which Slurm opens the PMIx library",
            "/usr/lib/ARCH-linux-gnu/pmix2/lib/libpmix.so",
        ),
        program("ucx-utils", "ucx_info and ucx_perftest", "ucx_perftest"),
        path(
            "libucx-dev",
            "the headers of UCX, for a program of its protocols",
            "/usr/include/ucp/api/ucp.h",
        ),
        path("python3-pyverbs", "pyverbs", "/usr/lib/python3/dist-packages/pyverbs"),
        path(
            "python3-scapy",
            "scapy, by which the tests of pyverbs write commands",
            "/usr/lib/python3/dist-packages/scapy",
        ),
        path(
            "rdma-core",
            "the tests of pyverbs, in the documentation of rdma-core",
            "/usr/share/doc/rdma-core/tests",
        ),
        program("iproute2", "ip, which the tests of pyverbs call", "ip"),
    ],
};

/// The requirements of crates that link libibverbs.
pub(crate) const VERBS: Part = Part {
    name: "feature rdma-sys",
    needs: &[
        program("pkg-config", "pkg-config, to find the libraries", "pkg-config"),
        by("libibverbs-dev", "libibverbs and its headers", || pkg_config("libibverbs", "1.8.28")),
        by("librdmacm-dev", "librdmacm and its headers (rdma-sys links it always)", || {
            pkg_config("librdmacm", "1.2.28")
        }),
        by("libclang-dev", "libclang, with which rdma-sys reads the headers", has_libclang),
    ],
};

/// The program with which tests read captures.
pub(crate) const CAPTURES: Part =
    Part { name: "tests that read captures", needs: &[program("tshark", "tshark", "tshark")] };

/// The requirements of `cargo xtask vm`: its guest, and the programs that run in it.
pub(crate) const GUEST: Part = Part {
    name: "the guest with a kernel that knows RDMA",
    needs: &[
        program("qemu-system-x86", "qemu-system-x86_64, which emulates it", "qemu-system-x86_64"),
        by(
            "linux-image-amd64",
            "a kernel with rdma_rxe; it is not booted on this machine",
            vm::has_kernel,
        ),
        by("busybox-static", "a shell that needs no library", vm::has_busybox),
        path("ibverbs-providers", "the verbs driver of Soft-RoCE", "/etc/libibverbs.d/rxe.driver"),
        by("iproute2", "ip, tc and rdma", || {
            ["ip", "tc", "rdma"].into_iter().all(in_system_folders)
        }),
    ],
};

/// The compiler's linker, the C library and the emulator for aarch64.
pub(crate) const ARM: Part = Part {
    name: "tests on aarch64",
    needs: &[
        program("gcc-aarch64-linux-gnu", "the linker for aarch64", "aarch64-linux-gnu-gcc"),
        path(
            "libc6-dev-arm64-cross",
            "the C library of aarch64",
            "/usr/aarch64-linux-gnu/lib/libc.so",
        ),
        program(
            "qemu-user-static",
            "qemu-aarch64-static, which runs programs of aarch64",
            "qemu-aarch64-static",
        ),
    ],
};

/// The suites of other projects (`foreign/`).
pub(crate) const MPI4PY: Part = Part {
    name: "the tests of mpi4py",
    needs: &[
        OPEN_MPI,
        MPIEXEC,
        path("python3-mpi4py", "mpi4py over Open MPI", "/usr/lib/python3/dist-packages/mpi4py"),
        PIP,
    ],
};

const NUMPY: Need = path("python3-numpy", "numpy", "/usr/lib/python3/dist-packages/numpy");

pub(crate) const NIXL: Part = Part { name: "NIXL", needs: &[PIP, NUMPY] };

pub(crate) const MOONCAKE: Part = Part {
    name: "Mooncake",
    needs: &[PIP, NUMPY, path("ibverbs-providers", "libmlx5", "/etc/libibverbs.d/mlx5.driver")],
};

pub(crate) const UCXX: Part = Part { name: "UCXX", needs: &[PIP] };

pub(crate) const GTEST: Part = Part {
    name: "UCX's own tests",
    needs: &[
        program("autoconf", "autoconf", "autoconf"),
        program("automake", "automake", "automake"),
        program("libtool", "libtool", "libtoolize"),
        program("make", "make", "make"),
        program("g++", "a compiler of C++", "g++"),
        program("git", "git", "git"),
    ],
};

pub(crate) const VERBS_PROGRAMS: Part = Part {
    name: "programs of verbs",
    needs: &[
        program("perftest", "perftest", "ib_write_lat"),
        program("rdmacm-utils", "rping and other programs of librdmacm", "rping"),
        program("qperf", "qperf", "qperf"),
        program("fio", "fio", "fio"),
        program("libfabric-bin", "fi_pingpong", "fi_pingpong"),
    ],
};

pub(crate) const MPICH: Part = Part {
    name: "MPICH's test suite",
    needs: &[MPIEXEC, MPICH_HEADER, program("make", "make", "make")],
};

pub(crate) const HPCC: Part =
    Part { name: "the HPC Challenge", needs: &[OPEN_MPI, program("hpcc", "hpcc", "hpcc")] };

pub(crate) const LAMMPS: Part =
    Part { name: "LAMMPS", needs: &[OPEN_MPI, program("lammps", "lmp", "lmp")] };

pub(crate) const SCALAPACK: Part = Part {
    name: "ScaLAPACK's drivers",
    needs: &[
        OPEN_MPI,
        MPIEXEC,
        path("scalapack-mpi-test", "the drivers", "/usr/lib/ARCH-linux-gnu/scalapack"),
    ],
};

/// All parts of the quick tier.
pub(crate) const ALL: [&Part; 5] = [&VERBS, &CAPTURES, &PROGRAMS, &GUEST, &ARM];

/// Returns the parts that this machine lacks, each with the reason; empty if it has all of them.
pub(crate) fn left_out(parts: &[&Part]) -> Vec<String> {
    let reason = |part: &&Part| {
        let missing: Vec<String> =
            missing(part).map(|n| format!("{} (Debian: {})", n.what, n.package)).collect();
        (!missing.is_empty()).then(|| format!("{}: missing {}", part.name, missing.join(", ")))
    };
    parts.iter().filter_map(reason).collect()
}

/// Installs the missing packages if possible, and prints what it does and why. Each of the two
/// commands has the deadline.
pub(crate) fn install(
    install: Install,
    parts: &[&Part],
    deadline: Duration,
) -> Result<(), Failure> {
    let mut wanted: Vec<&str> = Vec::new();
    for part in parts {
        for need in missing(part) {
            println!("missing: {} (Debian package {}), for {}", need.what, need.package, part.name);
            if !wanted.contains(&need.package) {
                wanted.push(need.package);
            }
        }
    }
    if wanted.is_empty() {
        println!("nothing is missing");
        return Ok(());
    }
    if !debian(install, &wanted, deadline)? {
        return Ok(());
    }
    match left_out(parts) {
        left_out if left_out.is_empty() => Ok(()),
        left_out => Err(Failure::Found(format!("installed, and yet: {}", left_out.join("; ")))),
    }
}

/// Installs Debian packages if possible and returns true, or prints why it does not. Each of the
/// two commands has the deadline.
pub(crate) fn debian(
    install: Install,
    wanted: &[&str],
    deadline: Duration,
) -> Result<bool, Failure> {
    if install == Install::Nothing {
        println!("not installed, as asked");
        return Ok(false);
    }
    if !on_path("apt-get") {
        println!(
            "not installed: this machine has no apt-get; install the like of {}",
            wanted.join(" ")
        );
        return Ok(false);
    }
    if !is_root() {
        println!("not installed: only root can; as root: apt-get install {}", wanted.join(" "));
        return Ok(false);
    }
    let apt = |arguments: &[&str]| {
        let command = Invocation::new("apt-get", &["-q", "-y", "-o", "DPkg::Lock::Timeout=120"])
            .with(arguments)
            .environment("DEBIAN_FRONTEND", "noninteractive");
        println!("{command}");
        process::run(&command, deadline, Output::Inherit)
    };
    apt(&["update"])?;
    apt(&[&["install", "--no-install-recommends"], wanted].concat())?;
    Ok(true)
}

fn missing(part: &Part) -> impl Iterator<Item = &'static Need> {
    part.needs.iter().filter(|need| !need.is_present())
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns whether a program of this name is on the path.
pub(crate) fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Returns the same for programs that only root has on the path.
fn in_system_folders(program: &str) -> bool {
    on_path(program)
        || ["/sbin", "/usr/sbin"].iter().any(|folder| Path::new(folder).join(program).is_file())
}

/// The versions that rdma-sys 0.3 requires.
fn pkg_config(library: &str, version: &str) -> bool {
    let ask = Invocation::new("pkg-config", &["--atleast-version", version, library]);
    process::run(&ask, Duration::from_secs(30), Output::Discard).is_ok()
}

/// The folders in which clang-sys, a build dependency of rdma-sys, searches libclang on Linux.
fn has_libclang() -> bool {
    if let Some(path) = std::env::var_os("LIBCLANG_PATH") {
        let path = PathBuf::from(path);
        return path.is_file() || holds_libclang(&path);
    }
    let mut folders = vec![
        PathBuf::from("/usr/lib"),
        PathBuf::from("/usr/lib64"),
        PathBuf::from("/usr/local/lib"),
    ];
    for entry in std::fs::read_dir("/usr/lib").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("llvm") {
            folders.push(entry.path().join("lib"));
        } else if name.ends_with("-linux-gnu") {
            folders.push(entry.path());
        }
    }
    folders.iter().any(|folder| holds_libclang(folder))
}

fn holds_libclang(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    // Debian's runtime packages leave dangling links.
    entries
        .into_iter()
        .any(|entry| is_libclang(&entry.file_name().to_string_lossy()) && entry.path().exists())
}

/// `libclang.so`, `libclang.so.1`, `libclang-14.so.14.0.6`; not `libclang-cpp.so.14`.
fn is_libclang(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("libclang") else { return false };
    let rest = rest
        .strip_prefix('-')
        .map_or(rest, |rest| rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.'));
    rest.trim_start_matches('.').split('.').next() == Some("so")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_libclang_by_name() {
        for name in [
            "libclang.so",
            "libclang.so.1",
            "libclang-14.so",
            "libclang-14.so.14.0.6",
            "libclang-3.9.so.1",
        ] {
            assert!(is_libclang(name), "{name}");
        }
        for name in
            ["libclang-cpp.so.14", "libclang_rt.so", "libclang.a", "libclangBasic.a", "clang.so"]
        {
            assert!(!is_libclang(name), "{name}");
        }
    }
}
