//! Active messages over unreliable datagrams: the common core of transports whose drivers send and
//! receive them. `transport::reliable` makes them reliable.
//!
//! An interface is one queue pair, however many peers it has: a connection needs a window of
//! messages, but no queue pair at either end. A message fits a packet of the port's MTU.
//!
//! A sent message stays in a buffer of the interface until the peer acknowledges it, since it may
//! have to be sent again; `am_zcopy` gathers its slices there, too. Receive buffers start as those of
//! one endpoint, [`InterfaceConfig::receive_ring`], and grow on demand up to those of all, but at most
//! to [`InterfaceConfig::max_receive_buffers`]; a message that finds none is lost and sent again.
//!
//! A transport provides its driver: its queue pair, its completions, and destinations.

#![expect(private_bounds, reason = "sealed: the drivers are this crate's own")]

mod address;
mod connect;
mod delivered;
mod driver;
mod endpoint;
mod fast_path;
mod interface;
mod message;
mod progress;
mod socket;
mod state;

pub(crate) use driver::{Driver, Opened, Queue, ReceiveBuffer, Received, Taken};
pub(crate) use interface::{Shared, open};
pub use progress::Progress;
pub(crate) use state::State;

use super::handle;
use super::reliable::HEADER;
use crate::base::attributes::{
    AmLimits, AtomicOperations, Attributes, Flags, Place, RmaLimits, TagLimits,
};
use crate::base::config::InterfaceConfig;
use crate::transport::common::message::{HEADROOM, SHORT_HEADER};

/// Bytes in front of a datagram in its buffer, which may hold a global routing header (IBTA 8.3).
const ROUTE: usize = 40;
/// Offset of a message's data in a buffer: behind the headroom, whose end the routing header and the
/// packet header use, at the start of a cache line.
const DATA: usize = HEADROOM.next_multiple_of(64);
/// Offset of a packet in a buffer.
const PACKET: usize = DATA - HEADER;
/// Offset of what the device writes to a receive buffer.
const RECEIVED: usize = PACKET - ROUTE;
/// Bytes of the packet of an `am_short` of one word.
const WORD_PACKET: usize = HEADER + SHORT_HEADER + size_of::<u64>();
/// The longest packet of any port.
const MAX_MTU: usize = 4096;
/// Bytes of a buffer, in whole cache lines.
const BUFFER: usize = (PACKET + MAX_MTU).next_multiple_of(64);
/// Inline bytes of a packet; a device may grant fewer.
pub(crate) const INLINE: usize = 128;
/// Slices of one message.
const MAX_IOV: usize = 16;
const MAX_AM_HEADER: usize = 256;
/// Queue key of every queue pair.
pub(crate) const QUEUE_KEY: u32 = 0x0062_7701;

/// One end of a connection. Cloning gives another handle to the same endpoint.
///
/// Dropping the last handle closes it: messages that are not acknowledged complete as cancelled in
/// the next progress. Flush before the drop if they must arrive.
pub type Endpoint<D> = handle::Endpoint<D>;
/// A handle to an open interface; cloning gives another handle to the same one.
pub type Interface<D> = handle::Interface<D>;

/// Defines the public methods of a transport's interface and endpoint, over its driver.
macro_rules! methods {
    ($transport:ident) => {
        impl $crate::transport::handle::States for $transport {
            const ID: $crate::base::address::TransportId =
                $crate::base::address::TransportId::$transport;
            type Shared = $crate::transport::ud::Shared<Self>;
            type State = $crate::transport::ud::State<Self>;
            type Endpoints = $crate::transport::handle::Slots<Self::State>;
        }

        impl Interface {
            /// Opens an interface.
            ///
            /// # Errors
            /// [`OpenError::Setting`](crate::OpenError::Setting) for a setting with an invalid
            /// value, [`OpenError::Device`](crate::OpenError::Device) if the device refuses.
            pub fn open(
                domain: &Domain,
                config: &$crate::InterfaceConfig,
            ) -> Result<(Self, Progress), $crate::OpenError> {
                $crate::transport::ud::open(domain, config)
            }

            /// Opens an endpoint to an interface. The peer opens one in turn, which its next call
            /// to connect to this interface returns. Until the peer responds, posts return
            /// [`PostError::NoResource`](crate::PostError::NoResource).
            ///
            /// # Errors
            /// As [`Endpoint::connect`], and
            /// [`ConnectError::Open`](crate::ConnectError::Open).
            pub fn connect(
                &self,
                peer: &$crate::PeerAddress,
            ) -> Result<Endpoint, $crate::ConnectError> {
                self.0.connect_to_interface(peer).map(Endpoint::handle)
            }
        }

        impl Endpoint {
            /// Creates an unconnected endpoint, to be connected to another endpoint.
            ///
            /// # Errors
            /// `OpenError::TooManyEndpoints`, `OpenError::Device`, `OpenError::Closed`
            pub fn new(interface: &Interface) -> Result<Self, $crate::OpenError> {
                interface.0.open_endpoint().map(Self::handle)
            }

            /// Connects to the peer's endpoint. Both ends connect to each other; messages sent
            /// before the other end has connected arrive after it has.
            ///
            /// # Errors
            /// `ConnectError::NoEndpoint`, `ConnectError::ForeignTransport`,
            /// `ConnectError::Address` and `ConnectError::Unreachable` for addresses that are not
            /// usable here, `ConnectError::Connected` the second time, `ConnectError::Device` if
            /// the device refuses.
            pub fn connect(&self, peer: &$crate::PeerAddress) -> Result<(), $crate::ConnectError> {
                self.0.connect(peer)
            }
        }
    };
}
pub(crate) use methods;

/// Returns what an interface with these settings can do, on a port with the largest MTU.
pub(crate) fn attributes(config: &InterfaceConfig) -> Attributes {
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
        tag: TagLimits::default(),
        atomic32: AtomicOperations::empty(),
        atomic64: AtomicOperations::empty(),
        flags: Flags::CONNECT_TO_EP
            | Flags::CONNECT_TO_INTERFACE
            | Flags::NETWORK
            | Flags::MESSAGES
            | Flags::EP_CHECK,
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
