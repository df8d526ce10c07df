//! The header of every packet, and the bodies of packets without a message. Integers are
//! little-endian.
//!
//! | byte | meaning |
//! |---|---|
//! | 0 | version 1 in the upper half, kind in the lower |
//! | 1 | handler id of a message, else 0 |
//! | 2 | flags: 1 requests an immediate acknowledgement |
//! | 3 | 0 |
//! | 4..8 | the receiving endpoint, by the name that its interface gave it |
//! | 8..12 | number of a message, else 0 |
//! | 12..16 | the number that the sender expects next |

use super::Sequence;

/// Bytes of a header.
pub(in super::super) const HEADER: usize = 16;
/// Bytes of an acknowledgement.
const ACK: usize = HEADER + 8;
/// Bytes of a connection request or its response.
const REQUEST: usize = HEADER + 16 + ADDRESS;
/// Bytes of the address in it, whose contents the transport defines.
const ADDRESS: usize = 32;
/// The flag that requests an immediate acknowledgement.
pub(in super::super) const ACK_NOW: u8 = 1;

const VERSION: u8 = 1 << 4;

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Kind {
    /// An active message.
    Message,
    /// Which messages arrived, including those beyond the first gap.
    Acknowledge,
    /// A request for the peer's endpoint.
    Request,
    /// The response: the peer's endpoint.
    Reply,
    /// The endpoint was closed.
    Bye,
}

impl Kind {
    const ALL: [Self; 5] =
        [Self::Message, Self::Acknowledge, Self::Request, Self::Reply, Self::Bye];

    const fn code(self) -> u8 {
        self as u8
    }
}

/// The first bytes of every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Header {
    pub(in super::super) kind: Kind,
    pub(in super::super) id: u8,
    pub(in super::super) flags: u8,
    pub(in super::super) to: u32,
    pub(in super::super) sequence: Sequence,
    pub(in super::super) expected: Sequence,
}

impl Header {
    /// Returns the header of a packet without a message.
    pub(in super::super) fn control(kind: Kind, to: u32, expected: Sequence) -> Self {
        Self { kind, id: 0, flags: 0, to, sequence: Sequence(0), expected }
    }

    /// Returns the header of a message without flags.
    #[inline(always)]
    pub(in super::super) fn message(
        id: u8,
        to: u32,
        sequence: Sequence,
        expected: Sequence,
    ) -> Self {
        Self { kind: Kind::Message, id, flags: 0, to, sequence, expected }
    }

    /// Returns the two numbers in the second of [`Self::to_words`]: the message's, and the one that
    /// the sender expects.
    #[inline(always)]
    pub(in super::super) fn numbers_in(word: u64) -> (Sequence, Sequence) {
        (Sequence(word as u32), Sequence((word >> 32) as u32))
    }

    /// Returns the handler id in the first of [`Self::to_words`].
    #[inline(always)]
    pub(in super::super) fn id_in(word: u64) -> u8 {
        (word >> 8) as u8
    }

    /// Returns the receiving endpoint in the first of [`Self::to_words`].
    #[inline(always)]
    pub(in super::super) fn to_in(word: u64) -> u32 {
        (word >> 32) as u32
    }

    /// Returns the bytes as two little-endian words.
    #[inline(always)]
    pub(in super::super) fn to_words(self) -> [u64; 2] {
        let first = u32::from_le_bytes([VERSION | self.kind.code(), self.id, self.flags, 0]);
        [
            u64::from(first) | u64::from(self.to) << 32,
            u64::from(self.sequence.0) | u64::from(self.expected.0) << 32,
        ]
    }

    pub(in super::super) fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let [low, high] = self.to_words();
        bytes[..8].copy_from_slice(&low.to_le_bytes());
        bytes[8..].copy_from_slice(&high.to_le_bytes());
        bytes
    }

    /// Returns a packet's header and body, if it is of this version.
    pub(in super::super) fn parse(packet: &[u8]) -> Option<(Self, &[u8])> {
        let (bytes, body) = packet.split_first_chunk::<HEADER>()?;
        let kind = *Kind::ALL.get(usize::from(bytes[0].checked_sub(VERSION)?))?;
        let header = Self {
            kind,
            id: bytes[1],
            flags: bytes[2],
            to: word(bytes, 4),
            sequence: Sequence(word(bytes, 8)),
            expected: Sequence(word(bytes, 12)),
        };
        Some((header, body))
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    u32::from_le_bytes(word.unwrap_or_default())
}

/// The messages that a receiver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Acknowledged {
    /// All before this number.
    pub(in super::super) expected: Sequence,
    /// Those behind it, one bit each.
    pub(in super::super) beyond: u64,
}

impl Acknowledged {
    /// Returns the acknowledgement in a header.
    pub(in super::super) fn of(header: &Header) -> Self {
        Self { expected: header.expected, beyond: 0 }
    }

    /// Returns the packet that acknowledges to the endpoint `to`.
    pub(in super::super) fn to_packet(self, to: u32) -> [u8; ACK] {
        let mut bytes = [0; ACK];
        bytes[..HEADER]
            .copy_from_slice(&Header::control(Kind::Acknowledge, to, self.expected).to_bytes());
        bytes[HEADER..].copy_from_slice(&self.beyond.to_le_bytes());
        bytes
    }

    /// Returns the same packet as little-endian words; the last one is ignored.
    #[inline(always)]
    pub(in super::super) fn to_words(self, to: u32) -> [u64; 4] {
        let [low, high] = Header::control(Kind::Acknowledge, to, self.expected).to_words();
        [low, high, self.beyond, 0]
    }

    /// Parses such a packet.
    pub(in super::super) fn parse(header: &Header, body: &[u8]) -> Option<Self> {
        let beyond = u64::from_le_bytes(*body.first_chunk()?);
        Some(Self { expected: header.expected, beyond })
    }
}

/// The sender of a connection request or of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Request {
    /// The name of the sending endpoint.
    pub(in super::super) from: u32,
    /// The number of the connection between the two interfaces.
    pub(in super::super) number: u32,
    /// The sending interface.
    pub(in super::super) interface: u64,
    /// The address of that interface.
    pub(in super::super) address: [u8; ADDRESS],
}

impl Request {
    /// Returns the packet, for the endpoint `to` if it is a response.
    pub(in super::super) fn to_packet(self, kind: Kind, to: u32) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        let (header, body) = bytes.split_at_mut(HEADER);
        header.copy_from_slice(&Header::control(kind, to, Sequence(0)).to_bytes());
        body[..4].copy_from_slice(&self.from.to_le_bytes());
        body[4..8].copy_from_slice(&self.number.to_le_bytes());
        body[8..16].copy_from_slice(&self.interface.to_le_bytes());
        body[16..].copy_from_slice(&self.address);
        bytes
    }

    /// Parses the body of such a packet.
    pub(in super::super) fn parse(body: &[u8]) -> Option<Self> {
        let body = body.first_chunk::<{ REQUEST - HEADER }>()?;
        let (_, address) = body.split_last_chunk()?;
        let interface = u64::from(word(body, 8)) | u64::from(word(body, 12)) << 32;
        Some(Self { from: word(body, 0), number: word(body, 4), interface, address: *address })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_bytes_both_ways() {
        let header = Header {
            kind: Kind::Message,
            id: 7,
            flags: ACK_NOW,
            to: 0x0102_0304,
            sequence: Sequence(5),
            expected: Sequence(0xffff_fffe),
        };
        let bytes = [0x10, 7, 1, 0, 4, 3, 2, 1, 5, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff];
        assert_eq!(header.to_bytes(), bytes);
        let [low, high] = header.to_words();
        assert_eq!((Header::id_in(low), Header::to_in(low)), (7, 0x0102_0304));
        assert_eq!(Header::numbers_in(high), (header.sequence, header.expected));
        assert_eq!(Header::parse(&bytes), Some((header, &[][..])));
        let told = Acknowledged { expected: Sequence(9), beyond: 1 << 63 | 1 };
        let packet = told.to_packet(3);
        let words = told.to_words(3).map(u64::to_le_bytes);
        assert_eq!(words.as_flattened().split_at(packet.len()), (&packet[..], &[0; 8][..]));
        let (header, body) = Header::parse(&packet).unwrap();
        assert_eq!((header.kind, header.to), (Kind::Acknowledge, 3));
        assert_eq!(Acknowledged::parse(&header, body), Some(told));
        let request = Request {
            from: 1,
            number: 2,
            interface: 0x0304_0506_0708_090a,
            address: [0xab; ADDRESS],
        };
        let packet = request.to_packet(Kind::Reply, 4);
        let (header, body) = Header::parse(&packet).unwrap();
        assert_eq!((header.kind, Request::parse(body)), (Kind::Reply, Some(request)));
    }

    proptest! {
        /// Any bytes parse or are refused, and what parses has the same bytes again.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let Some((header, body)) = Header::parse(&bytes) else {
                prop_assert!(bytes.len() < HEADER || bytes[0] >> 4 != 1 || bytes[0] & 15 > 4);
                return Ok(());
            };
            let again = header.to_bytes();
            prop_assert_eq!(&again[..3], &bytes[..3]);
            prop_assert_eq!(&again[4..], &bytes[4..HEADER]);
            prop_assert_eq!(body.len(), bytes.len() - HEADER);
            prop_assert_eq!(Request::parse(body).is_some(), body.len() >= REQUEST - HEADER);
            prop_assert_eq!(Acknowledged::parse(&header, body).is_some(), body.len() >= ACK - HEADER);
        }
    }
}
