//! Standard output that outlives its reader, and the error line.

use crate::error::{Error, one_line};
use std::io::{self, ErrorKind, Write};

/// Standard output. If its reader goes away (`barewire info | head -1`) the rest is discarded and the work
/// goes on; the exit code still tells how it ended.
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

/// Said beside every table of times.
pub(crate) const EMULATOR: &str =
    "These are times of the software HCA, an emulator on this machine's CPUs, not of a NIC.";

/// Prints what deserves attention and ends nothing.
pub(crate) fn warning_line(text: &str) {
    let _ = writeln!(io::stderr(), "barewire: warning: {}", one_line(text));
}

/// Prints the one line that says why a command ended.
pub(crate) fn error_line(text: &str) {
    // Nothing is left to be done if even this cannot be written.
    let _ = writeln!(io::stderr(), "barewire: error: {}", one_line(text));
}
