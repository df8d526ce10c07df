//! Fields of completions of a shared receive queue with tag matching (XRQ).
//!
//! Sources: mlx5dv.h `struct mlx5_cqe64` (`app`, `app_op`, `app_info`), `struct mlx5_tm_cqe`;
//! rdma-core cq.c `MLX5_CQE_APP_OP_TM_*`.

use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::be::{Be16, Be32};
use crate::codes::codes;

codes! {
    /// What happened (rdma-core cq.c: `MLX5_CQE_APP_OP_TM_*`).
    TagEvent {
        /// A message matched an entry. A second completion follows when its data is complete.
        Consumed = 0x1,
        /// The data of a message that matched before is complete.
        Expected = 0x2,
        /// No entry matched: the whole message is in a receive WQE.
        Unexpected = 0x3,
        /// A message without a tag is in a receive WQE.
        NoTag = 0x4,
        /// An entry was appended.
        Append = 0x5,
        /// An entry was removed, or was no longer in the list.
        Remove = 0x6,
        /// A list operation that changed nothing.
        Nop = 0x7,
        /// As [`Self::Consumed`], but software reads the data.
        ConsumedSoftware = 0x9,
        /// A message matched an entry and is complete.
        ConsumedMessage = 0xa,
        /// As [`Self::ConsumedMessage`], but software reads the data.
        ConsumedMessageSoftware = 0xb,
        /// The data of a message that matched does not arrive.
        Cancelled = 0xc,
    }
}

/// The word of a CQE that belongs to an offload, [`super::Cqe64::application`].
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
pub struct Application {
    /// Which offload: [`Self::TAG_MATCHING`].
    pub kind: u8,
    /// See [`TagEvent::from_bits`].
    pub event: u8,
    /// The entry of the list.
    pub index: Be16,
}

impl Application {
    /// Tag matching (rdma-core cq.c: `MLX5_CQE_APP_TAG_MATCHING`).
    pub const TAG_MATCHING: u8 = 1;

    /// The word of an event that concerns entry `index`.
    #[inline]
    pub const fn tag(event: TagEvent, index: u16) -> Self {
        Self { kind: Self::TAG_MATCHING, event: event as u8, index: Be16::new(index) }
    }
}

/// The first bytes of the completion of a list operation (mlx5dv.h: `struct mlx5_tm_cqe`).
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
pub struct TagListResult {
    /// [`Self::SUCCESS`], or 0 if the entry was no longer in the list.
    pub success: Be32,
    /// Unexpected messages that the device has received, modulo 2^16.
    pub hardware_count: Be16,
    /// Zero.
    pub reserved: [u8; 10],
}

impl TagListResult {
    /// The operation had its effect (rdma-core: `MLX5_TMC_SUCCESS`).
    pub const SUCCESS: u32 = 1 << 31;
}

const_assert_eq!(size_of::<Application>(), 4);
const_assert_eq!(core::mem::offset_of!(Application, index), 2);
const_assert_eq!(size_of::<TagListResult>(), 16);
const_assert_eq!(core::mem::offset_of!(TagListResult, hardware_count), 4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_byte_for_byte() {
        let word = Application::tag(TagEvent::ConsumedMessage, 0x0102);
        assert_eq!(word.as_bytes(), [1, 0xa, 1, 2]);
        assert_eq!(Application::read_from_bytes(&[1, 0xa, 1, 2]).unwrap(), word);
        let result = TagListResult {
            success: Be32::new(TagListResult::SUCCESS),
            hardware_count: Be16::new(0x0304),
            reserved: [0; 10],
        };
        let bytes = [0x80, 0, 0, 0, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(result.as_bytes(), bytes);
        assert_eq!(TagListResult::read_from_bytes(&bytes).unwrap(), result);
    }

    #[test]
    fn every_known_event_decodes_to_itself() {
        let known = (0..=u8::MAX).filter_map(TagEvent::from_bits).map(|event| event as u8);
        assert!(known.eq([1, 2, 3, 4, 5, 6, 7, 9, 0xa, 0xb, 0xc]));
    }
}
