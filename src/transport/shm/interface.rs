//! The interface: what its endpoints share.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use barewire_shm::{Place, Port, PortAddress, PortConfig, PortError, Watcher};

use super::address;
use super::connection::Connections;
use super::domain::Domain;
use super::endpoint::Endpoint;
use super::progress::Progress;
use super::state::State;
use super::{NAME, SEGMENT};
use crate::address::{DeviceAddress, InterfaceAddress};
use crate::attributes::Attributes;
use crate::completion::Completion;
use crate::config::InterfaceConfig;
use crate::counters::{Counters, Past};
use crate::error::{OpenError, PostError};
use crate::event::EventError;
use crate::fork;
use crate::status::{Post, Posted};
use crate::transport::common::allocation::Allocation;
use crate::transport::common::handlers::Handlers;
use crate::transport::common::pending::Arbiter;
use crate::transport::common::pool::Pool;
use crate::transport::common::random;

/// Buffers between two processes: as many as the settings say, up to this. Those used last are used again first.
const MOST_BUFFERS: u32 = 32;

/// How long a sleeper with requests that wait for room may sleep.
const ROOM: Duration = Duration::from_micros(100);
/// As long as one sleeps at most. A peer that breaks the rules can take the bell that another peer's message would ring.
const SLEEP: Duration = Duration::from_secs(1);

pub(super) struct Shared {
    /// Progress has something to do besides messages.
    pub(super) attention: Cell<bool>,
    /// Connections that were made since progress last told.
    pub(super) connected: Cell<usize>,
    pub(super) watcher: Watcher,
    pub(super) handlers: Handlers,
    pub(super) arbiter: Arbiter<Endpoint>,
    endpoints: RefCell<Vec<Weak<State>>>,
    /// Some connections wait for a place in the queue of their port's socket.
    pub(super) knocking: Cell<bool>,
    pub(super) connections: RefCell<Connections>,
    /// Endpoints that failed since the error handler last ran.
    pub(super) unreported: RefCell<VecDeque<Weak<State>>>,
    /// Where buffered puts and gets are packed and unpacked.
    pub(super) buffers: Pool<Allocation, SEGMENT>,
    pub(super) closed: Cell<bool>,
    pub(super) address: PortAddress,
    pub(super) config: PortConfig,
    /// The domain's tag: whose slices these endpoints take.
    pub(super) tag: u32,
    attributes: Attributes,
    /// What the endpoints did that are gone.
    pub(super) past: Past,
}

/// A handle to an open interface; cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Interface(pub(super) Rc<Shared>);

crate::transport::common::handle::interface_handlers!();

impl Interface {
    /// Opens an interface. Its socket is in a directory of this user: the one that `BAREWIRE_SHM_DIR` names,
    /// `barewire` in `$XDG_RUNTIME_DIR`, or `/tmp/barewire-UID`. Where none of the last two can be had, or
    /// `BAREWIRE_SHM_DIR` is `abstract`, it has an abstract name.
    ///
    /// # Errors
    /// [`OpenError::Setting`] for a setting that cannot be, [`OpenError::Device`] if the system refuses.
    pub fn open(domain: &Domain, config: &InterfaceConfig) -> Result<(Self, Progress), OpenError> {
        let count = config.checked_bcopy_buffers(NAME)?;
        let failed =
            |step| move |source| OpenError::Device { device: super::DEVICE.to_owned(), step, source };
        let buffers = Allocation::new(count.min(4) * SEGMENT)
            .map_err(|error| failed("allocate buffers")(error.into()))?;
        let config = PortConfig {
            buffers: config.bcopy_buffers.min(MOST_BUFFERS) as usize,
            place: place(),
            huge_pages: domain.accepts_huge_pages(),
            ..PortConfig::default()
        };
        let secret = random::secret().map_err(|error| failed("get a random secret")(error.into()))?;
        let address = PortAddress { number: random::number(), secret: u128::from_ne_bytes(secret) };
        let port = Port::open(address, &config, domain.regions())
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
            config,
            tag: domain.tag(),
            attributes: super::attributes(),
            past: Past::default(),
        });
        fork::watch(&shared);
        Ok((Self(Rc::clone(&shared)), Progress::new(shared, port)))
    }

    /// What the interface can do.
    pub fn attributes(&self) -> &Attributes {
        &self.0.attributes
    }

    /// The machine.
    pub fn device_address(&self) -> DeviceAddress {
        address::device()
    }

    /// The interface's port.
    pub fn address(&self) -> InterfaceAddress {
        address::interface(self.0.address)
    }

    /// What all endpoints of the interface did so far, also those that are gone.
    pub fn counters(&self) -> Counters {
        self.0.states().iter().fold(self.0.past.get(), |sum, state| sum + state.counters())
    }

    /// Waits for every operation of every endpoint; here they are finished when posted.
    ///
    /// # Errors
    /// [`PostError::Closed`]
    pub fn flush(&self, _completion: Option<&Completion>) -> Post {
        self.fence()?;
        Ok(Posted::Done)
    }

    /// Orders the operations of every endpoint.
    ///
    /// # Errors
    /// [`PostError::Closed`]
    pub fn fence(&self) -> Result<(), PostError> {
        if self.0.closed.get() {
            return Err(PostError::Closed);
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }

    /// A descriptor to sleep on (poll(2), epoll(7)) after [`Self::arm`]: readable when there is something to be done.
    ///
    /// # Errors
    /// None.
    pub fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(Some(self.0.watcher.as_fd()))
    }

    /// Has what comes next make [`Self::event_fd`] readable. Answers when progress is wanted at the latest: nobody tells when a peer makes room
    /// for requests that wait, and a peer that writes where it may not can silence what others ring, for a second at most. Costs senders nothing until it is called, and one of them a system call then.
    ///
    /// # Errors
    /// [`EventError::Busy`] the first time, as progress is to look whether something is there, and while it finds something;
    /// [`EventError::System`] where the kernel has no membarrier(2), or a filter forbids it.
    pub fn arm(&self) -> Result<Option<Instant>, EventError> {
        if self.0.closed.get() {
            return Err(EventError::Closed { transport: NAME });
        }
        let shared = &*self.0;
        let step = "have other processes see that this one sleeps (membarrier)";
        let armed = shared.watcher.arm().map_err(|source| EventError::System { step, source })?;
        let waiting = !shared.arbiter.is_empty();
        if !armed || (shared.attention.get() && !waiting) {
            return Err(EventError::Busy);
        }
        let latest = Instant::now() + if waiting || shared.knocking.get() { ROOM } else { SLEEP };
        Ok(Some(shared.watcher.wake_by().map_or(latest, |door| door.min(latest))))
    }
}

/// Where sockets are, as the environment has it.
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
        // Progress finds it closed there.
        self.call_attention();
        if let Ok(endpoints) = self.endpoints.try_borrow() {
            endpoints.iter().filter_map(Weak::upgrade).for_each(|state| state.gate.close_in_child());
        }
    }
}

impl Shared {
    /// Asks progress to look at more than messages.
    pub(super) fn call_attention(&self) {
        self.attention.set(true);
        self.watcher.call_attention();
    }

    /// Tries again to connect those sockets that found no room.
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
            return Err(OpenError::Closed { transport: NAME });
        }
        let state = Rc::new(State::new(Rc::clone(self)));
        let mut endpoints = self.endpoints.borrow_mut();
        if endpoints.len() == endpoints.capacity() {
            endpoints.retain(|endpoint| endpoint.strong_count() > 0);
        }
        endpoints.push(Rc::downgrade(&state));
        Ok(state)
    }

    /// Every endpoint that is open.
    pub(super) fn states(&self) -> Vec<Rc<State>> {
        self.endpoints.borrow().iter().filter_map(Weak::upgrade).collect()
    }
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interface")
            .field("transport", &NAME)
            .field("address", &self.0.address)
            .finish_non_exhaustive()
    }
}
