//! The byte count of a completion of a striding shared receive queue.
//!
//! The device writes a completion for each packet that takes a stride. Its
//! [`wqe_counter`](super::Cqe64::wqe_counter) is the index of the WQE and
//! [`PacketFields::stride`](super::PacketFields::stride) that of the stride. Sources: UCX ib_mlx5.h
//! `UCT_IB_MLX5_MP_RQ_*`; PRM cmd_hca_cap `ib_striding_wq_cq_first_indication`.

/// [`Cqe64::byte_count`](super::Cqe64::byte_count) of a packet that took a stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StrideCount(pub u32);

impl StrideCount {
    const LENGTH: u32 = 0xffff;
    const FIRST: u32 = 1 << 29;
    const LAST: u32 = 1 << 30;
    const FILLER: u32 = 1 << 31;

    /// The count of a packet of `length` bytes, which is the first or the last of its message.
    #[inline]
    pub const fn new(length: u16, first: bool, last: bool) -> Self {
        let first = if first { Self::FIRST } else { 0 };
        Self(length as u32 | first | if last { Self::LAST } else { 0 })
    }

    /// Bytes of the packet.
    #[inline]
    pub const fn length(self) -> u16 {
        (self.0 & Self::LENGTH) as u16
    }

    /// The packet begins a message.
    #[inline]
    pub const fn is_first(self) -> bool {
        self.0 & Self::FIRST != 0
    }

    /// The packet ends a message.
    #[inline]
    pub const fn is_last(self) -> bool {
        self.0 & Self::LAST != 0
    }

    /// No packet: the device gives a stride back.
    #[inline]
    pub const fn is_filler(self) -> bool {
        self.0 & Self::FILLER != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_ucxs() {
        for (first, last, bits) in
            [(true, true, 0x6000_0000), (true, false, 0x2000_0000), (false, true, 0x4000_0000)]
        {
            let count = StrideCount::new(0x1234, first, last);
            assert_eq!(count, StrideCount(bits | 0x1234));
            assert_eq!((count.is_first(), count.is_last()), (first, last));
            assert_eq!((count.length(), count.is_filler()), (0x1234, false));
        }
        assert!(StrideCount(0x8000_0000).is_filler());
    }
}
