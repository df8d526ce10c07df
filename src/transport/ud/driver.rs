//! What a driver provides to transports over datagrams.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::rc::Rc;

use super::{RECEIVED, Shared, State};
use crate::base::config::InterfaceConfig;
use crate::base::error::{ConnectError, OpenError};
use crate::base::event::{Armed, EventError};
use crate::transport::common::registered::Domain;
use crate::transport::handle::{Slots, States};
use crate::transport::rc::{Limits, Port, QueueFull};

/// A receive buffer of an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveBuffer {
    /// Its first byte. The device writes from [`super::RECEIVED`] on.
    pub(crate) start: NonNull<u8>,
    pub(crate) number: u32,
    /// The lkey of its memory.
    pub(crate) key: u32,
}

impl ReceiveBuffer {
    /// Returns the address of the part that the device writes.
    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.start.addr().get() as u64 + RECEIVED as u64
    }
}

/// A queue pair for datagrams with its completion queue. Sends are numbered: an index is the low 16
/// bits of a send's number, and at most 2^15 are outstanding, so that indices compare.
pub(crate) trait Queue {
    /// Where a datagram goes.
    type Destination;

    /// Returns the queue pair number (24 bits).
    fn number(&self) -> u32;

    /// Returns whether a packet can be sent.
    fn has_room(&self) -> bool;

    /// Returns the index of the last send; any value before the first.
    fn last(&self) -> u16;

    /// Returns whether all sends are known to be complete.
    fn is_idle(&self) -> bool;

    /// Returns whether the last send requested a completion, or there was none yet.
    fn last_is_signaled(&self) -> bool;

    /// Returns whether the send at `index` is known to be complete.
    fn is_done(&self, index: u16) -> bool;

    /// Makes the next send request a completion.
    fn request_completion(&mut self);

    /// Records that the send at `index` and all before it are complete.
    fn reap(&mut self, index: u16);

    /// Sends a packet of at most [`Opened::inline`] bytes, which are copied. Returns its index.
    fn send_inline(&mut self, to: &Self::Destination, packet: &[u8]) -> Result<u16, QueueFull>;

    /// Sends a packet of these little-endian words, as [`Self::send_inline`] does.
    fn send_words(&mut self, to: &Self::Destination, words: [u64; 4]) -> Result<u16, QueueFull>;

    /// Sends the packet of `length` bytes at `address` with the lkey `key`. Returns its index.
    fn send(
        &mut self,
        to: &Self::Destination,
        address: u64,
        length: u32,
        key: u32,
    ) -> Result<u16, QueueFull>;

    /// Posts `length` bytes of `buffer` for a packet. Its completion returns `buffer`.
    fn receive(&mut self, buffer: ReceiveBuffer, length: u32) -> Result<(), QueueFull>;

    /// Frees the entry of the receive queue of a buffer that [`Self::take`] returned.
    fn free(&mut self);

    /// Posts `length` bytes of the buffer that [`Self::take`] returned with `entry` again, instead
    /// of [`Self::free`] and [`Self::receive`].
    fn receive_again(&mut self, entry: u32, length: u32) -> Result<(), QueueFull>;

    /// Returns whether there may be a completion.
    fn is_ready(&self) -> bool;

    /// Returns whether more than `ahead` completions wait, fewer than the queue has room for; `false`
    /// if the driver cannot see it.
    fn has_backlog(&self, ahead: u32) -> bool;

    /// Takes the next completion if it is a datagram. Returns `None` if there is none, or only
    /// [`Self::take`] knows.
    fn take_datagram(&mut self) -> Option<Received>;

    /// Takes the next completion.
    fn take(&mut self) -> Option<Taken>;

    /// Makes outstanding requests return flushed.
    fn fail(&mut self);

    /// Makes the queue pair ready again when no request is outstanding. Returns whether the device
    /// did it: it refuses as long as the port is down.
    fn restart(&mut self) -> bool;

    /// Resets the queue pair: the device accesses its memory no more.
    fn stop(&mut self);
}

/// A datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// First byte of its buffer; `None` for a request that this crate did not post.
    pub(crate) start: Option<NonNull<u8>>,
    /// Number of its buffer.
    pub(crate) number: u32,
    /// Bytes, with the routing header; 0 for one of a kind that this crate never sends.
    pub(crate) length: u32,
    /// The sender's queue pair.
    pub(crate) from: u32,
    /// The buffer's entry in the receive queue, for [`Queue::receive_again`].
    pub(crate) entry: u32,
}

/// One completion.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Taken {
    /// The send at this index and all before it are complete.
    Sent(u16),
    /// The send at this index failed.
    NotSent(u16),
    /// A datagram arrived.
    Received(Received),
    /// The post of the buffer with this number failed.
    NotReceived(u32),
}

/// The driver's part of an interface.
pub(crate) struct Opened<D: Driver> {
    /// The queue pair, ready to send and to receive.
    pub(crate) queue: D::Queue,
    /// The events of its completion queue.
    pub(crate) events: D::Events,
    /// Inline bytes of a packet.
    pub(crate) inline: usize,
    /// The device is a model in software.
    pub(crate) is_software: bool,
}

/// A driver for datagrams.
pub(crate) trait Driver:
    States<Shared = Shared<Self>, State = State<Self>, Endpoints = Slots<State<Self>>>
{
    /// A device and a protection domain.
    type Domain: Domain + Clone;
    /// A port's address.
    type Port: Port;
    /// A queue pair.
    type Queue: Queue;
    /// The events of its completion queue.
    type Events;

    /// Returns the limits of the device.
    fn limits(domain: &Self::Domain) -> Limits;

    /// Returns the local port.
    fn port(domain: &Self::Domain) -> Self::Port;

    /// Returns the longest packet of the port, in bytes.
    fn mtu(domain: &Self::Domain) -> u32;

    /// Returns the domain with the GID and the partition that the settings name.
    ///
    /// # Errors
    /// [`OpenError::Device`] if the port's tables do not have them.
    fn choose(domain: &Self::Domain, config: &InterfaceConfig) -> Result<Self::Domain, OpenError>;

    /// Creates a queue pair, whose settings are checked, with room for `receives` buffers, a power
    /// of two.
    fn open(
        domain: &Self::Domain,
        config: &InterfaceConfig,
        receives: u32,
    ) -> Result<Opened<Self>, OpenError>;

    /// Called when the interface is complete.
    fn opened(_shared: &Rc<Shared<Self>>) -> Result<(), OpenError> {
        Ok(())
    }

    /// Returns the event that reported the failure of the device, with its name.
    fn failure(_domain: &Self::Domain) -> Option<String> {
        None
    }

    /// Returns the destination of packets to the queue pair `qpn` behind `port`.
    fn destination(
        shared: &Shared<Self>,
        port: Self::Port,
        qpn: u32,
    ) -> Result<<Self::Queue as Queue>::Destination, ConnectError>;

    /// Returns the descriptor to wait on.
    fn descriptor(events: &Self::Events) -> Result<BorrowedFd<'_>, EventError>;

    /// Makes the next completion notify the descriptor, unless there is one already.
    fn arm(events: &Self::Events, queue: &mut Self::Queue) -> Result<Armed, EventError>;

    /// Returns what the report of an unresponsive peer adds to `tried`, the retries.
    fn unanswered(domain: &Self::Domain, tried: &str) -> String;
}
