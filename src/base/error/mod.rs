//! Error types: what failed, on which object, and what to check next.
//!
//! A post returns the small [`PostError`]. An operation that fails after it was posted passes an
//! [`OperationError`] to its [`Completion`](crate::Completion). Its endpoint reports an
//! [`EndpointError`] with all details once. Set-up functions have an error type per object.

/// Implements `Debug` as `Display`: what `main` prints if it returns the error.
macro_rules! debug_as_display {
    ($($error:ty),+ $(,)?) => {$(
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    )+};
}

mod change;
mod operation;
mod post;
mod report;
mod setup;

pub use change::ChangeError;
pub use operation::{Cause, EndpointError, Operation, OperationError, Syndrome};
pub use post::{Busy, PostError, WaitError};
pub use report::Report;
#[cfg(any(feature = "mlx5", feature = "shm", feature = "tcp", feature = "verbs"))]
pub(crate) use setup::Source;
pub use setup::{ConnectError, HandlerError, KeyError, MemoryError, OpenError, PointerError};

pub(crate) use debug_as_display;

debug_as_display!(
    Busy,
    ChangeError,
    ConnectError,
    EndpointError,
    HandlerError,
    KeyError,
    MemoryError,
    OpenError,
    OperationError,
    PointerError,
    PostError,
    WaitError,
    crate::base::address::AddressError,
    crate::base::address::UnknownTransport,
    crate::base::config::ConfigError,
    crate::base::config::UnknownVariable,
    crate::base::device::DeviceIdError,
    crate::base::event::EventError,
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceId;

    #[test]
    fn main_prints_errors_as_sentences() {
        let wrong = "tcp".parse::<DeviceId>().unwrap_err();
        let boxed: Box<dyn std::error::Error> = Box::new(wrong.clone());
        assert_eq!(format!("{boxed:?}"), wrong.to_string());
        assert_eq!(
            format!("{:?}", WaitError::from(PostError::Unsupported)),
            "this transport does not have the operation"
        );
    }
}
