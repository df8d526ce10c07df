//! Starts the ranks of a parallel program on this host.
//!
//! Each rank gets the variables that torchrun sets (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`,
//! `LOCAL_WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`) and a key for the job (`BAREWIRE_KEY`), from
//! which `barewire-bootstrap` connects the ranks. Rank 0 inherits the socket that listens at
//! `MASTER_PORT` (`BAREWIRE_BOOTSTRAP_FD`): no other process can take the port before it.

use crate::args::RunArgs;
use crate::child::{end_with_parent, exit_code};
use crate::error::{Error, local};
use crate::output::error_line;
use barewire_bootstrap::{LISTENER_VARIABLE, PORT_VARIABLE, STORE_VARIABLE};
use barewire_tcp::descriptors;
use barewire_tcp::interfaces::advise;
use barewire_tcp::key::{KEY_VARIABLE, Key};
use rustix::io::FdFlags;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time for the other ranks to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
/// Time in which a rank that has failed is found after others that failed because of that.
const SETTLE: Duration = Duration::from_millis(250);
/// Time between two checks for ranks that have ended.
const PAUSE: Duration = Duration::from_millis(5);
/// Descriptors that are needed beside the pipes of the ranks.
const OTHER_DESCRIPTORS: u64 = 64;
/// Variables of other launchers and jobs, which would mislead the ranks. With one of the last two,
/// rank 0 listens at another port than that of the socket which it inherits.
const OTHERS: [&str; 7] = [
    "PMI_FD",
    "PMI_RANK",
    "PMI_SIZE",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    PORT_VARIABLE,
    STORE_VARIABLE,
];

/// Running ranks. Dropping the value ends them.
struct Ranks(Vec<Option<Child>>);

impl Ranks {
    /// The ranks that have ended since the last call.
    fn ended(&mut self) -> Vec<(usize, ExitStatus)> {
        let mut ended = Vec::new();
        for (rank, place) in self.0.iter_mut().enumerate() {
            if let Some(Ok(Some(status))) = place.as_mut().map(Child::try_wait) {
                *place = None;
                ended.push((rank, status));
            }
        }
        ended
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    fn signal(&self, signal: libc::c_int) {
        for child in self.0.iter().flatten() {
            // SAFETY: these arguments contain no pointers. The child has not been waited for, so
            // its process id is not reused.
            unsafe { libc::kill(child.id() as i32, signal) };
        }
    }

    /// Ends all running ranks.
    fn end(&mut self) {
        self.signal(libc::SIGTERM);
        let start = Instant::now();
        while !self.is_empty() {
            self.ended();
            if start.elapsed() > GRACE {
                self.signal(libc::SIGKILL);
            }
            thread::sleep(PAUSE);
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts the ranks and waits for them. Returns the exit code of the first that failed.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Error> {
    let (program, arguments) = args
        .program
        .split_first()
        .ok_or_else(|| Error::Usage("a program is missing".to_owned()))?;
    if args.label {
        // The ends of two pipes, and those of the child while it is started.
        let needed = 2 * u64::from(args.count) + OTHER_DESCRIPTORS;
        descriptors::ensure(needed).map_err(|limit| {
            Error::Local(format!(
                "--label needs {needed} descriptors for {} ranks, and this process may open {limit}: \
                 raise the limit ('ulimit -Hn {needed}')",
                args.count
            ))
        })?;
    }
    let no_port = |error: std::io::Error| local("cannot listen at a port for rank 0", &error);
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = TcpListener::bind(here).map_err(|error| no_port(advise(here, error)))?;
    let port = listener.local_addr().map_err(no_port)?.port();
    // Only rank 0 inherits it: it is dropped before other ranks are started.
    rustix::io::fcntl_setfd(&listener, FdFlags::empty()).map_err(|errno| no_port(errno.into()))?;
    let mut listener = Some(listener);
    let mut ranks = Ranks(Vec::new());
    let mut printers = Vec::new();
    let mut key = None;
    if !Key::is_in_env() {
        key = Some(Key::generate().map_err(|error| Error::Local(error.to_string()))?.to_digits());
    }
    for rank in 0..args.count {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        for other in OTHERS {
            command.env_remove(other);
        }
        for (name, value) in [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", args.count)] {
            command.env(name, value.to_string());
        }
        command.env("LOCAL_WORLD_SIZE", args.count.to_string());
        command
            .env("MASTER_ADDR", Ipv4Addr::LOCALHOST.to_string())
            .env("MASTER_PORT", port.to_string());
        match &listener {
            Some(listener) => command.env(LISTENER_VARIABLE, listener.as_raw_fd().to_string()),
            None => command.env_remove(LISTENER_VARIABLE),
        };
        if let Some(key) = &key {
            command.env(KEY_VARIABLE, key);
        }
        if args.label {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        end_with_parent(&mut command);
        let mut child = command.spawn().map_err(|error| {
            local(format_args!("cannot start {}", program.to_string_lossy()), &error)
        })?;
        listener = None;
        printers.extend(child.stdout.take().map(|from| labelled(rank, from, std::io::stdout)));
        printers.extend(child.stderr.take().map(|from| labelled(rank, from, std::io::stderr)));
        ranks.0.push(Some(child));
    }
    let code = wait(&mut ranks, args.keep_going);
    for printer in printers {
        // A thread that panicked has printed the reason.
        let _ = printer.join();
    }
    Ok(ExitCode::from(code))
}

/// Signals by which no rank ends because of another: a rank that notices the end of another exits,
/// or ends by SIGABRT, SIGPIPE or SIGTERM.
const OWN_SIGNALS: [libc::c_int; 5] =
    [libc::SIGKILL, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// Whether the rank has not ended because of another.
fn is_own_end(status: ExitStatus) -> bool {
    status.signal().is_some_and(|signal| OWN_SIGNALS.contains(&signal))
}

/// The ranks that have ended since the last call, those that have not ended because of another
/// first: the kernel may report the others earlier.
fn ended(ranks: &mut Ranks) -> Vec<(usize, ExitStatus)> {
    let mut ended = ranks.ended();
    if ended.iter().any(|(_, status)| !status.success()) {
        let start = Instant::now();
        while start.elapsed() < SETTLE
            && !ranks.is_empty()
            && !ended.iter().any(|(_, status)| is_own_end(*status))
        {
            thread::sleep(PAUSE);
            ended.extend(ranks.ended());
        }
    }
    ended.sort_by_key(|(_, status)| !is_own_end(*status));
    ended
}

/// Waits for all ranks. If one fails, ends the others unless `keep_going` is set.
fn wait(ranks: &mut Ranks, keep_going: bool) -> u8 {
    let mut code = 0;
    while !ranks.is_empty() {
        for (rank, status) in ended(ranks) {
            if status.success() {
                continue;
            }
            let how = match (status.code(), status.signal()) {
                (Some(code), _) => format!("exited with code {code}"),
                (None, signal) => format!("was ended by signal {}", signal.unwrap_or_default()),
            };
            if code != 0 {
                error_line(&format!("rank {rank} {how}"));
                continue;
            }
            code = exit_code(status);
            if keep_going {
                error_line(&format!("rank {rank} {how}"));
            } else {
                error_line(&format!("rank {rank} {how}; ending the others"));
                ranks.end();
                return code;
            }
        }
        thread::sleep(PAUSE);
    }
    code
}

/// Prefixes every line of `from` with the rank.
fn labelled<W: Write>(
    rank: u32,
    from: impl Read + Send + 'static,
    to: impl Fn() -> W + Send + 'static,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            let mut labelled = format!("[{rank}] ").into_bytes();
            labelled.append(&mut line);
            if labelled.last() != Some(&b'\n') {
                labelled.push(b'\n');
            }
            // The reader of this output may have closed it.
            let _ = to().write_all(&labelled);
        }
    })
}
