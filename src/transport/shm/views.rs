//! The regions that an endpoint used last, as it maps them.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use barewire_shm::{LIVE, Mapped};

use super::domain::RemoteKey;
use crate::transport::common::copy::Bytes;

/// A power of two.
const PLACES: usize = 4;

/// What may be posted before the connection is looked at, see [`cost`]: a fraction of a millisecond's
/// worth of posts of any size.
const ALLOWANCE: i64 = 4 << 20;

/// What a post takes of the allowance: its bytes, and what it costs without any.
#[inline(always)]
fn cost(length: usize) -> i64 {
    (length as i64).saturating_add(32)
}

/// One region of each of a few classes; the connection has all of them.
#[derive(Default)]
pub(super) struct Views {
    places: [View; PLACES],
    /// What is left of the allowance. Posts to mapped memory succeed whether or not its owner
    /// lives, so one that finds nothing left takes the way that looks.
    left: Cell<i64>,
}

/// What the life of a region that is not there is.
static NONE: AtomicU64 = AtomicU64::new(0);

/// A region that is mapped while this has it.
struct View {
    id: Cell<u64>,
    bytes: Cell<Bytes>,
    /// Mapped as the bytes are.
    life: Cell<NonNull<AtomicU64>>,
    mapped: RefCell<Option<Mapped>>,
}

impl Default for View {
    fn default() -> Self {
        Self {
            id: Cell::new(0),
            bytes: Cell::new(Bytes::new(NonNull::dangling(), 0)),
            life: Cell::new(NonNull::from(&NONE)),
            mapped: RefCell::new(None),
        }
    }
}

impl View {
    #[inline(always)]
    fn is_live(&self) -> bool {
        // SAFETY: `mapped` keeps it, or it is the one that is always there.
        unsafe { self.life.get().as_ref() }.load(Ordering::Acquire) == LIVE
    }
}

impl Views {
    #[inline(always)]
    fn place(&self, id: u64) -> &View {
        &self.places[id as usize % PLACES]
    }

    /// The key's region, if it is here, lives and has `length` bytes from `offset` on, and the allowance is not spent. It is mapped until
    /// the next [`Self::add`] or [`Self::clear`].
    #[inline(always)]
    pub(super) fn find(&self, key: &RemoteKey, (offset, length): (u64, usize)) -> Option<Bytes> {
        let view = self.place(key.id());
        // Two regions of one id are of different processes, by a chance of one in 2^64: the peer's own one is used.
        if view.id.get() != key.id() {
            return None;
        }
        let left = self.left.get().wrapping_sub(cost(length));
        self.left.set(left);
        if left < 0 {
            return None;
        }
        let bytes = view.bytes.get();
        if bytes.contains(offset as usize, length) && view.is_live() { Some(bytes) } else { None }
    }

    /// Takes in the key's region, as the connection maps it; it has as many bytes as the key says, or more. The allowance is new, and lasts
    /// for a post of `length` bytes at least.
    pub(super) fn add(&self, key: &RemoteKey, mapped: Mapped, length: usize) {
        self.left.set(ALLOWANCE.saturating_add(cost(length)));
        let view = self.place(key.id());
        view.id.set(key.id());
        let size = mapped.size().min(key.region().2 as usize);
        view.bytes.set(Bytes::new(mapped.start(), size));
        view.life.set(NonNull::from(mapped.life()));
        view.mapped.replace(Some(mapped));
    }

    /// Unmaps them.
    pub(super) fn clear(&self) {
        for view in &self.places {
            view.bytes.set(Bytes::new(NonNull::dangling(), 0));
            view.life.set(NonNull::from(&NONE));
            view.mapped.replace(None);
        }
    }
}
