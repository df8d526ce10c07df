//! The regions of a process that others may read and write through the kernel, as a table in shared memory.
//!
//! The kernel carries out process_vm_readv(2) and process_vm_writev(2) on any address, so the owner and
//! the initiator of a copy have to agree on what may be reached. The owner keeps an [`Entry`] per region in
//! a memfd that it maps. An initiator maps the same memfd and pins the entry around each copy. The owner
//! gives memory back only after the entry has ended and no pin is left, so a key never reaches memory that
//! was freed. Address, length and rights come from the entry; a key holds only where the entry is and a
//! random token.
#![allow(unsafe_code, reason = "maps a file, and promises about memory are made here")]

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
/// Size of a table is sealed, so that a mapping of it cannot lose its end.
pub(crate) const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// Entries of a table. Memory is taken for those in use.
const CAPACITY: u32 = 1 << 18;
/// Entries for which memory is taken at once.
const GROWTH: u32 = 1024;
/// Lines before the first entry: what the table is, and the word that the guards of puts write to.
const FRONT: usize = 2;
/// Bytes of a table.
pub(crate) const BYTES: usize = (CAPACITY as usize + FRONT) * LINE;
/// Offset of the word that [`super::process`] writes to in each put.
pub(crate) const SCRATCH: usize = LINE;
/// Offset of the secret.
pub(crate) const SECRET_AT: usize = 2 * size_of::<u64>();

/// First word: what this is, and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"bwcma\0\0\x01");

// Words of the first line.
const IS: usize = 0;
const PROCESS: usize = 1;
const SECRET: [usize; 2] = [2, 3];
const GUARD: usize = 4;
const READY: usize = 5;

// Words of an entry.
/// Bit 0: the entry may be used. Above it, the number of pins.
const STATE: usize = 0;
const ADDRESS: usize = 1;
const LENGTH: usize = 2;
const RIGHTS: usize = 3;
const TOKEN: [usize; 2] = [4, 5];

const LIVE: u64 = 1;
const PIN: u64 = 2;

/// What a peer needs to reach a region: which entry of the owner's table it has, and the entry's token.
/// Any value is safe to use; one that the owner did not make is refused.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RegionKey {
    /// The entry.
    pub index: u32,
    /// 128 random bits, made when the region was published.
    pub token: u128,
}

/// Without the token, which is a secret.
impl fmt::Debug for RegionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionKey").field("index", &self.index).finish_non_exhaustive()
    }
}

/// Why a table could not be made, or a region not be published in it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TableError {
    /// Every entry is in use.
    #[error("all {CAPACITY} entries of the region table are in use: drop memory, or open another domain")]
    Full,
    /// The limit of file sizes is below the size of a table. Exceeding it would raise SIGXFSZ.
    #[error(
        "the region table needs {BYTES} bytes and the file size limit (RLIMIT_FSIZE) is {limit}: raise it (ulimit -f)"
    )]
    FileSize {
        /// The limit in bytes.
        limit: u64,
    },
    /// The table belongs to the process that this one was forked from.
    #[error("the region table belongs to process {owner}, which forked this one: open a domain here")]
    Forked {
        /// Number of the parent.
        owner: u32,
    },
    /// A peer's operation was still in progress after the time allowed for it.
    #[error("a peer that is stopped or was killed still has an operation in progress on the memory")]
    Pinned,
    /// A system call failed.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

fn system(call: &'static str, source: impl Into<io::Error>) -> TableError {
    TableError::System { call, source: source.into() }
}

fn random() -> Result<u128, TableError> {
    let mut bytes = [0u8; 16];
    let get = || getrandom(&mut bytes[..], GetRandomFlags::empty());
    // The kernel gives up to 256 bytes at once.
    rustix::io::retry_on_intr(get).map_err(|errno| system("getrandom", errno))?;
    Ok(u128::from_ne_bytes(bytes))
}

fn halves(number: u128) -> [u64; 2] {
    [(number >> 64) as u64, number as u64]
}

fn whole([high, low]: [u64; 2]) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

/// A mapping of a table, or of the first page of one.
pub(crate) struct Mapping {
    start: NonNull<c_void>,
    length: usize,
}

// SAFETY: the mapping is accessed through atomics only, and unmapped once.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the file's first `length` bytes, at `hint` if nothing is there.
    pub(crate) fn new(
        file: BorrowedFd<'_>,
        length: usize,
        hint: usize,
        protection: libc::c_int,
    ) -> io::Result<Self> {
        // SAFETY: makes a new mapping; without MAP_FIXED none that exists is replaced.
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
        // SAFETY: this value's own mapping, to which no reference is left.
        unsafe { libc::munmap(self.start.as_ptr(), self.length) };
    }
}

/// The lines of a mapped table.
#[derive(Debug, Clone)]
pub(crate) struct View(Lines);

/// What an entry says, read while it is pinned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) rights: u32,
}

/// Keeps an entry's memory from being given back.
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
    /// The table in a mapping of [`BYTES`].
    pub(crate) fn of(mapping: Mapping) -> Self {
        let start = mapping.start.cast();
        // SAFETY: a mapping of this many lines, aligned to a page, that lives as long as the `Arc`. It is
        // accessed as atomics only, here and in the other processes.
        Self(unsafe { Lines::over(start, mapping.length / LINE, Arc::new(mapping)) })
    }

    /// A table of this process alone, with memory for so many entries.
    #[cfg(loom)]
    pub(crate) fn private(entries: u32) -> Self {
        let lines = Lines::private(FRONT + entries as usize);
        lines.line(0).store(READY, entries.into());
        Self(lines)
    }

    /// Where the owner says it has the table mapped.
    pub(crate) fn guard(&self) -> u64 {
        self.0.line(0).load(GUARD)
    }

    /// True for the table that process `number` made with `secret`.
    pub(crate) fn is_of(&self, number: u32, secret: u128) -> bool {
        let front = self.0.line(0);
        let found = SECRET.map(|word| front.load(word));
        front.load(IS) == MAGIC && front.load(PROCESS) == number.into() && whole(found) == secret
    }

    /// The entry, if memory was taken for it.
    #[inline]
    fn entry(&self, index: u32) -> Option<&Line> {
        let ready = self.0.line(0).word(READY).load(Ordering::Acquire);
        let exists = u64::from(index) < ready && index < CAPACITY;
        exists.then(|| self.0.line(FRONT + index as usize))
    }

    /// Pins the key's entry. `None` if it has ended or the key is not the owner's.
    #[inline]
    pub(crate) fn pin(&self, key: RegionKey) -> Option<(Pin<'_>, Facts)> {
        let line = self.entry(key.index)?;
        // Acquire: what the owner wrote before it made the entry live is visible. One word has the state and
        // the pins, so the owner either sees this pin or has ended the entry before.
        let state = line.word(STATE).fetch_add(PIN, Ordering::Acquire);
        let pin = Pin(line);
        // The owner changes these words only while no pin is left.
        let token = whole(TOKEN.map(|word| line.load(word)));
        let facts = Facts {
            address: line.load(ADDRESS),
            length: line.load(LENGTH),
            rights: line.load(RIGHTS) as u32,
        };
        (state & LIVE != 0 && token == key.token).then_some((pin, facts))
    }

    pub(crate) fn publish(&self, index: u32, token: u128, facts: Facts) {
        let Some(line) = self.entry(index) else { return };
        line.store(ADDRESS, facts.address);
        line.store(LENGTH, facts.length);
        line.store(RIGHTS, facts.rights.into());
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

    /// Ends the entry. True if no pin is left; what was done under pins happened before.
    pub(crate) fn reclaim(&self, index: u32) -> bool {
        self.withdraw(index);
        self.entry(index).is_none_or(|line| line.word(STATE).load(Ordering::Acquire) < PIN)
    }
}

/// The table of this process's regions. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Table(Arc<Inner>);

struct Inner {
    view: View,
    /// A second, read-only mapping. Together with the writable one it tells peers that this code made the
    /// table: a [`Segment`](crate::Segment), which safe code can fill at will, is mapped writable only.
    _proof: Mapping,
    file: OwnedFd,
    secret: u128,
    owner: u32,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    /// Entries below were in use at some time.
    used: u32,
    /// Entries below have memory.
    ready: u32,
    free: Vec<u32>,
}

/// How peers find a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TableAddress {
    /// The owner's process number.
    pub process: i32,
    /// The owner's descriptor of the table.
    pub descriptor: u32,
    /// A random number that the table holds.
    pub secret: u128,
}

impl Table {
    /// Makes a table without regions.
    ///
    /// # Errors
    /// [`TableError::FileSize`], [`TableError::System`]
    pub fn new() -> Result<Self, TableError> {
        if let Some(limit) = getrlimit(Resource::Fsize).current.filter(|limit| *limit < BYTES as u64) {
            return Err(TableError::FileSize { limit });
        }
        let file = rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|errno| system("memfd_create", errno))?;
        rustix::fs::ftruncate(&file, BYTES as u64).map_err(|errno| system("ftruncate", errno))?;
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(|errno| system("fcntl(F_ADD_SEALS)", errno))?;
        let secret = random()?;
        let map = |length, hint, protection| {
            Mapping::new(file.as_fd(), length, hint, protection).map_err(|source| system("mmap", source))
        };
        let proof = map(LINE, 0, libc::PROT_READ)?;
        let view = View::of(map(BYTES, random_place()?, libc::PROT_READ | libc::PROT_WRITE)?);
        let owner = std::process::id();
        let table = Inner { view, _proof: proof, file, secret, owner, slots: Mutex::new(Slots::default()) };
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

    /// How peers find it.
    pub fn address(&self) -> TableAddress {
        TableAddress {
            process: self.0.owner as i32,
            descriptor: self.0.file.as_raw_fd() as u32,
            secret: self.0.secret,
        }
    }

    /// Lets peers that have the entry's key access `length` bytes at `address` as far as `rights` allow. The
    /// bits of `rights` are the caller's; [`Process::pin`](crate::Process::pin) asks for some of them.
    ///
    /// # Errors
    /// [`TableError::Full`], [`TableError::Forked`], [`TableError::System`]
    ///
    /// # Safety
    /// The bytes stay mapped, and tolerate the accesses of peers, until [`Entry::reclaim`] has returned true.
    pub unsafe fn publish(&self, address: u64, length: u64, rights: u32) -> Result<Entry, TableError> {
        if std::process::id() != self.0.owner {
            return Err(TableError::Forked { owner: self.0.owner });
        }
        let token = random()?;
        let index = self.0.take()?;
        self.0.view.publish(index, token, Facts { address, length, rights });
        Ok(Entry { table: self.clone(), key: RegionKey { index, token }, is_free: false })
    }

    /// The key of a live entry.
    pub fn key(&self, index: u32) -> Option<RegionKey> {
        let line = self.0.view.entry(index)?;
        Some(RegionKey { index, token: whole(TOKEN.map(|word| line.load(word))) })
    }

    /// Pins an entry for an access by the owner itself. `None` if it has ended.
    pub fn pin(&self, key: RegionKey) -> Option<Pin<'_>> {
        self.0.view.pin(key).map(|(pin, _)| pin)
    }
}

/// An address where programs are not likely to have anything mapped, so that the guard of an operation fails
/// after the process has executed another program, even if its addresses are not randomized.
fn random_place() -> Result<usize, TableError> {
    Ok((1 << 32) + ((random()? as usize % (1 << 33)) << 12))
}

impl Inner {
    fn slots(&self) -> MutexGuard<'_, Slots> {
        // A panic between two changes of it leaves at worst an entry out of use.
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

    /// Takes memory for more entries, so that no access to one raises SIGBUS for want of it.
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

/// A region that peers can reach. Dropping it ends that, without waiting for what is in progress.
#[derive(Debug)]
pub struct Entry {
    table: Table,
    key: RegionKey,
    is_free: bool,
}

impl Entry {
    /// What peers need to reach the region.
    pub fn key(&self) -> RegionKey {
        self.key
    }

    /// Ends the entry. Returns true once no operation is in progress on the region, and none can begin; the
    /// memory is the caller's again. A process that is stopped or was killed in an operation keeps it false.
    ///
    /// In a forked child it does nothing and returns true: the child's memory is a copy that peers do not reach.
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
