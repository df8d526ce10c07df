//! The dynamically connected transport (DC): initiators (DCI), which send to any number of targets
//! (DCT) in turn, with the reliability and the operations of RC.
//!
//! Each WQE of an initiator carries the address vector of its target, which
//! [`Initiator::destination`] makes: [`SendQueue::towards`] posts to it. A target receives into a
//! shared receive queue. The device connects an initiator to the target of its next WQE, and
//! disconnects it when it is idle.
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! use barewire_mlx5::channel::soft::Soft;
//! use barewire_mlx5::request::{Inline, Write};
//! use barewire_mlx5::dc::{Initiator, InitiatorConfig, Peer, Target, TargetConfig};
//! use barewire_mlx5::queue::shared_receive::{List, SharedReceiveQueue};
//! use barewire_mlx5::{
//!     Access, Buffer, CompletionQueue, Context, ControlFlags, ProtectionDomain, Uar, hca,
//! };
//!
//! let context = Context::open(Soft::new(hca::Device::open(hca::Config::default())?))?;
//! let domain = ProtectionDomain::allocate(&context)?;
//! let uar = Uar::allocate(&context)?;
//! let mut completions = CompletionQueue::create(&context, &uar, 1024)?;
//! let shared = SharedReceiveQueue::<List>::create(&domain, 16, 1)?;
//! let target = Target::create(&domain, &completions, &shared, &TargetConfig::default())?;
//!
//! let config = InitiatorConfig::default();
//! let mut initiator = Initiator::create(&domain, &uar, &completions, &config)?;
//! let peer = Peer::new(context.port_address(), target.number(), target.key());
//! let destination = initiator.destination(&peer)?;
//! let memory = Buffer::allocate(&domain, 4096, Access::all())?;
//! let remote = memory.region().remote(0);
//! let write = Write { local: Inline(b"hello"), remote };
//! initiator.send.towards(&destination).post(write, ControlFlags::COMPLETION)?;
//! let completion = loop {
//!     if let Some(polled) = completions.poll() {
//!         break polled.completion();
//!     }
//!     std::thread::yield_now();
//! };
//! initiator.send.reap(completion.wqe_counter);
//! let mut bytes = [0; 5];
//! memory.read(0, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use core::any::Any;
use core::cmp::min_by_key;
use std::sync::Arc;

use barewire_layouts::command::qp::{Mtu, QpState, ServiceType};
use barewire_layouts::wqe::AddressVector;

use crate::address::RcAddress;
use crate::backend::commands::{TargetWanted, create_target};
use crate::backend::{Initial, InitiatorSettings, Path, Receive};
use crate::channel::Object;
use crate::context::{Context, ProtectionDomain, Uar};
use crate::doorbell::{BlueFlame, Doorbell};
use crate::error::Error;
use crate::pair::{Created, Resources, Wanted};
use crate::queue::completion::CompletionQueue;
use crate::queue::send::SendQueue;
use crate::queue::shared_receive::{SharedReceiveQueue, Topology};
use crate::ud::{UdPeer, address_vector};
use crate::values::{Access, Port, PortAddress, RcPath, check_user_index};

barewire_layouts::with_setters! {
    /// Sizes and retries of an initiator.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct InitiatorConfig {
        /// As [`RcConfig::send_blocks`](crate::RcConfig::send_blocks).
        pub send_blocks: u32,
        /// As [`RcConfig::signal_period`](crate::RcConfig::signal_period).
        pub signal_period: u32,
        /// As [`RcConfig::user_index`](crate::RcConfig::user_index).
        pub user_index: u32,
        /// Payload bytes per packet, limited by the port. Targets must have the same.
        pub mtu: Mtu,
        /// As [`RcPath::ack_timeout`].
        pub ack_timeout: u8,
        /// As [`RcPath::retry_count`].
        pub retry_count: u8,
        /// As [`RcPath::rnr_retry`].
        pub rnr_retry: u8,
        /// As [`RcPath::log_max_reads`].
        pub log_max_reads: u8,
        /// Service level (4 bits) of what the initiator sends without an address vector: on RoCE,
        /// the three lower bits are the Ethernet priority.
        pub service_level: u8,
        /// log2 of the streams. Requests name a stream
        /// ([`Destination::on_stream`](crate::queue::send::Destination::on_stream)), by any number
        /// of 16 bits, modulo the number of streams. If a request fails, those of its stream are
        /// flushed until [`Initiator::reset_stream`], and the others go on. 0: the first error
        /// stops the initiator.
        pub log_streams: u8,
        /// log2 of the streams in error that stop the initiator.
        pub log_errored_streams: u8,
        /// Sends no request before a connection is accepted, which takes a round trip; networks that
        /// reorder packets need it.
        pub full_handshake: bool,
        /// As [`RcConfig::port`](crate::RcConfig::port).
        pub port: Option<Port>,
    }
}

impl Default for InitiatorConfig {
    fn default() -> Self {
        Self {
            send_blocks: 256,
            signal_period: 32,
            user_index: 0,
            mtu: Mtu::Bytes4096,
            ack_timeout: 16,
            retry_count: 7,
            rnr_retry: 7,
            log_max_reads: 4,
            service_level: 0,
            log_streams: 0,
            log_errored_streams: 0,
            full_handshake: false,
            port: None,
        }
    }
}

impl InitiatorConfig {
    /// What the device is to know of streams and connections.
    fn settings(&self, context: &Context) -> Result<InitiatorSettings, Error> {
        let Self { log_streams, log_errored_streams, full_handshake, .. } = *self;
        let (most, most_errored) = context.capabilities().log_max_streams;
        for (what, value, most) in [
            ("log2 of the streams", log_streams, most),
            ("log2 of the streams in error", log_errored_streams, most_errored),
        ] {
            if value > most {
                return Err(Error::parameter(what, value, format!("at most {most}")));
            }
        }
        Ok(InitiatorSettings { log_streams, log_errored_streams, full_handshake })
    }
}

/// A target on a port of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The peer's port.
    pub port: PortAddress,
    /// The number of the target (24 bits).
    pub target: u32,
    /// The key that the target requires.
    pub key: u64,
    /// Traffic class of the packets: on RoCE, the six upper bits are the DSCP.
    pub traffic_class: u8,
    /// Service level (4 bits): on RoCE, the three lower bits are the Ethernet priority.
    pub service_level: u8,
}

impl Peer {
    /// A target with traffic class and service level 0.
    pub fn new(port: PortAddress, target: u32, key: u64) -> Self {
        Self { port, target, key, traffic_class: 0, service_level: 0 }
    }
}

/// An initiator (DCI), ready to send. It receives nothing.
#[derive(Debug)]
#[must_use = "dropping it destroys the initiator"]
pub struct Initiator<D: Doorbell = BlueFlame> {
    /// The send queue, for [`SendQueue::towards`].
    pub send: SendQueue<D>,
    number: u32,
    config: InitiatorConfig,
    port: Port,
    resources: Arc<Resources>,
}

impl Initiator {
    /// Creates an initiator that is ready to send. `completions` must have room as for
    /// [`RcQueuePair::create`](crate::RcQueuePair::create).
    ///
    /// # Errors
    /// If a value exceeds its limit, the device has no DC or was not set up by PRM commands, the
    /// completion queue belongs to another device, or the device refused.
    pub fn create(
        domain: &ProtectionDomain,
        uar: &Uar,
        completions: &CompletionQueue,
        config: &InitiatorConfig,
    ) -> Result<Self, Error> {
        Self::create_with(domain, uar, completions, config)
    }
}

impl<D: Doorbell> Initiator<D> {
    /// As `create`, for the doorbell `D`.
    ///
    /// # Errors
    /// As there, and if the registers of `uar` cannot be written as `D` requires.
    pub fn create_with(
        domain: &ProtectionDomain,
        uar: &Uar,
        completions: &CompletionQueue,
        config: &InitiatorConfig,
    ) -> Result<Self, Error> {
        require(domain.context())?;
        let wanted = Wanted {
            service: ServiceType::Dci,
            send_blocks: config.send_blocks,
            receive: Receive::None,
            signal_period: config.signal_period,
            unmoderated: false,
            user_index: config.user_index,
            inline_receive: false,
            overcommit: false,
            initiator: config.settings(domain.context())?,
        };
        let Created { send, number, resources, .. } =
            Created::new(domain, uar, completions, completions, &wanted)?;
        let port = config.port.unwrap_or(*domain.context().port());
        let initiator = Self { send, number, config: *config, port, resources };
        initiator.start()?;
        Ok(initiator)
    }

    /// Queue pair number (24 bits).
    #[inline]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the address vector of requests to `peer`. On Ethernet, the kernel resolves the next
    /// hop, which may require network traffic. The vector serves every initiator of the port.
    ///
    /// # Errors
    /// If a value of `peer` does not fit its field, or the kernel has no route to it.
    pub fn destination(&self, peer: &Peer) -> Result<AddressVector, Error> {
        let Peer { port, target, key, traffic_class, service_level } = *peer;
        let peer = UdPeer { port, qpn: target, queue_key: 0, traffic_class, service_level };
        peer.check()?;
        let context = self.resources.context();
        let mut address = address_vector(context, &self.port, self.number, &peer)?;
        address.base = address.base.to_target(target, key);
        Ok(address)
    }

    /// Moves the initiator to error: all outstanding WQEs complete as flushed.
    ///
    /// # Errors
    /// If the device refused.
    pub fn to_error(&mut self) -> Result<(), Error> {
        self.resources.object.fail()
    }

    /// Empties the queue, from any state, and makes the initiator ready again. Poll the completion
    /// queue until it is empty first: it may contain completions of WQEs posted before the reset.
    ///
    /// # Errors
    /// If the device refused.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.resources.object.reset()?;
        self.send.reset();
        self.start()
    }

    /// Ends the error state of a stream whose request failed, once all its requests are completed.
    ///
    /// # Errors
    /// If the device refused: the initiator is not ready, or the stream is not in error.
    pub fn reset_stream(&mut self, stream: u16) -> Result<(), Error> {
        self.resources.object.reset_stream(stream)
    }

    /// Queries the state of the initiator.
    ///
    /// # Errors
    /// If the device refused, or returned a state that this driver does not know.
    pub fn state(&self) -> Result<QpState, Error> {
        self.resources.object.state()
    }

    fn start(&self) -> Result<(), Error> {
        let capabilities = self.resources.context().capabilities();
        let config = &self.config;
        // The WQEs name the peers.
        let nobody = PortAddress { gid: [0; 16], mac: [0; 6], lid: 0 };
        let wanted = RcPath::to(&RcAddress { port: nobody, number: 0, psn: 0, mtu: config.mtu })
            .ack_timeout(config.ack_timeout)
            .retry_count(config.retry_count)
            .rnr_retry(config.rnr_retry)
            .log_max_reads(config.log_max_reads)
            .service_level(config.service_level);
        wanted.check()?;
        let initial = Initial::Connected { access: Access::empty(), masked_atomics: false };
        self.resources.object.initialise(&self.port, &initial)?;
        let path = Path {
            wanted: &wanted,
            // Each connection has its own.
            send_psn: 0,
            mtu: min_by_key(config.mtu, self.port.mtu, |mtu| mtu.bytes()),
            port_type: capabilities.port_type,
            mac: nobody.mac,
            udp_source_port: capabilities.udp_source_ports.0,
            log_max_message: capabilities.max_message.ilog2() as u8,
            access: Access::empty(),
            masked_atomics: false,
            log_requester_reads: config.log_max_reads.min(capabilities.log_max_dc_reads),
            log_responder_reads: 0,
        };
        self.resources.object.connect(&self.port, &path).map(drop)
    }
}

/// Fails if the device has no DC.
fn require(context: &Context) -> Result<(), Error> {
    if context.capabilities().dynamic_connections {
        return Ok(());
    }
    Err(Error::Unsupported {
        what: "DC",
        reason: "the device reports none (none on bonded ports, if lag_dct is 0), or was set up \
                 without DEVX; use RC",
    })
}

barewire_layouts::with_setters! {
    /// What a target grants and requires.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TargetConfig {
        /// The rights of initiators to memory of the protection domain.
        pub access: Access,
        /// The key that initiators must send.
        pub key: u64,
        /// Payload bytes per packet, limited by the port.
        pub mtu: Mtu,
        /// As [`RcPath::min_rnr_nak`].
        pub min_rnr_nak: u8,
        /// Traffic class of the packets: on RoCE, the six upper bits are the DSCP.
        pub traffic_class: u8,
        /// Service level (4 bits): on RoCE, the three lower bits are the Ethernet priority. On
        /// InfiniBand, packets have that of the initiator's.
        pub service_level: u8,
        /// As [`InitiatorConfig::full_handshake`], for all initiators.
        pub full_handshake: bool,
        /// A number (24 bits) that completions of the target carry.
        pub user_index: u32,
        /// As [`RcConfig::port`](crate::RcConfig::port).
        pub port: Option<Port>,
    }
}

impl Default for TargetConfig {
    fn default() -> Self {
        Self {
            access: Access::all(),
            key: 0x6261_7265_7769_7265,
            mtu: Mtu::Bytes4096,
            min_rnr_nak: 12,
            traffic_class: 0,
            service_level: 0,
            full_handshake: false,
            user_index: 0,
            port: None,
        }
    }
}

/// A target (DCT): the receiving end of any number of initiators.
#[derive(Debug)]
#[must_use = "dropping it destroys the target"]
pub struct Target {
    _object: Box<dyn Object>,
    _kept: [Arc<dyn Any + Send + Sync>; 2],
    _domain: ProtectionDomain,
    number: u32,
    key: u64,
}

impl Target {
    /// Creates a target. Its messages take WQEs of `shared`, and complete to `completions`, which
    /// must have room for a CQE per WQE.
    ///
    /// # Errors
    /// If a value does not fit its field, the device has no DC or was not set up by PRM commands,
    /// a queue belongs to another device or domain, or the device refused.
    pub fn create<T: Topology>(
        domain: &ProtectionDomain,
        completions: &CompletionQueue,
        shared: &SharedReceiveQueue<T>,
        config: &TargetConfig,
    ) -> Result<Self, Error> {
        let context = domain.context();
        require(context)?;
        check_user_index(config.user_index)?;
        if config.min_rnr_nak >> 5 != 0 {
            let value = u32::from(config.min_rnr_nak);
            return Err(Error::parameter("minimum RNR timer", value, "at most 5 bits"));
        }
        let (queue, receive) = (completions.resources()?, shared.resources()?);
        context.owns(&queue.context)?;
        context.owns(receive.domain.context())?;
        let channel = context.backend().commands()?;
        let port = config.port.unwrap_or(*context.port());
        let wanted = TargetWanted {
            domain: domain.object().number(),
            completions: queue.number,
            shared_receive: receive.number,
            port: &port,
            access: config.access,
            masked_atomics: context.capabilities().masked_dc_atomics,
            key: config.key,
            mtu: min_by_key(config.mtu, port.mtu, |mtu| mtu.bytes()),
            min_rnr_nak: config.min_rnr_nak,
            traffic_class: config.traffic_class,
            service_level: config.service_level,
            port_type: context.capabilities().port_type,
            turn: context.next_target(),
            full_handshake: config.full_handshake,
            user_index: config.user_index,
        };
        let (object, number) = create_target(channel, &wanted)?;
        let kept = [completions.keep().clone(), shared.keep().clone()];
        Ok(Self { _object: object, _kept: kept, _domain: domain.clone(), number, key: config.key })
    }

    /// Number of the target (24 bits).
    #[inline]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The key that initiators must send.
    #[inline]
    pub fn key(&self) -> u64 {
        self.key
    }
}
