//! The bytes of control connections: frames, and the frames of clients and servers.
//!
//! A frame is a length of two bytes, big-endian, and that many bytes. Those of clients and servers
//! are in the documentation of `listen`.

/// Bytes of the longest frame.
pub const LONGEST: usize = 16 << 10;
/// Bytes of the shortest frame: a [`Call`] without address and data.
pub const SHORTEST: usize = 6;

const MAGIC: [u8; 2] = *b"bL";
const VERSION: u8 = 2;
/// Bytes of data at most, with a ticket.
const MAX_DATA: usize = 8 + super::MAX_DATA;

/// A frame of a length that no node sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a control message of {0} bytes; they have {SHORTEST} to {LONGEST}")]
pub struct LengthError(pub usize);

/// Received bytes, of which frames are taken.
#[derive(Debug, Default)]
pub struct Frames(Vec<u8>);

impl Frames {
    /// Adds bytes as they were received.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.reserve_exact(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    /// Bytes that were not taken.
    pub fn waiting(&self) -> usize {
        self.0.len()
    }

    /// Returns whether [`take`](Self::take) takes a frame.
    ///
    /// # Errors
    /// [`LengthError`]
    pub fn has_one(&self) -> Result<bool, LengthError> {
        first(&self.0).map(|frame| frame.is_some())
    }

    /// Takes at most `most` frames.
    ///
    /// # Errors
    /// [`LengthError`], after the frames before it were taken.
    pub fn take(&mut self, most: usize, mut each: impl FnMut(&[u8])) -> Result<(), LengthError> {
        let mut at = 0;
        let result = (|| {
            for _ in 0..most {
                let Some(frame) = first(&self.0[at..])? else { break };
                each(frame);
                at += 2 + frame.len();
            }
            Ok(())
        })();
        // Once for all of them. An idle connection has no memory.
        if at == self.0.len() {
            self.0 = Vec::new();
        } else {
            self.0.drain(..at);
        }
        result
    }
}

/// The first frame, if all of it is there.
fn first(bytes: &[u8]) -> Result<Option<&[u8]>, LengthError> {
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes(*length));
    if (SHORTEST..=LONGEST).contains(&length) {
        Ok(rest.get(..length))
    } else {
        Err(LengthError(length))
    }
}

/// What a client and a server tell each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// `H`, `A`, `R` or `B`.
    pub kind: u8,
    /// The sender's address.
    pub address: &'a [u8],
    /// A ticket and private data, or a reason.
    pub data: &'a [u8],
}

impl<'a> Call<'a> {
    /// The content of a frame, if it is one: control messages begin with other bytes.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<SHORTEST>()?;
        let [magic_0, magic_1, version, kind, high, low] = *head;
        let length = usize::from(u16::from_be_bytes([high, low]));
        let (address, data) = rest.split_at_checked(length)?;
        let valid = [magic_0, magic_1] == MAGIC
            && version == VERSION
            && matches!(kind, b'H' | b'A' | b'R' | b'B')
            && data.len() <= MAX_DATA;
        valid.then_some(Self { kind, address, data })
    }

    /// As the content of a frame.
    pub fn to_bytes(&self) -> Vec<u8> {
        let length = (self.address.len() as u16).to_be_bytes();
        [&MAGIC[..], &[VERSION, self.kind], &length, self.address, self.data].concat()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_bytes_both_ways() {
        let call = Call { kind: b'H', address: b"addr", data: b"data" };
        assert_eq!(call.to_bytes(), b"bL\x02H\x00\x04addrdata");
        assert_eq!(Call::parse(b"bL\x02H\x00\x04addrdata"), Some(call));
        assert_eq!(Call::parse(b"bL\x01H\x00\x00"), None);
        assert_eq!(Call::parse(b"bL\x02X\x00\x00"), None);
        assert_eq!(Call::parse(b"bL\x02H\x00\x05addr"), None);
    }

    #[test]
    fn frames_are_taken_as_they_arrive() {
        let mut frames = Frames::default();
        let mut taken = Vec::new();
        for byte in b"\0\x06abcdef\0\x07ghijklm\0" {
            frames.add(&[*byte]);
            let had_one = frames.has_one().unwrap();
            let before = taken.len();
            frames.take(9, |frame| taken.push(frame.to_vec())).unwrap();
            assert_eq!(taken.len() - before, usize::from(had_one));
        }
        assert_eq!(taken, [&b"abcdef"[..], b"ghijklm"]);
        frames.add(b"\x06abcdef\0\x06abcdef\0\x05");
        let mut count = 0;
        assert_eq!(frames.take(1, |_| count += 1), Ok(()));
        assert_eq!((count, frames.take(9, |_| count += 1)), (1, Err(LengthError(5))));
        assert_eq!((count, frames.has_one()), (2, Err(LengthError(5))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_not(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            for bytes in [bytes.clone(), [b"bL\x02H", &bytes[..]].concat()] {
                if let Some(call) = Call::parse(&bytes) {
                    prop_assert_eq!(call.to_bytes(), bytes);
                }
            }
        }
    }
}
