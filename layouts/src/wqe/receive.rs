//! Receive WQEs.
//!
//! A receive queue's WQE is a list of [`super::DataSegment`]s, as many as the queue's stride has
//! room for; a shorter list ends with [`super::DataSegment::END`]. In a shared receive queue a
//! header precedes the list. Sources: mlx5dv.h `struct mlx5_wqe_srq_next_seg`, rdma-core srq.c.

use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::be::Be16;

/// First 16 bytes of a WQE of a shared receive queue. In a queue of the linked-list kind the device
/// follows it from one WQE to the next; in a cyclic one it takes them in order and ignores it.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct SharedReceiveHeader {
    /// Reserved.
    pub reserved_0: [u8; 2],
    /// Index of the next WQE.
    pub next_wqe_index: Be16,
    /// Signature.
    pub signature: u8,
    /// Reserved.
    pub reserved_5: [u8; 11],
}

impl SharedReceiveHeader {
    /// A header that leads to `next`.
    #[inline]
    pub const fn new(next: u16) -> Self {
        Self {
            reserved_0: [0; 2],
            next_wqe_index: Be16::new(next),
            signature: 0,
            reserved_5: [0; 11],
        }
    }
}

const_assert_eq!(size_of::<SharedReceiveHeader>(), 16);
const_assert_eq!(core::mem::offset_of!(SharedReceiveHeader, next_wqe_index), 2);
const_assert_eq!(core::mem::offset_of!(SharedReceiveHeader, signature), 4);
const_assert_eq!(core::mem::offset_of!(SharedReceiveHeader, reserved_5), 5);

#[cfg(test)]
mod tests {
    use super::super::DataSegment;
    use super::super::golden::golden;
    use super::*;

    #[test]
    fn headers_and_list_ends() {
        golden::<_, 16>(SharedReceiveHeader::new(0x0102), "00000102000000000000000000000000");
        // rdma-core, mlx5_post_srq_recv: byte count 0, MLX5_INVALID_LKEY, address 0.
        golden::<_, 16>(DataSegment::END, "00000000000001000000000000000000");
    }
}
