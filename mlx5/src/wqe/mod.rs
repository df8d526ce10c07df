//! WQEs under construction: units of 16 bytes in vector registers, stored from there to ring and
//! BlueFlame register.

mod inline;
mod segments;
mod unit;

pub(crate) use inline::Inline;
pub(crate) use segments::Segments;
pub(crate) use unit::Unit;

use barewire_layouts::wqe::{DS, WQEBB};

/// Units per WQE basic block.
pub(crate) const BLOCK_UNITS: usize = WQEBB / DS;

/// A WQE of one block.
pub(crate) type Block = [Unit; BLOCK_UNITS];

/// The destination of units: ring or register.
pub(crate) trait Sink {
    /// Stores the next unit.
    fn unit(&mut self, unit: Unit);
}

/// The units of a WQE after its control segment.
///
/// They are stored twice, to the ring and then to the register, each time from CPU registers and
/// the payload: reading them back from the ring would wait for the stores.
pub(crate) trait Body: Copy {
    /// Number of units.
    fn units(&self) -> u32;

    /// Stores all units.
    fn emit(&self, sink: &mut impl Sink);
}
