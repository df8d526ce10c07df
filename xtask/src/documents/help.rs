//! Every example of the help texts of `barewire` runs, or is in a list with the reason why not.

use super::script::{Outcome, Runner};
use super::{Faults, SOON, blocks};
use crate::process::{self, Failure, Invocation};

/// Examples that are not run, without their comments, and why.
const NOT_RUN: [(&str, &str); 8] = [
    ("barewire doctor --listen -a 192.0.2.1 --key-file job.key", "needs a second host"),
    ("barewire doctor --peer 192.0.2.1 --key-file job.key", "needs a second host"),
    ("barewire hello -t tcp -a 192.0.2.1 --key-file job.key", "needs a second host"),
    ("barewire perf -x tcp --listen -a 192.0.2.1 --key-file job.key", "needs a second host"),
    ("barewire perf -x tcp -t am_lat 192.0.2.1 --key-file job.key", "needs a second host"),
    (
        "barewire plan $(ssh a barewire plan | head -1) $(ssh b barewire plan | head -1)",
        "needs a second host",
    ),
    ("barewire uct run -- mpiexec.mpich -n 2 ./program", "needs a program of the reader"),
    (
        "cc program.c $(PKG_CONFIG_PATH=~/barewire-uct pkg-config --cflags --libs barewire-uct)",
        "needs a program of the reader",
    ),
];

/// Runs the examples of each command, in the order of its help.
pub(super) fn check(runner: &mut Runner, faults: &mut Faults) -> Result<(), Failure> {
    let mut unused: Vec<&(&str, &str)> = NOT_RUN.iter().collect();
    let mut commands = vec![String::new()];
    while let Some(command) = commands.pop() {
        let ask = Invocation::new("target/debug/barewire", &[])
            .with(&command.split_whitespace().collect::<Vec<_>>())
            .with(&["--help"])
            // Otherwise long lines are wrapped.
            .environment("COLUMNS", "999");
        let help = process::text(&ask, SOON)?;
        commands.extend(subcommands(&help).map(|below| format!("{command} {below}")));
        let (run, left): (Vec<&str>, Vec<&str>) = examples(&help)
            .partition(|line| !NOT_RUN.iter().any(|(example, _)| *example == code(line)));
        unused.retain(|(example, _)| !left.iter().any(|line| code(line) == *example));
        let name = format!("barewire{command} --help");
        if !run.is_empty()
            && let Outcome::Failed(what) = runner.run(&name, &run.join("\n"))?
        {
            faults.add(&name, 1, what);
        }
    }
    for (example, _) in unused {
        faults.add(file!(), 1, format!("no help has the example {example}"));
    }
    for (_, reason) in NOT_RUN {
        blocks::known(reason).unwrap_or_else(|what| faults.add(file!(), 1, what));
    }
    Ok(())
}

/// The commands below the one of this help.
fn subcommands(help: &str) -> impl Iterator<Item = &str> {
    let names = section(help, "Commands:").filter_map(|line| line.split_whitespace().next());
    // The command prints the help of other commands, and has no `--help`.
    names.filter(|name| *name != "help")
}

/// The lines of the examples.
fn examples(help: &str) -> impl Iterator<Item = &str> {
    section(help, "Examples:").map(str::trim)
}

/// The lines below a heading, which are indented.
fn section<'a>(help: &'a str, heading: &str) -> impl Iterator<Item = &'a str> {
    let lines = help.lines().skip_while(move |line| *line != heading).skip(1);
    lines.take_while(|line| line.starts_with("  "))
}

/// A line without its comment.
fn code(line: &str) -> &str {
    line.split("  #").next().unwrap_or_default().trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELP: &str = "\
Provide devices

Usage: barewire hca <COMMAND>

Commands:
  run     Run a program
  second  Run another

Options:
  -h, --help  Print help

Examples:
  barewire hca run -- a &    # the server
  barewire hca run -- b
More text.
";

    #[test]
    fn commands_and_examples_are_found() {
        assert_eq!(subcommands(HELP).collect::<Vec<_>>(), ["run", "second"]);
        let lines: Vec<&str> = examples(HELP).collect();
        assert_eq!(lines, ["barewire hca run -- a &    # the server", "barewire hca run -- b"]);
        assert_eq!(code(lines[0]), "barewire hca run -- a &");
    }
}
