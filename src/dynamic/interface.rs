//! Interfaces: the dynamic API.

use std::os::fd::BorrowedFd;

use crate::base::address::{PeerAddress, TransportId};
use crate::base::attributes::Attributes;
use crate::base::completion::Completion;
use crate::base::config::InterfaceConfig;
use crate::base::counters::Counters;
use crate::base::error::{ConnectError, EndpointError, HandlerError, OpenError, PostError};
use crate::base::event::{Armed, EventError};
use crate::base::status::Post;
use crate::dynamic::domain::{Domain, Kind as DomainKind};
use crate::dynamic::endpoint::Endpoint;
use crate::dynamic::table::transports;
use crate::dynamic::transport::Transport;
use crate::dynamic::transport::sealed::Conversions as _;
use crate::dynamic::worker::Worker;
use crate::transport::Interface as _;
use crate::transport::common::message::Message;
use crate::transport::sealed::Handled as _;
#[cfg(feature = "tcp")]
use crate::transport::tcp::Routes;

/// A transport in use on a device: queues, buffers and handlers. Cloning gives another handle to
/// the same interface.
#[derive(Debug, Clone)]
pub struct Interface(pub(crate) Kind);

transports!(one_of!
    #[derive(Debug, Clone)]
    pub(crate) enum Kind of Interface
);

impl Interface {
    /// Opens an interface and adds its progress to `worker`.
    ///
    /// ```
    /// use barewire::{Domain, Interface, InterfaceConfig, Worker};
    /// use std::{cell::Cell, rc::Rc};
    ///
    /// let mut worker = Worker::new();
    /// let domain = Domain::open(&"self/memory".parse()?)?;
    /// let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
    /// let sum = Rc::new(Cell::new(0));
    /// let total = Rc::clone(&sum);
    /// interface.set_handler(3, move |message| total.set(total.get() + message.data().len()))?;
    ///
    /// let endpoint = interface.connect(&interface.address())?;
    /// endpoint.am_short(3, 0, b"twelve bytes")?;
    /// worker.progress();
    /// // The header of a short message is part of its data.
    /// assert_eq!(sum.get(), 8 + 12);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`OpenError::Setting`] for a setting with an invalid value, [`OpenError::Device`] if the
    /// device refuses.
    pub fn open(
        worker: &mut Worker,
        domain: &Domain,
        config: &InterfaceConfig,
    ) -> Result<Self, OpenError> {
        let (interface, progress) = transports!(each_of! DomainKind, &domain.0, domain => {
            let (interface, progress) = T::open_interface(domain, config)?;
            (Self::from_static::<T>(interface), T::into_progress(progress))
        });
        worker.adopt(interface.clone(), progress, config.busy_poll);
        tracing::debug!(transport = %interface.transport(), ?config, "interface opened");
        Ok(interface)
    }

    /// Wraps an interface of a transport's own type. The caller keeps its progress.
    pub fn from_static<T: Transport>(interface: T::Interface) -> Self {
        T::into_interface(interface)
    }

    /// Returns the interface as the transport's own type; `None` if it is of another transport.
    pub fn as_static<T: Transport>(&self) -> Option<&T::Interface> {
        T::from_interface(self)
    }

    /// Returns the transport.
    pub fn transport(&self) -> TransportId {
        transports!(each! &self.0, _interface => T::ID)
    }

    /// Returns whether both are handles to the same interface.
    pub fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self.attributes(), other.attributes())
    }

    /// Returns what the interface can do.
    pub fn attributes(&self) -> &Attributes {
        transports!(each! &self.0, interface => interface.attributes())
    }

    /// Returns the address of the interface, which peers pass to [`connect`](Self::connect).
    pub fn address(&self) -> PeerAddress {
        transports!(each! &self.0, interface => interface.address())
    }

    /// Opens an endpoint to the peer's interface; transports with
    /// [`Flags::CONNECT_TO_INTERFACE`](crate::Flags::CONNECT_TO_INTERFACE). The address of one of
    /// its endpoints contains that of the interface.
    ///
    /// # Errors
    /// [`ConnectError::Unsupported`] if the transport connects endpoint to endpoint: use
    /// [`Endpoint::new`] and [`Endpoint::connect`]. [`ConnectError::ForeignTransport`],
    /// [`ConnectError::Unreachable`], [`ConnectError`]
    pub fn connect(&self, peer: &PeerAddress) -> Result<Endpoint, ConnectError> {
        transports!(each! &self.0, interface => {
            T::connect_to_interface(interface, peer).map(Endpoint::from_static::<T>)
        })
    }

    /// Checks whether the interface can reach a peer's interface.
    ///
    /// | transport | check |
    /// |---|---|
    /// | `self` | the address is that of this interface |
    /// | `shm` | connects to the peer's socket and checks the peer's user |
    /// | `cma` | opens the peer's region table and compares its secret |
    /// | `tcp` | both addresses have one family, both or neither are of the loopback, and there is a route |
    /// | `rc_mlx5`, `xrc_mlx5`, `dc_mlx5`, `rc_verbs`, `ud_mlx5`, `ud_verbs` | the address is valid; only a connection can show more |
    ///
    /// Between containers, which share a kernel but not its directories or PID namespaces, `shm`
    /// and `cma` return the reason, and another transport can be used.
    ///
    /// # Errors
    /// [`ConnectError::ForeignTransport`], [`ConnectError::Address`]; [`ConnectError::Unreachable`]
    /// with the reason.
    pub fn reaches(&self, peer: &PeerAddress) -> Result<(), ConnectError> {
        transports!(each! &self.0, interface => interface.reaches(peer))
    }

    /// As [`reaches`](Self::reaches), with routes that are found once for many peers or interfaces.
    /// Returns false if it is `tcp`, and the route to a peer of another host leaves through another
    /// interface than this one: a connection has the address of this one, and the peer's replies may
    /// not find the way back.
    ///
    /// # Errors
    /// As [`reaches`](Self::reaches)
    #[cfg(feature = "tcp")]
    pub fn reaches_by(&self, peer: &PeerAddress, routes: &Routes) -> Result<bool, ConnectError> {
        transports!(each! &self.0, interface => interface.reaches_by(peer, routes))
    }

    /// Sets the handler of active messages with `id` (0 to 31), replacing an earlier one. Handlers
    /// may post.
    pub fn set_handler(
        &self,
        id: u8,
        handler: impl FnMut(Message<'_>) + 'static,
    ) -> Result<(), HandlerError> {
        transports!(each! &self.0, interface => interface.set_handler(id, handler))
    }

    /// In a handler: receives nothing from the sender of this message until
    /// [`release_senders`](Self::release_senders). What the sender posts waits, and then its posts
    /// are refused for lack of room. Few further messages of the sender may still be delivered.
    ///
    /// A protocol above this interface bounds in this way the time that a hostile sender can take.
    /// Over `shm`, senders that have sent fewer messages than the first few are held together.
    /// Returns false, and holds nothing, for transports other than `shm` and `tcp`.
    pub fn hold_sender(&self) -> bool {
        transports!(each! &self.0, interface => interface.hold_sender())
    }

    /// Receives from all senders again.
    pub fn release_senders(&self) {
        transports!(each! &self.0, interface => interface.release_senders());
    }

    /// Sets the handler that is called once for each endpoint that fails.
    pub fn set_error_handler(&self, handler: impl FnMut(&EndpointError) + 'static) {
        transports!(each! &self.0, interface => interface.set_error_handler(handler));
    }

    /// Returns the number of messages that were dropped because their id has no handler.
    pub fn unhandled(&self) -> u64 {
        transports!(each! &self.0, interface => interface.unhandled())
    }

    /// Returns the counters of all endpoints of the interface, including dropped ones.
    pub fn counters(&self) -> Counters {
        transports!(each! &self.0, interface => interface.counters())
    }

    /// Returns the descriptor that becomes readable when an event occurs on an armed interface;
    /// `None` if no event occurs without a call on this thread. Use it only to wait: do not read
    /// from it, and expect spurious wake-ups.
    pub fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        transports!(each! &self.0, interface => interface.event_fd())
    }

    /// Makes the [descriptor](Self::event_fd) readable on the next event, until progress is called.
    /// Returns how long the thread may sleep.
    pub fn arm(&self) -> Result<Armed, EventError> {
        transports!(each! &self.0, interface => interface.arm())
    }

    /// Makes the next progress examine all connections, so that it notices peers whose process has
    /// ended; otherwise `shm` and `tcp` do that every few hundred calls. While peers send too many
    /// requests over the sockets of `shm`, it does that up to 0.3 s later. Has no other effect.
    pub fn examine(&self) {
        transports!(each! &self.0, interface => interface.examine());
    }

    /// Flushes every endpoint as [`FlushMode::Local`](crate::FlushMode::Local) does. The completion
    /// counts each endpoint that has something outstanding.
    pub fn flush(&self, completion: Option<&Completion>) -> Post {
        transports!(each! &self.0, interface => interface.flush(completion))
    }

    /// On every endpoint, orders later operations after earlier ones.
    pub fn fence(&self) -> Result<(), PostError> {
        transports!(each! &self.0, interface => interface.fence())
    }
}
