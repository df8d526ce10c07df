//! Data that a CQE carries.

use core::fmt;
use core::ops::Deref;

use barewire_layouts::cqe::{CqeFormat, CqeOpcode};

use super::slot::Slot;

/// Up to 64 bytes that a completion carried: see [`super::CompletionQueue::inline_data`]. It is a
/// copy, because the device reuses the entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct InlineData {
    bytes: [u8; 64],
    length: u8,
}

impl InlineData {
    /// The data in `slot`, if it has any. Limited to the size of the slot, whatever the byte count
    /// of the CQE is.
    pub(super) fn of(slot: &impl Slot) -> Option<Self> {
        let cqe = slot.cqe();
        if cqe.opcode() > CqeOpcode::ResponderSendInvalidate as u8 {
            return None;
        }
        let count = cqe.byte_count.get();
        let mut bytes = [0; 64];
        let length = match (cqe.format(), slot.data()) {
            (CqeFormat::Inline32, _) => {
                bytes[..32].copy_from_slice(&cqe.metadata);
                count.min(32)
            }
            (CqeFormat::Inline64, Some(data)) => {
                bytes = *data;
                count.min(64)
            }
            _ => return None,
        };
        Some(Self { bytes, length: length as u8 })
    }
}

impl Deref for InlineData {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }
}

impl fmt::Debug for InlineData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
