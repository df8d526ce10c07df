//! The directories of sockets, and the removal of sockets that killed processes left there.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::address::Place;

/// Prefix of the name of every socket. The number of its port follows.
pub(crate) const PREFIX: &str = "barewire-";
/// The maximum number of directory entries that one process inspects.
const MAX_INSPECTED: usize = 1024;
/// Age from which a socket may be removed. A new socket looks abandoned between its creation and
/// its call of listen(2).
const MIN_AGE: Duration = Duration::from_secs(1);

impl Place {
    /// The locations at which a socket may listen, in order; `None` is the abstract namespace.
    /// Creates the private directory of this user.
    pub(crate) fn create(&self) -> Vec<Option<PathBuf>> {
        self.usable(create_private)
    }

    /// The locations at which a socket may be found, in order.
    pub(crate) fn candidates(&self) -> Vec<Option<PathBuf>> {
        self.usable(is_private)
    }

    fn usable(&self, is_usable: impl Fn(&Path) -> bool) -> Vec<Option<PathBuf>> {
        match self {
            Self::Directory(directory) => vec![Some(directory.clone())],
            Self::Abstract => vec![None],
            Self::Private => {
                let user = rustix::process::geteuid().as_raw();
                let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
                let runtime = runtime.filter(|path| path.is_absolute() && is_private(path));
                let runtime = runtime.map(|path| path.join("barewire"));
                let own =
                    runtime.into_iter().chain([PathBuf::from(format!("/tmp/barewire-{user}"))]);
                own.filter(|path| fits(path) && is_usable(path)).map(Some).chain([None]).collect()
            }
        }
    }
}

/// Returns whether the path of a socket in the directory is short enough for its address.
fn fits(directory: &Path) -> bool {
    SocketAddrUnix::new(directory.join(format!("{PREFIX}{:016x}", 0))).is_ok()
}

/// Creates the directory if it does not exist. Returns true if only this user can enter it.
fn create_private(path: &Path) -> bool {
    // An error is ignored, since the directory may exist; the check follows.
    let _ = fs::DirBuilder::new().mode(0o700).create(path);
    is_private(path)
}

/// The permission bits of group and others.
const OTHERS: Mode = Mode::RWXG.union(Mode::RWXO);

/// Returns true if `path` is a directory (not a symbolic link) of this user that others can neither
/// enter nor change. Opens no descriptor, so that it works in a process that has none left.
fn is_private(path: &Path) -> bool {
    rustix::fs::lstat(path).is_ok_and(|found| {
        FileType::from_raw_mode(found.st_mode) == FileType::Directory
            && found.st_uid == rustix::process::geteuid().as_raw()
            && Mode::from_raw_mode(found.st_mode).intersection(OTHERS).is_empty()
    })
}

/// Removes the sockets in `directory` whose process has ended.
pub(crate) fn sweep(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let user = rustix::process::geteuid().as_raw();
    for entry in entries.filter_map(Result::ok).take(MAX_INSPECTED) {
        let (name, path) = (entry.file_name(), entry.path());
        let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let is_ours = number
            .is_some_and(|number| number.len() == 16 && u64::from_str_radix(number, 16).is_ok());
        let is_old = entry.metadata().is_ok_and(|found| {
            let age =
                found.modified().ok().and_then(|made| SystemTime::now().duration_since(made).ok());
            found.uid() == user && age.is_some_and(|age| age > MIN_AGE)
        });
        if is_ours && is_old && is_left_over(&path) {
            // Another process may have removed the file already.
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns true if no process listens on the socket at `path`. A listening process does not notice
/// the check: the probe is a socket of another type, and the kernel rejects it with another error
/// than for an abandoned socket.
fn is_left_over(path: &Path) -> bool {
    let Ok(address) = SocketAddrUnix::new(path) else { return false };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
        .is_ok_and(|probe| rustix::net::connect(&probe, &address) == Err(Errno::CONNREFUSED))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_directory_whose_sockets_have_too_long_names_is_no_location() {
        // 108 bytes, of which 26 are those of the socket.
        let directory = |length: usize| PathBuf::from(format!("/{}", "y".repeat(length - 1)));
        assert!(fits(&directory(82)) && !fits(&directory(83)));
    }

    #[test]
    fn only_a_directory_of_this_user_alone_is_private() {
        let base = std::env::temp_dir().join(format!("barewire-place-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let (good, open, link) = (base.join("good"), base.join("open"), base.join("link"));
        assert!(create_private(&good) && create_private(&good));
        assert_eq!(fs::metadata(&good).unwrap().mode() & 0o777, 0o700);
        assert!(create_private(&open));
        fs::set_permissions(&open, fs::Permissions::from_mode(0o750)).unwrap();
        symlink(&good, &link).unwrap();
        fs::write(base.join("file"), "").unwrap();
        for wrong in [&open, &link, &base.join("file"), &base.join("missing").join("deep")] {
            assert!(!create_private(wrong), "{}", wrong.display());
        }
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&good, Some(65534), None).unwrap();
            assert!(!is_private(&good), "a directory of another user");
        } else {
            eprintln!("not checked: only root can create a directory of another user");
        }
        fs::remove_dir_all(&base).unwrap();
    }
}
