//! Instructions of a program's functions, counted by callgrind.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::tools;
use crate::process::{self, Failure, Invocation, Output};

/// What is counted.
pub(crate) struct Counted<'a> {
    /// The functions, with those that they call, as a pattern of names.
    pub(crate) functions: &'a str,
    /// Each return of a function with such a name ends a part, which is counted by itself.
    pub(crate) parts: Option<&'a str>,
    /// Where callgrind writes. The folder is emptied first.
    pub(crate) folder: &'a Path,
    pub(crate) deadline: Duration,
}

/// Instructions of a part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Part {
    number: u64,
    /// What ended it.
    pub(crate) mark: String,
    pub(crate) instructions: u64,
}

impl Part {
    /// Parses a file of callgrind.
    fn parse(text: &str) -> Option<Self> {
        let line = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
        let number = line("part:").and_then(|number| number.trim().parse().ok());
        Some(Self {
            number: number.unwrap_or(u64::MAX),
            mark: line("desc: Trigger:").unwrap_or_default().trim().to_owned(),
            instructions: line("totals:")?.trim().parse().ok()?,
        })
    }
}

/// Runs `program` under callgrind, which the command `under` starts unless it is empty. Returns the
/// parts in order.
pub(crate) fn count(
    counted: &Counted<'_>,
    program: Invocation,
    under: &[&str],
) -> Result<Vec<Part>, Failure> {
    let Counted { functions, parts, folder, deadline } = counted;
    let cannot = |error| Failure::Found(format!("{}: {error}", folder.display()));
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).map_err(cannot)?;
    let to = format!("--callgrind-out-file={}/callgrind.out", folder.display());
    let functions = format!("--toggle-collect={functions}");
    let parts = parts.map(|parts| format!("--dump-after={parts}"));
    let mut options = vec!["--quiet", "--tool=callgrind", "--fair-sched=try"];
    options.extend(["--collect-atstart=no", &functions, &to]);
    options.extend(parts.as_deref());
    let mut run = program.under(tools::VALGRIND.name, &options);
    if let [first, rest @ ..] = under {
        run = run.under(first, rest);
    }
    // Symbols are resolved before the first call.
    let run = run.environment("LD_BIND_NOW", "1");
    process::run(&run, *deadline, Output::Discard)
        .map_err(|failure| Failure::Found(format!("{failure}; to see why: {run}")))?;
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(cannot)? {
        let text = fs::read_to_string(entry.map_err(cannot)?.path()).map_err(cannot)?;
        found.extend(Part::parse(&text));
    }
    found.sort_unstable();
    if found.is_empty() {
        return Err(Failure::Found(format!("{run}: callgrind counted nothing")));
    }
    Ok(found)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A part as callgrind writes it.
    pub(crate) fn part(number: u64, mark: &str, instructions: u64) -> Part {
        let text = format!(
            "version: 1\npart: {number}\ndesc: Trigger: --dump-after={mark}\ntotals: {instructions}\n"
        );
        Part::parse(&text).unwrap()
    }

    #[test]
    fn reads_what_callgrind_writes() {
        let mark = "--dump-after=net::after_send".to_owned();
        assert_eq!(part(3, "net::after_send", 7), Part { number: 3, mark, instructions: 7 });
        let whole = Part::parse("events: Ir\nfn=(1) a\n1 2\ntotals: 750014\n").unwrap();
        assert_eq!(whole.instructions, 750_014);
        assert_eq!(Part::parse("events: Ir\n"), None);
    }
}
