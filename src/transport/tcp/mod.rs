//! `tcp`: sockets, where there is nothing better.
//!
//! A domain is one address of this host with the job's key; an interface listens there and has one epoll descriptor; an endpoint is one
//! connection for messages, in both directions, and, once it puts, gets or uses atomics, one more to the thread of the peer's
//! domain that serves its memory (`barewire_tcp::target`). So the peer need not make progress for them, and its worker need not
//! look at them. Of two endpoints that connect to each other, the one with the smaller numbers asks and the other one waits: there is never
//! more than one connection between them.
//!
//! The first message after a progress call is sent at once; what is posted behind it before the next one is put together and leaves
//! with 32 KiB or the next progress call; there is no timer. Progress asks the one connection that alone was heard of lately by itself,
//! which the system need not watch then, and every 32 calls, or where several are heard of, the system which have something (epoll);
//! [`Worker::wait`](crate::Worker::wait) sleeps on that after a look of `busy_poll`, all connections watched. So an idle connection costs a progress call nothing: 0.2 us with one as with 400 (tests/hot_path/idle.rs
//! prints it). It has no buffers: it costs a descriptor and 811 bytes here, besides what the system holds for a socket; buffers of 256 KiB
//! that connections use in turn are kept, 16 for an interface. A peer that knows the key can make this end hold one message of up to 1 MiB for
//! each connection, and 320 KiB of messages that wait for kept ones to be dropped.
//!
//! MSG_ZEROCOPY is not used. On the loopback (Linux 6.18, five runs in turns with plain sends of the same memory) the system copied every
//! one of them all the same (SO_EE_CODE_ZEROCOPY_COPIED), and with the notices the rate was 0.5 to 0.7 of the plain one at 1 MiB; at 16 KiB
//! two pairs on a busy machine gave 0.8 and 1.1, which decides nothing. A network card was not there to be measured.
//!
//! An endpoint is not made from the address of an interface alone (UCX's CONNECT_TO_IFACE): what came in at the other end would be a
//! connection with a descriptor, buffers and errors that no endpoint there owns and nobody closes.
//!
//! What order is kept: messages among each other, and operations on memory among each other. A message may be handled before a put
//! that was posted earlier has arrived, unless there is a fence between them. Every connection proves that it knows the job's key
//! before anything else is looked at.
//!
//! Connections off the loopback, or with [`InterfaceConfig::integrity`], are protected: their bytes are in
//! records that are encrypted and authenticated (`barewire_tcp::seal`). Nothing takes effect before its
//! record was verified, so what comes is copied once more, and zero-copy operations are copied as well. Such
//! a connection that is idle costs about 1.5 KiB more.

mod address;
mod atomic;
mod close;
mod connection;
mod domain;
mod endpoint;
mod event;
mod flush;
mod interface;
mod memory;
mod message;
mod poller;
mod progress;
mod reader;
mod receive;
mod rma;
mod state;

pub use barewire_tcp::Key;
pub use domain::{Domain, Memory, RemoteKey, devices, toward};
pub use endpoint::Endpoint;
pub use interface::Interface;
pub use progress::Progress;

use crate::address::{DeviceAddress, EndpointAddress, TransportId};
use crate::attributes::{AmLimits, AtomicOperations, Attributes, Flags, RmaLimits};
use crate::config::InterfaceConfig;
use crate::error::{ConnectError, OpenError};
use crate::message::SHORT_HEADER;
use crate::transport::Transport;

/// The name of the transport.
pub const NAME: &str = TransportId::Tcp.name();

/// Bytes of a short or buffered operation.
const SEGMENT: usize = 8256;
/// Bytes of a message.
const MAX_AM: usize = 1 << 20;
/// Bytes of a header of a zero-copy message.
const MAX_AM_HEADER: usize = 256;
/// Bytes of a zero-copy put or get.
const MAX_ZCOPY: usize = 1 << 30;
/// Slices of a zero-copy operation.
const MAX_IOV: usize = 16;
/// Zero-copy operations of at most this many bytes are copied: that costs less than to hand their places to the system.
const COPIED: usize = 2 << 10;
/// Copied bytes that are sent without waiting for more.
const EAGER: usize = 32 << 10;

/// The address and port that a device address of this transport holds, if they can be.
pub(crate) fn socket_address(address: &crate::address::DeviceAddress) -> Option<std::net::SocketAddr> {
    address::unpack_device(address).ok()
}

/// The transport as a type, for code that is generic over it.
#[derive(Debug)]
pub enum Tcp {}

impl Transport for Tcp {
    const ID: TransportId = TransportId::Tcp;
    type Domain = Domain;
    type Memory = Memory;
    type RemoteKey = RemoteKey;
    type Interface = Interface;
    type Progress = Progress;
    type Endpoint = Endpoint;

    fn attributes(config: &InterfaceConfig) -> Attributes {
        attributes(config)
    }

    fn open(device: &str) -> Result<Domain, OpenError> {
        Domain::open(device)
    }

    fn open_interface(domain: &Domain, config: &InterfaceConfig) -> Result<(Interface, Progress), OpenError> {
        Interface::open(domain, config)
    }

    fn open_endpoint(interface: &Interface) -> Result<Endpoint, OpenError> {
        Endpoint::new(interface)
    }

    fn connect(
        endpoint: &Endpoint,
        device: &DeviceAddress,
        address: &EndpointAddress,
    ) -> Result<(), ConnectError> {
        endpoint.connect(device, address)
    }
}

super::object::objects!(Domain, Memory, Interface, Progress, Endpoint);

/// What an interface of this transport with these settings can do.
pub fn attributes(config: &InterfaceConfig) -> Attributes {
    let rma =
        RmaLimits { max_short: 0, max_bcopy: SEGMENT, min_zcopy: 0, max_zcopy: MAX_ZCOPY, max_iov: MAX_IOV };
    Attributes {
        put: RmaLimits { max_short: SEGMENT, ..rma },
        get: rma,
        am: AmLimits {
            max_short: SEGMENT - SHORT_HEADER,
            max_bcopy: SEGMENT,
            min_zcopy: 0,
            max_zcopy: MAX_AM,
            max_iov: MAX_IOV,
            max_header: MAX_AM_HEADER,
        },
        atomic32: AtomicOperations::all(),
        atomic64: AtomicOperations::all(),
        flags: Flags::CONNECT_TO_EP
            | Flags::PENDING
            | Flags::ERRHANDLE_PEER_FAILURE
            | Flags::ERRHANDLE_REMOTE_MEM
            | Flags::PUT_SHORT
            | Flags::PUT_BCOPY
            | Flags::PUT_ZCOPY
            | Flags::GET_BCOPY
            | Flags::GET_ZCOPY
            | Flags::AM_SHORT
            | Flags::AM_SHORT_IOV
            | Flags::AM_BCOPY
            | Flags::AM_ZCOPY
            | Flags::ATOMIC_CPU
            | Flags::EVENT_FD
            | Flags::EP_CHECK
            | Flags::INTER_PROCESS
            | Flags::INTER_NODE,
        overhead_ns: 1_000.0,
        latency_ns: 5_000.0,
        bandwidth: 3.0e9,
        max_endpoints: config.max_endpoints,
    }
}
