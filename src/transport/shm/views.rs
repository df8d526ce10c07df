//! The regions that an endpoint used last, as it maps them.

use std::cell::{Ref, RefCell};

use barewire_shm::Mapped;

use super::domain::RemoteKey;
use crate::copy::Bytes;
use crate::error::PostError;

/// A power of two.
const PLACES: usize = 4;

/// A region that is mapped while this lives.
pub(super) struct View {
    region: (u64, u64),
    mapped: Mapped,
    pub(super) bytes: Bytes,
}

/// One of each of a few classes of regions; the connection has all of them.
#[derive(Default)]
pub(super) struct Views([RefCell<Option<View>>; PLACES]);

impl Views {
    /// The key's region, with `length` bytes from `offset` on inside. `map` asks the connection for it.
    #[inline(always)]
    pub(super) fn find(
        &self,
        key: &RemoteKey,
        (offset, length): (u64, usize),
        map: impl FnOnce() -> Result<Mapped, PostError>,
    ) -> Result<Ref<'_, View>, PostError> {
        let region = key.region();
        let place = &self.0[region.1 as usize % PLACES];
        if place.borrow().as_ref().is_none_or(|view| view.region != region) {
            let mapped = map()?;
            let bytes = Bytes::new(mapped.start(), mapped.size());
            place.replace(Some(View { region, mapped, bytes }));
        }
        let Ok(view) = Ref::filter_map(place.borrow(), Option::as_ref) else {
            return Err(PostError::NoResource);
        };
        if !view.mapped.is_live() {
            return Err(PostError::KeyExpired);
        }
        // The key's word for the length of the region is its writer's.
        if !view.bytes.contains(offset as usize, length) {
            return Err(PostError::OutOfRange);
        }
        Ok(view)
    }

    /// Unmaps them.
    pub(super) fn clear(&self) {
        for place in &self.0 {
            place.replace(None);
        }
    }
}
