//! The send ring as memory: the positions of a WQE's units.

use core::ptr::NonNull;

use crate::wqe::{BLOCK_UNITS, Block, Sink, Unit};

/// A ring of 64-byte blocks, whose number is a power of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    start: NonNull<Unit>,
    mask: u32,
}

impl Ring {
    /// # Safety
    /// `start` is valid for reads and writes of `blocks` blocks and 64-byte aligned for as long as
    /// the ring is used, and nothing but the owner of the ring writes it. A device in this process
    /// reads it by atomic loads of whole aligned words. `blocks` is a power of two, at most 2^15.
    pub(crate) unsafe fn new(start: NonNull<u8>, blocks: u32) -> Self {
        debug_assert!(blocks.is_power_of_two() && blocks <= 1 << 15);
        debug_assert_eq!(start.addr().get() % 64, 0);
        Self { start: start.cast(), mask: blocks - 1 }
    }

    #[inline(always)]
    pub(crate) fn blocks(self) -> u32 {
        self.mask + 1
    }

    /// Stores the first `units` units of `block`, at most the whole block, at counter value
    /// `index`.
    #[inline(always)]
    pub(crate) fn store_block(self, index: u64, block: &Block, units: usize) {
        let place = self.block(index);
        for (at, unit) in block.iter().enumerate().take(units) {
            // SAFETY: a unit of the block at `place`, which is in the ring.
            unsafe { unit.store(place.add(at)) };
        }
    }

    /// The flags byte in the control segment of the WQE at `index`, as posted.
    pub(crate) fn flags(self, index: u64) -> u8 {
        // SAFETY: byte 11 of a block of the ring, which the owner wrote when it posted there.
        unsafe { self.block(index).cast::<u8>().add(11).read() }
    }

    /// The bytes of `blocks` blocks from `index` on.
    pub(crate) fn bytes(self, index: u64, blocks: u32) -> Vec<u8> {
        let block = |at: u64| {
            // SAFETY: a block of the ring, which was zeroed when it was created, so its bytes are
            // initialised.
            unsafe { self.block(at).cast::<[u8; 64]>().read() }
        };
        (0..u64::from(blocks)).flat_map(|at| block(index.wrapping_add(at))).collect()
    }

    /// The first 8 bytes of the WQE at `index`, as posted.
    #[inline(always)]
    pub(crate) fn word(self, index: u64) -> u64 {
        // SAFETY: a block of the ring, which the owner wrote when it posted there.
        unsafe { self.block(index).cast::<u64>().read() }
    }

    /// A sink for a WQE of `blocks` blocks at `index`, or `None` if the WQE would cross the end of
    /// the ring.
    #[inline(always)]
    pub(crate) fn linear(self, index: u64, blocks: u32) -> Option<Linear> {
        ((index as u32 & self.mask) + blocks <= self.mask + 1)
            .then(|| Linear { at: self.block(index) })
    }

    /// A sink for a WQE at `index` that may wrap to the start of the ring.
    pub(crate) fn wrapping(self, index: u64) -> Wrapping {
        // SAFETY: one past the ring's last block.
        let end = unsafe { self.start.add((self.mask as usize + 1) * BLOCK_UNITS) };
        Wrapping { at: self.block(index), start: self.start, end }
    }

    #[inline(always)]
    fn block(self, index: u64) -> NonNull<Unit> {
        // SAFETY: the mask keeps the block inside the ring.
        unsafe { self.start.add((index as u32 & self.mask) as usize * BLOCK_UNITS) }
    }
}

/// Stores units consecutively.
#[derive(Debug)]
pub(crate) struct Linear {
    at: NonNull<Unit>,
}

impl Sink for Linear {
    #[inline(always)]
    fn unit(&mut self, unit: Unit) {
        // SAFETY: users of this sink store no more units than the blocks they requested, which lie
        // before the end of the ring.
        unsafe {
            unit.store(self.at);
            self.at = self.at.add(1);
        }
    }
}

/// Stores units consecutively and wraps to the start at the end of the ring.
#[derive(Debug)]
pub(crate) struct Wrapping {
    at: NonNull<Unit>,
    start: NonNull<Unit>,
    end: NonNull<Unit>,
}

impl Sink for Wrapping {
    fn unit(&mut self, unit: Unit) {
        // SAFETY: `at` is a unit of the ring: it starts at a block, advances by units and wraps at
        // the end.
        unsafe {
            unit.store(self.at);
            self.at = self.at.add(1);
        }
        if self.at == self.end {
            self.at = self.start;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Memory([u64; 32]);

    #[test]
    fn a_wqe_wraps_between_units() {
        let mut memory = Memory([0xee; 32]);
        // SAFETY: four blocks of a local array that outlives the ring.
        let ring = unsafe { Ring::new(NonNull::from(&mut memory.0).cast(), 4) };
        assert!(ring.linear(7, 2).is_none());
        let mut sink = ring.wrapping(7);
        for word in 0..5 {
            sink.unit(Unit::from_words(word, word));
        }
        let mut sink = ring.linear(5, 2).unwrap();
        sink.unit(Unit::from_words(8, 9));
        assert_eq!(memory.0[24..32], [0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!(memory.0[..3], [4, 4, 0xee]);
        assert_eq!(memory.0[8..11], [8, 9, 0xee]);
    }
}
