//! The send queue: posting WQEs.
//!
//! A post tests the room, builds the WQE in registers, stores it to the ring, moves the doorbell record and stores it to the
//! BlueFlame register.
//!
//! The functions are safe: what a device can reach is decided when memory is registered, and that is where the `unsafe` contract
//! lies ([`crate::memory`]). A wrong address or key gives an error completion.

use core::any::Any;
use core::fmt;
use core::hint::cold_path;
use core::ptr::NonNull;
use std::sync::Arc;

use barewire_layouts::wqe::{
    ControlFlags, DS, DataSegment, InlineHeader, Opcode, RemoteAddressSegment, WQEBB,
};

use super::ring::{Ring, Wrapping};
use crate::barrier;
use crate::doorbell::{BlueFlame, BlueFlameShared, Doorbell, RecordWord, Register, SharedRegister, Width};
use crate::wqe::{BLOCK_UNITS, Block, Body, Inline, Segments, Sink, Unit};

mod atomic;
mod batch;
mod invalidate;
mod message;
mod rdma;
#[cfg(test)]
mod tests;
mod ud;

pub use atomic::{MaskedAdd, MaskedSwap};
pub use batch::Batch;
pub use ud::Destination;

/// Blocks of the longest WQE that is pushed whole: what one half of a BlueFlame register holds. Longer segment lists are fetched.
pub const MAX_WQE_BLOCKS: u32 = 4;
const MAX_WQE_BYTES: usize = MAX_WQE_BLOCKS as usize * WQEBB;
/// Longest payload of an inline RDMA write, in bytes.
pub const MAX_WRITE_INLINE: usize = MAX_WQE_BYTES - 2 * DS - size_of::<InlineHeader>();
/// Longest payload of an inline send, in bytes.
pub const MAX_SEND_INLINE: usize = MAX_WQE_BYTES - DS - size_of::<InlineHeader>();
/// Bytes that fill the unit of an inline header: see [`SendQueue::send_inline_prefixed`].
pub const PREFIX: usize = DS - size_of::<InlineHeader>();
/// As [`SendParts::signal_period`]: no completion but those that the poster asks for, who then sees to it that room comes back.
pub const UNMODERATED: u32 = 1 << 31;
/// Most scatter/gather elements of an operation.
pub const MAX_SEGMENTS: usize = 16;
/// Most scatter/gather elements of an RDMA read or write that is pushed whole.
pub const MAX_RDMA_SEGMENTS: usize = MAX_WQE_BYTES / DS - 2;
/// Most scatter/gather elements of a send that is pushed whole.
pub const MAX_SEND_SEGMENTS: usize = MAX_WQE_BYTES / DS - 1;

/// Why nothing was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The ring is full. Poll the completion queue, reap, and post again.
    #[error("the send queue is full: reap completions, then post again")]
    QueueFull,
    /// Inline payload or segment list longer than a WQE takes.
    #[error("payload or segment list is longer than a WQE of {MAX_WQE_BYTES} bytes takes")]
    TooLong,
}

/// Where a WQE starts, in blocks modulo 2^16. A completion carries the same number as `wqe_counter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WqeIndex(pub u16);

/// What a send queue is built from. See [`SendQueue::from_parts`].
#[derive(Debug)]
pub struct SendParts {
    /// The ring: `blocks` blocks of 64 bytes.
    pub ring: NonNull<u8>,
    /// Blocks in the ring, a power of two from 16 to 2^15.
    pub blocks: u32,
    /// The send word of the doorbell record.
    pub doorbell_record: NonNull<u32>,
    /// The BlueFlame register.
    pub register: NonNull<u8>,
    /// Queue pair number (24 bits).
    pub qpn: u32,
    /// A completion is asked for at least once in this many blocks: a power of two, at most an eighth of the ring, or [`UNMODERATED`].
    pub signal_period: u32,
    /// Keeps ring, record and register alive, and the device's object with them.
    pub keep: Arc<dyn Any + Send + Sync>,
}

/// A send queue. `D` says how the doorbell is rung.
///
/// It stays on its thread: queues of a thread share the registers of a UAR page without a lock.
/// Fields in front are what every post touches (one cache line); behind them is what is rarer.
#[repr(C, align(64))]
pub struct SendQueue<D: Doorbell = BlueFlame> {
    ring: Ring,
    doorbell_record: RecordWord,
    register: Register<D>,
    /// What every control segment has: the queue pair number.
    template: Unit,
    /// Blocks posted. The device sees the low 16 bits.
    producer: u64,
    /// The `producer` at which the ring is full: blocks known to be free again, and a ring of them.
    limit: u32,
    /// Low half of the `producer` behind the block at which a post has more to do: ask for a completion, or wait.
    special: u32,
    /// Flags of the WQE posted next, beside its own.
    next_flags: ControlFlags,
    /// Signal period - 1.
    signal_mask: u32,
    /// The WQE of more than one block that was posted last: its index and where it ends.
    long: (u64, u64),
    /// Blocks posted that were not the first of their WQE.
    further: u64,
    /// The register, if it is shared: see [`SharedRegister`].
    shared: Option<Arc<SharedRegister>>,
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the pointers are not tied to a thread. The ring and the record are this queue's own. The
// register is another's, too; `ring` writes it under the lock of `shared` only, which every value of
// this type has: `build` gets it, and safe code cannot exchange queues of different doorbells.
unsafe impl<W: Width> Send for SendQueue<BlueFlameShared<W>> {}

const _: () =
    assert!(core::mem::offset_of!(SendQueue, next_flags) == 64, "what every post touches is one cache line");

/// In `long` before the first: no index.
const NONE: (u64, u64) = (u64::MAX, u64::MAX);

impl<D: Doorbell> fmt::Debug for SendQueue<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendQueue")
            .field("qpn", &self.qpn())
            .field("blocks", &self.blocks())
            .field("producer", &self.producer)
            .field("room", &self.room())
            .finish_non_exhaustive()
    }
}

impl<D: Doorbell> SendQueue<D> {
    /// Builds a queue over memory that a device, or a test, looks at.
    ///
    /// # Safety
    /// Until `parts.keep` is dropped: `ring` is valid for reads and writes of `blocks * 64` bytes and 64-byte aligned; the doorbell record
    /// word is valid and 4-byte aligned; `register` is valid for writes of 512 bytes and 512-byte aligned; and nothing but this queue
    /// writes any of them, save that a register may be shared if its other users are on the same thread.
    /// A device that is part of this process, as the software HCA is, accesses ring and register by
    /// atomics of whole aligned 8-byte words, unless it does so while the queue is not used. `blocks` and `signal_period` are as [`SendParts`] says.
    /// The CPU has the instructions of `D::Width`. `D` is not [`BlueFlameShared`], whose queues come from [`Self::from_parts_shared`].
    pub unsafe fn from_parts(parts: SendParts) -> Self {
        const { assert!(!D::LOCKED, "a shared register needs its lock") };
        // SAFETY: the caller's contract.
        unsafe { Self::build(parts, None) }
    }

    /// As [`Self::from_parts`], for a queue that rings through a register which others ring through, too; `parts.register` is not written.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn from_parts_shared(parts: SendParts, register: Arc<SharedRegister>) -> Self {
        const { assert!(D::LOCKED, "only a locked doorbell takes the lock") };
        // SAFETY: the caller's contract.
        unsafe { Self::build(parts, Some(register)) }
    }

    /// # Safety
    /// As [`Self::from_parts`]; `shared` is there if `D` is locked.
    pub(crate) unsafe fn build(parts: SendParts, shared: Option<Arc<SharedRegister>>) -> Self {
        debug_assert_eq!(D::LOCKED, shared.is_some());
        debug_assert!(parts.signal_period.is_power_of_two());
        debug_assert!(parts.signal_period <= parts.blocks / 8 || parts.signal_period == UNMODERATED);
        Self {
            // SAFETY: the caller's contract covers ring, record and register.
            ring: unsafe { Ring::new(parts.ring, parts.blocks) },
            // SAFETY: as above.
            doorbell_record: unsafe { RecordWord::new(parts.doorbell_record) },
            // SAFETY: as above.
            register: unsafe { Register::new(parts.register) },
            template: Unit::from_words(u64::from((parts.qpn << 8).to_be()) << 32, 0),
            producer: 0,
            limit: parts.blocks,
            special: parts.signal_period,
            next_flags: ControlFlags::empty(),
            signal_mask: parts.signal_period - 1,
            long: NONE,
            further: 0,
            shared,
            _keep: parts.keep,
        }
    }

    /// Does nothing but complete after everything before it.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn nop(&mut self, flags: ControlFlags) -> Result<WqeIndex, PostError> {
        self.post_block::<1>(Opcode::Nop, 0, flags, [Unit::zero(); 3])
    }

    /// The WQE posted next waits for the RDMA reads and atomics before it, as if it were posted with [`ControlFlags::FENCE`]. It costs
    /// those behind it nothing: a post finds out by the test that it does anyway.
    pub fn fence(&mut self) {
        self.flag_next(ControlFlags::FENCE);
    }

    /// The WQE posted next asks for a completion, as if it were posted with [`ControlFlags::COMPLETION`]. As cheap as [`Self::fence`].
    pub fn request_completion(&mut self) {
        self.flag_next(ControlFlags::COMPLETION);
    }

    fn flag_next(&mut self, flags: ControlFlags) {
        self.next_flags |= flags;
        self.special = self.producer.wrapping_add(1) as u32;
    }

    /// Takes the `wqe_counter` of a completion of this queue: that WQE and everything before it is done, its room is free again.
    #[inline]
    pub fn reap(&mut self, wqe_counter: u16) {
        let index = self.index_of(wqe_counter);
        // Of WQEs of several blocks, only the last one's end is known. The rest of another comes back with the next completion.
        let end = if index == self.long.0 { self.long.1 } else { index.wrapping_add(1) };
        self.limit = (end as u32).wrapping_add(self.blocks());
    }

    /// The counter value of which `counter` is the low half: of the last 2^16 that were posted.
    #[inline(always)]
    fn index_of(&self, counter: u16) -> u64 {
        self.producer.wrapping_sub((self.producer as u16).wrapping_sub(counter).into())
    }

    /// `true` once the WQE at `index` is known to be done. Holds for WQEs that are not older than the ring.
    #[inline]
    pub fn is_done(&self, index: WqeIndex) -> bool {
        let behind = (self.producer as u16).wrapping_sub(index.0);
        u32::from(behind) > self.outstanding()
    }

    /// `true` when everything that was posted is known to be done.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.outstanding() == 0
    }

    /// Index of the WQE posted last; `None` before the first.
    #[inline]
    pub fn last_index(&self) -> Option<WqeIndex> {
        (self.producer > 0).then(|| WqeIndex(self.last() as u16))
    }

    /// `blocks` blocks of the ring from that of `index` on, as they lie there: what the device was given, for reports of errors.
    pub fn ring_bytes(&self, WqeIndex(index): WqeIndex, blocks: u32) -> Vec<u8> {
        self.ring.bytes(index.into(), blocks.min(self.ring.blocks()))
    }

    /// `true` if the WQE posted last asked for a completion, or nothing was posted yet. If not, what was posted since the last completion
    /// request is not reaped before another one: post a signalled [`Self::nop`] to learn of it.
    pub fn last_is_signaled(&self) -> bool {
        self.producer == 0 || self.ring.flags(self.last()) & ControlFlags::COMPLETION.bits() != 0
    }

    /// Blocks posted so far: the same number later says that nothing was posted since.
    #[inline]
    pub fn posted(&self) -> u64 {
        self.producer
    }

    /// WQEs posted so far.
    #[inline]
    pub fn wqes(&self) -> u64 {
        self.producer.wrapping_sub(self.further)
    }

    /// Blocks that may be posted now.
    #[inline]
    pub fn room(&self) -> u32 {
        self.limit.wrapping_sub(self.producer as u32)
    }

    /// Blocks of the ring.
    #[inline]
    pub fn blocks(&self) -> u32 {
        self.ring.blocks()
    }

    /// Queue pair number.
    #[inline]
    pub fn qpn(&self) -> u32 {
        u32::from_be((self.template.low() >> 32) as u32) >> 8
    }

    /// Forgets everything posted; for a queue pair that was moved to the reset state.
    pub(crate) fn reset(&mut self) {
        // The WQEs stay counted.
        self.further = self.further.wrapping_sub(self.producer);
        self.producer = 0;
        self.limit = self.blocks();
        self.special = self.signal_mask + 1;
        self.next_flags = ControlFlags::empty();
        self.long = NONE;
        self.doorbell_record.store(0);
    }

    /// Blocks that are not known to be done.
    #[inline(always)]
    fn outstanding(&self) -> u32 {
        self.blocks().wrapping_sub(self.room())
    }

    /// Counter value at which the WQE posted last starts.
    #[inline(always)]
    fn last(&self) -> u64 {
        if self.long.1 == self.producer { self.long.0 } else { self.producer.wrapping_sub(1) }
    }
}

/// How everything is posted.
impl<D: Doorbell> SendQueue<D> {
    /// Posts a WQE of one block: a control segment and `UNITS - 1` of `units`.
    #[inline(always)]
    fn post_block<const UNITS: usize>(
        &mut self,
        opcode: Opcode,
        immediate: u32,
        flags: ControlFlags,
        [a, b, c]: [Unit; 3],
    ) -> Result<WqeIndex, PostError> {
        self.post_blocks::<1, UNITS>(opcode, 0, immediate, flags, [[Unit::zero(), a, b, c]])
    }

    /// Posts a WQE of `UNITS` units, all known: `blocks` with a place in front for the control segment. `modifier` is the opcode's.
    #[inline(always)]
    fn post_blocks<const BLOCKS: usize, const UNITS: usize>(
        &mut self,
        opcode: Opcode,
        modifier: u8,
        immediate: u32,
        flags: ControlFlags,
        mut blocks: [Block; BLOCKS],
    ) -> Result<WqeIndex, PostError> {
        const { assert!(UNITS.div_ceil(BLOCK_UNITS) == BLOCKS) };
        let index = self.reserve(BLOCKS as u32)?;
        blocks[0][0] = self.control(opcode, modifier, index, UNITS as u32, flags, immediate, BLOCKS as u32);
        for (at, block) in blocks.iter().enumerate() {
            self.ring.store_block(index.wrapping_add(at as u64), block, UNITS - at * BLOCK_UNITS);
        }
        self.publish(index, BLOCKS as u32);
        self.ring(|register| register.ring_blocks(&blocks));
        Ok(WqeIndex(index as u16))
    }

    /// Posts a WQE whose data lies in it.
    #[inline(always)]
    fn post_inline(
        &mut self,
        opcode: Opcode,
        immediate: u32,
        flags: ControlFlags,
        remote: Option<RemoteAddressSegment>,
        payload: &[u8],
    ) -> Result<WqeIndex, PostError> {
        if payload.len() > if remote.is_some() { MAX_WRITE_INLINE } else { MAX_SEND_INLINE } {
            return Err(PostError::TooLong);
        }
        self.post_wqe(opcode, immediate, flags, Inline::new(remote, payload))
    }

    /// Posts a WQE whose data lies elsewhere. Empty segments are left out.
    #[inline(always)]
    fn post_segments(
        &mut self,
        opcode: Opcode,
        immediate: u32,
        flags: ControlFlags,
        remote: Option<RemoteAddressSegment>,
        local: &[DataSegment],
    ) -> Result<WqeIndex, PostError> {
        let body = Segments::new(remote, local);
        if body.units() as usize > MAX_SEGMENTS + usize::from(remote.is_some()) {
            return Err(PostError::TooLong);
        }
        self.post_wqe(opcode, immediate, flags, body)
    }

    /// Posts a WQE whose length is known at run time.
    #[inline(always)]
    fn post_wqe(
        &mut self,
        opcode: Opcode,
        immediate: u32,
        flags: ControlFlags,
        body: impl Body,
    ) -> Result<WqeIndex, PostError> {
        let units = 1 + body.units();
        let blocks = units.div_ceil(BLOCK_UNITS as u32);
        let index = self.reserve(blocks)?;
        let control = self.control(opcode, 0, index, units, flags, immediate, blocks);
        match self.ring.linear(index, blocks) {
            Some(mut sink) => {
                sink.unit(control);
                body.emit(&mut sink);
            }
            None => emit_wrapped(control, body, self.ring.wrapping(index)),
        }
        self.publish(index, blocks);
        self.ring(|register| register.ring_wqe(control, &body, units));
        Ok(WqeIndex(index as u16))
    }

    /// Where a WQE of so many blocks starts, if there is room.
    #[inline(always)]
    fn reserve(&self, blocks: u32) -> Result<u64, PostError> {
        let full = if blocks == 1 { self.limit == self.producer as u32 } else { self.room() < blocks };
        if full { Err(PostError::QueueFull) } else { Ok(self.producer) }
    }

    /// The control segment of the WQE at `index`.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "the fields of a control segment")]
    fn control(
        &mut self,
        opcode: Opcode,
        modifier: u8,
        index: u64,
        units: u32,
        flags: ControlFlags,
        immediate: u32,
        blocks: u32,
    ) -> Unit {
        let own = flags_word(flags, immediate);
        let first = u32::from(modifier) << 24 | (index as u32 & 0xffff) << 8 | opcode as u32;
        let control = Unit::from_words(u64::from(units.to_be()) << 32, own) | self.template;
        let control = Unit::from_low(first.to_be()) | control;
        let next = (index as u32).wrapping_add(blocks);
        let is_special = if blocks == 1 {
            next == self.special
        } else {
            self.special.wrapping_sub(index as u32) <= blocks
        };
        if is_special {
            cold_path();
            return control | Unit::from_words(0, flags_word(self.special_flags(next, blocks), 0));
        }
        control
    }

    /// What the WQE that ends at `next` does beside its own: it waits, if it was told to, and asks for a completion if it steps over a
    /// multiple of the signal period. So room comes back without a counter of unsignalled WQEs.
    #[inline(always)]
    fn special_flags(&mut self, next: u32, blocks: u32) -> ControlFlags {
        let mut flags = self.next_flags;
        self.next_flags = ControlFlags::empty();
        if next & self.signal_mask < blocks {
            flags |= ControlFlags::COMPLETION;
        }
        self.special = (next | self.signal_mask).wrapping_add(1);
        flags
    }

    /// Makes the WQE at `index` visible in the doorbell record, in order.
    #[inline(always)]
    fn publish(&mut self, index: u64, blocks: u32) {
        let end = index.wrapping_add(blocks.into());
        self.producer = end;
        if blocks > 1 {
            self.long = (index, end);
            self.further = self.further.wrapping_add(u64::from(blocks) - 1);
        }
        if D::AT_ONCE {
            self.record();
        }
    }

    /// Writes the register.
    #[inline(always)]
    fn ring(&mut self, ring: impl FnOnce(&mut Register<D>)) {
        if !D::LOCKED {
            return ring(&mut self.register);
        }
        if let Some(shared) = &self.shared {
            // SAFETY: the CPU has the instructions, by the contract of `from_parts`.
            unsafe { shared.ring(ring) };
        }
    }

    /// Moves the doorbell record to the producer, with what must come before and after it.
    #[inline(always)]
    fn record(&mut self) {
        barrier::wqe_before_doorbell_record();
        self.doorbell_record.store(self.producer as u32 & 0xffff);
        barrier::doorbell_record_before_doorbell();
    }
}

/// The second half of a control segment, in memory order.
#[inline(always)]
fn flags_word(flags: ControlFlags, immediate: u32) -> u64 {
    u64::from(u32::from(flags.bits()).to_be()) | u64::from(immediate.to_be()) << 32
}

/// Once in a lap at most: kept out of the way.
#[cold]
#[inline(never)]
fn emit_wrapped(control: Unit, body: impl Body, mut sink: Wrapping) {
    sink.unit(control);
    body.emit(&mut sink);
}
