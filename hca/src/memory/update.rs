//! Changes of memory keys by WQEs: user-mode memory registration, memory windows, invalidation.

use barewire_layouts::command::mkey::{ANY_QPN, Mkc};
use barewire_layouts::prm::{Field, Layout, View};
use barewire_layouts::wqe::{UmrFlags, UmrMask};

use super::{AbsentPages, Access, Backing, Memory, Mkey, Part, TranslationError, User};

/// Bytes of a unit of a list.
const OCTOWORD: usize = 16;

/// The rights that a WQE may change, with their mask bits. Local read is set by the creator only.
const RIGHTS: [(UmrMask, Field<Mkc, bool>, Access); 4] = [
    (UmrMask::LOCAL_WRITE, Mkc::LW, Access::LOCAL_WRITE),
    (UmrMask::REMOTE_READ, Mkc::RR, Access::REMOTE_READ),
    (UmrMask::REMOTE_WRITE, Mkc::RW, Access::REMOTE_WRITE),
    (UmrMask::ATOMIC, Mkc::A, Access::REMOTE_ATOMIC),
];

/// New translations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// In the WQE.
    Inline(Vec<u8>),
    /// In registered memory.
    Memory {
        /// Its address.
        address: u64,
        /// Bytes.
        length: u32,
        /// The lkey of the list.
        lkey: u32,
    },
}

/// A change that a WQE requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The key's index and its low byte, which is ignored.
    pub(crate) key: u32,
    /// The checks.
    pub(crate) flags: UmrFlags,
    /// The fields to be changed.
    pub(crate) mask: UmrMask,
    /// The new values: a memory key context.
    pub(crate) context: [u8; Mkc::BYTES],
    /// The new translations, if any, and the index of the first.
    pub(crate) list: Option<(usize, List)>,
}

/// Why a key was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The list is not accessible.
    List(TranslationError),
    /// The list is longer than the key has room for.
    Room,
    /// The key is free.
    Free,
    /// The key does not allow the change.
    Key,
}

impl Memory {
    /// Changes a key, or returns an error and changes nothing.
    pub(crate) fn change(&mut self, user: User, change: &Change) -> Result<(), Refusal> {
        let mut fetched = Vec::new();
        let list = match &change.list {
            None => None,
            Some((at, List::Inline(bytes))) => Some((*at, bytes.as_slice())),
            Some((at, List::Memory { address, length, lkey })) => {
                // The size is checked before the allocation.
                let room = self.mkeys.get(change.key >> 8).map_or(0, |mkey| room(&mkey.backing));
                if *length as usize > room * OCTOWORD {
                    return Err(Refusal::Room);
                }
                let span = self
                    .translate(*lkey, user, *address, u64::from(*length), Access::LOCAL_READ)
                    .map_err(Refusal::List)?;
                fetched.resize(*length as usize, 0);
                span.copy_to(&mut fetched);
                Some((*at, fetched.as_slice()))
            }
        };
        let old = self.mkeys.get(change.key >> 8).ok_or(Refusal::Key)?;
        if old.free && change.flags.contains(UmrFlags::CHECK_NOT_FREE) {
            return Err(Refusal::Free);
        }
        let longer = |(at, bytes): (usize, &[u8])| at + bytes.len() / OCTOWORD > room(&old.backing);
        if old.updatable && list.is_some_and(longer) {
            return Err(Refusal::Room);
        }
        let new = changed(old, user, change, list).ok_or(Refusal::Key)?;
        if !self.covers(&new) {
            return Err(Refusal::Key);
        }
        if let Some(mkey) = self.mkeys.get_mut(change.key >> 8) {
            *mkey = new;
        }
        Ok(())
    }

    /// Returns the absent pages of the list of a change.
    pub(crate) fn absent_list(&mut self, user: User, change: &Change) -> Vec<AbsentPages> {
        let Some((_, List::Memory { address, length, lkey })) = change.list else {
            return Vec::new();
        };
        let list = Part { key: lkey, address, length: length.into() };
        self.absent(user, &[list], Access::LOCAL_READ)
    }

    /// Frees `rkey` for a peer's send to `user`. Returns false if the key does not allow it.
    pub(crate) fn invalidate(&mut self, user: User, rkey: u32) -> bool {
        let Some(mkey) = self.mkeys.get_mut(rkey >> 8).filter(|mkey| mkey.remote_invalidate) else {
            return false;
        };
        let allowed = mkey.check(rkey, user, mkey.start, 0, Access::empty()).is_ok();
        mkey.free |= allowed;
        allowed
    }

    /// Returns whether the memory of a direct key is as long and as writable as the key says, and
    /// the addresses of any key do not wrap.
    fn covers(&self, mkey: &Mkey) -> bool {
        let wraps = mkey.length > 0 && mkey.start.checked_add(mkey.length - 1).is_none();
        let behind = match mkey.backing {
            Backing::Umem { id, offset } => self
                .umem_window(id, offset, mkey.length, mkey.access.intersects(Access::WRITES))
                .is_ok(),
            Backing::Nothing | Backing::Ranges(_) => true,
        };
        behind && !wraps
    }
}

/// Returns the maximum number of entries of a key's list.
fn room(backing: &Backing) -> usize {
    match backing {
        Backing::Ranges(ranges) => ranges.room(),
        Backing::Nothing | Backing::Umem { .. } => 0,
    }
}

/// Returns `old` with `change` applied; `None` if it does not allow that.
fn changed(old: &Mkey, user: User, change: &Change, list: Option<(usize, &[u8])>) -> Option<Mkey> {
    let checks = [
        (UmrFlags::CHECK_FREE, old.free),
        (UmrFlags::CHECK_NOT_FREE, !old.free),
        (UmrFlags::CHECK_QPN, old.qpn == ANY_QPN || old.qpn == user.qpn),
    ];
    let passes = checks.iter().all(|&(flag, holds)| holds || !change.flags.contains(flag));
    if !passes || !old.updatable || old.pd != user.pd {
        return None;
    }
    let context = View::<Mkc>::new(&change.context)?;
    let mut new = old.clone();
    for (bit, field, right) in RIGHTS {
        if change.mask.contains(bit) {
            new.access.set(right, context.get(field));
        }
    }
    if change.mask.contains(UmrMask::LENGTH) {
        // Programs leave old bytes of the ring where `length64` is.
        (new.length, new.whole) = (context.get(Mkc::LEN), false);
    }
    if change.mask.contains(UmrMask::START_ADDRESS) {
        new.start = context.get(Mkc::START_ADDR);
    }
    if change.mask.contains(UmrMask::KEY) {
        new.variant = context.get(Mkc::MKEY_7_0);
    }
    if change.mask.contains(UmrMask::QPN) {
        new.qpn = context.get(Mkc::QPN);
    }
    if change.mask.contains(UmrMask::FREE) {
        new.free = context.get(Mkc::FREE);
    }
    if let Some((at, bytes)) = list {
        new.backing = match &old.backing {
            Backing::Ranges(ranges) => Backing::Ranges(ranges.replaced(at, bytes)?),
            // Physical addresses are not available to users.
            Backing::Nothing | Backing::Umem { .. } => return None,
        };
    }
    Some(new)
}
