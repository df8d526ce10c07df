//! Sends.

use core::hint::cold_path;

use barewire_layouts::wqe::{ControlFlags, DataSegment, InlineHeader, Opcode};

use super::{MAX_SEND_INLINE, PREFIX, PostError, SendQueue, WqeIndex};
use crate::doorbell::Doorbell;
use crate::wqe::{Inline, Unit};

/// Sends of connected queue pairs.
impl<D: Doorbell> SendQueue<D> {
    /// Sends up to [`MAX_SEND_INLINE`] bytes that are copied to the WQE; `payload` can be reused on
    /// return.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`].
    #[inline]
    pub fn send_inline(
        &mut self,
        payload: &[u8],
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_inline(Opcode::Send, 0, flags, None, payload)
    }

    /// Sends `prefix` and 8 bytes inline as one message.
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

    /// Sends `prefix` and `payload` inline as one message of up to [`MAX_SEND_INLINE`] bytes. A
    /// 12-byte prefix fills the 16-byte unit of the inline header, so the payload starts at the
    /// next unit.
    ///
    /// # Errors
    /// Those of [`Self::send_inline`].
    #[inline(always)]
    pub fn send_inline_prefixed(
        &mut self,
        prefix: [u8; PREFIX],
        payload: &[u8],
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        // An 8-byte payload stays in a CPU register, as in `write_inline`.
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
        self.post_wqe(Opcode::Send, 0, flags, Inline::prefixed(None, low, high, payload))
    }

    /// Like [`Self::send_inline`], and the peer's completion carries `immediate`.
    ///
    /// # Errors
    /// Those of [`Self::send_inline`].
    #[inline]
    pub fn send_inline_immediate(
        &mut self,
        payload: &[u8],
        immediate: u32,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_inline(Opcode::SendImmediate, immediate, flags, None, payload)
    }

    /// Sends one local segment.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline(always)]
    pub fn send(&mut self, local: DataSegment, flags: ControlFlags) -> Result<WqeIndex, PostError> {
        if local.byte_count.get() == 0 {
            cold_path();
            return self.post_block::<1>(Opcode::Send, 0, flags, [Unit::zero(); 3]);
        }
        self.post_block::<2>(
            Opcode::Send,
            0,
            flags,
            [Unit::local(&local), Unit::zero(), Unit::zero()],
        )
    }

    /// Sends a header and one local segment as one message; empty parts are skipped.
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

    /// Sends up to [`super::MAX_SEGMENTS`] segments as one message.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`] for too many segments.
    #[inline]
    pub fn send_gather(
        &mut self,
        local: &[DataSegment],
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_segments(Opcode::Send, 0, flags, None, local)
    }

    /// Like [`Self::send_gather`], and the peer's completion carries `immediate`.
    ///
    /// # Errors
    /// Those of [`Self::send_gather`].
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
