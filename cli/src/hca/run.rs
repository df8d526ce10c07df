//! Starts the program and waits for it.

use super::library;
use super::tree::Tree;
use crate::args::HcaRunArgs;
use crate::child::{end_with_parent, exit_code};
use crate::error::{Error, local};
use std::ffi::OsString;
use std::process::{Child, Command, ExitCode};
use std::sync::atomic::{AtomicI32, Ordering};

/// Runs the program with the library preloaded. Returns its exit code, or 128 plus the number of
/// the signal that ended it.
pub(super) fn run(args: &HcaRunArgs) -> Result<ExitCode, Error> {
    let library = library::find()?;
    let tree = Tree::new(args.devices, args.ports, args.link(), &args.required.0.partition_keys)
        .map_err(|error| local("cannot make the devices' part of /sys", &error))?;
    let mut preload = OsString::from(library);
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let (program, arguments) = args
        .program
        .split_first()
        .ok_or_else(|| Error::Usage("a program is missing".to_owned()))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LD_PRELOAD", preload)
        .env("SYSFS_PATH", tree.root())
        .env("BAREWIRE_HCA_DEVICES", args.devices.to_string())
        .env("BAREWIRE_HCA_PORTS", args.ports.to_string())
        .env("BAREWIRE_HCA_LINK", if args.ib { "ib" } else { "roce" })
        .env("BAREWIRE_HCA_REQUIRE", args.required.0.to_string())
        .env("BAREWIRE_HCA_DEVX", if args.no_devx { "no" } else { "yes" })
        // UCX 1.13 would otherwise patch mmap and bypass the library.
        .env("UCX_MEM_MMAP_HOOK_MODE", "none");
    if let Some(faults) = &args.faults {
        command.env("BAREWIRE_HCA_FAULTS", faults);
    }
    pass_signals();
    // Only this process removes the tree.
    end_with_parent(&mut command);
    let mut child = command.spawn().map_err(|error| {
        local(format_args!("cannot start {}", program.to_string_lossy()), &error)
    })?;
    CHILD.store(child.id() as i32, Ordering::SeqCst);
    let code = wait(&mut child);
    CHILD.store(0, Ordering::SeqCst);
    code
}

fn wait(child: &mut Child) -> Result<ExitCode, Error> {
    let status = child.wait().map_err(|error| local("cannot wait for the program", &error))?;
    Ok(ExitCode::from(exit_code(status)))
}

/// Process id of the program once it runs.
static CHILD: AtomicI32 = AtomicI32::new(0);

/// Forwards signals that end this process to the program, whose end then ends this process. A
/// terminal signals both.
fn pass_signals() {
    extern "C" fn pass(signal: libc::c_int) {
        let child = CHILD.load(Ordering::SeqCst);
        if child > 0 && signal != libc::SIGINT && signal != libc::SIGQUIT {
            // SAFETY: these arguments contain no pointers, and kill is async-signal-safe.
            unsafe { libc::kill(child, signal) };
        }
    }
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP] {
        let handler: extern "C" fn(libc::c_int) = pass;
        // SAFETY: the handler only calls kill and loads an atomic.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}
