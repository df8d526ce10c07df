//! Keys of windows that peers invalidated by messages.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::base::fork::Maker;

/// The windows of a domain, and their keys that peers invalidated.
#[derive(Debug)]
pub(in crate::transport) struct Revoked {
    /// Number of invalidated keys, so that the usual case takes no lock.
    count: AtomicUsize,
    /// By the index of each window's mkey: the key that a peer invalidated, unless the window was
    /// bound since.
    windows: Mutex<HashMap<u32, Option<u32>>>,
    /// A forked child does not lock `windows`: a thread that exists only in the parent may hold the
    /// lock.
    maker: Maker,
}

impl Revoked {
    pub(in crate::transport) fn new() -> Self {
        let (count, windows) = (AtomicUsize::new(0), Mutex::default());
        Self { count, windows, maker: Maker::this_process() }
    }

    fn windows(&self) -> Option<MutexGuard<'_, HashMap<u32, Option<u32>>>> {
        // Each change is one operation of the map, so a poisoned map is consistent.
        (!self.maker.is_parent())
            .then(|| self.windows.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds the window whose mkey has this index.
    pub(in crate::transport) fn add(&self, index: u32) {
        if let Some(mut windows) = self.windows() {
            self.change(windows.insert(index, None).flatten(), None);
        }
    }

    /// Removes the window whose mkey has this index, before the mkey is destroyed: the index may
    /// be reused then. Returns the key that a peer invalidated.
    pub(in crate::transport) fn remove(&self, index: u32) -> Option<u32> {
        let noted = self.windows()?.remove(&index).flatten();
        self.change(noted, None);
        noted
    }

    /// Notes that a peer invalidated `key`. A key that is not of a window is ignored: its window
    /// was dropped before the message was received.
    #[cold]
    #[inline(never)]
    pub(in crate::transport) fn note(&self, key: u32) {
        if let Some(mut windows) = self.windows()
            && let Some(noted) = windows.get_mut(&(key >> 8))
        {
            self.change(noted.replace(key), Some(key));
        }
    }

    /// Returns whether a peer invalidated `key`.
    pub(in crate::transport) fn contains(&self, key: u32) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && self.windows().is_some_and(|windows| windows.get(&(key >> 8)) == Some(&Some(key)))
    }

    /// Forgets the invalidated key of the window whose mkey has this index: the window is bound
    /// again. The low byte of keys repeats after 256 binds.
    pub(in crate::transport) fn forget(&self, index: u32) {
        if self.count.load(Ordering::Acquire) > 0
            && let Some(mut windows) = self.windows()
            && let Some(noted) = windows.get_mut(&index)
        {
            self.change(noted.take(), None);
        }
    }

    /// Counts the change of one window's key. The map is locked.
    fn change(&self, old: Option<u32>, new: Option<u32>) {
        match (old, new) {
            (None, Some(_)) => _ = self.count.fetch_add(1, Ordering::Release),
            (Some(_), None) => _ = self.count.fetch_sub(1, Ordering::Release),
            (None, None) | (Some(_), Some(_)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_of_windows_are_noted_until_the_next_bind() {
        let revoked = Revoked::new();
        let noted = || revoked.count.load(Ordering::Relaxed);
        revoked.note(0x705);
        assert_eq!((revoked.contains(0x705), noted()), (false, 0), "of no window");
        revoked.add(7);
        revoked.add(8);
        revoked.note(0x705);
        revoked.note(0x802);
        revoked.note(0x706);
        assert_eq!((revoked.contains(0x706), revoked.contains(0x705), noted()), (true, false, 2));
        revoked.forget(7);
        assert_eq!((revoked.contains(0x706), revoked.contains(0x802), noted()), (false, true, 1));
        revoked.remove(8);
        revoked.note(0x802);
        assert_eq!((revoked.contains(0x802), noted()), (false, 0), "the window was dropped");
    }
}
