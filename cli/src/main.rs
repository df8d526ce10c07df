//! The `barewire` command line.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod affinity;
mod args;
mod child;
mod control;
mod demo;
mod doctor;
mod error;
mod hca;
mod hello;
mod info;
mod key;
mod launch;
mod link;
mod local;
mod manual;
mod output;
mod pair;
mod peer;
mod perf;
mod pkg_config;
mod plan;
mod preload;
mod ranks;
mod remote;
mod session;
mod test;
mod transports;
mod uct;
mod units;
mod wait;

use args::{Cli, Command, SecondArgs};
use barewire::config::unknown_variables;
use barewire_tcp::key::{KEY_FILE_VARIABLE, KEY_VARIABLE, Key};
use clap::Parser;
use clap::error::ErrorKind;
use error::Error;
use link::Link;
use output::{Output, error_line, warning_line};
use peer::{Role, Work};
use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(asked)
            if matches!(asked.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) =>
        {
            return end(Output::default().line(asked.render().to_string().trim_end()));
        }
        // The program's own help, if there are no words at all; also the exit code of an error.
        Err(asked) if asked.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprintln!("{}", asked.render().to_string().trim_end());
            return ExitCode::from(2);
        }
        Err(error) => {
            let words: Vec<OsString> = std::env::args_os().skip(1).collect();
            let words = words.iter().filter_map(|word| word.to_str());
            return end(Err(Error::Usage(args::usage_line(&error, words))));
        }
    };
    if let Some(capture) = cli.capture() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("BAREWIRE_HCA_PCAP", capture) };
    }
    if let Err(error) = hand_on_key(&cli) {
        return end(Err(error));
    }
    // Also in a process that does not report them: the library does so unless this is called.
    let unknown = unknown_variables();
    if !matches!(cli.command, Command::Second(_) | Command::DoctorRow(_)) {
        for unknown in unknown {
            warning_line(&unknown.to_string());
        }
    }
    let mut out = Output::default();
    match cli.command {
        Command::Demo(args) => end(demo::run(&args, &mut out)),
        Command::Info(args) => end(info::run(&args, &mut out)),
        Command::Hello(args) => end(hello::run(&args, &mut out)),
        Command::Perf(args) => end(perf::run(&args, &mut out)),
        Command::Plan(args) => end(plan::run(&args, &mut out)),
        Command::Doctor(args) => end(doctor::run(&args, &mut out)),
        Command::DoctorRow(args) => end(doctor::row(&args, &mut out)),
        Command::Hca(args) => hca::run(&args).unwrap_or_else(|error| end(Err(error))),
        Command::Uct(args) => uct::run(&args).unwrap_or_else(|error| end(Err(error))),
        Command::Run(args) => launch::run(&args).unwrap_or_else(|error| end(Err(error))),
        Command::Key(args) => end(key::run(&args, &mut out)),
        Command::Completions(args) => end(manual::completions(&args, &mut out)),
        Command::Man(args) => end(manual::pages(&args)),
        Command::Second(args) => match second(&args) {
            // The first process prints the error for both.
            Err((_, true)) => ExitCode::FAILURE,
            Err((error, false)) => end(Err(error)),
            Ok(()) => ExitCode::SUCCESS,
        },
    }
}

/// Returns whether the command starts a second process.
fn makes_pair(command: &Command) -> bool {
    match command {
        Command::Demo(_) => true,
        Command::Perf(args) => {
            let here = args.host.is_none() && !args.listen && !args.loopback;
            here && (args.all || !ranks::launched())
        }
        _ => false,
    }
}

/// The second process: executes the requests of the first. An error comes with a flag: whether the
/// first process has it already.
fn second(args: &SecondArgs) -> Result<(), (Error, bool)> {
    // The first process reports its own reason to the user.
    let unknown = |error| {
        let known = matches!(error, Error::PeerGaveUp { .. });
        (error, known)
    };
    let stream = pair::attend(args.parent).map_err(unknown)?;
    let mut link = Link::open(stream, Role::Second, args.work, None, None).map_err(unknown)?;
    let result = match args.work {
        Work::Demo => demo::follow(&mut link),
        Work::Perf => perf::follow(&mut link, None).map(drop),
        Work::Doctor | Work::Hello => {
            Err(Error::Usage(format!("'{}' does not run in a second process", args.work)))
        }
    };
    let finished = link.finish(result.as_ref().err());
    match result {
        Ok(()) => finished.outcome.map_err(unknown),
        Err(error) => Err((error, finished.told)),
    }
}

/// Puts the job key into the environment of this process and its children. A pair without a key
/// gets a new one.
fn hand_on_key(cli: &Cli) -> Result<(), Error> {
    let set = |name: &str, value: &OsStr| {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var(name, value) };
    };
    if let Some(file) = &cli.key_file {
        set(KEY_FILE_VARIABLE, file.as_os_str());
    }
    let given = Key::is_in_env();
    if given && (cli.key_file.is_some() || makes_pair(&cli.command)) {
        // A key that cannot be read is reported before any output.
        let key = crate::transports::key()?;
        // The packets of devices under another program, and the command to their links.
        if let (Command::Hca(_), Some(key)) = (&cli.command, key) {
            set("BAREWIRE_HCA_KEY", key.to_digits().as_ref());
        }
    }
    if makes_pair(&cli.command) && !given {
        let key = Key::generate().map_err(|error| Error::Local(error.to_string()))?;
        set(KEY_VARIABLE, key.to_digits().as_ref());
    }
    Ok(())
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
