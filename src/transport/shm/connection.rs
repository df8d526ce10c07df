//! A connection to a peer's port, which all endpoints of one interface to that port share.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::io;
use std::rc::{Rc, Weak};

use barewire_shm::{LinkError, Peer, PortAddress};

use super::NAME;
use super::interface::Shared;
use super::state::State;
use crate::error::{Cause, ConnectError, EndpointError, Operation};
use crate::transport::common::gate::Block;

/// One socket, one lane and one mapping of each region, however many endpoints use them.
pub(super) struct Connection {
    peer: UnsafeCell<Peer>,
    address: PortAddress,
    /// Its place among the [`Connections`], under which the driver reports it.
    name: Cell<u32>,
    /// The socket is connected and in the epoll of the interface.
    watched: Cell<bool>,
    endpoints: RefCell<Vec<Weak<State>>>,
}

impl Connection {
    /// Connects to the port, without waiting for it.
    pub(super) fn open(shared: &Shared, address: PortAddress) -> Result<Rc<Self>, ConnectError> {
        let name = || format!("port {:016x}", address.number);
        let device = |source| ConnectError::Device { transport: NAME, peer: name(), source };
        let peer = Peer::connect(address, &shared.config).map_err(|error| match error {
            error @ (LinkError::System { .. } | LinkError::Segment(_) | LinkError::Descriptors { .. }) => {
                device(error.into())
            }
            error => ConnectError::Unreachable { transport: NAME, peer: name(), reason: error.to_string() },
        })?;
        let connection = Rc::new(Self {
            peer: UnsafeCell::new(peer),
            address,
            name: Cell::default(),
            watched: Cell::new(false),
            endpoints: RefCell::default(),
        });
        shared.connections.borrow_mut().add(&connection);
        connection.watch(shared).map_err(|error| device(error.into()))?;
        shared.knocking.set(shared.knocking.get() || !connection.watched.get());
        Ok(connection)
    }

    /// Has progress told when the peer says something, once the socket is connected. Until then progress
    /// asks [`Connections::knocking`].
    fn watch(&self, shared: &Shared) -> io::Result<()> {
        if self.watched.get() || !self.with_peer(|peer| peer.is_connected()) {
            return Ok(());
        }
        self.with_peer(|peer| shared.watcher.watch(peer, self.name.get()))?;
        self.watched.set(true);
        Ok(())
    }

    /// Runs `run` on the driver's end.
    #[inline(always)]
    pub(super) fn with_peer<R>(&self, run: impl FnOnce(&mut Peer) -> R) -> R {
        // SAFETY: the connection stays on its thread, and every `run` (all are closures of this
        // transport's modules) calls the driver only, which calls nothing of ours or of the user's.
        // So no second reference exists while this one does.
        run(unsafe { &mut *self.peer.get() })
    }

    /// As [`Self::with_peer`], for where a closure would not be inlined.
    ///
    /// # Safety
    /// The result is used for calls of the driver alone, and dropped.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the contract of this function")]
    pub(super) unsafe fn peer(&self) -> &mut Peer {
        // SAFETY: as in `with_peer`.
        unsafe { &mut *self.peer.get() }
    }

    fn is_knocking(&self) -> bool {
        self.with_peer(|peer| !peer.is_connected() && peer.error().is_none())
    }

    /// Leads to this port, and has not failed.
    fn serves(&self, address: PortAddress) -> bool {
        self.address == address && self.with_peer(|peer| peer.error().is_none())
    }

    /// Adds an endpoint that is to be told when the port answers, and if the connection fails.
    pub(super) fn join(&self, state: &Rc<State>) {
        let mut endpoints = self.endpoints.borrow_mut();
        if endpoints.len() == endpoints.capacity() {
            endpoints.retain(|endpoint| endpoint.strong_count() > 0);
        }
        endpoints.push(Rc::downgrade(state));
    }

    fn states(&self) -> Vec<Rc<State>> {
        self.endpoints.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// Takes in what the peer's process said over the socket, or tries again to connect it.
    pub(super) fn tend(&self, shared: &Shared) {
        let tended = self.with_peer(Peer::tend).is_ok();
        if !tended || self.watch(shared).is_err() {
            return self.fail(shared, None);
        }
        if !self.with_peer(|peer| peer.is_ready()) {
            return;
        }
        for state in self.states() {
            if state.gate.has(Block::Connecting) {
                state.gate.set(Block::Connecting, false);
                shared.connected.set(shared.connected.get() + 1);
            }
        }
        if !shared.arbiter.is_empty() {
            shared.call_attention();
        }
    }

    /// Fails every endpoint of the connection, which is lost. `noticed` is the operation that found
    /// out, and its endpoint. The error handler runs with the next progress.
    #[cold]
    pub(super) fn fail(&self, shared: &Shared, noticed: Option<(&State, Operation)>) {
        if self.watched.replace(false) {
            self.with_peer(|peer| shared.watcher.unwatch(peer));
        }
        let (peer, cause) = self.with_peer(|peer| {
            let name = format!("process {}", peer.process());
            let Some(error) = peer.error() else { return (name, Cause::Unknown) };
            (format!("{name} ({error})"), cause(error))
        });
        for state in self.states() {
            let operation = match noticed {
                Some((first, operation)) if std::ptr::eq(first, Rc::as_ptr(&state)) => operation,
                _ => Operation::Unnamed,
            };
            let error = EndpointError {
                transport: NAME,
                peer: peer.clone(),
                operation,
                cause,
                syndrome: None,
                detail: None,
            };
            if state.fail(error) {
                shared.unreported.borrow_mut().push_back(Rc::downgrade(&state));
                shared.call_attention();
            }
        }
    }
}

/// The connections of an interface, by the names under which the driver reports them.
#[derive(Default)]
pub(super) struct Connections(Vec<Weak<Connection>>);

impl Connections {
    /// The one that leads to this port, if there is one that works.
    pub(super) fn find(&self, address: PortAddress) -> Option<Rc<Connection>> {
        self.0.iter().filter_map(Weak::upgrade).find(|connection| connection.serves(address))
    }

    /// Those whose sockets are not connected yet.
    pub(super) fn knocking(&self) -> Vec<Rc<Connection>> {
        let all = self.0.iter().filter_map(Weak::upgrade);
        all.filter(|connection| connection.is_knocking()).collect()
    }

    pub(super) fn get(&self, name: u32) -> Option<Rc<Connection>> {
        self.0.get(name as usize)?.upgrade()
    }

    fn add(&mut self, connection: &Rc<Connection>) {
        let free = self.0.iter().position(|place| place.strong_count() == 0);
        let at = free.unwrap_or(self.0.len());
        if free.is_none() {
            self.0.push(Weak::new());
        }
        self.0[at] = Rc::downgrade(connection);
        connection.name.set(at as u32);
    }
}

/// An error of the driver in the API's terms.
pub(super) fn cause(error: &LinkError) -> Cause {
    match error {
        LinkError::NotListening | LinkError::Busy { .. } | LinkError::Ended => Cause::PeerUnreachable,
        LinkError::User { .. } | LinkError::Secret | LinkError::Full | LinkError::Rejected => {
            Cause::RemoteRequest
        }
        LinkError::Corrupt(_) | LinkError::PeerDescriptors | LinkError::PeerMemory => Cause::RemoteOperation,
        LinkError::Segment(_) | LinkError::System { .. } | LinkError::Descriptors { .. } => {
            Cause::LocalOperation
        }
        _ => Cause::Unknown,
    }
}
