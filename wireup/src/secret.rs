//! Numbers that another process has only if this one sent them to it.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use barewire_tcp::key::random;
use highway::{HighwayHash, HighwayHasher, Key};

const BYTES: usize = 32;
/// What the numbers are for: none is used for two purposes.
const NUMBER: u64 = 1;
const PROOF: u64 = 2;

/// A secret of this process, from which it derives numbers: random numbers, which differ from each
/// other, and proofs that belong to some bytes. They are outputs of HighwayHash under the secret,
/// so that those which a peer has do not help it to guess another one.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    key: [u64; BYTES / 8],
    /// Random numbers so far.
    count: u64,
}

impl Secret {
    /// A secret from the kernel's random bytes.
    pub fn random() -> Self {
        if let Ok(bytes) = random() {
            return Self::from_bytes(bytes);
        }
        // A sandbox forbids getrandom(2). The standard library then reads its keys from a file.
        let key = std::array::from_fn(|at| RandomState::new().hash_one(at));
        Self { key, count: 0 }
    }

    /// The secret with these bytes, so that a run can be repeated.
    pub fn from_bytes(bytes: [u8; BYTES]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        Self { key: std::array::from_fn(|at| u64::from_le_bytes(words[at])), count: 0 }
    }

    fn hash(&self, purpose: u64, bytes: &[u8]) -> u64 {
        let mut hasher = HighwayHasher::new(Key(self.key));
        hasher.append(&purpose.to_le_bytes());
        hasher.append(bytes);
        hasher.finalize64()
    }

    /// Another random number, which is not 0.
    pub(crate) fn number(&mut self) -> u64 {
        loop {
            self.count = self.count.wrapping_add(1);
            let number = self.hash(NUMBER, &self.count.to_le_bytes());
            if number != 0 {
                return number;
            }
        }
    }

    /// The number that belongs to `bytes`.
    pub(crate) fn proof(&self, bytes: &[u8]) -> u64 {
        self.hash(PROOF, bytes)
    }
}

/// Omits the secret.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn numbers_differ_between_each_other_and_between_secrets() {
        let mut secrets = [Secret::random(), Secret::random(), Secret::from_bytes([7; BYTES])];
        let numbers: HashSet<u64> =
            secrets.iter_mut().flat_map(|secret| (0..1000).map(|_| secret.number())).collect();
        assert_eq!(numbers.len(), 3000);
        // Every bit is set in about half of them.
        for bit in 0..64 {
            let set = numbers.iter().filter(|number| *number >> bit & 1 == 1).count();
            assert!((1200..1800).contains(&set), "bit {bit}: {set}");
        }
    }

    #[test]
    fn a_proof_belongs_to_its_bytes_and_its_secret() {
        let (one, other) = (Secret::from_bytes([1; BYTES]), Secret::from_bytes([2; BYTES]));
        assert_eq!(one.proof(b"bytes"), one.clone().proof(b"bytes"));
        let proofs = [one.proof(b"bytes"), one.proof(b"byte"), other.proof(b"bytes")];
        assert!(proofs[0] != proofs[1] && proofs[0] != proofs[2]);
        assert!(!format!("{one:?}").contains('1'));
    }
}
