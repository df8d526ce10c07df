//! The header that every message of the protocol begins with.
//!
//! | byte | meaning |
//! |---|---|
//! | 0..2 | `b"bw"` |
//! | 2 | version of this layout, 2 |
//! | 3 | kind |
//! | 4..8 | number of the link among those with this peer |
//! | 8..16 | the sender's name of the link, 0 if it has none |
//! | 16..24 | the receiver's name of the link, 0 if the sender does not know it |
//! | 24..40 | uuid of the sender |
//! | 40..56 | uuid of the receiver |
//! | 56 | number of the offer that the message belongs to |
//! | 57 | reason |
//! | 58..60 | place of these bytes in the body |
//! | 60..62 | length of the body |
//! | 62..64 | zero |
//! | 64..68 | number of the link among all that the sender has made, modulo 2^32 |
//! | 68..72 | zero |
//! | 72..80 | of OFFER and PASS, the sender's pass, 0 if it has none |
//! | 80.. | a part of the body, integers big-endian |
//!
//! The first 64 bytes are the same in every version, so that an offer of another version can be
//! refused.

use thiserror::Error;

use super::id::Uuid;
use super::reason::Reason;

/// Bytes of the header.
pub const HEADER: usize = 80;
/// The version that this library writes and reads: of these messages, and of those of tags over the
/// links that they connect.
pub const VERSION: u8 = 3;
/// Bytes of the longest body.
pub const MAX_BODY: usize = 8192;

const MAGIC: [u8; 2] = *b"bw";

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Lanes that the sender would connect. Body: [`Offer`](super::Offer) and the sender's address.
    Offer = 1,
    /// The lanes of an offer that the sender connected. Body: [`Answer`](super::Answer).
    Answer = 2,
    /// Acknowledges an ANSWER, or a CLOSED if the number of the offer is 0.
    Done = 3,
    /// The sender does not connect the link, with a reason.
    Refuse = 4,
    /// The sender closes the link. Body: the number of messages that it sent, 8 bytes.
    Close = 5,
    /// The sender received everything up to the number in CLOSE.
    Closed = 6,
    /// Asks whether the link exists. Body: the sender's address, for a receiver without the link.
    Ping = 7,
    /// The link exists. Sent in reply to PING.
    Pong = 8,
    /// The sender does not have the link that a message was for.
    Gone = 9,
    /// The pass with which the receiver repeats its OFFER. Sent to the address in the OFFER.
    Pass = 10,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 10] = [
        Self::Offer,
        Self::Answer,
        Self::Done,
        Self::Refuse,
        Self::Close,
        Self::Closed,
        Self::Ping,
        Self::Pong,
        Self::Gone,
        Self::Pass,
    ];

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code)
    }

    /// Returns the least and the greatest length of the body.
    fn lengths(self) -> (usize, usize) {
        match self {
            Self::Offer | Self::Answer => (1, MAX_BODY),
            Self::Close => (8, 8),
            Self::Ping => (0, MAX_BODY),
            Self::Done | Self::Refuse | Self::Closed | Self::Pong | Self::Gone | Self::Pass => {
                (0, 0)
            }
        }
    }

    /// Whether the body may come in several messages.
    fn is_split(self) -> bool {
        matches!(self, Self::Offer | Self::Answer)
    }
}

/// Why bytes are not a message of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MessageError {
    /// Shorter than the header.
    #[error("{0} bytes, the header alone has {HEADER}")]
    Truncated(usize),
    /// Not sent by barewire.
    #[error("it does not start with \"bw\"")]
    Foreign,
    /// Sent by a version with other messages.
    #[error(
        "version {found}, this library reads version {VERSION}: run the same version on both sides"
    )]
    Version {
        /// The version found.
        found: u8,
    },
    /// A kind that this version does not have.
    #[error("unknown kind {0}")]
    Kind(u8),
    /// A header's field has a value that it cannot have.
    #[error("the field {0} of the header has an impossible value")]
    Field(&'static str),
    /// The body does not have the length that its kind needs, or the header states another one.
    #[error("a body of {found} bytes of {total} at {offset} does not suit a message {kind:?}")]
    Length {
        /// The kind.
        kind: Kind,
        /// Bytes found.
        found: usize,
        /// Their place in the body.
        offset: usize,
        /// Length of the body.
        total: usize,
    },
    /// The body is not what its kind needs.
    #[error("the body of a message {kind:?} is malformed: {what}")]
    Body {
        /// The kind.
        kind: Kind,
        /// What is wrong.
        what: &'static str,
    },
}

/// A message whose header and lengths are valid. The body of an OFFER or ANSWER may be a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// What it is.
    pub kind: Kind,
    /// Number of the link among those with this peer, counted by the sender.
    pub sn: u32,
    /// The sender's name of the link, 0 if it has none.
    pub from: u64,
    /// The receiver's name of the link, 0 if the sender does not know it.
    pub to: u64,
    /// The sender. Of a GONE or REFUSE from a process that was restarted, the process before.
    pub uuid: Uuid,
    /// The receiver.
    pub receiver: Uuid,
    /// Number of the offer that the message belongs to, from 1.
    pub attempt: u8,
    /// The reason of REFUSE, else [`Reason::None`].
    pub reason: Reason,
    /// Place of `bytes` in the body.
    pub offset: u16,
    /// Length of the body.
    pub total: u16,
    /// Number of the link among all that the sender has made, modulo 2^32.
    pub order: u32,
    /// Of OFFER and PASS, the pass of the end that offers; 0 if it has none.
    pub pass: u64,
    /// The body or, of OFFER and ANSWER, a part.
    pub bytes: &'a [u8],
}

/// Parts of a body begin at multiples of this.
pub(super) const PIECE: usize = 64;

impl<'a> Message<'a> {
    /// Reads one message.
    ///
    /// A REFUSE is read from every version, because it says that the versions differ.
    ///
    /// # Errors
    /// [`MessageError`] if the bytes are not exactly one message.
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let (header, body) =
            bytes.split_first_chunk::<HEADER>().ok_or(MessageError::Truncated(bytes.len()))?;
        if header[..2] != MAGIC {
            return Err(MessageError::Foreign);
        }
        if header[2] != VERSION && header[3] != Kind::Refuse as u8 {
            return Err(MessageError::Version { found: header[2] });
        }
        let kind = Kind::from_code(header[3]).ok_or(MessageError::Kind(header[3]))?;
        let message = Self { bytes: body, ..Self::header(kind, header) };
        if header[62..64] != [0; 2] || header[68..72] != [0; 4] {
            return Err(MessageError::Field("padding"));
        }
        if message.from == 0 && !matches!(kind, Kind::Refuse | Kind::Gone | Kind::Pass) {
            return Err(MessageError::Field("sender's link"));
        }
        if message.to == 0 && kind != Kind::Offer {
            return Err(MessageError::Field("receiver's link"));
        }
        if message.attempt == 0 && matches!(kind, Kind::Offer | Kind::Answer) {
            return Err(MessageError::Field("number of the offer"));
        }
        let may_pass = matches!(kind, Kind::Offer | Kind::Pass);
        if message.pass != 0 && !may_pass || message.pass == 0 && kind == Kind::Pass {
            return Err(MessageError::Field("pass"));
        }
        if (message.reason == Reason::None) == (kind == Kind::Refuse) {
            return Err(MessageError::Field("reason"));
        }
        message.check_lengths()?;
        Ok(message)
    }

    fn header(kind: Kind, header: &[u8; HEADER]) -> Self {
        Self {
            kind,
            sn: u32::from_be_bytes(array(&header[4..])),
            from: u64::from_be_bytes(array(&header[8..])),
            to: u64::from_be_bytes(array(&header[16..])),
            uuid: array(&header[24..]),
            receiver: array(&header[40..]),
            attempt: header[56],
            reason: Reason::from_code(header[57]),
            offset: u16::from_be_bytes(array(&header[58..])),
            total: u16::from_be_bytes(array(&header[60..])),
            order: u32::from_be_bytes(array(&header[64..])),
            pass: u64::from_be_bytes(array(&header[72..])),
            bytes: &[],
        }
    }

    fn check_lengths(&self) -> Result<(), MessageError> {
        let (found, offset, total) =
            (self.bytes.len(), usize::from(self.offset), usize::from(self.total));
        let (least, most) = self.kind.lengths();
        let part = self.kind.is_split()
            && found > 0
            && offset % PIECE == 0
            && (offset + found == total || offset + found < total && found % PIECE == 0);
        let whole = offset == 0 && found == total;
        if (least..=most).contains(&total) && (part || whole) {
            Ok(())
        } else {
            Err(MessageError::Length { kind: self.kind, found, offset, total })
        }
    }

    /// Returns the sender's link, the receiver's link and the uuid of an OFFER of another version.
    pub(super) fn foreign_offer(bytes: &'a [u8]) -> Option<Self> {
        let (header, _) = bytes.split_first_chunk::<HEADER>()?;
        let other = header[..2] == MAGIC && header[2] != VERSION && header[3] == Kind::Offer as u8;
        other.then(|| Self::header(Kind::Offer, header)).filter(|offer| offer.from != 0)
    }

    /// Returns the bytes of this message.
    pub fn to_bytes(&self) -> Box<[u8]> {
        let mut bytes = Vec::with_capacity(HEADER + self.bytes.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[VERSION, self.kind as u8]);
        bytes.extend_from_slice(&self.sn.to_be_bytes());
        bytes.extend_from_slice(&self.from.to_be_bytes());
        bytes.extend_from_slice(&self.to.to_be_bytes());
        bytes.extend_from_slice(&self.uuid);
        bytes.extend_from_slice(&self.receiver);
        bytes.extend_from_slice(&[self.attempt, self.reason.code()]);
        bytes.extend_from_slice(&self.offset.to_be_bytes());
        bytes.extend_from_slice(&self.total.to_be_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&self.order.to_be_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.pass.to_be_bytes());
        bytes.extend_from_slice(self.bytes);
        bytes.into_boxed_slice()
    }

    /// Returns the number in a CLOSE.
    pub(super) fn last(&self) -> u64 {
        self.bytes.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }
}

/// Returns the first `N` bytes of `bytes`, which has at least as many.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[..N]);
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close() -> Message<'static> {
        Message {
            kind: Kind::Close,
            sn: 0x0102_0304,
            from: 0x0000_0005_0000_0006,
            to: 0x0000_0007_0000_0008,
            uuid: *b"0123456789abcdef",
            receiver: *b"another process!",
            attempt: 9,
            reason: Reason::None,
            offset: 0,
            total: 8,
            order: 0x0a0b_0c0d,
            pass: 0,
            bytes: &[0, 0, 0, 0, 0, 0, 1, 2],
        }
    }

    #[test]
    fn golden_bytes_of_a_close() {
        let mut golden = b"bw\x03\x05\x01\x02\x03\x04".to_vec();
        golden.extend_from_slice(b"\0\0\0\x05\0\0\0\x06\0\0\0\x07\0\0\0\x08");
        golden.extend_from_slice(b"0123456789abcdefanother process!");
        golden.extend_from_slice(b"\x09\0\0\0\0\x08\0\0");
        golden.extend_from_slice(b"\x0a\x0b\x0c\x0d\0\0\0\0\0\0\0\0\0\0\0\0");
        golden.extend_from_slice(b"\0\0\0\0\0\0\x01\x02");
        assert_eq!(*close().to_bytes(), *golden);
        assert_eq!(Message::from_bytes(&golden), Ok(close()));
        assert_eq!(close().last(), 0x102);
    }

    #[test]
    fn each_impossible_header_is_an_error() {
        let good = close().to_bytes();
        for (at, value, error) in [
            (0, b'x', MessageError::Foreign),
            (2, VERSION - 1, MessageError::Version { found: VERSION - 1 }),
            (3, 11, MessageError::Kind(11)),
            (57, 1, MessageError::Field("reason")),
            (63, 1, MessageError::Field("padding")),
            (68, 1, MessageError::Field("padding")),
            (72, 1, MessageError::Field("pass")),
        ] {
            let mut bad = good.to_vec();
            bad[at] = value;
            assert_eq!(Message::from_bytes(&bad), Err(error));
        }
        assert_eq!(Message::from_bytes(&good[..79]), Err(MessageError::Truncated(79)));
        let short = Message::from_bytes(&good[..87]);
        assert!(matches!(short, Err(MessageError::Length { found: 7, total: 8, .. })));
        let no_sender = Message { from: 0, ..close() }.to_bytes();
        assert_eq!(Message::from_bytes(&no_sender), Err(MessageError::Field("sender's link")));
        let pass = Message { kind: Kind::Pass, total: 0, bytes: &[], ..close() };
        assert_eq!(Message::from_bytes(&pass.to_bytes()), Err(MessageError::Field("pass")));
        let pass = Message { pass: 5, from: 0, ..pass };
        assert_eq!(Message::from_bytes(&pass.to_bytes()), Ok(pass));
        let no_receiver = Message { to: 0, ..close() }.to_bytes();
        assert_eq!(Message::from_bytes(&no_receiver), Err(MessageError::Field("receiver's link")));
    }

    #[test]
    fn a_refusal_is_read_from_every_version() {
        let refuse = Message {
            kind: Kind::Refuse,
            reason: Reason::Version,
            total: 0,
            bytes: &[],
            ..close()
        };
        let mut bytes = refuse.to_bytes();
        bytes[2] = 77;
        assert_eq!(Message::from_bytes(&bytes), Ok(refuse));
    }

    #[test]
    fn parts_begin_and_end_at_multiples_of_a_piece() {
        let body = [1; 100];
        let part = |offset: u16, length: usize| {
            let bytes = &body[..length];
            let offer = Message { kind: Kind::Offer, offset, total: 100, bytes, ..close() };
            Message::from_bytes(&offer.to_bytes()).map(|_| ())
        };
        assert_eq!(part(0, 64), Ok(()));
        assert_eq!(part(64, 36), Ok(()));
        assert_eq!(part(0, 100), Ok(()));
        for (offset, length) in [(1, 64), (64, 35), (64, 37), (0, 63), (64, 0), (128, 1)] {
            let error = part(offset, length);
            assert!(
                matches!(error, Err(MessageError::Length { .. })),
                "{offset} {length} {error:?}"
            );
        }
    }
}
