//! The state machine of links over a wire that loses, doubles and reorders, repeated by seed.
//!
//! `SEEDS=100000 cargo test --release -p barewire-wireup --test simulation` runs as many seeds;
//! `SEED=n` runs one, and a failure prints the smallest scenario that fails as well.

mod check;
mod driver;
mod scenario;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use scenario::Scenario;
use world::{Totals, run};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Returns why the run fails.
fn failure(scenario: &Scenario) -> Result<Totals, String> {
    catch_unwind(AssertUnwindSafe(|| run(scenario))).unwrap_or_else(|_| Err("a panic".into()))
}

fn run_seeds(seeds: impl Iterator<Item = u64>) -> Totals {
    let mut sum = Totals::default();
    for seed in seeds {
        match failure(&Scenario::random(seed)) {
            Ok(totals) => {
                sum.steps += totals.steps;
                sum.connected += totals.connected;
                sum.closed += totals.closed;
                sum.failed += totals.failed;
            }
            Err(error) => {
                let small = Scenario::random(seed).minimise(|scenario| failure(scenario).is_err());
                let smallest = failure(&small).err().unwrap_or_default();
                panic!("seed {seed}: {error}\nsmallest: {small:?}: {smallest}");
            }
        }
    }
    sum
}

#[test]
fn every_seed_keeps_the_invariants() {
    let first = number("SEED").unwrap_or(0);
    let count = number("SEEDS").unwrap_or(if number("SEED").is_some() { 1 } else { 2000 });
    let half = first + count / 2;
    let totals = std::thread::scope(|scope| {
        let other = scope.spawn(move || run_seeds(half..first + count));
        let mine = run_seeds(first..half);
        let other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        [mine, other]
    });
    println!("{count} seeds: {totals:?}");
    assert!(
        count < 100 || totals.iter().all(|sum| sum.connected.min(sum.closed).min(sum.failed) > 0)
    );
}

/// Prints a run: `SEED=n TRACE=1 cargo test .. trace_of_a_seed -- --ignored --nocapture`.
#[test]
#[ignore = "for reading a failure"]
fn trace_of_a_seed() {
    let result = run(&Scenario::random(number("SEED").unwrap_or(0)));
    println!("{result:?}");
}

/// The smallest scenarios of defects that were found once, or that were put in to try the checks.
#[test]
fn no_defect_comes_back() {
    let usual = Scenario {
        seed: 0,
        nodes: 2,
        operations: 1,
        lost: 0,
        doubled: 0,
        delay: 0,
        refused: 0,
        result: 0,
        closes: false,
        restarts: false,
        star: false,
        together: false,
        half_open: 64,
        requests: 1024,
        segment: 4096,
        deadline: 10_000,
        liveness: 0,
        wrap: 100,
    };
    for scenario in [
        // A restarted process took messages for the process before, whose links had equal
        // identifiers.
        Scenario {
            seed: 1002,
            nodes: 4,
            operations: 17,
            lost: 28,
            doubled: 25,
            delay: 17,
            closes: true,
            restarts: true,
            star: true,
            wrap: 5,
            ..usual
        },
        // A late GONE for the ANSWER of an earlier offer ended the link.
        Scenario {
            seed: 9769,
            operations: 35,
            lost: 17,
            delay: 38,
            closes: true,
            restarts: true,
            together: true,
            wrap: 2,
            ..usual
        },
        // Detects that neither offer stands if both sides offer at once.
        Scenario { together: true, ..usual },
        // Detects that a lost DONE is not sent again.
        Scenario { seed: 6, nodes: 3, lost: 30, result: 4980, ..usual },
        // Detects that GONE does not end a link that answers.
        Scenario { seed: 13, operations: 19, delay: 15, closes: true, ..usual },
        // Detects that a place among the half-open links is not returned, and a CLOSED that is too
        // early.
        Scenario { nodes: 1, ..usual },
    ] {
        if let Err(error) = failure(&scenario) {
            panic!("{scenario:?}: {error}");
        }
    }
}
