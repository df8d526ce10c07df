//! Messages from bytes, which are checked.

use std::time::Duration;

use barewire_layouts::command::capability::PortType;
use barewire_mlx5::{Enhancements, Mtu, PortAddress};

use super::{End, Epoch, Held, Limits, MAX_REASON, MOST, Malformed, Message, QueuePairs, VERSION};
use crate::config::{MAX_PAIRS, MAX_RAILS};
use crate::fail_over::{Cause, Operation};
use crate::handshake::pairing::{Pairing, Partners};
use crate::rails::{MAX_NAME, MAX_SHARE, MAX_WEIGHT, RailInfo};

impl Message {
    /// Reads a frame without its length.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let (kind, body) = bytes.split_first().ok_or(Malformed::Length(0))?;
        Self::from_body(*kind, body)
    }

    /// Reads a message from its kind and body.
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
pub fn first_frame(bytes: &[u8]) -> Result<Option<(Message, usize)>, Malformed> {
    let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length == 0 || length > MOST - 4 {
        return Err(Malformed::Length(length));
    }
    let Some(bytes) = rest.get(..length) else { return Ok(None) };
    Message::from_bytes(bytes).map(|message| Some((message, 4 + length)))
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
        let count = self.count(MAX_PAIRS, "number of queue pairs")?;
        let end = |_| {
            let (number, psn) = (self.u32()?, self.u32()?);
            let fits = (number | psn) >> 24 == 0;
            fits.then_some(End { number, psn }).ok_or(Malformed::Field("queue pair"))
        };
        let ends = (0..count).map(end).collect::<Result<Vec<_>, Malformed>>()?;
        Ok(QueuePairs { ends, enhancements: Enhancements::from_bits(self.u32()?) })
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
