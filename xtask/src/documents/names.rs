//! Versions and commands in documents are those of this repository.

use super::markdown::Document;
use super::{Faults, contents};
use crate::USAGE;
use crate::process::Failure;

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
    Ok(())
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
}
