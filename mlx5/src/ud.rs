//! Queue pairs for unreliable datagrams: creation, and the addresses of destinations.
//!
//! A datagram is at most as long as a packet, may be lost, and arrives once or not at all. One queue
//! pair sends to any number of others. [`SendQueue::towards`] posts a datagram to an
//! [`AddressVector`] that [`UdQueuePair::destination`] makes.

use std::sync::Arc;

use barewire_layouts::command::capability::PortType;
use barewire_layouts::command::qp::{QpState, ServiceType};
use barewire_layouts::roce::udp_source_port_within;
use barewire_layouts::wqe::AddressVector;

use crate::backend::{Backend, Initial, InitiatorSettings, Receive};
use crate::context::{Context, ProtectionDomain, Uar};
use crate::doorbell::{BlueFlame, Doorbell};
use crate::error::Error;
use crate::pair::{Created, Resources, Wanted};
use crate::queue::completion::CompletionQueue;
use crate::queue::receive::ReceiveQueue;
use crate::queue::send::SendQueue;
use crate::values::{Port, PortAddress};

/// Bytes in front of the payload in the buffer of every received datagram: the global routing
/// header, or, on RoCE over IPv4, 20 unspecified bytes and the IPv4 header (IBTA 11.4.1.2, annex
/// A17).
pub const RECEIVE_PREFIX: usize = 40;
/// Hop limit of datagrams with a global route.
const HOP_LIMIT: u8 = 64;
/// Queue keys with this bit set are for privileged queue pairs (IBTA 3.5.3).
const CONTROLLED: u32 = 1 << 31;

barewire_layouts::with_setters! {
    /// Sizes of a queue pair for datagrams.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct UdConfig {
        /// As [`RcConfig::send_blocks`](crate::RcConfig::send_blocks).
        pub send_blocks: u32,
        /// As [`RcConfig::receive_entries`](crate::RcConfig::receive_entries).
        pub receive_entries: u32,
        /// As [`RcConfig::signal_period`](crate::RcConfig::signal_period).
        pub signal_period: u32,
        /// As [`RcConfig::user_index`](crate::RcConfig::user_index).
        pub user_index: u32,
        /// The key of the datagrams that it takes; at most 31 bits. Others are dropped.
        pub queue_key: u32,
        /// As [`RcConfig::port`](crate::RcConfig::port).
        pub port: Option<Port>,
    }
}

impl Default for UdConfig {
    fn default() -> Self {
        Self {
            send_blocks: 256,
            receive_entries: 64,
            signal_period: 32,
            user_index: 0,
            queue_key: 0x1111_1111,
            port: None,
        }
    }
}

/// A destination of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdPeer {
    /// The peer's port.
    pub port: PortAddress,
    /// The peer's queue pair number (24 bits).
    pub qpn: u32,
    /// The key of the datagrams that the peer takes.
    pub queue_key: u32,
    /// Traffic class of the packets: on RoCE, the six upper bits are the DSCP.
    pub traffic_class: u8,
    /// Service level (4 bits): on RoCE, the three lower bits are the Ethernet priority.
    pub service_level: u8,
}

impl UdPeer {
    /// A peer with the default queue key, traffic class and service level.
    pub fn new(port: PortAddress, qpn: u32) -> Self {
        let queue_key = UdConfig::default().queue_key;
        Self { port, qpn, queue_key, traffic_class: 0, service_level: 0 }
    }

    /// Fails if a value does not fit its field.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.qpn >> 24 != 0 {
            return Err(Error::parameter("queue pair number", self.qpn, "at most 24 bits"));
        }
        if self.service_level >> 4 != 0 {
            return Err(Error::parameter("service level", self.service_level, "at most 4 bits"));
        }
        Ok(())
    }
}

/// Returns the address vector of `peer`, whose values fit their fields, for WQEs of queue pair
/// `own` on `port`.
///
/// # Errors
/// If the kernel has no route to the peer.
pub(crate) fn address_vector(
    context: &Context,
    port: &Port,
    own: u32,
    peer: &UdPeer,
) -> Result<AddressVector, Error> {
    let (capabilities, remote) = (context.capabilities(), &peer.port);
    let mut address = if capabilities.port_type == PortType::Ethernet {
        let mac = match context.backend() {
            Backend::Commands(channel) => channel.next_hop(port, remote)?,
            #[cfg(feature = "verbs")]
            Backend::InitObj(device) => device.next_hop(port, remote)?,
        };
        let source_port = udp_source_port_within(own, peer.qpn, capabilities.udp_source_ports);
        let (qpn, key, index) = (peer.qpn, peer.queue_key, port.gid_index);
        let mut address =
            AddressVector::roce(qpn, key, mac, remote.gid, source_port, index, HOP_LIMIT);
        address.base.rate_service_level = (peer.service_level & 7) << 1;
        address
    } else {
        let mut address = AddressVector::infiniband(peer.qpn, peer.queue_key, remote.lid);
        if remote.lid == 0 || port.global_route {
            address = address.with_global_route(remote.gid, port.gid_index, HOP_LIMIT);
        }
        address.base = address.base.with_service_level(peer.service_level);
        address
    };
    address.traffic_class = peer.traffic_class;
    Ok(address)
}

/// A queue pair for unreliable datagrams, ready to send and receive.
///
/// The queues are public so that both can be borrowed at the same time: see
/// [`RcQueuePair`](crate::RcQueuePair).
#[derive(Debug)]
#[must_use = "dropping it destroys the queue pair"]
pub struct UdQueuePair<D: Doorbell = BlueFlame> {
    /// The send queue.
    pub send: SendQueue<D>,
    /// The receive queue. A buffer of a datagram has [`RECEIVE_PREFIX`] bytes in front of the
    /// payload.
    pub receive: ReceiveQueue,
    number: u32,
    queue_key: u32,
    port: Port,
    resources: Arc<Resources>,
}

impl UdQueuePair {
    /// Creates a queue pair that is ready to send and to receive. Datagrams that arrive without a
    /// receive WQE are lost.
    ///
    /// The completion queues must have room as for
    /// [`RcQueuePair::create`](crate::RcQueuePair::create).
    ///
    /// # Errors
    /// If a value exceeds the limit of the device, a completion queue belongs to another device, or
    /// the device refused.
    pub fn create(
        domain: &ProtectionDomain,
        uar: &Uar,
        send_completions: &CompletionQueue,
        receive_completions: &CompletionQueue,
        config: &UdConfig,
    ) -> Result<Self, Error> {
        Self::create_with(domain, uar, send_completions, receive_completions, config)
    }
}

impl<D: Doorbell> UdQueuePair<D> {
    /// As `create`, for the doorbell `D`.
    ///
    /// # Errors
    /// As there, and if the registers of `uar` cannot be written as `D` requires.
    pub fn create_with(
        domain: &ProtectionDomain,
        uar: &Uar,
        send_completions: &CompletionQueue,
        receive_completions: &CompletionQueue,
        config: &UdConfig,
    ) -> Result<Self, Error> {
        let queue_key = config.queue_key;
        if queue_key & CONTROLLED != 0 {
            return Err(Error::parameter("queue key", queue_key, "at most 31 bits"));
        }
        let wanted = Wanted {
            service: ServiceType::Ud,
            send_blocks: config.send_blocks,
            receive: Receive::Own(config.receive_entries),
            signal_period: config.signal_period,
            unmoderated: false,
            user_index: config.user_index,
            inline_receive: false,
            overcommit: false,
            initiator: InitiatorSettings::default(),
        };
        let mut created =
            Created::new(domain, uar, send_completions, receive_completions, &wanted)?;
        let receive = created.receive()?;
        let Created { send, number, resources, .. } = created;
        let port = config.port.unwrap_or(*domain.context().port());
        let pair = Self { send, receive, number, queue_key, port, resources };
        pair.start()?;
        Ok(pair)
    }

    /// Queue pair number (24 bits).
    #[inline]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Longest payload of a datagram in bytes: that of a packet of this port.
    #[inline]
    pub fn max_payload(&self) -> usize {
        self.port.mtu.bytes()
    }

    /// Returns the address vector of datagrams to `peer`. On Ethernet, the kernel resolves the next
    /// hop, which may require network traffic.
    ///
    /// # Errors
    /// If a value of `peer` does not fit its field, or the kernel has no route to it.
    pub fn destination(&self, peer: &UdPeer) -> Result<AddressVector, Error> {
        peer.check()?;
        address_vector(self.resources.context(), &self.port, self.number, peer)
    }

    /// Moves the queue pair to error: all outstanding WQEs complete as flushed.
    ///
    /// # Errors
    /// If the device refused.
    pub fn to_error(&mut self) -> Result<(), Error> {
        self.resources.object.fail()
    }

    /// Empties the queues, from any state, and makes the queue pair ready again. Poll the
    /// completion queues until they are empty first: they may contain completions of WQEs posted
    /// before the reset.
    ///
    /// # Errors
    /// If the device refused.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.resources.object.reset()?;
        self.send.reset();
        self.receive.reset();
        self.start()
    }

    /// Queries the state of the queue pair.
    ///
    /// # Errors
    /// If the device refused, or returned a state that this driver does not know.
    pub fn state(&self) -> Result<QpState, Error> {
        self.resources.object.state()
    }

    fn start(&self) -> Result<(), Error> {
        let initial = Initial::Datagrams { queue_key: self.queue_key };
        self.resources.object.initialise(&self.port, &initial)?;
        self.resources.object.activate(&self.port)
    }
}
