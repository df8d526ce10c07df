//! Views: several ranges of memory under one key, which is used like that of a region.

use core::marker::PhantomData;
use core::ops::Range;

use barewire_layouts::wqe::{ControlFlags, DataSegment, RemoteAddressSegment, RepeatEntry};

use super::change::{ChangeError, checked};
use super::list_key::ListKey;
use super::{MemoryRegion, RemoteMemory};
use crate::context::ProtectionDomain;
use crate::doorbell::Doorbell;
use crate::error::Error;
use crate::queue::send::{SendQueue, WqeIndex};
use crate::request::{Interleave, Join, MAX_INTERLEAVED, MAX_RANGES};
use crate::values::Access;

/// Ranges of memory under one key, whose addresses start at 0: joined one after the other, or
/// interleaved in a pattern that repeats, such as the column of a matrix. The device gathers and
/// scatters. The layout of a view is changed by work requests, not commands.
///
/// Each layout has a new key. WQEs that are posted after it on the same queue may use the key, and
/// the first of them must wait for the change: post it with [`ControlFlags::SMALL_FENCE`] or
/// [`ControlFlags::FENCE`]. Others may use the key once the change is complete. Operations that
/// still use the key of an older layout fail.
///
/// The view borrows the memory, which therefore cannot be deregistered before it:
///
/// ```compile_fail,E0505
/// use barewire_mlx5::memory::View;
/// use barewire_mlx5::{Access, Buffer, ControlFlags, ProtectionDomain, SendQueue};
///
/// fn open(domain: &ProtectionDomain, queue: &mut SendQueue, memory: Buffer) {
///     let mut view = View::create(domain, 4).unwrap();
///     let ranges = [(memory.region(), 0..8), (memory.region(), 64..72)];
///     view.join(queue, Access::empty(), &ranges, ControlFlags::empty()).unwrap();
///     drop(memory);
///     let _ = view.segment(0, 16);
/// }
/// ```
#[derive(Debug)]
#[must_use = "dropping it destroys the key"]
pub struct View<'m> {
    key: ListKey,
    /// 0 before the first layout.
    length: u64,
    memory: PhantomData<&'m MemoryRegion>,
}

/// A range of an interleaved view.
#[derive(Clone, Copy, Debug)]
pub struct Interleaved<'m> {
    /// The memory.
    pub memory: &'m MemoryRegion,
    /// Where the range of the first repetition starts.
    pub offset: usize,
    /// Bytes of each repetition.
    pub bytes: usize,
    /// Bytes from one repetition to the next.
    pub stride: usize,
}

impl<'m> View<'m> {
    /// Creates a view with room for `entries` ranges, at most [`MAX_RANGES`]; an interleaved layout
    /// takes one more. Set up by objects of verbs, views have room for 4.
    ///
    /// # Errors
    /// If the device refused, or the number is out of range.
    pub fn create(domain: &ProtectionDomain, entries: u32) -> Result<Self, Error> {
        Ok(Self { key: ListKey::create(domain, entries, false)?, length: 0, memory: PhantomData })
    }

    /// Posts a layout: the ranges one after the other.
    ///
    /// # Errors
    /// [`ChangeError`]: nothing was posted.
    pub fn join<D: Doorbell>(
        &mut self,
        queue: &mut SendQueue<D>,
        access: Access,
        ranges: &[(&'m MemoryRegion, Range<usize>)],
        flags: ControlFlags,
    ) -> Result<WqeIndex, ChangeError> {
        self.fits(ranges.len())?;
        if ranges.is_empty() {
            return Err(ChangeError::Length(0));
        }
        let mut list = [DataSegment::new(0, 0, 0); MAX_RANGES];
        let mut length = 0;
        for (entry, (memory, range)) in list.iter_mut().zip(ranges) {
            *entry = checked(self.key.domain(), memory, range, access)?;
            length += u64::from(entry.byte_count.get());
        }
        let list = list.get(..ranges.len()).unwrap_or_default();
        let key = self.key.next();
        let index = queue.post(Join { key, access, ranges: list }, flags)?;
        self.posted(key, length);
        Ok(index)
    }

    /// Posts a layout: in each of `repeat` repetitions, the bytes of all ranges.
    ///
    /// # Errors
    /// [`ChangeError`]: nothing was posted.
    pub fn interleave<D: Doorbell>(
        &mut self,
        queue: &mut SendQueue<D>,
        access: Access,
        ranges: &[Interleaved<'m>],
        repeat: u32,
        flags: ControlFlags,
    ) -> Result<WqeIndex, ChangeError> {
        self.fits(ranges.len() + 1)?;
        let mut list = [RepeatEntry::default(); MAX_INTERLEAVED];
        let mut length = 0;
        for (entry, range) in list.iter_mut().zip(ranges) {
            *entry = self.repeated(range, repeat, access)?;
            length += u64::from(entry.byte_count.get());
        }
        let list = list.get(..ranges.len()).unwrap_or_default();
        if length == 0 || repeat == 0 {
            return Err(ChangeError::Length(0));
        }
        let key = self.key.next();
        let index = queue.post(Interleave { key, access, repeat, entries: list }, flags)?;
        self.posted(key, length * u64::from(repeat));
        Ok(index)
    }

    /// Posts a layout of `count` elements of `bytes` bytes, each `stride` bytes after the previous
    /// one: the column of a matrix.
    ///
    /// # Errors
    /// [`ChangeError`]: nothing was posted.
    pub fn stride<D: Doorbell>(
        &mut self,
        queue: &mut SendQueue<D>,
        access: Access,
        elements: Interleaved<'m>,
        count: u32,
        flags: ControlFlags,
    ) -> Result<WqeIndex, ChangeError> {
        self.interleave(queue, access, &[elements], count, flags)
    }

    /// The entry of `range`, all of whose repetitions are inside its memory.
    fn repeated(
        &self,
        range: &Interleaved<'m>,
        repeat: u32,
        access: Access,
    ) -> Result<RepeatEntry, ChangeError> {
        let Interleaved { memory, offset, bytes, stride } = *range;
        let narrow = |number: usize| {
            u16::try_from(number).ok().filter(|number| *number > 0).ok_or(ChangeError::Wide(number))
        };
        let (short_stride, short_bytes) = (narrow(stride)?, narrow(bytes)?);
        // Neither factor has more than 32 bits, so that this does not overflow 64.
        let all = u64::from(short_stride) * u64::from(repeat.saturating_sub(1)) + bytes as u64;
        let end = usize::try_from(all).ok().and_then(|all| offset.checked_add(all));
        let size = memory.len();
        let out = super::OutOfBounds { offset, length: all as usize, size };
        end.filter(|end| *end <= size).ok_or(ChangeError::Range(out))?;
        let first = checked(self.key.domain(), memory, &(offset..offset + bytes), access)?;
        let (key, address) = (first.lkey.get(), first.address.get());
        Ok(RepeatEntry::new(short_stride, short_bytes, key, address))
    }

    fn fits(&self, got: usize) -> Result<(), ChangeError> {
        let room = self.key.entries();
        if got <= room as usize { Ok(()) } else { Err(ChangeError::Entries { got, room }) }
    }

    fn posted(&mut self, key: u32, length: u64) {
        self.key.changed(key);
        self.length = length;
    }

    /// Length in bytes: of all ranges, or of all repetitions; 0 before the first layout.
    #[inline]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Returns whether the view has no layout yet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// A segment of `length` bytes at `offset` for WQEs of this process. `None` if it does not lie
    /// in the view or is longer than a segment can be (2^31 - 1 bytes).
    #[inline]
    pub fn segment(&self, offset: u64, length: u32) -> Option<DataSegment> {
        let end = offset.checked_add(length.into())?;
        (end <= self.length && length < 1 << 31)
            .then(|| DataSegment::new(offset, length, self.key.key()))
    }

    /// The remote address of the byte at `offset`, for WQEs of a peer. The offset is not checked:
    /// the device refuses accesses outside the view.
    #[inline]
    pub fn remote(&self, offset: u64) -> RemoteAddressSegment {
        RemoteAddressSegment::new(offset, self.key.key())
    }

    /// The view as a peer addresses it.
    pub fn to_remote(&self) -> RemoteMemory {
        RemoteMemory { address: 0, length: self.length, key: self.key.key() }
    }
}
