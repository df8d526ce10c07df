//! The interface: the state that its endpoints share.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use barewire_shm::{Peer, Place, Port, PortAddress, PortConfig, PortError, Watcher};

use super::address;
use super::connection::{self, Connections};
use super::domain::Domain;
use super::progress::Progress;
use super::state::State;
use super::{Endpoint, ID, Interface, SEGMENT, Shm};
use crate::base::address::PeerAddress;
use crate::base::config::InterfaceConfig;
use crate::base::error::{ConnectError, OpenError};
use crate::base::event::{Armed, EventError, after};
use crate::base::random;
use crate::transport::common::allocation::Allocation;
use crate::transport::common::pool::Pool;
use crate::transport::handle::{InterfaceCore, InterfaceState, WeakEndpoints};

/// Buffers between two processes: as many as configured, up to this limit. The most recently used
/// are reused first.
const MOST_BUFFERS: u32 = 32;

/// The longest sleep while requests wait for room.
const ROOM: Duration = Duration::from_micros(100);
/// The longest sleep. A misbehaving peer can take the wake-up that another peer's message would
/// cause.
const SLEEP: Duration = Duration::from_secs(1);

pub(crate) struct Shared {
    pub(super) core: InterfaceCore<Shm>,
    /// Progress has something to do besides messages.
    pub(super) attention: Cell<bool>,
    /// What the next progress does with senders.
    pub(super) holds: Cell<bool>,
    pub(super) releases: Cell<bool>,
    /// Connections that were made since progress last reported.
    pub(super) connected: Cell<usize>,
    pub(super) watcher: Watcher,
    /// Some connections wait for a slot in the accept queue of their port's socket.
    pub(super) knocking: Cell<bool>,
    pub(super) connections: RefCell<Connections>,
    /// Endpoints that failed since the error handler last ran.
    pub(super) unreported: RefCell<VecDeque<Weak<State>>>,
    /// Buffers to pack buffered puts and unpack buffered gets.
    pub(super) buffers: Pool<Allocation, SEGMENT>,
    pub(super) address: PortAddress,
    pub(super) config: PortConfig,
    /// The domain's tag: endpoints accept only slices with it.
    pub(super) tag: u32,
    /// The domain, for the lists of views.
    pub(super) domain: Domain,
}

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
        config.checked_keepalive(ID)?;
        let failed = |step| {
            move |source| OpenError::Device { device: super::DEVICE.to_owned(), step, source }
        };
        let buffers = Allocation::new(count.min(4) * SEGMENT)
            .map_err(|error| failed("allocate buffers")(error.into()))?;
        let port_config = PortConfig {
            buffers: config.bcopy_buffers.min(MOST_BUFFERS) as usize,
            place: place(),
            direct: true,
            huge_pages: domain.accepts_huge_pages(),
            ..PortConfig::default()
        };
        let secret =
            random::secret().map_err(|error| failed("get a random secret")(error.into()))?;
        let address = PortAddress { number: random::number(), secret: u128::from_ne_bytes(secret) };
        let port =
            Port::open(address, &port_config, domain.regions()).map_err(|error: PortError| {
                match &port_config.place {
                    Place::Directory(directory) => {
                        let directory = directory.display();
                        let reason =
                            format!("in {directory}, which BAREWIRE_SHM_DIR names: {error}");
                        failed("open a port")(reason.into())
                    }
                    _ => failed("open a port")(error.into()),
                }
            })?;
        let shared = Rc::new(Shared {
            core: InterfaceCore::new(super::attributes(config), WeakEndpoints::default()),
            attention: Cell::new(false),
            holds: Cell::new(false),
            releases: Cell::new(false),
            connected: Cell::new(0),
            watcher: port.watcher(),
            knocking: Cell::new(false),
            connections: RefCell::default(),
            unreported: RefCell::default(),
            buffers: Pool::new(buffers),
            address,
            config: port_config,
            tag: domain.tag(),
            domain: domain.clone(),
        });
        Ok((Self::open_with(&shared), Progress::new(shared, port)))
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

impl InterfaceState for Shared {
    type Transport = Shm;

    fn core(&self) -> &InterfaceCore<Shm> {
        &self.core
    }

    fn call_attention(&self) {
        self.attention.set(true);
        self.watcher.call_attention();
    }

    fn hold_sender(&self) -> bool {
        self.holds.set(true);
        // No message is delivered until progress has taken the note.
        self.call_attention();
        true
    }

    fn release_senders(&self) {
        self.releases.set(true);
        self.call_attention();
    }

    fn address(&self) -> PeerAddress {
        PeerAddress::of_interface(address::device(), address::interface(self.address))
    }

    fn reaches(self: &Rc<Self>, peer: &PeerAddress) -> Result<(), ConnectError> {
        let port = address::port(peer.device(), &peer.interface().0)?;
        let is_connected = self.connections.borrow().find(port).is_some();
        if is_connected || Peer::can_enter(port, &self.config) {
            return Ok(());
        }
        connection::connect(self, port).map(drop)
    }

    fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(Some(self.watcher.as_fd()))
    }

    // There is always a deadline: no event reports room for pending requests, and a misbehaving
    // peer can suppress wake-ups for up to a second. Senders pay nothing until this is called; then
    // one of them makes a system call.
    fn arm(&self) -> Result<Armed, EventError> {
        let step = "have other processes see that this one sleeps (membarrier)";
        let armed = self.watcher.arm().map_err(|source| EventError::System { step, source })?;
        let waiting = !self.core.arbiter.is_empty();
        if !armed || (self.attention.get() && !waiting) {
            return Ok(Armed::Ready);
        }
        let latest =
            after(Instant::now(), if waiting || self.knocking.get() { ROOM } else { SLEEP });
        Ok(Armed::Until(self.watcher.wake_by().map_or(latest, |door| door.min(latest))))
    }

    fn examine(&self) {
        self.watcher.examine();
    }
}

/// Returns where sockets are placed, from the environment.
fn place() -> Place {
    match std::env::var_os("BAREWIRE_SHM_DIR") {
        None => Place::Private,
        Some(name) if name.is_empty() => Place::Private,
        Some(name) if name == "abstract" => Place::Abstract,
        Some(directory) => Place::Directory(directory.into()),
    }
}

impl Shared {
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
        self.core.check_opening()?;
        let state = Rc::new(State::new(Rc::clone(self)));
        self.core.endpoints.add(&state);
        Ok(state)
    }
}
