//! The messages of a connection.
//!
//! | bytes | contents |
//! |---|---|
//! | 0 | kind |
//! | 1 | zero |
//! | 2 to 3 | length of the device address |
//! | 4 and later | the address of the sender's device (`DeviceAddress::to_bytes`); the private data |
//!
//! Integers are little-endian. A refusal and an acknowledgement have no contents.

use std::io::{self, ErrorKind};

use barewire::address::DeviceAddress;

/// Most bytes of a program's private data. libucp sends the address of a worker.
pub(crate) const MOST_DATA: usize = 16 << 10;
const HEADER: usize = 4;
/// Bytes of the longest message: no address of a device has 256.
pub(super) const LONGEST: usize = HEADER + 256 + MOST_DATA;

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// The client requests a connection.
    Request = 1,
    /// The server accepts it.
    Accept = 2,
    /// The program of the server refuses it.
    Refuse = 3,
    /// The client is connected.
    Acknowledge = 4,
}

/// A message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) device: Option<DeviceAddress>,
    pub(super) data: Vec<u8>,
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text)
}

impl Frame {
    /// A message without contents.
    pub(super) fn empty(kind: Kind) -> Self {
        Self { kind, device: None, data: Vec::new() }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let device = self.device.map(|device| device.to_bytes()).unwrap_or_default();
        let mut bytes = vec![self.kind as u8, 0];
        bytes.extend_from_slice(&(device.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&device);
        bytes.extend_from_slice(&self.data);
        bytes
    }

    /// Parses a message.
    ///
    /// # Errors
    /// It is not valid.
    pub(super) fn parse(bytes: &[u8]) -> io::Result<Self> {
        let wrong = || invalid("the header of its message is not valid");
        let Some((&[kind, 0, low, high], rest)) = bytes.split_first_chunk::<HEADER>() else {
            return Err(wrong());
        };
        let address = usize::from(u16::from_le_bytes([low, high]));
        let (device, data) = rest.split_at_checked(address).ok_or_else(wrong)?;
        if data.len() > MOST_DATA {
            return Err(wrong());
        }
        let kind = match kind {
            1 => Kind::Request,
            2 => Kind::Accept,
            3 => Kind::Refuse,
            4 => Kind::Acknowledge,
            _ => return Err(invalid("its message has an unknown kind")),
        };
        let is_plain = matches!(kind, Kind::Refuse | Kind::Acknowledge);
        if is_plain && bytes.len() != HEADER {
            return Err(invalid("its message has contents, which this kind does not have"));
        }
        let device = match device {
            [] => None,
            device => Some(DeviceAddress::from_bytes(device).map_err(io::Error::other)?),
        };
        Ok(Self { kind, device, data: data.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use barewire::TransportId;

    use super::*;

    fn whole() -> Frame {
        let body = vec![7; DeviceAddress::body_length(TransportId::Shm)];
        let device = Some(DeviceAddress::from_body(TransportId::Shm, &body).unwrap());
        Frame { kind: Kind::Request, device, data: b"worker".to_vec() }
    }

    #[test]
    fn golden_bytes_both_ways() {
        let frame = Frame { device: None, ..whole() };
        assert_eq!(frame.to_bytes(), *b"\x01\0\0\0worker");
        assert_eq!(Frame::empty(Kind::Refuse).to_bytes(), *b"\x03\0\0\0");
        for frame in [frame, whole(), Frame::empty(Kind::Acknowledge)] {
            assert_eq!(Frame::parse(&frame.to_bytes()).unwrap(), frame);
        }
    }

    #[test]
    fn messages_have_limits() {
        let mut frame = Frame { data: vec![1; MOST_DATA], ..whole() };
        assert!(Frame::parse(&frame.to_bytes()).is_ok());
        assert!(frame.to_bytes().len() <= LONGEST);
        frame.data.push(1);
        assert!(Frame::parse(&frame.to_bytes()).is_err());
        assert!(Frame::parse(&[1, 0, 1, 1]).is_err());
        assert!(Frame::parse(&[1, 1, 0, 0]).is_err());
    }

    /// Any change of a byte is refused or read as another message, without a panic.
    #[test]
    fn changed_messages_are_refused_or_read() {
        let bytes = whole().to_bytes();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                if let Ok(frame) = Frame::parse(&changed) {
                    assert_eq!(frame.to_bytes(), changed);
                }
            }
        }
        for end in 0..bytes.len() - whole().data.len() {
            assert!(Frame::parse(&bytes[..end]).is_err());
        }
    }
}
