//! Runs the `barewire` binary with deadlines.

#![allow(dead_code, reason = "each test binary uses some of it")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time limit of a machine under load for steps whose duration is not tested.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);
/// The guaranteed time within which an end ends after its peer.
pub(crate) const PROMISE: Duration = Duration::from_secs(10);

/// A running `barewire`. Dropping it kills it.
pub(crate) struct Barewire {
    child: Child,
    stdout: Text,
    stderr: Text,
}

/// The outcome of a run.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

struct Text {
    text: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Text {
    fn of(source: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let copy = Arc::clone(&text);
        let reader = thread::spawn(move || {
            let mut source = BufReader::new(source);
            let mut line = Vec::new();
            while matches!(source.read_until(b'\n', &mut line), Ok(count) if count > 0) {
                copy.lock().unwrap().push_str(&String::from_utf8_lossy(&line));
                line.clear();
            }
        });
        Self { text, reader: Some(reader) }
    }

    fn now(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    /// The whole output, once every process that could write has closed its end.
    fn all(&mut self, deadline: Instant, whose: &str) -> String {
        while !self.reader.as_ref().is_none_or(JoinHandle::is_finished) {
            assert!(
                Instant::now() < deadline,
                "{whose} stays open: a process is left over; so far: {}",
                self.now()
            );
            thread::sleep(Duration::from_millis(2));
        }
        self.now()
    }
}

/// Starts `barewire` with these arguments.
pub(crate) fn start(args: &[&str]) -> Barewire {
    start_with(args, &[])
}

/// Starts `barewire` with these arguments and environment variables.
pub(crate) fn start_with(args: &[&str], environment: &[(&str, &str)]) -> Barewire {
    let mut child = Command::new(env!("CARGO_BIN_EXE_barewire"))
        .args(args)
        // Control sockets are then abstract, see `control_name`.
        .env_remove("XDG_RUNTIME_DIR")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let stdout = Text::of(child.stdout.take().unwrap());
    let stderr = Text::of(child.stderr.take().unwrap());
    Barewire { child, stdout, stderr }
}

/// In the warning of `barewire perf` about debug builds.
pub(crate) const DEBUG_BUILD: &str = "this is a debug build";

/// Runs `barewire` to its end.
pub(crate) fn run(args: &[&str]) -> Ended {
    start(args).end(PATIENCE)
}

impl Barewire {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end of this process and of all processes that hold its output.
    pub(crate) fn end(mut self, timeout: Duration) -> Ended {
        let deadline = Instant::now() + timeout;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            let so_far = (self.stdout.now(), self.stderr.now());
            assert!(Instant::now() < deadline, "no end within {timeout:?}; so far: {so_far:?}");
            thread::sleep(Duration::from_millis(2));
        };
        let stdout = self.stdout.all(deadline, "standard output");
        let stderr = self.stderr.all(deadline, "standard error");
        // These tests run debug builds.
        let stderr = stderr.lines().filter(|line| !line.contains(DEBUG_BUILD));
        let stderr = stderr.flat_map(|line| [line, "\n"]).collect();
        Ended { status, stdout, stderr }
    }

    /// Returns `true` if the process has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for a line on standard output that contains `words` and returns it; `None` if the
    /// process ends first.
    pub(crate) fn line(&mut self, words: &str) -> Option<String> {
        self.line_of(|this| this.stdout.now(), words, PATIENCE)
    }

    /// As [`Self::line`], on standard error.
    pub(crate) fn error_line(&mut self, words: &str) -> Option<String> {
        self.line_of(|this| this.stderr.now(), words, PATIENCE)
    }

    /// The standard output so far.
    pub(crate) fn output(&self) -> String {
        self.stdout.now()
    }

    /// The standard error output so far.
    pub(crate) fn errors(&self) -> String {
        self.stderr.now()
    }

    /// Waits for a warning that contains `words`, and returns it.
    #[track_caller]
    pub(crate) fn warning(&mut self, words: &str, timeout: Duration) -> String {
        let line = self.line_of(|this| this.stderr.now(), words, timeout);
        let line =
            line.unwrap_or_else(|| panic!("it ended without '{words}': {}", self.stderr.now()));
        assert!(line.starts_with("barewire: warning: "), "{line}");
        line
    }

    fn line_of(
        &mut self,
        text: impl Fn(&Self) -> String,
        words: &str,
        timeout: Duration,
    ) -> Option<String> {
        let deadline = Instant::now() + timeout;
        loop {
            let ended = self.has_ended();
            let text = text(self);
            if let Some(line) = text.lines().find(|line| line.contains(words)) {
                return Some(line.to_owned());
            }
            if ended {
                return None;
            }
            assert!(Instant::now() < deadline, "no line with '{words}' in: {text}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The port that a server reports.
    pub(crate) fn port(&mut self) -> String {
        let line = self.line("waiting for ").expect("the server listens");
        line.rsplit(':').next().unwrap().trim().to_owned()
    }

    /// The second process that this one started; `None` if this one ends first.
    pub(crate) fn second(&mut self) -> Option<u32> {
        let deadline = Instant::now() + PATIENCE;
        while !self.has_ended() {
            if let Some(&pid) = children(self.pid()).first() {
                return Some(pid);
            }
            assert!(Instant::now() < deadline, "no second process");
            thread::sleep(Duration::from_millis(1));
        }
        None
    }
}

impl Drop for Barewire {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Ended {
    /// Asserts success, and that standard error is empty.
    #[track_caller]
    pub(crate) fn succeeded(&self) {
        assert!(self.status.success() && self.stderr.is_empty(), "{self:#?}");
    }

    /// Asserts a failure that is reported in one line, and returns the line.
    #[track_caller]
    pub(crate) fn failed(&self) -> &str {
        assert!(self.status.code().is_some_and(|code| code == 1 || code == 2), "{self:#?}");
        one_line(&self.stderr)
    }
}

/// Asserts that this is one error line, and returns it.
#[track_caller]
pub(crate) fn one_line(stderr: &str) -> &str {
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines.len(), 1, "not one line: {stderr}");
    let line = lines[0].strip_prefix("barewire: error: ");
    let line = line.unwrap_or_else(|| panic!("not an error line: {stderr}"));
    assert!(!line.contains("panicked") && !line.contains("RUST_BACKTRACE"), "{line}");
    line
}

/// The processes whose parent is `parent`.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let Some(pid) = pid else { continue };
        if stat(pid).is_some_and(|(_, its_parent)| its_parent == parent) {
            found.push(pid);
        }
    }
    found
}

/// A process's state letter and parent (proc_pid_stat(5)).
fn stat(pid: u32) -> Option<(char, u32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Waits until a process that is no child of this one has ended.
pub(crate) fn gone_within(pid: u32, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        // A zombie has ended, but its parent has not waited for it.
        if stat(pid).is_none_or(|(state, _)| state == 'Z' || state == 'X') {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal.
pub(crate) fn signal(pid: u32, signal: i32) {
    // SAFETY: these arguments contain no pointers.
    unsafe { libc::kill(pid as i32, signal) };
}

/// A file of this many bytes without repeated sections, removed on drop.
pub(crate) struct TestFile(PathBuf);

impl TestFile {
    pub(crate) fn new(name: &str, length: usize) -> Self {
        // Tests of one process may use the same name.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let file = format!("barewire-test-{}-{number}-{name}", std::process::id());
        let path = std::env::temp_dir().join(file);
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(length)
        .collect();
        fs::write(&path, bytes).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A random number below `limit`, different in each run.
pub(crate) fn random_below(limit: u64) -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() % limit.max(1)
}

/// The name at which a server without a key listens if there is no runtime directory.
pub(crate) fn control_name(port: &str) -> SocketAddr {
    // SAFETY: the function has no arguments and cannot fail.
    let user = unsafe { libc::geteuid() };
    SocketAddr::from_abstract_name(format!("barewire-control-{user}-{port}")).unwrap()
}

/// Connects to the control socket of the server.
pub(crate) fn control(port: &str) -> UnixStream {
    UnixStream::connect_addr(&control_name(port)).unwrap()
}

/// Runs `work` in a thread of user 65534, which requires root. Otherwise prints a notice and
/// returns `None`.
pub(crate) fn as_nobody<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<JoinHandle<T>> {
    const NOBODY: libc::c_long = 65_534;
    // SAFETY: the function has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root can become another user");
        return None;
    }
    Some(thread::spawn(move || {
        // SAFETY: these arguments contain no pointers. The raw system call, without libc, changes
        // the user of this thread only: setresuid(2), C library/kernel differences.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
        assert_eq!(changed, 0);
        work()
    }))
}
