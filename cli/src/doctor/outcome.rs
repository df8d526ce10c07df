//! The outcome of a row.

use std::error::Error as StdError;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, chain};

/// How a row ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Ok,
    Fail,
    Skip,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Fail => "FAIL",
            Self::Skip => "skip",
        })
    }
}

/// The outcome of a row, which its process prints as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Outcome {
    pub(super) state: State,
    /// What was found, in one line.
    pub(super) detail: String,
}

impl Outcome {
    pub(super) fn failed(detail: impl Into<String>) -> Self {
        Self { state: State::Fail, detail: detail.into() }
    }

    pub(super) fn skipped(detail: impl Into<String>) -> Self {
        Self { state: State::Skip, detail: detail.into() }
    }
}

/// Why a row ended early.
#[derive(Debug)]
pub(super) enum Halt {
    Failed(String),
    /// The row does not apply.
    Skipped(String),
}

impl Halt {
    pub(super) fn failed(reason: impl Into<String>) -> Self {
        Self::Failed(reason.into())
    }
}

impl<E: StdError> From<E> for Halt {
    fn from(error: E) -> Self {
        Self::Failed(chain(&error))
    }
}

/// What a row found, or why it ended early.
pub(super) type Checked<T = String> = Result<T, Halt>;

impl From<Checked> for Outcome {
    fn from(checked: Checked) -> Self {
        match checked {
            Ok(detail) => Self { state: State::Ok, detail },
            Err(Halt::Failed(reason)) => Self::failed(reason),
            Err(Halt::Skipped(reason)) => Self::skipped(reason),
        }
    }
}

/// Fails unless `holds`.
pub(super) fn ensure(holds: bool, reason: impl FnOnce() -> String) -> Checked<()> {
    if holds { Ok(()) } else { Err(Halt::Failed(reason())) }
}

/// An error of the program, for a row that cannot run.
pub(super) fn lost(what: &str, error: &dyn StdError) -> Error {
    crate::error::local(what, error)
}
