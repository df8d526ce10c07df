//! Regions of other processes, mapped by the descriptors that their owners have open.
//!
//! A peer gets a region over the socket of a connection. Without one, it can open the descriptor in
//! `/proc` (proc_pid_fd(5)): the kernel allows that to processes that may inspect the owner, which
//! by default are those of the same user. The numbers come from a key, so the descriptor may be any
//! file by now. It is opened as a path first, which has no effect on the file, and used only if it
//! is a memfd whose header contains the region's random number.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{FileType, FsWord, Mode, OFlags};

use crate::address::Users;
use crate::error::SegmentError;
use crate::region::Mapped;
use crate::segment::{HUGETLBFS, Segment};

/// The magic number of tmpfs in linux/magic.h.
const TMPFS: FsWord = 0x0102_1994;

/// The place of a region: its owner's process and descriptor, and the numbers by which it is
/// recognized.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RegionPlace {
    /// The owner's process id.
    pub process: u32,
    /// The owner's descriptor.
    pub descriptor: u32,
    /// The number of the owner's [`RegionSet`](crate::RegionSet).
    pub region_set: u64,
    /// The region's number.
    pub region: u64,
}

impl RegionPlace {
    /// Maps the region. `huge_pages` is as in [`PortConfig`](crate::PortConfig).
    ///
    /// # Errors
    /// [`SegmentError::OtherFile`] if the descriptor is not that of the region: its owner has
    /// dropped it. [`SegmentError::System`] if the kernel refuses, and the other errors of
    /// [`Segment::attach`].
    pub fn map(&self, huge_pages: bool) -> Result<Mapped, SegmentError> {
        let system = |call| {
            move |errno: rustix::io::Errno| SegmentError::System { call, source: errno.into() }
        };
        let open = |path: String, flags| {
            rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
                .map_err(system("open of a descriptor in /proc"))
        };
        let path: OwnedFd =
            open(format!("/proc/{}/fd/{}", self.process, self.descriptor), OFlags::PATH)?;
        let found = rustix::fs::fstat(&path).map_err(system("fstat"))?;
        let files = rustix::fs::fstatfs(&path).map_err(system("fstatfs"))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile
            || ![TMPFS, HUGETLBFS].contains(&files.f_type)
            || !Users::Same.allow(found.st_uid)
        {
            return Err(SegmentError::OtherFile);
        }
        let file = File::from(open(format!("/proc/self/fd/{}", path.as_raw_fd()), OFlags::RDWR)?);
        // `attach` compares the size again, after it has checked that it is sealed.
        let size = usize::try_from(found.st_size).map_err(|_| SegmentError::OtherFile)?;
        let attach = if huge_pages { Segment::attach_huge } else { Segment::attach };
        let mapped = Mapped::attach(attach(file.into(), size)?).ok_or(SegmentError::OtherFile)?;
        if mapped.is(self.region_set, self.region) {
            Ok(mapped)
        } else {
            Err(SegmentError::OtherFile)
        }
    }
}

/// Omits the region's number, which is secret.
impl std::fmt::Debug for RegionPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegionPlace")
            .field("process", &self.process)
            .field("descriptor", &self.descriptor)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::region::RegionSet;

    #[test]
    fn a_region_is_mapped_by_its_place_until_it_is_dropped() {
        let set = RegionSet::new(5);
        let (region, other) = (set.region(100).unwrap(), set.region(100).unwrap());
        let place = region.place();
        let mapped = place.map(false).unwrap();
        assert_eq!(mapped.size(), 100);
        assert_ne!(mapped.start(), region.mapped().start(), "a mapping of its own");
        region.mapped().write(96, b"last").unwrap();
        let mut last = [0; 4];
        mapped.read(96, &mut last).unwrap();
        assert_eq!(&last, b"last");
        for wrong in [
            RegionPlace { region_set: 6, ..place },
            RegionPlace { region: !place.region, ..place },
            RegionPlace { descriptor: other.place().descriptor, ..place },
        ] {
            assert!(matches!(wrong.map(false), Err(SegmentError::OtherFile)), "{wrong:?}");
        }
        drop(region);
        assert!(place.map(false).is_err(), "the descriptor is closed");
        assert!(!format!("{place:?}").contains(&place.region.to_string()));
    }

    /// Keys come from outside: whatever the descriptor is, nothing but a region is opened.
    #[test]
    fn other_files_are_refused() {
        let place = |descriptor: &OwnedFd| RegionPlace {
            process: std::process::id(),
            descriptor: descriptor.as_raw_fd() as u32,
            region_set: 1,
            region: 2,
        };
        let unsealed = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&unsealed, 8192).unwrap();
        assert!(matches!(place(&unsealed).map(false), Err(SegmentError::Unsealed { .. })));
        let segment = Segment::create("test", 8192).unwrap();
        let sealed = segment.descriptor().unwrap().try_clone_to_owned().unwrap();
        assert!(matches!(place(&sealed).map(false), Err(SegmentError::OtherFile)));
        let short = Segment::create("test", 16).unwrap();
        let short = short.descriptor().unwrap().try_clone_to_owned().unwrap();
        assert!(matches!(place(&short).map(false), Err(SegmentError::OtherFile)));
        let (reader, _writer) = std::io::pipe().unwrap();
        let pipe = reader.as_fd().try_clone_to_owned().unwrap();
        assert!(matches!(place(&pipe).map(false), Err(SegmentError::OtherFile)));
        let device = OwnedFd::from(File::open("/dev/zero").unwrap());
        assert!(matches!(place(&device).map(false), Err(SegmentError::OtherFile)));
        let nobody = RegionPlace { process: u32::MAX, ..place(&device) };
        assert!(matches!(nobody.map(false), Err(SegmentError::System { .. })));
    }
}
