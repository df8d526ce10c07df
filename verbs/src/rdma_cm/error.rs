//! Why there is no connection.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Why a connection by rdma_cm was not made.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The kernel has no connection manager, or this process may not use it.
    #[error(
        "cannot use the connection manager: {source}; it needs /dev/infiniband/rdma_cm (modprobe rdma_ucm), and the right to open it"
    )]
    NoManager {
        /// The error of librdmacm.
        source: io::Error,
    },
    /// The listener was not created.
    #[error("cannot listen on {address}: {source}{}", listen_hint(.address, .source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of librdmacm.
        source: io::Error,
    },
    /// No RDMA device leads to the peer.
    #[error(
        "no RDMA device leads to {peer}: {source}; the interface that has the route (ip route get ADDRESS) must be one of an RDMA device (rdma link)"
    )]
    NoDevice {
        /// The peer.
        peer: SocketAddr,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The device found no path to the peer.
    #[error("{device} finds no path to {peer}: {source}")]
    NoPath {
        /// The peer.
        peer: SocketAddr,
        /// The device.
        device: String,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The peer, or its connection manager, rejected the request.
    #[error("{peer} rejected the connection: {reason}")]
    Rejected {
        /// The peer.
        peer: SocketAddr,
        /// The reason.
        reason: Reason,
        /// What the peer's program sent with the rejection, with the padding of the message.
        private_data: Vec<u8>,
    },
    /// The peer's connection manager did not respond to repeated messages.
    #[error("{peer} does not respond: {source}")]
    Unreachable {
        /// The peer.
        peer: SocketAddr,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The time that the caller gave has passed.
    #[error("no connection with {peer} within {after:?}: {step}")]
    TimedOut {
        /// The peer.
        peer: SocketAddr,
        /// What did not happen.
        step: Step,
        /// The time.
        after: Duration,
    },
    /// The private data are too long for the message.
    #[error("{length} bytes of private data for {peer}, but the message holds {most}")]
    PrivateData {
        /// The peer.
        peer: SocketAddr,
        /// The length.
        length: usize,
        /// The maximum.
        most: usize,
    },
    /// The queue pair belongs to another device than the connection.
    #[error("the queue pair belongs to {found}, but {device} leads to {peer}: open that device")]
    WrongDevice {
        /// The peer.
        peer: SocketAddr,
        /// The device of the connection.
        device: String,
        /// The device of the queue pair.
        found: String,
    },
    /// The queue pair could not be connected.
    #[error("cannot connect the queue pair to {peer}: {source}")]
    QueuePair {
        /// The peer.
        peer: SocketAddr,
        /// The error of the queue pair.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The peer disconnected before the connection was complete.
    #[error("{peer} disconnected before the connection was complete")]
    Disconnected {
        /// The peer.
        peer: SocketAddr,
    },
    /// Another call of librdmacm failed.
    #[error("cannot {action} {peer}: {source}")]
    Failed {
        /// The peer, or the address of the listener.
        peer: SocketAddr,
        /// What failed, up to the name of the peer.
        action: &'static str,
        /// The error.
        source: io::Error,
    },
}

impl fmt::Debug for ConnectError {
    /// As `Display`: what `main` prints if it returns the error.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The kernel reports a conflict with a listener at any address as an address that does not exist.
fn listen_hint(address: &SocketAddr, error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; another listener has the port",
        io::ErrorKind::AddrNotAvailable if address.ip().is_unspecified() => {
            "; another listener has the port"
        }
        io::ErrorKind::AddrNotAvailable => {
            "; another listener has the port at any address, or no RDMA device has the address"
        }
        io::ErrorKind::NotFound => "; no RDMA device has the address",
        _ => "",
    }
}

/// What had not happened when the time was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// The device and the next hop for the peer's address were not found.
    Address,
    /// The path to the peer was not found.
    Path,
    /// The peer has not accepted the request.
    Response,
    /// The peer has not confirmed that the request was accepted.
    Confirmation,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Address => "its address was not resolved",
            Self::Path => "no path was found",
            Self::Response => "the peer has neither accepted nor rejected the request",
            Self::Confirmation => "the peer has not confirmed the connection",
        })
    }
}

/// Why a request was rejected. IBTA 12.6.7.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// No program listens to the port.
    NoListener,
    /// The program that listens rejected it, or closed without accepting it.
    ByProgram,
    /// The peer still has an earlier connection with this queue pair.
    Stale,
    /// The peer has no resources.
    NoResources,
    /// The peer does not support the path MTU.
    PathMtu,
    /// Another reason, by its number.
    Other(u32),
}

impl Reason {
    pub(crate) fn of(number: i32) -> Self {
        match number {
            1..=3 => Self::NoResources,
            8 => Self::NoListener,
            10 => Self::Stale,
            26 => Self::PathMtu,
            28 => Self::ByProgram,
            // Negative numbers are errors of devices with another connection manager (iWARP).
            number => Self::Other(number.unsigned_abs()),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoListener => "no program listens to the port",
            Self::ByProgram => "the program that listens refused it",
            Self::Stale => "an earlier connection of the queue pair still exists there",
            Self::NoResources => "it has no resources",
            Self::PathMtu => "its port has a smaller MTU",
            Self::Other(number) => return write!(f, "reason {number} (IBTA 12.6.7.2)"),
        })
    }
}
