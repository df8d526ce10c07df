//! The regions that an endpoint used last, as it maps them.

use std::cell::RefCell;

use barewire_shm::Mapped;

use super::domain::RemoteKey;
use crate::copy::Bytes;
use crate::error::PostError;

/// A power of two.
const PLACES: usize = 4;

struct View {
    region: (u64, u64),
    mapped: Mapped,
    bytes: Bytes,
}

/// One of each of a few classes of regions; the connection has all of them.
#[derive(Default)]
pub(super) struct Views([RefCell<Option<View>>; PLACES]);

impl Views {
    /// Has `run` work on `length` bytes from `offset` on of the key's region: it gets the bytes of the region and the offset. `map` asks the
    /// connection for the region. `run` comes back here for nothing.
    #[inline(always)]
    pub(super) fn with<R>(
        &self,
        key: &RemoteKey,
        (offset, length): (u64, usize),
        map: impl FnOnce() -> Result<Mapped, PostError>,
        run: impl FnOnce(&Bytes, usize) -> Result<R, PostError>,
    ) -> Result<R, PostError> {
        let region = key.region();
        let place = &self.0[region.1 as usize % PLACES];
        if place.borrow().as_ref().is_none_or(|view| view.region != region) {
            let mapped = map()?;
            let bytes = Bytes::new(mapped.start(), mapped.size());
            place.replace(Some(View { region, mapped, bytes }));
        }
        let view = place.borrow();
        let Some(view) = &*view else { return Err(PostError::NoResource) };
        if !view.mapped.is_live() {
            return Err(PostError::KeyExpired);
        }
        // The key's word for the length of the region is its writer's.
        if !view.bytes.contains(offset as usize, length) {
            return Err(PostError::OutOfRange);
        }
        run(&view.bytes, offset as usize)
    }

    /// Unmaps them.
    pub(super) fn clear(&self) {
        for place in &self.0 {
            place.replace(None);
        }
    }
}
