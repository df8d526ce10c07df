//! The active messages between the ends. Words are little-endian.
//!
//! | message | from | contents after the kind (8 bits) and the channel (64 bits) |
//! |---|---|---|
//! | LINE | receiver | group (64), address (64), length (64), tag (32), count (8), member (8), the packed key |
//! | DONE | sender | group (64), size (64), member (8), refused (8) |
//! | CLOSE | both | nothing |

/// Bytes of the longest packed key.
const MAX_KEY: usize = 255;

/// A buffer that the receiver announces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub group: u64,
    pub address: u64,
    pub length: u64,
    pub tag: u32,
    pub count: u8,
    pub member: u8,
    pub key: Vec<u8>,
}

/// A message that is in the receiver's memory, or was too long for its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub group: u64,
    pub size: u64,
    pub member: u8,
    pub refused: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Line(Line),
    Done(Done),
    Close,
}

impl Message {
    /// The bytes of the message for `channel`, the number that the peer has given it.
    pub fn to_bytes(&self, channel: u64) -> Vec<u8> {
        let kind = match self {
            Self::Line(_) => 1,
            Self::Done(_) => 2,
            Self::Close => 3,
        };
        let mut to = vec![kind];
        to.extend(channel.to_le_bytes());
        match self {
            Self::Line(Line { group, address, length, tag, count, member, key }) => {
                for word in [group, address, length] {
                    to.extend(word.to_le_bytes());
                }
                to.extend(tag.to_le_bytes());
                to.extend([*count, *member]);
                to.extend(key);
            }
            Self::Done(Done { group, size, member, refused }) => {
                to.extend(group.to_le_bytes());
                to.extend(size.to_le_bytes());
                to.extend([*member, u8::from(*refused)]);
            }
            Self::Close => {}
        }
        to
    }

    /// The channel and the message; `None` if no end of this protocol sends these bytes.
    pub fn parse(mut bytes: &[u8]) -> Option<(u64, Self)> {
        fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
            let (first, rest) = bytes.split_first_chunk()?;
            *bytes = rest;
            Some(*first)
        }
        let from = &mut bytes;
        let [kind] = take(from)?;
        let channel = u64::from_le_bytes(take(from)?);
        let message = match kind {
            1 => {
                let [group, address, length] =
                    [take(from)?, take(from)?, take(from)?].map(u64::from_le_bytes);
                let tag = u32::from_le_bytes(take(from)?);
                let [count, member] = take(from)?;
                let key = std::mem::take(from);
                // What waits in an inbox is bounded, so its messages are as well.
                let key = (key.len() <= MAX_KEY).then(|| key.to_vec())?;
                Self::Line(Line { group, address, length, tag, count, member, key })
            }
            2 => {
                let [group, size] = [take(from)?, take(from)?].map(u64::from_le_bytes);
                let [member, refused] = take(from)?;
                Self::Done(Done { group, size, member, refused: refused != 0 })
            }
            3 => Self::Close,
            _ => return None,
        };
        from.is_empty().then_some((channel, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANNEL: u64 = 0xb000_0000_0000_0009;

    #[test]
    fn messages_have_golden_bytes_and_are_read_back() {
        let line = Line {
            group: 0x0102_0304_0506_0708,
            address: 0x10,
            length: 0x20,
            tag: 0xa1a2_a3a4,
            count: 8,
            member: 7,
            key: vec![1, 2, 3],
        };
        let done = Done { group: 5, size: 6, member: 1, refused: true };
        let golden: [(Message, Vec<u8>); 3] = [
            (
                Message::Line(line.clone()),
                [
                    &[1, 9, 0, 0, 0, 0, 0, 0, 0xb0, 8, 7, 6, 5, 4, 3, 2, 1, 0x10, 0, 0, 0, 0][..],
                    &[0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0xa4, 0xa3, 0xa2, 0xa1, 8, 7, 1, 2, 3],
                ]
                .concat(),
            ),
            (
                Message::Done(done),
                [
                    &[2, 9, 0, 0, 0, 0, 0, 0, 0xb0, 5, 0, 0, 0, 0, 0, 0, 0][..],
                    &[6, 0, 0, 0, 0, 0, 0, 0, 1, 1],
                ]
                .concat(),
            ),
            (Message::Close, vec![3, 9, 0, 0, 0, 0, 0, 0, 0xb0]),
        ];
        for (message, bytes) in golden {
            assert_eq!(message.to_bytes(CHANNEL), bytes);
            assert_eq!(Message::parse(&bytes), Some((CHANNEL, message.clone())));
            let fixed = if matches!(message, Message::Line(_)) { 39 } else { bytes.len() };
            for short in 0..fixed {
                assert_eq!(Message::parse(&bytes[..short]), None, "{short}");
            }
        }
        assert_eq!(Message::parse(&[0, 9, 0, 0, 0, 0, 0, 0, 0]), None, "an unknown kind");
        assert_eq!(Message::parse(&[3, 9, 0, 0, 0, 0, 0, 0, 0, 0]), None, "a byte too many");
        let mut overlong = Line { key: vec![0; MAX_KEY + 1], ..line };
        assert_eq!(Message::parse(&Message::Line(overlong.clone()).to_bytes(CHANNEL)), None);
        overlong.key.pop();
        assert!(Message::parse(&Message::Line(overlong).to_bytes(CHANNEL)).is_some());
    }
}
