//! The `barewire` command line: see what there is, move a file, say hello, measure.

mod args;
mod control;
mod demo;
mod error;
mod hca;
mod hello;
mod info;
mod link;
mod output;
mod pair;
mod patience;
mod perf;
mod remote;
mod session;
mod transports;
mod units;
mod wait;

use args::{Cli, Command};
use clap::Parser;
use clap::error::ErrorKind;
use error::Error;
use output::{Output, error_line};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(asked) if matches!(asked.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return end(Output::default().line(asked.render().to_string().trim_end()));
        }
        Err(error) => return end(Err(Error::Usage(args::usage_line(&error)))),
    };
    if let Some(capture) = cli.capture() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("BAREWIRE_HCA_PCAP", capture) };
    }
    let mut out = Output::default();
    match cli.command {
        Command::Demo(args) => end(demo::run(&args, &mut out)),
        Command::Info(args) => end(info::run(&args, &mut out)),
        Command::Hello(args) => end(hello::run(&args, &mut out)),
        Command::Perf(args) => end(perf::run(&args, &mut out)),
        Command::Hca(args) => hca::run(&args).unwrap_or_else(|error| end(Err(error))),
        Command::Second(args) => match remote::second(&args) {
            // The first process prints the line for both.
            Err((_, true)) => ExitCode::FAILURE,
            Err((error, false)) => end(Err(error)),
            Ok(()) => ExitCode::SUCCESS,
        },
    }
}

fn end(result: Result<(), Error>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error_line(&error.to_string());
            ExitCode::from(error.exit_code())
        }
    }
}
