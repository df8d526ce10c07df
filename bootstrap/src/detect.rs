//! Which launcher started this process.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use barewire_tcp::Key;

use crate::inherited::inherited;
use crate::{
    Bootstrap, DetectError, Directory, Error, MAX_SIZE, Pmi1, Runtime, Single, Tcp, TcpConfig,
};

/// How long the ranks of a job may take to start.
const START: Duration = Duration::from_mins(1);

/// Names the descriptor of the socket at which rank 0 lets the others join.
pub const LISTENER_VARIABLE: &str = "BAREWIRE_BOOTSTRAP_FD";

/// The variables that [`detect_in`] reads.
pub trait Environment {
    /// The value of a variable, if it is set to a text.
    fn get(&self, name: &str) -> Option<String>;
}

impl<F: Fn(&str) -> Option<String>> Environment for F {
    fn get(&self, name: &str) -> Option<String> {
        self(name)
    }
}

/// Finds out how this process was started and connects it to the other ranks of its job.
///
/// With the runtime [`Tcp`](Runtime::Tcp), and with launchers that start ranks at their own pace,
/// this waits for the other ranks, for up to 60 s or as many seconds as
/// `BAREWIRE_BOOTSTRAP_TIMEOUT` says.
///
/// # Errors
/// [`DetectError`]; it names the runtime that was chosen, and the reason.
pub fn detect() -> Result<Box<dyn Bootstrap>, DetectError> {
    detect_in(&|name: &str| std::env::var(name).ok()).map(|(job, _)| job)
}

/// As [`detect`], with the variables of `environment`. Also returns one line with the runtime that
/// was chosen and the reason.
///
/// # Errors
/// As [`detect`].
pub fn detect_in(
    environment: &dyn Environment,
) -> Result<(Box<dyn Bootstrap>, String), DetectError> {
    let (runtime, why) = self::runtime(environment)?;
    let chosen = format!("the bootstrap runtime is {runtime}, because {why}");
    let timeout = match environment.get("BAREWIRE_BOOTSTRAP_TIMEOUT") {
        None => START,
        Some(value) => Duration::from_secs(parse(
            "BAREWIRE_BOOTSTRAP_TIMEOUT",
            &value,
            1,
            u64::from(u32::MAX),
        )?),
    };
    let opened: Result<Box<dyn Bootstrap>, Error> = match runtime {
        Runtime::Single => Ok(Box::new(Single::default())),
        Runtime::Pmix => open_pmix(timeout),
        Runtime::Pmi1 => {
            let value = required(environment, runtime, "PMI_FD", "the launcher's socket")?;
            let descriptor = parse("PMI_FD", &value, 0, i32::MAX as u64)? as i32;
            let rank_variable = ("PMI_RANK", "the number of this process, which the launcher sets");
            let size_variable =
                ("PMI_SIZE", "how many processes the job has, which the launcher sets");
            let (rank, size) = rank_and_size(environment, runtime, rank_variable, size_variable)?;
            Pmi1::open(descriptor, rank, size, timeout).map(|job| Box::new(job) as _)
        }
        Runtime::Tcp => {
            let config = tcp(environment, timeout)?;
            let opened = match listener(environment, &config) {
                Some(listener) => Tcp::over(listener, &config),
                None => Tcp::open(&config),
            };
            opened.map(|job| Box::new(job) as _)
        }
        Runtime::Directory => {
            let why = "the directory that all ranks share; each run needs an empty one";
            let path =
                PathBuf::from(required(environment, runtime, "BAREWIRE_BOOTSTRAP_DIR", why)?);
            let (rank, size) = rank_and_size(environment, runtime, RANK, WORLD_SIZE)?;
            Directory::open(&path, rank, size).map(|job| Box::new(job) as _)
        }
    };
    match opened {
        Ok(job) => Ok((job, chosen)),
        Err(source) => Err(DetectError::Runtime { chosen, source }),
    }
}

#[cfg(feature = "pmix")]
fn open_pmix(timeout: Duration) -> Result<Box<dyn Bootstrap>, Error> {
    crate::Pmix::open(timeout).map(|job| Box::new(job) as _)
}

#[cfg(not(feature = "pmix"))]
fn open_pmix(_: Duration) -> Result<Box<dyn Bootstrap>, Error> {
    Err(Error::Refused {
        runtime: Runtime::Pmix,
        operation: "opening libpmix",
        reason: "this program was built without the feature pmix of barewire-bootstrap".to_owned(),
    })
}

/// Returns the runtime that [`detect_in`] would open, and the reason. Opens nothing.
///
/// # Errors
/// [`DetectError::Variable`] if `BAREWIRE_BOOTSTRAP` names none.
pub fn runtime(environment: &dyn Environment) -> Result<(Runtime, String), DetectError> {
    let is_set = |name: &str| environment.get(name).is_some_and(|value| !value.is_empty());
    if let Some(name) = environment.get("BAREWIRE_BOOTSTRAP").filter(|name| !name.is_empty()) {
        let all = [Runtime::Pmix, Runtime::Pmi1, Runtime::Tcp, Runtime::Directory, Runtime::Single];
        return match all.into_iter().find(|runtime| runtime.name() == name) {
            Some(runtime) => Ok((runtime, "BAREWIRE_BOOTSTRAP names it".to_owned())),
            None => Err(DetectError::Variable {
                variable: "BAREWIRE_BOOTSTRAP",
                value: name,
                expected: "must be pmix, pmi1, tcp, directory or single".to_owned(),
            }),
        };
    }
    for (runtime, variable) in [
        (Runtime::Pmix, "PMIX_NAMESPACE"),
        (Runtime::Pmi1, "PMI_FD"),
        (Runtime::Directory, "BAREWIRE_BOOTSTRAP_DIR"),
    ] {
        if is_set(variable) {
            return Ok((runtime, format!("{variable} is set")));
        }
    }
    // Also if some are missing, which is then an error, and not a job of one rank.
    for other in ["MASTER_ADDR", "WORLD_SIZE"] {
        if is_set("RANK") && is_set(other) {
            return Ok((Runtime::Tcp, format!("RANK and {other} are set")));
        }
    }
    let none = "none of PMIX_NAMESPACE, PMI_FD, BAREWIRE_BOOTSTRAP_DIR, and RANK with MASTER_ADDR or \
         WORLD_SIZE is set";
    Ok((Runtime::Single, none.to_owned()))
}

fn required(
    environment: &dyn Environment,
    runtime: Runtime,
    variable: &'static str,
    why: &'static str,
) -> Result<String, DetectError> {
    environment.get(variable).filter(|value| !value.is_empty()).ok_or(DetectError::Missing {
        runtime,
        variable,
        why,
    })
}

/// Reads a number from `low` to `high`.
fn parse(variable: &'static str, value: &str, low: u64, high: u64) -> Result<u64, DetectError> {
    value.trim().parse().ok().filter(|number| (low..=high).contains(number)).ok_or_else(|| {
        DetectError::Variable {
            variable,
            value: value.to_owned(),
            expected: format!("must be a number from {low} to {high}"),
        }
    })
}

/// A variable of the environment, and what it is for.
type Variable = (&'static str, &'static str);

const RANK: Variable = ("RANK", "the number of this process, from 0");
const WORLD_SIZE: Variable = ("WORLD_SIZE", "how many processes the job has");

fn rank_and_size(
    environment: &dyn Environment,
    runtime: Runtime,
    rank: Variable,
    size: Variable,
) -> Result<(u32, u32), DetectError> {
    let count =
        parse(size.0, &required(environment, runtime, size.0, size.1)?, 1, u64::from(MAX_SIZE))?;
    let number = parse(rank.0, &required(environment, runtime, rank.0, rank.1)?, 0, count - 1)?;
    Ok((number as u32, count as u32))
}

/// The socket that the launcher passed to rank 0. `None` for other ranks, and if the descriptor is
/// not a socket that listens at the address of rank 0: a launcher that was started by a rank of
/// another job does not remove the variable.
fn listener(environment: &dyn Environment, config: &TcpConfig) -> Option<OwnedFd> {
    let descriptor = environment.get(LISTENER_VARIABLE)?.trim().parse().ok()?;
    let socket = inherited(descriptor).ok().filter(|_| config.rank == 0)?;
    let listens = rustix::net::sockopt::socket_acceptconn(&socket).ok()?;
    let address = SocketAddr::try_from(rustix::net::getsockname(&socket).ok()?).ok()?;
    (listens && address == config.master).then_some(socket)
}

fn tcp(environment: &dyn Environment, timeout: Duration) -> Result<TcpConfig, DetectError> {
    let runtime = Runtime::Tcp;
    let (rank, size) = rank_and_size(environment, runtime, RANK, WORLD_SIZE)?;
    let host = required(environment, runtime, "MASTER_ADDR", "the host of rank 0")?;
    let port = required(environment, runtime, "MASTER_PORT", "the port at which rank 0 listens")?;
    let port = parse("MASTER_PORT", &port, 1, u64::from(u16::MAX))? as u16;
    let unusable = |expected: String| DetectError::Variable {
        variable: "MASTER_ADDR",
        value: host.clone(),
        expected,
    };
    let mut found = (host.as_str(), port).to_socket_addrs().map_err(|error| {
        unusable(format!(
            "which is no address, and no name that this host knows ({error}): use an address of \
             rank 0's host, or add the name to /etc/hosts"
        ))
    })?;
    let master: SocketAddr =
        found.next().ok_or_else(|| unusable("which has no address".to_owned()))?;
    let key = Key::from_env().map_err(|error| DetectError::Variable {
        variable: "BAREWIRE_KEY",
        value: "(hidden)".to_owned(),
        expected: format!("and cannot be used: {error}"),
    })?;
    let key = key.ok_or(DetectError::Missing {
        runtime,
        variable: "BAREWIRE_KEY",
        why: "64 hexadecimal digits that all ranks share, without which strangers could join the \
              job; 'barewire run' sets it, elsewhere set BAREWIRE_KEY_FILE to a file that \
              'barewire key FILE' has made",
    })?;
    Ok(TcpConfig { rank, size, master, key, timeout })
}
