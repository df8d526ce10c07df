//! One child process at a time: in a process group of its own, with a deadline, ended when we are.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long a group may take to end after SIGTERM. nextest gives its tests ten seconds.
const GRACE: Duration = Duration::from_secs(15);
/// How long output is waited for once the child has ended: a leaked grandchild may hold the pipe open.
const DRAIN: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(20);

/// The last signal that asked this program to end; 0 for none.
static ASKED_TO_END: AtomicI32 = AtomicI32::new(0);

extern "C" fn note_signal(signal: libc::c_int) {
    ASKED_TO_END.store(signal, Ordering::Relaxed);
}

/// Makes Ctrl-C, SIGTERM and SIGHUP end the running child first: it is in a group of its own and
/// would not hear of them.
pub(crate) fn watch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler is an `extern "C"` function that only stores to an atomic, which is
        // async-signal-safe, and it lives as long as the program.
        unsafe { libc::signal(signal, note_signal as *const () as libc::sighandler_t) };
    }
}

/// A program with its arguments and the environment it gets on top of ours.
#[derive(Clone, Debug)]
pub(crate) struct Invocation {
    program: String,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

impl Invocation {
    pub(crate) fn new(program: &str, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(ToString::to_string).collect();
        Self { program: program.to_owned(), arguments, environment: Vec::new() }
    }

    pub(crate) fn cargo(arguments: &[&str]) -> Self {
        Self::new("cargo", arguments)
    }

    pub(crate) fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(ToString::to_string));
        self
    }

    pub(crate) fn environment(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    fn command(&self) -> Command {
        // The cargo that runs us is the one that the toolchain file chose.
        let program = match (self.program.as_str(), std::env::var_os("CARGO")) {
            ("cargo", Some(cargo)) => PathBuf::from(cargo),
            (program, _) => PathBuf::from(program),
        };
        let mut command = Command::new(program);
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(repository())
            .stdin(Stdio::null())
            .process_group(0);
        command
    }
}

/// As a person would type it.
impl fmt::Display for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            write!(f, "{name}={} ", quoted(value))?;
        }
        write!(f, "{}", quoted(&self.program))?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {}", quoted(argument)))
    }
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The root of the repository.
pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Why a child did not do what it was started for.
#[derive(Debug)]
pub(crate) enum Failure {
    Start {
        program: String,
        cause: io::Error,
    },
    Ended(ExitStatus),
    Deadline(Duration),
    Interrupted(i32),
    /// The child did its work, but what it found is wrong.
    Found(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start { program, cause } => write!(f, "cannot start {program}: {cause}"),
            Self::Ended(status) => match status.signal() {
                Some(signal) => write!(f, "was ended by signal {signal}"),
                None => write!(f, "{status}"),
            },
            Self::Deadline(limit) => write!(f, "did not end within {} s and was stopped", limit.as_secs()),
            Self::Interrupted(signal) => write!(f, "interrupted by signal {signal}"),
            Self::Found(what) => f.write_str(what),
        }
    }
}

/// What becomes of the child's output.
pub(crate) enum Output<'a> {
    /// It goes where ours goes.
    Inherit,
    /// It goes where ours goes, and each line is shown to the function.
    Watch(&'a mut dyn FnMut(&str)),
    /// Standard output is collected and not shown; standard error goes where ours goes.
    Collect(&'a mut String),
    /// Nothing is shown.
    Discard,
}

/// Runs to the end, or to the deadline, when the child's whole process group is stopped.
pub(crate) fn run(invocation: &Invocation, deadline: Duration, output: Output<'_>) -> Result<(), Failure> {
    let mut command = invocation.command();
    match output {
        Output::Inherit => {}
        Output::Watch(_) => {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        Output::Collect(_) => {
            command.stdout(Stdio::piped());
        }
        Output::Discard => {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
    }
    let started = Instant::now();
    let mut child =
        command.spawn().map_err(|cause| Failure::Start { program: invocation.program.clone(), cause })?;
    let (sender, lines) = channel();
    let shown = matches!(output, Output::Watch(_));
    if let Some(stdout) = child.stdout.take() {
        forward(stdout, shown.then(io::stdout), sender.clone());
    }
    if let Some(stderr) = child.stderr.take() {
        forward(stderr, shown.then(io::stderr), sender.clone());
    }
    drop(sender);

    let mut take: Box<dyn FnMut(&str)> = match output {
        Output::Watch(see) => Box::new(see),
        Output::Collect(text) => Box::new(|line| text.push_str(line)),
        Output::Inherit | Output::Discard => Box::new(|_| {}),
    };
    let status = loop {
        if !drain(&lines, TICK, &mut take) {
            thread::sleep(TICK);
        }
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => {}
            Err(cause) => return Err(Failure::Start { program: invocation.program.clone(), cause }),
        }
        let signal = ASKED_TO_END.load(Ordering::Relaxed);
        if signal != 0 {
            stop(&mut child);
            return Err(Failure::Interrupted(signal));
        }
        if started.elapsed() > deadline {
            stop(&mut child);
            return Err(Failure::Deadline(deadline));
        }
    };
    drain(&lines, DRAIN, &mut take);
    if status.success() { Ok(()) } else { Err(Failure::Ended(status)) }
}

/// Takes lines until `patience` is over or every writer has closed its end; false for the latter.
fn drain(lines: &Receiver<String>, patience: Duration, take: &mut dyn FnMut(&str)) -> bool {
    let until = Instant::now() + patience;
    loop {
        match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => take(&line),
            Err(RecvTimeoutError::Timeout) => return true,
            Err(RecvTimeoutError::Disconnected) => return false,
        }
    }
}

/// Copies lines to `shown` and sends them on, in a thread that ends with the pipe.
fn forward(from: impl Read + Send + 'static, shown: Option<impl Write + Send + 'static>, to: Sender<String>) {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut shown = shown;
        let mut line = Vec::new();
        while matches!(from.read_until(b'\n', &mut line), Ok(1..)) {
            if let Some(out) = &mut shown {
                // A reader of ours that has gone away must not fail the run.
                let _ = out.write_all(&line).and_then(|()| out.flush());
            }
            if to.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
}

/// Ends the child's process group: SIGTERM, so that a test runner ends its tests (they have groups of
/// their own), then SIGKILL.
fn stop(child: &mut Child) {
    signal_group(child, libc::SIGTERM);
    let asked = Instant::now();
    while asked.elapsed() < GRACE {
        if let Ok(Some(_)) = child.try_wait() {
            return;
        }
        thread::sleep(TICK);
    }
    signal_group(child, libc::SIGKILL);
    let _ = child.wait();
}

fn signal_group(child: &Child, signal: libc::c_int) {
    let Ok(group) = libc::pid_t::try_from(child.id()) else { return };
    // SAFETY: `kill` reads and writes no memory of ours. The group is the child's own: it was made with
    // process_group(0), and the child has not been waited for, so its number cannot name another.
    unsafe { libc::kill(-group, signal) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_mins(1);

    fn shell(script: &str) -> Invocation {
        Invocation::new("sh", &["-c", script])
    }

    #[test]
    fn collects_standard_output() {
        let mut text = String::new();
        run(&shell("echo one; echo two; echo three >&2"), SOON, Output::Collect(&mut text)).unwrap();
        assert_eq!(text, "one\ntwo\n");
    }

    #[test]
    fn says_the_exit_status() {
        let failure = run(&shell("exit 3"), SOON, Output::Discard).unwrap_err();
        assert_eq!(failure.to_string(), "exit status: 3");
        let failure = run(&shell("kill -9 $$"), SOON, Output::Discard).unwrap_err();
        assert_eq!(failure.to_string(), "was ended by signal 9");
    }

    #[test]
    fn says_what_could_not_start() {
        let failure = run(&Invocation::new("no-such-program", &[]), SOON, Output::Discard).unwrap_err();
        assert!(failure.to_string().starts_with("cannot start no-such-program: "), "{failure}");
    }

    #[test]
    fn a_deadline_ends_the_whole_group() {
        let mut text = String::new();
        // The grandchild holds the pipe: it must be gone too, or a line would still come.
        let script = "(sleep 300; echo late) & echo $!; wait";
        let started = Instant::now();
        let failure =
            run(&shell(script), Duration::from_millis(500), Output::Collect(&mut text)).unwrap_err();
        assert!(matches!(failure, Failure::Deadline(_)), "{failure}");
        assert!(started.elapsed() < GRACE, "SIGTERM was enough");
        let grandchild: i32 = text.trim().parse().unwrap();
        // Reaped by init, or at most a zombie until then: it runs no more.
        let state = std::fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z "), "{state}");
    }

    #[test]
    fn shows_a_command_as_it_would_be_typed() {
        let invocation =
            Invocation::cargo(&["test", "a b", "it's"]).environment("RUSTDOCFLAGS", "-Dwarnings");
        assert_eq!(invocation.to_string(), r"RUSTDOCFLAGS=-Dwarnings cargo test 'a b' 'it'\''s'");
    }
}
