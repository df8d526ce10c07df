//! A memfd of sealed size and its mapping.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use crate::copy;
use crate::error::{OutOfRange, SegmentError};

/// The seals that fix the size, and the set of seals itself.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The magic number of hugetlbfs in linux/magic.h.
pub(crate) const HUGETLBFS: rustix::fs::FsWord = 0x9584_58f6;

/// Memory that this process shares with the processes that receive its descriptor. Dropping it
/// unmaps the memory and closes the descriptor here; other processes keep theirs.
///
/// The bytes are plain memory without ordering guarantees. Processes that signal each other that
/// data is ready (over a socket, or by an atomic in the segment) must provide the ordering
/// themselves.
pub struct Segment {
    map: MmapRaw,
    /// The descriptor of a segment that this process created.
    file: Option<File>,
}

impl Segment {
    /// Creates a segment of `size` zeroed bytes. All its memory is allocated now, so a shortage is
    /// an error here and not a SIGBUS on the first access. The exception is a memory limit of the
    /// process's control group: the kernel may kill the process instead.
    ///
    /// `name` is shown in `/proc/PID/maps`; it need not be unique.
    ///
    /// ```
    /// let segment = barewire_shm::Segment::create("counters", 4096)?;
    /// segment.write(64, b"shared")?;
    /// let mut bytes = [0; 6];
    /// segment.read(64, &mut bytes)?;
    /// assert_eq!(&bytes, b"shared");
    /// assert!(segment.write(4095, b"too long").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SegmentError::Empty`] if `size` is 0, [`SegmentError::NoMemory`],
    /// [`SegmentError::FileLimit`], or [`SegmentError::System`].
    pub fn create(name: &str, size: usize) -> Result<Self, SegmentError> {
        if size == 0 {
            return Err(SegmentError::Empty);
        }
        // Check first: the kernel would allocate page by page until memory runs out.
        if let Some(available) = available_memory()
            && size as u64 > available
        {
            return Err(SegmentError::NoMemory { wanted: size, available });
        }
        Self::make(name, size, MemfdFlags::empty(), || SegmentError::NoMemory {
            wanted: size,
            available: available_memory().unwrap_or(0),
        })
    }

    /// Like [`Self::create`], in huge pages. `size` is rounded up to whole pages.
    ///
    /// # Errors
    /// [`SegmentError::Empty`] if `size` is 0, [`SegmentError::NoHugePages`] if too few are free,
    /// [`SegmentError::FileLimit`], or [`SegmentError::System`].
    pub fn create_huge(name: &str, size: usize) -> Result<Self, SegmentError> {
        if size == 0 {
            return Err(SegmentError::Empty);
        }
        let page = meminfo("Hugepagesize:").unwrap_or(0) as usize;
        let pages = if page > 0 { size.div_ceil(page) } else { 0 };
        let none = || SegmentError::NoHugePages {
            wanted: pages,
            page,
            free: meminfo_count("HugePages_Free:").unwrap_or(0),
        };
        match pages.checked_mul(page) {
            Some(size @ 1..) => Self::make(name, size, MemfdFlags::HUGETLB, none),
            _ => Err(none()),
        }
    }

    fn make(
        name: &str,
        size: usize,
        flags: MemfdFlags,
        no_memory: impl Fn() -> SegmentError,
    ) -> Result<Self, SegmentError> {
        // Exceeding the limit raises SIGXFSZ, which ends the process.
        if let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::Fsize).current
            && size as u64 > limit
        {
            return Err(SegmentError::FileLimit { wanted: size, limit });
        }
        let file =
            rustix::fs::memfd_create(name, flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                .map_err(|errno| system("memfd_create", errno))?;
        let file = File::from(file);
        let allocate = || rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size as u64);
        rustix::io::retry_on_intr(allocate).map_err(|errno| match errno {
            rustix::io::Errno::NOSPC | rustix::io::Errno::NOMEM => no_memory(),
            errno => system("fallocate", errno),
        })?;
        rustix::fs::fcntl_add_seals(&file, SEALS)
            .map_err(|errno| system("fcntl(F_ADD_SEALS)", errno))?;
        Ok(Self { map: map(&file, size)?, file: Some(file) })
    }

    /// Maps the segment behind a descriptor of another process, which is not trusted: the size must
    /// be sealed and equal to `size` bytes. The descriptor is closed.
    ///
    /// The peer can release pages at any time (`FALLOC_FL_PUNCH_HOLE`), and the kernel replaces
    /// them by zeroed ones at the next access. If no huge page is free, the kernel raises SIGBUS
    /// instead. Therefore memory in huge pages is refused: see [`attach_huge`](Self::attach_huge).
    ///
    /// # Errors
    /// [`SegmentError::Unsealed`], [`SegmentError::HugePages`], [`SegmentError::WrongSize`],
    /// [`SegmentError::Empty`], or [`SegmentError::System`].
    pub fn attach(descriptor: OwnedFd, size: usize) -> Result<Self, SegmentError> {
        Self::attach_if(descriptor, size, false)
    }

    /// Like [`attach`](Self::attach), but also accepts memory in huge pages. The peer is trusted
    /// not to release them.
    ///
    /// # Errors
    /// Those of [`attach`](Self::attach), except [`SegmentError::HugePages`].
    pub fn attach_huge(descriptor: OwnedFd, size: usize) -> Result<Self, SegmentError> {
        Self::attach_if(descriptor, size, true)
    }

    fn attach_if(descriptor: OwnedFd, size: usize, huge: bool) -> Result<Self, SegmentError> {
        if size == 0 {
            return Err(SegmentError::Empty);
        }
        let seals = match rustix::fs::fcntl_get_seals(&descriptor) {
            Ok(seals) => seals,
            // A file that does not support seals.
            Err(rustix::io::Errno::INVAL) => SealFlags::empty(),
            Err(errno) => return Err(system("fcntl(F_GET_SEALS)", errno)),
        };
        // The seals are checked before the size, because a sealed size cannot change after the
        // check.
        if !seals.contains(SEALS) {
            return Err(SegmentError::Unsealed { missing: names(SEALS.difference(seals)) });
        }
        let file = File::from(descriptor);
        let actual =
            file.metadata().map_err(|source| SegmentError::System { call: "fstat", source })?.len();
        if actual != size as u64 {
            return Err(SegmentError::WrongSize { announced: size, actual });
        }
        let system = rustix::fs::fstatfs(&file).map_err(|errno| self::system("fstatfs", errno))?;
        if !huge && system.f_type == HUGETLBFS {
            return Err(SegmentError::HugePages);
        }
        Ok(Self { map: map(&file, size)?, file: None })
    }

    /// The descriptor of a segment that this process created; `None` after
    /// [`close_descriptor`](Self::close_descriptor), and for an attached segment.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Closes the descriptor. The segment stays mapped, but cannot be sent to other processes any
    /// more.
    pub fn close_descriptor(&mut self) {
        self.file = None;
    }

    /// The size in bytes: never 0, and equal in all processes.
    pub fn size(&self) -> usize {
        self.map.len()
    }

    /// Copies `into.len()` bytes at `offset` out of the segment. Each byte that another process
    /// writes at the same time is either old or new.
    ///
    /// # Errors
    /// [`OutOfRange`] if the range extends beyond the end; nothing is copied then.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        let from = self.at(offset, into.len())?;
        #[expect(unsafe_code, reason = "the one copy out of shared memory")]
        // SAFETY: `at` checked that `into.len()` bytes from `from` on are within the mapping, which
        // lives as long as `self` and to which no reference exists. `into` is borrowed mutably, so
        // the two do not overlap.
        unsafe {
            copy::copy(from, into.as_mut_ptr(), into.len());
        }
        Ok(())
    }

    /// Copies `from` into the segment at `offset`. A process that reads at the same time sees each
    /// byte either old or new.
    ///
    /// # Errors
    /// [`OutOfRange`] if the range extends beyond the end; nothing is copied then.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), OutOfRange> {
        let to = self.at(offset, from.len())?;
        #[expect(unsafe_code, reason = "the one copy into shared memory")]
        // SAFETY: `at` checked that `from.len()` bytes from `to` on are within the mapping, which
        // is writable, lives as long as `self` and to which no reference exists. `from` is a
        // reference, so the two do not overlap.
        unsafe {
            copy::copy(from.as_ptr(), to, from.len());
        }
        Ok(())
    }

    /// The address of the first byte in this process. It is valid for [`size`](Self::size) bytes as
    /// long as the segment lives. Other processes access the same bytes: do not create references
    /// to them, but use atomic accesses or copies that tolerate races.
    pub fn as_ptr(&self) -> NonNull<u8> {
        NonNull::new(self.map.as_mut_ptr()).unwrap_or(NonNull::dangling())
    }

    fn at(&self, offset: usize, length: usize) -> Result<*mut u8, OutOfRange> {
        let size = self.size();
        match offset.checked_add(length) {
            Some(end) if end <= size => Ok(self.map.as_mut_ptr().wrapping_add(offset)),
            _ => Err(OutOfRange { offset, length, size }),
        }
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("file", &self.file)
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

fn map(file: &File, size: usize) -> Result<MmapRaw, SegmentError> {
    let map = MmapOptions::new().len(size).map_raw(file);
    map.map_err(|source| SegmentError::System { call: "mmap", source })
}

fn system(call: &'static str, errno: rustix::io::Errno) -> SegmentError {
    SegmentError::System { call, source: io::Error::from(errno) }
}

fn names(seals: SealFlags) -> String {
    let table = [
        (SealFlags::SHRINK, "F_SEAL_SHRINK"),
        (SealFlags::GROW, "F_SEAL_GROW"),
        (SealFlags::SEAL, "F_SEAL_SEAL"),
    ];
    let names: Vec<&str> =
        table.iter().filter(|(seal, _)| seals.contains(*seal)).map(|(_, name)| *name).collect();
    names.join(", ")
}

/// The kernel's estimate of the memory available without swapping, in bytes; `None` if it cannot be
/// read.
fn available_memory() -> Option<u64> {
    meminfo("MemAvailable:")
}

/// The value of a line in KiB, in bytes.
fn meminfo(name: &str) -> Option<u64> {
    meminfo_count(name)?.checked_mul(1024)
}

fn meminfo_count(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes with and without reserved huge pages.
    #[test]
    fn huge_pages_are_taken_where_they_are_reserved() {
        let page = meminfo("Hugepagesize:").unwrap_or(0) as usize;
        match Segment::create_huge("test", 5000) {
            Ok(segment) => {
                assert_eq!(segment.size(), page);
                segment.write(page - 5, b"hello").unwrap();
                let descriptor = || segment.descriptor().unwrap().try_clone_to_owned().unwrap();
                assert!(matches!(
                    Segment::attach(descriptor(), page),
                    Err(SegmentError::HugePages)
                ));
                let theirs = Segment::attach_huge(descriptor(), page).unwrap();
                let mut word = [0; 5];
                theirs.read(page - 5, &mut word).unwrap();
                assert_eq!(&word, b"hello");
            }
            Err(SegmentError::NoHugePages { wanted, free, .. }) => {
                assert!(wanted > free as usize || page == 0);
            }
            Err(error) => panic!("{error}"),
        }
        let much = Segment::create_huge("test", 1 << 50).unwrap_err();
        assert!(much.to_string().contains("vm.nr_hugepages"), "{much}");
        assert!(matches!(Segment::create_huge("test", 0), Err(SegmentError::Empty)));
    }

    #[test]
    fn starts_zeroed_and_keeps_what_is_written() {
        let segment = Segment::create("test", 5000).unwrap();
        assert_eq!(segment.size(), 5000);
        let mut all = vec![1; 5000];
        segment.read(0, &mut all).unwrap();
        assert!(all.iter().all(|&byte| byte == 0));
        segment.write(4997, b"end").unwrap();
        let mut end = [0; 4];
        segment.read(4996, &mut end).unwrap();
        assert_eq!(&end, b"\0end");
    }

    #[test]
    fn the_end_is_the_end() {
        let segment = Segment::create("test", 100).unwrap();
        let outside = |offset, length| Err(OutOfRange { offset, length, size: 100 });
        assert_eq!(segment.write(100, &[]), Ok(()));
        assert_eq!(segment.write(101, &[]), outside(101, 0));
        assert_eq!(segment.write(99, &[1, 2]), outside(99, 2));
        assert_eq!(segment.read(usize::MAX, &mut [0; 2]), outside(usize::MAX, 2));
        let mut last = [0; 1];
        segment.read(99, &mut last).unwrap();
        assert_eq!(last, [0], "nothing was copied");
    }

    #[test]
    fn all_memory_is_taken_at_once() {
        use std::os::unix::fs::MetadataExt;
        let segment = Segment::create("test", 1 << 20).unwrap();
        assert_eq!(segment.file.as_ref().unwrap().metadata().unwrap().blocks() * 512, 1 << 20);
    }

    #[test]
    fn the_size_is_sealed() {
        let segment = Segment::create("test", 8192).unwrap();
        for size in [0, 4096, 16384] {
            assert!(segment.file.as_ref().unwrap().set_len(size).is_err(), "{size}");
        }
        assert!(
            rustix::fs::fcntl_add_seals(segment.descriptor().unwrap(), SealFlags::WRITE).is_err()
        );
    }

    #[test]
    fn no_memory_is_an_error() {
        let error = Segment::create("test", 1 << 50).unwrap_err();
        assert!(
            matches!(error, SegmentError::NoMemory { wanted, .. } if wanted == 1 << 50),
            "{error}"
        );
        assert!(matches!(Segment::create("test", 0), Err(SegmentError::Empty)));
        assert!(matches!(Segment::create("a\0b", 1), Err(SegmentError::System { .. })));
    }

    fn memfd(size: u64, seals: SealFlags) -> OwnedFd {
        let file = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, size).unwrap();
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        file
    }

    #[test]
    fn unsealed_descriptors_are_refused() {
        let refused = |descriptor| match Segment::attach(descriptor, 4096) {
            Err(SegmentError::Unsealed { missing }) => missing,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            refused(memfd(4096, SealFlags::empty())),
            "F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL"
        );
        assert_eq!(refused(memfd(4096, SealFlags::GROW | SealFlags::SEAL)), "F_SEAL_SHRINK");
        assert_eq!(refused(memfd(4096, SealFlags::GROW | SealFlags::SHRINK)), "F_SEAL_SEAL");
        // A pipe and a device do not support seals.
        assert!(refused(std::io::pipe().unwrap().0.into()).contains("F_SEAL_SHRINK"));
        assert!(refused(File::open("/dev/zero").unwrap().into()).contains("F_SEAL_SHRINK"));
    }

    #[test]
    fn a_size_other_than_announced_is_refused() {
        for (actual, announced) in [(0, 4096), (4096, 4097), (4096, 4095), (4096, usize::MAX)] {
            let error = Segment::attach(memfd(actual, SEALS), announced).unwrap_err();
            assert!(matches!(error, SegmentError::WrongSize { .. }), "{error}");
        }
        assert!(matches!(Segment::attach(memfd(0, SEALS), 0), Err(SegmentError::Empty)));
        assert_eq!(Segment::attach(memfd(4096, SEALS), 4096).unwrap().size(), 4096);
    }

    #[test]
    fn a_descriptor_sealed_against_writing_is_refused() {
        let error = Segment::attach(memfd(4096, SEALS | SealFlags::WRITE), 4096).unwrap_err();
        assert!(matches!(error, SegmentError::System { call: "mmap", .. }), "{error}");
    }

    #[test]
    fn can_be_used_from_several_threads() {
        fn needs<T: Send + Sync>() {}
        needs::<Segment>();
    }
}
