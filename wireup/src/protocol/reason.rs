//! Why a link or a lane is refused, and why a link fails.

use thiserror::Error;

/// Why one side refuses a link or a lane. Messages carry it as one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// No refusal.
    None,
    /// The address cannot be reached from here.
    Unreachable,
    /// Queue pairs, descriptors or memory are exhausted.
    NoResources,
    /// This side does not have the transport, the interface or the operation.
    Unsupported,
    /// Too many links are being connected; try again later.
    Busy,
    /// The versions of the two sides differ.
    Version,
    /// The message does not make sense.
    Malformed,
    /// The user rejected the link.
    Rejected,
    /// The sides do not agree on the error mode.
    ErrorMode,
    /// The link was not connected in time.
    Deadline,
    /// The side closed the link before it was connected.
    Closed,
    /// Another process is at the address: the peer was restarted.
    Restarted,
    /// A reason of a newer version.
    Other(u8),
}

impl Reason {
    const CODES: [Self; 12] = [
        Self::None,
        Self::Unreachable,
        Self::NoResources,
        Self::Unsupported,
        Self::Busy,
        Self::Version,
        Self::Malformed,
        Self::Rejected,
        Self::ErrorMode,
        Self::Deadline,
        Self::Closed,
        Self::Restarted,
    ];

    /// Returns the byte that messages carry.
    pub fn code(self) -> u8 {
        match self {
            Self::Other(code) => code,
            known => Self::CODES.iter().position(|reason| *reason == known).unwrap_or(0) as u8,
        }
    }

    /// Returns the reason with this byte.
    pub fn from_code(code: u8) -> Self {
        Self::CODES.get(usize::from(code)).copied().unwrap_or(Self::Other(code))
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "no reason",
            Self::Unreachable => "the address cannot be reached",
            Self::NoResources => "resources are exhausted",
            Self::Unsupported => "the transport or operation is not available",
            Self::Busy => "too many links are being connected",
            Self::Version => "another version of the protocol",
            Self::Malformed => "a malformed message",
            Self::Rejected => "rejected by the user",
            Self::ErrorMode => "another error mode",
            Self::Deadline => "the deadline passed",
            Self::Closed => "the link was closed",
            Self::Restarted => "another process is at the address",
            Self::Other(code) => return write!(f, "reason {code} of a newer version"),
        })
    }
}

/// What a link was doing when its deadline passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Waiting in line for other links to be connected.
    Waiting,
    /// Waiting for this side to connect lanes.
    Lanes,
    /// Waiting for the peer's ANSWER.
    Offer,
    /// Waiting for the peer's DONE.
    Answer,
    /// Waiting for the peer to receive everything that was sent.
    Close,
    /// Waiting for everything that the peer sent.
    Drain,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Waiting => "it waited for other links to be connected",
            Self::Lanes => "this side connected its lanes",
            Self::Offer => "it waited for the peer's answer",
            Self::Answer => "it waited for the peer's acknowledgement",
            Self::Close => "it waited for the peer to close",
            Self::Drain => "it waited for messages that the peer sent before closing",
        })
    }
}

/// Why a link failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum Cause {
    /// The deadline passed.
    #[error("the deadline passed while {0}")]
    Deadline(Phase),
    /// The peer refused the link.
    #[error("the peer refused the link: {0}")]
    Refused(Reason),
    /// This side refused or failed the link.
    #[error("this side failed the link: {0}")]
    Local(Reason),
    /// The peer does not have the link: it was restarted, or failed the link.
    #[error("the peer does not have the link any more")]
    Reset,
    /// The peer did not respond to two PINGs.
    #[error("the peer did not respond to two PINGs")]
    Silent,
}

impl Cause {
    /// Whether the peer may only have been slow.
    pub fn is_late(self) -> bool {
        matches!(self, Self::Deadline(_) | Self::Refused(Reason::Busy | Reason::Deadline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_a_reason_and_back() {
        for code in 0..=u8::MAX {
            assert_eq!(Reason::from_code(code).code(), code);
            assert!(!Reason::from_code(code).to_string().is_empty());
        }
    }
}
