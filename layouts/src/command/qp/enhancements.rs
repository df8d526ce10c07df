//! The options of enhanced connection establishment (ECE): the `ece` fields of commands.

use core::fmt;

/// Enhancements of a connection, such as selective repeat or another congestion control: a version
/// in the four upper bits, and options whose meaning NVIDIA does not publish. Both ends of a
/// connection must use the same.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Enhancements(u32);

impl Enhancements {
    /// No enhancements: both ends use those of every release.
    pub const NONE: Self = Self(0);
    /// What CREATE_QP requests so that the device reports what it supports: version 1 without
    /// options (rdma-core providers/mlx5/verbs.c: `create_qp`; UCX:
    /// `UCT_IB_MLX5_DEVX_ECE_TRIG_RESP`).
    pub const QUERY: Self = Self(1 << Self::VERSION_SHIFT);

    const VERSION_SHIFT: u32 = 28;

    /// The enhancements of an `ece` field.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The value of an `ece` field.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The version; 0 for no enhancements.
    pub const fn version(self) -> u8 {
        (self.0 >> Self::VERSION_SHIFT) as u8
    }

    /// Returns whether there are no enhancements.
    pub const fn is_none(self) -> bool {
        self.version() == 0
    }

    /// What two devices have in common: the older version, and the options of both.
    #[must_use]
    pub const fn common(self, other: Self) -> Self {
        let options = self.0 & other.0 & ((1 << Self::VERSION_SHIFT) - 1);
        let version =
            if self.version() < other.version() { self.version() } else { other.version() };
        if version == 0 {
            Self::NONE
        } else {
            Self((version as u32) << Self::VERSION_SHIFT | options)
        }
    }
}

impl fmt::Display for Enhancements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for Enhancements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Enhancements({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_devices_have_in_common() {
        for (one, other, common) in [
            (0x3000_0002, 0x3000_0002, 0x3000_0002),
            (0x3000_0006, 0x2000_0003, 0x2000_0002),
            (0x1000_0000, 0x3000_0002, 0x1000_0000),
            (0xffff_ffff, 0x3000_0002, 0x3000_0002),
            (0x3000_0002, 0, 0),
            // Options of no version are none.
            (0x0fff_ffff, 0x3000_0002, 0),
        ] {
            let [one, other] = [one, other].map(Enhancements::from_bits);
            assert_eq!(one.common(other).bits(), common, "{one} and {other}");
            assert_eq!(other.common(one).bits(), common, "{other} and {one}");
        }
        assert!(Enhancements::default().is_none() && !Enhancements::QUERY.is_none());
    }
}
