//! The secret that the processes of a job share.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use ring::hmac::{self, HMAC_SHA256};
use rustix::fs::OFlags;
use thiserror::Error;
use zeroize::{Zeroize, Zeroizing};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Bytes of a proof that a key is known.
pub(crate) const PROOF_BYTES: usize = 32;
/// Names the file that a key is read from.
pub const KEY_FILE_VARIABLE: &str = "BAREWIRE_KEY_FILE";
/// Holds a key as hexadecimal digits.
pub const KEY_VARIABLE: &str = "BAREWIRE_KEY";

/// Why there is no key.
#[derive(Debug, Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("cannot read the key file {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// Not only its owner may read the file.
    #[error(
        "the key file {path} has mode {mode:03o}, so that others may read it: chmod 600 {path}"
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Another user owns the file, and could change it.
    #[error("the key file {path} belongs to user {owner}, and this process runs as user {user}")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The owner's number.
        owner: u32,
        /// This process's effective user.
        user: u32,
    },
    /// A FIFO, a device or a directory.
    #[error("the key file {path} is not a regular file")]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// What was given is neither 32 bytes nor 64 hexadecimal digits.
    #[error("{place} holds no key: a key is 32 bytes, or 64 hexadecimal digits")]
    Malformed {
        /// The file or the variable.
        place: String,
    },
    /// The kernel has no random bytes.
    #[error("the kernel has no random bytes: {0}")]
    NoRandomness(io::Error),
}

/// The secret that the processes of a job share: a process that has it belongs to the job.
///
/// It is never sent. Two ends prove to each other that they have it, with fresh challenges. Its
/// bytes are wiped when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; KEY_BYTES]);

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Key {
    /// A random key.
    pub fn generate() -> Result<Self, KeyError> {
        random().map(Self).map_err(KeyError::NoRandomness)
    }

    /// The key with these bytes, which should be random.
    pub const fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// Reads a key of 32 bytes or 64 hexadecimal digits from a regular file. The file must belong
    /// to the effective user of this process, and only its owner may read it. Never blocks.
    ///
    /// # Errors
    /// [`KeyError::Unreadable`], [`KeyError::NotAFile`], [`KeyError::Foreign`],
    /// [`KeyError::Exposed`], [`KeyError::Malformed`]
    pub fn from_file(path: &Path) -> Result<Self, KeyError> {
        let unreadable = |source| KeyError::Unreadable { path: path.to_owned(), source };
        // Without the flag the open of a FIFO waits for a writer.
        let file = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(path)
            .map_err(unreadable)?;
        let found = file.metadata().map_err(unreadable)?;
        if !found.is_file() {
            return Err(KeyError::NotAFile { path: path.to_owned() });
        }
        let (owner, user) = (found.uid(), rustix::process::geteuid().as_raw());
        if owner != user {
            return Err(KeyError::Foreign { path: path.to_owned(), owner, user });
        }
        let mode = found.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Exposed { path: path.to_owned(), mode });
        }
        let mut bytes = Zeroizing::new(Vec::with_capacity(2 * KEY_BYTES + 3));
        // One more than the longest key: digits and the end of a line.
        file.take(2 * KEY_BYTES as u64 + 3).read_to_end(&mut bytes).map_err(unreadable)?;
        Self::parse(&bytes).ok_or_else(|| KeyError::Malformed { place: path.display().to_string() })
    }

    /// Returns whether a variable names a key. As for other settings, an empty variable is not set.
    pub fn is_in_env() -> bool {
        variable(KEY_FILE_VARIABLE).is_some() || variable(KEY_VARIABLE).is_some()
    }

    /// The key in the file `BAREWIRE_KEY_FILE`, or of the digits `BAREWIRE_KEY`. Returns `None` if
    /// neither variable is set.
    ///
    /// # Errors
    /// As [`Self::from_file`].
    pub fn from_env() -> Result<Option<Self>, KeyError> {
        if let Some(path) = variable(KEY_FILE_VARIABLE) {
            return Self::from_file(Path::new(&path)).map(Some);
        }
        let Some(digits) = variable(KEY_VARIABLE) else { return Ok(None) };
        match digits.to_str().and_then(parse_digits) {
            Some(bytes) => Ok(Some(Self(bytes))),
            None => Err(KeyError::Malformed { place: KEY_VARIABLE.to_owned() }),
        }
    }

    /// The key as 64 hexadecimal digits, for a process of the same job.
    pub fn to_digits(&self) -> String {
        let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or_default();
        self.0.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        if let Ok(bytes) = bytes.try_into() {
            return Some(Self(bytes));
        }
        std::str::from_utf8(bytes).ok().map(str::trim_ascii).and_then(parse_digits).map(Self)
    }

    /// A proof of the key: HMAC-SHA-256 over `label` and `parts` one after the other.
    pub(crate) fn prove(&self, label: &[u8], parts: &[&[u8]]) -> [u8; PROOF_BYTES] {
        let tag = hmac::sign(&self.mac(), &joined(label, parts));
        std::array::from_fn(|i| tag.as_ref().get(i).copied().unwrap_or_default())
    }

    /// Checks a proof in constant time.
    pub(crate) fn verify(&self, label: &[u8], parts: &[&[u8]], proof: &[u8]) -> bool {
        hmac::verify(&self.mac(), &joined(label, parts), proof).is_ok()
    }

    /// HKDF-Extract: a secret of this key and `salt`.
    pub(crate) fn extract(&self, salt: &[u8]) -> Prk {
        Salt::new(HKDF_SHA256, salt).extract(&self.0)
    }

    fn mac(&self) -> hmac::Key {
        hmac::Key::new(HMAC_SHA256, &self.0)
    }
}

/// `label` and `parts` one after the other.
fn joined(label: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    [&[label], parts].concat().concat()
}

/// Omits the key.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Returns the value of an environment variable that is not empty.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn parse_digits(digits: &str) -> Option<[u8; KEY_BYTES]> {
    let mut bytes = [0; KEY_BYTES];
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return None };
    if pairs.len() != KEY_BYTES {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        let digit = |digit: &u8| char::from(*digit).to_digit(16).map(|digit| digit as u8);
        *byte = digit(high)? << 4 | digit(low)?;
    }
    Some(bytes)
}

/// Returns random bytes of the kernel, at most 256.
///
/// # Errors
/// Those of getrandom(2), which a sandbox may forbid.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= 256, "getrandom(2) gives this much at once") };
    let mut bytes = [0; N];
    loop {
        match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
            Ok(count) if count == N => return Ok(bytes),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path = std::env::temp_dir().join(format!("barewire-key-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn files_hold_bytes_or_digits() {
        let key = Key::generate().unwrap();
        for (name, bytes) in [
            ("bytes", key.0.to_vec()),
            ("digits", key.to_digits().into_bytes()),
            ("line", format!("{}\n", key.to_digits().to_uppercase()).into_bytes()),
        ] {
            let path = written(name, &bytes, 0o600);
            assert_eq!(Key::from_file(&path).unwrap(), key, "{name}");
            std::fs::remove_file(path).unwrap();
        }
        for bytes in [&b""[..], &[1; 31], &[1; 33], &[b'0'; 65], &[b'g'; 64], &[0xff; 64]] {
            let path = written("bad", bytes, 0o600);
            assert!(matches!(Key::from_file(&path), Err(KeyError::Malformed { .. })), "{bytes:?}");
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let path = written("exposed", &[1; 32], 0o640);
        let error = Key::from_file(&path).unwrap_err().to_string();
        assert!(error.contains("640") && error.contains("chmod 600"), "{error}");
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Key::from_file(&path), Err(KeyError::Unreadable { .. })));
    }

    #[test]
    fn a_fifo_is_refused_without_waiting_for_a_writer() {
        let path = std::env::temp_dir().join(format!("barewire-key-{}-fifo", std::process::id()));
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let fifo = path.clone();
        std::thread::spawn(move || sender.send(Key::from_file(&fifo)));
        let found = receiver.recv_timeout(std::time::Duration::from_mins(1));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(found, Ok(Err(KeyError::NotAFile { .. }))), "{found:?}");
    }

    /// Only root can change the owner of a file; other users test with a file of root.
    #[test]
    fn a_file_of_another_user_is_refused() {
        let path = written("foreign", &[1; 32], 0o600);
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        }
        let found = Key::from_file(if is_root { &path } else { Path::new("/etc/hostname") });
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(found, Err(KeyError::Foreign { .. })), "{found:?}");
    }

    #[test]
    fn a_key_is_not_printed() {
        assert_eq!(format!("{:?}", Key::from_bytes([7; 32])), "Key(..)");
    }

    /// As Python computes `hmac.new(bytes(range(32)), b"labelab", "sha256")`.
    #[test]
    fn the_proof_is_hmac_sha_256() {
        let key = Key::from_bytes(std::array::from_fn(|i| i as u8));
        let proof = key.prove(b"label", &[b"a", b"b"]);
        assert_eq!(
            Key::from_bytes(proof).to_digits(),
            "728fd11f1ee39c5338fc209ab0b78a86bcfd266b410eac84ac6de81305d25aab"
        );
        assert!(key.verify(b"label", &[b"ab"], &proof));
        assert!(!key.verify(b"label", &[b"ab"], &proof[..31]));
        assert!(!Key::from_bytes([0; 32]).verify(b"label", &[b"ab"], &proof));
    }
}
