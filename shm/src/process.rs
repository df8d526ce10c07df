//! Access to the memory of another process by system calls that copy once (process_vm_readv(2),
//! "cross memory attach").
//!
//! The other process's [`Table`](crate::Table) lists the memory that may be accessed. In the same
//! system call, each copy first accesses a guard: a few bytes in the other process's mapping of its
//! table. The kernel resolves the process id once per call, so a successful access to the guard
//! proves that the rest of the call accesses the process that created the table, and not a program
//! that it has executed since or a later process with the same id.
#![allow(unsafe_code, reason = "the system calls take raw addresses of this process")]

use std::cell::Cell;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use thiserror::Error;

use crate::table::{self, Mapping, Pin, RegionKey, TableAddress, View};

/// The maximum number of local ranges per call.
pub const MAX_RANGES: usize = 16;

/// A range of this process's memory.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub length: usize,
}

/// Why another process's memory cannot be accessed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The process has ended.
    #[error("process {process} has ended")]
    Ended {
        /// Its process id.
        process: i32,
    },
    /// The kernel denies the access.
    #[error(
        "the kernel does not let this process access the memory of process {process}: {reason}"
    )]
    Denied {
        /// The process id of the other process.
        process: i32,
        /// The likely reason, and a remedy.
        reason: String,
    },
    /// The process id belongs to a process that did not create the address.
    #[error("process {process} did not create this address: {reason}")]
    Other {
        /// The process id.
        process: i32,
        /// How this may have happened.
        reason: &'static str,
    },
    /// The memory is not mapped, or not writable.
    #[error("the memory of process {process} is not mapped there, or is read-only")]
    Memory {
        /// The process id of the other process.
        process: i32,
    },
    /// A system call failed.
    #[error("{call}: {source}")]
    System {
        /// The system call.
        call: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The inode number of this process's pid namespace; 0 if it cannot be read.
pub fn pid_namespace() -> u64 {
    thread_local! {
        /// The process that read the number. A process stays in one namespace; its child may be
        /// in another.
        static KNOWN: Cell<(u32, u64)> = const { Cell::new((0, 0)) };
    }
    let process = std::process::id();
    KNOWN.with(|known| {
        if known.get().0 != process {
            let metadata = fs::metadata("/proc/self/ns/pid");
            known.set((process, metadata.map_or(0, |metadata| metadata.ino())));
        }
        known.get().1
    })
}

/// The value of Yama's ptrace_scope, if the kernel has Yama.
fn ptrace_scope() -> Option<u8> {
    fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?.trim().parse().ok()
}

/// The number of [`Admission`]s.
static ADMISSIONS: Mutex<usize> = Mutex::new(0);

/// Peers are admitted as long as one of these exists, see [`admit_peers`].
#[derive(Debug)]
#[must_use]
pub struct Admission {
    /// The process that created this value. A forked child does not inherit the setting.
    owner: u32,
}

/// Admits all processes of this user where Yama restricts access to parent processes (ptrace_scope
/// 1), as for a debugger. The setting ends when the last [`Admission`] is dropped. The kernel keeps
/// one setting per process, so this overrides the program's own prctl(PR_SET_PTRACER).
pub fn admit_peers() -> Admission {
    let mut count = ADMISSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    if *count == 0 {
        set_ptracer(libc::PR_SET_PTRACER_ANY);
    }
    *count += 1;
    Admission { owner: std::process::id() }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if self.owner != std::process::id() {
            return;
        }
        let mut count = ADMISSIONS.lock().unwrap_or_else(PoisonError::into_inner);
        *count -= 1;
        if *count == 0 {
            set_ptracer(0);
        }
    }
}

fn set_ptracer(value: libc::c_ulong) {
    if ptrace_scope() == Some(1) {
        // SAFETY: prctl(PR_SET_PTRACER) takes integers and accesses no memory. On failure, peers
        // report the reason when they connect.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, value, 0, 0, 0) };
    }
}

/// Why a key gives no access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PinError {
    /// The owner withdrew the region, or never issued the key.
    #[error("the region of this key was freed")]
    Freed,
    /// The range is not inside the region.
    #[error("the range is not inside the region of this key")]
    Range,
    /// The owner does not allow the access.
    #[error("the region of this key does not allow this access")]
    Rights,
}

/// Another process whose memory can be accessed.
#[derive(Debug)]
pub struct Process {
    number: i32,
    secret: u128,
    table: View,
    /// The address of the table in the owner's address space.
    guard: u64,
}

impl Process {
    /// Opens the process that created the table at `address`, and verifies that the process id
    /// still belongs to it.
    ///
    /// # Errors
    /// Any [`ProcessError`].
    pub fn open(address: TableAddress) -> Result<Self, ProcessError> {
        let TableAddress { process: number, descriptor, secret } = address;
        let other = |reason| ProcessError::Other { process: number, reason };
        let proc = Path::new("/proc").join(number.to_string());
        let link = proc.join("fd").join(descriptor.to_string());
        let denied = |call| move |error| refused(number, call, error);
        // Check the name first: opening another kind of file could have side effects.
        let target = fs::read_link(&link).map_err(denied("readlink(/proc/PID/fd)"))?;
        if target.to_str() != Some(&format!("/memfd:{} (deleted)", table::NAME)) {
            return Err(other(OTHER));
        }
        let file = File::options().read(true).write(true).open(&link);
        let file = file.map_err(denied("open(/proc/PID/fd)"))?;
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| other(FORGED))?;
        let metadata = file.metadata().map_err(denied("fstat"))?;
        // The seals are checked before the size, because a sealed size cannot change after the
        // check.
        if !seals.contains(table::SEALS) || metadata.len() != table::BYTES as u64 {
            return Err(other(FORGED));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let mapping =
            Mapping::new(file.as_fd(), table::BYTES, 0, protection).map_err(denied("mmap"))?;
        let table = View::of(mapping);
        // A forked child inherits its parent's table, which does not describe the child's memory.
        if !table.is_of(number as u32, secret) {
            return Err(other(OTHER));
        }
        // Safe code can create a file with these contents, but only `Table` creates both mappings.
        let guard = table.guard();
        let maps = fs::read_to_string(proc.join("maps")).map_err(denied("read(/proc/PID/maps)"))?;
        let (mut writable, mut proof) = (false, false);
        for (start, permissions) in maps.lines().filter_map(|line| mapped(line, &metadata)) {
            writable |= start == guard && permissions == "rw-s";
            proof |= permissions == "r--s";
        }
        if !(writable && proof) {
            return Err(other(FORGED));
        }
        let process = Self { number, secret, table, guard };
        process.probe()?;
        Ok(process)
    }

    /// The process id.
    pub fn number(&self) -> i32 {
        self.number
    }

    /// Checks that the process exists and still runs the program that created the table.
    ///
    /// # Errors
    /// [`ProcessError::Ended`] or [`ProcessError::Other`] if it does not, or another
    /// [`ProcessError`].
    pub fn probe(&self) -> Result<(), ProcessError> {
        // SAFETY: `local` is empty, so no memory of this process except the guard's buffer is
        // accessed.
        unsafe { self.read(&[], 0, 0) }.map(drop)
    }

    /// Pins the key's region for one operation with access `rights` on `length` bytes at address
    /// `remote`. The owner does not free the memory until the pin is dropped.
    ///
    /// # Errors
    /// [`PinError`], if the key, the range or the rights are not valid.
    #[inline]
    pub fn pin(
        &self,
        key: RegionKey,
        remote: u64,
        length: usize,
        rights: u32,
    ) -> Result<Pinned<'_>, PinError> {
        let (pin, info) = self.table.pin(key).ok_or(PinError::Freed)?;
        if info.rights & rights != rights {
            return Err(PinError::Rights);
        }
        match remote.checked_sub(info.address) {
            Some(offset) if offset <= info.length && length as u64 <= info.length - offset => {
                Ok(Pinned { process: self, remote, length, _pin: pin })
            }
            _ => Err(PinError::Range),
        }
    }

    unsafe fn read(
        &self,
        local: &[Range],
        remote: u64,
        most: usize,
    ) -> Result<usize, ProcessError> {
        let mut found = [0u8; size_of::<u128>()];
        let guard = (self.guard + table::SECRET_AT as u64, &mut found[..]);
        // SAFETY: `found` holds the guard's bytes, and the caller guarantees that the ranges in
        // `local` are mapped and may be written, which is what process_vm_readv(2) does with them.
        let copied = unsafe {
            self.copy(libc::process_vm_readv, "process_vm_readv", guard, local, remote, most)
        }?;
        // The table stores the secret as two words.
        let (high, low) = found.split_at(size_of::<u64>());
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        if u128::from(word(high)) << 64 | u128::from(word(low)) != self.secret {
            return Err(ProcessError::Other { process: self.number, reason: REPLACED });
        }
        Ok(copied)
    }

    unsafe fn write(
        &self,
        local: &[Range],
        remote: u64,
        most: usize,
    ) -> Result<usize, ProcessError> {
        let guard = (self.guard + table::SCRATCH as u64, &mut [0u8][..]);
        // SAFETY: the guard's buffer is one byte of this frame, and the caller guarantees that the
        // ranges in `local` are mapped; process_vm_writev(2) only reads them.
        unsafe {
            self.copy(libc::process_vm_writev, "process_vm_writev", guard, local, remote, most)
        }
    }

    /// Copies the guard's bytes and then the ranges in one system call.
    unsafe fn copy(
        &self,
        run: Copy,
        call: &'static str,
        (at, guard): (u64, &mut [u8]),
        local: &[Range],
        remote: u64,
        most: usize,
    ) -> Result<usize, ProcessError> {
        let vector = |address: u64, length| libc::iovec {
            iov_base: address as *mut libc::c_void,
            iov_len: length,
        };
        let mut local_iov = [vector(0, 0); MAX_RANGES + 1];
        local_iov[0] = libc::iovec { iov_base: guard.as_mut_ptr().cast(), iov_len: guard.len() };
        let count = local.len().min(MAX_RANGES);
        let mut length = 0;
        for (place, range) in local_iov[1..].iter_mut().zip(local) {
            *place = vector(range.address, range.length);
            length += range.length;
        }
        // The kernel copies no more than the smaller of the local and the remote total.
        let length = length.min(most);
        let remote_iov = [vector(at, guard.len()), vector(remote, length)];
        // SAFETY: `local_iov` has `count + 1` entries and `remote_iov` has 2. `local_iov` names the
        // guard's buffer, which is borrowed mutably, and ranges that the caller guarantees to be
        // accessible as `run` accesses them. The kernel checks the addresses in `remote_iov`, which
        // belong to the other process.
        let copied = unsafe {
            run(
                self.number,
                local_iov.as_ptr(),
                count as libc::c_ulong + 1,
                remote_iov.as_ptr(),
                2,
                0,
            )
        };
        let process = self.number;
        match usize::try_from(copied) {
            Ok(copied) if copied < guard.len() => {
                Err(ProcessError::Other { process, reason: REPLACED })
            }
            Ok(copied) if copied == guard.len() && length > 0 => {
                Err(ProcessError::Memory { process })
            }
            Ok(copied) => Ok(copied - guard.len()),
            Err(_) => Err(self.failed(call, io::Error::last_os_error())),
        }
    }

    #[cold]
    fn failed(&self, call: &'static str, source: io::Error) -> ProcessError {
        let process = self.number;
        match source.raw_os_error() {
            // The kernel fails with EFAULT only if the first range, the guard, is not accessible.
            Some(libc::EFAULT) => ProcessError::Other { process, reason: REPLACED },
            _ => refused(process, call, source),
        }
    }
}

/// A range of a region that is pinned: its owner does not free the memory.
#[derive(Debug)]
pub struct Pinned<'p> {
    process: &'p Process,
    remote: u64,
    length: usize,
    _pin: Pin<'p>,
}

impl Pinned<'_> {
    /// Copies from the pinned range to the ranges in `local`, in order. Returns the number of bytes
    /// copied, which may be less than requested.
    ///
    /// # Errors
    /// Any [`ProcessError`].
    ///
    /// # Safety
    /// The ranges in `local` must be mapped, and writing to them must be sound as if another
    /// process wrote.
    pub unsafe fn read(&self, local: &[Range]) -> Result<usize, ProcessError> {
        // SAFETY: the caller guarantees that the ranges in `local` are mapped and may be written.
        unsafe { self.process.read(local, self.remote, self.length) }
    }

    /// Copies the ranges in `local`, in order, to the pinned range. Returns the number of bytes
    /// copied, which may be less than requested.
    ///
    /// # Errors
    /// Any [`ProcessError`].
    ///
    /// # Safety
    /// The ranges in `local` must be mapped.
    pub unsafe fn write(&self, local: &[Range]) -> Result<usize, ProcessError> {
        // SAFETY: the caller guarantees that the ranges in `local` are mapped; they are only read.
        unsafe { self.process.write(local, self.remote, self.length) }
    }
}

/// Parses a line of `/proc/PID/maps`. Returns start address and permissions if it is a mapping of
/// `file` from offset 0.
fn mapped<'l>(line: &'l str, file: &fs::Metadata) -> Option<(u64, &'l str)> {
    let mut fields = line.split_ascii_whitespace();
    let start = u64::from_str_radix(fields.next()?.split_once('-')?.0, 16).ok()?;
    let permissions = fields.next()?;
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let number = |hex| u32::from_str_radix(hex, 16).ok();
    let device = rustix::fs::makedev(number(major)?, number(minor)?);
    let inode: u64 = fields.next()?.parse().ok()?;
    (offset == 0 && device == file.dev() && inode == file.ino()).then_some((start, permissions))
}

fn refused(process: i32, call: &'static str, source: io::Error) -> ProcessError {
    match source.raw_os_error() {
        Some(libc::ESRCH) => ProcessError::Ended { process },
        // Either the process or its descriptor does not exist.
        Some(libc::ENOENT)
            if fs::exists(format!("/proc/{process}/exe")).is_ok_and(|exists| !exists) =>
        {
            ProcessError::Ended { process }
        }
        Some(libc::ENOENT) => ProcessError::Other { process, reason: OTHER },
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => {
            ProcessError::Denied { process, reason: reason(process) }
        }
        _ => ProcessError::System { call, source },
    }
}

/// The process id belongs to another process.
const OTHER: &str = "the process id was reused, or belongs to another pid namespace";
/// Reason for a process that was opened successfully, but whose guard is not accessible any more.
const REPLACED: &str = "it has executed another program, or its process id was reused";
/// The file is not a table of this crate.
const FORGED: &str = "the file of the address is not a region table";

type Copy = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

/// Why the kernel may have denied the access; the most likely reason.
fn reason(process: i32) -> String {
    let own = rustix::process::geteuid().as_raw();
    let theirs = fs::metadata(format!("/proc/{process}")).map(|metadata| metadata.uid());
    match (theirs, ptrace_scope()) {
        (Ok(user), _) if user != own && own != 0 => {
            format!("it runs as user {user}, this one as user {own}: run both as one user")
        }
        (_, Some(2..)) => {
            "Yama denies it (kernel.yama.ptrace_scope is 2 or more): set it to 0 or 1, or grant CAP_SYS_PTRACE".to_owned()
        }
        (_, Some(1)) => "Yama restricts it to parents (kernel.yama.ptrace_scope is 1), and the peer did not admit other processes: set it to 0"
            .to_owned(),
        _ => "a container's seccomp filter or user namespace denies it: allow process_vm_readv, or grant CAP_SYS_PTRACE".to_owned(),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use rustix::fs::MemfdFlags;
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

    use super::*;
    use crate::segment::Segment;
    use crate::table::{Entry, Table};

    const READ: u32 = 1;
    const WRITE: u32 = 2;
    /// Environment variable with the role of a child process.
    const ROLE: &str = "BAREWIRE_TEST_PROCESS";
    const TIMEOUT: Duration = Duration::from_mins(1);

    fn range(bytes: &mut [u8]) -> [Range; 1] {
        [Range { address: bytes.as_mut_ptr() as u64, length: bytes.len() }]
    }

    /// Publishes memory that is never freed.
    fn publish(table: &Table, rights: u32) -> (Entry, &'static [u8]) {
        let bytes: &'static mut [u8] = vec![7u8; 4096].leak();
        let (start, length) = (bytes.as_mut_ptr() as u64, bytes.len() as u64);
        // SAFETY: the memory is leaked, so it stays mapped, and the tests only compare its bytes
        // after a copy has finished.
        (unsafe { table.publish(start, length, rights) }.unwrap(), bytes)
    }

    fn put(
        process: &Process,
        key: RegionKey,
        remote: u64,
        bytes: &mut [u8],
    ) -> Result<usize, PinError> {
        let pinned = process.pin(key, remote, bytes.len(), WRITE)?;
        // SAFETY: the range is `bytes`, which is borrowed for the call.
        Ok(unsafe { pinned.write(&range(bytes)) }.unwrap())
    }

    #[test]
    #[cfg_attr(barewire_emulated, ignore = "qemu has no process_vm_readv and process_vm_writev")]
    fn a_region_is_reached_as_its_owner_allows() {
        let table = Table::new().unwrap();
        let process = Process::open(table.address()).unwrap();
        let (mut entry, memory) = publish(&table, READ | WRITE);
        let (key, at) = (entry.key(), memory.as_ptr() as u64);
        assert_eq!(put(&process, key, at + 4090, &mut [9; 6]), Ok(6));
        let mut back = [0u8; 8];
        let pinned = process.pin(key, at + 4088, 8, READ).unwrap();
        let (one, two) = back.split_at_mut(3);
        // SAFETY: the ranges are the two parts of `back`, which is borrowed mutably.
        let copied = unsafe { pinned.read(&[range(one), range(two)].concat()) };
        assert_eq!((copied.unwrap(), back), (8, [7, 7, 9, 9, 9, 9, 9, 9]));
        drop(pinned);
        for (remote, length) in
            [(at + 4091, 6), (at - 1, 2), (at + 4097, 0), (u64::MAX, 2), (at, 4097)]
        {
            assert_eq!(put(&process, key, remote, &mut vec![0; length]), Err(PinError::Range));
        }
        let (small, _) = publish(&table, READ);
        assert_eq!(process.pin(small.key(), at, 1, WRITE).unwrap_err(), PinError::Rights);
        // Keys that combine this region's token with another entry, and others that were never
        // issued.
        for forged in [
            RegionKey { index: small.key().index, ..key },
            RegionKey { index: u32::MAX, ..key },
            RegionKey { token: key.token ^ 1, ..key },
            RegionKey { token: 0, ..key },
            RegionKey { index: 500, token: 0 },
        ] {
            assert_eq!(put(&process, forged, at, &mut [1]), Err(PinError::Freed));
        }
        assert!(entry.reclaim());
        assert_eq!(put(&process, key, at, &mut [1]), Err(PinError::Freed));
        // The entry is reused; the old key remains invalid.
        let (again, _) = publish(&table, READ | WRITE);
        assert_eq!(again.key().index, key.index);
        assert_eq!(put(&process, key, at, &mut [1]), Err(PinError::Freed));
    }

    #[test]
    #[cfg_attr(barewire_emulated, ignore = "qemu has no process_vm_readv and process_vm_writev")]
    fn memory_is_not_given_back_while_it_is_pinned() {
        let table = Table::new().unwrap();
        let process = Process::open(table.address()).unwrap();
        let (mut entry, memory) = publish(&table, WRITE);
        let pinned = process.pin(entry.key(), memory.as_ptr() as u64, 8, WRITE).unwrap();
        assert!(!entry.reclaim());
        assert_eq!(
            process.pin(entry.key(), memory.as_ptr() as u64, 8, WRITE).unwrap_err(),
            PinError::Freed
        );
        let (other, _) = publish(&table, WRITE);
        assert_ne!(other.key().index, entry.key().index);
        drop(pinned);
        assert!(entry.reclaim() && entry.reclaim());
        drop(entry);
        let (next, _) = publish(&table, WRITE);
        let (last, _) = publish(&table, WRITE);
        assert_ne!(next.key().index, last.key().index);
    }

    /// Publishes more regions than the table first has memory for, up to its capacity.
    #[test]
    #[cfg_attr(barewire_emulated, ignore = "qemu has no process_vm_readv and process_vm_writev")]
    fn a_table_grows_to_its_end() {
        let table = Table::new().unwrap();
        let process = Process::open(table.address()).unwrap();
        let byte: &'static mut u8 = Box::leak(Box::new(0));
        let at = std::ptr::from_mut(byte) as u64;
        // SAFETY: the byte is leaked, and this test does not access it.
        let publish = || unsafe { table.publish(at, 1, WRITE) };
        let mut entries: Vec<_> = (0..1 << 18).map(|_| publish().unwrap()).collect();
        assert!(matches!(publish(), Err(crate::TableError::Full)));
        assert_eq!(put(&process, entries.last().unwrap().key(), at, &mut [1]), Ok(1));
        assert!(entries[77].reclaim());
        assert_eq!(publish().unwrap().key().index, entries[77].key().index);
    }

    /// Files that safe code can create are not accepted as tables.
    #[test]
    fn forged_tables_are_refused() {
        let table = Table::new().unwrap();
        let good = table.address();
        let refused = |address| match Process::open(address) {
            Err(ProcessError::Other { reason, .. }) => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(TableAddress { secret: good.secret ^ 1, ..good }), OTHER);
        // A file with the name, size, seals and contents of a table.
        let mut image = vec![0; table::BYTES];
        let link = format!("/proc/self/fd/{}", good.descriptor);
        std::io::Read::read_exact(&mut File::open(&link).unwrap(), &mut image).unwrap();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(table::NAME, flags).unwrap();
        rustix::fs::ftruncate(&file, table::BYTES as u64).unwrap();
        let at = |file: &OwnedFd| TableAddress { descriptor: file.as_raw_fd() as u32, ..good };
        assert_eq!(refused(at(&file)), FORGED, "without seals");
        rustix::fs::fcntl_add_seals(&file, table::SEALS).unwrap();
        let mut writer = File::from(file.try_clone().unwrap());
        writer.write_all(&image).unwrap();
        assert_eq!(refused(at(&file)), FORGED, "not mapped");
        // The only mapping of it that safe code can create.
        let segment = Segment::attach(file.try_clone().unwrap(), table::BYTES).unwrap();
        let word = (segment.as_ptr().addr().get() as u64).to_ne_bytes();
        segment.write(32, &word).unwrap();
        assert_eq!(refused(at(&file)), FORGED, "mapped as a segment");
        let other: OwnedFd = File::open("/dev/null").unwrap().into();
        assert_eq!(refused(at(&other)), OTHER, "not a memfd");
        assert_eq!(refused(TableAddress { descriptor: u32::MAX, ..good }), OTHER);
        assert!(matches!(
            Process::open(TableAddress { process: i32::MAX, ..good }),
            Err(ProcessError::Ended { .. })
        ));
        assert!(matches!(
            Process::open(TableAddress { process: -1, ..good }),
            Err(ProcessError::Ended { .. } | ProcessError::Other { .. })
        ));
    }

    /// Parses a line of hexadecimal numbers.
    fn words<const N: usize>(line: &str) -> [u128; N] {
        let mut words = line.split_whitespace().map(|word| u128::from_str_radix(word, 16).unwrap());
        std::array::from_fn(|_| words.next().unwrap())
    }

    /// A child process that runs this test program in a role. Killed when dropped.
    struct Helper {
        process: Child,
        output: BufReader<std::process::ChildStdout>,
    }

    impl Helper {
        fn start(role: &str) -> Self {
            let mut process = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "process::tests::a_child_in_its_role", "--nocapture"])
                .env(ROLE, role)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let output = BufReader::new(process.stdout.take().unwrap());
            Self { process, output }
        }

        fn send(&mut self, line: &str) {
            writeln!(self.process.stdin.as_mut().unwrap(), "{line}").unwrap();
        }

        /// Reads the rest of the next line that begins with `> `.
        fn receive(&mut self) -> String {
            loop {
                let mut line = String::new();
                assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the child ended");
                if let Some((_, said)) = line.split_once("> ") {
                    return said.to_owned();
                }
            }
        }

        fn signal(&self, signal: Signal) {
            kill_process(Pid::from_child(&self.process), signal).unwrap();
        }
    }

    impl Drop for Helper {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    fn introduce(table: &Table, key: RegionKey, at: u64) -> String {
        let TableAddress { process, descriptor, secret } = table.address();
        format!("{process:x} {descriptor:x} {secret:x} {:x} {:x} {at:x}", key.index, key.token)
    }

    fn introduced(line: &str) -> (TableAddress, RegionKey, u64) {
        let [process, descriptor, secret, index, token, at] = words(line);
        let address =
            TableAddress { process: process as i32, descriptor: descriptor as u32, secret };
        (address, RegionKey { index: index as u32, token }, at as u64)
    }

    /// The code of the child processes. Does nothing in a normal run of the tests.
    #[test]
    fn a_child_in_its_role() {
        let Ok(role) = std::env::var(ROLE) else { return };
        let mut line = String::new();
        match role.as_str() {
            "owner" => {
                let table = Table::new().unwrap();
                let (entry, memory) = publish(&table, READ | WRITE);
                println!("> {}", introduce(&table, entry.key(), memory.as_ptr() as u64));
                std::io::stdin().read_line(&mut line).unwrap();
                let error = Command::new("sleep").arg("60").exec();
                panic!("{error}");
            }
            "initiator" => {
                std::io::stdin().read_line(&mut line).unwrap();
                let (address, key, at) = introduced(&line);
                let process = Process::open(address).unwrap();
                let pinned = process.pin(key, at, 8, WRITE).unwrap();
                println!("> pinned");
                std::io::stdin().read_line(&mut line).unwrap();
                // SAFETY: the range is a temporary array that lives until the end of the statement.
                let copied = unsafe { pinned.write(&range(&mut [9; 8])) }.unwrap();
                drop(pinned);
                println!("> {copied}");
                std::io::stdin().read_line(&mut line).unwrap();
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    #[cfg_attr(barewire_emulated, ignore = "qemu has no process_vm_readv and process_vm_writev")]
    fn a_process_that_executes_another_program_is_not_written_to() {
        let mut owner = Helper::start("owner");
        let (address, key, at) = introduced(&owner.receive());
        let process = Process::open(address).unwrap();
        assert_eq!(put(&process, key, at, &mut [1; 100]), Ok(100));
        process.probe().unwrap();
        owner.send("exec");
        let replaced = |result| match result {
            Err(ProcessError::Other { reason, .. }) => reason == REPLACED,
            _ => false,
        };
        let start = Instant::now();
        // While the kernel replaces it, the process appears to have ended.
        while !replaced(process.probe()) {
            assert!(start.elapsed() < TIMEOUT);
            std::thread::sleep(Duration::from_millis(1));
        }
        // The entry in the table has not changed; only the guard detects the new program.
        for rights in [READ, WRITE] {
            let pinned = process.pin(key, at, 8, rights).unwrap();
            let mut bytes = [1; 8];
            // SAFETY: the range is `bytes`, a local array.
            let copied = unsafe {
                if rights == READ {
                    pinned.read(&range(&mut bytes))
                } else {
                    pinned.write(&range(&mut bytes))
                }
            };
            assert!(replaced(copied.map(drop)));
        }
        assert!(matches!(Process::open(address), Err(ProcessError::Other { .. })));
        owner.process.kill().unwrap();
        owner.process.wait().unwrap();
        assert!(matches!(process.probe(), Err(ProcessError::Ended { .. })));
        assert!(matches!(Process::open(address), Err(ProcessError::Ended { .. })));
    }

    #[test]
    #[cfg_attr(barewire_emulated, ignore = "qemu has no process_vm_readv and process_vm_writev")]
    fn a_stopped_or_killed_initiator_keeps_memory_and_no_more() {
        for is_killed in [false, true] {
            let table = Table::new().unwrap();
            let (mut entry, memory) = publish(&table, WRITE);
            let mut initiator = Helper::start("initiator");
            initiator.send(&introduce(&table, entry.key(), memory.as_ptr() as u64));
            assert_eq!(initiator.receive().trim(), "pinned");
            initiator.signal(Signal::STOP);
            waitpid(Some(Pid::from_child(&initiator.process)), WaitOptions::UNTRACED).unwrap();
            if is_killed {
                initiator.process.kill().unwrap();
                initiator.process.wait().unwrap();
            }
            for _ in 0..100 {
                assert!(!entry.reclaim());
                assert_ne!(publish(&table, WRITE).0.key().index, entry.key().index);
            }
            if is_killed {
                continue;
            }
            initiator.signal(Signal::CONT);
            initiator.send("go on");
            assert_eq!(initiator.receive().trim(), "8");
            assert_eq!(memory[..9], [9, 9, 9, 9, 9, 9, 9, 9, 7]);
            assert!(entry.reclaim());
        }
    }

    /// A forked child has a copy of its parent's memory and inherits its parent's table.
    #[test]
    #[cfg_attr(barewire_emulated, ignore = "qemu has no process_vm_readv and process_vm_writev")]
    fn a_forked_child_is_not_taken_for_its_parent() {
        let table = Table::new().unwrap();
        let (mut entry, memory) = publish(&table, WRITE);
        let (mut reader, writer) = std::io::pipe().unwrap();
        // SAFETY: the test runs other threads, so the child only makes system calls and calls that
        // take no lock, until it ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the call is refused in a child process, so nothing is published.
            let refused = unsafe { table.publish(1, 1, WRITE) }.is_err();
            let inert = entry.reclaim();
            drop(entry);
            let good = [u8::from(refused && inert)];
            // SAFETY: `write` reads one byte of `good`; the other two calls take no pointers.
            unsafe {
                libc::write(writer.as_raw_fd(), good.as_ptr().cast(), 1);
                libc::pause();
                libc::_exit(0);
            }
        }
        let theirs = TableAddress { process: child, ..table.address() };
        let opened = Process::open(theirs);
        let process = Process::open(table.address()).unwrap();
        let mut good = [0];
        std::io::Read::read_exact(&mut reader, &mut good).unwrap();
        let lives = put(&process, entry.key(), memory.as_ptr() as u64, &mut [1]);
        kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
        waitpid(Pid::from_raw(child), WaitOptions::empty()).unwrap();
        assert_eq!(good, [1], "the child must not change its parent's table");
        assert!(matches!(opened, Err(ProcessError::Other { .. })), "{opened:?}");
        assert_eq!(lives, Ok(1), "the child withdrew its parent's region");
        assert!(entry.reclaim());
    }
}
