//! A table in shared memory of the regions that other processes may read and write through the
//! kernel.
//!
//! The kernel carries out process_vm_readv(2) and process_vm_writev(2) on any address, so the owner
//! of the memory and the initiator of a copy have to agree on what may be accessed. The owner keeps
//! an [`Entry`] per region in a memfd that it maps. An initiator maps the same memfd and pins the
//! entry around each copy. The owner frees the memory only after it has withdrawn the entry and no
//! pin is left, so a key never gives access to memory that was freed. Address, length and rights
//! come from the entry; a key contains only the entry's index and a random token.
#![allow(unsafe_code, reason = "maps a file, and `publish` has a contract about memory")]

use std::ffi::c_void;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::process::{Resource, getrlimit};
use rustix::rand::{GetRandomFlags, getrandom};
use thiserror::Error;

use crate::atomic::Ordering;
use crate::line::{LINE, Line, Lines};

/// Name of the memfd in `/proc/PID/maps` and `/proc/PID/fd`.
pub(crate) const NAME: &str = "barewire-cma";
/// The size of a table is sealed, so that a peer cannot truncate a mapped table.
pub(crate) const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// Capacity of a table in entries. Memory is allocated only for entries in use.
const CAPACITY: u32 = 1 << 18;
/// Entries for which memory is allocated at a time.
const GROWTH: u32 = 1024;
/// Lines before the first entry: the header, and the line that the guard of each put writes to.
const FRONT: usize = 2;
/// Bytes of a table.
pub(crate) const BYTES: usize = (CAPACITY as usize + FRONT) * LINE;
/// Offset of the word that [`super::process`] writes to in each put.
pub(crate) const SCRATCH: usize = LINE;
/// Offset of the secret.
pub(crate) const SECRET_AT: usize = 2 * size_of::<u64>();

/// The first word: a magic value and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"bwcma\0\0\x01");

// Indices of the words of the header.
const IS: usize = 0;
const PROCESS: usize = 1;
const SECRET: [usize; 2] = [2, 3];
const GUARD: usize = 4;
const READY: usize = 5;

// Indices of the words of an entry.
/// Bit 0 is set while the entry may be used. The other bits count the pins.
const STATE: usize = 0;
const ADDRESS: usize = 1;
const LENGTH: usize = 2;
const RIGHTS: usize = 3;
const TOKEN: [usize; 2] = [4, 5];

const LIVE: u64 = 1;
const PIN: u64 = 2;

/// What a peer needs to access a region: the index of the entry in the owner's table, and the
/// entry's token. Any value is safe to use; a key that the owner did not issue is refused.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RegionKey {
    /// Index of the entry.
    pub index: u32,
    /// 128 random bits, created when the region was published.
    pub token: u128,
}

/// Omits the token, which is secret.
impl fmt::Debug for RegionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionKey").field("index", &self.index).finish_non_exhaustive()
    }
}

/// Why a table could not be created, or a region could not be published.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TableError {
    /// Every entry is in use.
    #[error(
        "all {CAPACITY} entries of the region table are in use: drop registered memory, or open another domain"
    )]
    Full,
    /// The file size limit is below the size of a table. Exceeding it would raise SIGXFSZ.
    #[error(
        "the region table needs {BYTES} bytes and the file size limit (RLIMIT_FSIZE) is {limit}: raise it (ulimit -f)"
    )]
    FileSize {
        /// The limit in bytes.
        limit: u64,
    },
    /// The table was created before a fork, by the parent of this process.
    #[error(
        "the region table belongs to process {owner}, from which this one was forked: open a domain in this process"
    )]
    Forked {
        /// Process id of the parent.
        owner: u32,
    },
    /// A peer's operation was still in progress when the timeout expired.
    #[error(
        "a peer that is stopped or was killed still has an operation in progress on the memory"
    )]
    Pinned,
    /// A system call failed.
    #[error("{call}: {source}")]
    System {
        /// The system call.
        call: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

fn system(call: &'static str, source: impl Into<io::Error>) -> TableError {
    TableError::System { call, source: source.into() }
}

fn random() -> Result<u128, TableError> {
    let mut bytes = [0u8; 16];
    let get = || getrandom(&mut bytes[..], GetRandomFlags::empty());
    // getrandom(2) returns up to 256 bytes in one call.
    rustix::io::retry_on_intr(get).map_err(|errno| system("getrandom", errno))?;
    Ok(u128::from_ne_bytes(bytes))
}

fn halves(number: u128) -> [u64; 2] {
    [(number >> 64) as u64, number as u64]
}

fn whole([high, low]: [u64; 2]) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

/// A shared mapping of a table, or of its first page.
pub(crate) struct Mapping {
    start: NonNull<c_void>,
    length: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is unmapped once, when the value
// is dropped.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives access to the mapping only through atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `length` bytes of the file, at address `hint` if nothing is mapped there.
    pub(crate) fn new(
        file: BorrowedFd<'_>,
        length: usize,
        hint: usize,
        protection: libc::c_int,
    ) -> io::Result<Self> {
        // SAFETY: without MAP_FIXED, mmap(2) creates a new mapping and never replaces an existing
        // one.
        let start = unsafe {
            let hint = std::ptr::without_provenance_mut(hint);
            libc::mmap(hint, length, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        match NonNull::new(start) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED => Ok(Self { start, length }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and all references to it end before the value is
        // dropped.
        unsafe { libc::munmap(self.start.as_ptr(), self.length) };
    }
}

/// The lines of a mapped table.
#[derive(Debug, Clone)]
pub(crate) struct View(Lines);

/// The contents of an entry, read while it is pinned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RegionInfo {
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) rights: u32,
}

/// A pin: the owner does not free the entry's memory while it exists.
pub struct Pin<'a>(&'a Line);

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.0.word(STATE).fetch_sub(PIN, Ordering::Release);
    }
}

impl fmt::Debug for Pin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin").finish_non_exhaustive()
    }
}

impl View {
    /// The table in a mapping of [`BYTES`] bytes.
    pub(crate) fn of(mapping: Mapping) -> Self {
        let start = mapping.start.cast();
        // SAFETY: the mapping has `length` bytes, is aligned to a page, and lives as long as the
        // `Arc`. All processes access it through atomics only.
        Self(unsafe { Lines::over(start, mapping.length / LINE, Arc::new(mapping)) })
    }

    /// A table in private memory with `entries` entries.
    #[cfg(loom)]
    pub(crate) fn private(entries: u32) -> Self {
        let lines = Lines::private(FRONT + entries as usize);
        lines.line(0).store(READY, entries.into());
        Self(lines)
    }

    /// The address of the table in the owner's address space, as the owner states it.
    pub(crate) fn guard(&self) -> u64 {
        self.0.line(0).load(GUARD)
    }

    /// Returns true if process `number` created the table with `secret`.
    pub(crate) fn is_of(&self, number: u32, secret: u128) -> bool {
        let front = self.0.line(0);
        let found = SECRET.map(|word| front.load(word));
        front.load(IS) == MAGIC && front.load(PROCESS) == number.into() && whole(found) == secret
    }

    /// The entry at `index`, if memory is allocated for it.
    #[inline]
    fn entry(&self, index: u32) -> Option<&Line> {
        let ready = self.0.line(0).word(READY).load(Ordering::Acquire);
        let exists = u64::from(index) < ready && index < CAPACITY;
        exists.then(|| self.0.line(FRONT + index as usize))
    }

    /// Pins the key's entry. Returns `None` if the entry was withdrawn or the key is not valid.
    #[inline]
    pub(crate) fn pin(&self, key: RegionKey) -> Option<(Pin<'_>, RegionInfo)> {
        let line = self.entry(key.index)?;
        // Acquire makes the contents visible that the owner wrote before it set the entry live.
        // State and pins share one word, so either the owner sees this pin, or this process sees
        // that the entry was withdrawn.
        let state = line.word(STATE).fetch_add(PIN, Ordering::Acquire);
        let pin = Pin(line);
        // The owner changes these words only while no pin exists.
        let token = whole(TOKEN.map(|word| line.load(word)));
        let info = RegionInfo {
            address: line.load(ADDRESS),
            length: line.load(LENGTH),
            rights: line.load(RIGHTS) as u32,
        };
        (state & LIVE != 0 && token == key.token).then_some((pin, info))
    }

    pub(crate) fn publish(&self, index: u32, token: u128, info: RegionInfo) {
        let Some(line) = self.entry(index) else { return };
        line.store(ADDRESS, info.address);
        line.store(LENGTH, info.length);
        line.store(RIGHTS, info.rights.into());
        for (word, half) in TOKEN.into_iter().zip(halves(token)) {
            line.store(word, half);
        }
        line.word(STATE).fetch_or(LIVE, Ordering::Release);
    }

    fn withdraw(&self, index: u32) {
        if let Some(line) = self.entry(index) {
            line.word(STATE).fetch_and(!LIVE, Ordering::AcqRel);
        }
    }

    /// Withdraws the entry. Returns true if no pin is left; all accesses under earlier pins
    /// have then finished.
    pub(crate) fn reclaim(&self, index: u32) -> bool {
        self.withdraw(index);
        self.entry(index).is_none_or(|line| line.word(STATE).load(Ordering::Acquire) < PIN)
    }
}

/// The table of this process's regions. Cloning returns another handle to the same table.
#[derive(Clone)]
pub struct Table(Arc<Inner>);

struct Inner {
    view: View,
    /// A second, read-only mapping. Together with the writable one it proves to peers that this
    /// code created the table: safe code can fill a [`Segment`](crate::Segment) with any bytes, but
    /// it is mapped writable only.
    _proof: Mapping,
    file: OwnedFd,
    secret: u128,
    owner: u32,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    /// Entries from this index on have never been used.
    used: u32,
    /// Entries below this index have memory.
    ready: u32,
    free: Vec<u32>,
}

/// What peers need to find a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TableAddress {
    /// The owner's process id.
    pub process: i32,
    /// The owner's file descriptor of the table.
    pub descriptor: u32,
    /// The random number in the table's header.
    pub secret: u128,
}

impl Table {
    /// Creates an empty table.
    pub fn new() -> Result<Self, TableError> {
        if let Some(limit) =
            getrlimit(Resource::Fsize).current.filter(|limit| *limit < BYTES as u64)
        {
            return Err(TableError::FileSize { limit });
        }
        let file = rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|errno| system("memfd_create", errno))?;
        rustix::fs::ftruncate(&file, BYTES as u64).map_err(|errno| system("ftruncate", errno))?;
        rustix::fs::fcntl_add_seals(&file, SEALS)
            .map_err(|errno| system("fcntl(F_ADD_SEALS)", errno))?;
        let secret = random()?;
        let map = |length, hint, protection| {
            Mapping::new(file.as_fd(), length, hint, protection)
                .map_err(|source| system("mmap", source))
        };
        let proof = map(LINE, 0, libc::PROT_READ)?;
        let view = View::of(map(BYTES, random_place()?, libc::PROT_READ | libc::PROT_WRITE)?);
        let owner = std::process::id();
        let table =
            Inner { view, _proof: proof, file, secret, owner, slots: Mutex::new(Slots::default()) };
        table.grow(&mut table.slots())?;
        let front = table.view.0.line(0);
        for (word, half) in SECRET.into_iter().zip(halves(secret)) {
            front.store(word, half);
        }
        front.store(PROCESS, owner.into());
        front.store(GUARD, std::ptr::from_ref(front).addr() as u64);
        front.store(IS, MAGIC);
        Ok(Self(Arc::new(table)))
    }

    /// The address by which peers find the table.
    pub fn address(&self) -> TableAddress {
        TableAddress {
            process: self.0.owner as i32,
            descriptor: self.0.file.as_raw_fd() as u32,
            secret: self.0.secret,
        }
    }

    /// Allows peers that have the entry's key to access `length` bytes at `address` with `rights`.
    /// The meaning of the bits of `rights` is up to the caller;
    /// [`Process::pin`](crate::Process::pin) checks that all requested bits are set.
    ///
    /// # Errors
    /// [`TableError::Full`], [`TableError::Forked`] or [`TableError::System`].
    ///
    /// # Safety
    /// The bytes must stay mapped, and accesses by peers at any time must be sound, until
    /// [`Entry::reclaim`] has returned true.
    pub unsafe fn publish(
        &self,
        address: u64,
        length: u64,
        rights: u32,
    ) -> Result<Entry, TableError> {
        if std::process::id() != self.0.owner {
            return Err(TableError::Forked { owner: self.0.owner });
        }
        let token = random()?;
        let index = self.0.take()?;
        self.0.view.publish(index, token, RegionInfo { address, length, rights });
        Ok(Entry { table: self.clone(), key: RegionKey { index, token }, is_free: false })
    }

    /// The key of the entry at `index`, which must be live.
    pub fn key(&self, index: u32) -> Option<RegionKey> {
        let line = self.0.view.entry(index)?;
        Some(RegionKey { index, token: whole(TOKEN.map(|word| line.load(word))) })
    }

    /// Pins an entry for an access by the owner itself. Returns `None` if it was withdrawn.
    pub fn pin(&self, key: RegionKey) -> Option<Pin<'_>> {
        self.0.view.pin(key).map(|(pin, _)| pin)
    }
}

/// A random address at which programs rarely have a mapping. The guard of an operation then fails
/// after the process has executed another program, even without address space randomization.
fn random_place() -> Result<usize, TableError> {
    Ok((1 << 32) + ((random()? as usize % (1 << 33)) << 12))
}

impl Inner {
    fn slots(&self) -> MutexGuard<'_, Slots> {
        // After a panic at worst one entry is lost, so the lock may be used again.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Result<u32, TableError> {
        let mut slots = self.slots();
        if let Some(index) = slots.free.pop() {
            return Ok(index);
        }
        if slots.used == CAPACITY {
            return Err(TableError::Full);
        }
        if slots.used == slots.ready {
            self.grow(&mut slots)?;
        }
        slots.used += 1;
        Ok(slots.used - 1)
    }

    /// Allocates memory for more entries, so that no access to them can raise SIGBUS.
    fn grow(&self, slots: &mut Slots) -> Result<(), TableError> {
        let ready = (slots.ready + GROWTH).min(CAPACITY);
        let end = (ready as usize + FRONT) * LINE;
        let allocate = || rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, end as u64);
        rustix::io::retry_on_intr(allocate).map_err(|errno| system("fallocate", errno))?;
        slots.ready = ready;
        self.view.0.line(0).word(READY).store(ready.into(), Ordering::Release);
        Ok(())
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("file", &self.0.file).finish_non_exhaustive()
    }
}

/// A region that peers can access. Dropping it withdraws it without waiting for operations in
/// progress.
#[derive(Debug)]
pub struct Entry {
    table: Table,
    key: RegionKey,
    is_free: bool,
}

impl Entry {
    /// The key that peers need to access the region.
    pub fn key(&self) -> RegionKey {
        self.key
    }

    /// Withdraws the region. Returns true once no operation on it is in progress; the caller may
    /// then free the memory. Keeps returning false if a process was stopped or killed during an
    /// operation.
    ///
    /// In a forked child it does nothing and returns true: peers do not access the child's copy of
    /// the memory.
    pub fn reclaim(&mut self) -> bool {
        let table = &*self.table.0;
        if self.is_free || std::process::id() != table.owner {
            return true;
        }
        self.is_free = table.view.reclaim(self.key.index);
        if self.is_free {
            table.slots().free.push(self.key.index);
        }
        self.is_free
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let table = &*self.table.0;
        if !self.is_free && std::process::id() == table.owner {
            table.view.withdraw(self.key.index);
        }
    }
}
