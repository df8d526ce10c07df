//! Windows and views of `tcp`: entries of the domain's tables of regions, which the target's thread
//! serves.

use std::ops::Range;
use std::sync::Arc;

use barewire_shared_bytes::Layout;
use barewire_tcp::region::Region;

use super::domain::{Domain, Entry, Memory, rights};
use super::{Endpoint, Tcp};
use crate::base::error::ChangeError;
use crate::base::memory::Access;
use crate::transport::handle::view::{self, ListTable};
use crate::transport::handle::window::{self, KeyTable, PartTable};

/// A memory window. As [`crate::Window`].
pub type Window<'m> = window::Window<'m, Domain>;
/// Ranges of memory under one key. As [`crate::View`].
pub type View<'m> = view::View<'m, Domain>;

impl KeyTable for Domain {
    type Transport = Tcp;
    type Entry = Entry;

    fn tag(&self) -> u32 {
        self.tag()
    }

    fn tag_of_endpoint(endpoint: &Endpoint) -> u32 {
        endpoint.0.shared.domain.tag()
    }

    fn tag_of_memory(memory: &Memory) -> u32 {
        memory.domain()
    }

    fn access(memory: &Memory) -> Access {
        memory.access()
    }

    fn close(&self, entry: &Entry) {
        self.end(&entry.region, entry.token, entry.number);
    }

    fn pack(&self, entry: &Entry) -> Vec<u8> {
        self.pack_token(entry.token)
    }
}

impl PartTable for Domain {
    fn open_part(
        &self,
        memory: &Memory,
        range: Range<usize>,
        access: Access,
    ) -> Result<Entry, ChangeError> {
        self.add_entry(Region::part(memory.region(), range, rights(access)), access)
    }
}

impl ListTable for Domain {
    type Part = Arc<Region>;

    fn part(memory: &Memory) -> Arc<Region> {
        Arc::clone(memory.region())
    }

    fn open_list(&self, layout: Layout<Arc<Region>>, access: Access) -> Result<Entry, ChangeError> {
        self.add_entry(Region::list(layout, rights(access)), access)
    }

    fn slice_key(entry: &Entry) -> u32 {
        entry.number
    }
}
