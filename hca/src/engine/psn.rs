//! Packet sequence numbers (PSNs): 24 bits that wrap (IBTA 9.7.1).

const BITS: u32 = 24;
const MASK: u32 = (1 << BITS) - 1;

/// A packet sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Psn(u32);

impl Psn {
    /// Returns the PSN in the low 24 bits of `number`.
    pub(crate) const fn new(number: u32) -> Self {
        Self(number & MASK)
    }

    pub(crate) const fn get(self) -> u32 {
        self.0
    }

    /// Returns the PSN `count` packets later.
    pub(crate) const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count) & MASK)
    }

    /// The packet before.
    pub(crate) const fn previous(self) -> Self {
        Self(self.0.wrapping_sub(1) & MASK)
    }

    /// Returns the packets from `origin` to this PSN, negative if this one is older: half of the
    /// number space lies either way.
    pub(crate) const fn since(self, origin: Self) -> i32 {
        ((self.0.wrapping_sub(origin.0) << (32 - BITS)) as i32) >> (32 - BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_wraps_both_ways() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(last.plus(3).since(last), 3);
        assert_eq!(last.since(last.plus(3)), -3);
        assert_eq!(Psn::new(0).previous(), last);
        assert_eq!(Psn::new(0x7f_ffff).since(Psn::new(0)), 0x7f_ffff);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -0x80_0000);
    }
}
