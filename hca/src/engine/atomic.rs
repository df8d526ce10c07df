//! Atomic operations: standard and masked, on 4 or 8 bytes of host memory.

use barewire_layouts::roce::{AtomicEth, BthOpcode, MaskedAtomicEth, Transport};

use crate::memory::Span;
use crate::wire::packet;

/// The change to the number in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// The bits of `swap_mask` become those of `swap` if the bits of `compare_mask` are those of
    /// `compare`.
    CompareSwap { swap: u64, compare: u64, swap_mask: u64, compare_mask: u64 },
    /// `add` is added field by field: a set bit in `boundary` is a field's highest, and its carry
    /// is dropped.
    FetchAdd { add: u64, boundary: u64 },
}

/// An atomic operation. 4-byte operands are in the lower halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Atomic {
    /// Size of the number: 4 or 8.
    pub(super) bytes: u64,
    pub(super) operation: Operation,
}

impl Default for Atomic {
    fn default() -> Self {
        Self::fetch_add(0)
    }
}

impl Atomic {
    /// Creates the standard compare-and-swap.
    pub(super) fn compare_swap(compare: u64, swap: u64) -> Self {
        let (swap_mask, compare_mask) = (u64::MAX, u64::MAX);
        Self {
            bytes: 8,
            operation: Operation::CompareSwap { swap, compare, swap_mask, compare_mask },
        }
    }

    /// Creates the standard fetch-and-add.
    pub(super) fn fetch_add(add: u64) -> Self {
        Self { bytes: 8, operation: Operation::FetchAdd { add, boundary: 0 } }
    }

    /// Returns the operation that a request packet asks for, or `None` for an invalid size.
    pub(super) fn requested(opcode: BthOpcode, masked: &MaskedAtomicEth) -> Option<Self> {
        let bytes = u64::from(masked.size.get());
        let (value, compare) = (masked.swap_or_add.get(), masked.compare.get());
        let operation = if opcode == BthOpcode::FetchAdd {
            Operation::FetchAdd { add: value, boundary: compare }
        } else {
            let (swap_mask, compare_mask) = (masked.swap_mask.get(), masked.compare_mask.get());
            Operation::CompareSwap { swap: value, compare, swap_mask, compare_mask }
        };
        matches!(bytes, 4 | 8).then_some(Self { bytes, operation })
    }

    /// Returns transport and opcode of the request packet; standard ones where they suffice.
    pub(super) fn packet(&self) -> (Transport, BthOpcode) {
        const ALL: u64 = u64::MAX;
        let (opcode, plain) = match self.operation {
            Operation::CompareSwap { swap_mask, compare_mask, .. } => {
                (BthOpcode::CompareSwap, (swap_mask, compare_mask) == (ALL, ALL))
            }
            Operation::FetchAdd { boundary, .. } => {
                (BthOpcode::FetchAdd, boundary & !(1 << 63) == 0)
            }
        };
        (if plain && self.bytes == 8 { Transport::Rc } else { Transport::Vendor }, opcode)
    }

    /// Appends the header of the request packet to `frame`.
    pub(super) fn append_to(&self, frame: &mut Vec<u8>, address: u64, rkey: u32) {
        let (value, compare, swap_mask, compare_mask) = match self.operation {
            Operation::CompareSwap { swap, compare, swap_mask, compare_mask } => {
                (swap, compare, swap_mask, compare_mask)
            }
            Operation::FetchAdd { add, boundary } => (add, boundary, 0, 0),
        };
        let (address, rkey) = (address.into(), rkey.into());
        if self.packet().0 == Transport::Rc {
            let compare =
                if matches!(self.operation, Operation::FetchAdd { .. }) { 0 } else { compare };
            let header =
                AtomicEth { address, rkey, swap_or_add: value.into(), compare: compare.into() };
            return packet::header(frame, &header);
        }
        let header = MaskedAtomicEth {
            address,
            rkey,
            size: (self.bytes as u32).into(),
            swap_or_add: value.into(),
            compare: compare.into(),
            swap_mask: swap_mask.into(),
            compare_mask: compare_mask.into(),
        };
        packet::header(frame, &header);
    }

    /// Returns the value that replaces `old`, or `None` if it stays.
    fn next(&self, old: u64) -> Option<u64> {
        match self.operation {
            Operation::CompareSwap { swap, compare, swap_mask, compare_mask } => {
                ((old ^ compare) & compare_mask == 0).then_some(old & !swap_mask | swap & swap_mask)
            }
            Operation::FetchAdd { add, boundary } => {
                // Each field's highest bit is added without carry: a carry may enter it but does
                // not leave it.
                let lower = (old & !boundary).wrapping_add(add & !boundary);
                Some(lower ^ (old ^ add) & boundary)
            }
        }
    }

    /// Executes the operation on the number at the start of `span`, atomically with respect to all
    /// processors. Returns the old value, or `None` if the number is not aligned.
    pub(super) fn execute(&self, span: &Span<'_>) -> Option<u64> {
        // With 4 bytes, the upper halves of masks and operands are ignored.
        let atomic = if self.bytes == 4 { self.narrowed() } else { *self };
        span.update(self.bytes, |old| atomic.next(old))
    }

    fn narrowed(self) -> Self {
        let low = |number: u64| number & u64::from(u32::MAX);
        let operation = match self.operation {
            Operation::CompareSwap { swap, compare, swap_mask, compare_mask } => {
                Operation::CompareSwap {
                    swap: low(swap),
                    compare: low(compare),
                    swap_mask: low(swap_mask),
                    compare_mask: low(compare_mask),
                }
            }
            Operation::FetchAdd { add, boundary } => {
                Operation::FetchAdd { add: low(add), boundary: low(boundary) }
            }
        };
        Self { operation, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Adds bit by bit, following the definition.
    fn add_by_bits(old: u64, add: u64, boundary: u64) -> u64 {
        let (mut sum, mut carry) = (0, 0);
        for bit in 0..64 {
            let total = (old >> bit & 1) + (add >> bit & 1) + carry;
            sum |= (total & 1) << bit;
            carry = if boundary >> bit & 1 == 1 { 0 } else { total >> 1 };
        }
        sum
    }

    #[test]
    fn standard_operations_are_the_unmasked_ones() {
        assert_eq!(Atomic::fetch_add(3).next(u64::MAX), Some(2));
        assert_eq!(Atomic::compare_swap(7, 9).next(7), Some(9));
        assert_eq!(Atomic::compare_swap(7, 9).next(8), None);
        assert_eq!(Atomic::compare_swap(7, 9).packet(), (Transport::Rc, BthOpcode::CompareSwap));
        assert_eq!(Atomic::default().packet(), (Transport::Rc, BthOpcode::FetchAdd));
        let narrow = Atomic { bytes: 4, ..Atomic::default() };
        assert_eq!(narrow.packet(), (Transport::Vendor, BthOpcode::FetchAdd));
    }

    proptest! {
        #[test]
        fn fields_keep_their_carries(old: u64, add: u64, boundary: u64) {
            let atomic = Atomic { bytes: 8, operation: Operation::FetchAdd { add, boundary } };
            prop_assert_eq!(atomic.next(old), Some(add_by_bits(old, add, boundary)));
        }

        #[test]
        fn a_swap_leaves_what_its_mask_leaves(old: u64, swap: u64, swap_mask: u64, compare_mask: u64, flip in 0u32..64) {
            let compare = old & compare_mask;
            let operation = Operation::CompareSwap { swap, compare, swap_mask, compare_mask };
            let new = Atomic { bytes: 8, operation }.next(old).unwrap();
            prop_assert_eq!((new & swap_mask, new & !swap_mask), (swap & swap_mask, old & !swap_mask));
            let other = Operation::CompareSwap { swap, compare: compare ^ 1 << flip, swap_mask, compare_mask };
            let differs = compare_mask >> flip & 1 == 1;
            prop_assert_eq!(Atomic { bytes: 8, operation: other }.next(old).is_none(), differs);
        }

        #[test]
        fn a_request_comes_back_as_it_was_sent(add: u64, boundary: u64, four: bool) {
            let bytes = if four { 4 } else { 8 };
            let atomic = Atomic { bytes, operation: Operation::FetchAdd { add, boundary: boundary | 1 } };
            let mut frame = Vec::new();
            atomic.append_to(&mut frame, 0x1000, 7);
            let header = <MaskedAtomicEth as zerocopy::FromBytes>::read_from_bytes(&frame[..]).unwrap();
            prop_assert_eq!(Atomic::requested(atomic.packet().1, &header), Some(atomic));
        }
    }
}
