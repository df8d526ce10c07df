//! Errors of set-up.

use std::io;
use std::time::Duration;

use barewire_layouts::command::CommandError;
use barewire_layouts::prm::UnknownValue;

use crate::values::Access;

/// Implements `Debug` as `Display`: what `main` prints if it returns the error.
macro_rules! debug_as_display {
    ($($error:ty),+) => {$(
        impl core::fmt::Debug for $error {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Display::fmt(self, f)
            }
        }
    )+};
}

debug_as_display!(
    Error,
    crate::address::AddressError,
    crate::memory::ChangeError,
    crate::memory::OutOfBounds,
    crate::queue::send::PostError,
    crate::setup::NotOpened,
    crate::setup::UnknownWay
);

/// An error of a set-up call. No function of the hot path returns it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device refused a command.
    #[error("the device refused: {0}")]
    Command(#[from] CommandError),
    /// The output of the device is malformed.
    #[error("the device's output is malformed: {0}")]
    Answer(#[from] UnknownValue),
    /// The kernel or a library failed.
    #[error("{operation} failed: {source}")]
    System {
        /// The attempted operation.
        operation: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A parameter is out of range.
    #[error("{what} is {value}, but must be {wanted}")]
    Parameter {
        /// The parameter.
        what: &'static str,
        /// The given value.
        value: u64,
        /// The accepted values.
        wanted: String,
    },
    /// The rights of a memory key contradict each other.
    #[error("the rights {} lack LOCAL_WRITE, which REMOTE_WRITE and REMOTE_ATOMIC require", .0.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(" and "))]
    Rights(Access),
    /// The queue pair was connected before.
    #[error("the queue pair is connected: reset it first")]
    Connected,
    /// The device does not support the request.
    #[error("the device has no {what}: {reason}")]
    Unsupported {
        /// The missing feature.
        what: &'static str,
        /// The reason, and what to do instead.
        reason: &'static str,
    },
    /// Memory allocation failed.
    #[error("out of memory: {bytes} bytes for {what}")]
    OutOfMemory {
        /// The purpose of the memory.
        what: &'static str,
        /// The size of the request.
        bytes: usize,
    },
    /// The device did not do something in time.
    #[error("no {what} within {:.1} s", .waited.as_secs_f64())]
    TimedOut {
        /// What was awaited.
        what: &'static str,
        /// The timeout.
        waited: Duration,
    },
}

impl Error {
    pub(crate) fn parameter(
        what: &'static str,
        value: impl Into<u64>,
        wanted: impl Into<String>,
    ) -> Self {
        Self::Parameter { what, value: value.into(), wanted: wanted.into() }
    }
}

/// An error of the kernel or of a library.
pub(crate) fn system(
    operation: &'static str,
    error: impl Into<Box<dyn core::error::Error + Send + Sync>>,
) -> Error {
    Error::System { operation, source: std::io::Error::other(error) }
}
