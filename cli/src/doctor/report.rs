//! The report: all rows as text and as JSON, and the verdict.

use std::fmt;
use std::time::Duration;

use barewire::TransportId;
use serde_json::{Value, json};

use super::outcome::{Outcome, State};
use super::table::Row;
use super::target::{SETUP, Target};

/// A row with its outcome.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) row: &'static Row,
    pub(super) target: Target,
    pub(super) outcome: Outcome,
    pub(super) took: Duration,
}

/// The row as a line of text.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { row, outcome: Outcome { state, detail }, took, .. } = self;
        write!(f, "{:<13} {state:<4} {:>6.2} s  {detail}", row.name, took.as_secs_f64())?;
        if *state == State::Fail {
            write!(f, "\n{:<29}({})", "", row.meaning)?;
        }
        Ok(())
    }
}

/// All rows that ran.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) entries: Vec<Entry>,
    /// Why no device of the machine was tested.
    missing: Vec<String>,
}

/// The row between two hosts.
const PEER: &str = "peer";

impl Report {
    pub(super) fn new(missing: Vec<String>) -> Self {
        Self { entries: Vec::new(), missing }
    }

    pub(super) fn failures(&self) -> usize {
        self.entries.iter().filter(|entry| entry.outcome.state == State::Fail).count()
    }

    /// The paths, and the failed rows of each.
    fn paths(&self) -> Vec<(&Target, Vec<&'static str>)> {
        let mut paths: Vec<(&Target, Vec<&'static str>)> = Vec::new();
        for entry in self.entries.iter().filter(|entry| entry.target.transport.is_some()) {
            if paths.last().is_none_or(|(target, _)| **target != entry.target) {
                paths.push((&entry.target, Vec::new()));
            }
            if let Some((_, failed)) = paths.last_mut()
                && entry.outcome.state == State::Fail
            {
                failed.push(entry.row.name);
            }
        }
        paths
    }

    /// What works, with the settings that select it, and what was not tested.
    pub(super) fn verdict(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (path, failed) in self.paths() {
            lines.push(match (&failed[..], path.setup) {
                // The default.
                ([], None | Some("devx")) => format!("verdict: {path} works"),
                ([], Some(setup)) => format!("verdict: {path} works with {SETUP}={setup}"),
                _ => format!("verdict: do not use {path}: {} failed", failed.join(", ")),
            });
        }
        if !self.missing.is_empty() {
            lines.push(format!(
                "not tested: devices of this machine, by DEVX, verbs objects, rc_verbs and ud_verbs: {}",
                self.missing.join("; ")
            ));
        }
        if !self.entries.iter().any(|entry| entry.row.name == PEER) {
            lines.push("not tested: two hosts".to_owned());
        }
        lines
    }

    pub(super) fn json(&self) -> Value {
        let row = |entry: &Entry| {
            let Entry { row, target, outcome, took } = entry;
            let mut value = json!({
                "row": row.name,
                "device": target.device,
                "transport": target.transport.map(TransportId::name),
                "setup": target.setup,
                "state": outcome.state,
                "detail": outcome.detail,
                "seconds": took.as_secs_f64(),
            });
            if outcome.state == State::Fail {
                value["meaning"] = row.meaning.into();
            }
            value
        };
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "rows": self.entries.iter().map(row).collect::<Vec<_>>(),
            "verdict": self.verdict(),
        })
    }
}
