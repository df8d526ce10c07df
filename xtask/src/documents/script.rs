//! Runs the commands of a document as a reader would type them.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::{REPOSITORY, at};
use crate::packages;
use crate::process::{self, Failure, Invocation, Output, repository};

/// How literally commands are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tier {
    /// With the programs of `quick/` in place of cargo's builds and of long measurements.
    Quick,
    /// As printed, with the blocks that take minutes.
    Deep,
    /// As printed, with the programs of a release build: their output is written into the documents.
    Write,
}

/// Programs that a machine may lack. A script with one of them is then left out.
const PROGRAMS: [&str; 9] = [
    "cc",
    "git",
    "ib_write_lat",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "mpirun",
    "ucx_info",
    "ucx_perftest",
    "valgrind",
];

/// What became of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Every command succeeded. This is their standard output.
    Printed(String),
    /// The machine lacks a program.
    LeftOut,
    /// A command failed: which one, and the output.
    Failed(String),
}

/// Runs scripts, each in an empty folder that is its home.
#[derive(Debug)]
pub(super) struct Runner {
    tier: Tier,
    /// Where the folders of the scripts are.
    folder: PathBuf,
    /// Scripts that were run and succeeded.
    pub(super) passed: u64,
    pub(super) left_out: u64,
    count: u32,
}

impl Runner {
    pub(super) fn new(tier: Tier) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // Outside of the repository, whose workspace a new package would join.
        let name = format!("barewire-documents-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        Self { tier, folder, passed: 0, left_out: 0, count: 0 }
    }

    pub(super) fn tier(&self) -> Tier {
        self.tier
    }

    /// Runs commands. Fails if the caller is to stop.
    pub(super) fn run(&mut self, name: &str, commands: &str) -> Result<Outcome, Failure> {
        if let Some(program) = PROGRAMS.iter().find(|p| uses(commands, p) && !packages::on_path(p))
        {
            println!("left out: {name}: {program} is not installed");
            self.left_out += 1;
            return Ok(Outcome::LeftOut);
        }
        let started = Instant::now();
        let outcome = self.execute(commands)?;
        println!("{name}: {:.1} s", started.elapsed().as_secs_f64());
        self.passed += u64::from(matches!(outcome, Outcome::Printed(_)));
        Ok(outcome)
    }

    fn execute(&mut self, commands: &str) -> Result<Outcome, Failure> {
        self.count += 1;
        let folder = self.folder.join(self.count.to_string());
        let script = prepare(&folder, commands).map_err(|error| at(&folder, &error))?;
        let deadline = match self.tier {
            Tier::Quick => Duration::from_mins(10),
            Tier::Deep | Tier::Write => Duration::from_hours(1),
        };
        let environment = environment(&script, &folder.join("home"), self.tier);
        let outcome = process::run(&environment, deadline, Output::Inherit);
        let read = |name| {
            let bytes = fs::read(folder.join(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        match outcome {
            Ok(()) => Ok(Outcome::Printed(read("stdout"))),
            Err(failure @ (Failure::Interrupted(_) | Failure::Start { .. })) => Err(failure),
            Err(failure) => Ok(Outcome::Failed(format!(
                "the commands fail: {failure}\n{}{}",
                read("stdout"),
                read("stderr")
            ))),
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Where a reader would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In a checkout of the repository.
    Checkout,
    /// In a new package, to which commands add dependencies.
    Package,
    /// Anywhere.
    Anywhere,
}

impl Place {
    fn of(commands: &str) -> Self {
        if uses(commands, "cargo add") {
            Self::Package
        } else if uses(commands, "cargo") && !uses(commands, "cargo install")
            || commands.contains("target/")
        {
            Self::Checkout
        } else {
            Self::Anywhere
        }
    }
}

/// Returns whether the words occur in the commands.
fn uses(commands: &str, words: &str) -> bool {
    let bounded =
        |text: Option<char>| !text.is_some_and(|c| c.is_alphanumeric() || "_-./".contains(c));
    commands.match_indices(words).any(|(at, _)| {
        bounded(commands[..at].chars().next_back())
            && bounded(commands[at + words.len()..].chars().next())
    })
}

/// Makes the home in the folder of a script, and writes the script beside it.
fn prepare(folder: &Path, commands: &str) -> std::io::Result<PathBuf> {
    let home = folder.join("home");
    fs::create_dir_all(&home)?;
    let mut start = format!("exec >'{0}/stdout' 2>'{0}/stderr' </dev/null\n", folder.display());
    let place = Place::of(commands);
    if place != Place::Checkout {
        // What is published is this repository.
        let own =
            format!("[url \"file://{}\"]\n\tinsteadOf = {REPOSITORY}\n", repository().display());
        fs::write(home.join(".gitconfig"), own)?;
        // For all scripts, so that one of them fetches it.
        start += "export CARGO_HOME=$HOME/../../cargo\ncd\n";
    }
    if place == Place::Package {
        start += "cargo init -q --vcs none package\ncd package\n";
    }
    let script = format!("{}{start}{}", include_str!("shell.bash"), typed(commands));
    let path = folder.join("script");
    fs::write(&path, script)?;
    Ok(path)
}

/// Returns the commands with what a reader does between them: sees what a command is and that it
/// succeeded, and waits until a server is there.
fn typed(commands: &str) -> String {
    let mut script = String::from("servers=()\ntrap 'kill ${servers[@]} 2>/dev/null' EXIT\n");
    let (mut command, mut end_of_input) = (String::new(), None);
    for line in commands.lines().filter(|line| !line.trim().is_empty()) {
        command += line;
        command.push('\n');
        if end_of_input.is_none() {
            end_of_input = line.split_once("<<").map(|(_, word)| word.replace('\'', ""));
        } else if end_of_input.as_deref() == Some(line) {
            end_of_input = None;
        }
        if line.ends_with('\\') || end_of_input.is_some() {
            continue;
        }
        let code = line.split(" #").next().unwrap_or_default().trim_end();
        let shown = command.trim_end().replace('\'', r"'\''");
        let _ = writeln!(script, "echo '$ {shown}' >&2\n{command}[ $? = 0 ] || exit 1");
        if code.ends_with('&') {
            script += "servers+=($!)\nlistening $!\n";
        }
        command.clear();
    }
    script += "for server in ${servers[@]}; do wait $server || exit 1; done\nservers=()\n";
    script
}

/// Returns the command that runs a script with the home of a new user, who is not root and has as
/// many CPUs as ranks.
fn environment(script: &Path, home: &Path, tier: Tier) -> Invocation {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let of_home = |name: &str, folder: &str| match std::env::var(name) {
        Ok(path) => path,
        Err(_) => format!("{}/{folder}", variable("HOME")),
    };
    let folder = |name| repository().join(name).display().to_string();
    let folders = match tier {
        Tier::Quick => vec![folder("xtask/src/documents/quick"), folder("target/debug")],
        Tier::Deep => vec![folder("target/debug")],
        Tier::Write => vec![folder("target/release")],
    };
    let path = format!("{}:{}", folders.join(":"), variable("PATH"));
    Invocation::new("bash", &[&script.display().to_string()])
        .environment("PATH", &path)
        .environment("CARGO_TARGET_DIR", "target")
        .environment("CARGO_HOME", &of_home("CARGO_HOME", ".cargo"))
        .environment("RUSTUP_HOME", &of_home("RUSTUP_HOME", ".rustup"))
        .environment("HOME", &home.display().to_string())
        .environment("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .environment("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .environment("OMPI_MCA_rmaps_base_oversubscribe", "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(commands: &str) -> Outcome {
        let mut runner = Runner::new(Tier::Quick);
        let outcome = runner.run("a.md:1", commands).unwrap();
        assert_eq!(runner.passed, u64::from(matches!(outcome, Outcome::Printed(_))));
        outcome
    }

    fn fault(commands: &str) -> String {
        match run(commands) {
            Outcome::Failed(what) => what,
            other => panic!("{commands}: {other:?}"),
        }
    }

    #[test]
    fn commands_run_in_order_in_an_empty_home() {
        let commands = "a=1\n\n[ -z \"$(ls)\" ]    # empty\necho $a \\\n  2 > ~/b\ncat b\n";
        assert_eq!(run(commands), Outcome::Printed("1 2\n".to_owned()));
    }

    #[test]
    fn input_of_a_command_is_not_taken_for_commands() {
        let commands = "sh <<'END'\nfalse &\necho one\nEND\necho two\n";
        assert_eq!(run(commands), Outcome::Printed("one\ntwo\n".to_owned()));
    }

    #[test]
    fn a_command_that_fails_ends_the_script_and_is_shown() {
        for bad in ["false", "false && true", "nothing-of-this-name"] {
            let error = fault(&format!("echo first\n{bad}\necho last\n"));
            let shown =
                format!("the commands fail: exit status: 1\nfirst\n$ echo first\n$ {bad}\n");
            assert!(error.starts_with(&shown), "{error}");
        }
    }

    #[test]
    fn a_client_starts_when_the_server_listens() {
        // The server needs a while, and the client does not wait.
        let commands = "\
perl -MIO::Socket::UNIX -e 'sleep 1; IO::Socket::UNIX->new(Local => \"s\", Listen => 1)->accept' &    # here
perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Peer => \"s\") or die'
";
        assert_eq!(run(commands), Outcome::Printed(String::new()));
    }

    #[test]
    fn a_server_that_fails_is_an_error() {
        let error = fault("false &\ntrue\n");
        assert!(error.starts_with("the commands fail: exit status: 1\n"), "{error}");
    }

    #[test]
    fn the_place_of_commands_is_that_of_their_reader() {
        for (commands, place) in [
            ("cargo add x", Place::Package),
            ("cargo build", Place::Checkout),
            ("A=1 cargo run --release -- demo", Place::Checkout),
            ("target/debug/barewire info", Place::Checkout),
            ("cargo install barewire-cli", Place::Anywhere),
            ("barewire info", Place::Anywhere),
        ] {
            assert_eq!(Place::of(commands), place, "{commands}");
        }
    }

    #[test]
    fn words_of_commands_are_whole_words() {
        assert!(uses("x; ucx_info -d", "ucx_info"));
        assert!(uses("cargo add x", "cargo add"));
        assert!(!uses("my-ucx_info -d", "ucx_info"));
        assert!(!uses("bin/ucx_info -d", "ucx_info"));
    }
}
