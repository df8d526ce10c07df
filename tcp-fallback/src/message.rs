//! Messages between two endpoints, as they follow each other on a connection: a header of 8 bytes,
//! the payload, and zeros up to a multiple of 8, so that every payload is aligned in the receive
//! buffer.
//!
//! | bytes | field | little-endian |
//! |---|---|---|
//! | 0..4 | payload length in bytes | u32 |
//! | 4 | kind: message 1, farewell 2, nothing 3 | u8 |
//! | 5 | handler | u8 |
//! | 6..8 | zeros | |

use thiserror::Error;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 8;
/// Payloads begin at multiples of this.
pub const ALIGNMENT: usize = 8;

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A message for a handler.
    Message {
        /// The handler's number.
        handler: u8,
    },
    /// The peer closes the connection in order; nothing follows.
    Farewell,
    /// Without content: the acknowledgement shows the sender that the peer is alive.
    Nothing,
}

/// A message's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The kind.
    pub kind: Kind,
    /// Bytes of the payload.
    pub length: u32,
}

/// Why bytes are not a header. What follows them cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MessageError {
    /// Unknown kind, or bytes that should be zero.
    #[error("it sent bytes that are not a message")]
    Foreign,
    /// Longer than any message.
    #[error("it announced a message of {length} bytes, and the limit is {limit}")]
    TooLong {
        /// Bytes announced.
        length: u32,
        /// Bytes allowed.
        limit: u32,
    },
}

impl Header {
    /// A message of `length` bytes for `handler`.
    #[inline]
    pub const fn message(handler: u8, length: u32) -> Self {
        Self { kind: Kind::Message { handler }, length }
    }

    /// The bytes of the header.
    #[inline]
    pub const fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let (kind, handler) = match self.kind {
            Kind::Message { handler } => (1, handler),
            Kind::Farewell => (2, 0),
            Kind::Nothing => (3, 0),
        };
        (self.length as u64 | kind << 32 | (handler as u64) << 40).to_le_bytes()
    }

    /// Parses a header.
    #[inline]
    pub fn parse(bytes: [u8; HEADER_BYTES], limit: u32) -> Result<Self, MessageError> {
        let word = u64::from_le_bytes(bytes);
        let length = word as u32;
        let kind = match word >> 32 {
            0x02 if length == 0 => Kind::Farewell,
            0x03 if length == 0 => Kind::Nothing,
            kind if kind & 0xffff_00ff == 0x01 => Kind::Message { handler: (kind >> 8) as u8 },
            _ => return Err(MessageError::Foreign),
        };
        if length > limit {
            return Err(MessageError::TooLong { length, limit });
        }
        Ok(Self { kind, length })
    }

    /// Bytes of the whole message: header, payload and padding.
    #[inline]
    pub const fn span(self) -> usize {
        HEADER_BYTES + padded(self.length as usize)
    }
}

/// `length` with the padding.
#[inline]
pub const fn padded(length: usize) -> usize {
    length.next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_headers() {
        let header = Header::message(31, 0x0001_0203);
        assert_eq!(header.to_bytes(), [3, 2, 1, 0, 1, 31, 0, 0]);
        assert_eq!(Header::parse(header.to_bytes(), u32::MAX), Ok(header));
        let farewell = Header { kind: Kind::Farewell, length: 0 };
        assert_eq!(farewell.to_bytes(), [0, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(Header::parse(farewell.to_bytes(), 0), Ok(farewell));
        let nothing = Header { kind: Kind::Nothing, length: 0 };
        assert_eq!(nothing.to_bytes(), [0, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(Header::parse(nothing.to_bytes(), 0), Ok(nothing));
        assert_eq!((Header::message(0, 0).span(), Header::message(0, 9).span()), (8, 24));
    }

    #[test]
    fn lies_about_the_length_are_refused() {
        let header = Header::message(0, u32::MAX).to_bytes();
        assert_eq!(
            Header::parse(header, 100),
            Err(MessageError::TooLong { length: u32::MAX, limit: 100 })
        );
        assert_eq!(Header::parse([1, 0, 0, 0, 2, 0, 0, 0], 100), Err(MessageError::Foreign));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes: [u8; 8], limit: u32) {
            if let Ok(header) = Header::parse(bytes, limit) {
                prop_assert_eq!(header.to_bytes(), bytes);
                prop_assert!(header.length <= limit);
            }
        }
    }
}
