//! `barewire hca run`: runs a program on the software HCA as mlx5 devices.

mod run;
mod tree;

use crate::args::{HcaArgs, HcaCommand};
use crate::error::Error;
use std::process::ExitCode;

/// Runs the command. Returns the exit code of the program.
pub(crate) fn run(args: &HcaArgs) -> Result<ExitCode, Error> {
    match &args.command {
        HcaCommand::Run(args) => run::run(args),
    }
}
