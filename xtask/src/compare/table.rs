//! The comparison as a table, in `benches/RESULTS.md` after the instructions.

use std::fmt::Write;
use std::fs;

use super::rows::{ROWS, Row};
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

impl Outcome {
    fn ratios(&self) -> Vec<f64> {
        let mut ratios: Vec<f64> = self.pairs.iter().map(|(ours, theirs)| ours / theirs).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }

    pub(super) fn ratio(&self) -> f64 {
        middle(self.ratios())
    }

    /// Returns false if there is a 'must' and it is missed.
    pub(super) fn holds(&self) -> bool {
        self.row.must.is_none_or(|must| self.row.measure.is_better(self.ratio(), must))
    }

    /// Returns the row of the table.
    fn line(&self) -> String {
        let Row { what, measure, must, aim, .. } = *self.row;
        let (ours, theirs): (Vec<f64>, Vec<f64>) = self.pairs.iter().copied().unzip();
        let ratios = self.ratios();
        let (least, most) = (ratios.first().unwrap_or(&0.0), ratios.last().unwrap_or(&0.0));
        let limit = |limit: Option<f64>| match (limit, measure) {
            (None, _) => String::new(),
            (Some(limit), measure) if measure.is_less_better() => format!("≤ {limit:.2}"),
            (Some(limit), _) => format!("≥ {limit:.2}"),
        };
        format!(
            "| {what} | {} | {:.3} | {:.3} | {:.2} | {least:.2} | {most:.2} | {}{} | {} |",
            measure.unit(),
            measure.shown(middle(ours)),
            measure.shown(middle(theirs)),
            self.ratio(),
            limit(must),
            if self.holds() { "" } else { " **missed**" },
            limit(aim),
        )
    }
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
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
    let mut text = format!(
        "{MARK}\n\
         Written by `cargo xtask compare`; edits are lost. `barewire perf` and Debian's `ucx_perftest`, or what the measure names, run in turns, \
         server and client on a CPU each, the same for both: {machine}. A value is the median of the runs (of latencies the median of the messages of a run, one way; of times \
         and rates the whole run). *ratio* is ours divided by theirs, the median of the pairs, with the smallest and the largest.\n\
         \n\
         | measure | unit | ours | theirs | ratio | min | max | must | aim |\n\
         |---|---|---:|---:|---:|---:|---:|---:|---:|\n"
    );
    for row in ROWS {
        let start = format!("| {} |", row.what);
        let line = outcomes.iter().find(|outcome| outcome.row.name == row.name).map(Outcome::line);
        let line =
            line.or_else(|| kept.lines().find(|line| line.starts_with(&start)).map(str::to_owned));
        if let Some(line) = line {
            let _ = writeln!(text, "{line}");
        }
    }
    text
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
        assert!(first.contains("| 0.50 | 0.50 | 0.50 |"), "{first}");
        assert!(first.contains("| 1.00 | 0.50 | 1.50 |"), "{first}");
        let second = render(&[outcome(&ROWS[1], &[(8.0, 2.0)])], part(&first), "here");
        assert!(
            second.contains("| 0.50 | 0.50 | 0.50 |") && second.contains("**missed**"),
            "{second}"
        );
        assert_eq!(part(&format!("before{second}")), second);
    }
}
