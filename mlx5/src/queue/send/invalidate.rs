//! Invalidation of memory keys: a peer's by a send, a local one by a separate WQE.

use barewire_layouts::wqe::{ControlFlags, DS, MkeyContextSegment, Opcode, UmrControlSegment};
use zerocopy::transmute;

use super::{PostError, SendQueue, WqeIndex};
use crate::doorbell::Doorbell;
use crate::wqe::Unit;

/// The segments after the control segment of an invalidation.
const CHANGE: [[u8; DS]; 3] = transmute!(UmrControlSegment::INVALIDATE);
const CHANGE_SHARED: [[u8; DS]; 3] = transmute!(UmrControlSegment::INVALIDATE_SHARED);
const KEY: [[u8; DS]; 4] = transmute!(MkeyContextSegment::FREE);

/// Invalidation of memory keys.
impl<D: Doorbell> SendQueue<D> {
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
        self.free_key(&CHANGE, key, Unit::load(&KEY[0]), flags)
    }

    /// Frees the memory window of `key`, as [`Self::local_invalidate`] does, but leaves the low
    /// byte of its key: libmlx5's bind of no bytes.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn unbind_window(&mut self, key: u32, flags: ControlFlags) -> Result<WqeIndex, PostError> {
        self.free_key(&CHANGE, key, Unit::load(&KEY[0]) | low_byte(key), flags)
    }

    /// As [`Self::unbind_window`], for a window that [`Self::bind_shared_window`] bound.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn unbind_shared_window(
        &mut self,
        key: u32,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.free_key(&CHANGE_SHARED, key, Unit::load(&KEY[0]) | low_byte(key), flags)
    }

    #[inline(always)]
    fn free_key(
        &mut self,
        [change, _, _]: &[[u8; DS]; 3],
        key: u32,
        context: Unit,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let zero = Unit::zero();
        let blocks = [[zero, Unit::load(change), zero, zero], [context, zero, zero, zero]];
        self.post_blocks::<2, 8>(Opcode::Umr, 0, key, flags, blocks)
    }
}

/// The low byte of `key`, in the first unit of the segment with the new fields of a key.
#[inline(always)]
fn low_byte(key: u32) -> Unit {
    Unit::from_words(u64::from((key & 0xff).to_be()) << 32, 0)
}
