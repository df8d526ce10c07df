//! Changes of memory keys by WQEs (UMR): windows, joined and interleaved keys.
//!
//! A WQE that follows and uses the key must wait for the change: post it with
//! [`ControlFlags::SMALL_FENCE`] or [`ControlFlags::FENCE`].

use barewire_layouts::wqe::{
    ControlFlags, DataSegment, Opcode, REPEAT_BLOCK, RepeatBlock, RepeatEntry, UmrControlSegment,
};
use zerocopy::{IntoBytes, transmute};

use super::{PostError, SendQueue, WqeIndex};
use crate::doorbell::Doorbell;
use crate::values::Access;
use crate::wqe::{BLOCK_UNITS, Body, Sink, Unit};

/// Most ranges of a joined key. The WQE then has 8 blocks, for which every queue has room
/// ([`super::LEAST_OUTSTANDING`]).
pub const MAX_RANGES: usize = 24;
/// Most entries of an interleaved key.
pub const MAX_INTERLEAVED: usize = MAX_RANGES - 1;
/// Ranges that fit the shortest list.
const SHORT: usize = UmrControlSegment::LIST_UNIT as usize;

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

/// The unit of a list that starts repetitions, and the units after it.
#[derive(Clone, Copy, Debug)]
struct List<'a> {
    first: Option<Unit>,
    entries: &'a [Unit16],
}

/// An entry of a list: 16 bytes in the order of memory.
type Unit16 = [u8; 16];

/// A change with a list of more than four entries.
#[derive(Clone, Copy, Debug)]
struct Change<'a> {
    control: Unit,
    key: [Unit; 2],
    list: List<'a>,
}

impl List<'_> {
    /// Entries, with those that fill the last unit of the list.
    #[inline(always)]
    fn padded(&self) -> u32 {
        let entries = self.entries.len() + usize::from(self.first.is_some());
        (entries as u32).next_multiple_of(SHORT as u32)
    }
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

/// Changes of memory keys.
impl<D: Doorbell> SendQueue<D> {
    /// Opens memory to the peer of this queue pair: binds the memory window of `free`, whose key
    /// becomes `key`. The two differ in the low byte only, and the window is free: new, or
    /// invalidated. The key of the range allows binds ([`MemoryRegion::register`] provides it), and
    /// local writes if `access` has remote writes or atomics.
    ///
    /// [`MemoryRegion::register`]: crate::memory::MemoryRegion::register
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    // Rights are constants for most callers, and the binding need not be stored.
    #[inline(always)]
    pub fn bind_window(
        &mut self,
        free: u32,
        key: u32,
        binding: &Binding,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let qpn_mkey = self.qpn() << 8 | key & 0xff;
        self.bind(UmrControlSegment::BIND, free, qpn_mkey, binding, flags)
    }

    /// As [`Self::bind_window`], but opens the memory to every peer of the protection domain: over
    /// queue pairs that send only (DC, XRC), a window of one queue pair opens nothing.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn bind_shared_window(
        &mut self,
        free: u32,
        key: u32,
        binding: &Binding,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.bind(UmrControlSegment::BIND_SHARED, free, any_queue_pair(key), binding, flags)
    }

    #[inline(always)]
    fn bind(
        &mut self,
        control: UmrControlSegment,
        free: u32,
        qpn_mkey: u32,
        binding: &Binding,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let zero = Unit::zero();
        let length = u64::from(binding.range.byte_count.get());
        let [access, range] = key_context(binding.access, qpn_mkey, binding.start, length);
        let blocks = [
            [zero, change_unit(control, SHORT as u32), zero, zero],
            [access, range, zero, zero],
            [Unit::local(&binding.range), zero, zero, zero],
        ];
        self.post_blocks::<3, 12>(Opcode::Umr, 0, free, flags, blocks)
    }

    /// Joins up to [`MAX_RANGES`] ranges, in this order, under `key`, which starts at address 0. It
    /// replaces what the key covered.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`] for too many ranges.
    #[inline]
    pub fn join(
        &mut self,
        key: u32,
        access: Access,
        ranges: &[DataSegment],
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let bytes = |segment: &DataSegment| u64::from(segment.byte_count.get());
        if ranges.len() > SHORT {
            let length = ranges.iter().map(bytes).sum();
            return self.join_many(key, access, ranges, length, flags);
        }
        let (mut units, mut length) = ([Unit::zero(); SHORT], 0);
        for (unit, range) in units.iter_mut().zip(ranges) {
            *unit = Unit::local(range);
            length += bytes(range);
        }
        self.replace_short(key, access, length, units, flags)
    }

    /// Interleaves up to [`MAX_INTERLEAVED`] ranges under `key`, which starts at address 0: in each
    /// of `repeat` repetitions the bytes of all entries in this order, each entry `stride` bytes
    /// after its previous one. It replaces what the key covered.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`] for too many entries.
    #[inline]
    pub fn interleave(
        &mut self,
        key: u32,
        access: Access,
        repeat: u32,
        entries: &[RepeatEntry],
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
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
            return self.interleave_many(key, access, block, entries, length, flags);
        }
        let mut units = [Unit::zero(); SHORT];
        units[0] = Unit::load(&block);
        for (unit, entry) in units.iter_mut().skip(1).zip(entries) {
            *unit = Unit::segment(entry);
        }
        self.replace_short(key, access, length, units, flags)
    }

    #[inline(always)]
    fn replace_short(
        &mut self,
        key: u32,
        access: Access,
        length: u64,
        list: [Unit; SHORT],
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let zero = Unit::zero();
        let [access, range] = key_context(access, any_queue_pair(key), 0, length);
        let change = change_unit(UmrControlSegment::REPLACE, SHORT as u32);
        let blocks = [[zero, change, zero, zero], [access, range, zero, zero], list];
        self.post_blocks::<3, 12>(Opcode::Umr, 0, key, flags, blocks)
    }

    #[inline(never)]
    fn join_many(
        &mut self,
        key: u32,
        access: Access,
        ranges: &[DataSegment],
        length: u64,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        if ranges.len() > MAX_RANGES {
            return Err(PostError::TooLong);
        }
        let entries = ranges.as_bytes().as_chunks().0;
        self.replace_long(key, access, length, List { first: None, entries }, flags)
    }

    #[inline(never)]
    fn interleave_many(
        &mut self,
        key: u32,
        access: Access,
        block: Unit16,
        entries: &[RepeatEntry],
        length: u64,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let entries = entries.as_bytes().as_chunks().0;
        let list = List { first: Some(Unit::load(&block)), entries };
        self.replace_long(key, access, length, list, flags)
    }

    #[inline(always)]
    fn replace_long(
        &mut self,
        key: u32,
        access: Access,
        length: u64,
        list: List<'_>,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let change = Change {
            control: change_unit(UmrControlSegment::REPLACE, list.padded()),
            key: key_context(access, any_queue_pair(key), 0, length),
            list,
        };
        self.post_wqe(Opcode::Umr, key, flags, change)
    }
}
