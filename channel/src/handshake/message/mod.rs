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
//! Queue pairs are the number and the first packet sequence number of each, and the enhancements
//! (ECE) that the device supports. The end that connects its queue pairs first returns those that
//! its device has accepted instead.
//!
//! A frame is the length of the rest (u32), the kind (u8), and the body. Integers are
//! little-endian. Peers have proved the job's key, but nothing else is trusted.

mod read;
mod write;

use barewire_mlx5::Enhancements;

use super::pairing::Pairing;
use crate::config::MAX_RAILS;
use crate::fail_over::Cause;
use crate::rails::RailInfo;

pub use read::first_frame;

/// Version of the protocol, including the ring and the immediates.
pub const VERSION: u16 = 8;
/// Longest frame in bytes, with its length.
pub(crate) const MOST: usize = 4096;
/// The same without its length.
pub(crate) const LONGEST: usize = MOST - size_of::<u32>();
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
    /// Each of them.
    pub ends: Vec<End>,
    /// The enhancements (ECE) that their device supports, or uses if they are connected.
    pub enhancements: Enhancements,
}

/// A queue pair, as the peer needs to know it beside its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Its number (24 bits).
    pub number: u32,
    /// The packet sequence number at which it starts to send (24 bits).
    pub psn: u32,
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
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use barewire_layouts::command::capability::PortType;
    use barewire_mlx5::{Mtu, PortAddress};

    use super::*;
    use crate::config::MAX_PAIRS;
    use crate::fail_over::Operation;
    use crate::handshake::pairing::Partners;
    use crate::rails::{MAX_NAME, MAX_WEIGHT};

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
        let pairs = |numbers: Vec<u32>, bits| {
            let ends = numbers.into_iter().map(|number| End { number, psn: 0x00ff_ffff - number });
            QueuePairs { ends: ends.collect(), enhancements: Enhancements::from_bits(bits) }
        };
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
                    ends: vec![End { number: 1, psn: 2 }; MAX_PAIRS],
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
