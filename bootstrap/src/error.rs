//! What can fail.

use std::fmt;
use std::io;
use std::time::Duration;

use thiserror::Error;

use crate::{MAX_KEY, MAX_SIZE, MAX_VALUE, Runtime};

/// Why an operation of a [`Bootstrap`](crate::Bootstrap) failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The key has characters that a runtime does not take, or is too long.
    #[error(
        "'{key}' cannot be a key: it must have 1 to {MAX_KEY} ASCII letters, digits, '_' and '-'"
    )]
    InvalidKey {
        /// The beginning of the key.
        key: String,
    },
    /// This rank has put the key before.
    #[error("'{key}' was put before: values cannot be changed, use another key")]
    KeyTaken {
        /// The key.
        key: String,
    },
    /// The value is too long.
    #[error("the value of '{key}' has {length} bytes, over the limit of {MAX_VALUE}")]
    ValueTooLong {
        /// The key.
        key: String,
        /// Bytes of the value.
        length: usize,
    },
    /// The job has more ranks than this crate supports.
    #[error("a job of {size} ranks is over the limit of {MAX_SIZE}")]
    TooManyRanks {
        /// Ranks of the job.
        size: u32,
    },
    /// The job has no such rank.
    #[error("rank {rank} does not exist: the job has {size} ranks")]
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// Ranks of the job.
        size: u32,
    },
    /// The rank did not put the key before the last fence.
    #[error("rank {rank} did not put '{key}' before the last fence")]
    NotFound {
        /// The rank.
        rank: u32,
        /// The key.
        key: String,
    },
    /// Other ranks, or the launcher, did not do their part in time.
    #[error("{runtime}: {operation} took longer than {:.1} s{missing}", .waited.as_secs_f64())]
    TimedOut {
        /// What connects the job.
        runtime: Runtime,
        /// What was waited for.
        operation: &'static str,
        /// The timeout.
        waited: Duration,
        /// The ranks that are missing, if they are known, as text behind the error.
        missing: String,
    },
    /// The launcher or another rank refused, failed or ended.
    #[error("{runtime}: {operation} failed: {reason}")]
    Refused {
        /// What connects the job.
        runtime: Runtime,
        /// What was tried.
        operation: &'static str,
        /// Why.
        reason: String,
    },
    /// A system call failed.
    #[error("{runtime}: {operation} failed: {source}")]
    Io {
        /// What connects the job.
        runtime: Runtime,
        /// What was tried.
        operation: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// An earlier operation failed in a way that leaves this rank out of step with the others.
    #[error("{runtime}: not usable after an earlier error: {reason}")]
    Unusable {
        /// What connects the job.
        runtime: Runtime,
        /// The earlier error.
        reason: String,
    },
}

/// Why [`detect`](crate::detect) found no way to the other ranks. `Debug` writes the text, too: it
/// is what a program prints that returns the error from `main`.
#[derive(Error)]
#[non_exhaustive]
pub enum DetectError {
    /// A variable of the environment has a value that is not usable.
    #[error("{variable} is '{value}', {expected}")]
    Variable {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        expected: String,
    },
    /// Variables of the environment are missing.
    #[error("{chosen}, and {} not set: {}{}", names(.missing), purposes(.missing), alone(*.runtime))]
    Missing {
        /// What was chosen.
        runtime: Runtime,
        /// Which runtime was chosen, and why.
        chosen: String,
        /// All variables that it needs and that are not set.
        missing: Vec<MissingVariable>,
    },
    /// The chosen runtime does not work.
    #[error("{chosen}, but: {source}")]
    Runtime {
        /// Which runtime was chosen, and why.
        chosen: String,
        /// What failed.
        source: Error,
    },
}

impl fmt::Debug for DetectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A variable that a runtime needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingVariable {
    /// Its name.
    pub name: &'static str,
    /// What it is for, and who sets it.
    pub why: &'static str,
}

/// Returns the names of variables with the verb that follows them.
pub(crate) fn names(variables: &[MissingVariable]) -> String {
    let names: Vec<&str> = variables.iter().map(|variable| variable.name).collect();
    match &names[..] {
        [first @ .., last] if !first.is_empty() => format!("{} and {last} are", first.join(", ")),
        _ => format!("{} is", names.concat()),
    }
}

fn purposes(missing: &[MissingVariable]) -> String {
    let purposes = missing.iter().map(|MissingVariable { name, why }| format!("{name} is {why}"));
    purposes.collect::<Vec<_>>().join("; ")
}

fn alone(runtime: Runtime) -> &'static str {
    match runtime {
        Runtime::Tcp => ". To run alone as one rank, set BAREWIRE_BOOTSTRAP=single",
        _ => "",
    }
}
