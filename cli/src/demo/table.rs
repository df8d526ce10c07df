//! The table of the demo.

use crate::error::Error;
use crate::output::Output;
use crate::units;
use barewire::TransportId;
use comfy_table::{CellAlignment, presets};
use std::time::Duration;

/// The result of one operation.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    /// Size of one message, or of the file, in bytes.
    pub(super) bytes: u64,
    /// For the file the time of the transfer, for a ping-pong that of one direction.
    pub(super) time: Duration,
    /// As text.
    pub(super) rate: String,
    /// Whether the received data equals the sent data.
    pub(super) correct: bool,
}

/// A row of the table.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) transport: TransportId,
    pub(super) operation: &'static str,
    pub(super) outcome: Outcome,
}

/// The results so far.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<Row>,
}

impl Table {
    pub(super) fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    pub(super) fn first_mismatch(&self) -> Option<&Row> {
        self.rows.iter().find(|row| !row.outcome.correct)
    }

    pub(super) fn print(&self, out: &mut Output) -> Result<(), Error> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(["transport", "operation", "bytes", "time", "rate", "checksum ok"]);
        for Row { transport, operation, outcome } in &self.rows {
            table.add_row([
                transport.name(),
                operation,
                &outcome.bytes.to_string(),
                &units::time(outcome.time),
                &outcome.rate,
                if outcome.correct { "yes" } else { "NO" },
            ]);
        }
        for column in table.column_iter_mut().skip(2).take(3) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for line in table.lines() {
            out.line(line.trim())?;
        }
        Ok(())
    }
}
