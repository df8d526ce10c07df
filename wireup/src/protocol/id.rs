//! Names of peers and links.

use std::fmt;

/// A process: 16 random bytes of its own choice. A restarted process has another one.
pub type Uuid = [u8; 16];

/// A link of this node: a slot of its table, and the generation of that slot's use.
///
/// No two links of a node have the same identifier until 2^32 links were opened, so a message for a
/// link that was closed finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl LinkId {
    /// Returns the slot: a small number that only one link has at a time, good as a table's index.
    pub fn slot(self) -> usize {
        self.slot as usize
    }

    /// Returns the link as 64 bits: slot, then generation, which is never 0. They are no secret:
    /// control messages name a link by other numbers.
    pub fn to_bits(self) -> u64 {
        u64::from(self.slot) << 32 | u64::from(self.generation)
    }

    /// Returns the link with these 64 bits. It need not exist.
    pub fn from_bits(bits: u64) -> Self {
        Self { slot: (bits >> 32) as u32, generation: bits as u32 }
    }
}

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}

/// Whether the link `left` of a node was opened after its link `right`.
///
/// Generations are drawn from one counter per node, which wraps.
pub(super) fn is_newer(left: u32, right: u32) -> bool {
    let ahead = left.wrapping_sub(right);
    ahead != 0 && ahead < 1 << 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_of_an_identifier_are_its_own() {
        let id = LinkId { slot: 7, generation: u32::MAX };
        assert_eq!(LinkId::from_bits(id.to_bits()), id);
        assert_eq!(id.to_string(), "7.4294967295");
    }

    #[test]
    fn generations_are_compared_across_their_wrap() {
        let (before, after) = (u32::MAX, 1);
        assert!(is_newer(after, before) && !is_newer(before, after) && !is_newer(after, after));
    }
}
