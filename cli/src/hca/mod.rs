//! `barewire hca`: runs a program on the software HCA as mlx5 devices, and takes their links down.

mod run;
mod tree;

use crate::args::{HcaArgs, HcaCommand, LinkState};
use crate::error::{Error, local};
use std::process::ExitCode;

/// Runs the command. Returns the exit code of the program.
pub(crate) fn run(args: &HcaArgs) -> Result<ExitCode, Error> {
    match &args.command {
        HcaCommand::Run(args) => run::run(args),
        HcaCommand::Link(args) => barewire_hca::set_link(args.address, args.state == LinkState::Up)
            .map(|()| ExitCode::SUCCESS)
            .map_err(|error| local("cannot set the link", &error)),
    }
}
