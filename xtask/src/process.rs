//! Runs child processes: each in its own process group, with a deadline, and ended when this program
//! is interrupted.

use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// How long a group may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(15);
/// How long output is read after the child's end: a leaked grandchild may hold the pipe open.
const DRAIN: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(20);

/// The last signal that asked this program to end; 0 for none.
static ASKED_TO_END: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Makes Ctrl-C, SIGTERM and SIGHUP end the running child first: it has its own process group and
/// does not receive them.
pub(crate) fn watch_signals() {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if let Err(error) =
            signal_hook::flag::register_usize(signal, Arc::clone(&ASKED_TO_END), signal as usize)
        {
            eprintln!("xtask: cannot handle signal {signal}: {error}");
        }
    }
}

/// Returns the time that processors worked for the programs that this one started and that have
/// ended, with those that they started and waited for.
pub(crate) fn processor_time() -> Duration {
    let ticks = fs::read_to_string("/proc/self/stat").ok().and_then(|stat| ticks_in(&stat));
    Duration::from_secs(ticks.unwrap_or(0)) / rustix::param::clock_ticks_per_second() as u32
}

/// Adds `cutime` and `cstime`. The second field is a name, in which anything may stand.
fn ticks_in(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(13);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// A program with its arguments and additional environment variables.
#[derive(Clone, Debug)]
pub(crate) struct Invocation {
    program: String,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
    /// The folder in which it runs; `None` for the root of the repository.
    folder: Option<PathBuf>,
}

impl Invocation {
    pub(crate) fn new(program: &str, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(ToString::to_string).collect();
        Self { program: program.to_owned(), arguments, environment: Vec::new(), folder: None }
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

    pub(crate) fn in_folder(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.to_owned());
        self
    }

    /// Returns the command that starts this one by `program` with `arguments`.
    pub(crate) fn under(self, program: &str, arguments: &[&str]) -> Self {
        let started = Self::new(program, arguments).with(&[&self.program]);
        let mut arguments = started.arguments;
        arguments.extend(self.arguments);
        Self { program: started.program, arguments, ..self }
    }

    fn command(&self) -> Command {
        // The cargo that runs this program is that of the toolchain file.
        let program = match (self.program.as_str(), std::env::var_os("CARGO")) {
            ("cargo", Some(cargo)) => PathBuf::from(cargo),
            (program, _) => PathBuf::from(program),
        };
        let mut command = Command::new(program);
        // CI builds a new clone once: results kept for the next build only fill the disk (8 GB).
        if std::env::var_os("CI").is_some() {
            command.env("CARGO_INCREMENTAL", "0");
        }
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(self.folder.as_deref().unwrap_or(repository()))
            .stdin(Stdio::null())
            .process_group(0);
        command
    }
}

/// The command as typed in a shell.
impl fmt::Display for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(folder) = &self.folder {
            write!(f, "cd {} && ", quoted(&folder.to_string_lossy()))?;
        }
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

/// The target folder. Temporary files are there, too: in the folder for temporary files, another
/// user could put links in the place of names that can be predicted.
pub(crate) fn target() -> PathBuf {
    repository().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Why a child did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    Start {
        program: String,
        cause: io::Error,
    },
    Ended(ExitStatus),
    Deadline(Duration),
    Interrupted(usize),
    /// The child succeeded, but its result is wrong.
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
            Self::Deadline(limit) => {
                write!(f, "did not end within {} s and was stopped", limit.as_secs())
            }
            Self::Interrupted(signal) => write!(f, "interrupted by signal {signal}"),
            Self::Found(what) => f.write_str(what),
        }
    }
}

/// Where the child's output goes.
pub(crate) enum Output<'a> {
    /// To this program's output.
    Inherit,
    /// To this program's output, and each line to the function.
    Watch(&'a mut dyn FnMut(&str)),
    /// Standard output is collected and not shown; standard error goes to this program's.
    Collect(&'a mut String),
    /// All output is collected, and not shown.
    Capture(&'a mut String),
    /// Nowhere.
    Discard,
}

/// Runs a child to its end, or to the deadline, when its process group is ended.
pub(crate) fn run(
    invocation: &Invocation,
    deadline: Duration,
    output: Output<'_>,
) -> Result<(), Failure> {
    let mut command = invocation.command();
    match output {
        Output::Inherit => {}
        Output::Watch(_) | Output::Capture(_) => {
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
    let mut child = command
        .spawn()
        .map_err(|cause| Failure::Start { program: invocation.program.clone(), cause })?;
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
        Output::Collect(text) | Output::Capture(text) => Box::new(|line| text.push_str(line)),
        Output::Inherit | Output::Discard => Box::new(|_| {}),
    };
    let status = loop {
        if !drain(&lines, TICK, &mut take) {
            thread::sleep(TICK);
        }
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => {}
            Err(cause) => {
                return Err(Failure::Start { program: invocation.program.clone(), cause });
            }
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

/// Runs a child, and returns its standard output without the white space at the end.
pub(crate) fn text(invocation: &Invocation, deadline: Duration) -> Result<String, Failure> {
    let mut text = String::new();
    run(invocation, deadline, Output::Collect(&mut text))?;
    text.truncate(text.trim_end().len());
    Ok(text)
}

/// Writes a file of the repository.
pub(crate) fn write(file: &str, text: &str) -> Result<(), Failure> {
    fs::write(repository().join(file), text)
        .map_err(|error| Failure::Found(format!("cannot write {file}: {error}")))?;
    println!("wrote {file}");
    Ok(())
}

/// Passes lines to `take` for the time `patience`. Returns false if every writer has closed its
/// end.
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

/// Copies lines to `shown` and sends them to `to`, in a thread that ends with the pipe.
fn forward(
    from: impl Read + Send + 'static,
    shown: Option<impl Write + Send + 'static>,
    to: Sender<String>,
) {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut shown = shown;
        let mut line = Vec::new();
        while matches!(from.read_until(b'\n', &mut line), Ok(1..)) {
            if let Some(out) = &mut shown {
                // A closed output must not fail the run.
                let _ = out.write_all(&line).and_then(|()| out.flush());
            }
            if to.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
}

/// Ends the child's process group: SIGTERM, so that a test runner ends its tests, which have other
/// groups; then SIGKILL.
fn stop(child: &mut Child) {
    signal_group(child, Signal::TERM);
    let asked = Instant::now();
    while asked.elapsed() < GRACE {
        if let Ok(Some(_)) = child.try_wait() {
            return;
        }
        thread::sleep(TICK);
    }
    signal_group(child, Signal::KILL);
    let _ = child.wait();
}

/// Signals the child's own group (process_group(0)). The child was not waited for, so the number
/// cannot name another group.
fn signal_group(child: &Child, signal: Signal) {
    let _ = kill_process_group(Pid::from_child(child), signal);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_mins(1);

    fn shell(script: &str) -> Invocation {
        Invocation::new("sh", &["-c", script])
    }

    #[test]
    fn the_time_of_ended_children_is_read() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194304 1 2 3 4 50 60 700 8000 20 0 1 0 99 1 2";
        assert_eq!(ticks_in(stat), Some(8700));
        assert_eq!(ticks_in("7 (a) S 1"), None);
        let before = processor_time();
        text(&shell("i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done"), SOON).unwrap();
        assert!(processor_time() > before);
    }

    #[test]
    fn collects_standard_output() {
        let collected = text(&shell("echo one; echo two; echo three >&2"), SOON).unwrap();
        assert_eq!(collected, "one\ntwo");
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
        let failure =
            run(&Invocation::new("no-such-program", &[]), SOON, Output::Discard).unwrap_err();
        assert!(failure.to_string().starts_with("cannot start no-such-program: "), "{failure}");
    }

    #[test]
    fn a_deadline_ends_the_whole_group() {
        let mut text = String::new();
        // The grandchild holds the pipe: it must end too, or its line would still arrive.
        let script = "(sleep 300; echo late) & echo $!; wait";
        let started = Instant::now();
        let failure = run(&shell(script), Duration::from_millis(500), Output::Collect(&mut text))
            .unwrap_err();
        assert!(matches!(failure, Failure::Deadline(_)), "{failure}");
        assert!(started.elapsed() < GRACE, "SIGTERM was enough");
        let grandchild: i32 = text.trim().parse().unwrap();
        // Reaped by init, or a zombie until then.
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
