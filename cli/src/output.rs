//! Standard output that may be closed, and error lines.

use crate::error::{Error, one_line};
use std::io::{self, ErrorKind, Write};

/// Standard output. If its reader closes it (`barewire info | head -1`), the rest of the output is
/// discarded and the command continues; the exit code still reports the result.
#[derive(Debug, Default)]
pub(crate) struct Output {
    reader_gone: bool,
}

impl Output {
    /// Writes a line.
    pub(crate) fn line(&mut self, line: impl std::fmt::Display) -> Result<(), Error> {
        if self.reader_gone {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        match writeln!(out, "{line}").and_then(|()| out.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.reader_gone = true;
                Ok(())
            }
            Err(error) => Err(Error::Local(format!("cannot write the output: {error}"))),
        }
    }
}

/// Printed with every table of times.
pub(crate) const EMULATOR: &str =
    "These are times of the software HCA, an emulator on this machine's CPUs, not of a NIC.";

/// Prints a warning.
pub(crate) fn warning_line(text: &str) {
    let _ = writeln!(io::stderr(), "barewire: warning: {}", one_line(text));
}

/// Prints the reason why a command ended.
pub(crate) fn error_line(text: &str) {
    // Ignore errors: there is no other place to report them.
    let _ = writeln!(io::stderr(), "barewire: error: {}", one_line(text));
}
