//! Every block of shell commands is run as printed, or says why not.

use std::fs;
use std::path::Path;

use super::Faults;
use super::markdown::{Block, Document, Mark};
use super::script::{Runner, Tier};
use crate::process::repository;

/// The reason of a block that runs in the deep tier only.
const MINUTES: &str = "takes minutes";

/// The reason of the block that `cargo xtask documents --bare` runs.
pub(super) const BARE: &str = "runs on the bare machine";

/// Why a block is not run. The other reasons begin with `covered by`.
const REASONS: [&str; 9] = [
    MINUTES,
    BARE,
    "needs a cluster",
    "needs a GPU",
    "needs a program of the reader",
    "needs a second host",
    "needs an adapter",
    "needs root",
    "needs the package registries",
];

/// Runs the blocks, and checks the reasons of those that are not run.
pub(super) fn check(documents: &[Document], runner: &mut Runner, faults: &mut Faults) {
    for document in documents {
        for (line, mark) in &document.loose {
            faults.add(&document.path, *line, format!("no block follows {mark:?}"));
        }
        for block in document.blocks.iter().filter(|block| block.is_shell()) {
            let name = format!("{}:{}", document.path, block.line);
            let outcome = match reason(block) {
                Some(MINUTES) if runner.tier() == Tier::Deep => {
                    runner.run(&name, &block.code).map(drop)
                }
                Some(reason) => known(reason),
                None => runner.run(&name, &block.code).map(drop),
            };
            if let Err(what) = outcome {
                faults.add(&document.path, block.line, what);
            }
        }
    }
}

fn reason(block: &Block) -> Option<&str> {
    match &block.mark {
        Some(Mark::NotRun(reason)) => Some(reason),
        _ => None,
    }
}

/// Checks that a reason is one of the list, or names a file or a step of the tests that exists.
pub(super) fn known(reason: &str) -> Result<(), String> {
    let exists = match reason.strip_prefix("covered by ") {
        Some(place) => match place.strip_prefix("the step ") {
            Some(step) => is_quoted(&repository().join("xtask/src"), &format!("\"{step}\"")),
            None => repository().join(place).is_file(),
        },
        None => REASONS.contains(&reason),
    };
    let unknown = || {
        let list = REASONS.join(", ");
        format!(
            "not a reason: '{reason}'; reasons are: {list}, covered by FILE, covered by the step NAME"
        )
    };
    exists.then_some(()).ok_or_else(unknown)
}

/// Returns whether a source file below the folder contains the text.
fn is_quoted(folder: &Path, text: &str) -> bool {
    fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            is_quoted(&path, text)
        } else {
            fs::read_to_string(path).is_ok_and(|source| source.contains(text))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let mut faults = Faults::default();
        let mut runner = Runner::for_tests();
        check(&[Document::parse("a.md", text)], &mut runner, &mut faults);
        faults.texts()
    }

    #[test]
    fn blocks_run_unless_they_say_why_not() {
        let text = "```sh\ntrue\n```\n\n```text\nfalse\n```\n\n<!-- not run: needs root -->\n```sh\nfalse\n```\n\n\
            <!-- not run: covered by xtask/src/main.rs -->\n```console\nfalse\n```\n\n\
            <!-- not run: covered by the step documentation -->\n```sh\nfalse\n```\n\n\
            <!-- not run: takes minutes -->\n```sh\nfalse\n```\n";
        assert_eq!(faults(text), [""; 0]);
    }

    #[test]
    fn commands_that_fail_are_faults() {
        let found = faults("text\n\n```sh\nfalse\n```\n");
        assert_eq!(found, ["a.md:3: the commands fail: exit status: 1\n$ false\n"]);
    }

    #[test]
    fn unknown_reasons_and_marks_without_a_block_are_faults() {
        for reason in
            ["no time", "covered by nothing.rs", "covered by the step nothing of this name"]
        {
            // Not as one text: this file would have the name of the step.
            let found = faults(&format!("<!-- not run: {reason} -->\n```sh\ntrue\n```\n"));
            assert!(
                found[0].starts_with(&format!("a.md:2: not a reason: '{reason}'")),
                "{found:?}"
            );
        }
        let found = faults("<!-- not run: needs root -->\n\ntext\n\n```sh\ntrue\n```\n");
        assert_eq!(found, ["a.md:1: no block follows NotRun(\"needs root\")"]);
    }
}
