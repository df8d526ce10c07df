//! What two processes tell each other over their [`Link`](crate::link::Link): 64 bytes, integers little-endian.
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
        /// A message.
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

            /// Reads a message.
            ///
            /// # Errors
            /// For bytes that are not a message of this version.
            #[allow(unused_mut, unused_variables, unused_assignments, reason = "kinds without numbers")]
            pub(crate) fn decode(bytes: &[u8; MESSAGE]) -> Result<Self, Corrupt> {
                const WRONG: Corrupt = Corrupt("a message over the socket");
                if bytes[..7] != MAGIC {
                    return Err(WRONG);
                }
                if bytes[7] != VERSION {
                    return Err(Corrupt("the version of its messages: run one release of barewire on both sides"));
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
    /// From who connects: the secret of the port's address.
    Hello = 1 { secret_low, secret_high }
    /// From the port: its memory, the sender's number in it and its slots. With the inbox.
    Welcome = 2 { number, slots, shelf }
    /// From the port: why the connection ends; see [`Refusal`].
    Refused = 3 { reason, user }
    /// From the port: the region that was asked for. With its segment.
    Region = 4 { region, size }
    /// From the port: there is no such region, or not any more.
    Gone = 5 { region }
    /// From who connects: a lane. With its segment.
    Lane = 6 { slots }
    /// From who connects: buffers. With their segment.
    Bulk = 7 { buffers }
    /// From who connects: asks for the region of a key.
    Ask = 8 { region }
    /// From who connects: messages lie in the port's memory, and it slept.
    Wake = 9 {}
}

/// Why a port takes no more of someone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Of another user.
    User = 1,
    /// The secret is wrong.
    Secret = 2,
    /// Every number is taken.
    Full = 3,
    /// What it wrote breaks the rules.
    Corrupt = 4,
    /// The port's process has no descriptor free.
    Descriptors = 5,
    /// The port's process failed to map what was handed over.
    Failed = 6,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_both_ways() {
        let message = Message::Welcome { number: 0x1234, slots: 256, shelf: u64::MAX };
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
        let ask = Message::Ask { region: 0x0102_0304_0506_0708 };
        let mut bytes = [0; MESSAGE];
        bytes[..9].copy_from_slice(b"bwshm\r\n\x03\x08");
        bytes[16..24].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!((ask.encode(), Message::decode(&bytes)), (bytes, Ok(ask)));
        bytes = [0; MESSAGE];
        bytes[..9].copy_from_slice(b"bwshm\r\n\x03\x09");
        assert_eq!((Message::Wake {}.encode(), Message::decode(&bytes)), (bytes, Ok(Message::Wake {})));
    }
}
