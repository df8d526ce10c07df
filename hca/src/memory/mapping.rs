//! The mappings of the process, for what a kernel checks when it registers memory.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// File systems whose pages are in no other place than memory: a kernel need not know when a device
/// has written to them. That of device files is one, and so are the mappings of a DAX device.
/// `rootfs` is a ramfs or a tmpfs.
const IN_MEMORY: [&str; 5] = ["tmpfs", "devtmpfs", "hugetlbfs", "ramfs", "rootfs"];

/// A mapping of the process: see proc_pid_maps(5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The addresses of its bytes.
    pub addresses: Range<usize>,
    /// Its rights, such as `rw-p`.
    pub rights: [u8; 4],
    /// The device number of its file's file system, as `major:minor` in hexadecimal digits.
    device: String,
    /// The path of its file, or another text.
    path: String,
}

impl Mapping {
    /// Returns the mappings that overlap a range of memory, in order.
    ///
    /// # Errors
    /// Without `/proc`.
    pub fn over(range: Range<usize>) -> io::Result<impl Iterator<Item = Self>> {
        let lines = BufReader::new(File::open("/proc/self/maps")?).split(b'\n');
        let (start, end) = (range.start, range.end);
        // A process may have many mappings.
        let overlaps =
            move |line: &Vec<u8>| Self::addresses(line).is_some_and(|found| found.end > start);
        Ok(lines
            .map_while(Result::ok)
            .skip_while(move |line| !overlaps(line))
            .filter_map(|line| Self::parse(&line))
            .take_while(move |mapping| mapping.addresses.start < end))
    }

    /// Returns the addresses of a line.
    fn addresses(line: &[u8]) -> Option<Range<usize>> {
        let (words, _) = line.split_at(line.iter().position(|byte| *byte == b' ')?);
        let (start, end) = std::str::from_utf8(words).ok()?.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        Some(address(start)?..address(end)?)
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let addresses = Self::addresses(line)?;
        let line = String::from_utf8_lossy(line);
        let mut words = line.splitn(6, ' ').skip(1);
        let rights = words.next()?.as_bytes().try_into().ok()?;
        let device = words.nth(1)?.to_owned();
        let path = words.nth(1).unwrap_or_default().trim_start().to_owned();
        Some(Self { addresses, rights, device, path })
    }

    /// Returns whether the file system has to be notified before each write, so that it writes the
    /// page back later: the mapping is shared, may be written, and is one of a file that is not in
    /// memory only (linux mm/vma.c: `vma_needs_dirty_tracking`).
    fn is_written_back(&self) -> bool {
        matches!(self.rights, [_, b'w', _, b's']) && is_on_disk(&self.device).unwrap_or(false)
    }
}

/// Returns whether the file system with this device number, in hexadecimal digits, is one that is
/// mounted and not in memory only. Those of the kernel's own, such as that of memfd_create(2), are
/// not mounted.
fn is_on_disk(device: &str) -> Option<bool> {
    let (major, minor) = device.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let mounts = fs::read("/proc/self/mountinfo").ok()?;
    let mounts = String::from_utf8_lossy(&mounts);
    let device_of = |path: &Path| fs::metadata(path).ok().map(|found| found.dev());
    Some(match FileSystem::find(&mounts, number(major)?, number(minor)?)? {
        FileSystem { name: "overlay", options } => {
            // A file that is open for writing is in the upper layer, and the kernel maps it there.
            // In a container, the path of that layer is often one of the host, and then the layer
            // counts as on disk.
            let device = upper(options).and_then(|path| device_of(&path));
            let found = device
                .and_then(|dev| FileSystem::find(&mounts, libc::major(dev), libc::minor(dev)));
            !found.is_some_and(|found| IN_MEMORY.contains(&found.name))
        }
        found => !IN_MEMORY.contains(&found.name),
    })
}

/// A mounted file system: proc_pid_mountinfo(5).
#[derive(Debug, PartialEq, Eq)]
struct FileSystem<'a> {
    /// The name of its type.
    name: &'a str,
    /// The options of the file system, not of the mount.
    options: &'a str,
}

impl<'a> FileSystem<'a> {
    fn find(mounts: &'a str, major: u32, minor: u32) -> Option<Self> {
        let device = format!("{major}:{minor}");
        let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&*device))?;
        let (_, source) = mount.split_once(" - ")?;
        let mut words = source.split(' ');
        let name = words.next()?;
        Some(Self { name, options: words.nth(1).unwrap_or_default() })
    }
}

/// Returns the upper layer in the options of an overlay.
fn upper(options: &str) -> Option<PathBuf> {
    let found = options.split(',').find_map(|option| option.strip_prefix("upperdir="))?;
    // Spaces are octal numbers.
    Some(PathBuf::from(found.replace("\\040", " ")))
}

/// Memory that a kernel does not pin for a device that writes to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the memory at {start:#x} is a shared mapping of the file {path}. The kernel does not pin such \
     pages for a device that writes (EFAULT), because their file system would not learn of the \
     writes: use anonymous memory, a file in tmpfs or hugetlbfs, or memory on demand"
)]
pub struct WrittenBack {
    /// The first byte of the part of the memory that it concerns.
    pub start: usize,
    /// The file.
    pub path: String,
}

/// Checks that a kernel would pin `length` bytes at `start` for a device that writes to them
/// (linux mm/gup.c: `writable_file_mapping_allowed`, since 6.5). Nothing is checked without
/// `/proc`.
///
/// # Errors
/// If part of the memory is a writable shared mapping of a file that is written back.
pub fn check_pin(start: usize, length: usize) -> Result<(), WrittenBack> {
    if cfg!(miri) {
        return Ok(());
    }
    let range = start..start.saturating_add(length);
    let Ok(mut mappings) = Mapping::over(range) else { return Ok(()) };
    match mappings.find(Mapping::is_written_back) {
        Some(Mapping { addresses, path, .. }) => {
            Err(WrittenBack { start: addresses.start.max(start), path })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps_is_a_mapping() {
        let line = b"7f8c43165000-7f8c43167000 rw-s 00000000 fe:00 2162690      /a b (deleted)";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!(mapping.addresses, 0x7f8c_4316_5000..0x7f8c_4316_7000);
        assert_eq!((&mapping.rights, &*mapping.device), (b"rw-s", "fe:00"));
        assert_eq!(mapping.path, "/a b (deleted)");
        let anonymous = Mapping::parse(b"1000-3000 rw-p 00000000 00:00 0 ").unwrap();
        assert_eq!((anonymous.path.as_str(), anonymous.addresses.len()), ("", 0x2000));
        assert_eq!(Mapping::parse(b"no mapping"), None);
    }

    #[test]
    fn an_overlay_has_an_upper_layer() {
        let mounts = "27 1 254:0 / / rw - ext4 /dev/root rw\n\
                      25 27 0:45 / /work rw,relatime shared:1 - overlay over rw,lowerdir=/l,\
                      upperdir=/with\\040space/u,workdir=/w\n\
                      26 27 0:46 / /ro ro - overlay none ro,lowerdir=/a:/b\n";
        let found = FileSystem::find(mounts, 0, 45).unwrap();
        assert_eq!(found.name, "overlay");
        assert_eq!(upper(found.options), Some(PathBuf::from("/with space/u")));
        assert_eq!(upper(FileSystem::find(mounts, 0, 46).unwrap().options), None);
        assert_eq!(FileSystem::find(mounts, 254, 0).unwrap().name, "ext4");
        assert_eq!(FileSystem::find(mounts, 0, 4), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no /proc")]
    fn mappings_of_a_range_overlap_it() {
        let bytes = vec![0_u8; 1 << 20];
        let range = bytes.as_ptr_range();
        let range = range.start.addr()..range.end.addr();
        let found: Vec<_> = Mapping::over(range.clone()).unwrap().collect();
        assert!(found[0].addresses.contains(&range.start), "{found:x?}");
        assert!(found.last().unwrap().addresses.contains(&(range.end - 1)), "{found:x?}");
        assert_eq!(check_pin(range.start, range.len()), Ok(()));
    }
}
