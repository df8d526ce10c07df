//! The name of a receive that the device matches.

/// A receive in the list of an interface, to cancel it. It is not reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(not(feature = "mlx5"), allow(dead_code, reason = "no transport makes one"))]
pub struct TagReceive {
    /// Index of the entry.
    pub(crate) entry: u16,
    /// Number of the receive among all of the interface, modulo 2^32.
    pub(crate) number: u32,
}
