//! A second process of this program, connected to the first by a pair of unnamed Unix sockets.

use crate::error::{Error, chain, local};
use crate::link::LONGEST;
use crate::peer::Work;
use barewire_tcp::frames::Stream;
use barewire_tcp::key::KEY_VARIABLE;
use barewire_tcp::time::after;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// Variables that contain secrets. They are sent over the connection, because the initial
/// environment of a process is readable in /proc/PID/environ.
const SECRETS: [&str; 2] = [KEY_VARIABLE, "BAREWIRE_HCA_KEY"];
/// Time limit for sending and receiving the secrets.
const HAND_OVER: Duration = Duration::from_secs(5);
/// Time for an orphan to detect its state and to report it.
const ORPHAN_SECONDS: u32 = 5;

/// The second process, as the first holds it. Dropping it ends the process.
#[derive(Debug)]
pub(crate) struct Second {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Second {
    /// Starts a second process; its standard input is the other end of the connection.
    pub(crate) fn start(work: Work) -> Result<(Self, Stream), Error> {
        let fail = |error: io::Error| local("cannot start a second process", &error);
        let (near, far) = UnixStream::pair().map_err(fail)?;
        let mut stream = Stream::unix(near, LONGEST).map_err(fail)?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("barewire")
            .arg("second")
            .arg(std::process::id().to_string())
            .arg(work.to_string())
            .stdin(OwnedFd::from(far))
            .stdout(Stdio::null());
        let mut secrets = BTreeMap::new();
        for name in SECRETS {
            command.env_remove(name);
            secrets.extend(std::env::var(name).ok().map(|value| (name, value)));
        }
        let child = command.spawn().map_err(fail)?;
        // The socket has room for it, so this does not wait for the child. The greeting detects a
        // child that has already ended.
        let text = serde_json::to_vec(&secrets).map_err(|error| Error::Local(error.to_string()))?;
        let _ = stream.send(&text, HAND_OVER);
        Ok((Self { child, ended: None }, stream))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process has ended.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let deadline = after(Instant::now(), timeout);
        while self.ended.is_none() {
            // An error of wait(2) means that there is no such child: it has ended.
            self.ended = self.child.try_wait().unwrap_or_else(|_| Some(ExitStatus::from_raw(0)));
            if self.ended.is_none() {
                if Instant::now() >= deadline {
                    return None;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.ended
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        if self.wait(Duration::ZERO).is_none() {
            // SIGKILL also ends a stopped process. Both calls fail only if the process has ended.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Called in the second process: returns the connection to the first, `parent`. From now on this
/// process ends with its parent.
pub(crate) fn attend(parent: u32) -> Result<Stream, Error> {
    let parent =
        i32::try_from(parent).map_err(|_| Error::Usage("the parent is no process id".into()))?;
    follow_parent(parent).map_err(|error| local("cannot watch the first process", &error))?;
    let foreign =
        |_| Error::Usage("'second' is started by barewire itself, as part of a pair".into());
    let input = io::stdin().as_fd().try_clone_to_owned();
    let input = input.and_then(|input| Stream::unix(UnixStream::from(input), LONGEST));
    let mut stream = input.map_err(foreign)?;
    take_secrets(&mut stream)?;
    Ok(stream)
}

/// Receives the secrets of the first process, and puts them into the environment.
fn take_secrets(stream: &mut Stream) -> Result<(), Error> {
    let wrong =
        |cause: &str| Error::Local(format!("lost the first process during the hand-over: {cause}"));
    let message = stream.receive(HAND_OVER).map_err(|error| wrong(&chain(&error)))?;
    let secrets: BTreeMap<String, String> =
        serde_json::from_slice(&message).map_err(|error| wrong(&error.to_string()))?;
    for (name, value) in secrets.iter().filter(|(name, _)| SECRETS.contains(&name.as_str())) {
        // SAFETY: no other thread runs yet: `main` calls this before anything else in a second
        // process.
        unsafe { std::env::set_var(name, value) };
    }
    Ok(())
}

static PARENT: AtomicI32 = AtomicI32::new(0);

/// Makes this process end after its parent, whatever its state.
///
/// Normally it detects the end of the control connection and reports it. If it is stopped, it
/// cannot: the kernel sends SIGCONT when the parent ends, which continues the process, and the
/// handler sets an alarm that ends it. (With SIGKILL instead, no process would report the reason.)
fn follow_parent(parent: i32) -> io::Result<()> {
    extern "C" fn on_continue(_: libc::c_int) {
        // Other processes may send SIGCONT as well, such as a shell with `fg`.
        // SAFETY: getppid and alarm are async-signal-safe: signal-safety(7).
        unsafe {
            if libc::getppid() != PARENT.load(Ordering::Relaxed) {
                libc::alarm(ORPHAN_SECONDS);
            }
        }
    }
    PARENT.store(parent, Ordering::Relaxed);
    let handler: extern "C" fn(libc::c_int) = on_continue;
    // SAFETY: sigaction(2) gets a fully initialised action whose handler calls only
    // async-signal-safe functions; these arguments of prctl(2) contain no pointers.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        if libc::sigaction(libc::SIGCONT, &raw const action, std::ptr::null_mut()) != 0
            || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGCONT as libc::c_ulong) != 0
        {
            return Err(io::Error::last_os_error());
        }
        // The parent may have ended before prctl took effect.
        if libc::getppid() != parent {
            libc::alarm(ORPHAN_SECONDS);
        }
    }
    Ok(())
}
