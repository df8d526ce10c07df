//! What a driver provides for transports over reliable connections.

use std::fmt;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::progress::Progress;
use super::{Shared, State};
use crate::address::TransportId;
use crate::attributes::Attributes;
use crate::config::InterfaceConfig;
use crate::error::{Cause, ConnectError, OpenError, Source};
use crate::event::EventError;
use crate::transport::common::registered::Domain;

/// A send queue whose posts are numbered. An index is the low 16 bits of a post's number; a queue has at
/// most 2^15 posts outstanding, so that indices compare.
///
/// Nothing here knows of a connection: a queue may serve one peer, or peers in turn.
pub(crate) trait Queue {
    /// A range of local memory as posts take it.
    type Segment;
    /// Units of the ring that the largest post takes.
    const LARGEST_POST: u32;
    /// There is a request that has no effect.
    const HAS_NOP: bool;

    /// `length` bytes at `address` under the local key `key`.
    fn segment(address: u64, length: u32, key: u32) -> Self::Segment;

    /// Units of the ring that can be posted now.
    fn room(&self) -> u32;

    /// Units posted so far: the same number later means that nothing was posted since.
    fn posted(&self) -> u64;

    /// Operations posted so far, if the queue counts them itself.
    fn operations(&self) -> Option<u64> {
        None
    }

    /// Index of the last post; any number before the first.
    fn last(&self) -> u16;

    /// Everything posted is known to be done.
    fn is_idle(&self) -> bool;

    /// The last post gives a completion, or there was none yet.
    fn last_is_signaled(&self) -> bool;

    /// The post at `index`, which is not older than the ring, is known to be done.
    fn is_done(&self, index: u16) -> bool;

    /// The next post gives a completion.
    fn request_completion(&mut self);

    /// The next post waits for the reads and atomics before it.
    fn fence(&mut self);

    /// The post at `index` and all before it are done; their room is free.
    fn reap(&mut self, index: u16);

    /// Posts a read of 8 bytes at `remote` under the peer's key, with a completion.
    fn read_word(&mut self, local: Self::Segment, remote: u64, key: u32) -> Result<(), QueueFull>;

    /// Posts a request that has no effect but its completion. Called if [`Self::HAS_NOP`].
    fn nop(&mut self) -> Result<(), QueueFull> {
        Err(QueueFull)
    }

    /// Moves the queue to error: everything outstanding completes as flushed.
    fn to_error(&mut self) -> Result<(), Source>;
}

/// Nothing was posted: the queue is full, or the library refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;

/// The address of a device's port.
pub(crate) trait Port: Copy + fmt::Display {
    /// The bytes of a device address.
    fn to_bytes(self) -> [u8; 24];
    /// The port with these bytes.
    fn from_bytes(bytes: &[u8; 24]) -> Self;
}

/// What an interface needs to know of a device before it opens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Requests of a send or receive queue.
    pub(crate) requests: u32,
    /// Entries of a completion queue.
    pub(crate) completions: u32,
}

/// The driver's part of an interface.
pub(crate) struct Opened<D: Driver> {
    /// What the interface can do.
    pub(crate) attributes: Attributes,
    /// The driver chooses the user indices that completions carry: they are slots of the interface.
    pub(crate) has_user_index: bool,
    /// The rest of the driver's state.
    pub(crate) interface: D::Interface,
}

/// The driver's part of an endpoint.
pub(crate) struct Created<D: Driver> {
    /// The queue pair, which may receive and is not connected.
    pub(crate) queue: D::Queue,
    /// Its number (24 bits).
    pub(crate) qpn: u32,
    /// Its path MTU, in the driver's [code](Driver::MTU_CODES).
    pub(crate) mtu: u8,
    /// Its reads and atomics in flight, in the driver's [code](Driver::READS_CODES).
    pub(crate) reads: u8,
    /// What completions carry, if it is known already.
    pub(crate) user_index: Option<u32>,
    /// The rest of the driver's state.
    pub(crate) endpoint: D::Endpoint,
}

/// A connection as both ends come to it, each from its own address and the peer's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path<P> {
    /// The peer's port.
    pub(crate) port: P,
    /// The peer's queue pair number.
    pub(crate) qpn: u32,
    /// Packet sequence number of the peer's first request.
    pub(crate) receive_psn: u32,
    /// Packet sequence number of this side's first request.
    pub(crate) send_psn: u32,
    /// The lower of the MTUs, in the driver's code.
    pub(crate) mtu: u8,
    /// The fewer of the reads and atomics in flight, in the driver's code.
    pub(crate) reads: u8,
}

/// A driver for reliable connections.
pub(crate) trait Driver: Sized + 'static {
    /// Which transport it is.
    const ID: TransportId;
    /// Its name.
    const NAME: &'static str = Self::ID.name();
    /// Path MTUs as an address has them. A higher code is a larger MTU.
    const MTU_CODES: RangeInclusive<u8>;
    /// Reads and atomics in flight as an address has them. A higher code is more of them.
    const READS_CODES: RangeInclusive<u8>;

    /// A device and a protection domain.
    type Domain: Domain + Clone;
    /// A port's address.
    type Port: Port;
    /// A queue pair.
    type Queue: Queue;
    /// What an interface has beside [`Shared`].
    type Interface;
    /// What an endpoint has beside [`State`]. It is dropped after the queue pair.
    type Endpoint;

    /// What the device can do.
    fn limits(domain: &Self::Domain) -> Limits;

    /// This side's port.
    fn port(domain: &Self::Domain) -> Self::Port;

    /// Opens the driver's part of an interface with checked settings. Its completion queue has room for
    /// `entries` completions.
    ///
    /// # Errors
    /// [`OpenError::Setting`], [`OpenError::Device`]
    fn open(domain: &Self::Domain, config: &InterfaceConfig, entries: u32)
    -> Result<Opened<Self>, OpenError>;

    /// Creates the driver's part of the endpoint in `slot`.
    ///
    /// # Errors
    /// [`OpenError::Device`]
    fn create(shared: &Shared<Self>, slot: u32) -> Result<Created<Self>, OpenError>;

    /// Called when the endpoint's state is complete.
    fn created(_state: &State<Self>) {}

    /// Connects the queue pair.
    ///
    /// # Errors
    /// [`ConnectError::Unreachable`], or the device's refusal as [`State::refused`] makes it.
    fn connect(state: &State<Self>, path: &Path<Self::Port>) -> Result<(), ConnectError>;

    /// Called when the endpoint fails or is cancelled: no receive buffers go to its queue pair from now on.
    fn stop_receiving(_state: &State<Self>) {}

    /// Called when the endpoint or its interface is closed. After it the device executes no more of the
    /// endpoint's requests, and no message is delivered.
    fn stop(state: &State<Self>);

    /// After [`Self::stop`], when no completion is left: the queue pair can be destroyed.
    fn is_released(_state: &State<Self>) -> bool {
        true
    }

    /// What an error's report adds to its cause.
    fn detail(_shared: &Shared<Self>, _cause: Cause) -> Option<String> {
        None
    }

    /// Takes one completion and does what follows. Returns the number of events.
    fn take(progress: &mut Progress<Self>) -> usize;

    /// No completion is left in the queue. Called by progress when endpoints are to be closed.
    fn is_drained(shared: &Shared<Self>) -> bool;

    /// Called when the interface is closed, after its endpoints.
    fn close(_shared: &Shared<Self>) {}

    /// A descriptor to sleep on.
    ///
    /// # Errors
    /// [`EventError::Missing`]
    fn event_fd(shared: &Shared<Self>) -> Result<Option<BorrowedFd<'_>>, EventError>;

    /// Makes the next completion notify the descriptor.
    ///
    /// # Errors
    /// [`EventError::Busy`] if progress has something to do, [`EventError::Missing`],
    /// [`EventError::System`]
    fn arm(shared: &Shared<Self>) -> Result<Option<Instant>, EventError>;
}
