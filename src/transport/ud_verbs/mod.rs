//! `ud_verbs`: active messages over unreliable datagrams of any RDMA device, through libibverbs.
//! The module `reliable` makes them reliable.
//!
//! An interface is one queue pair, however many peers it has: a connection needs a window of
//! messages, but no queue pair at either end. The transport is meant for many peers, and for
//! devices where connections are expensive. There are no puts, gets or atomics, and a message fits
//! a packet of the port's MTU.
//!
//! A sent message stays in a buffer of the interface until the peer acknowledges it, since it may
//! have to be sent again; `am_zcopy` gathers its slices there, too. Each endpoint adds
//! [`InterfaceConfig::receive_ring`] receive buffers, up to [`InterfaceConfig::max_endpoints`]
//! times that; a message that finds none is lost and sent again.
//!
//! Progress runs the timers. A peer whose process makes no progress acknowledges nothing: after
//! [`InterfaceConfig::peer_timeout`] of silence its endpoint fails.
//!
//! The operations that the transport has compile, and others do not:
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
pub use progress::Progress;

use super::handle;
use super::reliable::HEADER;
use crate::address::TransportId;
use crate::attributes::{AmLimits, AtomicOperations, Attributes, Flags, Place, RmaLimits};
use crate::config::InterfaceConfig;
use crate::message::SHORT_HEADER;

/// The transport.
pub(crate) const ID: TransportId = TransportId::UdVerbs;

/// Bytes in front of a datagram in its buffer, which may hold a global routing header (IBTA 8.3).
const ROUTE: usize = 40;
/// Offset of a message's data in a buffer: behind the routing header and the packet header, at the
/// start of a cache line.
const DATA: usize = 64;
/// Offset of a packet in a buffer.
const PACKET: usize = DATA - HEADER;
/// The longest packet of any port.
const MAX_MTU: usize = 4096;
/// Bytes of a buffer, in whole cache lines.
const BUFFER: usize = (PACKET + MAX_MTU).next_multiple_of(64);
/// Inline bytes to request; a device may grant fewer.
const INLINE: usize = 128;
/// Slices of one message.
const MAX_IOV: usize = 16;
const MAX_AM_HEADER: usize = 256;
/// Queue key of every queue pair of this transport.
const QUEUE_KEY: u32 = 0x0062_7701;

/// One end of a connection. Cloning gives another handle to the same endpoint.
///
/// Dropping the last handle closes it: messages that are not acknowledged complete as cancelled in
/// the next progress. Flush before the drop if they must arrive.
pub type Endpoint = handle::Endpoint<UdVerbs>;
/// A handle to an open interface; cloning gives another handle to the same one.
pub type Interface = handle::Interface<UdVerbs>;

impl handle::States for UdVerbs {
    const ID: TransportId = ID;
    type Shared = interface::Shared;
    type State = state::State;
    type Endpoints = handle::Slots<Self::State>;
}

super::object::transport!(UdVerbs: endpoints, interfaces);
super::object::objects!(Progress);

/// Returns what an interface of this transport with these settings can do, on a port with the
/// largest MTU.
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
            | Flags::NETWORK
            | Flags::MESSAGES,
        overhead_ns: 100.0,
        latency_ns: 1200.0,
        latency_per_endpoint_ns: 0.0,
        bandwidth: 12.5e9,
        shared_duplex: false,
        place: Place::Network,
        priority: 10,
        max_endpoints: config.max_endpoints,
    }
}
