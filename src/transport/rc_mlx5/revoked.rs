//! Keys of windows that peers invalidated by messages.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::fork::Maker;

/// The keys of a domain that peers invalidated, and whose windows have not noticed it yet.
#[derive(Debug)]
pub(super) struct Revoked {
    /// Number of keys, so that the usual case takes no lock.
    count: AtomicUsize,
    keys: Mutex<HashSet<u32>>,
    /// A forked child does not lock `keys`: a thread that exists only in the parent may hold the
    /// lock.
    maker: Maker,
}

impl Revoked {
    pub(super) fn new() -> Self {
        let (count, keys) = (AtomicUsize::new(0), Mutex::default());
        Self { count, keys, maker: Maker::this_process() }
    }

    fn keys(&self) -> MutexGuard<'_, HashSet<u32>> {
        // Each change is one operation of the set, so a poisoned set is consistent.
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a peer invalidated `key`.
    #[cold]
    pub(super) fn note(&self, key: u32) {
        let mut keys = self.keys();
        keys.insert(key);
        self.count.store(keys.len(), Ordering::Release);
    }

    /// Returns whether a peer invalidated `key`.
    pub(super) fn contains(&self, key: u32) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && !self.maker.is_parent()
            && self.keys().contains(&key)
    }

    /// Forgets the window of `key`, whatever the key's low byte: it is bound again, or dropped, and
    /// its number may be reused.
    pub(super) fn forget(&self, key: u32) {
        if self.count.load(Ordering::Acquire) > 0 && !self.maker.is_parent() {
            let mut keys = self.keys();
            keys.retain(|other| other >> 8 != key >> 8);
            self.count.store(keys.len(), Ordering::Release);
        }
    }
}
