//! How two ends prove to each other that they know the job's key, before anything else is said.
//!
//! | step | who | bytes | what |
//! |---|---|---|---|
//! | hello | who connects | 40 | header, challenge |
//! | challenge | who accepts | 72 | header, challenge, proof over both |
//! | claim | who connects | 72 | what it wants, proof over all of it |
//! | verdict | who accepts | 8 | whether it may |
//!
//! Every header is `BWTH`, the version as u16 and two zeros; integers are little-endian. Challenges are 32 random bytes. The two
//! proofs are HMAC-SHA-256 with different labels, so that neither serves as the other, nor in another connection.

use thiserror::Error;

use crate::key::{Key, PROOF_BYTES};

const MAGIC: [u8; 4] = *b"BWTH";
/// The version of the handshake and of what follows it.
pub const VERSION: u16 = 1;
const HEADER: usize = 8;
const CHALLENGE: usize = 32;
const CLAIM: usize = 40;

/// Bytes of the hello.
pub const HELLO_BYTES: usize = HEADER + CHALLENGE;
/// Bytes of the challenge.
pub const CHALLENGE_BYTES: usize = HELLO_BYTES + PROOF_BYTES;
/// Bytes of the claim.
pub const CLAIM_BYTES: usize = CLAIM + PROOF_BYTES;
/// Bytes of the verdict.
pub const VERDICT_BYTES: usize = 8;

const ACCEPTS: &[u8] = b"barewire tcp 1 accepts";
const CONNECTS: &[u8] = b"barewire tcp 1 connects";

/// Why a handshake ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HandshakeError {
    /// The other end speaks something else.
    #[error("it does not speak barewire's handshake")]
    Foreign,
    /// The other end speaks another version.
    #[error(
        "it speaks version {0} of the handshake, this end version {VERSION}: use the same barewire at both ends"
    )]
    Version(u16),
    /// The proof is wrong.
    #[error("it does not know this job's key: give both ends the same key")]
    Key,
    /// What it wants cannot be.
    #[error("it asks for something unknown")]
    Claim,
    /// The other end does not let this one in.
    #[error("{0}")]
    Verdict(Verdict),
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// Messages between two endpoints.
    Messages = 1,
    /// Requests to the memory of a process.
    Memory = 2,
    /// A message stream.
    Stream = 3,
}

/// What the end that connects wants: the numbers of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// What the connection is for.
    pub purpose: Purpose,
    /// Whom it wants: the number of an interface or a domain.
    pub service: u64,
    /// And its endpoint.
    pub endpoint: u64,
    /// Who it is: the number of its interface.
    pub from_service: u64,
    /// And its endpoint.
    pub from_endpoint: u64,
}

impl Claim {
    fn to_bytes(self) -> [u8; CLAIM] {
        let mut bytes = [0; CLAIM];
        bytes[0] = self.purpose as u8;
        let numbers = [self.service, self.endpoint, self.from_service, self.from_endpoint];
        for (place, number) in bytes[8..].as_chunks_mut::<8>().0.iter_mut().zip(numbers) {
            *place = number.to_le_bytes();
        }
        bytes
    }

    fn parse(bytes: &[u8; CLAIM]) -> Option<Self> {
        let purpose = match bytes[..8] {
            [1, 0, 0, 0, 0, 0, 0, 0] => Purpose::Messages,
            [2, 0, 0, 0, 0, 0, 0, 0] => Purpose::Memory,
            [3, 0, 0, 0, 0, 0, 0, 0] => Purpose::Stream,
            _ => return None,
        };
        let (numbers, _) = bytes[8..].as_chunks::<8>();
        let [service, endpoint, from_service, from_endpoint] =
            std::array::from_fn(|i| u64::from_le_bytes(numbers[i]));
        Some(Self { purpose, service, endpoint, from_service, from_endpoint })
    }
}

/// Whether the end that connects may stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[repr(u8)]
pub enum Verdict {
    /// It may.
    #[error("it accepts")]
    Welcome = 0,
    /// There is no such interface, domain or endpoint.
    #[error("it has no such endpoint: it was closed, or the address is old")]
    Unknown = 1,
    /// The endpoint is connected to somebody else.
    #[error("its endpoint is connected to another one")]
    Taken = 2,
}

impl Verdict {
    /// The verdict as it goes over the wire.
    pub fn to_bytes(self) -> [u8; VERDICT_BYTES] {
        let [a, b, c, d] = MAGIC;
        [a, b, c, d, self as u8, 0, 0, 0]
    }
}

fn header() -> [u8; HEADER] {
    let ([a, b, c, d], [low, high]) = (MAGIC, VERSION.to_le_bytes());
    [a, b, c, d, low, high, 0, 0]
}

fn check_header(bytes: &[u8]) -> Result<(), HandshakeError> {
    let Some(found) = bytes.first_chunk::<HEADER>() else { return Err(HandshakeError::Foreign) };
    if found[..4] != MAGIC || found[6..] != [0, 0] {
        return Err(HandshakeError::Foreign);
    }
    match u16::from_le_bytes([found[4], found[5]]) {
        VERSION => Ok(()),
        other => Err(HandshakeError::Version(other)),
    }
}

fn opening(challenge: [u8; CHALLENGE]) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..HEADER].copy_from_slice(&header());
    bytes[HEADER..].copy_from_slice(&challenge);
    bytes
}

/// The end that connects.
#[derive(Debug)]
pub struct Initiator {
    hello: [u8; HELLO_BYTES],
    claim: [u8; CLAIM],
}

impl Initiator {
    /// Begins a handshake with a challenge that was never used before.
    pub fn new(claim: Claim, challenge: [u8; CHALLENGE]) -> Self {
        Self { hello: opening(challenge), claim: claim.to_bytes() }
    }

    /// What to send first.
    pub fn hello(&self) -> &[u8; HELLO_BYTES] {
        &self.hello
    }

    /// Checks the other end's proof and answers with the claim and the proof of this one.
    ///
    /// # Errors
    /// [`HandshakeError::Foreign`], [`HandshakeError::Version`], [`HandshakeError::Key`]
    pub fn answer(
        &self,
        key: &Key,
        challenge: &[u8; CHALLENGE_BYTES],
    ) -> Result<[u8; CLAIM_BYTES], HandshakeError> {
        check_header(challenge)?;
        let (opening, proof) = challenge.split_at(HELLO_BYTES);
        if !key.verify(ACCEPTS, &[&self.hello, opening], proof) {
            return Err(HandshakeError::Key);
        }
        let mut bytes = [0; CLAIM_BYTES];
        bytes[..CLAIM].copy_from_slice(&self.claim);
        bytes[CLAIM..].copy_from_slice(&key.prove(CONNECTS, &[&self.hello, opening, &self.claim]));
        Ok(bytes)
    }

    /// Reads the verdict.
    ///
    /// # Errors
    /// [`HandshakeError::Verdict`] if it is not welcome, [`HandshakeError::Foreign`]
    pub fn judge(bytes: &[u8; VERDICT_BYTES]) -> Result<(), HandshakeError> {
        for verdict in [Verdict::Welcome, Verdict::Unknown, Verdict::Taken] {
            if *bytes == verdict.to_bytes() {
                return if verdict == Verdict::Welcome {
                    Ok(())
                } else {
                    Err(HandshakeError::Verdict(verdict))
                };
            }
        }
        Err(HandshakeError::Foreign)
    }
}

/// The end that accepts.
#[derive(Debug)]
pub struct Acceptor {
    hello: [u8; HELLO_BYTES],
    opening: [u8; HELLO_BYTES],
}

impl Acceptor {
    /// Answers a hello with a challenge that was never used before.
    ///
    /// # Errors
    /// [`HandshakeError::Foreign`], [`HandshakeError::Version`]
    pub fn challenge(
        key: &Key,
        hello: &[u8; HELLO_BYTES],
        challenge: [u8; CHALLENGE],
    ) -> Result<(Self, [u8; CHALLENGE_BYTES]), HandshakeError> {
        check_header(hello)?;
        let this = Self { hello: *hello, opening: opening(challenge) };
        let mut bytes = [0; CHALLENGE_BYTES];
        bytes[..HELLO_BYTES].copy_from_slice(&this.opening);
        bytes[HELLO_BYTES..].copy_from_slice(&key.prove(ACCEPTS, &[hello, &this.opening]));
        Ok((this, bytes))
    }

    /// Checks the proof and tells what the other end wants.
    ///
    /// # Errors
    /// [`HandshakeError::Key`], [`HandshakeError::Claim`]
    pub fn admit(&self, key: &Key, claim: &[u8; CLAIM_BYTES]) -> Result<Claim, HandshakeError> {
        let Some((claim, proof)) = claim.split_first_chunk::<CLAIM>() else {
            return Err(HandshakeError::Claim);
        };
        if !key.verify(CONNECTS, &[&self.hello, &self.opening, claim], proof) {
            return Err(HandshakeError::Key);
        }
        Claim::parse(claim).ok_or(HandshakeError::Claim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: Claim = Claim {
        purpose: Purpose::Messages,
        service: 1,
        endpoint: 2,
        from_service: 3,
        from_endpoint: u64::MAX,
    };

    fn key(seed: u8) -> Key {
        Key::from_bytes([seed; 32])
    }

    #[test]
    fn two_ends_of_a_job_meet() {
        let initiator = Initiator::new(CLAIM, [1; 32]);
        let (acceptor, challenge) = Acceptor::challenge(&key(9), initiator.hello(), [2; 32]).unwrap();
        let claim = initiator.answer(&key(9), &challenge).unwrap();
        assert_eq!(acceptor.admit(&key(9), &claim), Ok(CLAIM));
        assert_eq!(Initiator::judge(&Verdict::Welcome.to_bytes()), Ok(()));
        let taken = Initiator::judge(&Verdict::Taken.to_bytes());
        assert_eq!(taken, Err(HandshakeError::Verdict(Verdict::Taken)));
        assert_eq!(Initiator::judge(&[0; 8]), Err(HandshakeError::Foreign));
    }

    #[test]
    fn golden_bytes() {
        let initiator = Initiator::new(CLAIM, [7; 32]);
        let mut hello = [7; 40];
        hello[..8].copy_from_slice(b"BWTH\x01\x00\x00\x00");
        assert_eq!(*initiator.hello(), hello);
        let claim = CLAIM.to_bytes();
        assert_eq!(claim[..16], [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((claim[32], Claim::parse(&claim)), (0xff, Some(CLAIM)));
        assert_eq!(Verdict::Unknown.to_bytes(), *b"BWTH\x01\0\0\0");
    }

    #[test]
    fn another_key_is_noticed_by_either_end() {
        let initiator = Initiator::new(CLAIM, [1; 32]);
        let (acceptor, challenge) = Acceptor::challenge(&key(9), initiator.hello(), [2; 32]).unwrap();
        assert_eq!(initiator.answer(&key(8), &challenge), Err(HandshakeError::Key));
        // One that does not care: a proof made with another key.
        let forged = Acceptor::challenge(&key(8), initiator.hello(), [2; 32]).unwrap().1;
        let claim = initiator.answer(&key(8), &forged).unwrap();
        assert_eq!(acceptor.admit(&key(9), &claim), Err(HandshakeError::Key));
    }

    #[test]
    fn what_was_recorded_is_of_no_use() {
        let initiator = Initiator::new(CLAIM, [1; 32]);
        let (_, challenge) = Acceptor::challenge(&key(9), initiator.hello(), [2; 32]).unwrap();
        let claim = initiator.answer(&key(9), &challenge).unwrap();
        // The same hello again meets a new challenge.
        let (acceptor, _) = Acceptor::challenge(&key(9), initiator.hello(), [3; 32]).unwrap();
        assert_eq!(acceptor.admit(&key(9), &claim), Err(HandshakeError::Key));
        // And a recorded challenge does not answer a new hello.
        assert_eq!(Initiator::new(CLAIM, [4; 32]).answer(&key(9), &challenge), Err(HandshakeError::Key));
    }

    /// An end without the key that hands on what another end says: neither proof serves as the other.
    #[test]
    fn proofs_do_not_serve_as_each_other() {
        let hello = opening([5; 32]);
        let (acceptor, challenge) = Acceptor::challenge(&key(9), &hello, [5; 32]).unwrap();
        let mut claim = [0; CLAIM_BYTES];
        claim[40..].copy_from_slice(&challenge[HELLO_BYTES..]);
        assert_eq!(acceptor.admit(&key(9), &claim), Err(HandshakeError::Key));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let initiator = Initiator::new(CLAIM, [1; 32]);
        let (acceptor, challenge) = Acceptor::challenge(&key(9), initiator.hello(), [2; 32]).unwrap();
        for at in 0..CHALLENGE_BYTES {
            let mut changed = challenge;
            changed[at] ^= 1;
            assert!(initiator.answer(&key(9), &changed).is_err(), "{at}");
        }
        let claim = initiator.answer(&key(9), &challenge).unwrap();
        for at in 0..CLAIM_BYTES {
            let mut changed = claim;
            changed[at] ^= 1;
            assert_eq!(acceptor.admit(&key(9), &changed), Err(HandshakeError::Key), "{at}");
        }
        let mut old = *initiator.hello();
        old[4] = 2;
        let answer = Acceptor::challenge(&key(9), &old, [0; 32]).map(drop);
        assert_eq!(answer, Err(HandshakeError::Version(2)));
    }
}
