//! `barewire uct run`: runs a program of UCX over the transports of this library.

use crate::args::{UctArgs, UctCommand};
use crate::error::Error;
use crate::preload::{self, Library};
use std::process::ExitCode;

const LIBRARY: Library = Library { file: "libbarewire_uct.so", package: "barewire-uct" };

/// Runs the command. Returns the exit code of the program.
pub(crate) fn run(args: &UctArgs) -> Result<ExitCode, Error> {
    let UctCommand::Run(args) = &args.command;
    preload::run(preload::command(&LIBRARY, &args.program)?)
}
