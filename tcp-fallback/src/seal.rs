//! Records: how a protected connection carries its bytes after the handshake.
//!
//! The bytes of each direction are cut into records of up to 16 KiB, each encrypted and
//! authenticated with AES-256-GCM:
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0..4 | length of the payload, 1 to 16384 | u32, little-endian, authenticated |
//! | 4..4 + length | payload | encrypted |
//! | then 16 | tag | |
//!
//! Each direction has its own keys, derived by HKDF-SHA-256 from the job's key and the whole
//! handshake, both challenges included. The nonce is the record's number in its direction (u64,
//! little-endian, and four zeros); it is not sent. After 2^22 records (64 GiB) both ends move on to
//! the next key, HKDF-Expand of the present secret, and count from zero.
//!
//! A record is therefore accepted once, in order, in its direction and connection. Changed,
//! duplicated, dropped, reordered, reflected and replayed records all fail the connection. No byte
//! of a record is returned before its tag is verified.

use std::fmt;
use std::io;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk};
use thiserror::Error;

use crate::outbox::{CAPACITY, SendError, Spare};

/// Bytes of payload in a record.
pub const RECORD: usize = 16 << 10;
const HEAD: usize = 4;
const TAG: usize = 16;
/// Bytes that a record adds to its payload.
pub const OVERHEAD: usize = HEAD + TAG;
/// Records under one key. Far from the limits of AES-GCM: 2^32 blocks.
const RECORDS: u64 = 1 << 22;

/// The received bytes are not those that the peer sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the bytes were altered on the way: a record is not the peer's next one")]
pub struct Altered;

impl From<Altered> for io::Error {
    fn from(altered: Altered) -> Self {
        Self::new(io::ErrorKind::InvalidData, altered)
    }
}

/// Returns true if the error says that bytes were altered on the way.
pub fn is_altered(error: &io::Error) -> bool {
    matches!(error.get_ref(), Some(source) if source.is::<Altered>())
}

/// The keys of one direction, one after the other.
struct Chain {
    key: LessSafeKey,
    next: Prk,
    /// Of the next record.
    number: u64,
}

impl Chain {
    fn new(secret: &Prk) -> io::Result<Self> {
        let failed = |_| io::Error::other("key derivation failed");
        let key = secret.expand(&[b"barewire tcp 2 key"], &AES_256_GCM).map_err(failed)?;
        let next = secret.expand(&[b"barewire tcp 2 next"], HKDF_SHA256).map_err(failed)?;
        Ok(Self { key: LessSafeKey::new(UnboundKey::from(key)), next: next.into(), number: 0 })
    }

    /// Returns the nonce of the next record, and advances to the next key if needed.
    fn nonce(&mut self) -> io::Result<Nonce> {
        if self.number == RECORDS {
            *self = Self::new(&self.next)?;
        }
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&self.number.to_le_bytes());
        self.number += 1;
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

/// The keys and buffers of a protected connection.
pub(crate) struct Seal {
    outward: Chain,
    inward: Chain,
    /// The beginning of a received record.
    held: Vec<u8>,
    /// Records that wait to be sent, in `[at, end)`.
    buffer: Option<Box<[u8]>>,
    at: usize,
    end: usize,
    /// Bytes of payload of all records in the buffer.
    payload: usize,
}

impl Seal {
    /// Makes the keys from the secrets of both directions.
    pub(crate) fn new(outward: &Prk, inward: &Prk) -> io::Result<Self> {
        Ok(Self {
            outward: Chain::new(outward)?,
            inward: Chain::new(inward)?,
            held: Vec::new(),
            buffer: None,
            at: 0,
            end: 0,
            payload: 0,
        })
    }

    /// Seals the payload in `record`, which begins after [`HEAD`] bytes and is followed by [`TAG`]
    /// bytes.
    fn seal(&mut self, record: &mut [u8]) -> io::Result<()> {
        let (head, rest) = record.split_at_mut(HEAD);
        let (payload, tag) = rest.split_at_mut(rest.len() - TAG);
        head.copy_from_slice(&(payload.len() as u32).to_le_bytes());
        let nonce = self.outward.nonce()?;
        let made = self
            .outward
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(&*head), payload)
            .map_err(|_| io::Error::other("encryption failed"))?;
        tag.copy_from_slice(made.as_ref());
        Ok(())
    }

    /// Reads by `read`, and opens the whole records to the front of `buffer`, which has room for at
    /// least one record. Returns the bytes of payload, `None` if no record is whole yet, or zero at
    /// the end of the stream.
    ///
    /// # Errors
    /// Those of `read`; [`Altered`].
    pub(crate) fn receive(
        &mut self,
        buffer: &mut [u8],
        read: impl FnOnce(&mut [u8]) -> io::Result<Option<usize>>,
    ) -> io::Result<Option<usize>> {
        debug_assert!(buffer.len() >= RECORD + OVERHEAD);
        let held = self.held.len();
        let Some(count) = read(&mut buffer[held..])? else { return Ok(None) };
        if count == 0 {
            return Ok(Some(0));
        }
        buffer[..held].copy_from_slice(&self.held);
        self.held.clear();
        let payload = self.open(&mut buffer[..held + count])?;
        Ok((payload > 0).then_some(payload))
    }

    fn open(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (mut from, mut to) = (0, 0);
        while let Some(head) = buffer[from..].first_chunk::<HEAD>().copied() {
            let length = u32::from_le_bytes(head) as usize;
            if !(1..=RECORD).contains(&length) {
                return Err(Altered.into());
            }
            let end = from + HEAD + length + TAG;
            if end > buffer.len() {
                break;
            }
            let nonce = self.inward.nonce()?;
            self.inward
                .key
                .open_within(nonce, Aad::from(head), &mut buffer[to..end], from + HEAD - to..)
                .map_err(|_| Altered)?;
            to += length;
            from = end;
        }
        self.held.extend_from_slice(&buffer[from..]);
        if self.held.is_empty() {
            // An idle connection has no buffers.
            self.held = Vec::new();
        }
        Ok(to)
    }

    /// The sealed records that wait to be sent.
    pub(crate) fn sending(&self) -> Option<&[u8]> {
        self.buffer.as_ref().map(|buffer| &buffer[self.at..self.end])
    }

    /// Seals the bytes that `fill` returns, until there are no more or the buffer is full. `fill`
    /// gets the number of bytes that it returned before, and room for the next ones.
    pub(crate) fn begin(
        &mut self,
        spare: &Spare,
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<usize, SendError>,
    ) -> Result<(), SendError> {
        let mut buffer = spare.take();
        (self.at, self.end, self.payload) = (0, 0, 0);
        while self.end + OVERHEAD < CAPACITY {
            let room = (CAPACITY - self.end - OVERHEAD).min(RECORD);
            let start = self.end;
            let length = fill(self.payload, &mut buffer[start + HEAD..start + HEAD + room])?;
            if length == 0 {
                break;
            }
            let end = start + HEAD + length + TAG;
            self.seal(&mut buffer[start..end])?;
            self.end = end;
            self.payload += length;
        }
        self.buffer = Some(buffer);
        Ok(())
    }

    /// `count` more bytes of the records were sent. Once all are, returns their bytes of payload.
    pub(crate) fn sent(&mut self, count: usize, spare: &Spare) -> Option<usize> {
        self.at += count;
        if self.at < self.end {
            return None;
        }
        if let Some(buffer) = self.buffer.take() {
            spare.give(buffer);
        }
        Some(self.payload)
    }
}

/// Omits the keys.
impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seal")
            .field("sent", &self.outward.number)
            .field("received", &self.inward.number)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::hkdf::Salt;

    fn pair() -> (Seal, Seal) {
        let salt = Salt::new(HKDF_SHA256, b"salt");
        let (one, other) = (salt.extract(b"one"), salt.extract(b"other"));
        (Seal::new(&one, &other).unwrap(), Seal::new(&other, &one).unwrap())
    }

    impl Seal {
        /// The records of `parts`, one after the other.
        pub(crate) fn wrap(&mut self, parts: &[&[u8]]) -> io::Result<Vec<u8>> {
            let mut records = Vec::new();
            for payload in parts.iter().flat_map(|part| part.chunks(RECORD)) {
                let start = records.len();
                records.resize(start + HEAD, 0);
                records.extend_from_slice(payload);
                records.resize(records.len() + TAG, 0);
                self.seal(&mut records[start..])?;
            }
            Ok(records)
        }
    }

    fn open(seal: &mut Seal, bytes: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let mut buffer = vec![0; RECORD + OVERHEAD + bytes.len()];
        let length = seal.receive(&mut buffer, |room| {
            room[..bytes.len()].copy_from_slice(bytes);
            Ok(Some(bytes.len()))
        })?;
        Ok(length.map(|length| buffer[..length].to_vec()))
    }

    /// As Python's `cryptography` computes them: see the module's documentation for the derivation.
    #[test]
    fn golden_records() {
        let (mut here, mut there) = pair();
        let records = here.wrap(&[b"barewire", b"!"]).unwrap();
        assert_eq!(records, GOLDEN);
        assert_eq!(open(&mut there, &records).unwrap().unwrap(), b"barewire!");
    }

    const GOLDEN: [u8; 49] = [
        0x08, 0x00, 0x00, 0x00, 0x7c, 0x60, 0x1c, 0x3b, 0x67, 0xca, 0x96, 0xc1, 0xd4, 0x94, 0x2e,
        0x2d, 0x59, 0xc0, 0xb3, 0x00, 0x72, 0xf9, 0x0b, 0x32, 0x8a, 0x1a, 0x52, 0x0f, 0x01, 0x00,
        0x00, 0x00, 0x2a, 0x67, 0xc8, 0x44, 0x42, 0xbb, 0x5f, 0xa4, 0x43, 0x3e, 0x9a, 0x97, 0xab,
        0x01, 0x9d, 0xce, 0x75,
    ];

    #[test]
    fn records_may_come_in_any_pieces() {
        let bytes: Vec<u8> = (0..3 * RECORD + 5).map(|i| i as u8).collect();
        for piece in [1000, RECORD, RECORD + OVERHEAD + 1, 1 << 20] {
            let (mut here, mut there) = pair();
            let records = here.wrap(&[&bytes]).unwrap();
            assert_eq!(records.len(), bytes.len() + 4 * OVERHEAD);
            let mut back = Vec::new();
            for part in records.chunks(piece) {
                back.extend(open(&mut there, part).unwrap().unwrap_or_default());
            }
            assert!(back == bytes && there.held.is_empty(), "{piece}");
        }
    }

    #[test]
    fn any_changed_bit_is_noticed() {
        let records = pair().0.wrap(&[b"barewire"]).unwrap();
        for at in 0..records.len() {
            for bit in 0..8 {
                let mut changed = records.clone();
                changed[at] ^= 1 << bit;
                match open(&mut pair().1, &changed) {
                    Err(error) => assert!(is_altered(&error)),
                    // Its length says that there is more to come.
                    Ok(payload) => assert!(payload.is_none() && at < HEAD, "{at} {bit}"),
                }
            }
        }
    }

    #[test]
    fn records_are_accepted_once_in_order_and_in_their_direction() {
        let (mut here, mut there) = pair();
        let [first, second] = [b"one", b"two"].map(|part| here.wrap(&[part]).unwrap());
        for wrong in [[&first, &first], [&second, &first]] {
            let (_, mut there) = pair();
            assert!(open(&mut there, &wrong.map(Vec::as_slice).concat()).is_err());
        }
        assert!(open(&mut here, &first).is_err(), "reflected");
        assert!(open(&mut there, &second).is_err(), "the first was dropped");
    }

    #[test]
    fn the_key_changes_before_it_is_worn_out() {
        let (mut here, mut there) = pair();
        here.outward.number = RECORDS - 1;
        there.inward.number = RECORDS - 1;
        for number in [RECORDS, 1, 2] {
            let record = here.wrap(&[b"bytes"]).unwrap();
            assert_eq!(here.outward.number, number);
            assert_eq!(open(&mut there, &record).unwrap().unwrap(), b"bytes");
        }
        // The first record under the new key is not the first one under the old.
        let (mut fresh, _) = pair();
        assert_ne!(fresh.wrap(&[b"bytes"]).unwrap(), {
            let (mut worn, _) = pair();
            worn.outward.number = RECORDS;
            worn.wrap(&[b"bytes"]).unwrap()
        });
    }

    #[test]
    fn keys_are_not_printed() {
        assert_eq!(format!("{:?}", pair().0), "Seal { sent: 0, received: 0, .. }");
    }
}
