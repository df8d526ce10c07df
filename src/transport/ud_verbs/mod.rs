//! `ud_verbs`: active messages over unreliable datagrams of any RDMA device, through libibverbs, made reliable by ourselves
//! (the module `reliable`).
//!
//! An interface is one queue pair, however many peers it has: what a connection needs is a window of messages, not a queue pair of its own at
//! either end. It is for many peers, and for devices where connections are dear. There are no puts, gets or atomics, and a message fits a
//! packet of the port's MTU.
//!
//! What is sent is kept until the peer acknowledged it, in a buffer of the interface, as it may have to be sent again; `am_zcopy` gathers its
//! slices there, too. Receive buffers come with the endpoints, [`InterfaceConfig::receive_ring`] for each, up to
//! [`InterfaceConfig::max_endpoints`] times that; what finds none is lost, and sent again.
//!
//! Timers are looked at in progress. A peer whose process makes no progress acknowledges nothing: after
//! [`InterfaceConfig::peer_timeout`] of silence it counts as gone.
//!
//! What it has compiles, and what it lacks does not:
//!
//! ```
//! use barewire::capability::AmShort;
//!
//! fn send(endpoint: &barewire::transport::ud_verbs::Endpoint) {
//!     let _ = endpoint.am_short(1, 0, &[7; 8]);
//! }
//! ```
//!
//! ```compile_fail,E0599
//! use barewire::capability::PutShort;
//! use barewire::transport::{rc_verbs::RemoteKey, ud_verbs::Endpoint};
//!
//! fn put(endpoint: &Endpoint, key: &RemoteKey) {
//!     let _ = endpoint.put_short(&[7; 8], 0x1000, key);
//! }
//! ```

mod address;
mod connect;
mod endpoint;
mod interface;
mod message;
mod progress;
mod socket;
mod state;

pub use super::rdma::{Domain, Memory, RemoteKey};
pub use endpoint::Endpoint;
pub use interface::Interface;
pub use progress::Progress;

use super::reliable::HEADER;
use crate::address::{DeviceAddress, EndpointAddress, InterfaceAddress, TransportId};
use crate::attributes::{AmLimits, AtomicOperations, Attributes, Flags, RmaLimits};
use crate::config::InterfaceConfig;
use crate::error::{ConnectError, OpenError};
use crate::message::SHORT_HEADER;
use crate::transport::Transport;

/// The name of the transport.
pub const NAME: &str = TransportId::UdVerbs.name();

/// Bytes in front of a datagram in its buffer, which may hold a global routing header (IBTA 8.3).
const ROUTE: usize = 40;
/// Where a message's data is in a buffer: behind the route and the header, in a cache line of its own.
const DATA: usize = 64;
/// Where a packet is in a buffer.
const PACKET: usize = DATA - HEADER;
/// The longest packet there is.
const MAX_MTU: usize = 4096;
/// Bytes of a buffer, in whole cache lines.
const BUFFER: usize = (PACKET + MAX_MTU).next_multiple_of(64);
/// Bytes that a request is asked to carry itself; a device may grant fewer.
const INLINE: usize = 128;
/// Slices of one message.
const MAX_IOV: usize = 16;
const MAX_AM_HEADER: usize = 256;
/// Queue key of every queue pair of this transport.
const QUEUE_KEY: u32 = 0x0062_7701;

/// The transport as a type, for code that is generic over it.
#[derive(Debug)]
pub enum UdVerbs {}

impl Transport for UdVerbs {
    const ID: TransportId = TransportId::UdVerbs;
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

    fn connect_to_interface(
        interface: &Interface,
        device: &DeviceAddress,
        address: &InterfaceAddress,
    ) -> Result<Endpoint, ConnectError> {
        Endpoint::connect_to_interface(interface, device, address)
    }
}

super::object::objects!(Interface, Progress, Endpoint);

/// What an interface of this transport with these settings can do, on a port with the largest MTU.
pub fn attributes(config: &InterfaceConfig) -> Attributes {
    attributes_of(config, config.path_mtu as usize)
}

fn attributes_of(config: &InterfaceConfig, mtu: usize) -> Attributes {
    let most = mtu.saturating_sub(HEADER);
    let none = RmaLimits { max_short: 0, max_bcopy: 0, min_zcopy: 0, max_zcopy: 0, max_iov: 0 };
    Attributes {
        put: none,
        get: none,
        am: AmLimits {
            max_short: most.saturating_sub(SHORT_HEADER),
            max_bcopy: most,
            min_zcopy: 0,
            max_zcopy: most,
            max_iov: MAX_IOV,
            max_header: MAX_AM_HEADER.min(most),
        },
        atomic32: AtomicOperations::empty(),
        atomic64: AtomicOperations::empty(),
        flags: Flags::CONNECT_TO_EP
            | Flags::CONNECT_TO_INTERFACE
            | Flags::PENDING
            | Flags::EVENT_FD
            | Flags::ERRHANDLE_PEER_FAILURE
            | Flags::AM_SHORT
            | Flags::AM_SHORT_IOV
            | Flags::AM_BCOPY
            | Flags::AM_ZCOPY
            | Flags::INTER_PROCESS
            | Flags::INTER_NODE,
        overhead_ns: 100.0,
        latency_ns: 1200.0,
        bandwidth: 12.5e9,
        max_endpoints: config.max_endpoints,
    }
}
