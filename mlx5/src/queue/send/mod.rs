//! The send queue: posting WQEs.
//!
//! A post checks for room, builds the WQE in CPU registers, and stores it to the ring, then to the
//! BlueFlame register after updating the doorbell record.
//!
//! The functions are safe: registration determines what a device can access, and has the `unsafe`
//! contract ([`crate::memory`]). A wrong address or key results in an error completion.

use core::any::Any;
use core::fmt;
use core::hint::cold_path;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, compiler_fence};
use std::sync::Arc;

use barewire_layouts::wqe::{ControlFlags, DS, InlineHeader, WQEBB};

use super::ring::{Ring, Wrapping};
use crate::barrier;
use crate::doorbell::{
    BlueFlame, BlueFlameShared, Doorbell, Half, RecordWord, Register, SharedRegister, Width,
};
use crate::wqe::{BLOCK_UNITS, Block, Body, Sink, Unit};
use request::{Head, Request};

mod batch;
mod destination;
mod directed;
pub mod request;
#[cfg(test)]
mod tests;

pub use batch::Batch;
pub use destination::{Connected, Destination, OnStream};
pub use directed::Directed;

/// Blocks of the longest WQE that fits one half of a BlueFlame register. The device fetches longer
/// ones.
pub const MAX_WQE_BLOCKS: u32 = 4;
const MAX_WQE_BYTES: usize = MAX_WQE_BLOCKS as usize * WQEBB;
/// Longest payload of an inline RDMA write, in bytes.
pub const MAX_WRITE_INLINE: usize = MAX_WQE_BYTES - 2 * DS - size_of::<InlineHeader>();
/// Longest payload of an inline send, in bytes.
pub const MAX_SEND_INLINE: usize = MAX_WQE_BYTES - DS - size_of::<InlineHeader>();
/// Bytes that fill the unit of an inline header: see [`request::Prefixed`].
pub const PREFIX: usize = DS - size_of::<InlineHeader>();
/// A value of [`SendParts::signal_period`]: no completions except those that posts request. The
/// caller must request enough to regain room.
pub const UNMODERATED: u32 = 1 << 31;
/// Most scatter/gather elements of an operation.
pub const MAX_SEGMENTS: usize = 16;
/// Most scatter/gather elements of an RDMA read or write that fits the BlueFlame register.
pub const MAX_RDMA_SEGMENTS: usize = MAX_WQE_BYTES / DS - 2;
/// Most scatter/gather elements of a send that fits the BlueFlame register.
pub const MAX_SEND_SEGMENTS: usize = MAX_WQE_BYTES / DS - 1;

/// The lowest limit of outstanding blocks: room for every post.
pub const LEAST_OUTSTANDING: u32 = 8;

/// The reason why nothing was posted.
// As wide as `WqeIndex`: so the result of a post is two registers. Otherwise it is packed into one
// at every return that the compiler has not joined with its caller.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u16)]
#[non_exhaustive]
pub enum PostError {
    /// The ring is full: poll the completion queue, reap, and post again. Or the queue pair is not
    /// connected, and then its ring has no room: a loop that waits for room tests
    /// [`SendQueue::is_open`] as well.
    #[error("the send queue is full, or not connected: reap completions, then post again")]
    QueueFull,
    /// The inline payload or segment list does not fit a WQE.
    #[error("payload or segment list is longer than a WQE of {MAX_WQE_BYTES} bytes takes")]
    TooLong,
}

/// Position of a WQE in the ring, in blocks modulo 2^16. Its completion carries the same number as
/// `wqe_counter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WqeIndex(pub u16);

/// The parts of a send queue. See [`SendQueue::from_parts`].
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
    /// At least one completion is requested in this many blocks: a power of two, at most an eighth
    /// of the ring, or [`UNMODERATED`].
    pub signal_period: u32,
    /// Keeps the ring, the record, the register and the device's object alive.
    pub keep: Arc<dyn Any + Send + Sync>,
}

/// A send queue. `D` determines how the doorbell is rung.
///
/// The queue stays on its thread: queues of a thread share the registers of a UAR page without a
/// lock. Fields that every post accesses come first, in one cache line.
#[repr(C, align(64))]
pub struct SendQueue<D: Doorbell = BlueFlame> {
    ring: Ring,
    doorbell_record: RecordWord,
    register: Register<D>,
    /// The part that all control segments have in common: the queue pair number.
    template: Unit,
    /// Blocks posted. The device sees the low 16 bits.
    producer: u64,
    /// The only value that every post tests `producer` against. A post that reaches it tests
    /// whether the queue is full, and whether its WQE requests a completion or sets a fence. No
    /// post before it needs to.
    stop: u64,
    /// Blocks known to be free.
    tail: u64,
    /// The next block whose WQE requests a completion, or sets a fence.
    special: u64,
    /// The signal period less one.
    signal_mask: u64,
    /// Additional flags of the next WQE.
    next_flags: ControlFlags,
    /// Most outstanding blocks: the size of the ring, or less.
    most: u32,
    /// The signal period of a queue that may fill its ring.
    signal_period: u32,
    /// Posts are accepted. If not, `tail` leaves no room.
    is_open: bool,
    /// Start and end of the last posted WQE of more than one block.
    long: (u64, u64),
    /// Posted blocks that were not the first of their WQE.
    further: u64,
    /// The register, if it is shared: see [`SharedRegister`].
    shared: Option<Arc<SharedRegister>>,
    _keep: Arc<dyn Any + Send + Sync>,
    /// The first WQE that failed since the last reset.
    failed: Option<u64>,
}

// SAFETY: the pointers are not tied to a thread, and nothing else writes the ring and the record.
// Other queues write the register as well, but `ring` writes it only under the lock of `shared`.
// Every value of this type has that lock: `build` requires it, and safe code cannot exchange queues
// of different doorbell types.
unsafe impl<W: Width> Send for SendQueue<BlueFlameShared<W>> {}

const _: () = assert!(
    core::mem::offset_of!(SendQueue, tail) == 64,
    "what every post touches is one cache line"
);

/// The value of `long` before the first such WQE: no index.
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
    /// Builds a queue over memory that a device, or a test, reads.
    ///
    /// # Safety
    /// Until `parts.keep` is dropped: `ring` is valid for reads and writes of `blocks * 64` bytes
    /// and 64-byte aligned; the doorbell record word is valid and 4-byte aligned; `register` is
    /// valid for writes of 512 bytes and 512-byte aligned; and nothing but this queue writes any of
    /// them, except that other users on the same thread may write the register. A device in this
    /// process, such as the software HCA, accesses ring and register by atomics of whole aligned
    /// 8-byte words, except while the queue is not in use. `blocks` and `signal_period` are as
    /// [`SendParts`] requires. The CPU supports the instructions of `D::Width`. `D` is not
    /// [`BlueFlameShared`], for which [`Self::from_parts_shared`] is used.
    pub unsafe fn from_parts(parts: SendParts) -> Self {
        const { assert!(!D::LOCKED, "a shared register needs its lock") };
        // SAFETY: this function has the contract of `build`, and `D` is not locked.
        unsafe {
            let half = Half::new(parts.register);
            Self::build(parts, half, None)
        }
    }

    /// Like [`Self::from_parts`], for a queue that shares its register with others.
    /// `parts.register` is ignored.
    ///
    /// # Safety
    /// The contract of [`Self::from_parts`].
    pub unsafe fn from_parts_shared(parts: SendParts, register: Arc<SharedRegister>) -> Self {
        const { assert!(D::LOCKED, "only a locked doorbell takes the lock") };
        // SAFETY: this function has the contract of `build`, and the register is shared.
        unsafe {
            let half = Half::new(parts.register);
            Self::build(parts, half, Some(register))
        }
    }

    /// # Safety
    /// The contract of [`Self::from_parts`]; `shared` is `Some` if `D` is locked. `half` is one of
    /// `parts.register`, and other queues that have it are on the same thread.
    pub(crate) unsafe fn build(
        parts: SendParts,
        half: Half,
        shared: Option<Arc<SharedRegister>>,
    ) -> Self {
        debug_assert_eq!(D::LOCKED, shared.is_some());
        debug_assert!(parts.signal_period.is_power_of_two());
        debug_assert!(
            parts.signal_period <= parts.blocks / 8 || parts.signal_period == UNMODERATED
        );
        Self {
            // SAFETY: the ring is valid and aligned by the caller's contract.
            ring: unsafe { Ring::new(parts.ring, parts.blocks) },
            // SAFETY: the record word is valid and aligned by the caller's contract.
            doorbell_record: unsafe { RecordWord::new(parts.doorbell_record) },
            // SAFETY: the register is valid and aligned, is written on one thread or under a lock,
            // and the CPU supports the width, by the caller's contract.
            register: unsafe { Register::new(half) },
            template: Unit::from_words(u64::from((parts.qpn << 8).to_be()) << 32, 0),
            producer: 0,
            stop: 0,
            tail: 0,
            special: u64::from(parts.signal_period - 1),
            next_flags: ControlFlags::empty(),
            signal_mask: u64::from(parts.signal_period - 1),
            most: parts.blocks,
            signal_period: parts.signal_period,
            is_open: true,
            long: NONE,
            further: 0,
            shared,
            _keep: parts.keep,
            failed: None,
        }
    }

    /// Posts `request`: see [`request`].
    ///
    /// # Errors
    /// [`PostError::QueueFull`]; [`PostError::TooLong`] for a payload that does not fit a WQE.
    #[inline(always)]
    pub fn post<R: Request>(
        &mut self,
        request: R,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        request.post_to(self.connected(), flags)
    }

    /// The queue, for requests that carry no destination.
    #[inline(always)]
    fn connected(&mut self) -> Directed<'_, Connected, D> {
        self.towards(&Connected)
    }

    /// Makes the next WQE wait for the RDMA reads and atomics before it, as if it were posted with
    /// [`ControlFlags::FENCE`]. Later posts pay nothing, because the test that every post does
    /// detects it.
    pub fn fence(&mut self) {
        self.flag_next(ControlFlags::FENCE);
    }

    /// Makes the next WQE request a completion, as if it were posted with
    /// [`ControlFlags::COMPLETION`]. As cheap as [`Self::fence`].
    pub fn request_completion(&mut self) {
        self.flag_next(ControlFlags::COMPLETION);
    }

    fn flag_next(&mut self, flags: ControlFlags) {
        self.next_flags |= flags;
        self.special = self.producer;
        self.stop = self.producer;
    }

    /// Frees the WQE of `wqe_counter`, from a completion of this queue, and all WQEs before it. For
    /// a completion with an error there is [`Self::fail`].
    #[inline]
    pub fn reap(&mut self, wqe_counter: u16) {
        let index = self.index_of(wqe_counter);
        // Only the end of the last WQE of several blocks is known. The rest of an older one is
        // freed by the next completion.
        let end = if index == self.long.0 { self.long.1 } else { index.wrapping_add(1) };
        self.tail = end;
    }

    /// Frees WQEs as [`Self::reap`] does, for a completion with an error
    /// ([`CompletionKind::SendError`](crate::CompletionKind)). The first of them since the last
    /// reset names the first WQE that was not executed as a whole: see [`Self::is_executed`].
    #[cold]
    pub fn fail(&mut self, wqe_counter: u16) {
        let index = self.index_of(wqe_counter);
        self.failed.get_or_insert(index);
        self.reap(wqe_counter);
    }

    /// The counter value whose low half is `counter`, among the last 2^16 that were posted.
    #[inline(always)]
    fn index_of(&self, counter: u16) -> u64 {
        self.producer.wrapping_sub((self.producer as u16).wrapping_sub(counter).into())
    }

    /// Returns `true` once the WQE at `index` is known to be complete: executed, failed or flushed.
    /// Whether a write has arrived is what [`Self::is_executed`] returns. Valid for WQEs that are
    /// not older than the ring, and not for those of before a reset, which starts again at index 0.
    #[inline]
    pub fn is_done(&self, index: WqeIndex) -> bool {
        let behind = (self.producer as u16).wrapping_sub(index.0);
        u32::from(behind) > self.outstanding()
    }

    /// Returns `true` once the WQE at `index` is known to be executed: the peer's device has the
    /// data of a write, and a read or an atomic has its result. Of WQEs that are complete, it is
    /// `false` for the first that failed and for all after it, of which the peer may have executed
    /// any part. The caller passes each completion with an error to [`Self::fail`], or to
    /// [`RcQueuePair::drain`](crate::RcQueuePair::drain).
    ///
    /// Valid for WQEs that are not older than the ring. A reset forgets everything: ask before it.
    pub fn is_executed(&self, index: WqeIndex) -> bool {
        let behind = (self.producer as u16).wrapping_sub(index.0);
        let is_posted = behind > 0 && u64::from(behind) <= self.producer;
        let at = self.producer.wrapping_sub(behind.into());
        is_posted && self.is_done(index) && self.failed.is_none_or(|failed| at < failed)
    }

    /// Returns `true` if all posted WQEs are known to be complete.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.outstanding() == 0 || self.producer == 0
    }

    /// Index of the last posted WQE; `None` before the first.
    #[inline]
    pub fn last_index(&self) -> Option<WqeIndex> {
        (self.producer > 0).then(|| WqeIndex(self.last() as u16))
    }

    /// The bytes of `blocks` blocks of the ring from `index` on, for error reports.
    pub fn ring_bytes(&self, WqeIndex(index): WqeIndex, blocks: u32) -> Vec<u8> {
        self.ring.bytes(index.into(), blocks.min(self.ring.blocks()))
    }

    /// Returns `true` if the last posted WQE requested a completion, or nothing was posted yet. If
    /// not, WQEs posted since the last such request are freed only after another one: post a
    /// signalled [`Nop`](request::Nop).
    pub fn last_is_signaled(&self) -> bool {
        self.producer == 0 || self.ring.flags(self.last()) & ControlFlags::COMPLETION.bits() != 0
    }

    /// Blocks posted since the last reset. An unchanged value means that nothing was posted.
    #[inline]
    pub fn posted(&self) -> u64 {
        self.producer
    }

    /// WQEs posted so far, those of before a reset included.
    #[inline]
    pub fn wqes(&self) -> u64 {
        self.producer.wrapping_sub(self.further)
    }

    /// Blocks that may be posted now; 0 if the queue pair is not connected.
    #[inline]
    pub fn room(&self) -> u32 {
        self.most.wrapping_sub(self.outstanding())
    }

    /// Blocks of the ring.
    #[inline]
    pub fn blocks(&self) -> u32 {
        self.ring.blocks()
    }

    /// Blocks that may be outstanding: those of the ring, unless [`Self::limit_outstanding`] set
    /// fewer.
    #[inline]
    pub fn most_outstanding(&self) -> u32 {
        self.most
    }

    /// Limits the blocks that may be outstanding, so that queues which share a completion queue
    /// cannot overrun it together: each outstanding block has at most one CQE. Returns the limit:
    /// `most`, but at least 8, at least 8 more than are outstanding, and at most the ring.
    ///
    /// A lower limit shortens the signal period to an eighth of it.
    pub fn limit_outstanding(&mut self, most: u32) -> u32 {
        let outstanding = if self.is_open { self.outstanding() } else { 0 };
        let most = most.max(outstanding + LEAST_OUTSTANDING).min(self.blocks());
        if most == self.most {
            return most;
        }
        self.most = most;
        if !self.is_open {
            self.close();
        }
        if self.signal_period != UNMODERATED {
            // None of the outstanding blocks may have requested a completion, so one is requested
            // before the room is used up.
            let blocks = (most / 8).min(most - outstanding).max(1);
            self.signal_mask = u64::from(self.signal_period.min(1 << blocks.ilog2()) - 1);
            // The next post finds the new period.
            self.special = self.producer;
        }
        self.stop = self.producer;
        most
    }

    /// Queue pair number.
    #[inline]
    pub fn qpn(&self) -> u32 {
        u32::from_be((self.template.low() >> 32) as u32) >> 8
    }

    /// Discards everything posted, after the queue pair was moved to the reset state.
    pub(crate) fn reset(&mut self) {
        // `wqes` keeps its value.
        self.further = self.further.wrapping_sub(self.producer);
        self.producer = 0;
        self.special = self.signal_mask;
        (self.tail, self.stop) = (0, 0);
        self.next_flags = ControlFlags::empty();
        (self.long, self.failed) = (NONE, None);
        self.doorbell_record.store(0);
    }

    /// Refuses posts until [`Self::open`]. Nothing is outstanding: the queue is new or was reset.
    pub(crate) fn close(&mut self) {
        self.is_open = false;
        self.tail = self.producer.wrapping_sub(self.most.into());
        self.stop = self.producer;
    }

    /// Returns `true` if the queue accepts posts: its queue pair is connected, and was not reset
    /// since. One that moved to error accepts them, and they complete as flushed.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Accepts posts.
    pub(crate) fn open(&mut self) {
        if !self.is_open {
            self.is_open = true;
            self.tail = self.producer;
        }
    }

    /// Blocks that are not known to be complete.
    #[inline(always)]
    fn outstanding(&self) -> u32 {
        self.producer.wrapping_sub(self.tail) as u32
    }

    /// Counter value of the start of the last posted WQE.
    #[inline(always)]
    fn last(&self) -> u64 {
        if self.long.1 == self.producer { self.long.0 } else { self.producer.wrapping_sub(1) }
    }
}

/// The implementation that all posts share.
impl<D: Doorbell> SendQueue<D> {
    /// Posts a WQE whose number of units the compiler knows: `blocks`, whose first unit is replaced
    /// by the control segment.
    #[inline(always)]
    fn post_fixed<const BLOCKS: usize>(
        &mut self,
        head: Head,
        marks: Marks,
        units: usize,
        mut blocks: [Block; BLOCKS],
    ) -> Result<WqeIndex, PostError> {
        let index = self.producer;
        let control = self.control(head, units as u32, marks);
        blocks[0][0] = self.admit(control, BLOCKS as u32)?;
        for (at, block) in blocks.iter().enumerate() {
            self.ring.store_block(index.wrapping_add(at as u64), block, units - at * BLOCK_UNITS);
        }
        self.publish(index, BLOCKS as u32);
        self.ring(|register| register.ring_blocks(&blocks));
        Ok(WqeIndex(index as u16))
    }

    /// Posts a WQE whose length is known at run time.
    #[inline(always)]
    fn post_wqe(
        &mut self,
        head: Head,
        marks: Marks,
        body: impl Body,
    ) -> Result<WqeIndex, PostError> {
        let units = 1 + body.units();
        let blocks = units.div_ceil(BLOCK_UNITS as u32);
        let index = self.producer;
        let control = self.control(head, units, marks);
        let control = self.admit(control, blocks)?;
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

    /// The control segment of the next WQE.
    #[inline(always)]
    fn control(&self, head: Head, units: u32, marks: Marks) -> Unit {
        let Head { opcode, modifier, immediate } = head;
        let (own, units) = (marks.word(immediate), u64::from(units.to_be()) << 32);
        let index = self.producer as u32 & 0xffff;
        let first = (u32::from(modifier) << 24 | index << 8 | opcode as u32).to_be();
        if cfg!(target_arch = "x86_64") {
            // Mostly, the other parts are a constant in memory, which an instruction can refer to.
            Unit::from_low(first) | (Unit::from_words(units, own) | self.template)
        } else {
            Unit::from_words(units | u64::from(first), own) | self.template
        }
    }

    /// Returns the control segment of the next WQE, of `blocks` blocks, with the additional flags
    /// that it needs, if there is room.
    #[inline(always)]
    fn admit(&mut self, control: Unit, blocks: u32) -> Result<Unit, PostError> {
        let (index, blocks) = (self.producer, u64::from(blocks));
        let before_stop = self.stop.wrapping_sub(index);
        // For one block, a comparison for equality is enough.
        let stops = if blocks == 1 { before_stop == 0 } else { before_stop < blocks };
        if !stops {
            return Ok(control);
        }
        cold_path();
        if u64::from(self.room()) < blocks {
            return Err(PostError::QueueFull);
        }
        Ok(control | self.special_flags(index + blocks, blocks))
    }

    /// Additional flags of the WQE that ends at `next`, for a post that stops: a fence if one was
    /// requested, and a completion if the WQE crosses a multiple of the signal period. Often there
    /// are none. No counter of unsignalled WQEs is needed.
    #[inline(always)]
    fn special_flags(&mut self, next: u64, blocks: u64) -> Unit {
        // The fences divide it into steps that need one register at a time. Otherwise, posts would
        // save the caller's registers for it.
        if next & self.signal_mask < blocks {
            self.next_flags |= ControlFlags::COMPLETION;
        }
        compiler_fence(Ordering::SeqCst);
        let flags = Unit::from_words(0, Marks::from(self.next_flags).word(0));
        self.next_flags = ControlFlags::empty();
        compiler_fence(Ordering::SeqCst);
        self.special = next | self.signal_mask;
        compiler_fence(Ordering::SeqCst);
        self.stop = self.special.min(self.tail.wrapping_add(self.most.into()));
        flags
    }

    /// Publishes the WQE at `index` in the doorbell record, with the barriers around it.
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
            // SAFETY: the CPU supports the instructions of `D::Width` by the contract of
            // `from_parts`.
            unsafe { shared.ring(ring) };
        }
    }

    /// Stores the producer to the doorbell record, with the barriers before and after.
    #[inline(always)]
    fn record(&mut self) {
        barrier::wqe_before_doorbell_record();
        self.doorbell_record.store(self.producer as u32 & 0xffff);
        barrier::doorbell_record_before_doorbell();
    }
}

/// The flags of a WQE, and the stream of an initiator.
#[derive(Clone, Copy)]
struct Marks {
    flags: ControlFlags,
    stream: u16,
}

impl From<ControlFlags> for Marks {
    #[inline(always)]
    fn from(flags: ControlFlags) -> Self {
        Self { flags, stream: 0 }
    }
}

impl Marks {
    /// The second half of a control segment, in memory order.
    #[inline(always)]
    fn word(self, immediate: u32) -> u64 {
        let marks = u32::from(self.stream) << 8 | u32::from(self.flags.bits());
        u64::from(marks.to_be()) | u64::from(immediate.to_be()) << 32
    }
}

/// Out of line: needed at most once per lap.
#[cold]
#[inline(never)]
fn emit_wrapped(control: Unit, body: impl Body, mut sink: Wrapping) {
    sink.unit(control);
    body.emit(&mut sink);
}
