//! Lengths, bytes and operands, which both processes compute independently.

use crate::link::Plan;
use crate::script::Kind;
use crate::side::SLOT;

/// The filler of memory that no operation may change.
pub(crate) const GUARD: u8 = 0xee;
/// The initial value of the target of atomics.
pub(crate) const START: u64 = 0x0123_4567_89ab_cdef;
/// Payload bytes of a packet: the path MTU of both sides.
const MTU: u64 = 1024;
const LONGEST: u64 = 9 * MTU;

/// The random number of operation `number` of a kind.
fn random(plan: Plan, kind: Kind, number: u64) -> u64 {
    let mut state = plan.seed ^ (kind as u64) << 56 ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..2 {
        state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^= state >> 31;
    }
    state
}

/// Length of operation `number`: short, about one packet, several packets, or zero.
pub(crate) fn length(plan: Plan, kind: Kind, number: u64) -> usize {
    let random = random(plan, kind, number);
    let value = random >> 8;
    let length = match random % 4 {
        0 => value % 16,
        1 => value % 256,
        2 => MTU - 4 + value % 9,
        _ => value % (LONGEST + 1),
    };
    // No read of zero bytes: its completion cannot be verified.
    (if kind == Kind::Read { length.max(1) } else { length }) as usize
}

/// The immediate of operation `number`, if it has one.
pub(crate) fn immediate(plan: Plan, kind: Kind, number: u64) -> Option<u32> {
    let has = match kind {
        Kind::Send => number % 2 == 1,
        Kind::WriteImmediate => true,
        Kind::Write | Kind::Read | Kind::FetchAdd | Kind::CompareSwap => false,
    };
    has.then(|| random(plan, kind, number) as u32)
}

/// A whole slot with the bytes of operation `number`, padded with the filler.
pub(crate) fn slot(plan: Plan, kind: Kind, number: u64) -> Vec<u8> {
    let mut slot = vec![GUARD; SLOT];
    let mut state = random(plan, kind, number) | 1;
    for byte in &mut slot[..length(plan, kind, number)] {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state as u8;
    }
    slot
}

/// The operands of atomic `number`, and the result on the value that it finds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Atomic {
    /// The number to add, or the new value.
    pub(crate) operand: u64,
    pub(crate) compare: u64,
    pub(crate) after: u64,
}

/// Every third compare-and-swap does not swap.
pub(crate) fn atomic(plan: Plan, kind: Kind, number: u64, value: u64) -> Atomic {
    let operand = random(plan, kind, number);
    match kind {
        Kind::CompareSwap if number % 3 == 2 => Atomic { operand, compare: !value, after: value },
        Kind::CompareSwap => Atomic { operand, compare: value, after: operand },
        _ => Atomic { operand, compare: 0, after: value.wrapping_add(operand) },
    }
}
