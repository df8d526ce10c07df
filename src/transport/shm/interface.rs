//! The interface: the state that its endpoints share.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use barewire_shm::{Place, Port, PortAddress, PortConfig, PortError, Watcher};

use super::address;
use super::connection::{self, Connections};
use super::domain::Domain;
use super::endpoint::Endpoint;
use super::progress::Progress;
use super::state::State;
use super::{ID, SEGMENT};
use crate::address::PeerAddress;
use crate::attributes::Attributes;
use crate::completion::Completion;
use crate::config::InterfaceConfig;
use crate::counters::{Counters, Past};
use crate::error::{ConnectError, OpenError, PostError};
use crate::event::{Armed, EventError};
use crate::fork;
use crate::status::{Post, Posted};
use crate::transport::common::allocation::Allocation;
use crate::transport::common::pending::Arbiter;
use crate::transport::common::pool::Pool;
use crate::transport::common::random;
use crate::transport::sealed::Handled;
use crate::transport::{self, common::handlers::Handlers};

/// Buffers between two processes: as many as configured, up to this limit. The most recently used
/// are reused first.
const MOST_BUFFERS: u32 = 32;

/// The longest sleep while requests wait for room.
const ROOM: Duration = Duration::from_micros(100);
/// The longest sleep. A misbehaving peer can take the wake-up that another peer's message would
/// cause.
const SLEEP: Duration = Duration::from_secs(1);

pub(super) struct Shared {
    /// Progress has something to do besides messages.
    pub(super) attention: Cell<bool>,
    /// Connections that were made since progress last reported.
    pub(super) connected: Cell<usize>,
    pub(super) watcher: Watcher,
    pub(super) handlers: Handlers,
    pub(super) arbiter: Arbiter<Endpoint>,
    endpoints: RefCell<Vec<Weak<State>>>,
    /// Some connections wait for a slot in the accept queue of their port's socket.
    pub(super) knocking: Cell<bool>,
    pub(super) connections: RefCell<Connections>,
    /// Endpoints that failed since the error handler last ran.
    pub(super) unreported: RefCell<VecDeque<Weak<State>>>,
    /// Buffers to pack buffered puts and unpack buffered gets.
    pub(super) buffers: Pool<Allocation, SEGMENT>,
    pub(super) closed: Cell<bool>,
    pub(super) address: PortAddress,
    pub(super) config: PortConfig,
    /// The domain's tag: endpoints accept only slices with it.
    pub(super) tag: u32,
    attributes: Attributes,
    /// Counts of endpoints that were dropped.
    pub(super) past: Past,
}

/// A handle to an open interface; cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Interface(pub(super) Rc<Shared>);

impl Interface {
    /// Opens an interface. Its socket is in the directory that `BAREWIRE_SHM_DIR` names, or else in
    /// `barewire` in `$XDG_RUNTIME_DIR`, or in `/tmp/barewire-UID`. If neither of the last two can
    /// be used, or `BAREWIRE_SHM_DIR` is `abstract`, the socket has an abstract name.
    ///
    /// # Errors
    /// [`OpenError::Setting`] for a setting with an invalid value, [`OpenError::Device`] if the
    /// kernel refuses.
    pub fn open(domain: &Domain, config: &InterfaceConfig) -> Result<(Self, Progress), OpenError> {
        let count = config.checked_bcopy_buffers(ID)?;
        let failed = |step| {
            move |source| OpenError::Device { device: super::DEVICE.to_owned(), step, source }
        };
        let buffers = Allocation::new(count.min(4) * SEGMENT)
            .map_err(|error| failed("allocate buffers")(error.into()))?;
        let port_config = PortConfig {
            buffers: config.bcopy_buffers.min(MOST_BUFFERS) as usize,
            place: place(),
            huge_pages: domain.accepts_huge_pages(),
            ..PortConfig::default()
        };
        let secret =
            random::secret().map_err(|error| failed("get a random secret")(error.into()))?;
        let address = PortAddress { number: random::number(), secret: u128::from_ne_bytes(secret) };
        let port = Port::open(address, &port_config, domain.regions())
            .map_err(|error: PortError| failed("open a port")(error.into()))?;
        let shared = Rc::new(Shared {
            attention: Cell::new(false),
            connected: Cell::new(0),
            watcher: port.watcher(),
            handlers: Handlers::new(),
            arbiter: Arbiter::new(),
            endpoints: RefCell::default(),
            knocking: Cell::new(false),
            connections: RefCell::default(),
            unreported: RefCell::default(),
            buffers: Pool::new(buffers),
            closed: Cell::new(false),
            address,
            config: port_config,
            tag: domain.tag(),
            attributes: super::attributes(config),
            past: Past::default(),
        });
        fork::watch(&shared);
        Ok((Self(Rc::clone(&shared)), Progress::new(shared, port)))
    }

    /// Opens an endpoint to an interface.
    ///
    /// # Errors
    /// As [`Endpoint::connect`], and [`OpenError::Closed`].
    pub fn connect(&self, peer: &PeerAddress) -> Result<Endpoint, ConnectError> {
        let endpoint = Endpoint::new(self)?;
        endpoint.reach(peer.device(), &peer.interface().0)?;
        Ok(endpoint)
    }
}

impl Handled for Interface {
    fn handlers(&self) -> &Handlers {
        &self.0.handlers
    }

    fn call_attention(&self) {
        self.0.call_attention();
    }
}

impl transport::Interface for Interface {
    fn attributes(&self) -> &Attributes {
        &self.0.attributes
    }

    fn address(&self) -> PeerAddress {
        PeerAddress::of_interface(address::device(), address::interface(self.0.address))
    }

    fn reaches(&self, peer: &PeerAddress) -> Result<(), ConnectError> {
        let port = address::port(peer.device(), &peer.interface().0)?;
        if self.0.connections.borrow().find(port).is_some() {
            return Ok(());
        }
        connection::connect(&self.0, port).map(drop)
    }

    fn counters(&self) -> Counters {
        self.0.states().iter().fold(self.0.past.get(), |sum, state| sum + state.counters())
    }

    // Operations are complete when posted, so this never waits.
    fn flush(&self, _completion: Option<&Completion>) -> Post {
        self.fence()?;
        Ok(Posted::Done)
    }

    fn fence(&self) -> Result<(), PostError> {
        if self.0.closed.get() {
            return Err(PostError::Closed);
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }

    fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(Some(self.0.watcher.as_fd()))
    }

    // There is always a deadline: no event reports room for pending requests, and a misbehaving
    // peer can suppress wake-ups for up to a second. Senders pay nothing until this is called; then
    // one of them makes a system call.
    fn arm(&self) -> Result<Armed, EventError> {
        if self.0.closed.get() {
            return Err(EventError::Closed { transport: ID });
        }
        let shared = &*self.0;
        let step = "have other processes see that this one sleeps (membarrier)";
        let armed = shared.watcher.arm().map_err(|source| EventError::System { step, source })?;
        let waiting = !shared.arbiter.is_empty();
        if !armed || (shared.attention.get() && !waiting) {
            return Ok(Armed::Ready);
        }
        let latest = Instant::now() + if waiting || shared.knocking.get() { ROOM } else { SLEEP };
        Ok(Armed::Until(shared.watcher.wake_by().map_or(latest, |door| door.min(latest))))
    }
}

/// Returns where sockets are placed, from the environment.
fn place() -> Place {
    match std::env::var_os("BAREWIRE_SHM_DIR") {
        None => Place::Private,
        Some(name) if name == "abstract" => Place::Abstract,
        Some(directory) => Place::Directory(directory.into()),
    }
}

impl fork::Inherited for Shared {
    fn close_in_child(&self) {
        self.closed.set(true);
        // Progress then finds the interface closed.
        self.call_attention();
        if let Ok(endpoints) = self.endpoints.try_borrow() {
            endpoints
                .iter()
                .filter_map(Weak::upgrade)
                .for_each(|state| state.posting.close_in_child());
        }
    }
}

impl Shared {
    /// Makes the next progress do more than check for messages.
    pub(super) fn call_attention(&self) {
        self.attention.set(true);
        self.watcher.call_attention();
    }

    /// Tries again to connect the sockets whose ports had no room.
    #[cold]
    pub(super) fn knock(&self) {
        let knocking = self.connections.borrow().knocking();
        self.knocking.set(!knocking.is_empty());
        for connection in knocking {
            connection.tend(self);
        }
    }

    pub(super) fn open_endpoint(self: &Rc<Self>) -> Result<Rc<State>, OpenError> {
        if self.closed.get() {
            return Err(OpenError::Closed { transport: ID });
        }
        let state = Rc::new(State::new(Rc::clone(self)));
        let mut endpoints = self.endpoints.borrow_mut();
        if endpoints.len() == endpoints.capacity() {
            endpoints.retain(|endpoint| endpoint.strong_count() > 0);
        }
        endpoints.push(Rc::downgrade(&state));
        Ok(state)
    }

    /// Returns every open endpoint.
    pub(super) fn states(&self) -> Vec<Rc<State>> {
        self.endpoints.borrow().iter().filter_map(Weak::upgrade).collect()
    }
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interface")
            .field("transport", &ID)
            .field("address", &self.0.address)
            .finish_non_exhaustive()
    }
}
