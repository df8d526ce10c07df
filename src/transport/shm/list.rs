//! Views of `shm`: the list of ranges is itself a region, which peers map and read. Its end is that
//! of the key.

use std::sync::Arc;

use barewire_shared_bytes::{Layout, LayoutRange, SharedBytes};
use barewire_shm::{Mapped, Region};

use super::address::{KeyBody, UNSHARED};
use super::domain::{Domain, Memory, Range};
use super::{Endpoint, Shm};
use crate::base::error::ChangeError;
use crate::base::interleaved::MAX_ENTRIES;
use crate::base::memory::Access;
use crate::transport::common::slots::slice_key;
use crate::transport::handle::view::{self, ListTable};
use crate::transport::handle::window::KeyTable;

/// Ranges of memory under one key. As [`crate::View`].
pub type View<'m> = view::View<'m, Domain>;

/// Words of a list before its ranges, and of a range.
const HEAD: usize = 2;
const RANGE: usize = 4;
/// Bytes of the region of a list.
const LIST: usize = (HEAD + RANGE * MAX_ENTRIES) * size_of::<u64>();

/// A list of ranges.
#[derive(Debug)]
pub(crate) struct Entry {
    slot: u32,
    length: u64,
    access: Access,
    /// Its end is the end of the key. `None` if peers cannot map all of the memory.
    region: Option<Region>,
}

impl KeyTable for Domain {
    type Transport = Shm;
    type Entry = Entry;

    fn tag(&self) -> u32 {
        self.tag()
    }

    fn tag_of_endpoint(endpoint: &Endpoint) -> u32 {
        endpoint.0.shared.tag
    }

    fn tag_of_memory(memory: &Memory) -> u32 {
        memory.domain()
    }

    fn access(memory: &Memory) -> Access {
        Access::from_bits_truncate(memory.local_key())
    }

    /// The region of the list ends when the entry is dropped, which follows.
    fn close(&self, entry: &Entry) {
        self.lists().release(entry.slot);
    }

    fn pack(&self, entry: &Entry) -> Vec<u8> {
        let place = entry.region.as_ref().map(Region::place);
        let key = KeyBody {
            region_set: self.regions().number(),
            region: entry.region.as_ref().map_or(UNSHARED, Region::number),
            address: 0,
            length: entry.length,
            process: place.map_or(0, |place| place.process),
            descriptor: place.map_or(0, |place| place.descriptor),
            access: entry.access,
            is_list: true,
        };
        key.pack()
    }
}

impl ListTable for Domain {
    type Part = Range;

    fn part(memory: &Memory) -> Range {
        let bytes = *memory.bytes();
        Range { bytes, region: memory.region() }
    }

    fn open_list(&self, layout: Layout<Range>, access: Access) -> Result<Entry, ChangeError> {
        let length = layout.len();
        let shared = layout.ranges().iter().all(|range| range.memory.region != UNSHARED);
        let region = if shared { Some(self.publish(&layout)?) } else { None };
        let slot = self.lists().claim(Arc::new(layout));
        let slot =
            slot.ok_or(ChangeError::Key("the domain has 16777215 views: drop one".into()))?;
        Ok(Entry { slot, length, access, region })
    }

    fn slice_key(entry: &Entry) -> u32 {
        slice_key(entry.access, Some(entry.slot))
    }
}

impl Domain {
    /// Writes a list into a region of its own.
    fn publish(&self, layout: &Layout<Range>) -> Result<Region, ChangeError> {
        let region = self.regions().region(LIST).map_err(|error| ChangeError::Key(error.into()))?;
        let mut words = vec![layout.ranges().len() as u64, layout.repeat().into()];
        for range in layout.ranges() {
            let numbers = [range.offset, range.bytes, range.stride].map(|number| number as u64);
            words.push(range.memory.region);
            words.extend(numbers);
        }
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        let mapped = region.mapped();
        // SAFETY: `region` keeps the mapping, which has as many bytes as the longest list.
        unsafe { SharedBytes::new(mapped.start(), mapped.size()).write(0, &bytes) };
        Ok(region)
    }
}

/// Reads the list in a region of a peer: ranges of its regions by their numbers. `None` if it is
/// none.
pub(super) fn read(list: &Mapped) -> Option<Layout<u64>> {
    let bytes = SharedBytes::new(list.start(), list.size());
    let mut list = [0; LIST];
    if !bytes.contains(0, LIST) {
        return None;
    }
    // SAFETY: the caller's reference keeps the mapping, and the range was checked. Whatever a peer
    // has written there is checked below and when it is used.
    unsafe { bytes.read(0, &mut list) };
    let (words, _) = list.as_chunks();
    let mut words = words.iter().map(|word| u64::from_ne_bytes(*word));
    let (count, repeat) = (words.next()?, u32::try_from(words.next()?).ok()?);
    let mut ranges = Vec::new();
    for _ in 0..count {
        let memory = words.next()?;
        let [offset, bytes, stride] =
            [words.next()?, words.next()?, words.next()?].map(|number| number as usize);
        ranges.push(LayoutRange { memory, offset, bytes, stride });
    }
    Layout::new(ranges, repeat)
}
