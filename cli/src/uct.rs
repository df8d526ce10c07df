//! `barewire uct run`: runs a program of UCX over the transports of this library.

use crate::args::{UctArgs, UctCommand};
use crate::error::Error;
use crate::preload::{self, Library};
use std::process::ExitCode;

const LIBRARY: Library = Library {
    file: "libbarewire_uct.so",
    package: "barewire-uct",
    installed: "barewire-uct-preload",
};

/// The setting of libucp that names its transports, and those over which it can connect. With
/// others it would select one and then fail to connect; programs that use UCT itself ignore it.
const TRANSPORTS: (&str, &str) = ("UCX_TLS", "self,shm,cma");

/// Runs the command. Returns the exit code of the program.
pub(crate) fn run(args: &UctArgs) -> Result<ExitCode, Error> {
    let UctCommand::Run(args) = &args.command;
    let mut command = preload::command(&LIBRARY, &args.program)?;
    let (variable, transports) = TRANSPORTS;
    if std::env::var_os(variable).is_none() {
        command.env(variable, transports);
    }
    preload::run(command)
}
