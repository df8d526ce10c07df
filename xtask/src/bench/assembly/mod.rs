//! The machine code of the hot functions: the listings in `benches/asm/`, and what a hot function
//! must not do.

mod barriers;
mod listing;
mod program;
mod reach;
mod rules;

use std::fs;

use self::program::{Machine, Program};
use super::build::Binary;
use crate::process::{Failure, repository};

const FOLDER: &str = "benches/asm";
/// Functions of the benches with this prefix are hot.
const HOT: &str = "held_";
/// Except these: hot functions behind a branch, whose other side is `self`, which calls handlers
/// and copies data; and functions that take the lock of a shared worker.
const EXCEPT: [&str; 2] = ["held_dynamic_", "held_shared_"];
/// The hottest functions, whose code is checked in.
const LISTED: &[&str] =
    &["held_write_8", "held_write_segment", "held_send_prefixed", "held_poll", "held_reap"];
/// Doorbells and polls that the bench of the driver has at least.
const DOORBELLS: usize = 10;
const POLLS: usize = 2;

/// Checks every hot function, and compares the listings, or writes them if `BLESS` is set. Returns
/// the complaints.
pub(super) fn check(binaries: &[Binary], rustc: &str) -> Result<Vec<String>, Failure> {
    let mut complaints = Vec::new();
    if !cfg!(target_arch = "x86_64") {
        println!("assembly: not checked, the rules are for x86-64");
        return Ok(complaints);
    }
    let head = format!("{rustc}, SSE2 baseline");
    let mut hot = 0;
    let mut listed = 0;
    for binary in binaries {
        let program = Program::read(&binary.path, Machine::X86_64)?;
        for function in program
            .beginning_with(HOT)
            .filter(|function| !EXCEPT.iter().any(|prefix| function.name.starts_with(prefix)))
        {
            hot += 1;
            let findings =
                reach::findings(&program, function, &rules::slow_functions(&function.name));
            complaints.extend(rules::complaints(&function.name, &findings));
        }
        for name in LISTED {
            let Some(function) = program.exported(name) else { continue };
            listed += 1;
            let listing = listing::listing(&program, function);
            complaints.extend(compare(name, &listing, &head, "x86-64")?);
        }
        println!("assembly: read bench {}", binary.level.name());
    }
    if listed != LISTED.len() || hot <= listed {
        complaints.push(format!(
            "{listed} of {} listed functions and {hot} hot ones found",
            LISTED.len()
        ));
    }
    println!("assembly: {hot} hot functions, {} complaints", complaints.len());
    Ok(complaints)
}

/// Checks the barriers of every hot function of the bench of the driver at `path`, built for
/// aarch64, and compares the listings as [`check`] does. Returns the complaints.
pub(super) fn check_aarch64(path: &str, rustc: &str) -> Result<Vec<String>, Failure> {
    let program = Program::read(path, Machine::Aarch64)?;
    let mut complaints = Vec::new();
    let mut found = barriers::Found::default();
    for function in program.beginning_with(HOT) {
        complaints.extend(barriers::complaints(function, &mut found));
    }
    // Otherwise the instructions have other names than the check expects.
    if found.doorbells < DOORBELLS || found.polls < POLLS {
        complaints.push(format!("aarch64: found {found:?}, too few to believe"));
    }
    let head = format!("{rustc}, Armv8.0-A baseline");
    for name in LISTED {
        let Some(function) = program.exported(name) else {
            complaints.push(format!("aarch64: no function {name}"));
            continue;
        };
        let listing = listing::listing(&program, function);
        if listing.contains(" adrp ") {
            complaints.push(format!("aarch64: {name} loads a constant, which no listing names"));
        }
        complaints.extend(compare(name, &listing, &head, "aarch64")?);
    }
    println!(
        "assembly: aarch64, {} doorbells and {} polls, {} complaints",
        found.doorbells,
        found.polls,
        complaints.len()
    );
    Ok(complaints)
}

/// Compares a listing with its file, or writes the file if `BLESS` is set.
fn compare(
    name: &str,
    listing: &str,
    head: &str,
    machine: &str,
) -> Result<Option<String>, Failure> {
    let bless = std::env::var_os("BLESS").is_some_and(|value| !value.is_empty() && value != "0");
    let file = format!("{FOLDER}/{}.{machine}.s", name.trim_start_matches(HOT));
    let path = repository().join(&file);
    let head = format!("# {head}; BLESS=1 cargo xtask asm writes this file\n");
    let now = format!("{head}# {} instructions\n{listing}", listing::length(listing));
    if bless {
        return match fs::write(&path, now) {
            Ok(()) => {
                println!("wrote {file}");
                Ok(None)
            }
            Err(error) => Err(Failure::Found(format!("cannot write {file}: {error}"))),
        };
    }
    let Ok(then) = fs::read_to_string(&path) else {
        return Ok(Some(format!("{file} is missing: BLESS=1 cargo xtask asm writes it")));
    };
    if !then.starts_with(&head) {
        let compiler = then.split(',').next().unwrap_or_default().trim_start_matches("# ");
        println!("{file}: not compared, written by '{compiler}', this compiler differs");
        return Ok(None);
    }
    Ok((then != now).then(|| {
        format!(
            "{name} is not as in {file}:\n{}BLESS=1 cargo xtask asm accepts it",
            difference(&then, &now)
        )
    }))
}

/// Returns the lines from the first to the last difference, of both.
fn difference(then: &str, now: &str) -> String {
    let (then, now): (Vec<&str>, Vec<&str>) = (then.lines().collect(), now.lines().collect());
    let same =
        |pairs: &mut dyn Iterator<Item = (&&str, &&str)>| pairs.take_while(|(a, b)| a == b).count();
    let front = same(&mut then.iter().zip(&now));
    let shorter = then.len().min(now.len());
    let back = same(&mut then.iter().rev().zip(now.iter().rev())).min(shorter - front);
    let mut text = String::new();
    for (sign, lines) in
        [('-', &then[front..then.len() - back]), ('+', &now[front..now.len() - back])]
    {
        for line in lines {
            text.extend([sign]);
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_what_differs() {
        assert_eq!(difference("a\nb\nc\nd\n", "a\nx\nc\nd\n"), "-b\n+x\n");
        assert_eq!(difference("a\na\n", "a\na\na\n"), "+a\n");
        assert_eq!(difference("a\n", "b\n"), "-a\n+b\n");
    }
}
