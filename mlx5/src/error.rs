//! Why setting something up failed.

use std::io;

use barewire_layouts::command::CommandError;
use barewire_layouts::prm::UnknownValue;

/// An error of a set-up call. Nothing on the hot path gives one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device refused a command.
    #[error("the device refused: {0}")]
    Command(#[from] CommandError),
    /// The device's answer does not make sense.
    #[error("the device's answer is malformed: {0}")]
    Answer(#[from] UnknownValue),
    /// The way to the device failed.
    #[error("{operation} failed: {source}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A parameter that no device would take.
    #[error("{what} is {value}, but must be {wanted}")]
    Parameter {
        /// The parameter.
        what: &'static str,
        /// What was given.
        value: u64,
        /// What it may be.
        wanted: String,
    },
    /// The device cannot do it.
    #[error("the device has no {what}: {reason}")]
    Unsupported {
        /// What it lacks.
        what: &'static str,
        /// Why, and what to do instead.
        reason: &'static str,
    },
    /// There is not enough memory.
    #[error("out of memory: {bytes} bytes for {what}")]
    OutOfMemory {
        /// What the memory is for.
        what: &'static str,
        /// How much was asked for.
        bytes: usize,
    },
}

impl Error {
    pub(crate) fn parameter(what: &'static str, value: impl Into<u64>, wanted: impl Into<String>) -> Self {
        Self::Parameter { what, value: value.into(), wanted: wanted.into() }
    }
}

/// An error of the kernel or of a library.
#[cfg(feature = "verbs")]
pub(crate) fn system(
    operation: &'static str,
    error: impl Into<Box<dyn core::error::Error + Send + Sync>>,
) -> Error {
    Error::System { operation, source: std::io::Error::other(error) }
}
