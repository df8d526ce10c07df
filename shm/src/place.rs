//! The directories where sockets are, and the sockets that killed processes left there.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::address::Place;

/// How the name of every socket begins; its port's number follows.
pub(crate) const PREFIX: &str = "barewire-";
/// The most left-over sockets that one process removes.
const MOST_SWEPT: usize = 1024;
/// Between the making of a socket's file and the moment when connections are refused or taken, it looks
/// left over. A file of this age is past that.
const SETTLED: Duration = Duration::from_secs(1);

impl Place {
    /// Where a socket may be, in the order to try; `None` is the abstract namespace. Makes the directory
    /// that is this user's own.
    pub(crate) fn candidates(&self) -> Vec<Option<PathBuf>> {
        match self {
            Self::Directory(directory) => vec![Some(directory.clone())],
            Self::Abstract => vec![None],
            Self::Private => {
                let user = rustix::process::geteuid().as_raw();
                let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
                let runtime = runtime.filter(|path| path.is_absolute() && is_private(path));
                let runtime = runtime.map(|path| path.join("barewire"));
                let own = runtime.into_iter().chain([PathBuf::from(format!("/tmp/barewire-{user}"))]);
                own.filter(|path| made_private(path)).map(Some).chain([None]).collect()
            }
        }
    }
}

/// Makes the directory if it is not there. True if only this user can enter it.
fn made_private(path: &Path) -> bool {
    // It may be there; what it is is looked at in any case.
    let _ = fs::DirBuilder::new().mode(0o700).create(path);
    is_private(path)
}

/// What others may do.
const OTHERS: Mode = Mode::RWXG.union(Mode::RWXO);

/// True if `path` is a directory of this user, not a symbolic link, that others can neither enter nor
/// change. Takes no descriptor, so that it is also right in a process that has none left.
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
    for entry in entries.filter_map(Result::ok).take(MOST_SWEPT) {
        let (name, path) = (entry.file_name(), entry.path());
        let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let is_ours =
            number.is_some_and(|number| number.len() == 16 && u64::from_str_radix(number, 16).is_ok());
        let is_old = entry.metadata().is_ok_and(|found| {
            let age = found.modified().ok().and_then(|made| SystemTime::now().duration_since(made).ok());
            found.uid() == user && age.is_some_and(|age| age > SETTLED)
        });
        if is_ours && is_old && is_left_over(&path) {
            // Another process may sweep at the same time.
            let _ = fs::remove_file(path);
        }
    }
}

/// No process has the socket at `path`. A process that has it does not notice the question: it comes from
/// a socket of another type, which the kernel refuses with another error.
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
    fn only_a_directory_of_this_user_alone_is_private() {
        let base = std::env::temp_dir().join(format!("barewire-place-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let (good, open, link) = (base.join("good"), base.join("open"), base.join("link"));
        assert!(made_private(&good) && made_private(&good));
        assert_eq!(fs::metadata(&good).unwrap().mode() & 0o777, 0o700);
        assert!(made_private(&open));
        fs::set_permissions(&open, fs::Permissions::from_mode(0o750)).unwrap();
        symlink(&good, &link).unwrap();
        fs::write(base.join("file"), "").unwrap();
        for wrong in [&open, &link, &base.join("file"), &base.join("missing").join("deep")] {
            assert!(!made_private(wrong), "{}", wrong.display());
        }
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&good, Some(65534), None).unwrap();
            assert!(!is_private(&good), "another user's");
        } else {
            eprintln!("not checked: only root can make another user's directory");
        }
        fs::remove_dir_all(&base).unwrap();
    }
}
