//! The contents of addresses. Integers are big-endian.

use super::{ID, XrcMlx5};
use crate::base::address::{AddressError, InterfaceAddress, Kind, Packed};
use crate::base::error::ConnectError;
use crate::transport::rc::{self, MASK24};

/// What the address of an endpoint adds to that of an initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receiving {
    /// The number of the target, to which the peer's initiator connects.
    pub(super) target: u32,
    /// The number of the interface's receive queue.
    pub(super) queue: u32,
    /// The node: a random number.
    pub(super) node: u64,
}

impl rc::Tail for Receiving {
    const BYTES: usize = 16;

    fn write(&self, bytes: &mut [u8]) {
        bytes[..4].copy_from_slice(&self.target.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.queue.to_be_bytes());
        bytes[8..].copy_from_slice(&self.node.to_be_bytes());
    }

    fn read(bytes: &[u8]) -> Result<Self, &'static str> {
        let (target, queue) = (word(bytes, 0), word(bytes, 4));
        if target > MASK24 {
            return Err("target number");
        }
        if queue > MASK24 {
            return Err("receive queue number");
        }
        Ok(Self { target, queue, node: long(bytes, 8) })
    }
}

/// The address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceiverAddress {
    /// The number of its receive queue.
    pub(super) queue: u32,
    /// Key and address of a word that peers read to flush what they wrote.
    pub(super) flush_key: u32,
    pub(super) flush_address: u64,
    /// The node: a random number.
    pub(super) node: u64,
}

impl ReceiverAddress {
    pub(super) fn pack(&self) -> InterfaceAddress {
        let mut body = [0; 24];
        body[..4].copy_from_slice(&self.queue.to_be_bytes());
        body[4..8].copy_from_slice(&self.flush_key.to_be_bytes());
        body[8..16].copy_from_slice(&self.flush_address.to_be_bytes());
        body[16..].copy_from_slice(&self.node.to_be_bytes());
        InterfaceAddress(Packed::new(Kind::Interface, ID, &body))
    }

    pub(super) fn unpack(address: &InterfaceAddress) -> Result<Self, ConnectError> {
        let body = rc::body::<XrcMlx5, 24>(&address.0)?;
        let queue = word(body, 0);
        if queue > MASK24 {
            let source = AddressError::Field("receive queue number");
            return Err(ConnectError::Address { transport: ID, source });
        }
        let (flush_key, flush_address) = (word(body, 4), long(body, 8));
        Ok(Self { queue, flush_key, flush_address, node: long(body, 16) })
    }
}

/// Returns the 4 bytes at `at`; missing ones are zero.
fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    u32::from_be_bytes(word.copied().unwrap_or_default())
}

/// Returns the 8 bytes at `at`; missing ones are zero.
fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) << 32 | u64::from(word(bytes, at + 4))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::transport::rc::Tail as _;

    #[test]
    fn golden_bytes_both_ways() {
        let sample = ReceiverAddress {
            queue: 0x48,
            flush_key: 0x1122_3344,
            flush_address: 0x0102_0304_0506_0708,
            node: 0x1112_1314_1516_1718,
        };
        let bytes = sample.pack().to_bytes();
        let (front, back) = bytes[6..].split_at(8);
        assert_eq!(front, [0, 0, 0, 0x48, 0x11, 0x22, 0x33, 0x44]);
        assert_eq!(back[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(back[8..], [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        let back = InterfaceAddress::from_bytes(&bytes).unwrap();
        assert_eq!(ReceiverAddress::unpack(&back).unwrap(), sample);

        let tail = Receiving { target: 0x49, queue: 0x4a, node: 0x0102_0304_0506_0708 };
        let mut bytes = [0; Receiving::BYTES];
        tail.write(&mut bytes);
        assert_eq!(bytes, [0, 0, 0, 0x49, 0, 0, 0, 0x4a, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(Receiving::read(&bytes), Ok(tail));
    }

    proptest! {
        #[test]
        fn arbitrary_bodies_are_read_or_named(body: [u8; 24], tail: [u8; Receiving::BYTES]) {
            let address = InterfaceAddress(Packed::new(Kind::Interface, ID, &body));
            match ReceiverAddress::unpack(&address) {
                Ok(read) => prop_assert!(read.queue <= MASK24),
                Err(error) => {
                    let named =
                        matches!(error, ConnectError::Address { source: AddressError::Field(_), .. });
                    prop_assert!(named);
                }
            }
            if let Ok(read) = Receiving::read(&tail) {
                prop_assert!(read.target <= MASK24 && read.queue <= MASK24);
            }
        }
    }
}
