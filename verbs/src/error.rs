//! Errors of verbs calls, with the device and a remedy.

use std::io;

use thiserror::Error;

/// A call of libibverbs or libmlx5 that failed.
#[derive(Debug, Error)]
#[error("{device}: cannot {action}: {source}{}", .hint.as_deref().map_or(String::new(), |hint| format!("; {hint}")))]
pub struct Error {
    device: String,
    action: String,
    source: io::Error,
    hint: Option<String>,
}

impl Error {
    /// `action` completes the sentence "cannot ...".
    pub(crate) fn new(device: &str, action: impl Into<String>, source: io::Error) -> Self {
        Self { device: device.to_owned(), action: action.into(), source, hint: None }
    }

    /// Adds a hint on the cause or a remedy.
    pub(crate) fn with_hint(self, hint: impl Into<Option<String>>) -> Self {
        Self { hint: hint.into(), ..self }
    }

    /// The name of the device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The error of the call.
    pub fn source_error(&self) -> &io::Error {
        &self.source
    }

    /// The errno value, if there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.source.kind(), error)
    }
}
