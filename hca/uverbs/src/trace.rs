//! A record of the commands that the program sends by DEVX.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::OnceLock;

/// A file to which each command and its answer are appended: a line of two hexadecimal numbers.
pub(crate) const COMMANDS_VARIABLE: &str = "BAREWIRE_HCA_COMMANDS";

/// Appends a command and its answer to the file, if there is one.
pub(crate) fn record(input: &[u8], output: &[u8]) {
    static FILE: OnceLock<Option<File>> = OnceLock::new();
    let Some(file) = FILE.get_or_init(open) else { return };
    let mut line = String::with_capacity(2 * (input.len() + output.len()) + 2);
    hex(&mut line, input);
    line.push(' ');
    hex(&mut line, output);
    line.push('\n');
    // One call, so that lines of several processes do not mix. A full disk ends the record only.
    let _ = (&*file).write_all(line.as_bytes());
}

fn open() -> Option<File> {
    let path = std::env::var_os(COMMANDS_VARIABLE).filter(|path| !path.is_empty())?;
    let mut options = File::options();
    options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(&path);
    file.inspect_err(|error| {
        eprintln!("barewire-hca: cannot write {}: {error}", path.display());
    })
    .ok()
}

fn hex(line: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(line, "{byte:02x}");
    }
}
