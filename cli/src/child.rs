//! Programs that this program starts.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

/// Makes the kernel send SIGTERM to the program when this process ends for any reason. Must be
/// called from the main thread, since the kernel observes the thread that starts the program.
pub(crate) fn end_with_parent(command: &mut Command) {
    signal_with_parent(command, libc::SIGTERM);
}

/// The same with another signal.
pub(crate) fn signal_with_parent(command: &mut Command, signal: libc::c_int) {
    let ask = move || {
        // SAFETY: these arguments contain no pointers.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: `ask` only calls prctl, which is allowed between fork and exec.
    unsafe { command.pre_exec(ask) };
}

/// The exit code that a shell would report: for a signal, 128 plus its number.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1) as u8
}
