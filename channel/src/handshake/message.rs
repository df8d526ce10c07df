//! The messages of the control connection and their bytes.
//!
//! | message | from | contents |
//! |---|---|---|
//! | OFFER | connector | version, limits, rails |
//! | ANSWER | listener | limits, rails, pairing, queue pairs |
//! | READY | connector | pairing, queue pairs, the ring's address and keys |
//! | GO | listener | both directions work; the address and keys of the records |
//! | REFUSE | either | a reason, as text |
//! | CLOSE | either | the first group that is not complete; 0 from the connector |
//! | FENCE | either | rail, epoch, the cause if this end noticed it, and what this end holds |
//! | TRY | connector | rail, epoch, new queue pairs |
//! | MADE | listener | rail, epoch, new queue pairs |
//! | USE | connector | rail, epoch: the new queue pairs work |
//!
//! Queue pairs are their numbers and the enhancements (ECE) that the device supports. The end that
//! connects its queue pairs first returns those that its device has accepted instead.
//!
//! A frame is the length of the rest (u32), the kind (u8), and the body. Integers are
//! little-endian. Peers have proved the job's key, but nothing else is trusted.

use std::time::Duration;

use barewire_layouts::command::capability::PortType;
use barewire_mlx5::{Enhancements, Mtu, PortAddress};

use super::pairing::{Pairing, Partners};
use crate::config::{MAX_PAIRS, MAX_RAILS};
use crate::fail_over::{Cause, Operation};
use crate::rails::{MAX_NAME, MAX_SHARE, MAX_WEIGHT, RailInfo};

/// Version of the protocol, including the ring and the immediates.
pub const VERSION: u16 = 5;
/// Longest frame in bytes.
pub(crate) const MOST: usize = 4096;
/// Longest reason of a refusal in bytes.
const MAX_REASON: usize = 2048;

/// Bytes that are no message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The length of a frame is out of range.
    #[error("a frame of {0} bytes")]
    Length(usize),
    /// The kind is unknown.
    #[error("a message of unknown kind {0}")]
    Kind(u8),
    /// The peer has another version.
    #[error(
        "version {0} of the protocol of channels, this end has {VERSION}: use the same barewire at both ends"
    )]
    Version(u16),
    /// The message ends early, or goes on after its end.
    #[error("a message of the wrong length")]
    Size,
    /// A field has a value that it cannot have.
    #[error("a wrong {0}")]
    Field(&'static str),
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the table of the module")]
pub enum Kind {
    Offer = 1,
    Answer = 2,
    Ready = 3,
    Go = 4,
    Refuse = 5,
    Close = 6,
    Fence = 7,
    Try = 8,
    Made = 9,
    Use = 10,
}

/// The limits of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest message in bytes.
    pub max_message: u64,
    /// Queue pairs per rail, 1 to 8.
    pub pairs: u8,
    /// Whether rails may stay without a partner.
    pub partial: bool,
}

/// The queue pairs of one end of a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePairs {
    /// Their numbers.
    pub numbers: Vec<u32>,
    /// The enhancements (ECE) that their device supports, or uses if they are connected.
    pub enhancements: Enhancements,
}

/// A rail by its number in the channel, and which queue pairs of it are meant: 0 for the first,
/// one more each time that they are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Number of the rail.
    pub place: u8,
    /// Number of its queue pairs.
    pub epoch: u32,
}

/// What an end has received over the queue pairs of a rail, and others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Immediates taken, by queue pair. Empty from the connector.
    pub taken: Vec<u32>,
    /// The group of the next send. 0 from the listener.
    pub next: u64,
    /// The groups from `next` on that are announced, as bits. 0 from the listener.
    pub announced: u32,
}

/// A message of the control connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the table of the module")]
pub enum Message {
    Offer { limits: Limits, rails: Vec<RailInfo> },
    Answer { limits: Limits, rails: Vec<RailInfo>, pairing: Pairing, pairs: Vec<QueuePairs> },
    Ready { pairing: Pairing, pairs: Vec<QueuePairs>, address: u64, keys: [u32; MAX_RAILS] },
    Go { address: u64, keys: [u32; MAX_RAILS] },
    Refuse { reason: String },
    Close { done: u64 },
    Fence { at: Epoch, cause: Option<Cause>, held: Held },
    Try { at: Epoch, pairs: QueuePairs },
    Made { at: Epoch, pairs: QueuePairs },
    Use { at: Epoch },
}

impl Message {
    /// The kind of the message.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Offer { .. } => Kind::Offer,
            Self::Answer { .. } => Kind::Answer,
            Self::Ready { .. } => Kind::Ready,
            Self::Go { .. } => Kind::Go,
            Self::Refuse { .. } => Kind::Refuse,
            Self::Close { .. } => Kind::Close,
            Self::Fence { .. } => Kind::Fence,
            Self::Try { .. } => Kind::Try,
            Self::Made { .. } => Kind::Made,
            Self::Use { .. } => Kind::Use,
        }
    }

    /// The refusal with `reason`, shortened to the longest that is sent.
    pub(crate) fn refuse(reason: &impl ToString) -> Self {
        let mut reason = reason.to_string();
        reason.truncate(reason.floor_char_boundary(MAX_REASON));
        Self::Refuse { reason }
    }

    /// The bytes of the frame.
    pub fn to_frame(&self) -> Vec<u8> {
        let mut to = vec![0, 0, 0, 0, self.kind() as u8];
        match self {
            Self::Offer { limits, rails } => {
                to.extend(VERSION.to_le_bytes());
                write_limits(&mut to, limits);
                write_rails(&mut to, rails);
            }
            Self::Answer { limits, rails, pairing, pairs } => {
                write_limits(&mut to, limits);
                write_rails(&mut to, rails);
                write_pairing(&mut to, pairing);
                write_rails_of_pairs(&mut to, pairs);
            }
            Self::Ready { pairing, pairs, address, keys } => {
                write_pairing(&mut to, pairing);
                write_rails_of_pairs(&mut to, pairs);
                write_keys(&mut to, *address, keys);
            }
            Self::Go { address, keys } => write_keys(&mut to, *address, keys),
            Self::Close { done } => to.extend(done.to_le_bytes()),
            Self::Refuse { reason } => to.extend(reason.as_bytes()),
            Self::Fence { at, cause, held } => {
                write_epoch(&mut to, *at);
                write_cause(&mut to, cause.as_ref());
                write_words(&mut to, &held.taken);
                to.extend(held.next.to_le_bytes());
                to.extend(held.announced.to_le_bytes());
            }
            Self::Try { at, pairs } | Self::Made { at, pairs } => {
                write_epoch(&mut to, *at);
                write_pairs(&mut to, pairs);
            }
            Self::Use { at } => write_epoch(&mut to, *at),
        }
        let length = (to.len() - 4) as u32;
        if let Some(place) = to.first_chunk_mut() {
            *place = length.to_le_bytes();
        }
        to
    }

    /// Reads a message from its kind and body.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn from_body(kind: u8, body: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader(body);
        let message = match kind {
            1 => {
                match from.u16()? {
                    VERSION => {}
                    other => return Err(Malformed::Version(other)),
                }
                Self::Offer { limits: from.limits()?, rails: from.rails()? }
            }
            2 => Self::Answer {
                limits: from.limits()?,
                rails: from.rails()?,
                pairing: from.pairing()?,
                pairs: from.pairs_of_rails()?,
            },
            3 => Self::Ready {
                pairing: from.pairing()?,
                pairs: from.pairs_of_rails()?,
                address: u64::from_le_bytes(from.array()?),
                keys: from.keys()?,
            },
            4 => Self::Go { address: u64::from_le_bytes(from.array()?), keys: from.keys()? },
            5 => {
                let text = core::mem::take(&mut from.0);
                if text.len() > MAX_REASON {
                    return Err(Malformed::Size);
                }
                let text = String::from_utf8_lossy(text);
                // The text is printed: no line feeds, no escape sequences.
                Self::Refuse { reason: text.replace(|c: char| c.is_control(), " ") }
            }
            6 => Self::Close { done: u64::from_le_bytes(from.array()?) },
            7 => Self::Fence {
                at: from.epoch()?,
                cause: from.cause()?,
                held: Held {
                    taken: from.words()?,
                    next: u64::from_le_bytes(from.array()?),
                    announced: from.u32()?,
                },
            },
            8 => Self::Try { at: from.epoch()?, pairs: from.pairs()? },
            9 => Self::Made { at: from.epoch()?, pairs: from.pairs()? },
            10 => Self::Use { at: from.epoch()? },
            other => return Err(Malformed::Kind(other)),
        };
        if from.0.is_empty() { Ok(message) } else { Err(Malformed::Size) }
    }
}

/// Reads the first frame of `bytes`. Returns the message and the length of the frame, or `None`
/// if it is not complete.
///
/// # Errors
/// [`Malformed`]
pub fn first_frame(bytes: &[u8]) -> Result<Option<(Message, usize)>, Malformed> {
    let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length == 0 || length > MOST - 4 {
        return Err(Malformed::Length(length));
    }
    let Some((kind, body)) = rest.get(..length).and_then(<[u8]>::split_first) else {
        return Ok(None);
    };
    Message::from_body(*kind, body).map(|message| Some((message, 4 + length)))
}

fn write_limits(to: &mut Vec<u8>, limits: &Limits) {
    to.extend(limits.max_message.to_le_bytes());
    to.extend([limits.pairs, limits.partial.into()]);
}

fn write_rails(to: &mut Vec<u8>, rails: &[RailInfo]) {
    to.push(rails.len() as u8);
    for rail in rails {
        to.push(rail.name.len() as u8);
        to.extend(rail.name.as_bytes());
        to.extend(rail.address.gid);
        to.extend(rail.address.mac);
        to.extend(rail.address.lid.to_le_bytes());
        to.extend([u8::from(rail.port_type == PortType::Ethernet), rail.mtu as u8]);
        to.extend([rail.subnet_bits, rail.is_standby.into()]);
        to.extend(rail.max_share.to_le_bytes());
        to.extend(rail.weight.to_le_bytes());
    }
}

fn write_pairing(to: &mut Vec<u8>, pairing: &Pairing) {
    to.push(pairing.partners().len() as u8);
    to.extend(pairing.partners().iter().flat_map(|pair| [pair.connector, pair.listener]));
}

fn write_rails_of_pairs(to: &mut Vec<u8>, rails: &[QueuePairs]) {
    to.push(rails.len() as u8);
    for pairs in rails {
        write_pairs(to, pairs);
    }
}

fn write_pairs(to: &mut Vec<u8>, pairs: &QueuePairs) {
    write_words(to, &pairs.numbers);
    to.extend(pairs.enhancements.bits().to_le_bytes());
}

fn write_words(to: &mut Vec<u8>, words: &[u32]) {
    to.push(words.len() as u8);
    to.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

fn write_keys(to: &mut Vec<u8>, address: u64, keys: &[u32; MAX_RAILS]) {
    to.extend(address.to_le_bytes());
    to.extend(keys.iter().flat_map(|key| key.to_le_bytes()));
}

fn write_epoch(to: &mut Vec<u8>, at: Epoch) {
    to.push(at.place);
    to.extend(at.epoch.to_le_bytes());
}

fn write_cause(to: &mut Vec<u8>, cause: Option<&Cause>) {
    let Some(cause) = cause else { return to.push(0) };
    to.push(cause.operation as u8);
    to.extend(cause.codes);
    to.extend(cause.pair.to_le_bytes());
    to.extend(cause.remote.to_le_bytes());
    to.extend((cause.connected.as_millis() as u64).to_le_bytes());
    to.extend((cause.age.as_millis() as u64).to_le_bytes());
}

/// The rest of a body.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Malformed::Size)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn flag(&mut self, field: &'static str) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::Field(field)),
        }
    }

    /// A count of 1 to `most`.
    fn count(&mut self, most: usize, field: &'static str) -> Result<u8, Malformed> {
        match self.u8()? {
            count if count > 0 && usize::from(count) <= most => Ok(count),
            _ => Err(Malformed::Field(field)),
        }
    }

    fn limits(&mut self) -> Result<Limits, Malformed> {
        Ok(Limits {
            max_message: u64::from_le_bytes(self.array()?),
            pairs: self.count(MAX_PAIRS, "number of queue pairs")?,
            partial: self.flag("flag for partial rails")?,
        })
    }

    fn rails(&mut self) -> Result<Vec<RailInfo>, Malformed> {
        let count = self.count(MAX_RAILS, "number of rails")?;
        (0..count).map(|_| self.rail()).collect()
    }

    fn rail(&mut self) -> Result<RailInfo, Malformed> {
        let wrong = Malformed::Field;
        let length = self.count(MAX_NAME, "length of a rail's name")?.into();
        let (name, rest) = self.0.split_at_checked(length).ok_or(Malformed::Size)?;
        self.0 = rest;
        let name = core::str::from_utf8(name).map_err(|_| wrong("name of a rail"))?;
        if name.contains(char::is_control) {
            return Err(wrong("name of a rail"));
        }
        let address = PortAddress { gid: self.array()?, mac: self.array()?, lid: self.u16()? };
        let port_type =
            if self.flag("port type")? { PortType::Ethernet } else { PortType::InfiniBand };
        let mtu = Mtu::try_from(self.u8()?).map_err(|_| wrong("path MTU"))?;
        let subnet_bits @ 0..=128 = self.u8()? else {
            return Err(wrong("number of subnet bits"));
        };
        let is_standby = self.flag("flag of a standby rail")?;
        let max_share = self.u32()?;
        if max_share == 0 || u64::from(max_share) > MAX_SHARE || max_share % 128 != 0 {
            return Err(wrong("longest share"));
        }
        let weight @ 1..=MAX_WEIGHT = self.u32()? else {
            return Err(wrong("weight of a rail"));
        };
        let name = name.to_owned();
        Ok(RailInfo { name, address, port_type, mtu, subnet_bits, max_share, weight, is_standby })
    }

    fn pairing(&mut self) -> Result<Pairing, Malformed> {
        let count = self.count(MAX_RAILS, "number of rail pairs")?;
        let pair = |_| Ok(Partners { connector: self.u8()?, listener: self.u8()? });
        Ok(Pairing::from((0..count).map(pair).collect::<Result<Vec<_>, Malformed>>()?))
    }

    fn pairs_of_rails(&mut self) -> Result<Vec<QueuePairs>, Malformed> {
        let rails = self.count(MAX_RAILS, "number of rail pairs")?;
        (0..rails).map(|_| self.pairs()).collect()
    }

    fn pairs(&mut self) -> Result<QueuePairs, Malformed> {
        let numbers = self.words()?;
        if numbers.is_empty() || numbers.iter().any(|number| number >> 24 != 0) {
            return Err(Malformed::Field("queue pair number"));
        }
        Ok(QueuePairs { numbers, enhancements: Enhancements::from_bits(self.u32()?) })
    }

    /// A word for each queue pair, or none.
    fn words(&mut self) -> Result<Vec<u32>, Malformed> {
        match self.u8()? {
            count if usize::from(count) <= MAX_PAIRS => (0..count).map(|_| self.u32()).collect(),
            _ => Err(Malformed::Field("number of queue pairs")),
        }
    }

    fn epoch(&mut self) -> Result<Epoch, Malformed> {
        match self.u8()? {
            place if usize::from(place) < MAX_RAILS => Ok(Epoch { place, epoch: self.u32()? }),
            _ => Err(Malformed::Field("number of a rail")),
        }
    }

    fn cause(&mut self) -> Result<Option<Cause>, Malformed> {
        let operation = match self.u8()? {
            0 => return Ok(None),
            1 => Operation::Write,
            2 => Operation::Receive,
            3 => Operation::Device,
            _ => return Err(Malformed::Field("operation")),
        };
        Ok(Some(Cause {
            operation,
            codes: self.array()?,
            pair: self.u32()?,
            remote: self.u32()?,
            connected: Duration::from_millis(u64::from_le_bytes(self.array()?)),
            age: Duration::from_millis(u64::from_le_bytes(self.array()?)),
        }))
    }

    fn keys(&mut self) -> Result<[u32; MAX_RAILS], Malformed> {
        let mut keys = [0; MAX_RAILS];
        for key in &mut keys {
            *key = self.u32()?;
        }
        Ok(keys)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn rail(name: &str, gid: [u8; 16], port_type: PortType) -> RailInfo {
        RailInfo {
            name: name.to_owned(),
            address: PortAddress { gid, mac: [2, 0, 0, 0, 0, 1], lid: 7 },
            port_type,
            mtu: Mtu::Bytes1024,
            subnet_bits: 64,
            max_share: 1 << 30,
            weight: 1,
            is_standby: false,
        }
    }

    fn messages() -> Vec<Message> {
        let limits = Limits { max_message: 1 << 33, pairs: 8, partial: true };
        let rails = vec![
            rail("soft0", [1; 16], PortType::Ethernet),
            RailInfo {
                weight: MAX_WEIGHT,
                is_standby: true,
                ..rail(&"n".repeat(MAX_NAME), [0xfe; 16], PortType::InfiniBand)
            },
        ];
        let pairing = Pairing::from(vec![
            Partners { connector: 0, listener: 1 },
            Partners { connector: 1, listener: 0 },
        ]);
        let pairs =
            |numbers, bits| QueuePairs { numbers, enhancements: Enhancements::from_bits(bits) };
        let both = vec![pairs(vec![1, 2], 0), pairs(vec![3, 0x00ff_ffff], u32::MAX)];
        let (address, keys) = (u64::MAX, [1, 2, 3, 4, 5, 6, 7, u32::MAX]);
        let at = Epoch { place: 7, epoch: u32::MAX };
        let cause = Cause {
            operation: Operation::Device,
            codes: [0x15, 2, 3],
            pair: 4,
            remote: 5,
            connected: Duration::from_millis(6),
            age: Duration::from_millis(7),
        };
        let held = Held { taken: vec![u32::MAX; MAX_PAIRS], next: u64::MAX, announced: 7 };
        vec![
            Message::Offer { limits, rails: rails.clone() },
            Message::Answer { limits, rails, pairing: pairing.clone(), pairs: both.clone() },
            Message::Ready { pairing, pairs: both, address, keys },
            Message::Go { address, keys },
            Message::Refuse { reason: "no rail reaches another".to_owned() },
            Message::Close { done: 5 },
            Message::Fence { at, cause: Some(cause), held },
            Message::Fence { at, cause: None, held: Held::default() },
            Message::Try { at, pairs: pairs(vec![1], 0x3000_0002) },
            Message::Made { at, pairs: pairs(vec![2, 3], 0x1000_0000) },
            Message::Use { at },
        ]
    }

    #[test]
    fn messages_are_read_back_and_no_part_of_them() {
        for message in messages() {
            let frame = message.to_frame();
            assert!(frame.len() <= MOST);
            assert_eq!(first_frame(&frame), Ok(Some((message.clone(), frame.len()))));
            for length in 0..frame.len() {
                assert_eq!(first_frame(&frame[..length]), Ok(None));
            }
            let (kind, body) = frame[4..].split_first().unwrap();
            if matches!(message, Message::Refuse { .. }) {
                continue;
            }
            for length in 0..body.len() {
                assert!(Message::from_body(*kind, &body[..length]).is_err(), "{message:?}");
            }
            let longer = [body, &[0]].concat();
            assert_eq!(Message::from_body(*kind, &longer), Err(Malformed::Size));
        }
    }

    #[test]
    fn the_longest_message_fits_a_frame() {
        let rails = vec![rail(&"n".repeat(MAX_NAME), [1; 16], PortType::Ethernet); MAX_RAILS];
        let pairs: Vec<_> =
            (0..8).map(|rail| Partners { connector: rail, listener: rail }).collect();
        let message = Message::Answer {
            limits: Limits { max_message: u64::MAX, pairs: 8, partial: false },
            rails,
            pairing: Pairing::from(pairs),
            pairs: vec![
                QueuePairs {
                    numbers: vec![1; MAX_PAIRS],
                    enhancements: Enhancements::QUERY
                };
                MAX_RAILS
            ],
        };
        assert!(message.to_frame().len() <= MOST);
        let refusal = Message::refuse(&"\u{20ac}".repeat(MAX_REASON));
        let frame = refusal.to_frame();
        assert!(frame.len() <= MOST);
        assert_eq!(first_frame(&frame), Ok(Some((refusal, frame.len()))));
    }

    #[test]
    fn other_versions_and_kinds_are_named() {
        assert_eq!(Message::from_body(1, &[9, 0]), Err(Malformed::Version(9)));
        assert_eq!(Message::from_body(0, &[]), Err(Malformed::Kind(0)));
        assert_eq!(first_frame(&[0, 0, 0, 0]), Err(Malformed::Length(0)));
        assert_eq!(first_frame(&[0, 0, 0, 1]), Err(Malformed::Length(1 << 24)));
        let reason = Message::from_body(5, b"a\x1b[2Jb\n");
        assert_eq!(reason, Ok(Message::Refuse { reason: "a [2Jb ".to_owned() }));
    }
}
