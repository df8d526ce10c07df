//! `barewire uct`: `run` runs a program of UCX over the transports of this library, `pkg-config` is
//! for programs that are linked to it.

use crate::args::{UctArgs, UctCommand};
use crate::error::{Error, local};
use crate::pkg_config;
use crate::preload::{self, Library};
use barewire_tcp::Key;
use barewire_tcp::key::KEY_VARIABLE;
use std::process::ExitCode;

const LIBRARY: Library = Library {
    file: "libbarewire_uct.so",
    package: "barewire-uct",
    installed: "barewire-uct-preload",
};

/// The setting of libucp that names its transports, and those that are selected unless it is set:
/// not the RDMA devices, which on most machines are software HCAs. Programs that use UCT itself
/// ignore it.
const TRANSPORTS: (&str, &str) = ("UCX_TLS", "self,shm,cma,tcp");

/// Runs the command. Returns its exit code, unless the program takes the place of this process.
pub(crate) fn run(args: &UctArgs) -> Result<ExitCode, Error> {
    let args = match &args.command {
        UctCommand::Run(args) => args,
        UctCommand::PkgConfig(args) => {
            return pkg_config::write(&LIBRARY, args).map(|()| ExitCode::SUCCESS);
        }
    };
    let mut command = preload::command(&LIBRARY, &args.program)?;
    let (variable, transports) = TRANSPORTS;
    if std::env::var_os(variable).is_none() {
        command.env(variable, transports);
    }
    // The processes of an MPI job inherit it. Programs that are started separately need one key.
    if Key::from_env().map_err(|error| local("cannot read the job's key", &error))?.is_none() {
        let key = Key::generate().map_err(|error| local("cannot generate a key", &error))?;
        command.env(KEY_VARIABLE, key.to_digits());
    }
    Ok(preload::replace(command))
}
