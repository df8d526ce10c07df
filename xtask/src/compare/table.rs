//! The comparison as a table, in `benches/RESULTS.md` after the instructions.

use std::fmt::Write;
use std::fs;

use super::rows::{ROWS, Row};
use super::statistics::{Estimate, estimate, median};
use crate::process::{Failure, repository};

const FILE: &str = "benches/RESULTS.md";
/// The heading of the comparison.
const MARK: &str = "\n# Times against UCX\n";

/// The results of a row's pairs.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) row: &'static Row,
    /// Our and their values, in the order of the runs.
    pub(super) pairs: Vec<(f64, f64)>,
}

/// Whether the must of a row is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The whole interval is on the right side of the must, or there is no must.
    Met,
    /// The interval includes the must: more pairs or a quieter machine are needed.
    Undecided,
    Missed,
}

impl Outcome {
    pub(super) fn estimate(&self) -> Estimate {
        estimate(&self.pairs)
    }

    pub(super) fn verdict(&self) -> Verdict {
        let Some(must) = self.row.must else { return Verdict::Met };
        let Estimate { low, high, .. } = self.estimate();
        match [low, high].map(|end| self.row.measure.is_better(end, must)) {
            [true, true] => Verdict::Met,
            [false, false] => Verdict::Missed,
            _ => Verdict::Undecided,
        }
    }

    /// Returns the row of the table.
    fn line(&self) -> String {
        let Row { what, measure, must, aim, .. } = *self.row;
        let (ours, theirs): (Vec<f64>, Vec<f64>) = self.pairs.iter().copied().unzip();
        let Estimate { ratio, low, high } = self.estimate();
        let limit = |limit: Option<f64>| match (limit, measure) {
            (None, _) => String::new(),
            (Some(limit), measure) if measure.is_less_better() => format!("≤ {limit:.2}"),
            (Some(limit), _) => format!("≥ {limit:.2}"),
        };
        let verdict = match self.verdict() {
            Verdict::Met => "",
            Verdict::Undecided => " undecided",
            Verdict::Missed => " **missed**",
        };
        format!(
            "| {what} | {} | {:.3} | {:.3} | {ratio:.2} | {low:.2} to {high:.2} | {}{verdict} | {} |",
            measure.unit(),
            measure.shown(median(ours)),
            measure.shown(median(theirs)),
            limit(must),
            limit(aim),
        )
    }
}

/// Returns the comparison's part of the file.
pub(crate) fn part(text: &str) -> &str {
    text.find(MARK).map_or("", |at| &text[at..])
}

/// Writes the outcomes into the file; rows that did not run keep their lines.
pub(super) fn write(outcomes: &[Outcome], machine: &str) -> Result<(), Failure> {
    let path = repository().join(FILE);
    let failed = |error| Failure::Found(format!("cannot rewrite {}: {error}", path.display()));
    let old = fs::read_to_string(&path).map_err(failed)?;
    let kept = part(&old);
    let new = old[..old.len() - kept.len()].to_owned() + &render(outcomes, kept, machine);
    fs::write(&path, new).map_err(failed)?;
    println!("wrote {FILE}");
    Ok(())
}

fn render(outcomes: &[Outcome], kept: &str, machine: &str) -> String {
    let mut runs = vec![machine.to_owned()];
    let mut lines = String::new();
    for row in &*ROWS {
        let ran = outcomes.iter().find(|outcome| outcome.row.name == row.name);
        let ran = ran.map(|outcome| (outcome.line(), machine.to_owned()));
        let Some((line, run)) = ran.or_else(|| kept_line(kept, row.what)) else { continue };
        let at = runs.iter().position(|known| *known == run).unwrap_or_else(|| {
            runs.push(run);
            runs.len() - 1
        });
        let _ = writeln!(lines, "{line} {} |", letter(at));
    }
    let mut text = format!(
        "{MARK}\n\
         Written by `cargo xtask compare`; edits are lost. `barewire perf` and Debian's `ucx_perftest`, or what the measure names, run in turns, \
         server and client on a CPU each, the same for both. A value is the median of the runs (of latencies, one way, the median of a run: ours of all messages, UCX's of the last 2048, \
         which are all that `ucx_perftest` keeps; of times and rates the whole run). *ratio* is the ratio of these medians, ours to theirs, and *interval* its bootstrap interval of 95 % over the pairs of the run: other runs and other machines may lie outside of it, \
         so compare on yours. A must that the \
         interval includes is *undecided*. Both command lines of a row are in [compare.txt](compare.txt). What was tried over `shm` and `cma`, and what did not help: [SHM.md](SHM.md). *run* names the machine, the date and the number of pairs:\n\
         \n"
    );
    for (at, run) in runs.iter().enumerate() {
        let _ = writeln!(text, "{}{run}", entry(letter(at)));
    }
    text + "\n\
         | measure | unit | ours | theirs | ratio | interval | must | aim | run |\n\
         |---|---|---:|---:|---:|---:|---:|---:|---|\n"
        + &lines
}

/// The letter of a run.
fn letter(at: usize) -> char {
    char::from(b'a' + at as u8 % 26)
}

/// The beginning of a run's entry in the list of runs.
fn entry(letter: impl std::fmt::Display) -> String {
    format!("- *{letter}*: ")
}

/// Returns the line of a measure that has not run again, without the letter of its run, and the
/// run.
fn kept_line(kept: &str, what: &str) -> Option<(String, String)> {
    let start = format!("| {what} |");
    let line = kept.lines().find(|line| line.starts_with(&start))?;
    let (line, letter) = line.strip_suffix(" |")?.rsplit_once(' ')?;
    let run = kept.lines().find_map(|line| line.strip_prefix(&entry(letter)))?;
    Some((line.to_owned(), run.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_did_not_run_stay() {
        let outcome =
            |row: &'static Row, pairs: &[(f64, f64)]| Outcome { row, pairs: pairs.to_vec() };
        let both = [
            outcome(&ROWS[0], &[(1.0, 2.0)]),
            outcome(&ROWS[1], &[(3.0, 2.0), (1.0, 2.0), (2.0, 2.0)]),
        ];
        let first = render(&both, "", "here");
        assert!(first.contains("| 0.50 | 0.50 to 0.50 |"), "{first}");
        assert!(first.contains("| 1.00 | 0.50 to 1.50 | ≤ 1.00 undecided |"), "{first}");
        let second = render(&[outcome(&ROWS[1], &[(8.0, 2.0)])], part(&first), "there");
        assert!(
            second.contains("| 0.50 | 0.50 to 0.50 |") && second.contains("**missed**"),
            "{second}"
        );
        // Each line names its run.
        assert!(second.contains("\n- *a*: there\n- *b*: here\n"), "{second}");
        let runs: Vec<_> = ROWS[..2].iter().map(|row| kept_line(&second, row.what)).collect();
        assert_eq!(runs.into_iter().map(|of| of.unwrap().1).collect::<Vec<_>>(), ["here", "there"]);
        assert_eq!(render(&[], part(&second), "elsewhere").matches("elsewhere").count(), 1);
        assert_eq!(part(&format!("before{second}")), second);
    }
}
