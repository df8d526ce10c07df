//! Completion scripts and pages of the manual, from the definition of the arguments.

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::error::{Error, local};
use crate::output::Output;
use clap::{Command, CommandFactory};
use std::fs;

/// A command without the hidden ones below it, which scripts would otherwise offer: what completion
/// needs of it.
fn visible(command: &Command) -> Command {
    let below = command.get_subcommands().filter(|below| !below.is_hide_set()).map(visible);
    let about = command.get_about().cloned().unwrap_or_default();
    Command::new(command.get_name().to_owned())
        .about(about)
        .args(command.get_arguments())
        .subcommands(below)
        .disable_help_subcommand(true)
}

/// Prints the completion script for a shell.
pub(crate) fn completions(args: &CompletionsArgs, out: &mut Output) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible(&Cli::command()), "barewire", &mut script);
    out.line(String::from_utf8_lossy(&script).trim_end())
}

/// Writes a page for the program and one for each command.
pub(crate) fn pages(args: &ManArgs) -> Result<(), Error> {
    let folder = &args.folder;
    let failed =
        |error: &std::io::Error| local(format!("cannot write to {}", folder.display()), error);
    fs::create_dir_all(folder).map_err(|error| failed(&error))?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(|error| failed(&error))
}
