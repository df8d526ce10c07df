//! Sends.

use core::hint::cold_path;

use barewire_layouts::wqe::{ControlFlags, DataSegment, InlineHeader, Opcode};

use super::{MAX_SEND_INLINE, PREFIX, PostError, SendQueue, WqeIndex};
use crate::doorbell::Doorbell;
use crate::wqe::{Inline, Unit};

/// Sends, for queues of connected queue pairs.
impl<D: Doorbell> SendQueue<D> {
    /// Send of a payload of up to [`MAX_SEND_INLINE`] bytes that travels in the WQE; reusable at once.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`].
    #[inline]
    pub fn send_inline(&mut self, payload: &[u8], flags: ControlFlags) -> Result<WqeIndex, PostError> {
        self.post_inline(Opcode::Send, 0, flags, None, payload)
    }

    /// Inline send of `prefix` and 8 bytes as one message.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline(always)]
    pub fn send_inline_prefixed_8(
        &mut self,
        prefix: [u8; PREFIX],
        payload: [u8; 8],
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let header = Unit::inline_prefix(InlineHeader::new(20), prefix);
        let word = Unit::from_words(u64::from_le_bytes(payload), 0);
        self.post_block::<3>(Opcode::Send, 0, flags, [header, word, Unit::zero()])
    }

    /// Inline send of `prefix` and `payload` as one message of up to [`MAX_SEND_INLINE`] bytes. A 12-byte prefix fills the inline
    /// header's 16-byte unit, so that the payload starts on the next one.
    ///
    /// # Errors
    /// As [`Self::send_inline`].
    #[inline(always)]
    pub fn send_inline_prefixed(
        &mut self,
        prefix: [u8; PREFIX],
        payload: &[u8],
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        // As in `write_inline`: a word stays in a register.
        if let Ok(word) = payload.try_into() {
            return self.send_inline_prefixed_8(prefix, word, flags);
        }
        let (low, high) = Unit::split_prefix(prefix);
        self.send_inline_prefixed_any(low, high, payload, flags)
    }

    #[inline(never)]
    fn send_inline_prefixed_any(
        &mut self,
        low: u32,
        high: u64,
        payload: &[u8],
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        if payload.len() > MAX_SEND_INLINE - PREFIX {
            return Err(PostError::TooLong);
        }
        self.post_wqe(Opcode::Send, 0, flags, Inline::prefixed(low, high, payload))
    }

    /// Like [`Self::send_inline`]; the peer's completion carries `immediate`.
    ///
    /// # Errors
    /// As [`Self::send_inline`].
    #[inline]
    pub fn send_inline_immediate(
        &mut self,
        payload: &[u8],
        immediate: u32,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_inline(Opcode::SendImmediate, immediate, flags, None, payload)
    }

    /// Send of one local segment.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn send(&mut self, local: DataSegment, flags: ControlFlags) -> Result<WqeIndex, PostError> {
        if local.byte_count.get() == 0 {
            cold_path();
            return self.post_block::<1>(Opcode::Send, 0, flags, [Unit::zero(); 3]);
        }
        self.post_block::<2>(Opcode::Send, 0, flags, [Unit::local(&local), Unit::zero(), Unit::zero()])
    }

    /// Send of a header and one local segment; what is empty of both is left out.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn send_pair(
        &mut self,
        header: DataSegment,
        local: DataSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        if header.byte_count.get() == 0 || local.byte_count.get() == 0 {
            cold_path();
            return self.post_segments(Opcode::Send, 0, flags, None, &[header, local]);
        }
        let units = [Unit::local(&header), Unit::local(&local), Unit::zero()];
        self.post_block::<3>(Opcode::Send, 0, flags, units)
    }

    /// Send gathered from up to [`super::MAX_SEGMENTS`] segments.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`] for too many segments.
    #[inline]
    pub fn send_gather(&mut self, local: &[DataSegment], flags: ControlFlags) -> Result<WqeIndex, PostError> {
        self.post_segments(Opcode::Send, 0, flags, None, local)
    }

    /// Like [`Self::send_gather`]; the peer's completion carries `immediate`.
    ///
    /// # Errors
    /// As [`Self::send_gather`].
    #[inline]
    pub fn send_immediate(
        &mut self,
        local: &[DataSegment],
        immediate: u32,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_segments(Opcode::SendImmediate, immediate, flags, None, local)
    }
}
