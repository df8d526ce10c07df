//! The messages of clients and servers on control connections: see the documentation of `listen`.

/// Bytes of the longest message.
pub(super) const LONGEST: usize = 16 << 10;
/// Bytes of the shortest message: a [`Call`] without address and data.
pub(super) const SHORTEST: usize = 6;

const MAGIC: [u8; 2] = *b"bL";
const VERSION: u8 = 2;
/// Bytes of data at most, with a ticket.
const MAX_DATA: usize = 8 + super::MAX_DATA;

/// What a client and a server tell each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// `H`, `A`, `R` or `B`.
    pub kind: u8,
    /// The sender's address.
    pub address: &'a [u8],
    /// A ticket and private data, or a reason.
    pub data: &'a [u8],
}

impl<'a> Call<'a> {
    /// A message, if it is one: control messages begin with other bytes.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<SHORTEST>()?;
        let [magic_0, magic_1, version, kind, high, low] = *head;
        let length = usize::from(u16::from_be_bytes([high, low]));
        let (address, data) = rest.split_at_checked(length)?;
        let valid = [magic_0, magic_1] == MAGIC
            && version == VERSION
            && matches!(kind, b'H' | b'A' | b'R' | b'B')
            && data.len() <= MAX_DATA;
        valid.then_some(Self { kind, address, data })
    }

    /// As a message.
    pub fn to_bytes(&self) -> Vec<u8> {
        let length = (self.address.len() as u16).to_be_bytes();
        [&MAGIC[..], &[VERSION, self.kind], &length, self.address, self.data].concat()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_bytes_both_ways() {
        let call = Call { kind: b'H', address: b"addr", data: b"data" };
        assert_eq!(call.to_bytes(), b"bL\x02H\x00\x04addrdata");
        assert_eq!(Call::parse(b"bL\x02H\x00\x04addrdata"), Some(call));
        assert_eq!(Call::parse(b"bL\x01H\x00\x00"), None);
        assert_eq!(Call::parse(b"bL\x02X\x00\x00"), None);
        assert_eq!(Call::parse(b"bL\x02H\x00\x05addr"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_not(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            for bytes in [bytes.clone(), [b"bL\x02H", &bytes[..]].concat()] {
                if let Some(call) = Call::parse(&bytes) {
                    prop_assert_eq!(call.to_bytes(), bytes);
                }
            }
        }
    }
}
