//! Views of transports that gather and scatter in software: a key is that of a list of ranges.

#![expect(
    private_bounds,
    private_interfaces,
    reason = "sealed: the transports are this crate's own"
)]

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use barewire_shared_bytes::{Layout, LayoutRange, SharedBytes};

use super::window::{KeyTable, checked};
use crate::base::completion::Completion;
use crate::base::error::{ChangeError, MemoryError, PostError};
use crate::base::interleaved::{Interleaved, MAX_ENTRIES};
use crate::base::memory::{Access, Slice};
use crate::base::status::Posted;
use crate::transport;
use crate::transport::handle::{Endpoint, EndpointState as _};

/// A domain whose keys can be those of lists.
pub(crate) trait ListTable: KeyTable {
    /// What a list keeps of a region.
    type Part;

    fn part(memory: &Self::Memory) -> Self::Part;

    /// Opens a list of ranges, which lie inside their memory.
    fn open_list(
        &self,
        layout: Layout<Self::Part>,
        access: Access,
    ) -> Result<Self::Entry, ChangeError>;

    /// Returns the `key` of the entry's slices.
    fn slice_key(entry: &Self::Entry) -> u32;
}

/// Ranges of memory under one key. As [`crate::View`].
#[derive(Debug)]
#[must_use = "dropping it destroys the key"]
pub struct View<'m, D: ListTable> {
    domain: D,
    entries: usize,
    /// The layout's entry and length; `None` before the first layout.
    current: Option<(D::Entry, u64)>,
    /// The bytes of slices. There are none, by which [`Slice::is_of_view`] recognises such slices.
    nothing: SharedBytes,
    memory: PhantomData<&'m D::Memory>,
}

impl<'m, D: ListTable> View<'m, D> {
    /// As [`crate::View::new`].
    pub fn new(domain: &D, entries: usize) -> Result<Self, ChangeError> {
        if !(1..=MAX_ENTRIES).contains(&entries) {
            return Err(ChangeError::Entries { got: entries, room: MAX_ENTRIES });
        }
        let nothing = SharedBytes::at(NonNull::dangling(), 0, 0);
        let (domain, current, memory) = (domain.clone(), None, PhantomData);
        // As a device, whose lists have a multiple of four entries.
        Ok(Self { domain, entries: entries.next_multiple_of(4), current, nothing, memory })
    }

    /// As [`crate::View::join`].
    pub fn join(
        &mut self,
        endpoint: &Endpoint<D::Transport>,
        access: Access,
        ranges: impl IntoIterator<Item = (&'m D::Memory, Range<usize>)>,
        _completion: Option<&Completion>,
    ) -> Result<Posted, ChangeError> {
        let tag = self.check(endpoint)?;
        let range = |(memory, range): (&D::Memory, Range<usize>)| {
            let bytes = checked::<D>(tag, memory, &range, access)?;
            Ok(LayoutRange { memory: D::part(memory), offset: range.start, bytes, stride: 0 })
        };
        let ranges = ranges.into_iter().map(range).collect::<Result<Vec<_>, ChangeError>>()?;
        self.fits(ranges.len())?;
        self.replace(ranges, 1, access)
    }

    /// As [`crate::View::interleave`].
    pub fn interleave(
        &mut self,
        endpoint: &Endpoint<D::Transport>,
        access: Access,
        ranges: impl IntoIterator<Item = Interleaved<'m, D::Memory>>,
        repeat: u32,
        _completion: Option<&Completion>,
    ) -> Result<Posted, ChangeError> {
        let tag = self.check(endpoint)?;
        let range = |Interleaved { memory, offset, bytes, stride }: Interleaved<'m, D::Memory>| {
            // The limits of devices, so that a program runs over all transports.
            for number in [stride, bytes] {
                if number == 0 || number > u16::MAX.into() {
                    return Err(ChangeError::Wide(number));
                }
            }
            let last = stride.checked_mul(repeat.saturating_sub(1) as usize);
            let all = last.and_then(|last| last.checked_add(bytes));
            let region = transport::Memory::len(memory);
            if all.and_then(|all| all.checked_add(offset)).is_none_or(|end| end > region) {
                let length = all.unwrap_or(usize::MAX);
                return Err(MemoryError::OutOfRange { offset, length, region }.into());
            }
            checked::<D>(tag, memory, &(offset..offset + bytes), access)?;
            Ok(LayoutRange { memory: D::part(memory), offset, bytes, stride })
        };
        let ranges = ranges.into_iter().map(range).collect::<Result<Vec<_>, ChangeError>>()?;
        self.fits(ranges.len() + 1)?;
        self.replace(ranges, repeat, access)
    }

    /// Returns the tag of the domain if `endpoint` is of it and accepts posts.
    fn check(&self, endpoint: &Endpoint<D::Transport>) -> Result<u32, ChangeError> {
        endpoint.0.posting().check()?;
        let tag = self.domain.tag();
        if D::tag_of_endpoint(endpoint) == tag {
            Ok(tag)
        } else {
            Err(PostError::ForeignMemory.into())
        }
    }

    fn fits(&self, got: usize) -> Result<(), ChangeError> {
        let room = self.entries;
        if got <= room { Ok(()) } else { Err(ChangeError::Entries { got, room }) }
    }

    fn replace(
        &mut self,
        ranges: Vec<LayoutRange<D::Part>>,
        repeat: u32,
        access: Access,
    ) -> Result<Posted, ChangeError> {
        let layout = Layout::new(ranges, repeat).ok_or(ChangeError::Length(0))?;
        let length = layout.len();
        let entry = self.domain.open_list(layout, access & Access::all())?;
        self.end();
        self.current = Some((entry, length));
        Ok(Posted::Done)
    }

    fn end(&mut self) {
        if let Some((entry, _)) = self.current.take() {
            self.domain.close(&entry);
        }
    }

    /// As [`crate::View::len`].
    pub fn len(&self) -> u64 {
        self.current.as_ref().map_or(0, |(_, length)| *length)
    }

    /// As [`crate::View::is_empty`].
    pub fn is_empty(&self) -> bool {
        self.current.is_none()
    }

    /// As [`crate::View::slice`].
    pub fn slice(&self, offset: usize, length: usize) -> Result<Slice<'_>, MemoryError> {
        let region = usize::try_from(self.len()).unwrap_or(usize::MAX);
        let Some((entry, _)) = &self.current else {
            return Err(MemoryError::OutOfRange { offset, length, region });
        };
        if offset.checked_add(length).is_none_or(|end| end > region) {
            return Err(MemoryError::OutOfRange { offset, length, region });
        }
        let (address, domain, memory) = (offset as u64, self.domain.tag(), &self.nothing);
        Ok(Slice { address, length, key: D::slice_key(entry), domain, memory })
    }

    /// As [`crate::View::pack_key`]. Empty before the first layout.
    pub fn pack_key(&self) -> Vec<u8> {
        self.current.as_ref().map_or_else(Vec::new, |(entry, _)| self.domain.pack(entry))
    }
}

impl<D: ListTable> Drop for View<'_, D> {
    fn drop(&mut self) {
        self.end();
    }
}
