//! Findings of the strict checks: driver errors to which real hardware does not react visibly.

use barewire_layouts::command::qp::ServiceType;
use thiserror::Error;

/// Largest number of reports kept; further ones are only counted.
const KEPT: usize = 1024;

/// What the device does about a finding, beside failing the WQE as hardware would.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strict {
    /// Prints one line to standard error and keeps the report.
    #[default]
    Report,
    /// Panics with the report's text. For tests.
    Panic,
}

/// What the device does about reserved bits of a WQE that are not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReservedBits {
    /// Ignores them, as hardware does: libmlx5 and UCX leave bytes of earlier WQEs there when a
    /// ring wraps.
    #[default]
    Ignore,
    /// Fails the WQE with [`Finding::Reserved`]. For tests of a driver that clears them.
    Refuse,
}

impl ReservedBits {
    /// Checks reserved bits.
    pub(super) fn check(self, what: &'static str, got: impl Into<u64>) -> Result<(), Finding> {
        match (self, got.into()) {
            (Self::Ignore, _) | (_, 0) => Ok(()),
            (Self::Refuse, got) => Err(Finding::Reserved { what, got }),
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("QP {qpn:#x} WQE {index}: {finding}")]
#[non_exhaustive]
pub struct Report {
    /// The queue pair.
    pub qpn: u32,
    /// Index of the WQE: its first WQEBB for a send queue, its number for a receive queue, modulo
    /// 2^16.
    pub index: u16,
    /// What is wrong.
    pub finding: Finding,
}

/// An error in a WQE, a doorbell or a queue.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Finding {
    /// The control segment names another ring index.
    #[error("control segment: index is {got}, must be {wanted}")]
    Index {
        /// In the WQE.
        got: u16,
        /// Index at which the WQE lies.
        wanted: u16,
    },
    /// The control segment names another queue pair.
    #[error("control segment: QP number is {got:#x}, must be {wanted:#x}")]
    QueuePair {
        /// In the WQE.
        got: u32,
        /// Whose ring it is.
        wanted: u32,
    },
    /// The queue's service does not support the opcode.
    #[error("control segment: opcode is {got:#04x}, which an {service} send queue does not know")]
    Opcode {
        /// In the WQE.
        got: u8,
        /// The queue pair's transport service.
        service: ServiceType,
    },
    /// The `ds` count does not fit the opcode or the segments.
    #[error("control segment: ds is {got}, must be {wanted}")]
    Ds {
        /// In the WQE.
        got: u32,
        /// The requirement, as text.
        wanted: &'static str,
    },
    /// The WQE reaches beyond what the doorbell record has posted.
    #[error(
        "control segment: ds needs {got} WQEBBs, must be at most the {wanted} posted by the doorbell record"
    )]
    Posted {
        /// WQEBBs of the WQE.
        got: u32,
        /// WQEBBs from its start to the producer counter.
        wanted: u32,
    },
    /// Reserved bits are not zero.
    #[error("{what}: reserved bits are {got:#x}, must be 0")]
    Reserved {
        /// Segment and field.
        what: &'static str,
        /// The bits.
        got: u64,
    },
    /// A field has an invalid value.
    #[error("{what} is {got:#x}, must be {wanted}")]
    Value {
        /// Segment and field.
        what: &'static str,
        /// In the WQE.
        got: u64,
        /// The allowed values, as text.
        wanted: &'static str,
    },
    /// A list operation was posted to a queue pair without tag matching.
    #[error("control segment: the queue pair uses no shared receive queue with tag matching")]
    NoTagList,
    /// An append would fill an entry that is in the list.
    #[error("tag matching segment: entry {entry}, which the append before named, is in the list")]
    TagEntryTaken {
        /// Its index.
        entry: u16,
    },
    /// Inline data runs over the WQE's end.
    #[error("inline segment: length is {got}, must be at most the {wanted} bytes that ds leaves")]
    InlineLength {
        /// In the segment.
        got: u32,
        /// Room in the WQE.
        wanted: u32,
    },
    /// The message exceeds the device's limit.
    #[error("data segments: message length is {got}, must be at most {wanted}")]
    MessageLength {
        /// Sum of the segments.
        got: u64,
        /// The device's limit.
        wanted: u64,
    },
    /// The doorbell's first 8 bytes differ from the ring's.
    #[error("doorbell: first 8 bytes are {got:#018x}, must be the WQE's {wanted:#018x}")]
    Doorbell {
        /// In the register.
        got: u64,
        /// In the ring.
        wanted: u64,
    },
    /// The doorbell names a WQE that the doorbell record has not posted.
    #[error("doorbell: names WQE {index}, but the doorbell record posts only up to {wanted}")]
    DoorbellAhead {
        /// Named by the doorbell.
        index: u16,
        /// Producer counter in the doorbell record.
        wanted: u16,
    },
    /// The doorbell names a queue pair that this UAR page does not serve.
    #[error("doorbell: names QP {got:#x}, which does not use UAR page {uar}")]
    DoorbellQueuePair {
        /// Named by the doorbell.
        got: u32,
        /// The page.
        uar: u32,
    },
    /// Two doorbells in a row came through the same half of a BlueFlame register: the second burst
    /// may replace the first in the CPU or the device. For
    /// [`crate::Requirements::exact_doorbells`].
    #[error("doorbell: came through half {half} of its BlueFlame register, as the one before")]
    DoorbellHalf {
        /// 0 or 1.
        half: usize,
    },
    /// The BlueFlame register and the ring differ.
    #[error(
        "BlueFlame: 8 bytes at offset {offset} are {got:#018x}, must be the ring's {wanted:#018x}"
    )]
    BlueFlame {
        /// Offset in the WQE.
        offset: usize,
        /// In the register.
        got: u64,
        /// In the ring.
        wanted: u64,
    },
    /// The doorbell record posts more than the ring holds.
    #[error(
        "{queue} doorbell record: {got} entries posted and not completed, must be at most {wanted}"
    )]
    Overflow {
        /// `send` or `receive`.
        queue: &'static str,
        /// Posted and not completed.
        got: u32,
        /// The ring's entries.
        wanted: u32,
    },
    /// A completion found its queue full.
    #[error(
        "completion queue {cqn:#x} is full: its consumer lags, or it is too small for its queue pairs"
    )]
    CompletionOverrun {
        /// The queue.
        cqn: u32,
    },
}

/// Collects findings.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    strict: Strict,
    reserved: ReservedBits,
    kept: Vec<Report>,
}

impl Reports {
    pub(crate) fn new(strict: Strict, reserved: ReservedBits) -> Self {
        Self { strict, reserved, kept: Vec::new() }
    }

    /// What is done about reserved bits.
    pub(super) fn reserved(&self) -> ReservedBits {
        self.reserved
    }

    /// Notes one finding.
    ///
    /// # Panics
    /// With [`Strict::Panic`].
    pub(crate) fn add(&mut self, report: Report) {
        match self.strict {
            Strict::Panic => panic!("software HCA: {report}"),
            Strict::Report if self.kept.len() < KEPT => {
                eprintln!("software HCA: {report}");
                self.kept.push(report);
            }
            Strict::Report => {}
        }
    }

    /// Takes the reports.
    pub(crate) fn take(&mut self) -> Vec<Report> {
        std::mem::take(&mut self.kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_qp_wqe_field_got_and_wanted() {
        let report = Report { qpn: 0x48, index: 7, finding: Finding::Index { got: 6, wanted: 7 } };
        assert_eq!(report.to_string(), "QP 0x48 WQE 7: control segment: index is 6, must be 7");
    }

    #[test]
    fn reports_are_bounded_and_taken_once() {
        let mut reports = Reports::new(Strict::Report, ReservedBits::Ignore);
        let report = Report {
            qpn: 1,
            index: 0,
            finding: Finding::Opcode { got: 0xff, service: ServiceType::Rc },
        };
        reports.kept = vec![report.clone(); KEPT];
        reports.add(report);
        assert_eq!(reports.take().len(), KEPT);
        assert!(reports.take().is_empty());
    }

    #[test]
    #[should_panic(expected = "must be 7")]
    fn strict_panic_panics() {
        let finding = Finding::Index { got: 6, wanted: 7 };
        Reports::new(Strict::Panic, ReservedBits::Ignore).add(Report { qpn: 1, index: 7, finding });
    }
}
