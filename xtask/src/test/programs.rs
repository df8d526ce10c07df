//! The programs and tests of the workspace, as one command of cargo builds them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::process::{self, Failure, Invocation};

/// For a cold build on two busy processors.
const BUILD: Duration = Duration::from_mins(30);

/// A program that cargo built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// The name of its target: of a library or program for unit tests, else that of the test.
    pub(crate) target: String,
    /// Whether it has tests.
    pub(crate) is_test: bool,
    /// `lib`, `bin`, `test`, `example` and so on.
    kind: String,
    pub(crate) path: PathBuf,
    /// The folder of its package, in which its tests run.
    folder: PathBuf,
}

impl Program {
    /// Parses one line of cargo's messages; `None` if it is about no program.
    fn parse(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Some(Self {
            target: text(&message["target"]["name"])?,
            is_test: message["profile"]["test"].as_bool()?,
            kind: text(&message["target"]["kind"][0])?,
            path: text(&message["executable"])?.into(),
            folder: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
        })
    }

    /// Returns `folder: target`, as in `shm: life`, or `shm: unit tests`.
    pub(crate) fn name(&self) -> String {
        let folder = self.folder.strip_prefix(process::repository()).unwrap_or(&self.folder);
        let folder = if folder == Path::new("") { Path::new("barewire") } else { folder };
        let tests = match self.kind.as_str() {
            "test" => &self.target,
            "bin" => "unit tests of the program",
            _ => "unit tests",
        };
        format!("{}: {tests}", folder.display())
    }

    /// Returns the command that runs its tests as `cargo test` does.
    pub(crate) fn run(&self) -> Invocation {
        Invocation::new(&self.path.to_string_lossy(), &[])
            .in_folder(&self.folder)
            // Tests that run libraries and programs need not build them.
            .environment("BAREWIRE_TEST_BUILT", "1")
    }
}

/// All programs of one build.
#[derive(Debug)]
pub(crate) struct Programs(Vec<Program>);

impl Programs {
    /// Builds all programs, libraries and tests. One command for all, since a build without tests
    /// gives dependencies other features, and would build most crates again.
    ///
    /// # Errors
    /// The build failed; cargo has printed why.
    pub(crate) fn build(features: &[&str]) -> Result<Self, Failure> {
        Self::by(command().with(features))
    }

    /// Builds by a command of cargo.
    ///
    /// # Errors
    /// The build failed; cargo has printed why.
    pub(crate) fn by(build: Invocation) -> Result<Self, Failure> {
        println!("{build}");
        let build = build.with(&["--message-format=json-render-diagnostics"]);
        Ok(Self::of(&process::text(&build, BUILD)?))
    }

    /// Parses cargo's messages.
    fn of(messages: &str) -> Self {
        Self(messages.lines().filter_map(Program::parse).collect())
    }

    /// Returns all programs with tests.
    pub(crate) fn tests(&self) -> impl Iterator<Item = &Program> {
        self.0.iter().filter(|program| program.is_test)
    }

    /// Returns the tests `target` of the package in `folder`; the root's folder is empty.
    ///
    /// # Errors
    /// Cargo built no such tests.
    pub(crate) fn test(&self, folder: &str, target: &str) -> Result<&Program, Failure> {
        let folder = process::repository().join(folder);
        let mut tests = self.tests().filter(|program| program.kind == "test");
        tests
            .find(|test| test.target == target && folder.components().eq(test.folder.components()))
            .ok_or_else(|| {
                Failure::Found(format!("cargo built no tests {target} in {}", folder.display()))
            })
    }

    /// Returns the path of a program without tests, such as `barewire`.
    ///
    /// # Errors
    /// Cargo built no such program.
    pub(crate) fn program(&self, name: &str) -> Result<&Path, Failure> {
        let mut programs = self.0.iter().filter(|program| !program.is_test);
        let found = programs.find(|program| program.target == name && program.kind == "bin");
        found
            .map(|program| &*program.path)
            .ok_or_else(|| Failure::Found(format!("cargo built no program {name}")))
    }

    /// Returns the path of a bench.
    ///
    /// # Errors
    /// Cargo built no such bench.
    pub(crate) fn bench(&self, name: &str) -> Result<String, Failure> {
        let found = self.0.iter().find(|program| program.target == name && program.kind == "bench");
        found
            .map(|program| program.path.to_string_lossy().into_owned())
            .ok_or_else(|| Failure::Found(format!("cargo built no bench {name}")))
    }
}

/// Returns the build without its features.
pub(crate) fn command() -> Invocation {
    Invocation::cargo(&["build", "--workspace", "--lib", "--bins", "--examples", "--tests"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(folder: &str, kind: &str, name: &str, is_test: bool, path: &str) -> String {
        let manifest = process::repository().join(folder).join("Cargo.toml");
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":{manifest:?},"target":{{"kind":["{kind}"],"name":"{name}"}},"profile":{{"test":{is_test}}},"executable":"{path}"}}"#
        )
    }

    #[test]
    fn programs_and_tests_are_told_apart() {
        let messages = [
            message("cli", "bin", "barewire", false, "/t/debug/barewire"),
            message("cli", "bin", "barewire", true, "/t/debug/deps/barewire-1"),
            message("", "test", "conformance", true, "/t/debug/deps/conformance-1"),
            message("shm", "test", "life", true, "/t/debug/deps/life-1"),
            message("shm", "lib", "barewire_shm", true, "/t/debug/deps/barewire_shm-1"),
            message("benches", "bench", "api", false, "/t/release/deps/api-1"),
            r#"{"reason":"compiler-artifact","executable":null}"#.to_owned(),
            "not JSON".to_owned(),
        ];
        let programs = Programs::of(&messages.join("\n"));
        assert_eq!(programs.program("barewire").unwrap(), Path::new("/t/debug/barewire"));
        assert!(programs.program("hello").is_err());
        assert_eq!(programs.bench("api").unwrap(), "/t/release/deps/api-1");
        assert!(programs.bench("barewire").is_err());
        assert_eq!(programs.test("shm", "life").unwrap().path, Path::new("/t/debug/deps/life-1"));
        assert!(programs.test("", "life").is_err());
        assert!(programs.test("", "conformance").is_ok());
        let names: Vec<_> = programs.tests().map(Program::name).collect();
        let expected = [
            "cli: unit tests of the program",
            "barewire: conformance",
            "shm: life",
            "shm: unit tests",
        ];
        assert_eq!(names, expected);
    }
}
