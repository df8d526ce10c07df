//! The JSON messages that two processes exchange over the control connection, in addition to the
//! transport under test.

use crate::peer::{Role, Work};
use crate::test::{Layout, Test};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;

/// The version of these messages.
pub(crate) const PROTOCOL: u32 = 4;

/// One part of the demo, sent by the initiator to the responder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Step {
    /// Report the contents of the region after the put.
    PutDone,
    /// Receive the file as this many active messages of at most `segment` bytes of the file each.
    Am { messages: u64, segment: u64 },
    /// Respond to every put of 8 bytes until the last.
    PutPingPong,
    /// Respond to every active message of 8 bytes until the last.
    AmPingPong,
    /// This transport is finished.
    Close,
}

/// A test that a perf client requests from its server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PerfPlan {
    pub(crate) test: Test,
    pub(crate) layout: Layout,
    /// Sizes of the pieces of a message in bytes.
    pub(crate) sizes: Vec<u64>,
    /// Distance between the starts of two pieces in the sender's memory; 0 if they are adjacent.
    pub(crate) stride: u64,
    /// Bytes of a zcopy active message in its header.
    pub(crate) header: u64,
    /// Active messages of a stream that may be unacknowledged; 0 for any number.
    pub(crate) window: u32,
    /// The target does not progress in a one-sided test.
    pub(crate) passive: bool,
    /// Messages or round trips, including the warm-up.
    pub(crate) total: u64,
}

impl PerfPlan {
    /// Size of a message in bytes.
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
        bytes
            .map(Self)
            .map_err(|error| serde::de::Error::custom(format!("not hexadecimal: {error}")))
    }
}

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

/// A control message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Message {
    /// The first message in both directions.
    Hello {
        protocol: u32,
        /// The version of the program, for the error message.
        version: String,
        work: Work,
        role: Role,
        pid: u32,
    },
    /// Initiator to responder: open this transport.
    Open {
        transport: String,
        /// For a second process; a server selects its own.
        device: Option<String>,
        /// The CPU on which a second process runs.
        cpu: Option<usize>,
    },
    /// The address of an endpoint.
    Address {
        peer: Hex,
    },
    /// The demo's regions hold files of this many bytes.
    File {
        length: u64,
    },
    /// A region that the peer may access.
    Region {
        address: u64,
        length: u64,
        key: Hex,
    },
    Demo(Step),
    /// Initiator to responder: run this test over this transport.
    Perf(PerfPlan),
    /// Initiator to responder: there is a test, but not with this peer.
    NoTest,
    /// Size of the hello message, and the way in which it is sent.
    Greeting {
        layout: Layout,
        size: u64,
    },
    /// This side has reached a point of synchronisation.
    Ready,
    /// The received data: its length and SHA-256.
    Arrived {
        bytes: u64,
        sha256: Hex,
    },
    /// Initiator to responder: there are no more transports or tests.
    Done,
    /// This process is alive.
    Alive,
    /// The last message: success, or the reason of the failure.
    Goodbye {
        reason: Option<String>,
    },
}

impl Message {
    /// The name of the message, for errors.
    pub(crate) fn name(&self) -> String {
        let name = match serde_json::to_value(self) {
            Ok(Value::String(name)) => name,
            Ok(Value::Object(fields)) => fields.into_iter().map(|(name, _)| name).collect(),
            _ => String::new(),
        };
        name.replace('_', " ")
    }

    /// Serialises the message.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self)
            .expect("strings, numbers and maps with string keys always become JSON")
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
        assert_eq!((message.name(), Message::NoTest.name()), ("demo".into(), "no test".into()));
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
