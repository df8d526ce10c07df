//! Memory as the device sees it: registered user memory, and the keys to parts of it.

use std::ptr::NonNull;

use crate::limits;
use crate::table::Table;

mod device;
mod indirect;
mod mapping;
mod mkey;
mod paging;
mod presence;
mod umem;
mod update;
mod window;

pub use device::DeviceMemory;
use device::OnDevice;
pub(crate) use indirect::{Backing, Part, Ranges};
pub use mapping::{Mapping, WrittenBack, check_pin};
pub(crate) use mkey::{Access, Mkey, TranslationError, User};
pub use paging::{AbsentPages, PagingError, host_page, pages_around};
pub(crate) use umem::Umem;
pub use umem::{UmemAccess, UmemError};
pub(crate) use update::{Change, List, Refusal as UpdateRefusal};
#[cfg(test)]
pub(crate) use window::leaked;
pub(crate) use window::{Span, Window};

/// Index of the first memory key. Lower ones are reserved: [`barewire_layouts::wqe::INVALID_LKEY`]
/// is one of them.
const FIRST_MKEY: u32 = 0x10;

/// All registered memory and memory keys of a device.
#[derive(Debug)]
pub(crate) struct Memory {
    umems: Table<Umem>,
    pub(crate) mkeys: Table<Mkey>,
    /// What commands allocated on the device, since the first of them.
    on_device: Option<OnDevice>,
    /// Absent pages are reported. Otherwise the device pages them in.
    pub(crate) reports_faults: bool,
}

/// A umem is not suitable for a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The umem does not exist.
    Unknown,
    /// The range is not within the umem.
    Bounds,
    /// The device must write to it, but may not.
    ReadOnly,
}

/// Part of user memory that an access reaches by `key`.
struct Piece {
    key: u32,
    umem: u32,
    /// Offset of the key's first byte, and of the access in the key.
    start: u64,
    offset: u64,
    length: u64,
}

impl Memory {
    /// Creates an empty memory; `first` chooses the number of the first key.
    pub(crate) fn new(first: u64) -> Self {
        Self {
            umems: Table::new(1, 0x00ff_ffff, limits::UMEMS),
            mkeys: Table::new(FIRST_MKEY, 0x00ff_ffff, limits::MKEYS).starting_at(first),
            on_device: None,
            reports_faults: false,
        }
    }

    /// Registers user memory and returns its number.
    ///
    /// # Safety
    /// The contract of `Device::register_umem`, or of `Device::register_umem_on_demand`, holds
    /// until [`Memory::deregister`] returns success or `self` is dropped.
    pub(crate) unsafe fn register(
        &mut self,
        start: NonNull<u8>,
        length: usize,
        access: UmemAccess,
        on_demand: bool,
    ) -> Result<u32, UmemError> {
        let wraps = start.addr().get().checked_add(length).is_none();
        if length == 0 || length > limits::UMEM_BYTES || wraps {
            return Err(UmemError::BadRange {
                start: start.addr().get(),
                length,
                limit: limits::UMEM_BYTES,
            });
        }
        // SAFETY: the caller's contract; the value is dropped on deregistration, or with the table.
        let umem = unsafe { Umem::new(start, length, access, on_demand) };
        self.umems
            .insert_with(|_| umem)
            .map(|(id, _)| id)
            .ok_or(UmemError::NoResources { limit: limits::UMEMS })
    }

    /// Sets the size of the pages of user memory, a power of two.
    pub(crate) fn set_page(&mut self, id: u32, page: u64) {
        if let Some(umem) = self.umems.get_mut(id) {
            umem.page = page;
        }
    }

    /// Returns whether a memory key that starts at `address` and at `offset` of user memory has the
    /// same offset in its first page.
    pub(crate) fn is_congruent(&self, id: u32, offset: u64, address: u64) -> bool {
        self.umems.get(id).is_none_or(|umem| (address ^ offset) & (umem.page - 1) == 0)
    }

    /// Returns whether a ring may start at `offset` of user memory: at a multiple of a 64th of its
    /// page (linux devx.c: `devx_umem_reg_cmd_alloc`).
    pub(crate) fn can_hold_ring(&self, id: u32, offset: u64) -> bool {
        self.umems.get(id).is_none_or(|umem| offset.is_multiple_of((umem.page / 64).max(1)))
    }

    /// Deregisters user memory without references.
    pub(crate) fn deregister(&mut self, id: u32) -> Result<(), UmemError> {
        match self.umems.get(id) {
            None => Err(UmemError::Unknown { id }),
            Some(&Umem { users, .. }) if users > 0 => Err(UmemError::Busy { id, users }),
            Some(_) => {
                self.umems.remove(id);
                Ok(())
            }
        }
    }

    /// Swaps the contexts of two keys; their numbers stay. Returns false if one of them does not
    /// exist.
    pub(crate) fn exchange(&mut self, a: u32, b: u32) -> bool {
        let (Some(one), Some(other)) = (self.mkeys.get(a).cloned(), self.mkeys.get(b).cloned())
        else {
            return false;
        };
        let (index, variant) = (one.index, one.variant);
        if let Some(place) = self.mkeys.get_mut(b) {
            *place = Mkey { index: other.index, variant: other.variant, ..one };
        }
        if let Some(place) = self.mkeys.get_mut(a) {
            *place = Mkey { index, variant, ..other };
        }
        true
    }

    /// Returns the number of registrations of programs.
    pub(crate) fn umem_count(&self) -> usize {
        self.umems.len() - usize::from(self.on_device.is_some())
    }

    /// Returns the memory of a queue: part of a umem, writable if asked for.
    pub(crate) fn umem_window(
        &self,
        id: u32,
        offset: u64,
        length: u64,
        write: bool,
    ) -> Result<Window, Refused> {
        let umem = self.umems.get(id).ok_or(Refused::Unknown)?;
        let window = umem.window(offset, length).ok_or(Refused::Bounds)?;
        if write && !umem.access.writable() {
            return Err(Refused::ReadOnly);
        }
        Ok(window)
    }

    /// Adds a reference to umem `id`.
    pub(crate) fn hold(&mut self, id: u32) {
        if let Some(umem) = self.umems.get_mut(id) {
            umem.users += 1;
        }
    }

    /// Removes a reference to umem `id`.
    pub(crate) fn release(&mut self, id: u32) {
        if let Some(umem) = self.umems.get_mut(id) {
            debug_assert!(umem.users > 0, "umem {id} released more often than held");
            umem.users = umem.users.saturating_sub(1);
        }
    }

    /// Returns the memory of `length` bytes at `address` under `key`, for `user`.
    ///
    /// The order of checks is that of the hardware: key, protection domain, queue pair, rights,
    /// range. A length of 0 is always granted (IBTA 9.4.3, 9.7.4.1.5: the R_Key of an empty request
    /// is not checked).
    pub(crate) fn translate(
        &self,
        key: u32,
        user: User,
        address: u64,
        length: u64,
        need: Access,
    ) -> Result<Span<'_>, TranslationError> {
        if length == 0 {
            return Ok(Span::new(Window::EMPTY));
        }
        let mkey = self.mkeys.get(key >> 8).ok_or(TranslationError::UnknownKey { key })?;
        let offset = mkey.check(key, user, address, length, need)?;
        match &mkey.backing {
            &Backing::Umem { id, offset: start } => {
                self.window(key, id, start, offset, length, need).map(Span::new)
            }
            Backing::Ranges(_) => {
                let mut windows = Vec::new();
                let part = Part { key, address, length };
                self.walk(0, part, (user, need), &mut |piece: Piece| {
                    let Piece { key, umem, start, offset, length } = piece;
                    if windows.len() >= limits::RANGES {
                        return Err(TranslationError::Indirection { key });
                    }
                    windows.push(self.window(key, umem, start, offset, length, need)?);
                    Ok(())
                })?;
                Ok(Span::of(windows))
            }
            Backing::Nothing => Err(TranslationError::Unmapped { key }),
        }
    }

    /// Checks that `user` may use `key` for `need`, wherever in its range.
    pub(crate) fn admit(&self, key: u32, user: User, need: Access) -> Result<(), TranslationError> {
        let mkey = self.mkeys.get(key >> 8).ok_or(TranslationError::UnknownKey { key })?;
        mkey.admit(key, user, need)
    }

    /// Returns part of a key's umem, for an access that needs these rights. Fails only if the
    /// memory is paged on demand and not mapped, since a key lies within its umem and keeps it
    /// registered.
    fn window(
        &self,
        key: u32,
        umem: u32,
        start: u64,
        offset: u64,
        length: u64,
        need: Access,
    ) -> Result<Window, TranslationError> {
        let umem = self.umems.get(umem).ok_or(TranslationError::Unmapped { key })?;
        let window = start.checked_add(offset).and_then(|offset| umem.window(offset, length));
        let window = window.ok_or(TranslationError::Unmapped { key })?;
        let write = need.intersects(Access::WRITES);
        let reports = self.reports_faults && window.is_on_demand();
        // Pages that the kernel took without a notice are absent as well.
        if !(reports && umem.lacks(window, write)) && window.bring_in(write) {
            return Ok(window);
        }
        let absent = TranslationError::Absent { key };
        Err(if reports { absent } else { TranslationError::Unmapped { key } })
    }

    /// Calls `each` with the pieces of `part`, which was reached through `depth` indirect keys.
    /// Checks every key on the way.
    fn walk<E: FnMut(Piece) -> Result<(), TranslationError>>(
        &self,
        depth: u8,
        part: Part,
        (user, need): (User, Access),
        each: &mut E,
    ) -> Result<(), TranslationError> {
        let Part { key, address, length } = part;
        let mkey = self.mkeys.get(key >> 8).ok_or(TranslationError::UnknownKey { key })?;
        let mut offset = mkey.check(key, user, address, length, need)?;
        let ranges = match &mkey.backing {
            &Backing::Umem { id, offset: start } => {
                return each(Piece { key, umem: id, start, offset, length });
            }
            Backing::Ranges(ranges) => ranges,
            Backing::Nothing => return Err(TranslationError::Unmapped { key }),
        };
        if depth >= limits::INDIRECTION {
            return Err(TranslationError::Indirection { key });
        }
        let mut left = length;
        while left > 0 {
            let part = ranges.part(offset, left).ok_or(TranslationError::Unmapped { key })?;
            self.walk(depth + 1, part, (user, need.behind()), each)?;
            left -= part.length;
            // The last byte of a key over all addresses is at 2^64 - 1.
            offset = offset.wrapping_add(part.length);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: User = User { pd: 1, qpn: 7 };

    fn memory(bytes: &'static mut [u8]) -> (Memory, u32) {
        let mut memory = Memory::new(0);
        let length = bytes.len();
        // SAFETY: a leaked buffer that only the device accesses.
        let umem = unsafe {
            memory.register(NonNull::from(bytes).cast(), length, UmemAccess::LOCAL_WRITE, false)
        };
        (memory, umem.unwrap())
    }

    fn key(memory: &mut Memory, umem: u32) -> u32 {
        let mkey = memory.mkeys.insert_with(|index| Mkey {
            index,
            variant: 7,
            free: false,
            pd: 1,
            qpn: barewire_layouts::command::mkey::ANY_QPN,
            start: 0x8000,
            length: 16,
            whole: false,
            access: Access::all(),
            updatable: false,
            remote_invalidate: false,
            relaxed: (false, false),
            backing: Backing::Umem { id: umem, offset: 8 },
        });
        let key = mkey.unwrap().1.key();
        memory.hold(umem);
        key
    }

    #[test]
    fn a_key_leads_to_its_bytes() {
        let (mut memory, umem) = memory(Box::leak(Box::new([0; 32])));
        let key = key(&mut memory, umem);
        memory.translate(key, USER, 0x8004, 2, Access::REMOTE_WRITE).unwrap().copy_from(&[1, 2]);
        let mut all = [0; 32];
        memory.umem_window(umem, 0, 32, false).unwrap().read(&mut all);
        assert_eq!(all[11..15], [0, 1, 2, 0]);
        assert!(matches!(
            memory.translate(key, USER, 0x8010, 1, Access::LOCAL_READ),
            Err(TranslationError::Range { .. })
        ));
    }

    #[test]
    fn an_empty_request_needs_no_key() {
        let memory = Memory::new(0);
        assert!(memory.translate(0x1234, USER, u64::MAX, 0, Access::REMOTE_WRITE).is_ok());
        assert!(memory.translate(0x1234, USER, 0, 1, Access::REMOTE_WRITE).is_err());
    }

    #[test]
    fn memory_in_use_stays() {
        let (mut memory, umem) = memory(Box::leak(Box::new([0; 32])));
        let key = key(&mut memory, umem);
        assert_eq!(memory.deregister(umem), Err(UmemError::Busy { id: umem, users: 1 }));
        memory.mkeys.remove(key >> 8);
        memory.release(umem);
        assert_eq!(memory.deregister(umem), Ok(()));
        assert_eq!(memory.deregister(umem), Err(UmemError::Unknown { id: umem }));
        assert!(memory.translate(key, USER, 0x8000, 1, Access::LOCAL_READ).is_err());
    }

    #[test]
    fn impossible_ranges_are_refused() {
        let mut memory = Memory::new(0);
        for length in [0, usize::MAX, limits::UMEM_BYTES + 1] {
            // SAFETY: refused before any access.
            let refused =
                unsafe { memory.register(NonNull::dangling(), length, UmemAccess::empty(), false) };
            assert!(matches!(refused, Err(UmemError::BadRange { .. })), "{length}");
        }
        assert_eq!(memory.umem_count(), 0);
    }

    #[test]
    fn queues_get_windows_inside_only() {
        let (memory, umem) = memory(Box::leak(Box::new([0; 32])));
        assert_eq!(memory.umem_window(umem, 0, 32, true).unwrap().len(), 32);
        for (offset, length) in [(0, 33), (32, 1), (u64::MAX, 1), (1, u64::MAX)] {
            assert_eq!(memory.umem_window(umem, offset, length, true).err(), Some(Refused::Bounds));
        }
        assert_eq!(memory.umem_window(umem + 1, 0, 1, true).err(), Some(Refused::Unknown));
    }
}
