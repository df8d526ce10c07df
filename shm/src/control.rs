//! The messages over a [`Link`](crate::link::Link): 64 bytes, integers little-endian.
//!
//! | byte | what |
//! |---|---|
//! | 0..7 | magic |
//! | 7 | version |
//! | 8 | kind |
//! | 16.. | four numbers of 64 bits |

use crate::error::Corrupt;
use crate::link::MESSAGE;

const MAGIC: [u8; 7] = *b"bwshm\r\n";
const VERSION: u8 = 3;
const NUMBERS: usize = 16;

macro_rules! messages {
    ($($(#[$doc:meta])* $kind:ident = $code:literal { $($field:ident),* })+) => {
        /// A message over the socket.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Message {
            $($(#[$doc])* $kind { $($field: u64),* },)+
        }

        impl Message {
            pub(crate) fn encode(self) -> [u8; MESSAGE] {
                let (code, numbers): (u8, &[u64]) = match self {
                    $(Self::$kind { $($field),* } => ($code, &[$($field),*]),)+
                };
                let mut bytes = [0; MESSAGE];
                bytes[..7].copy_from_slice(&MAGIC);
                bytes[7] = VERSION;
                bytes[8] = code;
                for (place, number) in bytes[NUMBERS..].chunks_exact_mut(8).zip(numbers) {
                    place.copy_from_slice(&number.to_le_bytes());
                }
                bytes
            }

            /// Decodes a message.
            ///
            /// # Errors
            /// [`Corrupt`] if the bytes are not a message of this version.
            #[allow(unused_mut, unused_variables, unused_assignments, reason = "messages without fields")]
            pub(crate) fn decode(bytes: &[u8; MESSAGE]) -> Result<Self, Corrupt> {
                const WRONG: Corrupt = Corrupt("a message over the socket");
                if bytes[..7] != MAGIC {
                    return Err(WRONG);
                }
                if bytes[7] != VERSION {
                    return Err(Corrupt("the protocol version: run the same release of barewire on both sides"));
                }
                let mut numbers = bytes[NUMBERS..].chunks_exact(8).map(|chunk| {
                    u64::from_le_bytes(chunk.try_into().unwrap_or_default())
                });
                match bytes[8] {
                    $($code => Ok(Self::$kind { $($field: numbers.next().ok_or(WRONG)?),* }),)+
                    _ => Err(WRONG),
                }
            }
        }
    };
}

messages! {
    /// From the peer: the secret of the port's address.
    Hello = 1 { secret_low, secret_high }
    /// From the port: the sender's number, the number of FIFO slots, and the number of the port's
    /// region set. The descriptor of the inbox comes with it.
    Welcome = 2 { number, slots, region_set }
    /// From the port: the reason why it ends the connection, see [`Refusal`], and its user.
    Refused = 3 { reason, user }
    /// From the port: the requested region. The descriptor of its segment comes with it.
    Region = 4 { region, size }
    /// From the port: the region does not exist or was dropped.
    NoRegion = 5 { region }
    /// From the peer: its SPSC ring. The descriptor of the ring's segment comes with it.
    Ring = 6 { slots }
    /// From the peer: its buffers. The descriptor of their segment comes with it.
    Bulk = 7 { buffers }
    /// From the peer: requests the region of a key.
    Request = 8 { region }
    /// From the peer: wakes the port, which was asleep when a message was written.
    Wake = 9 {}
}

/// Why a port refuses or ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The peer runs as a user that may not attach.
    User = 1,
    /// The secret is wrong.
    Secret = 2,
    /// The port has no free sender number.
    Full = 3,
    /// The peer wrote data that violates the protocol.
    Corrupt = 4,
    /// The port's process has no free file descriptor.
    Descriptors = 5,
    /// The port's process failed to map a segment of the peer.
    Failed = 6,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_both_ways() {
        let message = Message::Welcome { number: 0x1234, slots: 256, region_set: u64::MAX };
        let mut bytes = [0; MESSAGE];
        bytes[..10].copy_from_slice(b"bwshm\r\n\x03\x02\x00");
        bytes[16..18].copy_from_slice(&[0x34, 0x12]);
        bytes[25] = 1;
        bytes[32..40].fill(0xff);
        assert_eq!(message.encode(), bytes);
        assert_eq!(Message::decode(&bytes), Ok(message));
        for (at, value) in [(0, b'x'), (7, 1), (8, 0), (8, 99)] {
            let mut other = bytes;
            other[at] = value;
            assert!(Message::decode(&other).is_err());
        }
        let ask = Message::Request { region: 0x0102_0304_0506_0708 };
        let mut bytes = [0; MESSAGE];
        bytes[..9].copy_from_slice(b"bwshm\r\n\x03\x08");
        bytes[16..24].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!((ask.encode(), Message::decode(&bytes)), (bytes, Ok(ask)));
        bytes = [0; MESSAGE];
        bytes[..9].copy_from_slice(b"bwshm\r\n\x03\x09");
        assert_eq!(
            (Message::Wake {}.encode(), Message::decode(&bytes)),
            (bytes, Ok(Message::Wake {}))
        );
    }
}
