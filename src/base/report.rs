//! Warnings for the user of a program.

use std::fmt;
use std::io::{self, Write as _};

use tracing::Dispatch;
use tracing::subscriber::NoSubscriber;

/// Logs a warning, or writes it to standard error if the program has no subscriber of `tracing`.
#[cold]
pub fn warn(text: &impl fmt::Display) {
    if tracing::dispatcher::get_default(Dispatch::is::<NoSubscriber>) {
        let _ = writeln!(io::stderr(), "barewire: {text}");
    } else {
        tracing::warn!("{text}");
    }
}
