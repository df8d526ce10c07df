//! `barewire key`: makes a job key.

use crate::args::KeyArgs;
use crate::error::{Error, local};
use crate::output::Output;
use barewire_tcp::key::{KEY_FILE_VARIABLE, Key};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;

pub(crate) fn run(args: &KeyArgs, out: &mut Output) -> Result<(), Error> {
    let file = &args.file;
    let key = Key::generate().map_err(|error| Error::Local(error.to_string()))?;
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)
        .and_then(|mut opened| writeln!(opened, "{}", key.to_digits()))
        .map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Error::Local(format!(
                "File exists: '{0}' was not changed. Use it with --key-file {0} if it is the job's \
                 key, or give another name for a new one",
                file.display()
            )),
            _ => local(format!("cannot make the key '{}'", file.display()), &error),
        })?;
    out.line(format!(
        "{0}: give every process of the job --key-file {0} or {KEY_FILE_VARIABLE}={0}",
        file.display()
    ))
}
