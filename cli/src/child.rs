//! Programs that this one starts.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

/// Has the kernel send SIGTERM to the program when this process ends, however it ends. To be called
/// from the main thread, as the kernel watches the thread that starts the program.
pub(crate) fn end_with_parent(command: &mut Command) {
    fn ask() -> io::Result<()> {
        // SAFETY: no pointers.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
    // SAFETY: the call is one that a child between fork and exec may make.
    unsafe { command.pre_exec(ask) };
}

/// The exit code that a shell would report: 128 and its number for a signal.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1) as u8
}
