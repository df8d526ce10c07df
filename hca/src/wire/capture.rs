//! Captures frames to a file for packet tools: classic pcap, each frame with the Ethernet, IP and
//! UDP headers that a network would have carried.

use std::fs::{File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::{ROCE_PORT, Wire, headers};
use crate::address::mac;
use crate::counters::Counters;

/// Stands for the device's address in a file name.
const ADDRESS: &str = "%a";
/// Stands for the number of the process in a file name.
const PROCESS: &str = "%p";
/// The most captures of one process with one name.
const MOST_FILES: u32 = 256;
/// Microseconds, in the writer's byte order.
const MAGIC: u32 = 0xa1b2_c3d4;
const VERSION: [u16; 2] = [2, 4];
const LONGEST: u32 = 65_535;
const ETHERNET: u32 = 1;

/// Forwards frames and captures them.
#[derive(Debug)]
pub(crate) struct Capture<W> {
    inner: W,
    address: IpAddr,
    file: BufWriter<File>,
    /// The number of frames, which is the clock of a stepped device.
    stepped: Option<u64>,
    /// Frames that could not be written.
    lost: u64,
    /// The traffic class of frames to be sent.
    class: u8,
}

/// Returns the file name of `pattern` for the device at `address`.
fn name(pattern: &Path, address: IpAddr) -> PathBuf {
    let process = std::process::id().to_string();
    let name = pattern.to_string_lossy().replace(ADDRESS, &address.to_string());
    PathBuf::from(name.replace(PROCESS, &process))
}

/// Returns `path` with the number of this process before the extension, and with `number` if the
/// process has several files.
fn own_name(path: &Path, number: u32) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{}", std::process::id()));
    if number > 1 {
        name.push(format!("-{number}"));
    }
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Starts the file at `path`. If another capture writes to it, starts one with the number of this
/// process in its name, and says so.
fn start(path: &Path) -> io::Result<File> {
    if let Some(file) = create(path)? {
        return Ok(file);
    }
    for own in (1..=MOST_FILES).map(|number| own_name(path, number)) {
        if let Some(file) = create(&own)? {
            let (path, own) = (path.display(), own.display());
            let stderr = &mut io::stderr();
            let _ = writeln!(
                stderr,
                "barewire-hca: another capture writes to {path}: this one is {own}"
            );
            return Ok(file);
        }
    }
    Err(io::Error::new(ErrorKind::ResourceBusy, "other captures write to it"))
}

/// Opens a file for packets that only its owner can read, and empties it. Returns nothing if
/// another capture, of any process, writes to it. Links, and files and pipes of other users, are
/// refused.
fn create(path: &Path) -> io::Result<Option<File>> {
    // The open of another user's pipe could wait for ever.
    if let Ok(found) = std::fs::symlink_metadata(path) {
        check_owner(&found)?;
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(path)?;
    let found = file.metadata()?;
    check_owner(&found)?;
    if found.is_file() {
        // The kernel ends the lock with the file. A file system without locks is used without.
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return Ok(None);
        }
        // An existing file keeps its mode.
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.set_len(0)?;
    }
    Ok(Some(file))
}

/// Refuses what another user could read from or change, other than a device such as `/dev/null`.
fn check_owner(found: &Metadata) -> io::Result<()> {
    // SAFETY: has no arguments and cannot fail.
    let user = unsafe { libc::geteuid() };
    if found.uid() == user || found.file_type().is_char_device() {
        return Ok(());
    }
    Err(io::Error::new(ErrorKind::PermissionDenied, "the file belongs to another user"))
}

impl<W: Wire> Capture<W> {
    /// Starts a new file. `stepped`: frames are a microsecond apart, so that the same run gives the
    /// same file.
    ///
    /// # Errors
    /// The error of the file system.
    pub(crate) fn create(
        inner: W,
        address: IpAddr,
        pattern: &Path,
        stepped: bool,
    ) -> io::Result<Self> {
        let mut file = BufWriter::new(start(&name(pattern, address))?);
        file.write_all(&MAGIC.to_ne_bytes())?;
        for part in VERSION {
            file.write_all(&part.to_ne_bytes())?;
        }
        // Time zone, accuracy, longest frame, link type.
        for word in [0, 0, LONGEST, ETHERNET] {
            file.write_all(&u32::to_ne_bytes(word))?;
        }
        file.flush()?;
        Ok(Self { inner, address, file, stepped: stepped.then_some(0), lost: 0, class: 0 })
    }

    fn note(&mut self, (from, to): (SocketAddr, IpAddr), class: u8, frame: &[u8]) {
        self.lost += u64::from(self.write((from, to), class, frame).is_err());
    }

    fn write(
        &mut self,
        (from, to): (SocketAddr, IpAddr),
        class: u8,
        frame: &[u8],
    ) -> io::Result<()> {
        let micros = if let Some(count) = &mut self.stepped {
            *count += 1;
            *count
        } else {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            now.unwrap_or_default().as_micros() as u64
        };
        let network = headers::network((from.ip(), to), class, frame.len());
        let (network, kind) = if to.is_ipv4() {
            (&network[headers::GRH - headers::IPV4..], [0x08, 0x00])
        } else {
            (&network[..], [0x86, 0xdd])
        };
        let udp = headers::udp(from.port(), frame.len());
        let parts: [&[u8]; 6] = [&mac(to), &mac(from.ip()), &kind, network, &udp, frame];
        let length = parts.iter().map(|part| part.len()).sum::<usize>() as u32;
        for word in [(micros / 1_000_000) as u32, (micros % 1_000_000) as u32, length, length] {
            self.file.write_all(&word.to_ne_bytes())?;
        }
        parts.iter().try_for_each(|part| self.file.write_all(part))
    }
}

impl<W: Wire> Wire for Capture<W> {
    fn send(&mut self, to: IpAddr, frame: &[u8]) {
        self.note((SocketAddr::new(self.address, ROCE_PORT), to), self.class, frame);
        self.inner.send(to, frame);
    }

    fn set_class(&mut self, class: u8) {
        self.class = class;
        self.inner.set_class(class);
    }

    fn class(&self) -> u8 {
        self.inner.class()
    }

    fn group(&self) -> Option<IpAddr> {
        self.inner.group()
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.inner.join(group)
    }

    fn leave(&mut self, group: IpAddr) {
        self.inner.leave(group);
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<SocketAddr> {
        let from = self.inner.receive(frame)?;
        // Frames from this device were captured when they were sent.
        if from.ip() != self.address {
            let to = self.inner.group().unwrap_or(self.address);
            self.note((from, to), self.inner.class(), frame);
        }
        Some(from)
    }

    fn tick(&mut self, now: u64) {
        self.inner.tick(now);
    }

    fn deadline(&self) -> Option<u64> {
        self.inner.deadline()
    }

    fn flush(&mut self) {
        if !self.file.buffer().is_empty() {
            self.lost += u64::from(self.file.flush().is_err());
        }
        self.inner.flush();
    }

    fn take_link_command(&mut self) -> Option<bool> {
        self.inner.take_link_command()
    }

    fn is_full(&self) -> bool {
        self.inner.is_full()
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.inner.descriptor()
    }

    fn rest(&mut self) -> bool {
        self.inner.rest()
    }

    fn count(&self, counters: &mut Counters) {
        counters.capture_lost += self.lost;
        self.inner.count(counters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_is_for_the_owner_only() {
        let folder = std::env::temp_dir().join(format!("barewire-private-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (file, link) = (folder.join("file"), folder.join("link"));
        let mode = || file.metadata().unwrap().permissions().mode() & 0o777;
        create(&file).unwrap();
        assert_eq!(mode(), 0o600);
        // A file that others can read.
        std::fs::write(&file, "old").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        create(&file).unwrap();
        assert_eq!((mode(), file.metadata().unwrap().len()), (0o600, 0));
        std::fs::write(&file, "kept").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(create(&link).is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"kept");
        // A pipe of another user, who would read the packets. Only root can change its owner; other
        // users test with a file of root.
        let pipe = folder.join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: the name is a string that ends in a zero.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let is_root = pipe.metadata().unwrap().uid() == 0;
        if is_root {
            std::os::unix::fs::chown(&pipe, Some(65534), None).unwrap();
        }
        let refused = create(if is_root { &pipe } else { Path::new("/etc/hostname") });
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert!(create(Path::new("/dev/null")).unwrap().is_some());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn each_device_has_its_file() {
        let address = "::1".parse().unwrap();
        assert_eq!(name(Path::new("/tmp/%a.pcap"), address), Path::new("/tmp/::1.pcap"));
        assert_eq!(name(Path::new("x.pcap"), address), Path::new("x.pcap"));
        let process = std::process::id();
        let own = PathBuf::from(format!("/tmp/x-{process}.pcap"));
        assert_eq!(name(Path::new("/tmp/x-%p.pcap"), address), own);
        assert_eq!(own_name(Path::new("/tmp/x.pcap"), 1), own);
        let second = PathBuf::from(format!("x-{process}-2"));
        assert_eq!(own_name(Path::new("x"), 2), second);
    }

    #[test]
    fn a_file_in_use_is_not_touched() {
        let folder = std::env::temp_dir().join(format!("barewire-used-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("x.pcap");
        let mut first = start(&path).unwrap();
        first.write_all(b"first").unwrap();
        let mut others = [b"second", b"third!"].map(|text| (start(&path).unwrap(), text));
        for (file, text) in &mut others {
            file.write_all(*text).unwrap();
        }
        let read = |path: &Path| std::fs::read(path).unwrap();
        assert_eq!(read(&path), b"first");
        assert_eq!(read(&own_name(&path, 1)), b"second");
        assert_eq!(read(&own_name(&path, 2)), b"third!");
        // One that has ended is started again.
        drop(first);
        start(&path).unwrap();
        assert_eq!(read(&path), b"");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
