//! `barewire hca run`: a program sees the software HCA as mlx5 devices.

mod library;
mod run;
mod tree;

use crate::args::{HcaArgs, HcaCommand};
use crate::error::Error;
use std::process::ExitCode;

/// Runs the command; the exit code is the program's.
pub(crate) fn run(args: &HcaArgs) -> Result<ExitCode, Error> {
    match &args.command {
        HcaCommand::Run(args) => run::run(args),
    }
}
