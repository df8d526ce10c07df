//! Connections by IP address with any program that uses rdma_cm: librdmacm's own programs, perftest
//! with `-R`, storage targets, programs of UCX or libfabric.
//!
//! The kernel's connection manager finds the device and the path, and carries the request, the
//! response and the private data of both programs. The queue pair is the caller's: a
//! [`QueuePair`] of this crate, or another type that implements [`Connect`], such as
//! `RcQueuePair` of the crate `barewire-mlx5` with its feature `rdma-cm`. Once connected it is used
//! like any other.
//!
//! The client:
//!
//! ```no_run
//! use std::time::Duration;
//! use barewire_verbs::rdma_cm::{Connector, Offer};
//! use barewire_verbs::{
//!     Access, Capacity, CompletionQueue, Context, ProtectionDomain, QueuePair, QueuePairKind,
//!     QueuePairOptions,
//! };
//!
//! let connector = Connector::resolve("192.0.2.7:7471".parse()?, Duration::from_secs(5))?;
//! let context = Context::open(connector.device())?;
//! let domain = ProtectionDomain::new(&context)?;
//! let completions = CompletionQueue::new(&context, 64)?;
//! let mut queue = QueuePair::new(&domain, &QueuePairOptions {
//!     kind: QueuePairKind::ReliableConnection,
//!     send_queue: completions.reference(),
//!     receive_queue: completions.reference(),
//!     shared_receive: None,
//!     capacity: Capacity { sends: 32, receives: 32, send_elements: 1, receive_elements: 1, inline: 0 },
//!     signal_all: false,
//! })?;
//! queue.initialize(&connector.initialize(Access::REMOTE_WRITE))?;
//! // Post receives here: the peer may send as soon as it is connected.
//! let offer = Offer { private_data: b"hello", ..Offer::default() };
//! let connection = connector.connect(&mut queue, &offer, Duration::from_secs(5))?;
//! println!("{} said {:?}", connection.peer(), connection.private_data());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The server does the same with a [`Request`] of a [`Listener`].
//!
//! - *Private data* arrive with the padding of their message: 56 bytes of a request, 196 of a
//!   response, 148 of a rejection over InfiniBand and RoCE. Send the length with them if it varies.
//! - *Disconnecting.* A [`Connection`] reports that the peer has disconnected. The kernel
//!   disconnects for a process that ends. The peer waits until [`Connection::next_event`] has
//!   returned the event. The queue pair does not notice: call [`QueuePair::fail`] on it. Dropping
//!   the connection disconnects; the queue pair may be dropped before or after it.
//! - *Threads.* Each object has its own event channel and may be sent to another thread, so
//!   a server can accept each request on another thread. Descriptors (`AsFd`) become readable for
//!   requests and events, for poll and epoll.

mod address;
mod connection;
mod connector;
mod error;
mod listener;

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rdma_sys::{ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use connection::{Connection, ConnectionEvent};
pub use connector::Connector;
pub use error::{ConnectError, Reason, Step};
pub use listener::{Listener, Request};

use crate::sys::{CmEvent, CmId, ConnectionValues};
use crate::{
    Access, Error, Gid, GlobalRoute, Initialize, QueuePair, ReadyToReceive, ReadyToSend, Route,
};

/// What a side sends with a request or its acceptance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer<'a> {
    /// Data for the peer's program: at most 56 bytes of a client, and 196 of a server.
    pub private_data: &'a [u8],
    /// The most reads and atomics of the peer that this side executes at a time, limited by the
    /// device, and on a server by what the client asks for [default: 16].
    pub responder_resources: u8,
    /// The most outstanding reads and atomics of this side, limited likewise [default: 16].
    pub initiator_depth: u8,
    /// The retries after a timeout, up to 7. The client's value holds for both sides [default: 7].
    pub retries: u8,
    /// How often the peer retries while this side has no receive request; 7 is without end
    /// [default: 7].
    pub rnr_retries: u8,
}

impl Default for Offer<'_> {
    fn default() -> Self {
        Self {
            private_data: &[],
            responder_resources: 16,
            initiator_depth: 16,
            retries: 7,
            rnr_retries: 7,
        }
    }
}

/// The most private data of a request, a response and a rejection. IBTA 12.6; the kernel uses the
/// first 36 bytes of a request.
const REQUEST_DATA: usize = 56;
const RESPONSE_DATA: usize = 196;
const REJECTION_DATA: usize = 148;

/// What a queue pair needs to be connected, as the connection managers of both sides agreed.
#[derive(Clone, Debug)]
pub struct Path {
    /// The name of the device.
    pub device: String,
    /// The port of the device.
    pub port: u8,
    /// The index of the partition in the port's table.
    pub partition_index: u16,
    /// The parameters for the state RTR.
    pub receive: ReadyToReceive,
    /// The parameters for the state RTS.
    pub send: ReadyToSend,
}

/// A reliable connected queue pair that [`Connector::connect`] and [`Request::accept`] can connect.
pub trait Connect {
    /// The error of [`Self::connect`].
    type Error: Into<Box<dyn std::error::Error + Send + Sync>>;

    /// The queue pair number.
    fn number(&self) -> u32;

    /// The name of the device, if the queue pair knows it.
    fn device(&self) -> Option<&str> {
        None
    }

    /// Brings the queue pair from INIT to RTS.
    ///
    /// # Errors
    /// That of the device.
    fn connect(&mut self, path: &Path) -> Result<(), Self::Error>;
}

impl<A> Connect for QueuePair<A> {
    type Error = Error;

    fn number(&self) -> u32 {
        Self::number(self)
    }

    fn device(&self) -> Option<&str> {
        Some(self.handle().context().name())
    }

    fn connect(&mut self, path: &Path) -> Result<(), Error> {
        self.ready_to_receive(Some(&path.receive))?;
        self.ready_to_send(&path.send)
    }
}

/// An identifier that has a device, and the peer's address: what a client and a server have before
/// they connect.
struct Prepared {
    id: CmId,
    peer: SocketAddr,
    device: String,
    port: u8,
    partition_index: u16,
}

impl Prepared {
    fn new(mut id: CmId, peer: SocketAddr) -> Result<Self, ConnectError> {
        let failed =
            |source| ConnectError::Failed { peer, action: "prepare a connection with", source };
        let device = id.device().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let (first, _) = id.attributes(ibv_qp_state::IBV_QPS_INIT).map_err(failed)?;
        let (port, partition_index) = (first.port_num, first.pkey_index);
        Ok(Self { id, peer, device, port, partition_index })
    }

    fn initialize(&self, access: Access) -> Initialize {
        let (port, partition_index) = (self.port, self.partition_index);
        Initialize { port, partition_index, access, queue_key: 0 }
    }

    /// The parameters of a message to the peer.
    fn values<'a>(
        &self,
        queue: &impl Connect,
        offer: &Offer<'a>,
        most: usize,
    ) -> Result<ConnectionValues<'a>, ConnectError> {
        let peer = self.peer;
        checked(peer, offer.private_data, most)?;
        if let Some(found) = queue.device()
            && found != self.device
        {
            let (device, found) = (self.device.clone(), found.to_owned());
            return Err(ConnectError::WrongDevice { peer, device, found });
        }
        let (responder, initiator) = self.id.read_limits().map_err(|source| {
            ConnectError::Failed { peer, action: "query the device for", source }
        })?;
        Ok(ConnectionValues {
            private_data: offer.private_data,
            responder_resources: offer.responder_resources.min(responder),
            initiator_depth: offer.initiator_depth.min(initiator),
            retries: offer.retries.min(7),
            rnr_retries: offer.rnr_retries.min(7),
            queue_pair: queue.number(),
        })
    }

    /// The attributes for the states RTR and RTS.
    fn attributes(&mut self) -> io::Result<(ibv_qp_attr, ibv_qp_attr)> {
        let (receive, has) = self.id.attributes(ibv_qp_state::IBV_QPS_RTR)?;
        if has & ibv_qp_attr_mask::IBV_QP_AV.0 == 0 {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let (send, _) = self.id.attributes(ibv_qp_state::IBV_QPS_RTS)?;
        Ok((receive, send))
    }

    /// Connects the queue pair. The most reads and atomics, as responder and as initiator, are the
    /// lower of this side's values and of those that the connection manager has from the peer.
    fn join<Q: Connect>(
        &mut self,
        queue: &mut Q,
        (responder, initiator): (u8, u8),
    ) -> Result<(), ConnectError> {
        let peer = self.peer;
        let (receive, send) = self.attributes().map_err(|source| match self.id.next_event() {
            Ok(Some(event)) => connector::refusal(peer, event),
            // The kernel drops events of requests that the program has not received yet.
            _ if is_gone(&source) => ConnectError::Disconnected { peer },
            _ => ConnectError::Failed { peer, action: "query the path to", source },
        })?;
        let mut path = Path {
            device: self.device.clone(),
            port: self.port,
            partition_index: self.partition_index,
            receive: ready_to_receive(&receive),
            send: ready_to_send(&send),
        };
        let agreed = &mut path.receive.responder_resources;
        *agreed = responder.min(*agreed);
        path.send.initiator_depth = initiator.min(path.send.initiator_depth);
        queue
            .connect(&path)
            .map_err(|source| ConnectError::QueuePair { peer, source: source.into() })
    }
}

/// Whether the connection manager has no connection any more.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotConnected | io::ErrorKind::InvalidInput)
}

fn checked(peer: SocketAddr, private_data: &[u8], most: usize) -> Result<(), ConnectError> {
    let length = private_data.len();
    if length > most { Err(ConnectError::PrivateData { peer, length, most }) } else { Ok(()) }
}

fn ready_to_receive(attributes: &ibv_qp_attr) -> ReadyToReceive {
    let address = &attributes.ah_attr;
    ReadyToReceive {
        mtu: 128 << attributes.path_mtu.min(5),
        peer: attributes.dest_qp_num,
        packet_sequence_number: attributes.rq_psn,
        responder_resources: attributes.max_dest_rd_atomic,
        rnr_timer: attributes.min_rnr_timer,
        route: Route {
            port: address.port_num,
            lid: address.dlid,
            service_level: address.sl,
            source_path_bits: address.src_path_bits,
            static_rate: address.static_rate,
            global: (address.is_global != 0).then(|| GlobalRoute {
                gid: Gid(crate::sys::gid_bytes(&address.grh.dgid)),
                source_index: address.grh.sgid_index,
                flow_label: address.grh.flow_label,
                hop_limit: address.grh.hop_limit,
                traffic_class: address.grh.traffic_class,
            }),
        },
    }
}

fn ready_to_send(attributes: &ibv_qp_attr) -> ReadyToSend {
    ReadyToSend {
        packet_sequence_number: attributes.sq_psn,
        timeout: attributes.timeout,
        retries: attributes.retry_cnt,
        rnr_retries: attributes.rnr_retry,
        initiator_depth: attributes.max_rd_atomic,
    }
}

/// The end of the time that a caller gave.
#[derive(Clone, Copy)]
struct Deadline {
    given: Duration,
    /// `None` is never.
    end: Option<Instant>,
}

impl Deadline {
    fn after(given: Duration) -> Self {
        Self { given, end: Instant::now().checked_add(given) }
    }

    /// The time that is left; `None` is without end.
    fn left(&self) -> Option<Duration> {
        self.end.map(|end| end.saturating_duration_since(Instant::now()))
    }

    /// The time that is left in milliseconds, rounded up.
    fn milliseconds(&self) -> u32 {
        let left = self.left().map_or(u128::MAX, |left| left.as_micros().div_ceil(1000));
        u32::try_from(left).unwrap_or(u32::MAX).max(1)
    }
}

/// Waits for the next event; `None` if the time is over.
fn wait(id: &mut CmId, deadline: Deadline) -> io::Result<Option<CmEvent>> {
    loop {
        if let Some(event) = id.next_event()? {
            return Ok(Some(event));
        }
        let left = deadline.left();
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(None);
        }
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let descriptor = id.descriptor();
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => (),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The error of an event, whose status is a negative errno value.
fn status_error(event: &CmEvent) -> io::Error {
    io::Error::from_raw_os_error(event.status.saturating_neg().max(1))
}
