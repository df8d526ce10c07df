//! WQEs in the making: units of 16 bytes in vector registers, stored to ring and BlueFlame register from there.

mod inline;
mod segments;
mod unit;

pub(crate) use inline::Inline;
pub(crate) use segments::Segments;
pub(crate) use unit::Unit;

use barewire_layouts::wqe::{DS, WQEBB};

/// Units of a WQE basic block.
pub(crate) const BLOCK_UNITS: usize = WQEBB / DS;

/// A WQE of one block.
pub(crate) type Block = [Unit; BLOCK_UNITS];

/// Where units go: ring or register.
pub(crate) trait Sink {
    /// Stores the next unit.
    fn unit(&mut self, unit: Unit);
}

/// The units of a WQE behind its control segment.
///
/// They are stored twice, to the ring and, behind the doorbell record, to the register, each time from registers and from the payload:
/// reading them back out of the ring would wait for the stores before.
pub(crate) trait Body: Copy {
    /// How many.
    fn units(&self) -> u32;

    /// Stores them all.
    fn emit(&self, sink: &mut impl Sink);
}
