//! The secret key of a user's devices, and the file that holds it.

use std::fmt::{self, Write as _};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{env, process};

use thiserror::Error;

/// Environment variable with the key of devices' packets, for [`crate::Config::from_env`].
pub const KEY_VARIABLE: &str = "BAREWIRE_HCA_KEY";

const BYTES: usize = 32;
/// The file name of the key.
const FILE: &str = "hca.key";

/// The key of the tags that packets carry on the UDP wire: see [`crate::WireKind::Udp`]. It is a
/// secret, which `Debug` does not show.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; BYTES]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// No key could be read or created.
#[derive(Debug, Error)]
pub enum KeyError {
    /// The text is not a key.
    #[error("a key is {} hexadecimal digits: `barewire key FILE` writes one", 2 * BYTES)]
    Text,
    /// Other users can access the file or its directory.
    #[error(
        "'{}' {why}, so that its key is no secret; remove it, or set {KEY_VARIABLE}",
        path.display()
    )]
    Exposed {
        /// The file or directory.
        path: PathBuf,
        /// The problem.
        why: &'static str,
    },
    /// The file does not hold a key.
    #[error("'{}' does not hold a key; remove it, or set {KEY_VARIABLE}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
    },
    /// The file can be neither read nor created.
    #[error("cannot keep a key in '{}': {source}; set {KEY_VARIABLE} to a key", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel provides no random numbers.
    #[error("cannot read random numbers: {source}")]
    Random {
        /// The kernel's error.
        source: io::Error,
    },
}

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let digits: Option<Vec<u8>> =
            text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
        let digits = digits.filter(|digits| digits.len() == 2 * BYTES).ok_or(KeyError::Text)?;
        Ok(Self(std::array::from_fn(|at| digits[2 * at] << 4 | digits[2 * at + 1])))
    }
}

impl Key {
    /// Creates a key.
    pub fn random() -> Result<Self, KeyError> {
        let mut bytes = [0; BYTES];
        fill(&mut bytes).map_err(|source| KeyError::Random { source })?;
        Ok(Self(bytes))
    }

    /// Returns the key of the user that runs this process. It is kept in a file that only this user
    /// can read, and created at the first call: `hca.key` in `$XDG_RUNTIME_DIR/barewire`,
    /// `$HOME/.local/state/barewire` or `/tmp/barewire-UID`, whichever is available first.
    ///
    /// # Errors
    /// [`KeyError`]: the file is open to other users, or no directory is available.
    pub fn of_user() -> Result<Self, KeyError> {
        // SAFETY: no pointers.
        let user = unsafe { libc::geteuid() };
        let under =
            |variable, path| Some(PathBuf::from(env::var_os(variable)?)).map(|base| (base, path));
        let places = [under("XDG_RUNTIME_DIR", "barewire"), under("HOME", ".local/state/barewire")];
        for (base, path) in places.into_iter().flatten() {
            // Directories of other users, as after `sudo`, are not used.
            let own = fs::metadata(&base).is_ok_and(|found| found.is_dir() && found.uid() == user);
            if base.is_absolute() && own && make(&base.join(path)).is_ok() {
                return Self::kept_in(&base.join(path), user);
            }
        }
        let last = PathBuf::from(format!("/tmp/barewire-{user}"));
        make(&last).map_err(|source| KeyError::File { path: last.clone(), source })?;
        Self::kept_in(&last, user)
    }

    /// Returns the key in `directory`, or creates one.
    fn kept_in(directory: &Path, user: u32) -> Result<Self, KeyError> {
        let failed = |path: &Path, source| KeyError::File { path: path.to_owned(), source };
        let found = fs::symlink_metadata(directory).map_err(|source| failed(directory, source))?;
        let exposed = |path: &Path, why| Err(KeyError::Exposed { path: path.to_owned(), why });
        if !found.is_dir() {
            return exposed(directory, "is no directory");
        }
        if found.uid() != user {
            return exposed(directory, "belongs to another user");
        }
        if found.mode() & 0o022 != 0 {
            return exposed(directory, "can be written by other users");
        }
        let path = directory.join(FILE);
        let mut open = OpenOptions::new();
        // Does not follow links or wait for pipes.
        open.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = match open.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Self::put(directory, &path)?;
                open.open(&path)
            }
            result => result,
        };
        let file = file.map_err(|source| failed(&path, source))?;
        let found = file.metadata().map_err(|source| failed(&path, source))?;
        if !found.is_file() {
            return exposed(&path, "is no file");
        }
        if found.uid() != user {
            return exposed(&path, "belongs to another user");
        }
        if found.mode() & 0o077 != 0 {
            return exposed(&path, "can be read or written by other users");
        }
        let mut text = String::new();
        let read = file.take(2 * BYTES as u64 + 2).read_to_string(&mut text);
        if read.is_err() {
            return Err(KeyError::Content { path });
        }
        text.trim_end().parse().map_err(|_| KeyError::Content { path })
    }

    /// Creates a key at `path`, unless another process does so first.
    fn put(directory: &Path, path: &Path) -> Result<(), KeyError> {
        let failed = |path: &Path, source| KeyError::File { path: path.to_owned(), source };
        let key = Self::random()?;
        let mut suffix = [0; 8];
        fill(&mut suffix).map_err(|source| KeyError::Random { source })?;
        let name = format!("{FILE}.{}.{:016x}", process::id(), u64::from_ne_bytes(suffix));
        let draft = directory.join(name);
        // Renamed when complete, so that no reader sees a part of it.
        let written =
            File::options().write(true).create_new(true).mode(0o600).open(&draft).and_then(
                |mut file| {
                    writeln!(file, "{}", key.to_hex())?;
                    match fs::hard_link(&draft, path) {
                        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                        result => result,
                    }
                },
            );
        let _ = fs::remove_file(&draft);
        written.map_err(|source| failed(path, source))
    }

    /// Returns the key as hexadecimal digits, for [`KEY_VARIABLE`]. With it anyone can forge
    /// packets.
    pub fn to_hex(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    pub(crate) fn words(&self) -> [u64; BYTES / 8] {
        let (words, _) = self.0.as_chunks::<8>();
        std::array::from_fn(|at| u64::from_le_bytes(words[at]))
    }
}

/// Creates a directory for this user only. An existing one is not changed.
fn make(directory: &Path) -> io::Result<()> {
    if fs::symlink_metadata(directory).is_ok() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Fills `bytes` with the kernel's random numbers.
pub(crate) fn fill(bytes: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while at < bytes.len() {
        let rest = &mut bytes[at..];
        // SAFETY: the buffer has the given length and is borrowed exclusively.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(got) {
            Ok(got) => at += got,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const TEXT: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = env::temp_dir().join(format!("barewire-key-{}-{name}", process::id()));
            make(&path).unwrap();
            Self(path)
        }

        fn key(&self) -> Result<Key, KeyError> {
            // SAFETY: no pointers.
            Key::kept_in(&self.0, unsafe { libc::geteuid() })
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn text_and_key_are_the_same() {
        let key: Key = TEXT.parse().unwrap();
        assert_eq!((key.0[0], key.0[31], key.to_hex().as_str()), (0, 31, TEXT));
        assert_eq!(TEXT.to_uppercase().parse::<Key>().unwrap(), key);
        for wrong in ["", "00", &TEXT[1..], &format!("{TEXT}0"), &TEXT.replace('f', "g"), "é"] {
            assert!(matches!(wrong.parse::<Key>(), Err(KeyError::Text)), "{wrong}");
        }
        assert_eq!(format!("{key:?}"), "Key(..)");
        assert_ne!(Key::random().unwrap(), Key::random().unwrap());
    }

    #[test]
    fn the_first_makes_it_and_all_others_find_it() {
        let place = Place::new("first");
        let keys = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| place.key().unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(keys.iter().all(|key| *key == keys[0]));
        assert_eq!(place.key().unwrap(), keys[0]);
        let mode = fs::metadata(place.0.join(FILE)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(&place.0).unwrap().count(), 1);
    }

    #[test]
    fn what_others_can_reach_is_refused() {
        let place = Place::new("exposed");
        place.key().unwrap();
        let file = place.0.join(FILE);
        let modes = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let exposed = || matches!(place.key(), Err(KeyError::Exposed { .. }));
        modes(&file, 0o640);
        assert!(exposed());
        let text = place.key().unwrap_err().to_string();
        assert!(text.contains("can be read") && text.contains(KEY_VARIABLE), "{text}");
        modes(&file, 0o600);
        modes(&place.0, 0o770);
        assert!(exposed());
        modes(&place.0, 0o700);
        assert!(matches!(Key::kept_in(&place.0, 12345), Err(KeyError::Exposed { .. })));
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
        assert!(matches!(place.key(), Err(KeyError::File { .. })));
        fs::remove_file(&file).unwrap();
        fs::write(&file, "no key").unwrap();
        modes(&file, 0o600);
        assert!(matches!(place.key(), Err(KeyError::Content { .. })));
    }
}
