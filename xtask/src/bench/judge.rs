//! Compares counts with budgets.

use super::budget::{self, Budget, Difference};
use super::measure::Count;

/// The result.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// Whether every bench counted something.
    pub(super) is_complete: bool,
    /// Violated limits.
    pub(super) complaints: Vec<String>,
    /// Budgets that may become tighter.
    pub(super) notes: Vec<String>,
}

/// Returns the count of a budget's bench.
pub(super) fn counted(budget: &Budget, counts: &[Count]) -> Option<u64> {
    let name = format!("{}::{}::{}", budget.level.name(), budget.shape.name(), budget.bench);
    counts.iter().find(|count| count.bench == name).map(|count| count.instructions)
}

/// Returns the share of one operation, in tenths of an instruction.
pub(super) fn tenths(budget: &Budget, instructions: u64) -> u64 {
    (instructions * 10 + budget.operations / 2) / budget.operations
}

/// Returns how much more the first bench of a difference counts, in tenths of an instruction.
pub(super) fn difference(difference: &Difference, counts: &[Count]) -> Option<i64> {
    let share = |bench: &str| {
        let is_it = |budget: &&Budget| {
            (budget.level, budget.shape, budget.bench)
                == (difference.level, difference.shape, bench)
        };
        let budget = budget::all().find(is_it)?;
        Some(tenths(budget, counted(budget, counts)?))
    };
    share(difference.bench)?.checked_signed_diff(share(difference.minus)?)
}

/// Formats a number of the tables.
pub(super) fn decimal(tenths: i64) -> String {
    let sign = if tenths < 0 { "-" } else { "" };
    let tenths = tenths.unsigned_abs();
    format!("{sign}{}.{}", tenths / 10, tenths % 10)
}

/// Compares every count with its budget.
pub(super) fn judge(counts: &[Count]) -> Verdict {
    let mut verdict = Verdict::default();
    let mut missing = Vec::new();
    for budget in budget::all() {
        match counted(budget, counts) {
            Some(instructions) => verdict.judge(budget, instructions),
            None => missing.push(name(budget)),
        }
    }
    verdict.is_complete = missing.is_empty();
    // If a bench fails, those after it in the binary do not run.
    if let [first, rest @ ..] = &missing[..] {
        let others =
            if rest.is_empty() { String::new() } else { format!(", and {} others", rest.len()) };
        verdict.complaints.push(format!("{first} counted nothing{others}"));
    }
    for limited in budget::differences() {
        if let Some(more) = difference(limited, counts)
            && more > limited.limit as i64 * 10
        {
            let more = decimal(more);
            verdict.complaints.push(format!(
                "{}: {more} instructions more, limit {}",
                limited.operation, limited.limit
            ));
        }
    }
    verdict
}

fn name(budget: &Budget) -> String {
    format!(
        "{} {}, {} ({})",
        budget.level.name(),
        budget.bench,
        budget.shape.name(),
        budget.operation
    )
}

impl Verdict {
    fn judge(&mut self, budget: &Budget, instructions: u64) {
        let share = decimal(tenths(budget, instructions) as i64);
        let name = name(budget);
        if instructions < budget.floor * budget.operations {
            let floor = budget.floor;
            self.complaints
                .push(format!("{name}: {share} instructions, floor {floor}: optimised away"));
        } else if instructions > budget.hard_limit() {
            self.complaints.push(format!("{name}: {share} instructions, limit {}", budget.limit));
        } else if let Some(tighter) = tighter(budget, instructions) {
            self.notes
                .push(format!("{name}: {share} instructions; the limit may become {tighter}"));
        }
    }
}

/// Returns a tighter limit that the count meets, if the budget's is more than a little above it and
/// not the 'must'.
fn tighter(budget: &Budget, instructions: u64) -> Option<u64> {
    if let Some(must) = budget.must
        && budget.holds_must(instructions)
    {
        return (budget.limit > must && !budget.follows_clock).then_some(must);
    }
    let room = with_room(instructions, budget.operations);
    (with_room(room * budget.operations, budget.operations) < budget.limit).then_some(room)
}

/// Returns the share of one operation plus three per cent, in whole instructions.
fn with_room(instructions: u64, operations: u64) -> u64 {
    (instructions * 103).div_ceil(operations * 100)
}

#[cfg(test)]
mod tests {
    use super::super::budget::{Level, Shape};
    use super::*;

    const BUDGET: Budget = Budget {
        level: Level::Driver,
        shape: Shape::Held,
        bench: "b",
        operation: "o",
        operations: 1000,
        floor: 20,
        limit: 70,
        must: None,
        aim: None,
        follows_clock: false,
    };

    fn verdict(budget: &Budget, instructions: u64) -> (usize, usize) {
        let mut verdict = Verdict::default();
        verdict.judge(budget, instructions);
        (verdict.complaints.len(), verdict.notes.len())
    }

    #[test]
    fn limits_and_floors() {
        assert_eq!(verdict(&BUDGET, 70_040), (0, 0), "entering the loop is beside the limit");
        assert_eq!(verdict(&BUDGET, 70_100), (1, 0));
        assert_eq!(verdict(&BUDGET, 0), (1, 0), "a loop without a body");
        assert_eq!(verdict(&BUDGET, 19_999), (1, 0));
    }

    #[test]
    fn a_bench_that_did_not_run_is_no_success() {
        let verdict = judge(&[]);
        assert!(!verdict.is_complete);
        assert_eq!(verdict.complaints.len(), 1, "{:?}", verdict.complaints);
    }

    #[test]
    fn tighter_limits() {
        assert_eq!(tighter(&BUDGET, 50_000), Some(52));
        assert_eq!(tighter(&BUDGET, 67_000), None);
        let missed = Budget { must: Some(60), ..BUDGET };
        assert_eq!(tighter(&missed, 60_030), Some(60), "now it is held");
        assert_eq!(tighter(&missed, 61_000), Some(63));
        let by_clock = Budget { follows_clock: true, ..missed };
        assert_eq!(tighter(&by_clock, 60_030), None, "the next run may count more");
        let held = Budget { must: Some(70), ..BUDGET };
        assert_eq!(tighter(&held, 20_000), None);
    }

    #[test]
    fn shares() {
        assert_eq!(tenths(&BUDGET, 62_049), 620);
        assert_eq!(tenths(&BUDGET, 62_050), 621);
        assert_eq!(
            (decimal(621), decimal(-4), decimal(0)),
            ("62.1".into(), "-0.4".into(), "0.0".into())
        );
    }

    #[test]
    fn every_budget_makes_sense() {
        for budget in budget::all() {
            let name = name(budget);
            assert!(budget.floor > 0 && budget.floor < budget.limit, "{name}");
            assert!(budget.must.is_none_or(|must| budget.floor < must), "{name}");
            assert!(
                budget.aim.is_none_or(|aim| budget.must.is_some_and(|must| aim < must)),
                "{name}"
            );
            let same = budget::all().filter(|other| self::name(other) == name).count();
            assert_eq!(same, 1, "{name}");
        }
    }
}
