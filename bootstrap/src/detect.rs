//! Which launcher started this process.

use std::io::{self, Write as _};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use barewire_tcp::Key;

use crate::error::names;
use crate::inherited::inherited;
use crate::{
    Bootstrap, DetectError, Directory, Error, MAX_SIZE, MissingVariable, Pmi1, Runtime, Single,
    Tcp, TcpConfig,
};

/// How long the ranks of a job may take to start.
const START: Duration = Duration::from_mins(1);

/// Names the descriptor of the socket at which rank 0 lets the others join.
pub const LISTENER_VARIABLE: &str = "BAREWIRE_BOOTSTRAP_FD";

/// Holds the port of rank 0 instead of that of `MASTER_PORT`.
pub const PORT_VARIABLE: &str = "BAREWIRE_BOOTSTRAP_PORT";

/// `True` if torchrun has a store at `MASTER_PORT`.
pub const STORE_VARIABLE: &str = "TORCHELASTIC_USE_AGENT_STORE";

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
/// A process that no launcher started is a job of one rank. If Slurm or Open MPI started it as one
/// of several, without an interface by which the ranks find each other, this writes a line to
/// standard error that says what to change.
///
/// # Errors
/// [`DetectError`]; it names the runtime that was chosen, and the reason.
pub fn detect() -> Result<Box<dyn Bootstrap>, DetectError> {
    static WARNED: AtomicBool = AtomicBool::new(false);
    let environment = |name: &str| std::env::var(name).ok();
    let (job, _) = detect_in(&environment)?;
    if job.runtime() == Runtime::Single
        && let Some(warning) = alone_of_several(&environment)
        && !WARNED.swap(true, Ordering::Relaxed)
    {
        // If standard error is closed, the warning is lost.
        let _ = writeln!(io::stderr(), "barewire: warning: {warning}");
    }
    Ok(job)
}

/// Returns what to change if a launcher has started several processes, and this one does not find
/// the others. The variables are those of a process that `srun` or `mpirun` has started, and not
/// those of an allocation.
fn alone_of_several(environment: &dyn Environment) -> Option<String> {
    if environment.get("BAREWIRE_BOOTSTRAP").is_some_and(|name| !name.is_empty()) {
        return None;
    }
    let launchers = [
        ("SLURM_STEP_NUM_TASKS", "srun --mpi=pmix or --mpi=pmi2"),
        ("OMPI_COMM_WORLD_SIZE", "an mpirun that sets PMIX_NAMESPACE"),
    ];
    launchers.into_iter().find_map(|(variable, instead)| {
        let count: u32 = environment.get(variable)?.trim().parse().ok()?;
        (count > 1).then(|| {
            format!(
                "{variable} is {count}, and this process is a job of one rank: {NONE}. Start the \
                 ranks by {instead}; BAREWIRE_BOOTSTRAP=single ends this warning"
            )
        })
    })
}

/// Why a process is a job of one rank.
const NONE: &str = "none of PMIX_NAMESPACE, PMI_FD, BAREWIRE_BOOTSTRAP_DIR, RANK, WORLD_SIZE and \
                    MASTER_ADDR is set";

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
            let [value, rank, size] = required(environment, runtime, &chosen, PMI)?;
            let descriptor = parse("PMI_FD", &value, 0, i32::MAX as u64)? as i32;
            let (rank, size) = rank_and_size(("PMI_RANK", &rank), ("PMI_SIZE", &size))?;
            Pmi1::open(descriptor, rank, size, timeout).map(|job| Box::new(job) as _)
        }
        Runtime::Tcp => {
            let config = tcp(environment, &chosen, timeout)?;
            let opened = match listener(environment, &config) {
                Some(listener) => Tcp::over(listener, &config),
                None => Tcp::open(&config),
            };
            opened.map(|job| Box::new(job) as _)
        }
        Runtime::Directory => {
            let [path, rank, size] = required(environment, runtime, &chosen, DIRECTORY)?;
            let path = PathBuf::from(path);
            let (rank, size) = rank_and_size(("RANK", &rank), ("WORLD_SIZE", &size))?;
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
    // If some of the others are missing, that is an error, and not a job of one rank. MASTER_PORT
    // alone says nothing about ranks: Kubernetes sets it for a service with the name `master`.
    if !["RANK", "WORLD_SIZE", "MASTER_ADDR"].into_iter().any(is_set) {
        return Ok((Runtime::Single, NONE.to_owned()));
    }
    let set = TCP.into_iter().filter(|one| is_set(one.name));
    Ok((Runtime::Tcp, format!("{} set", names(&set.collect::<Vec<_>>()))))
}

/// Returns the values of all variables that a runtime needs.
fn required<const N: usize>(
    environment: &dyn Environment,
    runtime: Runtime,
    chosen: &str,
    variables: [MissingVariable; N],
) -> Result<[String; N], DetectError> {
    let values = variables.map(|variable| environment.get(variable.name).unwrap_or_default());
    let missing: Vec<_> =
        variables.into_iter().zip(&values).filter(|(_, value)| value.is_empty()).collect();
    if missing.is_empty() {
        return Ok(values);
    }
    let missing = missing.into_iter().map(|(variable, _)| variable).collect();
    Err(DetectError::Missing { runtime, chosen: chosen.to_owned(), missing })
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

const fn variable(name: &'static str, why: &'static str) -> MissingVariable {
    MissingVariable { name, why }
}

const RANK: MissingVariable = variable("RANK", "the number of this process, from 0");
const WORLD_SIZE: MissingVariable = variable("WORLD_SIZE", "how many processes the job has");
const PMI: [MissingVariable; 3] = [
    variable("PMI_FD", "the launcher's socket"),
    variable("PMI_RANK", "the number of this process, which the launcher sets"),
    variable("PMI_SIZE", "how many processes the job has, which the launcher sets"),
];
const DIRECTORY: [MissingVariable; 3] = [
    variable(
        "BAREWIRE_BOOTSTRAP_DIR",
        "the directory that all ranks share; each run needs an empty one",
    ),
    RANK,
    WORLD_SIZE,
];
const TCP: [MissingVariable; 4] = [
    RANK,
    WORLD_SIZE,
    variable("MASTER_ADDR", "the host of rank 0"),
    variable("MASTER_PORT", "the port at which rank 0 listens"),
];
const KEY: MissingVariable = variable(
    "BAREWIRE_KEY",
    "64 hexadecimal digits that all ranks share, without which strangers could join the job; \
     'barewire run' sets it, elsewhere set BAREWIRE_KEY_FILE to a file that 'barewire key FILE' has \
     made",
);

/// Reads the rank and the size from these variables, which have these values.
fn rank_and_size(
    rank: (&'static str, &str),
    size: (&'static str, &str),
) -> Result<(u32, u32), DetectError> {
    let count = parse(size.0, size.1, 1, u64::from(MAX_SIZE))?;
    let number = parse(rank.0, rank.1, 0, count - 1)?;
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

/// The port of rank 0. If torchrun has a store at `MASTER_PORT` itself, it is the next one.
fn port_of(environment: &dyn Environment, master: u16) -> Result<u16, DetectError> {
    if let Some(port) = environment.get(PORT_VARIABLE).filter(|port| !port.is_empty()) {
        return Ok(parse(PORT_VARIABLE, &port, 1, u64::from(u16::MAX))? as u16);
    }
    let is_taken = environment.get(STORE_VARIABLE).is_some_and(|it| it == "True");
    let next = master.checked_add(1).unwrap_or(master.saturating_sub(1));
    Ok(if is_taken { next } else { master })
}

fn tcp(
    environment: &dyn Environment,
    chosen: &str,
    timeout: Duration,
) -> Result<TcpConfig, DetectError> {
    let runtime = Runtime::Tcp;
    let key = Key::from_env().map_err(|error| DetectError::Variable {
        variable: "BAREWIRE_KEY",
        value: "(hidden)".to_owned(),
        expected: format!("and cannot be used: {error}"),
    })?;
    let found = required(environment, runtime, chosen, TCP);
    let ([rank, size, host, port], key) = match (found, key) {
        (Ok(values), Some(key)) => (values, key),
        (Err(DetectError::Missing { mut missing, chosen, .. }), None) => {
            missing.push(KEY);
            return Err(DetectError::Missing { runtime, chosen, missing });
        }
        (Err(error), _) => return Err(error),
        (Ok(_), None) => {
            let (chosen, missing) = (chosen.to_owned(), vec![KEY]);
            return Err(DetectError::Missing { runtime, chosen, missing });
        }
    };
    let (rank, size) = rank_and_size(("RANK", &rank), ("WORLD_SIZE", &size))?;
    let port = port_of(environment, parse("MASTER_PORT", &port, 1, u64::from(u16::MAX))? as u16)?;
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
    Ok(TcpConfig { rank, size, master, key, timeout })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_rank_0_is_not_that_of_torchruns_store() {
        let port = |variables: &[(&str, &str)], master| {
            let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
            port_of(&|name: &str| find(name).map(|(_, value)| (*value).to_owned()), master)
        };
        let store = ("TORCHELASTIC_USE_AGENT_STORE", "True");
        assert_eq!(port(&[], 29500).unwrap(), 29500);
        assert_eq!(port(&[("TORCHELASTIC_USE_AGENT_STORE", "False")], 29500).unwrap(), 29500);
        assert_eq!(port(&[store], 29500).unwrap(), 29501);
        assert_eq!(port(&[store], u16::MAX).unwrap(), u16::MAX - 1);
        assert_eq!(port(&[store, ("BAREWIRE_BOOTSTRAP_PORT", "7")], 29500).unwrap(), 7);
        let error = port(&[("BAREWIRE_BOOTSTRAP_PORT", "0")], 1).unwrap_err().to_string();
        assert!(error.contains("BAREWIRE_BOOTSTRAP_PORT"), "{error}");
    }
}
