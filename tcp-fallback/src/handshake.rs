//! The handshake, in which both ends prove that they have the job's key.
//!
//! | step | sent by the end that | bytes | contents |
//! |---|---|---|---|
//! | hello | connects | 40 | header, challenge |
//! | challenge | accepts | 72 | header, challenge, proof over both |
//! | claim | connects | 72 | the request, proof over all of it |
//! | verdict | accepts | 40 | the decision, proof over everything before it |
//!
//! Every header is `BWTH`, the version as u16, whether the connection is protected (0 or 1), and a
//! zero; integers are little-endian. Challenges are 32 random bytes. The three proofs are
//! HMAC-SHA-256 with different labels, so that none can be used as another, or in another
//! connection.
//!
//! A connection is protected if either end requests it: the hello has the request of the end that
//! connects, and the challenge the result. Every proof covers both, so neither can be altered. The
//! bytes that follow are then in records ([`seal`](crate::seal)), whose keys are derived from the
//! job's key, the hello, the challenge and the claim (HKDF-SHA-256).

use thiserror::Error;

use std::io;

use ring::hkdf::HKDF_SHA256;

use crate::key::{Key, PROOF_BYTES};
use crate::seal::Seal;

const MAGIC: [u8; 4] = *b"BWTH";
/// The version of the handshake and of the protocols after it.
pub const VERSION: u16 = 3;
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
pub const VERDICT_BYTES: usize = 8 + PROOF_BYTES;

const ACCEPTS: &[u8] = b"barewire tcp 2 accepts";
const CONNECTS: &[u8] = b"barewire tcp 2 connects";
const VERDICT: &[u8] = b"barewire tcp 2 verdict";
/// The directions of records.
const FROM_ACCEPTING: &[u8] = b"barewire tcp 2 from accepting";
const FROM_CONNECTING: &[u8] = b"barewire tcp 2 from connecting";

/// Why a handshake fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HandshakeError {
    /// The peer has another protocol.
    #[error("it does not speak barewire's handshake")]
    Foreign,
    /// The peer has another version.
    #[error(
        "it speaks version {0} of the handshake, this end version {VERSION}: use the same barewire at both ends"
    )]
    Version(u16),
    /// The proof is wrong.
    #[error("it does not know this job's key: give both ends the same key")]
    Key,
    /// The verdict is not the one that was sent.
    #[error("the bytes of the handshake were altered on the way")]
    Altered,
    /// The claim is not valid.
    #[error("it requests something unknown")]
    Claim,
    /// The peer refuses the connection.
    #[error("{0}")]
    Verdict(Verdict),
}

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// Messages between two endpoints.
    Messages = 1,
    /// Requests to the memory of a process.
    Memory = 2,
    /// The control connection of two programs, which address no endpoint.
    Control = 3,
    /// Messages from an endpoint to an interface.
    Interface = 4,
}

/// The request of the end that connects: a purpose, and the numbers of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The purpose of the connection.
    pub purpose: Purpose,
    /// The interface or domain that it connects to.
    pub service: u64,
    /// The endpoint that it connects to.
    pub endpoint: u64,
    /// The interface that it connects from.
    pub from_service: u64,
    /// The endpoint that it connects from.
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
            [3, 0, 0, 0, 0, 0, 0, 0] => Purpose::Control,
            [4, 0, 0, 0, 0, 0, 0, 0] => Purpose::Interface,
            _ => return None,
        };
        let (numbers, _) = bytes[8..].as_chunks::<8>();
        let [service, endpoint, from_service, from_endpoint] =
            std::array::from_fn(|i| u64::from_le_bytes(numbers[i]));
        Some(Self { purpose, service, endpoint, from_service, from_endpoint })
    }
}

/// The decision of the end that accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[repr(u8)]
pub enum Verdict {
    /// The connection is accepted.
    #[error("it accepts")]
    Welcome = 0,
    /// There is no such interface, domain or endpoint.
    #[error("it has no such endpoint: it was closed, or the address is old")]
    Unknown = 1,
    /// The endpoint is connected to another one.
    #[error("its endpoint is connected to another one")]
    Taken = 2,
    /// The process has no more descriptors for such connections.
    #[error(
        "it serves as many connections to its memory or interfaces as it may: raise its limit of \
         descriptors"
    )]
    Full = 3,
    /// The process has no room at this moment; the connector tries again.
    #[error("it is busy with other connections that are not set up yet")]
    Busy = 4,
}

impl Verdict {
    const ALL: [Self; 5] = [Self::Welcome, Self::Unknown, Self::Taken, Self::Full, Self::Busy];

    fn to_bytes(self) -> [u8; HEADER] {
        let [a, b, c, d] = MAGIC;
        [a, b, c, d, self as u8, 0, 0, 0]
    }
}

fn header(protected: bool) -> [u8; HEADER] {
    let ([a, b, c, d], [low, high]) = (MAGIC, VERSION.to_le_bytes());
    [a, b, c, d, low, high, protected.into(), 0]
}

/// Returns whether the header requests protection.
fn check_header(bytes: &[u8]) -> Result<bool, HandshakeError> {
    let Some(found) = bytes.first_chunk::<HEADER>() else { return Err(HandshakeError::Foreign) };
    if found[..4] != MAGIC {
        return Err(HandshakeError::Foreign);
    }
    match (u16::from_le_bytes([found[4], found[5]]), found[6], found[7]) {
        (VERSION, protected @ (0 | 1), 0) => Ok(protected == 1),
        (VERSION, ..) => Err(HandshakeError::Foreign),
        (other, ..) => Err(HandshakeError::Version(other)),
    }
}

fn opening(challenge: [u8; CHALLENGE], protected: bool) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..HEADER].copy_from_slice(&header(protected));
    bytes[HEADER..].copy_from_slice(&challenge);
    bytes
}

/// The key and the bytes of a handshake up to the claim, which both ends have proved.
#[derive(Debug)]
pub struct Session {
    key: Key,
    hello: [u8; HELLO_BYTES],
    opening: [u8; HELLO_BYTES],
    claim: [u8; CLAIM],
    protected: bool,
}

impl Session {
    /// The connection is [protected](crate::listener::Limits::protected).
    pub fn is_protected(&self) -> bool {
        self.protected
    }

    /// The bytes of the verdict.
    pub fn verdict(&self, verdict: Verdict) -> [u8; VERDICT_BYTES] {
        let mut bytes = [0; VERDICT_BYTES];
        let (head, proof) = bytes.split_at_mut(HEADER);
        head.copy_from_slice(&verdict.to_bytes());
        proof.copy_from_slice(&self.key.prove(VERDICT, &self.transcript(head)));
        bytes
    }

    /// Checks the verdict.
    ///
    /// # Errors
    /// [`HandshakeError::Verdict`] if the connection is refused, [`HandshakeError::Altered`]
    pub fn judge(&self, bytes: &[u8; VERDICT_BYTES]) -> Result<(), HandshakeError> {
        let (head, proof) = bytes.split_at(HEADER);
        if !self.key.verify(VERDICT, &self.transcript(head), proof) {
            return Err(HandshakeError::Altered);
        }
        match Verdict::ALL.into_iter().find(|verdict| head == verdict.to_bytes()) {
            Some(Verdict::Welcome) => Ok(()),
            Some(other) => Err(HandshakeError::Verdict(other)),
            None => Err(HandshakeError::Foreign),
        }
    }

    fn transcript<'a>(&'a self, verdict: &'a [u8]) -> [&'a [u8]; 4] {
        [&self.hello, &self.opening, &self.claim, verdict]
    }

    /// The seal of the end that accepts, if the connection is protected.
    pub(crate) fn seal_accepting(&self) -> io::Result<Option<Seal>> {
        self.seal(FROM_ACCEPTING, FROM_CONNECTING)
    }

    /// The seal of the end that connects, if the connection is protected.
    pub(crate) fn seal_connecting(&self) -> io::Result<Option<Seal>> {
        self.seal(FROM_CONNECTING, FROM_ACCEPTING)
    }

    fn seal(&self, outward: &[u8], inward: &[u8]) -> io::Result<Option<Seal>> {
        if !self.protected {
            return Ok(None);
        }
        let secret = self.key.extract(&[&self.hello[..], &self.opening, &self.claim].concat());
        let direction = |label: &[u8]| match secret.expand(&[label], HKDF_SHA256) {
            Ok(secret) => Ok(secret.into()),
            Err(_) => Err(io::Error::other("key derivation failed")),
        };
        Seal::new(&direction(outward)?, &direction(inward)?).map(Some)
    }
}

/// The end that connects.
#[derive(Debug)]
pub struct Initiator {
    hello: [u8; HELLO_BYTES],
    claim: [u8; CLAIM],
}

impl Initiator {
    /// Begins a handshake with a fresh challenge. `protected` requests a
    /// [protected](crate::listener::Limits::protected) connection.
    pub fn new(claim: Claim, challenge: [u8; CHALLENGE], protected: bool) -> Self {
        Self { hello: opening(challenge, protected), claim: claim.to_bytes() }
    }

    /// The bytes of the hello.
    pub fn hello(&self) -> &[u8; HELLO_BYTES] {
        &self.hello
    }

    /// Checks the proof of the challenge. Returns the claim with this end's proof.
    pub fn prove(
        &self,
        key: &Key,
        challenge: &[u8; CHALLENGE_BYTES],
    ) -> Result<([u8; CLAIM_BYTES], Session), HandshakeError> {
        let protected = check_header(challenge)?;
        let Some((opening, proof)) = challenge.split_first_chunk::<HELLO_BYTES>() else {
            return Err(HandshakeError::Foreign);
        };
        if !key.verify(ACCEPTS, &[&self.hello, opening], proof) {
            return Err(HandshakeError::Key);
        }
        if !protected && check_header(&self.hello)? {
            return Err(HandshakeError::Foreign);
        }
        let mut bytes = [0; CLAIM_BYTES];
        bytes[..CLAIM].copy_from_slice(&self.claim);
        bytes[CLAIM..].copy_from_slice(&key.prove(CONNECTS, &[&self.hello, opening, &self.claim]));
        let (hello, opening, claim) = (self.hello, *opening, self.claim);
        Ok((bytes, Session { key: key.clone(), hello, opening, claim, protected }))
    }
}

/// The end that accepts.
#[derive(Debug)]
pub struct Acceptor {
    hello: [u8; HELLO_BYTES],
    opening: [u8; HELLO_BYTES],
}

impl Acceptor {
    /// Responds to a hello with a fresh challenge. The connection is protected if `protected` is
    /// set or the hello requests it.
    pub fn challenge(
        key: &Key,
        hello: &[u8; HELLO_BYTES],
        challenge: [u8; CHALLENGE],
        protected: bool,
    ) -> Result<(Self, [u8; CHALLENGE_BYTES]), HandshakeError> {
        let requested = check_header(hello)?;
        let this = Self { hello: *hello, opening: opening(challenge, protected || requested) };
        let mut bytes = [0; CHALLENGE_BYTES];
        bytes[..HELLO_BYTES].copy_from_slice(&this.opening);
        bytes[HELLO_BYTES..].copy_from_slice(&key.prove(ACCEPTS, &[hello, &this.opening]));
        Ok((this, bytes))
    }

    /// The response to another version: this end's version, in place of a challenge.
    pub fn another_version() -> [u8; CHALLENGE_BYTES] {
        let mut bytes = [0; CHALLENGE_BYTES];
        bytes[..HEADER].copy_from_slice(&header(false));
        bytes
    }

    /// Checks the proof of the claim. Returns the claim.
    pub fn admit(
        &self,
        key: &Key,
        claim: &[u8; CLAIM_BYTES],
    ) -> Result<(Claim, Session), HandshakeError> {
        let Some((claim, proof)) = claim.split_first_chunk::<CLAIM>() else {
            return Err(HandshakeError::Claim);
        };
        if !key.verify(CONNECTS, &[&self.hello, &self.opening, claim], proof) {
            return Err(HandshakeError::Key);
        }
        let protected = check_header(&self.opening)?;
        let session = Session {
            key: key.clone(),
            hello: self.hello,
            opening: self.opening,
            claim: *claim,
            protected,
        };
        Ok((Claim::parse(claim).ok_or(HandshakeError::Claim)?, session))
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
        let initiator = Initiator::new(CLAIM, [1; 32], false);
        let (acceptor, challenge) =
            Acceptor::challenge(&key(9), initiator.hello(), [2; 32], false).unwrap();
        let (claim, here) = initiator.prove(&key(9), &challenge).unwrap();
        let (found, there) = acceptor.admit(&key(9), &claim).unwrap();
        assert_eq!(found, CLAIM);
        for verdict in Verdict::ALL {
            let judged = here.judge(&there.verdict(verdict));
            let refused = HandshakeError::Verdict(verdict);
            assert_eq!(judged, if verdict == Verdict::Welcome { Ok(()) } else { Err(refused) });
        }
        let welcome = there.verdict(Verdict::Welcome);
        for at in 0..VERDICT_BYTES {
            let mut changed = welcome;
            changed[at] ^= 1;
            assert_eq!(here.judge(&changed), Err(HandshakeError::Altered), "{at}");
        }
    }

    #[test]
    fn golden_bytes() {
        let initiator = Initiator::new(CLAIM, [7; 32], false);
        let mut hello = [7; 40];
        hello[..8].copy_from_slice(b"BWTH\x03\x00\x00\x00");
        assert_eq!(*initiator.hello(), hello);
        hello[6] = 1;
        assert_eq!(*Initiator::new(CLAIM, [7; 32], true).hello(), hello);
        let claim = CLAIM.to_bytes();
        assert_eq!(claim[..16], [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((claim[32], Claim::parse(&claim)), (0xff, Some(CLAIM)));
        assert_eq!(Verdict::Unknown.to_bytes(), *b"BWTH\x01\0\0\0");
    }

    #[test]
    fn another_key_is_noticed_by_either_end() {
        let initiator = Initiator::new(CLAIM, [1; 32], false);
        let (acceptor, challenge) =
            Acceptor::challenge(&key(9), initiator.hello(), [2; 32], false).unwrap();
        assert_eq!(initiator.prove(&key(8), &challenge).map(drop), Err(HandshakeError::Key));
        // One that does not care: a proof made with another key.
        let forged = Acceptor::challenge(&key(8), initiator.hello(), [2; 32], false).unwrap().1;
        let claim = initiator.prove(&key(8), &forged).unwrap().0;
        assert_eq!(acceptor.admit(&key(9), &claim).map(drop), Err(HandshakeError::Key));
    }

    #[test]
    fn what_was_recorded_is_of_no_use() {
        let initiator = Initiator::new(CLAIM, [1; 32], false);
        let (_, challenge) =
            Acceptor::challenge(&key(9), initiator.hello(), [2; 32], false).unwrap();
        let claim = initiator.prove(&key(9), &challenge).unwrap().0;
        // The same hello again meets a new challenge.
        let (acceptor, _) =
            Acceptor::challenge(&key(9), initiator.hello(), [3; 32], false).unwrap();
        assert_eq!(acceptor.admit(&key(9), &claim).map(drop), Err(HandshakeError::Key));
        // A recorded challenge is not valid for a new hello.
        assert_eq!(
            Initiator::new(CLAIM, [4; 32], false).prove(&key(9), &challenge).map(drop),
            Err(HandshakeError::Key)
        );
    }

    /// An end without the key that hands on what another end says: neither proof serves as the
    /// other.
    #[test]
    fn proofs_do_not_serve_as_each_other() {
        let hello = opening([5; 32], false);
        let (acceptor, challenge) = Acceptor::challenge(&key(9), &hello, [5; 32], false).unwrap();
        let mut claim = [0; CLAIM_BYTES];
        claim[40..].copy_from_slice(&challenge[HELLO_BYTES..]);
        assert_eq!(acceptor.admit(&key(9), &claim).map(drop), Err(HandshakeError::Key));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let initiator = Initiator::new(CLAIM, [1; 32], false);
        let (acceptor, challenge) =
            Acceptor::challenge(&key(9), initiator.hello(), [2; 32], false).unwrap();
        for at in 0..CHALLENGE_BYTES {
            let mut changed = challenge;
            changed[at] ^= 1;
            assert!(initiator.prove(&key(9), &changed).is_err(), "{at}");
        }
        let claim = initiator.prove(&key(9), &challenge).unwrap().0;
        for at in 0..CLAIM_BYTES {
            let mut changed = claim;
            changed[at] ^= 1;
            assert_eq!(
                acceptor.admit(&key(9), &changed).map(drop),
                Err(HandshakeError::Key),
                "{at}"
            );
        }
        let mut old = *initiator.hello();
        old[4] = 1;
        let error = Acceptor::challenge(&key(9), &old, [0; 32], false).map(drop);
        assert_eq!(error, Err(HandshakeError::Version(1)));
    }

    /// Either end can request protection, and an attacker on the path cannot remove it.
    #[test]
    fn protection_is_the_wish_of_either_end() {
        for (here, there) in [(false, false), (true, false), (false, true), (true, true)] {
            let initiator = Initiator::new(CLAIM, [1; 32], here);
            let (acceptor, challenge) =
                Acceptor::challenge(&key(9), initiator.hello(), [2; 32], there).unwrap();
            let (claim, session) = initiator.prove(&key(9), &challenge).unwrap();
            let accepted = acceptor.admit(&key(9), &claim).unwrap().1;
            let both = [session.is_protected(), accepted.is_protected()];
            assert_eq!(both, [here || there; 2]);

            // The request is altered on the way, and the challenge back.
            let mut changed = *initiator.hello();
            changed[6] ^= 1;
            let (acceptor, mut challenge) =
                Acceptor::challenge(&key(9), &changed, [2; 32], there).unwrap();
            let refused = initiator.prove(&key(9), &challenge).map(drop);
            assert_eq!(refused, Err(HandshakeError::Key));
            challenge[6] ^= 1;
            assert!(initiator.prove(&key(9), &challenge).is_err());
            let (claim, _) = initiator
                .prove(&key(9), &{
                    let hello = initiator.hello();
                    Acceptor::challenge(&key(9), hello, [2; 32], there).unwrap().1
                })
                .unwrap();
            assert!(acceptor.admit(&key(9), &claim).is_err());
        }
    }

    /// An end of version 1 reads the header of what it gets, and names the version.
    #[test]
    fn another_version_is_named() {
        let bytes = Acceptor::another_version();
        assert_eq!(bytes[..8], *b"BWTH\x03\0\0\0");
        let old = HandshakeError::Version(1).to_string();
        assert!(old.contains("version 1") && old.contains("this end version 3"), "{old}");
    }

    /// The keys of a connection, as Python computes them: see `golden_records` in the module
    /// `seal`.
    #[test]
    fn golden_records_of_a_connection() {
        let initiator = Initiator::new(CLAIM, [1; 32], true);
        let (acceptor, challenge) =
            Acceptor::challenge(&key(9), initiator.hello(), [2; 32], false).unwrap();
        let (claim, here) = initiator.prove(&key(9), &challenge).unwrap();
        let there = acceptor.admit(&key(9), &claim).unwrap().1;
        let mut seals =
            [here.seal_connecting(), there.seal_accepting()].map(|seal| seal.unwrap().unwrap());
        let records = seals.each_mut().map(|seal| seal.wrap(&[b"barewire"]).unwrap());
        assert_eq!(records, GOLDEN);
    }

    const GOLDEN: [[u8; 28]; 2] = [
        [
            0x08, 0x00, 0x00, 0x00, 0x9a, 0x0c, 0xdc, 0xe0, 0xd2, 0x07, 0x75, 0x85, 0x62, 0x14,
            0x24, 0xd5, 0xf4, 0xd9, 0x33, 0xb4, 0x65, 0xd1, 0x6d, 0xf3, 0x11, 0x8a, 0x48, 0x00,
        ],
        [
            0x08, 0x00, 0x00, 0x00, 0xca, 0x49, 0x2e, 0xce, 0x4f, 0xa4, 0x7b, 0xec, 0x50, 0xaf,
            0xc6, 0xb9, 0xbf, 0x9c, 0x9d, 0x0e, 0xb2, 0x5d, 0x6e, 0xf2, 0x1d, 0x67, 0x4f, 0xb0,
        ],
    ];
}
