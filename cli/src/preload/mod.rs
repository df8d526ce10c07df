//! Runs a program with a library in front of those that it links to.

mod library;
mod loads;

use crate::child::{exit_code, signal_with_parent};
use crate::error::{Error, local};
use crate::output::{error_line, warning_line};
pub(crate) use library::Library;
use std::ffi::{CStr, CString, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Returns the command of a program and its arguments with the library preloaded, before others
/// that are.
pub(crate) fn command(library: &Library, program: &[OsString]) -> Result<Command, Error> {
    let path = library.find()?;
    check(&path)?;
    let mut preload = OsString::from(path);
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

/// Loads the library into this process. The dynamic loader only warns of a library that it cannot
/// preload, and the program would run without it.
fn check(path: &Path) -> Result<(), Error> {
    let refused = |why: &str| Error::Local(format!("the program cannot load the library: {why}"));
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| refused("NUL in its path"))?;
    // SAFETY: the name ends with a zero. The library stays loaded; when it is, it only registers a
    // handler for fork, and nothing of this process is bound to it.
    let loaded = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !loaded.is_null() {
        return Ok(());
    }
    // SAFETY: a call of this thread has failed, and the text is valid until its next one.
    let why = unsafe { CStr::from_ptr(libc::dlerror()) };
    Err(refused(&why.to_string_lossy()))
}

/// Reports why a program cannot be started. Returns the exit code of shells: not found, or not
/// executable.
fn not_started(command: &Command, error: &io::Error) -> ExitCode {
    let what = format!("cannot start {}", command.get_program().to_string_lossy());
    error_line(&local(what, error).to_string());
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

/// Runs the program in place of this process. Returns if it cannot be started.
pub(crate) fn replace(mut command: Command) -> ExitCode {
    let error = command.exec();
    not_started(&command, &error)
}

/// Runs the program. Returns its exit code, or 128 plus the number of the signal that ended it. If
/// this process is killed, so is the program.
pub(crate) fn run(mut command: Command) -> Result<ExitCode, Error> {
    pass_signals();
    signal_with_parent(&mut command, libc::SIGKILL);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(not_started(&command, &error)),
    };
    CHILD.store(child.id() as i32, Ordering::SeqCst);
    pass_pending();
    let status = child.wait().map_err(|error| local("cannot wait for the program", &error));
    CHILD.store(0, Ordering::SeqCst);
    Ok(ExitCode::from(exit_code(status?)))
}

/// Process id of the program once it runs.
static CHILD: AtomicI32 = AtomicI32::new(0);
/// Signals that the program has not got yet, as bits.
static PENDING: AtomicU32 = AtomicU32::new(0);

/// Forwards signals that end this process to the program, whose end then ends this process. Those
/// that this process ignores, as under nohup, the program ignores as well.
fn pass_signals() {
    let passed = [libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGALRM];
    for signal in passed.into_iter().chain([libc::SIGINT, libc::SIGQUIT]) {
        let handler: extern "C" fn(libc::c_int) = pass;
        // SAFETY: the handler only calls kill and uses atomics.
        unsafe {
            if libc::signal(signal, handler as libc::sighandler_t) == libc::SIG_IGN {
                libc::signal(signal, libc::SIG_IGN);
            }
        }
    }
}

extern "C" fn pass(signal: libc::c_int) {
    let child = CHILD.load(Ordering::SeqCst);
    // A terminal signals the program, too.
    if child == 0 || (signal != libc::SIGINT && signal != libc::SIGQUIT) {
        PENDING.fetch_or(1 << signal, Ordering::SeqCst);
        pass_pending();
    }
}

/// Sends the program what it has not got yet. A handler of this thread may interrupt this.
fn pass_pending() {
    let child = CHILD.load(Ordering::SeqCst);
    if child == 0 {
        return;
    }
    let pending = PENDING.swap(0, Ordering::SeqCst);
    for signal in (1..u32::BITS as i32).filter(|signal| pending & 1 << signal != 0) {
        // SAFETY: these arguments contain no pointers, and kill is async-signal-safe.
        unsafe { libc::kill(child, signal) };
    }
}
