//! Changes of local memory keys (UMR): windows, joined and interleaved keys.
//!
//! A WQE that follows and uses the key must wait for the change: post it with
//! [`ControlFlags::SMALL_FENCE`] or [`ControlFlags::FENCE`].

use barewire_layouts::wqe::{
    ControlFlags, DataSegment, MkeyContextSegment, Opcode, REPEAT_BLOCK, RepeatBlock, RepeatEntry,
    UmrControlSegment,
};
use zerocopy::{IntoBytes, transmute};

use super::super::{Destination, Directed, PostError, SendQueue};
use super::{Head, Posting, sealed};
use crate::doorbell::Doorbell;
use crate::values::Access;
use crate::wqe::{BLOCK_UNITS, Body, Sink, Unit};

/// Most ranges of a joined key. The WQE then has 8 blocks, for which every queue has room
/// ([`LEAST_OUTSTANDING`](super::super::LEAST_OUTSTANDING)).
pub const MAX_RANGES: usize = 24;
/// Most entries of an interleaved key.
pub const MAX_INTERLEAVED: usize = MAX_RANGES - 1;
/// Ranges that fit the shortest list.
const SHORT: usize = UmrControlSegment::LIST_UNIT as usize;

/// Opens memory to peers: binds the memory window of `free`, whose key becomes `key`. The two
/// differ in the low byte only, and the window is free: new, or invalidated. The key of the range
/// allows binds ([`MemoryRegion::register`] provides it), and local writes if the rights have
/// remote writes or atomics.
///
/// [`MemoryRegion::register`]: crate::memory::MemoryRegion::register
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// The key before.
    pub free: u32,
    /// The key after.
    pub key: u32,
    /// The memory.
    pub binding: Binding,
    /// Whether every peer of the protection domain may use the window, or only the peer of this
    /// queue pair. Over queue pairs that send only (DC, XRC), a window of one queue pair opens
    /// nothing.
    pub is_shared: bool,
}

/// The memory that a window opens to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The range: its address, its length and the key of its region.
    pub range: DataSegment,
    /// The address that peers use for the first byte.
    pub start: u64,
    /// The rights of peers.
    pub access: Access,
}

/// Frees the memory window of `key`, as [`Invalidate`] does, but leaves the low byte of its key:
/// libmlx5's bind of no bytes.
#[derive(Clone, Copy, Debug)]
pub struct Unbind {
    /// The key.
    pub key: u32,
    /// As it was bound: [`Bind::is_shared`].
    pub is_shared: bool,
}

/// Invalidates `key`, the key of a memory window of this queue pair.
///
/// It is a user-mode registration, like the one that libmlx5 posts. The next WQE must wait for it:
/// post that one with [`ControlFlags::SMALL_FENCE`] or [`ControlFlags::FENCE`].
#[derive(Clone, Copy, Debug)]
pub struct Invalidate {
    /// The key.
    pub key: u32,
}

/// Joins up to [`MAX_RANGES`] ranges, in this order, under `key`, which starts at address 0. It
/// replaces what the key covered. More ranges are refused with [`PostError::TooLong`].
#[derive(Clone, Copy, Debug)]
pub struct Join<'a> {
    /// The key.
    pub key: u32,
    /// Its rights.
    pub access: Access,
    /// The ranges.
    pub ranges: &'a [DataSegment],
}

/// Interleaves up to [`MAX_INTERLEAVED`] ranges under `key`, which starts at address 0: in each of
/// `repeat` repetitions the bytes of all entries in this order, each entry `stride` bytes after its
/// previous one. It replaces what the key covered. More entries are refused with
/// [`PostError::TooLong`].
#[derive(Clone, Copy, Debug)]
pub struct Interleave<'a> {
    /// The key.
    pub key: u32,
    /// Its rights.
    pub access: Access,
    /// The number of repetitions.
    pub repeat: u32,
    /// The entries.
    pub entries: &'a [RepeatEntry],
}

impl sealed::Request for Bind {
    // Rights are constants for most callers, and the binding need not be stored.
    #[inline(always)]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        flags: ControlFlags,
    ) -> Posting {
        let Self { free, key, binding: Binding { range, start, access }, is_shared } = self;
        let (change, qpn_mkey) = if is_shared {
            (UmrControlSegment::BIND_SHARED, any_queue_pair(key))
        } else {
            (UmrControlSegment::BIND, to.queue.qpn() << 8 | key & 0xff)
        };
        let context = key_context(access, qpn_mkey, start, range.byte_count.get().into());
        let list = [Unit::local(&range), Unit::zero(), Unit::zero(), Unit::zero()];
        post_short(to, free, change, context, list, flags)
    }
}

impl sealed::Request for Unbind {
    #[inline(always)]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        flags: ControlFlags,
    ) -> Posting {
        let Self { key, is_shared } = self;
        let change = if is_shared {
            UmrControlSegment::INVALIDATE_SHARED
        } else {
            UmrControlSegment::INVALIDATE
        };
        let low_byte = Unit::from_words(u64::from((key & 0xff).to_be()) << 32, 0);
        free_key(to, change, key, low_byte, flags)
    }
}

impl sealed::Request for Invalidate {
    #[inline(always)]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        flags: ControlFlags,
    ) -> Posting {
        free_key(to, UmrControlSegment::INVALIDATE, self.key, Unit::zero(), flags)
    }
}

impl sealed::Request for Join<'_> {
    #[inline(always)]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        flags: ControlFlags,
    ) -> Posting {
        let Self { key, access, ranges } = self;
        let length = ranges.iter().map(|range| u64::from(range.byte_count.get())).sum();
        if ranges.len() > SHORT {
            return join_many(to.queue, key, access, ranges, length, flags);
        }
        let unit = |at| ranges.get(at).map_or(Unit::zero(), Unit::local);
        replace_short(to, key, access, length, [unit(0), unit(1), unit(2), unit(3)], flags)
    }
}

impl sealed::Request for Interleave<'_> {
    #[inline(always)]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        flags: ControlFlags,
    ) -> Posting {
        let Self { key, access, repeat, entries } = self;
        if entries.len() > MAX_INTERLEAVED {
            return Err(PostError::TooLong);
        }
        let mut bytes = 0;
        for entry in entries {
            bytes += u32::from(entry.byte_count.get());
        }
        let block = RepeatBlock {
            byte_count: bytes.into(),
            operation: REPEAT_BLOCK.into(),
            repeat_count: repeat.into(),
            entries: (entries.len() as u16).into(),
            ..RepeatBlock::default()
        };
        let block: Unit16 = transmute!(block);
        let length = u64::from(bytes) * u64::from(repeat);
        if entries.len() >= SHORT {
            return interleave_many(to.queue, key, access, block, entries, length, flags);
        }
        let unit = |at| entries.get(at).map_or(Unit::zero(), Unit::segment);
        let list = [Unit::load(&block), unit(0), unit(1), unit(2)];
        replace_short(to, key, access, length, list, flags)
    }
}

/// Posts a change with a list of one unit of the list.
#[inline(always)]
fn post_short<A: Destination, D: Doorbell>(
    to: Directed<'_, A, D>,
    key: u32,
    change: UmrControlSegment,
    [access, range]: [Unit; 2],
    [a, b, c, d]: [Unit; SHORT],
    flags: ControlFlags,
) -> Posting {
    let zero = Unit::zero();
    let change = change_unit(change, SHORT as u32);
    let units = [change, zero, zero, access, range, zero, zero, a, b, c, d];
    to.post_units(Head::with(Opcode::Umr, key), flags, None, units)
}

#[inline(always)]
fn replace_short<A: Destination, D: Doorbell>(
    to: Directed<'_, A, D>,
    key: u32,
    access: Access,
    length: u64,
    list: [Unit; SHORT],
    flags: ControlFlags,
) -> Posting {
    let context = key_context(access, any_queue_pair(key), 0, length);
    post_short(to, key, UmrControlSegment::REPLACE, context, list, flags)
}

#[inline(always)]
fn free_key<A: Destination, D: Doorbell>(
    to: Directed<'_, A, D>,
    change: UmrControlSegment,
    key: u32,
    low_byte: Unit,
    flags: ControlFlags,
) -> Posting {
    let [change, _, _]: [Unit16; 3] = transmute!(change);
    let [context, ..]: [Unit16; 4] = transmute!(MkeyContextSegment::FREE);
    let zero = Unit::zero();
    let (change, context) = (Unit::load(&change), Unit::load(&context) | low_byte);
    let units = [change, zero, zero, context, zero, zero, zero];
    to.post_units(Head::with(Opcode::Umr, key), flags, None, units)
}

#[inline(never)]
fn join_many<D: Doorbell>(
    queue: &mut SendQueue<D>,
    key: u32,
    access: Access,
    ranges: &[DataSegment],
    length: u64,
    flags: ControlFlags,
) -> Posting {
    if ranges.len() > MAX_RANGES {
        return Err(PostError::TooLong);
    }
    let entries = ranges.as_bytes().as_chunks().0;
    replace_long(queue, key, access, length, List { first: None, entries }, flags)
}

#[inline(never)]
fn interleave_many<D: Doorbell>(
    queue: &mut SendQueue<D>,
    key: u32,
    access: Access,
    block: Unit16,
    entries: &[RepeatEntry],
    length: u64,
    flags: ControlFlags,
) -> Posting {
    let entries = entries.as_bytes().as_chunks().0;
    let list = List { first: Some(Unit::load(&block)), entries };
    replace_long(queue, key, access, length, list, flags)
}

#[inline(always)]
fn replace_long<D: Doorbell>(
    queue: &mut SendQueue<D>,
    key: u32,
    access: Access,
    length: u64,
    list: List<'_>,
    flags: ControlFlags,
) -> Posting {
    let change = Change {
        control: change_unit(UmrControlSegment::REPLACE, list.padded()),
        key: key_context(access, any_queue_pair(key), 0, length),
        list,
    };
    queue.connected().post_body(Head::with(Opcode::Umr, key), flags, change)
}

/// The first units of the segment with the new fields of a key: its rights, the queue pair that may
/// use it and its low byte; start and length.
#[inline(always)]
fn key_context(access: Access, qpn_mkey: u32, start: u64, length: u64) -> [Unit; 2] {
    let bits = u64::from((access & Access::all()).bits());
    // Bits 3 to 6 of the third byte: local write, remote read, remote write, atomics.
    let both = u64::from((Access::LOCAL_WRITE | Access::REMOTE_ATOMIC).bits());
    let write = u64::from(Access::REMOTE_WRITE.bits());
    let read = u64::from(Access::REMOTE_READ.bits());
    let rights = (bits & both) << 3 | (bits & write) << 4 | (bits & read) << 2;
    [
        Unit::from_words(rights << 16 | u64::from(qpn_mkey.to_be()) << 32, 0),
        Unit::from_words(start.to_be(), length.to_be()),
    ]
}

/// `qpn_mkey` of a key that every queue pair may use.
#[inline(always)]
fn any_queue_pair(key: u32) -> u32 {
    key | 0xffff_ff00
}

/// The first unit of the control segment of a change with a list of `entries`.
#[inline(always)]
fn change_unit(of: UmrControlSegment, entries: u32) -> Unit {
    let [first, _, _]: [Unit16; 3] = transmute!(of);
    let count = u64::from((entries as u16).to_be()) << 32;
    let [low, high]: [u64; 2] = transmute!(first);
    Unit::from_words(low & !(0xffff << 32) | count, high)
}

/// An entry of a list: 16 bytes in the order of memory.
type Unit16 = [u8; 16];

/// The unit of a list that starts repetitions, and the units after it.
#[derive(Clone, Copy, Debug)]
struct List<'a> {
    first: Option<Unit>,
    entries: &'a [Unit16],
}

impl List<'_> {
    /// Entries, with those that fill the last unit of the list.
    #[inline(always)]
    fn padded(&self) -> u32 {
        let entries = self.entries.len() + usize::from(self.first.is_some());
        (entries as u32).next_multiple_of(SHORT as u32)
    }
}

/// A change with a list of more than four entries.
#[derive(Clone, Copy, Debug)]
struct Change<'a> {
    control: Unit,
    key: [Unit; 2],
    list: List<'a>,
}

impl Body for Change<'_> {
    #[inline(always)]
    fn units(&self) -> u32 {
        (2 * BLOCK_UNITS - 1) as u32 + self.list.padded()
    }

    #[inline(always)]
    fn emit(&self, sink: &mut impl Sink) {
        let (zero, [key, range]) = (Unit::zero(), self.key);
        for unit in [self.control, zero, zero, key, range, zero, zero] {
            sink.unit(unit);
        }
        let filled = self.list.entries.len() + usize::from(self.list.first.is_some());
        if let Some(first) = self.list.first {
            sink.unit(first);
        }
        for entry in self.list.entries {
            sink.unit(Unit::load(entry));
        }
        for _ in filled..self.list.padded() as usize {
            sink.unit(zero);
        }
    }
}
