//! Standard output that may be closed, and error lines.

use crate::error::{Error, local, one_line};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

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

/// Columns of lines if standard output is no terminal, and the variable that changes them.
const COLUMNS: usize = 100;
const COLUMNS_VARIABLE: &str = "COLUMNS";
const FEWEST_COLUMNS: usize = 40;

/// Returns the width of the terminal in columns, or of the lines in a file or a pipe.
pub(crate) fn columns() -> usize {
    let given = || std::env::var(COLUMNS_VARIABLE).ok()?.parse().ok();
    terminal().unwrap_or_else(|| given().unwrap_or(COLUMNS).max(FEWEST_COLUMNS))
}

/// Returns the width of the terminal in columns, if standard output is one.
pub(crate) fn terminal() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    // A terminal that does not know its size has 0 columns.
    (size.ws_col > 0).then(|| usize::from(size.ws_col).max(FEWEST_COLUMNS))
}

/// Breaks an entry of a list, which scripts read line by line, into lines that fit the terminal.
/// Where standard output is none, it stays one line.
pub(crate) fn entry(text: &str) -> String {
    wrapped(text, 4, terminal().unwrap_or(usize::MAX))
}

/// Breaks text between words into lines of at most `columns` columns, with `indent` spaces before
/// all but the first.
pub(crate) fn wrapped(text: &str, indent: usize, columns: usize) -> String {
    let mut lines = String::new();
    let mut used = indent;
    for word in text.split(' ') {
        let length = word.chars().count();
        if used > indent && used + 1 + length > columns {
            lines.push('\n');
            lines.extend(std::iter::repeat_n(' ', indent));
            used = indent;
        } else if used > indent {
            lines.push(' ');
            used += 1;
        }
        lines.push_str(word);
        used += length;
    }
    lines
}

/// Checks that `what`, such as `the plot`, can be written to a file, before a command does what
/// takes long.
pub(crate) fn check_file(what: &str, file: &Path) -> Result<(), Error> {
    let found = fs::symlink_metadata(file);
    if found.as_ref().is_ok_and(|found| !found.is_file()) {
        // A pipe, for example, whose reader would see its end.
        return Ok(());
    }
    let is_new = found.is_err();
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(file)
        .and_then(|_| if is_new { fs::remove_file(file) } else { Ok(()) })
        .map_err(|error| local(cannot_write(what, file), &error))
}

/// Writes `what` to a file.
pub(crate) fn write_file(what: &str, file: &Path, text: &str) -> Result<(), Error> {
    fs::write(file, text).map_err(|error| local(cannot_write(what, file), &error))
}

fn cannot_write(what: &str, file: &Path) -> String {
    format!("cannot write {what} '{}'", file.display())
}

/// Printed with every table of times.
pub(crate) const EMULATOR: &str =
    "These are times of the software HCA, an emulator on this machine's CPUs, not of a NIC.";

/// Whether this program was built without optimisation, by `cargo build` without `--release`.
pub(crate) const DEBUG_BUILD: bool = cfg!(debug_assertions);
/// Why its times are of no use.
pub(crate) const DEBUG: &str = "this is a debug build, whose times are several times those of a \
                                release build: build with --release";

/// Warns before times are measured by a debug build.
pub(crate) fn warn_of_debug_build() {
    if DEBUG_BUILD {
        warning_line(DEBUG);
    }
}

/// Prints a warning.
pub(crate) fn warning_line(text: &str) {
    let _ = writeln!(io::stderr(), "barewire: warning: {}", one_line(text));
}

/// Prints the reason why a command ended.
pub(crate) fn error_line(text: &str) {
    // Ignore errors: there is no other place to report them.
    let _ = writeln!(io::stderr(), "barewire: error: {}", one_line(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_between_words() {
        assert_eq!(wrapped("one two three", 2, 9), "one two\n  three");
        assert_eq!(wrapped("one two three", 2, 100), "one two three");
        assert_eq!(
            wrapped("a_word_that_is_too_long for this", 1, 5),
            "a_word_that_is_too_long\n for\n this"
        );
        assert_eq!(wrapped("", 4, 10), "");
    }
}
