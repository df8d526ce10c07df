//! What the immediates of a sender say.

use crate::config::MAX_RAILS;

/// The bits of an immediate other than those of the shares.
pub(crate) const GROUP_BITS: u32 = !0xf;
/// The bit of an immediate that comes with a record.
pub(crate) const WITH_RECORD: u32 = 1 << 7;

/// What an immediate says: a share of a message has arrived, or everything of a group that was
/// written over its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// The low bits of the number of the group.
    pub group: u16,
    /// Whether the messages are writes without immediates: those of a group of several buffers, and
    /// a single one if the network routes adaptively. When all are posted, the record is written
    /// over each queue pair that carries some, with an immediate.
    pub is_group: bool,
    /// Shares of the message or queue pairs of the group, 1 to 8; 0 if nothing is written because
    /// the send is longer than the only buffer.
    pub shares: u8,
}

impl Immediate {
    /// The value on the wire: shares (4 bits), three zeros, whether it is a group (1 bit), number
    /// of the group (16 bits).
    #[inline(always)]
    pub fn to_bits(self) -> u32 {
        u32::from(self.shares) | u32::from(self.is_group) << 7 | u32::from(self.group) << 8
    }

    /// The bits in [`GROUP_BITS`] of all immediates of a group.
    #[inline(always)]
    pub(crate) fn group_bits(group: u64, is_group: bool) -> u32 {
        Self { group: group as u16, is_group, shares: 0 }.to_bits()
    }

    /// Returns `None` if no sender of this protocol writes `bits`.
    #[inline(always)]
    pub fn from_bits(bits: u32) -> Option<Self> {
        let (shares, is_group) = ((bits & 0xf) as u8, bits & WITH_RECORD != 0);
        let valid = shares <= MAX_RAILS as u8 && !(is_group && shares == 0);
        if bits & 0xff00_0070 != 0 || !valid {
            return None;
        }
        Some(Self { group: (bits >> 8) as u16, is_group, shares })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediates_are_read_back() {
        for (shares, is_group) in (0..=8).flat_map(|shares| [(shares, false), (shares, true)]) {
            for group in [0, 1, 0x8000, 0xffff] {
                let immediate = Immediate { group, is_group, shares };
                let valid = (shares, is_group) != (0, true);
                let read = Immediate::from_bits(immediate.to_bits());
                assert_eq!(read, valid.then_some(immediate));
            }
        }
        let last = Immediate { group: 0xa1a2, is_group: true, shares: 8 };
        assert_eq!(last.to_bits(), 0x00a1_a288);
        for bits in [9, 15, 0x10, 0x40, 0x80, 0x0100_0000, u32::MAX] {
            assert_eq!(Immediate::from_bits(bits), None);
        }
    }
}
