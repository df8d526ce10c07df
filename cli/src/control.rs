//! The JSON messages that the two processes exchange over the control connection, beside the
//! transport that they exercise.

use crate::args::{Layout, Test};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The version of these messages.
pub(crate) const PROTOCOL: u32 = 3;

/// What a process is in its pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// Started by the user; leads.
    First,
    /// Started by the first; follows.
    Second,
    /// Waits for a client; follows.
    Server,
    /// Connects to a server; leads.
    Client,
}

impl Role {
    /// What the peer must be.
    pub(crate) fn counterpart(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
            Self::Server => Self::Client,
            Self::Client => Self::Server,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "the first process",
            Self::Second => "the second process",
            Self::Server => "the server",
            Self::Client => "the client",
        })
    }
}

/// The commands that run as a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Work {
    Demo,
    Hello,
    Perf,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Demo => "demo",
            Self::Hello => "hello",
            Self::Perf => "perf",
        })
    }
}

/// One part of the demo, told by the leader to the follower.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Step {
    /// Tell what lies in the region after the put.
    PutDone,
    /// Receive the file as this many active messages of at most `segment` bytes of it each.
    Am { messages: u64, segment: u64 },
    /// Answer every put of 8 bytes until the last.
    PutPingPong,
    /// Answer every active message of 8 bytes until the last.
    AmPingPong,
    /// This transport is finished.
    Close,
}

/// A test that a perf client wants of its server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PerfPlan {
    pub(crate) test: Test,
    pub(crate) layout: Layout,
    /// Bytes of the message's pieces.
    pub(crate) sizes: Vec<u64>,
    /// From the beginning of one piece to that of the next in the sender's memory; 0 if they follow each other.
    pub(crate) stride: u64,
    /// Bytes of a zcopy active message that are its header.
    pub(crate) header: u64,
    /// Active messages of a stream that may be unacknowledged; 0 for any number.
    pub(crate) window: u32,
    /// The target does not progress in a one-sided test.
    pub(crate) passive: bool,
    /// Messages or round trips, the warm-up included.
    pub(crate) total: u64,
}

impl PerfPlan {
    /// Bytes of a message.
    pub(crate) fn size(&self) -> u64 {
        self.sizes.iter().fold(0, |sum, piece| sum.saturating_add(*piece))
    }
}

/// Bytes, as hexadecimal digits in the JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Hex(#[serde(serialize_with = "hex::serialize")] pub(crate) Vec<u8>);

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = hex::decode(String::deserialize(deserializer)?);
        bytes.map(Self).map_err(|error| serde::de::Error::custom(format!("not hexadecimal: {error}")))
    }
}

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

/// A message between the two.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Message {
    /// The first message, both ways.
    Hello {
        protocol: u32,
        /// The program's version, for the error message.
        version: String,
        work: Work,
        role: Role,
        pid: u32,
    },
    /// Leader to follower: open this transport.
    Open {
        transport: String,
        /// For a second process; a server has its own.
        device: Option<String>,
    },
    /// A device's and an endpoint's address.
    Address {
        device: Hex,
        endpoint: Hex,
    },
    /// The demo's regions hold files of this many bytes.
    File {
        length: u64,
    },
    /// A region that the peer may use.
    Region {
        address: u64,
        length: u64,
        key: Hex,
    },
    Demo(Step),
    /// Leader to follower: over this transport, this test.
    Perf(PerfPlan),
    /// The hello message's size and the way that it is sent.
    Greeting {
        layout: Layout,
        size: u64,
    },
    /// This side has reached a point that both reach.
    Ready,
    /// What arrived: bytes and their SHA-256.
    Arrived {
        bytes: u64,
        sha256: Hex,
    },
    /// Leader to follower: no more transports or tests.
    Done,
    /// This process lives.
    Alive,
    /// The last message: all is done, or why not.
    Goodbye {
        reason: Option<String>,
    },
}

impl Message {
    /// What it is, for errors.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::Open { .. } => "open",
            Self::Address { .. } => "address",
            Self::File { .. } => "file",
            Self::Region { .. } => "region",
            Self::Demo(_) => "demo",
            Self::Perf(_) => "perf",
            Self::Greeting { .. } => "greeting",
            Self::Ready => "ready",
            Self::Arrived { .. } => "arrived",
            Self::Done => "done",
            Self::Alive => "alive",
            Self::Goodbye { .. } => "goodbye",
        }
    }

    /// The bytes of the message.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings, numbers and maps with string keys always become JSON")
    }

    /// Parses the bytes of a message.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes)
            .map_err(|error| format!("a control message that cannot be read: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back() {
        let key = Hex(vec![0, 0x0f, 0xff]);
        let message = Message::Region { address: u64::MAX, length: 1, key };
        let bytes = message.to_bytes();
        assert!(String::from_utf8_lossy(&bytes).contains("\"000fff\""));
        assert_eq!(Message::from_bytes(&bytes), Ok(message));
        let message = Message::Demo(Step::Am { messages: 3, segment: 4096 });
        assert_eq!(Message::from_bytes(&message.to_bytes()), Ok(message));
    }

    #[test]
    fn bad_messages_are_errors() {
        let bad: [&[u8]; 6] = [
            b"",
            b"{}",
            b"\"ready?\"",
            b"{\"arrived\":{\"bytes\":1,\"sha256\":\"0\"}}",
            b"{\"arrived\":{\"bytes\":-1,\"sha256\":\"00\"}}",
            b"\xff\xfe",
        ];
        for bytes in bad {
            assert!(Message::from_bytes(bytes).is_err(), "{}", bytes.escape_ascii());
        }
    }
}
