//! Completions of a shared receive queue with tag matching.

use barewire_layouts::cqe::{Application, Cqe64, CqeOpcode, TagEvent, TagListResult};
use barewire_layouts::tag::TagHeader;
use zerocopy::transmute;

use super::polled::Polled;

/// The word with the application fields and the byte count.
const APPLICATION: usize = 5;

/// Completions of a list of tags ([`crate::tags`]).
impl Polled<'_> {
    /// What happened; `None` if the completion is no success of tag matching, or of a kind that this
    /// driver does not know.
    #[inline(always)]
    pub fn tag_event(self) -> Option<TagEvent> {
        const OPCODES: u32 = 1 << CqeOpcode::ResponderSend as u8
            | 1 << CqeOpcode::ResponderSendImmediate as u8
            | 1 << CqeOpcode::NoPacket as u8;
        // An opcode has four bits.
        if OPCODES >> (self.opcode() & 0xf) & 1 == 0 {
            return None;
        }
        let [kind, event, ..] = self.word::<APPLICATION>().to_le_bytes();
        if kind == Application::TAG_MATCHING { TagEvent::from_bits(event) } else { None }
    }

    /// The entry of the list that the event concerns.
    #[inline(always)]
    pub fn tag_entry(self) -> u16 {
        u16::from_be((self.word::<APPLICATION>() >> 16) as u16)
    }

    /// The header of a message whose match the completion reports.
    #[inline(always)]
    pub fn tag_header(self) -> TagHeader {
        transmute!([self.word::<0>(), self.word::<1>()])
    }

    /// The result of an operation on the list.
    #[inline(always)]
    pub fn tag_result(self) -> TagListResult {
        transmute!([self.word::<0>(), self.word::<1>()])
    }
}

const _: () = {
    use core::mem::offset_of;

    assert!(offset_of!(Cqe64, application) == APPLICATION * 8);
    assert!(offset_of!(Application, kind) == 0 && offset_of!(Application, event) == 1);
    assert!(offset_of!(Application, index) == 2);
};
