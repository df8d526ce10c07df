//! Windows and views of `self`: entries of the domain's table of regions.

use std::ops::Range;
use std::sync::Arc;

use barewire_shared_bytes::Layout;

use super::domain::{Domain, Memory, Region};
use super::{Endpoint, Self_};
use crate::base::error::ChangeError;
use crate::base::memory::Access;
use crate::transport::handle::view::{self, ListTable};
use crate::transport::handle::window::{self, KeyTable, PartTable};

/// A memory window. As [`crate::Window`].
pub type Window<'m> = window::Window<'m, Domain>;
/// Ranges of memory under one key. As [`crate::View`].
pub type View<'m> = view::View<'m, Domain>;

/// A region of the table that is a part of others.
#[derive(Debug)]
pub(crate) struct Entry {
    id: u64,
    region: Arc<Region>,
    /// The slot of a list, for slices.
    slot: Option<u32>,
}

impl KeyTable for Domain {
    type Transport = Self_;
    type Entry = Entry;

    fn tag(&self) -> u32 {
        self.tag()
    }

    fn tag_of_endpoint(endpoint: &Endpoint) -> u32 {
        endpoint.tag()
    }

    fn tag_of_memory(memory: &Memory) -> u32 {
        memory.domain()
    }

    fn access(memory: &Memory) -> Access {
        memory.access()
    }

    fn close(&self, entry: &Entry) {
        if let Some(slot) = entry.slot {
            self.release_slot(slot);
        }
        self.close(entry.id, &entry.region);
    }

    fn is_open(entry: &Entry) -> bool {
        entry.region.is_live()
    }

    fn pack(&self, entry: &Entry) -> Vec<u8> {
        self.pack(entry.id)
    }
}

impl PartTable for Domain {
    fn open_part(
        &self,
        memory: &Memory,
        range: Range<usize>,
        access: Access,
    ) -> Result<Entry, ChangeError> {
        let (id, region) = memory.open(range, access);
        Ok(Entry { id, region, slot: None })
    }
}

impl ListTable for Domain {
    type Part = Arc<Region>;

    fn part(memory: &Memory) -> Arc<Region> {
        memory.region()
    }

    fn open_list(&self, layout: Layout<Arc<Region>>, access: Access) -> Result<Entry, ChangeError> {
        let (id, region) = self.insert_list(layout, access);
        let slot = self.claim_slot(&region);
        if slot.is_none() {
            self.close(id, &region);
            return Err(ChangeError::Key("the domain has 16777215 views: drop one".into()));
        }
        Ok(Entry { id, region, slot })
    }

    /// Returns the rights, as of memory, and the slot.
    fn slice_key(entry: &Entry) -> u32 {
        entry.region.slice_key(entry.slot)
    }
}
