//! Versions and commands in documents are those of this repository.

use serde_json::Value;

use super::markdown::Document;
use super::{Faults, SOON, contents};
use crate::USAGE;
use crate::process::{self, Failure, Invocation};

/// Checks the versions of our crates in examples of dependencies, the version of Rust, and the names
/// of tasks.
pub(super) fn check(documents: &[Document], faults: &mut Faults) -> Result<(), Failure> {
    let manifest = contents("Cargo.toml")?;
    let value = |key: &str| {
        let line = manifest.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
        line.and_then(|rest| rest.split('"').next())
            .ok_or_else(|| Failure::Found(format!("Cargo.toml has no {key}")))
    };
    let version = value("version")?;
    let minor = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
    compare(documents, minor, value("rust-version")?, USAGE, faults);
    let metadata = Invocation::cargo(&["metadata", "--format-version", "1", "--no-deps"]);
    let metadata = process::text(&metadata, SOON)?;
    let metadata = serde_json::from_str(&metadata)
        .map_err(|error| Failure::Found(format!("cargo metadata is not JSON: {error}")))?;
    targets(documents, &Target::all(&metadata), faults);
    Ok(())
}

/// A bench, a test or an example of the workspace.
#[derive(Debug)]
struct Target {
    package: String,
    /// `bench`, as in `--bench NAME`.
    kind: String,
    name: String,
    /// Cargo finds it without `-p`.
    is_default: bool,
}

impl Target {
    fn all(metadata: &Value) -> Vec<Self> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let default = list(&metadata["workspace_default_members"]);
        let mut all = Vec::new();
        for package in list(&metadata["packages"]) {
            for target in list(&package["targets"]) {
                all.push(Self {
                    package: text(&package["name"]),
                    kind: text(&target["kind"][0]),
                    name: text(&target["name"]),
                    is_default: default.contains(&package["id"]),
                });
            }
        }
        all
    }
}

/// Checks the targets that cargo's commands name, in blocks and in the text.
fn targets(documents: &[Document], known: &[Target], faults: &mut Faults) {
    for document in documents.iter().filter(|document| document.path != "CHANGELOG.md") {
        for (line, text) in (1..).zip(document.text.lines()) {
            // In the text, a command is between two backticks.
            for command in text.split('`').filter(|part| part.contains("cargo ")) {
                for target in unknown(command, known) {
                    faults.add(&document.path, line, target);
                }
            }
        }
    }
}

/// The targets of a command that do not exist.
fn unknown(command: &str, known: &[Target]) -> Vec<String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let own = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    let pairs: Vec<(&str, &str)> = words[..own].windows(2).map(|pair| (pair[0], pair[1])).collect();
    let packages: Vec<&str> =
        pairs.iter().filter(|(option, _)| *option == "-p").map(|(_, name)| *name).collect();
    let is_there = |kind: &str, name: &str| {
        let is_in = |target: &Target| match packages[..] {
            [] => target.is_default,
            _ => packages.contains(&&*target.package),
        };
        known.iter().any(|target| target.kind == kind && target.name == name && is_in(target))
    };
    let named = pairs.into_iter().filter_map(|(option, name)| {
        let kind =
            ["bench", "test", "example"].into_iter().find(|kind| option == format!("--{kind}"))?;
        // A name in capitals stands for any.
        let is_name = name.contains(|c: char| c.is_ascii_lowercase());
        (is_name && !is_there(kind, name)).then(|| {
            let package =
                if packages.is_empty() { "without -p".to_owned() } else { packages.join(", ") };
            format!("cargo has no {kind} {name} ({package})")
        })
    });
    named.collect()
}

fn compare(documents: &[Document], ours: &str, rust: &str, usage: &str, faults: &mut Faults) {
    for document in documents.iter().filter(|document| document.path != "CHANGELOG.md") {
        for block in document.blocks.iter().filter(|block| block.language == "toml") {
            for (line, text) in (block.line + 1..).zip(block.code.lines()) {
                match dependency(text) {
                    Some(version) if version != ours => {
                        let what = format!("version {version}, the current one is {ours}");
                        faults.add(&document.path, line, what);
                    }
                    _ => {}
                }
            }
        }
        for (line, text) in (1..).zip(document.text.lines()) {
            for version in after(text, "Rust 1.").filter(|version| format!("1.{version}") != rust) {
                let what = format!("Rust 1.{version}, the oldest supported one is {rust}");
                faults.add(&document.path, line, what);
            }
            for task in after(text, "cargo xtask ") {
                let is_listed =
                    usage.split(|c: char| !c.is_alphanumeric()).any(|word| word == task);
                if !task.is_empty() && !is_listed {
                    faults.add(&document.path, line, format!("cargo xtask has no task {task}"));
                }
            }
        }
    }
}

/// The version of a line such as `barewire-hca = "0.2"` or `barewire = { version = "0.2" }`.
fn dependency(line: &str) -> Option<&str> {
    let (name, value) = line.split_once('=')?;
    let quoted = match value.split_once("version") {
        Some((_, value)) => value.split_once('=')?.1,
        None => value,
    };
    let version = quoted.trim().strip_prefix('"')?.split('"').next()?;
    name.trim().starts_with("barewire").then_some(version)
}

/// The words that follow a text.
fn after<'a>(line: &'a str, text: &str) -> impl Iterator<Item = &'a str> {
    line.split(text).skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
        &rest[..end]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let mut faults = Faults::default();
        compare(&[Document::parse("a.md", text)], "0.2", "1.95", "usage: test|bench", &mut faults);
        faults.texts()
    }

    #[test]
    fn current_versions_and_tasks_are_no_faults() {
        let text = "Rust 1.95 or later; `cargo xtask bench ROW`, `cargo xtask`\n```toml\n[dependencies]\n\
            barewire-hca = \"0.2\"\nserde = \"1\"\nbarewire = { version = \"0.2\" }\n\
            barewire = { git = \"https://x.org\" }\n```\n";
        assert_eq!(faults(text), [""; 0]);
    }

    #[test]
    fn old_versions_and_unknown_tasks_are_faults() {
        let text = "Rust 1.90\n`cargo xtask deb`\n```toml\nbarewire-hca = \"0.1\"\n\
            barewire = { version = \"0.3\", features = [] }\n```\n";
        let expected = [
            "a.md:4: version 0.1, the current one is 0.2",
            "a.md:5: version 0.3, the current one is 0.2",
            "a.md:1: Rust 1.90, the oldest supported one is 1.95",
            "a.md:2: cargo xtask has no task deb",
        ];
        assert_eq!(faults(text), expected);
    }

    #[test]
    fn targets_that_cargo_does_not_find_are_faults() {
        let target = |package: &str, kind: &str, name: &str| Target {
            package: package.to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            is_default: package == "a",
        };
        let known = [target("a", "example", "hello"), target("b", "bench", "threads")];
        let text = "`cargo run --example hello`, `cargo bench -p b --bench threads -- --test x`\n\
            three runs of `cargo bench -p a --bench threads`\n`cargo bench --bench threads`\n\
            `cargo run --example NAME`; `barewire perf --test am_lat`\n```sh\ncargo test -p b --test it\n```\n";
        let mut faults = Faults::default();
        targets(&[Document::parse("a.md", text)], &known, &mut faults);
        let expected = [
            "a.md:2: cargo has no bench threads (a)",
            "a.md:3: cargo has no bench threads (without -p)",
            "a.md:6: cargo has no test it (b)",
        ];
        assert_eq!(faults.texts(), expected);
    }
}
