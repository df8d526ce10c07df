//! Invalidation of memory keys: a peer's by a send, a local one by a separate WQE.

use barewire_layouts::wqe::{
    ControlFlags, DS, DataSegment, MkeyContextSegment, Opcode, UmrControlSegment,
};
use zerocopy::transmute;

use super::{PostError, SendQueue, WqeIndex};
use crate::doorbell::Doorbell;
use crate::wqe::{Body, Sink, Unit};

/// The segments after the control segment of a local invalidation.
#[derive(Clone, Copy)]
struct Invalidation;

impl Body for Invalidation {
    #[inline(always)]
    fn units(&self) -> u32 {
        ((size_of::<UmrControlSegment>() + size_of::<MkeyContextSegment>()) / DS) as u32
    }

    #[inline(always)]
    fn emit(&self, sink: &mut impl Sink) {
        const CHANGE: [[u8; DS]; 3] = transmute!(UmrControlSegment::INVALIDATE);
        const KEY: [[u8; DS]; 4] = transmute!(MkeyContextSegment::FREE);
        for unit in CHANGE.iter().chain(&KEY) {
            sink.unit(Unit::load(unit));
        }
    }
}

/// Invalidation of memory keys.
impl<D: Doorbell> SendQueue<D> {
    /// Sends up to [`super::MAX_SEGMENTS`] segments as one message that invalidates the peer's key
    /// `rkey` on arrival.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`] for too many segments.
    #[inline]
    pub fn send_invalidate(
        &mut self,
        local: &[DataSegment],
        rkey: u32,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_segments(Opcode::SendInvalidate, rkey, flags, None, local)
    }

    /// Sends up to [`super::MAX_SEND_INLINE`] inline bytes as a message that invalidates the peer's
    /// key `rkey` on arrival.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`].
    #[inline]
    pub fn send_inline_invalidate(
        &mut self,
        payload: &[u8],
        rkey: u32,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_inline(Opcode::SendInvalidate, rkey, flags, None, payload)
    }

    /// Invalidates `key`, the key of a memory window of this queue pair.
    ///
    /// It is a user-mode registration, like the one that libmlx5 posts. The next WQE must wait for
    /// it: post that one with [`ControlFlags::SMALL_FENCE`] or [`ControlFlags::FENCE`].
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn local_invalidate(
        &mut self,
        key: u32,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_wqe(Opcode::Umr, key, flags, Invalidation)
    }
}
