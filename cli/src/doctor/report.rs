//! The report: all rows as text and as JSON, and the verdict.

use std::time::Duration;

use barewire::TransportId;
use serde_json::{Value, json};

use super::outcome::{Outcome, State};
use super::table::Row;
use super::target::{SETUP, Target};
use crate::output::wrapped;

/// A row with its outcome.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) row: &'static Row,
    pub(super) target: Target,
    pub(super) outcome: Outcome,
    pub(super) took: Duration,
}

/// The column in which details begin.
const DETAILS: usize = 29;

impl Entry {
    /// The row as text with lines of at most `columns` columns.
    pub(super) fn text(&self, columns: usize) -> String {
        let Self { row, outcome: Outcome { state, detail }, took, .. } = self;
        let broken = |text: &str| wrapped(text, DETAILS, columns);
        let (name, seconds, detail) = (row.name, took.as_secs_f64(), broken(detail));
        let line = format!("{name:<13} {state:<4} {seconds:>6.2} s  {detail}");
        if *state == State::Fail {
            return format!("{line}\n{:<DETAILS$}{}", "", broken(&format!("({})", row.meaning)));
        }
        line
    }
}

/// All rows that ran.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) entries: Vec<Entry>,
    /// Why no device of the machine was tested.
    missing: Vec<String>,
}

/// The row without which there is no other.
const SETUP_ROW: &str = "setup";
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
            let skipped = |entry: &&Entry| {
                entry.target == *path
                    && entry.row.name == SETUP_ROW
                    && entry.outcome.state == State::Skip
            };
            if let Some(entry) = self.entries.iter().find(skipped) {
                lines.push(format!("not tested: {path}: {}", entry.outcome.detail));
                continue;
            }
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
        let mut peers = self.entries.iter().filter(|entry| entry.row.name == PEER);
        if peers.all(|entry| entry.outcome.state == State::Skip) {
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
