//! Random identifiers and secrets.

use std::hash::{BuildHasher, RandomState};
use std::io;

/// Returns a number that two processes are unlikely to share. It is no secret: see [`secret`].
pub(crate) fn number() -> u64 {
    // The hasher's keys come from the kernel's random source.
    RandomState::new().hash_one(std::process::id())
}

/// Returns secret random bytes from the kernel. It blocks only before the kernel's pool is
/// initialised, early at boot.
///
/// # Errors
/// If the kernel has no getrandom(2), or a sandbox forbids it.
pub(crate) fn secret<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= 256, "getrandom(2) is not interrupted for up to 256 bytes") };
    let mut bytes = [0; N];
    let flags = rustix::rand::GetRandomFlags::empty();
    let count = rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut bytes, flags))?;
    if count == N { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_and_fill_their_bytes() {
        let secrets: Vec<[u8; 32]> = (0..8).map(|_| secret().unwrap()).collect();
        for (at, one) in secrets.iter().enumerate() {
            assert!(one.as_chunks::<8>().0.iter().all(|word| *word != [0; 8]), "{one:?}");
            assert!(!secrets[..at].contains(one));
        }
    }
}
