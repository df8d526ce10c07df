//! The messages of the tag protocol as bytes.
//!
//! Every message begins with a [`Header`]. Its first word is what `am_short` takes as its header:
//! the tag, or for messages about a request the request's number at their receiver. All numbers are
//! little endian.
//!
//! | offset | size | field |
//! |---:|---:|---|
//! | 0 | 8 | word: a tag, or a request of the receiver of this message |
//! | 8 | 1 | kind; its highest bit says that the header has the last two fields |
//! | 9 | 1 | tag messages sent on this link before this one, modulo 2^8 |
//! | 10 | 6 | the link, as its receiver numbers it |
//! | 16 | 4 | bytes that the receiver of this header may have sent so far, modulo 2^32 |
//! | 20 | 4 | messages that the receiver of this header may have sent so far, modulo 2^16 |
//!
//! So an eager message of 8 bytes without credit fits into 16 bytes behind its word, which `shm`
//! sends in half a cache line. The number of a link is random, and only the peer has it
//! ([`Opening`](super::Opening)): it proves that a message is the peer's. The body depends on the
//! kind; see [`Message`].

use thiserror::Error;

/// Bytes of a [`Header`] without credit.
pub const HEADER: usize = 16;
/// Bytes of a [`Header`] with credit.
pub const LONGEST_HEADER: usize = HEADER + size_of::<u64>();
/// The version of this layout. The version of the messages that connect nodes changes with it, so
/// that a node of another layout is refused by name.
pub const VERSION: u8 = 5;
/// Bits of a link's number.
pub const LINK_BITS: u32 = 48;
/// The bit of a kind that says that credit follows.
const HAS_CREDIT: u8 = 1 << 7;
/// Lanes that a rendezvous can name.
pub const MAX_LANES: usize = 8;
/// Longest key of a lane, in bytes.
pub const MAX_KEY: usize = 255;
/// Longest body of an `Announce` in bytes: a request, a length, an address, and the keys.
pub const MAX_ANNOUNCEMENT: usize = 3 * size_of::<u64>() + MAX_LANES * (2 + MAX_KEY);

/// The part that all messages have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// A tag, or the number of a request.
    pub word: u64,
    /// What follows.
    pub kind: Kind,
    /// What the receiver of this header may send, if this message reports it.
    pub credit: Option<Credit>,
    /// The link, as the receiver of this header numbers it: [`LINK_BITS`] bits.
    pub link: u64,
    /// Messages of this link before this one, modulo 2^8.
    pub number: u8,
}

/// How much a sender may have sent since the beginning of the link. The counters wrap, and a header
/// that repeats them changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Credit {
    /// Eager messages.
    pub messages: u16,
    /// Bytes of their payload.
    pub bytes: u32,
}

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A message with its payload.
    Eager = 1,
    /// The same, to be acknowledged when it is matched.
    Synchronous = 2,
    /// A message whose payload waits at the sender.
    Announce = 3,
    /// The receiver is ready for a payload: the sender puts it or sends fragments.
    Request = 4,
    /// A fragment of a payload.
    Fragment = 5,
    /// All of a payload was put.
    Put = 6,
    /// A send is finished: matched, fetched, failed or withdrawn.
    Finished = 7,
    /// The sender withdraws an announced message.
    Withdraw = 8,
    /// Nothing but the credit of the header.
    Credit = 9,
}

impl Kind {
    fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Eager,
            2 => Self::Synchronous,
            3 => Self::Announce,
            4 => Self::Request,
            5 => Self::Fragment,
            6 => Self::Put,
            7 => Self::Finished,
            8 => Self::Withdraw,
            9 => Self::Credit,
            _ => return None,
        })
    }
}

/// Why received bytes are no message of this protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The message ends too early.
    #[error("the message ends after {0} bytes")]
    Short(usize),
    /// A kind or a code that does not exist.
    #[error("unknown code {0}")]
    Unknown(u8),
    /// Bytes after the end.
    #[error("{0} bytes after the end of the message")]
    Excess(usize),
    /// Credit of more messages than the field has.
    #[error("credit of more than 2^16 messages")]
    Credit,
    /// More lanes than a message can name, or a lane twice.
    #[error("lane {0} is named twice, or is beyond the {MAX_LANES} that a message can name")]
    Lanes(u8),
}

impl Header {
    /// What follows the word: `am_short` sends it in front of the payload. The second word is sent
    /// only if there is credit.
    #[inline]
    pub fn tail(&self) -> [u64; 2] {
        let front = u64::from(self.kind as u8)
            | u64::from(self.number) << 8
            | self.link << (u64::BITS - LINK_BITS);
        match self.credit {
            None => [front, 0],
            Some(Credit { messages, bytes }) => {
                [front | u64::from(HAS_CREDIT), u64::from(bytes) | u64::from(messages) << 32]
            }
        }
    }

    /// The first word of the [`tail`](Self::tail) of the first message to a link, if that message
    /// is eager and has no credit.
    pub(super) fn of_eager(link: u64) -> u64 {
        let credit = None;
        Self { word: 0, kind: Kind::Eager, credit, link, number: 0 }.tail()[0]
    }

    /// That of the message behind the one with this word.
    #[inline]
    pub(super) fn next(front: u64) -> u64 {
        const NUMBER: u64 = 0xff << 8;
        front & !NUMBER | front.wrapping_add(1 << 8) & NUMBER
    }

    /// The number in that word.
    #[inline]
    pub(super) fn number(front: u64) -> u8 {
        (front >> 8) as u8
    }

    /// The link in that word.
    #[inline]
    pub(super) fn link(front: u64) -> u64 {
        front >> (u64::BITS - LINK_BITS)
    }

    /// Writes the header to the start of `target`. Returns its length; `None` if `target` is too
    /// short.
    pub fn write(&self, target: &mut [u8]) -> Option<usize> {
        let mut writer = Writer { target, at: 0 };
        let [front, credit] = self.tail();
        writer.bytes(&self.word.to_le_bytes())?;
        writer.bytes(&front.to_le_bytes())?;
        if self.credit.is_some() {
            writer.bytes(&credit.to_le_bytes())?;
        }
        Some(writer.at)
    }

    /// The header and the body behind it.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), MessageError> {
        let short = || MessageError::Short(bytes.len());
        let (word, rest) = bytes.split_first_chunk().ok_or_else(short)?;
        let (front, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let front = u64::from_le_bytes(*front);
        let code = front as u8;
        let (credit, body) = if code & HAS_CREDIT == 0 {
            (None, rest)
        } else {
            let (credit, body) = rest.split_first_chunk().ok_or_else(short)?;
            let credit = u64::from_le_bytes(*credit);
            let messages = u16::try_from(credit >> 32).map_err(|_| MessageError::Credit)?;
            (Some(Credit { messages, bytes: credit as u32 }), body)
        };
        let kind = Kind::from_code(code & !HAS_CREDIT).ok_or(MessageError::Unknown(code))?;
        let (link, number) = (Self::link(front), Self::number(front));
        Ok((Self { word: u64::from_le_bytes(*word), kind, credit, link, number }, body))
    }
}

/// A message's kind and body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message<'a> {
    /// `word` is the tag.
    Eager {
        /// The payload, to the end of the message.
        payload: &'a [u8],
    },
    /// `word` is the tag.
    Synchronous {
        /// The sender's request.
        request: u64,
        /// The payload, to the end of the message.
        payload: &'a [u8],
    },
    /// `word` is the tag.
    Announce {
        /// The sender's request.
        request: u64,
        /// Bytes of the payload.
        length: u64,
        /// Where the payload is, for gets.
        place: Place<'a>,
    },
    /// `word` is the request of the sender of the payload.
    Request {
        /// The receiver's request.
        request: u64,
        /// Bytes wanted: the first of the payload.
        length: u64,
        /// Where to put them; nowhere if fragments are wanted.
        place: Place<'a>,
    },
    /// `word` is the request of the receiver of the payload.
    Fragment {
        /// Where in the payload.
        offset: u64,
        /// The bytes, to the end of the message.
        payload: &'a [u8],
    },
    /// `word` is the request of the receiver of the payload.
    Put {
        /// Whether the puts succeeded.
        outcome: Outcome,
    },
    /// `word` is the request of the sender of the payload.
    Finished {
        /// How.
        outcome: Outcome,
    },
    /// `word` is the request of the sender, as in its `Announce`.
    Withdraw,
    /// `word` is 0.
    Credit,
}

/// How a transfer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// The payload arrived, or as much of it as the receiver had room for.
    Done = 0,
    /// The message was withdrawn before it was matched.
    Withdrawn = 1,
    /// The data could not be moved.
    Failed = 2,
}

/// Memory of a peer: its address, and a key for each lane that can reach it. Without keys, no lane
/// can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place<'a> {
    /// Address of the first byte.
    pub address: u64,
    /// A number of keys; each is a lane (1 byte), a length (1 byte) and that many bytes. Validated.
    keys: &'a [u8],
}

impl<'a> Place<'a> {
    /// A place from keys that a [`KeyList`] collected.
    pub fn new(address: u64, keys: &'a KeyList) -> Self {
        Self { address, keys: &keys.0 }
    }

    /// The lanes and their keys.
    pub fn keys(&self) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
        let mut rest = self.keys;
        std::iter::from_fn(move || {
            let (&[lane, length], after) = rest.split_first_chunk()?;
            let (key, after) = after.split_at_checked(usize::from(length))?;
            rest = after;
            Some((lane, key))
        })
    }

    fn parse(reader: &mut Reader<'a>) -> Result<Self, MessageError> {
        let address = reader.u64()?;
        let keys = std::mem::take(&mut reader.rest);
        let mut reader = Reader { rest: keys, length: reader.length };
        let mut seen = 0_u8;
        while !reader.rest.is_empty() {
            let lane = reader.u8()?;
            let bit = 1_u8.checked_shl(u32::from(lane)).ok_or(MessageError::Lanes(lane))?;
            if seen & bit != 0 {
                return Err(MessageError::Lanes(lane));
            }
            seen |= bit;
            let length = reader.u8()?;
            reader.bytes(usize::from(length))?;
        }
        Ok(Self { address, keys })
    }
}

/// Keys for the lanes of a link, as a [`Place`] has them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyList(Vec<u8>);

impl From<Place<'_>> for KeyList {
    fn from(place: Place<'_>) -> Self {
        Self(place.keys.to_vec())
    }
}

impl KeyList {
    /// The lanes and their keys.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &[u8])> {
        Place { address: 0, keys: &self.0 }.keys()
    }

    /// True without keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the key for a lane. Returns false, and adds nothing, if the key is longer than
    /// [`MAX_KEY`], or the lane is beyond [`MAX_LANES`] or was added before.
    pub fn add(&mut self, lane: usize, key: &[u8]) -> bool {
        let (Ok(number), Ok(length)) = (u8::try_from(lane), u8::try_from(key.len())) else {
            return false;
        };
        let place = Place { address: 0, keys: &self.0 };
        if lane >= MAX_LANES || place.keys().any(|(there, _)| there == number) {
            return false;
        }
        self.0.extend_from_slice(&[number, length]);
        self.0.extend_from_slice(key);
        true
    }
}

impl<'a> Message<'a> {
    /// The body of a message of `kind`.
    pub fn parse(kind: Kind, body: &'a [u8]) -> Result<Self, MessageError> {
        let mut reader = Reader::new(body);
        let message = match kind {
            Kind::Eager => Self::Eager { payload: std::mem::take(&mut reader.rest) },
            Kind::Synchronous => {
                let request = reader.u64()?;
                Self::Synchronous { request, payload: std::mem::take(&mut reader.rest) }
            }
            Kind::Announce => {
                let (request, length) = (reader.u64()?, reader.u64()?);
                Self::Announce { request, length, place: Place::parse(&mut reader)? }
            }
            Kind::Request => {
                let (request, length) = (reader.u64()?, reader.u64()?);
                Self::Request { request, length, place: Place::parse(&mut reader)? }
            }
            Kind::Fragment => {
                let offset = reader.u64()?;
                Self::Fragment { offset, payload: std::mem::take(&mut reader.rest) }
            }
            Kind::Put => Self::Put { outcome: reader.outcome()? },
            Kind::Finished => Self::Finished { outcome: reader.outcome()? },
            Kind::Withdraw => Self::Withdraw,
            Kind::Credit => Self::Credit,
        };
        if reader.rest.is_empty() {
            Ok(message)
        } else {
            Err(MessageError::Excess(reader.rest.len()))
        }
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Eager { .. } => Kind::Eager,
            Self::Synchronous { .. } => Kind::Synchronous,
            Self::Announce { .. } => Kind::Announce,
            Self::Request { .. } => Kind::Request,
            Self::Fragment { .. } => Kind::Fragment,
            Self::Put { .. } => Kind::Put,
            Self::Finished { .. } => Kind::Finished,
            Self::Withdraw => Kind::Withdraw,
            Self::Credit => Kind::Credit,
        }
    }

    /// Bytes of the fixed part, in front of the payload or the keys.
    pub const fn prefix(kind: Kind) -> usize {
        match kind {
            Kind::Eager | Kind::Withdraw | Kind::Credit => 0,
            Kind::Synchronous | Kind::Fragment => 8,
            Kind::Announce | Kind::Request => 24,
            Kind::Put | Kind::Finished => 1,
        }
    }

    /// Writes the body to the start of `target`. Returns its length; `None` if `target` is too
    /// short.
    pub fn write(&self, target: &mut [u8]) -> Option<usize> {
        let mut writer = Writer { target, at: 0 };
        match *self {
            Self::Eager { payload } => writer.bytes(payload)?,
            Self::Synchronous { request: number, payload }
            | Self::Fragment { offset: number, payload } => {
                writer.bytes(&number.to_le_bytes())?;
                writer.bytes(payload)?;
            }
            Self::Announce { request, length, place }
            | Self::Request { request, length, place } => {
                for word in [request, length, place.address] {
                    writer.bytes(&word.to_le_bytes())?;
                }
                writer.bytes(place.keys)?;
            }
            Self::Put { outcome } | Self::Finished { outcome } => writer.bytes(&[outcome as u8])?,
            Self::Withdraw | Self::Credit => {}
        }
        Some(writer.at)
    }
}

struct Writer<'a> {
    target: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.at.checked_add(bytes.len())?;
        self.target.get_mut(self.at..end)?.copy_from_slice(bytes);
        self.at = end;
        Some(())
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    /// Of the whole, for errors.
    length: usize,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, length: bytes.len() }
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8], MessageError> {
        let (bytes, rest) =
            self.rest.split_at_checked(count).ok_or(MessageError::Short(self.length))?;
        self.rest = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let (bytes, rest) =
            self.rest.split_first_chunk().ok_or(MessageError::Short(self.length))?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn u8(&mut self) -> Result<u8, MessageError> {
        Ok(self.array::<1>()?[0])
    }

    fn u64(&mut self) -> Result<u64, MessageError> {
        self.array().map(u64::from_le_bytes)
    }

    fn outcome(&mut self) -> Result<Outcome, MessageError> {
        match self.u8()? {
            0 => Ok(Outcome::Done),
            1 => Ok(Outcome::Withdrawn),
            2 => Ok(Outcome::Failed),
            code => Err(MessageError::Unknown(code)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_documented_bytes() {
        let golden: [u8; LONGEST_HEADER] = std::array::from_fn(|at| match at {
            8 => 0x83,
            22.. => 0,
            at => at as u8 + 1,
        });
        let header = Header {
            word: 0x0807_0605_0403_0201,
            kind: Kind::Announce,
            credit: Some(Credit { messages: 0x1615, bytes: 0x1413_1211 }),
            link: 0x100f_0e0d_0c0b,
            number: 0x0a,
        };
        check(header, &golden);
        let mut golden = *golden.first_chunk::<HEADER>().unwrap();
        golden[8] = 3;
        check(Header { credit: None, ..header }, &golden);
        golden[8] = 10;
        assert_eq!(Header::parse(&golden), Err(MessageError::Unknown(10)));
    }

    fn check(header: Header, golden: &[u8]) {
        let mut bytes = [0; LONGEST_HEADER];
        let own = &mut bytes[..golden.len()];
        assert_eq!((header.write(own), &own[..]), (Some(golden.len()), golden));
        assert_eq!(header.write(&mut own[1..]), None);
        let tail = header.tail().map(u64::to_le_bytes);
        assert_eq!(tail.as_flattened()[..golden.len() - 8], golden[8..]);
        assert_eq!(Header::parse(golden), Ok((header, &[][..])));
        for length in 0..golden.len() {
            assert_eq!(Header::parse(&golden[..length]), Err(MessageError::Short(length)));
        }
    }

    #[test]
    fn bodies_have_the_documented_bytes() {
        let mut keys = KeyList::default();
        assert!(keys.add(2, b"key") && keys.add(0, b""));
        assert!(!keys.add(2, b"again") && !keys.add(MAX_LANES, b"") && !keys.add(1, &[0; 256]));
        let place = Place::new(0x33, &keys);
        assert_eq!(place.keys().collect::<Vec<_>>(), [(2, &b"key"[..]), (0, b"")]);
        let rendezvous = |keys: &[u8]| {
            let mut bytes = vec![0; 24];
            (bytes[0], bytes[8], bytes[16]) = (0x11, 0x22, 0x33);
            bytes.extend_from_slice(keys);
            bytes
        };
        let named = rendezvous(&[2, 3, b'k', b'e', b'y', 0, 0]);
        let none = Place { address: 0x33, keys: &[] };
        let cases = [
            (Message::Eager { payload: b"ab" }, b"ab".to_vec()),
            (Message::Synchronous { request: 7, payload: b"c" }, b"\x07\0\0\0\0\0\0\0c".to_vec()),
            (Message::Announce { request: 0x11, length: 0x22, place }, named.clone()),
            (Message::Request { request: 0x11, length: 0x22, place: none }, rendezvous(&[])),
            (Message::Fragment { offset: 9, payload: b"" }, b"\x09\0\0\0\0\0\0\0".to_vec()),
            (Message::Put { outcome: Outcome::Failed }, vec![2]),
            (Message::Finished { outcome: Outcome::Withdrawn }, vec![1]),
            (Message::Withdraw, vec![]),
            (Message::Credit, vec![]),
        ];
        for (message, golden) in cases {
            let mut bytes = vec![0; golden.len()];
            assert_eq!((message.write(&mut bytes), &bytes), (Some(golden.len()), &golden));
            assert_eq!(Message::parse(message.kind(), &golden), Ok(message.clone()));
            assert!(Message::prefix(message.kind()) <= golden.len());
            if !golden.is_empty() {
                assert_eq!(message.write(&mut bytes[1..]), None);
            }
        }
        for length in 0..named.len() {
            let parsed = Message::parse(Kind::Announce, &named[..length]);
            // The keys end with the message: it is complete after the fixed part and after each
            // key.
            assert_eq!(parsed.is_ok(), [24, 29].contains(&length), "{length}: {parsed:?}");
        }
        let twice = rendezvous(&[1, 0, 1, 0]);
        assert_eq!(Message::parse(Kind::Request, &twice), Err(MessageError::Lanes(1)));
        let beyond = rendezvous(&[8, 0]);
        assert_eq!(Message::parse(Kind::Request, &beyond), Err(MessageError::Lanes(8)));
        assert_eq!(Message::parse(Kind::Credit, b"x"), Err(MessageError::Excess(1)));
        assert_eq!(Message::parse(Kind::Put, &[3]), Err(MessageError::Unknown(3)));
    }
}
