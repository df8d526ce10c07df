//! Every block of shell commands is run as printed, or says why not.

use super::Faults;
use super::markdown::{Block, Document, Mark};
use super::script::{Outcome, Runner, Tier};
use crate::process::Failure;

/// The reason of a block that runs in the deep tier only.
const MINUTES: &str = "takes minutes";

/// The reason of the block that `cargo xtask documents --bare` runs.
pub(super) const BARE: &str = "runs on the bare machine";

/// Why a block is not run.
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
pub(super) fn check(
    documents: &[Document],
    runner: &mut Runner,
    faults: &mut Faults,
) -> Result<(), Failure> {
    for document in documents {
        for (line, mark) in &document.loose {
            faults.add(&document.path, *line, format!("no block follows {mark:?}"));
        }
        for block in document.blocks.iter().filter(|block| block.is_shell()) {
            let fault = match reason(block) {
                Some(reason) if reason != MINUTES || runner.tier() == Tier::Quick => {
                    known(reason).err()
                }
                _ => match runner.run(&format!("{}:{}", document.path, block.line), &block.code)? {
                    Outcome::Failed(what) => Some(what),
                    _ => None,
                },
            };
            if let Some(what) = fault {
                faults.add(&document.path, block.line, what);
            }
        }
    }
    Ok(())
}

fn reason(block: &Block) -> Option<&str> {
    match &block.mark {
        Some(Mark::NotRun(reason)) => Some(reason),
        _ => None,
    }
}

/// Checks that a reason is one of the list.
pub(super) fn known(reason: &str) -> Result<(), String> {
    if REASONS.contains(&reason) {
        return Ok(());
    }
    Err(format!("not a reason: '{reason}'; reasons are: {}", REASONS.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let mut faults = Faults::default();
        let mut runner = Runner::new(Tier::Quick);
        check(&[Document::parse("a.md", text)], &mut runner, &mut faults).unwrap();
        faults.texts()
    }

    #[test]
    fn blocks_run_unless_they_say_why_not() {
        let text = "```sh\ntrue\n```\n\n```text\nfalse\n```\n\n<!-- not run: needs root -->\n```sh\nfalse\n```\n\n\
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
        let found = faults("<!-- not run: no time -->\n```console\ntrue\n```\n");
        assert!(found[0].starts_with("a.md:2: not a reason: 'no time'"), "{found:?}");
        let found = faults("<!-- not run: needs root -->\n\ntext\n\n```sh\ntrue\n```\n");
        assert_eq!(found, ["a.md:1: no block follows NotRun(\"needs root\")"]);
    }
}
