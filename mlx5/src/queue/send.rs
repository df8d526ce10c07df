//! The send queue: posting WQEs.
//!
//! A post tests the room counter, builds the WQE in registers, stores it to the ring, moves the doorbell record and stores it to the
//! BlueFlame register.
//!
//! The functions are safe: what a device can reach is decided when memory is registered, and that is where the `unsafe` contract
//! lies ([`crate::memory`]). A wrong address or key gives an error completion.

use core::any::Any;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::sync::Arc;

use barewire_layouts::be::Be64;
use barewire_layouts::wqe::{
    AtomicSegment, ControlFlags, DS, DataSegment, InlineHeader, Opcode, RemoteAddressSegment, WQEBB,
};

use super::ring::{Ring, Wrapping};
use crate::barrier;
use crate::doorbell::{BlueFlame, Deferred, Doorbell, RecordWord, Register};
use crate::wqe::{BLOCK_UNITS, Block, Body, Inline, Segments, Sink, Unit};

mod atomic;
mod invalidate;
mod ud;

pub use atomic::{MaskedAdd, MaskedSwap};
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
/// Fields in front are what a post touches (one cache line); behind them is what a completion touches.
#[repr(C, align(64))]
pub struct SendQueue<D: Doorbell = BlueFlame> {
    ring: Ring,
    doorbell_record: RecordWord,
    register: Register<D>,
    /// Blocks that may still be posted.
    room: i32,
    /// Blocks posted, free running; the device sees the low 16 bits.
    producer: u32,
    /// Index of the WQE that was posted last.
    last: u32,
    /// Queue pair number, shifted to its place in a control segment and big-endian.
    qpn: u32,
    /// Signal period - 1.
    signal_mask: u32,
    /// Blocks known to be free again, as a counter like `producer`.
    reaped: u16,
    _keep: Arc<dyn Any + Send + Sync>,
}

impl<D: Doorbell> fmt::Debug for SendQueue<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendQueue")
            .field("qpn", &self.qpn())
            .field("blocks", &self.ring.blocks())
            .field("producer", &self.producer)
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}

impl<D: Doorbell> SendQueue<D> {
    /// Builds a queue over memory that a device, or a test, looks at.
    ///
    /// # Safety
    /// Until `parts.keep` is dropped: `ring` is valid for reads and writes of `blocks * 64` bytes and 64-byte aligned; the doorbell record
    /// word is valid and 4-byte aligned; `register` is valid for writes of 512 bytes and 512-byte aligned; and nothing but this queue
    /// writes any of them, save that a register may be shared if its other users are on the same thread. `blocks` and `signal_period` are as [`SendParts`] says.
    pub unsafe fn from_parts(parts: SendParts) -> Self {
        debug_assert!(parts.signal_period.is_power_of_two());
        debug_assert!(parts.signal_period <= parts.blocks / 8 || parts.signal_period == UNMODERATED);
        Self {
            // SAFETY: the caller's contract covers ring, record and register.
            ring: unsafe { Ring::new(parts.ring, parts.blocks) },
            // SAFETY: as above.
            doorbell_record: unsafe { RecordWord::new(parts.doorbell_record) },
            // SAFETY: as above.
            register: unsafe { Register::new(parts.register) },
            room: parts.blocks as i32,
            producer: 0,
            last: u32::MAX,
            qpn: (parts.qpn << 8).to_be(),
            signal_mask: parts.signal_period - 1,
            reaped: 0,
            _keep: parts.keep,
        }
    }

    /// RDMA write of 8 bytes that travel in the WQE.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn write_inline_8(
        &mut self,
        payload: [u8; 8],
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let data = Unit::inline_8(InlineHeader::new(8), payload);
        self.post_block::<3>(Opcode::RdmaWrite, 0, flags, [Unit::remote(&remote), data, Unit::zero()])
    }

    /// RDMA write of a payload of up to [`MAX_WRITE_INLINE`] bytes that travels in the WQE; reusable at once.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`].
    #[inline]
    pub fn write_inline(
        &mut self,
        payload: &[u8],
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        match payload.first_chunk() {
            Some(word) if payload.len() == 8 => self.write_inline_8(*word, remote, flags),
            // As numbers, which travel in registers.
            _ => self.write_inline_other(payload, remote.address.get(), remote.rkey.get(), flags),
        }
    }

    /// The sizes beside 8. Those that are usual have code in which nothing depends on the length any more.
    #[inline(never)]
    fn write_inline_other(
        &mut self,
        payload: &[u8],
        address: u64,
        rkey: u32,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let remote = Some(RemoteAddressSegment::new(address, rkey));
        match payload.len() {
            16 => self.post_inline(Opcode::RdmaWrite, 0, flags, remote, &payload[..16]),
            32 => self.post_inline(Opcode::RdmaWrite, 0, flags, remote, &payload[..32]),
            64 => self.post_inline(Opcode::RdmaWrite, 0, flags, remote, &payload[..64]),
            _ => self.write_inline_any(payload, address, rkey, flags),
        }
    }

    #[inline(never)]
    fn write_inline_any(
        &mut self,
        payload: &[u8],
        address: u64,
        rkey: u32,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_inline(Opcode::RdmaWrite, 0, flags, Some(RemoteAddressSegment::new(address, rkey)), payload)
    }

    /// Like [`Self::write_inline`], and consumes a receive WQE at the peer, whose completion carries `immediate`.
    ///
    /// # Errors
    /// As [`Self::write_inline`].
    #[inline]
    pub fn write_inline_immediate(
        &mut self,
        payload: &[u8],
        remote: RemoteAddressSegment,
        immediate: u32,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_inline(Opcode::RdmaWriteImmediate, immediate, flags, Some(remote), payload)
    }

    /// RDMA write of one local segment. Its memory must stay registered and unchanged until the completion.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn write(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_rdma(Opcode::RdmaWrite, local, remote, flags)
    }

    /// RDMA write gathered from up to [`MAX_SEGMENTS`] segments.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`] for too many segments.
    #[inline]
    pub fn write_gather(
        &mut self,
        local: &[DataSegment],
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_segments(Opcode::RdmaWrite, 0, flags, Some(remote), local)
    }

    /// Like [`Self::write_gather`], and consumes a receive WQE at the peer, whose completion carries `immediate`.
    ///
    /// # Errors
    /// As [`Self::write_gather`].
    #[inline]
    pub fn write_immediate(
        &mut self,
        local: &[DataSegment],
        remote: RemoteAddressSegment,
        immediate: u32,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_segments(Opcode::RdmaWriteImmediate, immediate, flags, Some(remote), local)
    }

    /// RDMA read into one local segment.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn read(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_rdma(Opcode::RdmaRead, local, remote, flags)
    }

    /// RDMA read scattered over up to [`MAX_SEGMENTS`] segments.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`] for too many segments.
    #[inline]
    pub fn read_scatter(
        &mut self,
        local: &[DataSegment],
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_segments(Opcode::RdmaRead, 0, flags, Some(remote), local)
    }

    /// Send of a payload of up to [`MAX_SEND_INLINE`] bytes that travels in the WQE; reusable at once.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`].
    #[inline]
    pub fn send_inline(&mut self, payload: &[u8], flags: ControlFlags) -> Result<WqeIndex, PostError> {
        self.post_inline(Opcode::Send, 0, flags, None, payload)
    }

    /// Inline send of `prefix` and `payload` as one message of up to [`MAX_SEND_INLINE`] bytes. A 12-byte prefix fills the inline
    /// header's 16-byte unit, so that the payload starts on the next one.
    ///
    /// # Errors
    /// As [`Self::send_inline`].
    #[inline]
    pub fn send_inline_prefixed(
        &mut self,
        prefix: [u8; PREFIX],
        payload: &[u8],
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        // As in `write_inline`: a word stays in a register, the other sizes have code of their own.
        match payload.first_chunk() {
            Some(word) if payload.len() == 8 => {
                let header = Unit::inline_prefix(InlineHeader::new(20), prefix);
                let word = Unit::from_words(u64::from_le_bytes(*word), 0);
                self.post_block::<3>(Opcode::Send, 0, flags, [header, word, Unit::zero()])
            }
            _ => {
                let (low, high) = Unit::split_prefix(prefix);
                self.send_inline_prefixed_any(low, high, payload, flags)
            }
        }
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
            return self.post_segments(Opcode::Send, 0, flags, None, &[]);
        }
        self.post_block::<2>(Opcode::Send, 0, flags, [Unit::local(&local), Unit::zero(), Unit::zero()])
    }

    /// Send gathered from up to [`MAX_SEGMENTS`] segments.
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

    /// Adds `operand` to the remote 8 bytes (aligned to 8); what was there before lands in `local` (8 bytes, host order).
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn fetch_add(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        operand: u64,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let atomic = AtomicSegment { swap_or_add: Be64::new(operand), compare: Be64::ZERO };
        let units = [Unit::remote(&remote), Unit::segment(&atomic), Unit::local(&local)];
        self.post_block::<4>(Opcode::AtomicFetchAdd, 0, flags, units)
    }

    /// Puts `swap` into the remote 8 bytes (aligned to 8) if they are `compare`; what was there before lands in `local` (8 bytes, host
    /// order).
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn compare_swap(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        compare: u64,
        swap: u64,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let atomic = AtomicSegment { swap_or_add: Be64::new(swap), compare: Be64::new(compare) };
        let units = [Unit::remote(&remote), Unit::segment(&atomic), Unit::local(&local)];
        self.post_block::<4>(Opcode::AtomicCompareSwap, 0, flags, units)
    }

    /// Does nothing but complete after everything before it.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn nop(&mut self, flags: ControlFlags) -> Result<WqeIndex, PostError> {
        self.post_block::<1>(Opcode::Nop, 0, flags, [Unit::zero(); 3])
    }

    /// Starts a batch: what is posted through it becomes visible to the device when the batch is dropped, with one doorbell record and one
    /// doorbell of 8 bytes for all of it.
    #[inline]
    pub fn batch(&mut self) -> Batch<'_, D> {
        let start = self.producer;
        Batch { queue: self, start }
    }

    /// Takes the `wqe_counter` of a completion of this queue: that WQE and everything before it is done, its room is free again.
    #[inline]
    pub fn reap(&mut self, wqe_counter: u16) {
        // Room comes back by whole WQEs at the end of the queue; before it, the rest of a long WQE comes back with the next one.
        let end =
            if wqe_counter == self.last as u16 { self.producer as u16 } else { wqe_counter.wrapping_add(1) };
        self.room += i32::from(end.wrapping_sub(self.reaped));
        self.reaped = end;
    }

    /// `true` once the WQE at `index` is known to be done. Holds for WQEs that are not older than the ring.
    #[inline]
    pub fn is_done(&self, index: WqeIndex) -> bool {
        self.reaped.wrapping_sub(index.0).wrapping_sub(1) < 1 << 15
    }

    /// `true` when everything that was posted is known to be done.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.reaped == self.producer as u16
    }

    /// Index of the WQE posted last; `None` before the first.
    #[inline]
    pub fn last_index(&self) -> Option<WqeIndex> {
        (self.last != u32::MAX).then_some(WqeIndex(self.last as u16))
    }

    /// `true` if the WQE posted last asked for a completion, or nothing was posted yet. If not, what was posted since the last completion
    /// request is not reaped before another one: post a signalled [`Self::nop`] to learn of it.
    pub fn last_is_signaled(&self) -> bool {
        self.last == u32::MAX || self.ring.flags(self.last) & ControlFlags::COMPLETION.bits() != 0
    }

    /// Blocks that may be posted now.
    #[inline]
    pub fn room(&self) -> u32 {
        self.room.max(0) as u32
    }

    /// Blocks of the ring.
    #[inline]
    pub fn blocks(&self) -> u32 {
        self.ring.blocks()
    }

    /// Queue pair number.
    #[inline]
    pub fn qpn(&self) -> u32 {
        self.qpn.to_be() >> 8
    }

    /// Forgets everything posted; for a queue pair that was moved to the reset state.
    pub(crate) fn reset(&mut self) {
        self.producer = 0;
        self.last = u32::MAX;
        self.reaped = 0;
        self.room = self.ring.blocks() as i32;
        self.doorbell_record.store(0);
    }

    #[inline(always)]
    fn post_rdma(
        &mut self,
        opcode: Opcode,
        local: DataSegment,
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        // A byte count of zero means 2 GiB to the device: an empty segment must not be written.
        if local.byte_count.get() == 0 {
            return self.post_segments(opcode, 0, flags, Some(remote), &[]);
        }
        self.post_block::<3>(opcode, 0, flags, [Unit::remote(&remote), Unit::local(&local), Unit::zero()])
    }

    /// Posts a WQE of one block: a control segment and `UNITS - 1` of `units`.
    #[inline(always)]
    fn post_block<const UNITS: usize>(
        &mut self,
        opcode: Opcode,
        immediate: u32,
        flags: ControlFlags,
        units: [Unit; 3],
    ) -> Result<WqeIndex, PostError> {
        let index = self.reserve(1)?;
        let signaled = index.wrapping_add(1) & self.signal_mask == 0;
        let control = self.control(opcode, index, UNITS as u32, signaled, flags, immediate);
        let block: Block = [control, units[0], units[1], units[2]];
        self.ring.store_block::<UNITS>(index, &block);
        self.publish(index, 1);
        self.register.ring_block(&block);
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

    /// Posts a WQE.
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
        let signaled = (index & self.signal_mask) + blocks > self.signal_mask;
        let control = self.control(opcode, index, units, signaled, flags, immediate);
        match self.ring.linear(index, blocks) {
            Some(mut sink) => {
                sink.unit(control);
                body.emit(&mut sink);
            }
            None => emit_wrapped(control, body, self.ring.wrapping(index)),
        }
        self.publish(index, blocks);
        self.register.ring_wqe(control, &body, units);
        Ok(WqeIndex(index as u16))
    }

    /// Takes `blocks` from the room counter and says where they start.
    #[inline(always)]
    fn reserve(&mut self, blocks: u32) -> Result<u32, PostError> {
        let room = self.room - blocks as i32;
        if room < 0 {
            return Err(PostError::QueueFull);
        }
        self.room = room;
        Ok(self.producer)
    }

    /// The control segment. `signaled`: the producer steps over a multiple of the signal period, whereupon a completion is asked for, so that
    /// room comes back without a counter of unsignalled WQEs.
    #[inline(always)]
    fn control(
        &self,
        opcode: Opcode,
        index: u32,
        ds: u32,
        signaled: bool,
        flags: ControlFlags,
        immediate: u32,
    ) -> Unit {
        let moderated = u32::from(signaled) * u32::from(ControlFlags::COMPLETION.bits());
        let index_opcode = ((index & 0xffff) << 8 | opcode as u32).to_be();
        let flags = (u32::from(flags.bits()) | moderated).to_be();
        Unit::from_words(
            u64::from(index_opcode) | u64::from(self.qpn | ds.to_be()) << 32,
            u64::from(flags) | u64::from(immediate.to_be()) << 32,
        )
    }

    /// Makes the WQE at `index` visible in the doorbell record, in order.
    #[inline(always)]
    fn publish(&mut self, index: u32, blocks: u32) {
        self.last = index;
        self.producer = index.wrapping_add(blocks);
        if D::AT_ONCE {
            self.record();
        }
    }

    /// Moves the doorbell record to the producer, with what must come before and after it.
    #[inline(always)]
    fn record(&mut self) {
        barrier::wqe_before_doorbell_record();
        self.doorbell_record.store(self.producer & 0xffff);
        barrier::doorbell_record_before_doorbell();
    }
}

/// WQEs that are rung for together: see [`SendQueue::batch`]. It has the posting functions of [`SendQueue`].
#[derive(Debug)]
pub struct Batch<'q, D: Doorbell> {
    queue: &'q mut SendQueue<D>,
    /// The producer when the batch began.
    start: u32,
}

impl<D: Doorbell> Deref for Batch<'_, D> {
    type Target = SendQueue<Deferred>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        // SAFETY: `SendQueue<D>` has the same fields in the same places for every `D`: it is `repr(C)`, and `D` is only in a
        // `PhantomData` of the `repr(transparent)` register.
        unsafe { &*core::ptr::from_ref(&*self.queue).cast() }
    }
}

impl<D: Doorbell> DerefMut for Batch<'_, D> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        // SAFETY: as above.
        unsafe { &mut *core::ptr::from_mut(&mut *self.queue).cast() }
    }
}

impl<D: Doorbell> Drop for Batch<'_, D> {
    #[inline]
    fn drop(&mut self) {
        let queue = &mut *self.queue;
        if queue.producer != self.start {
            queue.record();
            let word = queue.ring.word(queue.last);
            queue.register.ring_word(word);
        }
    }
}

/// Once in a lap at most: kept out of the way.
#[cold]
#[inline(never)]
fn emit_wrapped(control: Unit, body: impl Body, mut sink: Wrapping) {
    sink.unit(control);
    body.emit(&mut sink);
}
