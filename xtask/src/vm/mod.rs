//! `cargo xtask vm`: a guest with an RDMA-capable kernel, in plain emulation, in which programs of
//! this repository communicate with the kernel's Soft-RoCE. Its root is this machine's, read-only,
//! under a temporary overlay.

mod checks;
mod cpio;
mod kernel;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::packages::{self, GUEST, Install};
use crate::process::{self, Failure, Invocation, Output};
use crate::test::programs;
use checks::{Check, Programs, Verdict};
use cpio::Archive;
use kernel::Kernel;

/// Operations of each kind and direction in `cargo xtask test`.
const OPERATIONS: u64 = 300;
/// Overrides this number.
const OPERATIONS_VARIABLE: &str = "BAREWIRE_VM_OPERATIONS";

/// Deadline with [`OPERATIONS`].
const DEADLINE: Duration = Duration::from_mins(10);

const TRANSPORT: &str = "transport";
const CONFORMANCE: &str = "conformance";
const INTEROP: &str = "barewire-interop";
const BAREWIRE: &str = "barewire";

const EMULATOR: &str = "qemu-system-x86_64";
const BUSYBOX: &str = "/bin/busybox";
const INIT: &str = include_str!("init.sh");

/// Returns whether all requirements of the guest except the emulator are installed.
pub(crate) fn has_kernel() -> bool {
    kernel::newest().is_some() && Path::new(kernel::MODPROBE).exists()
}

/// Returns the same for the shell that starts it.
pub(crate) fn has_busybox() -> bool {
    Path::new(BUSYBOX).exists()
}

/// Installs what is missing, then runs [`check`], or the caller's command instead.
pub(crate) fn vm(install: Install, command: Option<&str>) -> ExitCode {
    process::watch_signals();
    let run = || {
        packages::install(install, &[&packages::VERBS, &GUEST], Duration::from_mins(10))?;
        match packages::left_out(&[&packages::VERBS, &GUEST]) {
            missing if !missing.is_empty() => Err(Failure::Found(missing.join("; "))),
            _ => match command {
                Some(command) => {
                    run(&checks::one(&format!("{command}\n")), Duration::from_hours(2))
                }
                None => check(&programs::Programs::build(&["--all-features"])?),
            },
        }
    };
    match run() {
        Ok(passed) => {
            println!("{passed} checks passed in the guest");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("\nxtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Boots the guest with programs of all features, and returns how many checks passed; fails unless all did.
pub(crate) fn check(built: &programs::Programs) -> Result<u64, Failure> {
    let operations = match std::env::var(OPERATIONS_VARIABLE) {
        Ok(text) => text.parse().map_err(|_| {
            Failure::Found(format!("{OPERATIONS_VARIABLE}='{text}' is no number of operations"))
        })?,
        Err(_) => OPERATIONS,
    };
    let deadline = DEADLINE * u32::try_from(operations.div_ceil(OPERATIONS)).unwrap_or(u32::MAX);
    run(&checks::all(&programs(built)?, operations), deadline)
}

/// Returns the programs that the checks run.
fn programs(built: &programs::Programs) -> Result<Programs, Failure> {
    let test = |folder, target| built.test(folder, target).map(|test| test.path.clone());
    Ok(Programs {
        interop: built.program(INTEROP)?.to_owned(),
        verbs: test("verbs", "it")?,
        barewire: built.program(BAREWIRE)?.to_owned(),
        transport: test("", TRANSPORT)?,
        conformance: test("", CONFORMANCE)?,
    })
}

fn run(checks: &[Check], deadline: Duration) -> Result<u64, Failure> {
    let kernel =
        kernel::newest().ok_or_else(|| Failure::Found("no kernel with Soft-RoCE".to_owned()))?;
    let script = checks::script(checks, process::repository());
    let initramfs = Initramfs::write(&initramfs(&kernel, &script)?)?;
    let mut verdict = Verdict::default();
    let mut read = |line: &str| verdict.read(line);
    let ended = process::run(&emulator(&kernel, &initramfs.0), deadline, Output::Watch(&mut read));
    match (ended, verdict.complaint(checks.len())) {
        (Ok(()), None) => Ok(verdict.passed),
        (Ok(()), Some(complaint)) => Err(Failure::Found(format!("in the guest: {complaint}"))),
        (Err(failure), _) => Err(failure),
    }
}

/// Plain emulation: with KVM the guest's firmware hangs on some machines.
fn emulator(kernel: &Kernel, initramfs: &Path) -> Invocation {
    Invocation::new(
        EMULATOR,
        &["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024"],
    )
    .with(&["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"])
    .with(&["-kernel", &kernel.image.to_string_lossy(), "-initrd", &initramfs.to_string_lossy()])
    .with(&["-append", "console=ttyS0 quiet panic=-1 oops=panic rdinit=/init mitigations=off"])
    .with(&[
        "-virtfs",
        "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
    ])
}

/// Returns the initramfs: modules, shell, init script and checks.
fn initramfs(kernel: &Kernel, script: &str) -> Result<Vec<u8>, Failure> {
    let read = |path: &Path| {
        fs::read(path)
            .map_err(|error| Failure::Found(format!("cannot read {}: {error}", path.display())))
    };
    let mut archive = Archive::default();
    for folder in ["bin", "dev", "host", "layer", "modules", "proc", "root", "sys"] {
        archive.directory(folder);
    }
    archive.program("bin/busybox", &read(Path::new(BUSYBOX))?);
    let mut order = Vec::new();
    for file in kernel.modules()? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        archive.file(&format!("modules/{name}"), &read(&file)?);
        order.extend([name.as_str(), "\n"].concat().into_bytes());
    }
    archive.file("modules/order", &order);
    archive.file("checks", script.as_bytes());
    archive.program("init", INIT.as_bytes());
    Ok(archive.finish())
}

/// The archive as a file, removed on drop.
struct Initramfs(PathBuf);

impl Initramfs {
    fn write(bytes: &[u8]) -> Result<Self, Failure> {
        let path = process::target().join(format!("vm-{}.cpio", std::process::id()));
        fs::write(&path, bytes)
            .map_err(|error| Failure::Found(format!("cannot write {}: {error}", path.display())))?;
        Ok(Self(path))
    }
}

impl Drop for Initramfs {
    fn drop(&mut self) {
        // A file of a few megabytes may remain.
        let _ = fs::remove_file(&self.0);
    }
}
