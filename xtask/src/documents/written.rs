//! Blocks that are written by `cargo xtask documents --write`: what a program prints, and parts of
//! programs.

use std::path::Path;

use super::markdown::{Document, Mark};
use super::script::{Outcome, Runner, Tier};
use super::{BUILD, Faults, contents, replace};
use crate::process::{self, Failure, Invocation, Output, repository};

const ADVICE: &str = "cargo xtask documents --write writes it";

/// Compares the blocks that are parts of programs with these.
pub(super) fn check_parts(documents: &[Document], faults: &mut Faults) {
    for (document, block, place) in marked(documents, |mark| match mark {
        Mark::PartOf(place) => Some(place),
        _ => None,
    }) {
        let line = document.blocks[block].line;
        match part(place) {
            Ok(part) if part == document.blocks[block].code => {}
            Ok(_) => faults.add(&document.path, line, format!("differs from {place}; {ADVICE}")),
            Err(failure) => faults.add(&document.path, line, failure),
        }
    }
}

/// Compares the blocks that are outputs with those of the programs, except for the numbers.
pub(super) fn check_outputs(
    documents: &[Document],
    runner: &mut Runner,
    faults: &mut Faults,
) -> Result<(), Failure> {
    if Path::new("/sys/class/infiniband_verbs").exists() {
        println!("left out: outputs of programs: this machine has an RDMA device");
        return Ok(());
    }
    for (document, block, command) in marked(documents, output) {
        let block = &document.blocks[block];
        let fault = match runner.run(&format!("{}:{}", document.path, block.line), command)? {
            Outcome::Printed(printed) => difference(&block.code, &printed),
            Outcome::LeftOut => None,
            Outcome::Failed(what) => Some(what),
        };
        if let Some(what) = fault {
            faults.add(&document.path, block.line, format!("output of {command}: {what}"));
        }
    }
    Ok(())
}

/// Writes both kinds of blocks.
pub(super) fn write(documents: &mut [Document]) -> Result<(), Failure> {
    let build = Invocation::cargo(&["build", "--release", "--quiet"]);
    println!("{build}");
    process::run(&build, BUILD, Output::Inherit)?;
    let mut runner = Runner::new(Tier::Write);
    let here = format!("{}/", repository().display());
    for document in documents {
        let mut text = document.text.clone();
        // The last first, so that the places of the others stay.
        for block in document.blocks.iter().rev() {
            let name = format!("{}:{}", document.path, block.line);
            let new = match &block.mark {
                Some(Mark::PartOf(place)) => Some(part(place)?),
                Some(Mark::OutputOf(command)) => match runner.run(&name, command)? {
                    Outcome::Printed(printed) => Some(printed.replace(&here, "")),
                    Outcome::LeftOut => None,
                    Outcome::Failed(what) => return Err(Failure::Found(what)),
                },
                _ => None,
            };
            if let Some(new) = new {
                text.replace_range(block.place.clone(), &new);
            }
        }
        if text != document.text {
            replace(&document.path, &text)?;
            println!("wrote {}", document.path);
        }
    }
    Ok(())
}

fn output(mark: &Mark) -> Option<&str> {
    match mark {
        Mark::OutputOf(command) => Some(command),
        _ => None,
    }
}

/// The blocks with a kind of mark: the document, the index of the block, and the mark's value.
fn marked(
    documents: &[Document],
    kind: impl Fn(&Mark) -> Option<&str>,
) -> Vec<(&Document, usize, &str)> {
    let blocks = documents.iter().flat_map(|document| {
        let marks = document.blocks.iter().map(|block| block.mark.as_ref());
        marks.enumerate().map(move |(index, mark)| (document, index, mark))
    });
    blocks.filter_map(|(document, index, mark)| Some((document, index, kind(mark?)?))).collect()
}

/// Returns the lines between `// ANCHOR: NAME` and `// ANCHOR_END: NAME`, for `FILE:NAME`.
fn part(place: &str) -> Result<String, Failure> {
    let missing = || Failure::Found(format!("no part of a program: {place}"));
    let (file, name) = place.split_once(':').ok_or_else(missing)?;
    let program = contents(file)?;
    let lines = between(&program, name).ok_or_else(missing)?;
    let indentation = |line: &&str| line.len() - line.trim_start().len();
    let least = lines.iter().filter(|line| !line.trim().is_empty()).map(indentation).min();
    let least = least.unwrap_or_default();
    let lines = lines.iter().map(|line| line.get(least..).unwrap_or_default());
    Ok(lines.flat_map(|line| [line, "\n"]).collect())
}

fn between<'a>(program: &'a str, name: &str) -> Option<Vec<&'a str>> {
    let at =
        |mark: &str| program.lines().position(|line| line.trim() == format!("// {mark}: {name}"));
    let (first, end) = (at("ANCHOR")? + 1, at("ANCHOR_END")?);
    let is_code = |line: &&str| !line.trim().starts_with("// ANCHOR");
    Some(program.lines().take(end).skip(first).filter(is_code).collect())
}

/// Says how an output differs from the documented one, other than in its numbers.
fn difference(documented: &str, printed: &str) -> Option<String> {
    // Another machine may lack a transport, and says so; other lines name a device, too.
    let absent = |line| Some(str::strip_prefix(line, "absent ")?.split_once(": ")?.0);
    let absent: Vec<&str> = printed.lines().filter_map(absent).collect();
    let is_there = |line: &String| !absent.iter().any(|name| line.split(' ').next() == Some(name));
    let documented: Vec<String> = shape(documented).into_iter().filter(is_there).collect();
    // A busy machine says so, too.
    let settled = |line: &String| !line.starts_with("doubtful");
    let printed: Vec<String> = shape(printed).into_iter().filter(settled).collect();
    let mut lines = documented.iter().zip(&printed);
    let what = match lines.find(|(documented, printed)| documented != printed) {
        Some((documented, printed)) => format!("'{printed}' instead of '{documented}'"),
        None if documented.len() == printed.len() => return None,
        None => format!("{} lines instead of {}", printed.len(), documented.len()),
    };
    Some(format!("{what}; {ADVICE}"))
}

/// The lines of an output without what depends on the machine: numbers with their units, paths, and
/// the reasons for absent devices.
fn shape(output: &str) -> Vec<String> {
    const UNITS: [&str; 12] =
        ["B/s", "G", "GB", "GB/s", "M", "MB", "MB/s", "k", "msg/s", "ms", "ns", "us"];
    let is_of_machine = |line: &&str| line.starts_with("absent ") || line.starts_with("    ");
    let lines = output.lines().filter(|line| !is_of_machine(line));
    let words = |line: &str| {
        let words = line.split_whitespace().map(|word| word.trim_matches(['(', ')']));
        let words =
            words.filter(|word| !UNITS.contains(word) && *word != "s").map(|word| {
                match word.chars().next() {
                    Some('0'..='9') => "#",
                    _ if word.contains('/') => "PATH",
                    _ => word,
                }
            });
        words.collect::<Vec<_>>().join(" ")
    };
    lines.map(words).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
sending target/release/barewire (38.5 MB) from process 1 to process 2
transport  operation    bytes     time          rate
shm        put              8    85 ns  2.06 M msg/s
cma        put              8        -             -
absent rc_verbs: no device: /sys does not exist (no
    ib_uverbs in this kernel)
";

    #[test]
    fn outputs_may_differ_in_numbers_units_paths_and_absent_devices() {
        let other = "\
sending /x/barewire (4 GB) from process 11 to process 22
transport  operation    bytes     time          rate
shm        put              8   1.5 ms     9 msg/s
cma        put              8        -             -
absent ConnectX: none
absent shm on eth0: its link is down
";
        assert_eq!(difference(TABLE, other), None);
        let without = other.replace("cma        put              8        -             -\n", "");
        assert_eq!(difference(TABLE, &format!("{without}absent cma: no permission\n")), None);
    }

    #[test]
    fn other_rows_columns_and_missing_values_are_faults() {
        for (old, new, what) in [
            ("rate", "rate  checksum", "'transport operation bytes time rate checksum' instead of"),
            ("85 ns", "-", "'shm put # - #' instead of 'shm put # # #'"),
            ("cma        put              8        -             -\n", "", "3 lines instead of 4"),
            ("shm   ", "self  ", "'self put # # #' instead of 'shm put # # #'"),
        ] {
            let found = difference(TABLE, &TABLE.replace(old, new)).unwrap();
            assert!(found.starts_with(what), "{found}");
        }
    }

    #[test]
    fn a_part_of_a_program_is_what_is_between_its_anchors() {
        let program = "fn f() {\n    // ANCHOR: a\n    if x {\n    // ANCHOR: b\n\n        y\n    \
            // ANCHOR_END: b\n    }\n    // ANCHOR_END: a\n}\n";
        assert_eq!(between(program, "a").unwrap(), ["    if x {", "", "        y", "    }"]);
        assert_eq!(between(program, "b").unwrap(), ["", "        y"]);
        assert_eq!(between(program, "c"), None);
    }

    #[test]
    fn a_block_that_differs_from_its_program_is_a_fault() {
        let place = "wireup/examples/log_1_hello.rs:open";
        let part = part(place).unwrap();
        assert!(!part.starts_with(' '), "{part}");
        let text = |code: &str| format!("<!-- part of: {place} -->\n```rust,ignore\n{code}```\n");
        let found = |text: &str| {
            let mut faults = Faults::default();
            check_parts(&[Document::parse("a.md", text)], &mut faults);
            faults.texts()
        };
        assert_eq!(found(&text(&part)), [""; 0]);
        let differs = format!("a.md:2: differs from {place}; {ADVICE}");
        assert_eq!(found(&text("let x;\n")), [differs]);
        let none = text(&part).replace("open", "nothing");
        assert_eq!(
            found(&none)[0],
            "a.md:2: no part of a program: wireup/examples/log_1_hello.rs:nothing"
        );
    }
}
