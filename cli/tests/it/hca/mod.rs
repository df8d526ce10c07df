//! Pairs of programs over the software HCA.

#![allow(dead_code, reason = "each test binary uses some of it")]

use super::support::{Barewire, PATIENCE, TestFile, start_with};
use crate::port::free_port;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

/// Set by `cargo xtask test`, which has built everything. Another build would have other features.
const BUILT_ALREADY: &str = "BAREWIRE_TEST_BUILT";

/// Builds the library for LD_PRELOAD where the `barewire` of this build finds it.
pub(crate) fn library() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        if env::var_os(BUILT_ALREADY).is_some() {
            return;
        }
        let folder = Path::new(env!("CARGO_BIN_EXE_barewire")).parent().unwrap();
        let mut cargo = cargo("build");
        cargo.arg("--lib");
        if folder.ends_with("release") {
            cargo.arg("--release");
        }
        let built = cargo.output().expect("cargo starts");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    });
}

/// A cargo command with the target directory of this build, for the whole workspace as in this
/// test: a part of it would select other features of its dependencies and rebuild them.
pub(crate) fn cargo(command: &str) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let folder = Path::new(env!("CARGO_BIN_EXE_barewire")).parent().unwrap();
    cargo.args([command, "--quiet", "--workspace", "--target-dir"]).arg(folder.parent().unwrap());
    if cfg!(feature = "verbs") {
        cargo.arg("--all-features");
    }
    cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    cargo
}

/// Returns whether a program is installed; prints its package if not.
pub(crate) fn installed(program: &str, package: &str) -> bool {
    library();
    let paths = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&paths).any(|folder| folder.join(program).is_file());
    if !found {
        println!("skipped: {program} is not installed (Debian: {package})");
    }
    found
}

/// Runs one program until it ends. Returns its output.
pub(crate) fn alone(options: &[&str], program: &[&str]) -> String {
    alone_by(&["hca", "run"], options, program)
}

/// As `alone`, by another command than `barewire hca run`.
pub(crate) fn alone_by(command: &[&str], options: &[&str], program: &[&str]) -> String {
    let ended = start(command, options, program, &[]).end(PATIENCE);
    assert!(ended.status.success(), "{program:?}: {ended:#?}");
    no_findings(&ended.stderr);
    ended.stdout
}

/// Like `alone`, for a program that violates a strict check of the device.
pub(crate) fn found(program: &[&str], finding: &str) -> String {
    let ended = start(HCA, &[], program, &[]).end(PATIENCE);
    assert!(ended.status.success() && ended.stderr.contains(finding), "{program:?}: {ended:#?}");
    ended.stdout
}

/// The command that runs programs over the software HCA.
const HCA: &[&str] = &["hca", "run"];

fn start(
    command: &[&str],
    options: &[&str],
    program: &[&str],
    environment: &[(&str, &str)],
) -> Barewire {
    start_with(&[command, options, &["--"], program].concat(), environment)
}

/// Asserts that neither the libraries nor the strict checks of the device report anything.
fn no_findings(stderr: &str) {
    for findings in ["barewire-hca", "software HCA", "barewire-uct"] {
        assert!(!stderr.contains(findings), "{stderr}");
    }
}

/// A server and a client.
pub(crate) struct Pair<'a> {
    command: &'a [&'a str],
    program: &'a [&'a str],
    options: &'a [&'a str],
    environment: Vec<(&'a str, &'a str)>,
}

impl<'a> Pair<'a> {
    /// A pair of this program, which takes the port by `-p`, and as the client a host as its last
    /// argument.
    pub(crate) fn of(program: &'a [&'a str]) -> Self {
        Self { command: HCA, program, options: &[], environment: Vec::new() }
    }

    /// Runs both by another command than `barewire hca run`.
    pub(crate) fn by(mut self, command: &'a [&'a str]) -> Self {
        self.command = command;
        self
    }

    /// Adds options of the command.
    pub(crate) fn with(mut self, options: &'a [&'a str]) -> Self {
        self.options = options;
        self
    }

    /// Sets an environment variable.
    pub(crate) fn set(mut self, variable: &'a str, value: &'a str) -> Self {
        self.environment.push((variable, value));
        self
    }

    /// Runs both and asserts that both succeed.
    pub(crate) fn run(self) {
        let program = self.program;
        let (server, client) = self.start();
        let (client, server) = (client.end(PATIENCE), server.end(PATIENCE));
        let both = client.status.success() && server.status.success();
        assert!(both, "{program:?}: client {client:#?} server {server:#?}");
        no_findings(&client.stderr);
        no_findings(&server.stderr);
    }

    /// Starts the server and the client.
    pub(crate) fn start(self) -> (Barewire, Barewire) {
        let port = free_port();
        let port_text = port.to_string();
        let with_port = [self.program, &["-p", &port_text]].concat();
        let mut server = start(self.command, self.options, &with_port, &self.environment);
        let deadline = Instant::now() + PATIENCE;
        while !is_listening(port) && !server.has_ended() {
            assert!(Instant::now() < deadline, "{:?} does not listen", self.program);
            thread::sleep(Duration::from_millis(5));
        }
        let program = [&with_port[..], &["127.0.0.1"]].concat();
        let client = start(self.command, self.options, &program, &self.environment);
        (server, client)
    }
}

/// Returns whether a process listens on a port. Connecting would use up the program's only
/// connection.
pub(crate) fn is_listening(port: u16) -> bool {
    const LISTEN: &str = "0A";
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        fs::read_to_string(table).unwrap_or_default().lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().unwrap_or_default();
            local.ends_with(&format!(":{port:04X}")) && words.nth(1) == Some(LISTEN)
        })
    })
}

/// Prints that a program is not installed.
pub(crate) fn skipped(what: &str, package: &str) {
    println!("skipped: {what} not installed (Debian: {package})");
}

/// Compiles a program of `hca/`. Returns `None` if the compiler or a header is missing, which is a
/// path below `/usr/include` and has its package.
pub(crate) fn compiled(
    source: &str,
    (header, package): (&str, &str),
    options: &[&str],
) -> Option<TestFile> {
    if !installed("cc", "gcc") {
        return None;
    }
    if !Path::new("/usr/include").join(header).exists() {
        skipped(header, package);
        return None;
    }
    let program = TestFile::new(source, 0);
    let source = format!("{}/tests/it/hca/{source}.c", env!("CARGO_MANIFEST_DIR"));
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Werror", "-o", program.path(), &source]).args(options);
    let output = compiler.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// A directory that is removed on drop.
pub(crate) struct Folder(String);

impl Folder {
    pub(crate) fn path(&self) -> &str {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Copies the directory `tests` of Debian's documentation, and unpacks its compressed files.
pub(crate) fn unpack(suite: &str) -> Folder {
    let folder = env::temp_dir().join(format!("barewire-pyverbs-{}", std::process::id()));
    let tests = folder.join("tests");
    fs::create_dir_all(&tests).unwrap();
    let folder = Folder(folder.to_str().unwrap().to_owned());
    let mut packed = Vec::new();
    for entry in fs::read_dir(suite).unwrap().flatten() {
        let to = tests.join(entry.file_name());
        fs::copy(entry.path(), &to).unwrap();
        if to.extension().is_some_and(|extension| extension == "gz") {
            packed.push(to);
        }
    }
    let unpacked = Command::new("gzip").arg("-d").args(&packed).status().unwrap();
    assert!(unpacked.success());
    folder
}

/// The differences between a run of the suite and the list of tests that may not run.
pub(crate) fn judge(printed: &str, list: &str) -> Vec<String> {
    let listed: Vec<(&str, &str)> = list
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('\t'))
        .map(|(class, rest)| (rest.split('\t').next().unwrap_or(rest), class))
        .collect();
    let mut wrong = Vec::new();
    let mut ran = 0;
    for line in printed.lines().filter_map(|line| line.strip_prefix("pyverbs\t")) {
        let mut words = line.split('\t');
        let (Some(test), Some(outcome)) = (words.next(), words.next()) else { continue };
        let reason = words.next().unwrap_or_default();
        let class = listed.iter().find(|(name, _)| *name == test).map(|(_, class)| *class);
        match (outcome, class) {
            ("ok", None | Some("here")) => ran += 1,
            ("skipped", Some("later" | "other" | "here")) | ("error" | "failed", Some("fails")) => {
            }
            ("ok", Some("fails")) => {
                println!("{test} runs now: take it off the list");
                ran += 1;
            }
            ("ok", Some(class)) => {
                wrong.push(format!("{test} runs: take it off the list ({class})"));
            }
            (outcome, _) => wrong.push(format!("{test} {outcome}: {reason}")),
        }
    }
    if !printed.lines().any(|line| line == "pyverbs\tend") {
        wrong.push("the suite did not come to its end".to_owned());
    }
    println!("pyverbs: {ran} tests ran well");
    if ran < 130 {
        wrong.push(format!("only {ran} tests ran"));
    }
    wrong
}
