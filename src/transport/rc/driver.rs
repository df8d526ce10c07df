//! What a driver provides to transports over reliable connections.

use std::fmt;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use super::address::Tail;
use super::progress::Progress;
use super::{Shared, State};
use crate::base::address::{DeviceAddress, InterfaceAddress, Kind, Packed, TransportId};
use crate::base::attributes::Attributes;
use crate::base::config::InterfaceConfig;
use crate::base::error::{Cause, ConnectError, OpenError, Source};
use crate::base::event::{Armed, EventError};
use crate::base::network::{self, network};
use crate::transport::common::operation::InFlightQueue;
use crate::transport::common::registered::Domain;

/// A send queue whose posts are numbered. An index is the low 16 bits of a post's number; a queue
/// has at most 2^15 outstanding posts, so that indices compare.
///
/// A queue is independent of a connection: it may serve one peer, or several in turn.
pub(crate) trait Queue {
    /// A range of local memory, in the driver's format.
    type Segment;
    /// Units of the ring that the largest post takes.
    const LARGEST_POST: u32;
    /// Whether a request without effect exists.
    const HAS_NOP: bool;

    /// Returns the segment of `length` bytes at `address` with the lkey `key`.
    fn segment(address: u64, length: u32, key: u32) -> Self::Segment;

    /// Returns the free units of the ring.
    fn room(&self) -> u32;

    /// Returns the number of units posted so far. An equal number later means that nothing was
    /// posted since.
    fn posted(&self) -> u64;

    /// Returns the number of operations posted so far, if the queue counts them.
    fn operations(&self) -> Option<u64> {
        None
    }

    /// Returns the index of the last post; any value before the first.
    fn last(&self) -> u16;

    /// Returns whether all posts are known to be complete.
    fn is_idle(&self) -> bool;

    /// Returns whether the last post requested a completion, or there was none yet.
    fn last_is_signaled(&self) -> bool;

    /// Returns whether the post at `index`, which is not older than the ring, is known to be
    /// complete.
    fn is_done(&self, index: u16) -> bool;

    /// Makes the next post request a completion.
    fn request_completion(&mut self);

    /// Makes the next post wait for earlier reads and atomics.
    fn fence(&mut self);

    /// Returns the most units that may be outstanding.
    fn most_outstanding(&self) -> u32;

    /// Limits the units that may be outstanding to `most`, but to at least
    /// [`LEAST`](super::shares::LEAST) and at least so many more than are outstanding, and to the
    /// size of the ring. Returns the limit. A completion of an outstanding unit is on its way
    /// whenever the limit is reached.
    fn limit_outstanding(&mut self, most: u32) -> u32;

    /// Frees the units of the post at `index` and all before it, which are complete.
    fn reap(&mut self, index: u16);

    /// Posts a read of 8 bytes at `remote` under the peer's key, with a completion.
    fn read_word(&mut self, local: Self::Segment, remote: u64, key: u32) -> Result<(), QueueFull>;

    /// Posts a request without effect, with a completion. Called only if [`Self::HAS_NOP`].
    fn nop(&mut self) -> Result<(), QueueFull> {
        Err(QueueFull)
    }

    /// Returns whether other endpoints post to the same queue.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns whether `other` posts to the same queue.
    fn is_same(&self, _other: &Self) -> bool {
        false
    }

    /// Records that the endpoint posts no more. Returns whether others that share the queue may.
    fn leave(&mut self) -> bool {
        false
    }

    /// Moves the queue to error: everything outstanding completes as flushed.
    fn to_error(&mut self) -> Result<(), Source>;
}

/// Nothing was posted: the queue is full, or libibverbs refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;

/// The address of a device's port.
pub(crate) trait Port: Copy + fmt::Display {
    /// Returns the bytes of the port; the first 16 are its GID.
    fn to_bytes(self) -> [u8; PORT];
    /// Creates the port from these bytes.
    fn from_bytes(bytes: &[u8; PORT]) -> Self;

    /// Returns the address of a device of this transport: the port, and the network namespace.
    fn to_device(self, transport: TransportId) -> DeviceAddress {
        let mut body = [0; PORT + network::BYTES];
        body[..PORT].copy_from_slice(&self.to_bytes());
        body[PORT..].copy_from_slice(&network());
        DeviceAddress(Packed::new(Kind::Device, transport, &body))
    }

    /// Returns the port of a peer's device.
    ///
    /// # Errors
    /// [`ConnectError::ForeignTransport`]; [`ConnectError::Unreachable`] if it is a loopback address
    /// of another network namespace.
    fn from_device(address: &DeviceAddress, transport: TransportId) -> Result<Self, ConnectError> {
        let body = address.0.body::<{ PORT + network::BYTES }>();
        let port = body.filter(|_| address.transport() == transport);
        let Some(port) = port.and_then(|body| body.first_chunk()).map(Self::from_bytes) else {
            let found = address.transport();
            return Err(ConnectError::ForeignTransport { transport, found });
        };
        if address.is_loopback() && address.network() != Some(network()) {
            let reason = "it is a loopback address of another host or container: give the software \
                          HCAs of both an address of their network, as BAREWIRE_HCA_ADDRESS, and the \
                          same BAREWIRE_HCA_KEY"
                .to_owned();
            return Err(ConnectError::Unreachable { transport, peer: port.to_string(), reason });
        }
        Ok(port)
    }
}

/// Bytes of a port.
pub(crate) const PORT: usize = 24;

/// Limits of a device that an interface needs before it opens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most requests in a send or receive queue.
    pub(crate) requests: u32,
    /// Most entries of a completion queue.
    pub(crate) completions: u32,
}

/// The driver's part of an interface.
pub(crate) struct Opened<D: Driver> {
    /// What the interface can do.
    pub(crate) attributes: Attributes,
    /// Whether the driver assigns the user indices of completions: they are slots of the interface.
    pub(crate) has_user_index: bool,
    /// The rest of the driver's state.
    pub(crate) interface: D::Interface,
}

/// The driver's part of an endpoint.
pub(crate) struct Created<D: Driver> {
    /// The queue pair: it can receive, and is not connected.
    pub(crate) queue: D::Queue,
    /// Its number (24 bits).
    pub(crate) qpn: u32,
    /// Its path MTU, in the driver's [code](Driver::MTU_CODES).
    pub(crate) mtu: u8,
    /// Its limit of reads and atomics in flight, in the driver's [code](Driver::READS_CODES).
    pub(crate) reads: u8,
    /// The user index in its completions, if it is known already.
    pub(crate) user_index: Option<u32>,
    /// The rest of the driver's state.
    pub(crate) endpoint: D::Endpoint,
    /// The driver's part of the address.
    pub(crate) tail: D::Tail,
}

/// The parameters of a connection. Both ends derive them from their own address and the peer's.
pub(crate) struct Path<D: Driver> {
    /// The peer's port.
    pub(crate) port: D::Port,
    /// The peer's queue pair number.
    pub(crate) qpn: u32,
    /// Packet sequence number of the peer's first request.
    pub(crate) receive_psn: u32,
    /// Packet sequence number of this side's first request.
    pub(crate) send_psn: u32,
    /// The lower of the MTUs, in the driver's code.
    pub(crate) mtu: u8,
    /// The lower limit of reads and atomics in flight, in the driver's code.
    pub(crate) reads: u8,
    /// The driver's part of the peer's address.
    pub(crate) tail: D::Tail,
}

/// A driver for reliable connections.
pub(crate) trait Driver: crate::transport::handle::InDynamic + 'static {
    /// The transport's id.
    const ID: TransportId;
    /// Codes of path MTUs in an address. A higher code is a larger MTU.
    const MTU_CODES: RangeInclusive<u8>;
    /// Codes of the limit of reads and atomics in flight in an address. A higher code is a higher
    /// limit.
    const READS_CODES: RangeInclusive<u8>;

    /// A device and a protection domain.
    type Domain: Domain + Clone;
    /// A port's address.
    type Port: Port;
    /// A queue pair.
    type Queue: Queue;
    /// The operations in flight on a queue pair: an [`InFlightQueue`], or a reference to one if
    /// several endpoints share the queue pair.
    type InFlight: AsRef<InFlightQueue> + From<InFlightQueue>;
    /// The driver's part of an endpoint's address.
    type Tail: Tail;
    /// The driver's state of an interface, beside [`Shared`].
    type Interface;
    /// The driver's state of an endpoint, beside [`State`]. It is dropped after the queue pair.
    type Endpoint;

    /// Returns the address of an interface. It is empty where endpoints connect to endpoints only.
    fn interface_address(_shared: &Shared<Self>) -> InterfaceAddress {
        super::address::interface::<Self>()
    }

    /// Returns the limits of the device.
    fn limits(domain: &Self::Domain) -> Limits;

    /// Returns the local port.
    fn port(domain: &Self::Domain) -> Self::Port;

    /// Returns the domain with the GID and the partition that the settings name.
    ///
    /// # Errors
    /// [`OpenError::Device`] if the port's tables do not have them.
    fn choose(domain: &Self::Domain, config: &InterfaceConfig) -> Result<Self::Domain, OpenError>;

    /// Opens the driver's part of an interface, whose settings are checked. Its completion queue
    /// has room for the completions of `sends` requests, and for those of the receive requests.
    /// The attributes have the number of endpoints for which it has room.
    fn open(
        domain: &Self::Domain,
        config: &InterfaceConfig,
        sends: u32,
    ) -> Result<Opened<Self>, OpenError>;

    /// Called when the interface is complete.
    fn opened(_shared: &Rc<Shared<Self>>) -> Result<(), OpenError> {
        Ok(())
    }

    /// Returns whether an event reported that the device failed.
    fn has_failed(shared: &Shared<Self>) -> bool;

    /// Creates the driver's part of the endpoint in `slot`.
    fn create(shared: &Shared<Self>, slot: u32) -> Result<Created<Self>, OpenError>;

    /// Called when the endpoint's state is complete.
    fn created(_state: &State<Self>) {}

    /// Connects the queue pair.
    ///
    /// # Errors
    /// [`ConnectError::Unreachable`], or the device's refusal, as [`State::refused`] returns it.
    fn connect(state: &State<Self>, path: &Path<Self>) -> Result<(), ConnectError>;

    /// Called when the endpoint fails or is cancelled: its queue pair gets no more receive buffers.
    fn stop_receiving(_state: &State<Self>) {}

    /// Called when the endpoint or its interface is closed. Afterwards the device executes none of
    /// the endpoint's requests, and no message is delivered.
    fn stop(state: &State<Self>);

    /// Called once before [`Self::is_released`] is, for any number of endpoints.
    fn before_release(_shared: &Shared<Self>) {}

    /// Returns whether the queue pair can be destroyed. Called after [`Self::stop`], when no
    /// completion is left.
    fn is_released(_state: &State<Self>) -> bool {
        true
    }

    /// Returns whether the last post was the driver's own, so that the endpoint counts as idle if
    /// nothing else is outstanding.
    fn is_probe(_state: &State<Self>) -> bool {
        false
    }

    /// Returns whether the peer's requests arrive at the queue pair to which the endpoint posts, so
    /// that a window can be for its peer only.
    fn has_own_windows(_state: &State<Self>) -> bool {
        true
    }

    /// Called by progress when there may be more to do than taking completions.
    fn settle(_shared: &Shared<Self>) {}

    /// Returns what an error's report adds to its cause.
    fn detail(_shared: &Shared<Self>, _cause: Cause) -> Option<String> {
        None
    }

    /// See [`Progress::progress`].
    #[inline(always)]
    fn progress(progress: &mut Progress<Self>) -> usize {
        if progress.0.needs_attention() { progress.settle() } else { Self::take(progress) }
    }

    /// Takes one completion and processes it. Returns the number of events.
    fn take(progress: &mut Progress<Self>) -> usize;

    /// As [`Self::take`], called whenever endpoints may be closing.
    fn take_closing(progress: &mut Progress<Self>) -> usize {
        Self::take(progress)
    }

    /// Returns whether no completion is left in the queue. Called by progress before it closes
    /// endpoints.
    fn is_drained(shared: &Shared<Self>) -> bool;

    /// Called when the interface is closed, after its endpoints.
    fn close(_shared: &Shared<Self>) {}

    /// Returns the descriptor to wait on.
    fn event_fd(shared: &Shared<Self>) -> Result<Option<BorrowedFd<'_>>, EventError>;

    /// Makes the next completion notify the descriptor, unless progress has something to do.
    fn arm(shared: &Shared<Self>) -> Result<Armed, EventError>;
}
