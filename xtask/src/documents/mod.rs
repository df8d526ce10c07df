//! `cargo xtask documents`: what the documents say holds.
//!
//! The documents are all Markdown files of the repository and the help texts of `barewire`.

pub(crate) mod bare;
mod blocks;
mod figures;
mod help;
mod links;
mod markdown;
mod names;
mod plain;
mod script;
mod written;

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crate::count::Tally;
use crate::packages;
use crate::process::{self, Failure, Output, repository};
use crate::test::programs;
use links::Tree;
use markdown::Document;
use script::Tier;

/// Where the repository is published.
const REPOSITORY: &str = "https://github.com/barewire/barewire";

/// For short commands, such as those of git.
const SOON: Duration = Duration::from_mins(1);
const BUILD: Duration = Duration::from_mins(30);

/// Statements of documents that are wrong.
#[derive(Debug, Default)]
struct Faults(Vec<String>);

impl Faults {
    fn add(&mut self, path: &str, line: usize, what: impl fmt::Display) {
        self.0.push(format!("{path}:{line}: {what}"));
    }

    #[cfg(test)]
    fn texts(&self) -> Vec<String> {
        self.0.clone()
    }
}

/// Runs the command with these arguments.
pub(crate) fn documents(arguments: &[&str]) -> ExitCode {
    process::watch_signals();
    let outcome = match arguments {
        [] => check().map(drop),
        ["--deep"] => check_all().map(drop),
        ["--write"] => write(),
        ["--bare"] | ["--bare", "both"] => check_bare(),
        ["--bare", "first"] => bare::run(bare::Commands::First),
        _ => {
            eprintln!("xtask: documents [--deep|--write|--bare [first|both]]");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: documents: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Checks the documents as far as it is quick once the workspace is built: see [`Tier::Quick`].
/// Returns how many blocks and examples ran.
pub(crate) fn check() -> Result<Tally, Failure> {
    check_by(Tier::Quick)
}

/// Runs every command of the documents as printed, also the slow ones.
pub(crate) fn check_all() -> Result<Tally, Failure> {
    check_by(Tier::Deep)
}

/// Runs README's two commands on a bare machine.
pub(crate) fn check_bare() -> Result<(), Failure> {
    bare::run(bare::Commands::Both)
}

fn check_by(tier: Tier) -> Result<Tally, Failure> {
    build()?;
    let (documents, tree) = read()?;
    let mut faults = Faults::default();
    links::check(&documents, &tree, &mut faults);
    plain::check(&documents, &mut faults);
    names::check(&documents, &mut faults)?;
    figures::check(&documents, &mut faults)?;
    written::check_parts(&documents, &mut faults);
    let mut runner = script::Runner::new(tier);
    blocks::check(&documents, &mut runner, &mut faults)?;
    written::check_outputs(&documents, &mut runner, &mut faults)?;
    help::check(&mut runner, &mut faults)?;
    for fault in &faults.0 {
        println!("{fault}");
    }
    let tally = Tally { passed: runner.passed, failed: faults.0.len() as u64 };
    println!(
        "{} documents: {} scripts passed, {} left out, {} faults",
        documents.len(),
        tally.passed,
        runner.left_out,
        tally.failed
    );
    match faults.0.len() {
        0 => Ok(tally),
        count => Err(Failure::Found(format!("{count} faults in the documents"))),
    }
}

/// Writes what is derived: figures, outputs of programs, parts of programs.
fn write() -> Result<(), Failure> {
    let (mut documents, _) = read()?;
    figures::write(&mut documents)?;
    written::write(&mut documents)
}

/// Reads every Markdown file of the repository, and the names of all files.
fn read() -> Result<(Vec<Document>, Tree), Failure> {
    let mut files = Vec::new();
    find_files(repository(), &mut files).map_err(|error| at(repository(), &error))?;
    let is_document = |file: &&String| Path::new(file).extension().is_some_and(|kind| kind == "md");
    let document = |path: &String| Ok(Document::parse(path, &contents(path)?));
    let documents: Result<Vec<_>, Failure> =
        files.iter().filter(is_document).map(document).collect();
    Ok((documents?, Tree::new(&files)))
}

/// Finds the files below a folder, except those that git ignores and its own.
fn find_files(folder: &Path, files: &mut Vec<String>) -> std::io::Result<()> {
    let entries: std::io::Result<Vec<_>> = fs::read_dir(folder)?.collect();
    let mut paths: Vec<_> = entries?.iter().map(fs::DirEntry::path).collect();
    let ignored = ["target", "fuzz/target", ".git"].map(|name| repository().join(name));
    paths.retain(|path| !ignored.contains(path));
    paths.sort_unstable();
    for path in paths {
        if path.is_dir() {
            find_files(&path, files)?;
        } else if let Ok(path) = path.strip_prefix(repository()) {
            files.push(path.display().to_string());
        }
    }
    Ok(())
}

/// Builds what the documents run, with the tests, so that nothing is built twice.
fn build() -> Result<(), Failure> {
    let mut build = programs::command().with(&["--quiet"]);
    if packages::left_out(&[&packages::VERBS]).is_empty() {
        build = build.with(&["--all-features"]);
    }
    // Where the documents have it.
    build = build.environment("CARGO_TARGET_DIR", "target");
    println!("{build}");
    process::run(&build, BUILD, Output::Inherit)
}

fn contents(path: &str) -> Result<String, Failure> {
    let path = repository().join(path);
    fs::read_to_string(&path).map_err(|error| at(&path, &error))
}

fn replace(path: &str, text: &str) -> Result<(), Failure> {
    let path = repository().join(path);
    fs::write(&path, text).map_err(|error| at(&path, &error))
}

pub(crate) fn at(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Found(format!("{}: {error}", path.display()))
}
