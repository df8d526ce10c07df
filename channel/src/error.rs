//! Errors of a connected channel.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use barewire_mlx5::Failure as Syndrome;

/// Why a call on a channel fails.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The range does not lie in the region. Nothing was posted.
    #[error("{length} bytes at offset {offset} do not lie in a region of {size} bytes")]
    OutOfBounds {
        /// Offset of the range.
        offset: usize,
        /// Length of the range in bytes.
        length: usize,
        /// Size of the region in bytes.
        size: usize,
    },
    /// The region belongs to other [`Rails`](crate::Rails). Nothing was posted.
    #[error("the region was allocated by other rails than those of the channel")]
    Foreign,
    /// The region is for sending only. Nothing was posted.
    #[error("the region is for sending only: allocate it with Usage::Receive")]
    SendOnly,
    /// The message is longer than the ends have agreed on. Nothing was posted.
    #[error("{length} bytes are longer than this channel's messages ({limit} bytes)")]
    TooLong {
        /// Length in bytes.
        length: u64,
        /// The limit of the channel.
        limit: u64,
    },
    /// A group has no or too many buffers. Nothing was posted.
    #[error("a group has 1 to 8 buffers, not {0}")]
    Group(usize),
    /// The send is longer than the buffer that the receiver announced for it. Nothing was written,
    /// the buffer is used up, and the receiver's request fails, too. The channel works on.
    #[error("the send of {length} bytes does not fit the peer's buffer of {room} bytes")]
    Overlong {
        /// Length of the send in bytes.
        length: u64,
        /// Length of the buffer in bytes.
        room: u64,
    },
    /// The peer's send is longer than a buffer of this request. The other buffers of the group were
    /// received. The channel works on.
    #[error("the peer's send is longer than buffer {member} of the receive ({room} bytes)")]
    Refused {
        /// Number of the buffer in its group.
        member: u8,
        /// Length of the buffer in bytes.
        room: u64,
    },
    /// No such request: it was tested successfully before, or is of another channel.
    #[error("no such request: it is complete already, or of another channel")]
    UnknownRequest,
    /// The channel has failed. Every later call returns the same failure.
    #[error("the channel has failed: {0}")]
    Failed(Arc<Failure>),
}

/// Why a channel has failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Every rail has failed, in the order of the channel's rails. Both ends report the same.
    #[error("no rail is left: {}", list(.0))]
    Rails(Vec<RailFailure>),
    /// The peer does not keep to the protocol.
    #[error("the peer {peer} violates the protocol: {what}; use the same barewire at both ends")]
    Protocol {
        /// The peer's address on the control connection.
        peer: SocketAddr,
        /// What it did.
        what: &'static str,
    },
    /// The peer has closed the channel.
    #[error("the peer {peer} has closed the channel")]
    Closed {
        /// The peer's address on the control connection.
        peer: SocketAddr,
    },
    /// The peer's process has ended, or its host cannot be reached.
    #[error("the peer {peer} is lost: {reason}")]
    Lost {
        /// The peer's address on the control connection.
        peer: SocketAddr,
        /// The error of the control connection.
        reason: String,
    },
}

/// Why a rail has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailFailure {
    /// What failed.
    pub operation: &'static str,
    /// The end whose device reported the failure.
    pub from: End,
    /// The other end.
    pub to: End,
    /// The error of the device; `None` if the device itself broke down.
    pub syndrome: Option<Syndrome>,
    /// How long the queue pair had been connected.
    pub connected: Duration,
    /// How long the operation had been posted at least; zero if that is not known. It is observed
    /// by calls that find nothing to do.
    pub age: Duration,
}

impl fmt::Display for RailFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, from, to, syndrome, connected, age } = self;
        write!(f, "{operation} from {from} to {to}: ")?;
        match syndrome {
            Some(syndrome) => write!(f, "{syndrome}")?,
            None => write!(f, "the device broke down")?,
        }
        if !age.is_zero() {
            write!(f, ", {:.3} s after it was posted", age.as_secs_f64())?;
        }
        write!(f, ", {:.3} s after the queue pair was connected", connected.as_secs_f64())
    }
}

fn list(failures: &[RailFailure]) -> String {
    let texts: Vec<_> = failures.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// One end of a rail's queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Name of the rail.
    pub rail: String,
    /// Address of its port.
    pub address: String,
    /// Number of the queue pair.
    pub pair: u32,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, queue pair {:#x})", self.rail, self.address, self.pair)
    }
}
