//! Runs a program with a library in front of those that it links to.

mod library;
mod loads;

use crate::child::{end_with_parent, exit_code};
use crate::error::{Error, local};
use crate::output::{error_line, warning_line};
pub(crate) use library::Library;
use std::ffi::OsString;
use std::io;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicI32, Ordering};

/// Returns the command of a program and its arguments with the library preloaded, before others
/// that are.
pub(crate) fn command(library: &Library, program: &[OsString]) -> Result<Command, Error> {
    let mut preload = OsString::from(library.find()?);
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let (program, arguments) =
        program.split_first().ok_or_else(|| Error::Usage("a program is missing".to_owned()))?;
    if let Some(why) = loads::nothing(program) {
        let program = program.to_string_lossy();
        warning_line(&format!("{program} {why}: it does not load {}", library.file));
    }
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", preload);
    Ok(command)
}

/// Runs the program. Returns its exit code, or 128 plus the number of the signal that ended it.
pub(crate) fn run(mut command: Command) -> Result<ExitCode, Error> {
    pass_signals();
    end_with_parent(&mut command);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let what = format!("cannot start {}", command.get_program().to_string_lossy());
            error_line(&local(what, &error).to_string());
            // As shells do: not found, or not executable.
            let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
            return Ok(ExitCode::from(code));
        }
    };
    CHILD.store(child.id() as i32, Ordering::SeqCst);
    let status = child.wait().map_err(|error| local("cannot wait for the program", &error));
    CHILD.store(0, Ordering::SeqCst);
    Ok(ExitCode::from(exit_code(status?)))
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
