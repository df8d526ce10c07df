//! What a message looks like on the wire: a fixed header, then the payload.
//!
//! | bytes | field | little-endian |
//! |---|---|---|
//! | 0..4 | magic `BWIR` | bytes |
//! | 4..6 | version, 1 | u16 |
//! | 6..8 | kind, the user's | u16 |
//! | 8..12 | payload length in bytes | u32 |

use thiserror::Error;

/// The first four bytes of every frame.
pub const MAGIC: [u8; 4] = *b"BWIR";
/// The version of the frame that this crate writes, and the only one that it reads.
pub const VERSION: u16 = 1;

/// Why bytes are not a frame, or a payload cannot become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The bytes do not begin with [`MAGIC`]: the sender does not speak this protocol.
    #[error("not a barewire frame: it begins with \"{}\"", .got[..*.seen].escape_ascii())]
    Foreign {
        /// The first bytes that came.
        got: [u8; 4],
        /// How many of `got` came.
        seen: usize,
    },
    /// The frame is of a version that this crate does not read.
    #[error(
        "the frame has version {got}, this end reads version {VERSION}: use the same barewire at both ends"
    )]
    Version {
        /// The version in the frame.
        got: u16,
    },
    /// The payload is longer than the limit.
    #[error("a payload of {length} bytes is over the limit of {limit} bytes")]
    TooLong {
        /// The payload's length in bytes.
        length: u64,
        /// The limit in bytes.
        limit: u32,
    },
}

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the payload is; the meaning is the user's.
    pub kind: u16,
    /// The payload's length in bytes.
    pub length: u32,
}

impl Header {
    /// The header's size in bytes.
    pub const BYTES: usize = 12;

    /// A header for a payload of `length` bytes.
    ///
    /// # Errors
    /// [`FrameError::TooLong`] if the payload is longer than `limit` bytes.
    pub fn new(kind: u16, length: usize, limit: u32) -> Result<Self, FrameError> {
        match u32::try_from(length) {
            Ok(length) if length <= limit => Ok(Self { kind, length }),
            _ => Err(FrameError::TooLong { length: length as u64, limit }),
        }
    }

    /// The header as it goes on the wire.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.kind.to_le_bytes());
        bytes[8..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Reads a header from the front of `bytes`; `None` as long as bytes are missing.
    ///
    /// What came so far is judged at once, so a stranger is recognised by its first byte.
    ///
    /// # Errors
    /// Another magic or version, or a length over `limit`.
    pub fn parse(bytes: &[u8], limit: u32) -> Result<Option<Self>, FrameError> {
        let seen = bytes.len().min(MAGIC.len());
        if bytes[..seen] != MAGIC[..seen] {
            let mut got = [0; 4];
            got[..seen].copy_from_slice(&bytes[..seen]);
            return Err(FrameError::Foreign { got, seen });
        }
        let Some(&[_, _, _, _, v0, v1, k0, k1, l0, l1, l2, l3]) = bytes.first_chunk::<{ Self::BYTES }>()
        else {
            return Ok(None);
        };
        let version = u16::from_le_bytes([v0, v1]);
        if version != VERSION {
            return Err(FrameError::Version { got: version });
        }
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        if length > limit {
            return Err(FrameError::TooLong { length: length.into(), limit });
        }
        Ok(Some(Self { kind: u16::from_le_bytes([k0, k1]), length }))
    }
}

/// What the front of a byte stream holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// A whole frame.
    Frame {
        /// The frame's kind.
        kind: u16,
        /// The frame's payload.
        payload: &'a [u8],
        /// How many bytes of the stream the frame takes, header and payload.
        consumed: usize,
    },
    /// A frame's beginning: the stream must hold this many bytes before more can be said.
    Need(usize),
}

/// Looks at the front of a byte stream. Total: any bytes give an answer.
///
/// # Errors
/// As [`Header::parse`]; the stream cannot be read further then.
pub fn parse(bytes: &[u8], limit: u32) -> Result<Parsed<'_>, FrameError> {
    let Some(header) = Header::parse(bytes, limit)? else {
        return Ok(Parsed::Need(Header::BYTES));
    };
    let consumed = Header::BYTES + header.length as usize;
    Ok(match bytes.get(Header::BYTES..consumed) {
        Some(payload) => Parsed::Frame { kind: header.kind, payload, consumed },
        None => Parsed::Need(consumed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_header() {
        let header = Header::new(0x0102, 0x0304, 1 << 20).unwrap();
        let bytes = [b'B', b'W', b'I', b'R', 1, 0, 2, 1, 4, 3, 0, 0];
        assert_eq!(header.to_bytes(), bytes);
        assert_eq!(Header::parse(&bytes, 1 << 20), Ok(Some(header)));
    }

    #[test]
    fn a_stranger_is_known_by_its_first_byte() {
        let error = Header::parse(b"G", 10).unwrap_err();
        assert_eq!(error.to_string(), "not a barewire frame: it begins with \"G\"");
        let error = Header::parse(b"GET / HTTP/1.1", 10).unwrap_err();
        assert_eq!(error.to_string(), "not a barewire frame: it begins with \"GET \"");
    }

    #[test]
    fn another_version_is_refused() {
        let mut bytes = Header { kind: 0, length: 0 }.to_bytes();
        bytes[4] = 2;
        assert_eq!(Header::parse(&bytes, 10), Err(FrameError::Version { got: 2 }));
    }

    #[test]
    fn the_limit_holds_both_ways() {
        assert!(Header::new(0, 10, 10).is_ok());
        assert_eq!(Header::new(0, 11, 10), Err(FrameError::TooLong { length: 11, limit: 10 }));
        let bytes = Header { kind: 0, length: u32::MAX }.to_bytes();
        let error = FrameError::TooLong { length: u32::MAX.into(), limit: 10 };
        assert_eq!(Header::parse(&bytes, 10), Err(error));
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..64), limit: u32) {
            if let Ok(Parsed::Frame { payload, consumed, .. }) = parse(&bytes, limit) {
                prop_assert_eq!(payload.len() + Header::BYTES, consumed);
            }
        }

        #[test]
        fn any_bytes_behind_a_true_magic_give_an_answer(
            tail in proptest::collection::vec(any::<u8>(), 0..64), limit: u32,
        ) {
            let bytes = [&MAGIC[..], &VERSION.to_le_bytes()[..], &tail].concat();
            if let Ok(Parsed::Need(need)) = parse(&bytes, limit) {
                prop_assert!(need > bytes.len());
            }
        }

        #[test]
        fn a_frame_comes_back_and_every_prefix_asks_for_more(
            kind: u16, payload in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..212,
        ) {
            let header = Header::new(kind, payload.len(), 200).unwrap();
            let bytes = [&header.to_bytes()[..], &payload].concat();
            let whole = Parsed::Frame { kind, payload: &payload, consumed: bytes.len() };
            prop_assert_eq!(parse(&bytes, 200), Ok(whole));
            let prefix = &bytes[..cut.min(bytes.len() - 1)];
            match parse(prefix, 200) {
                Ok(Parsed::Need(need)) => prop_assert!(need > prefix.len() && need <= bytes.len()),
                other => prop_assert!(false, "{other:?}"),
            }
        }
    }
}
