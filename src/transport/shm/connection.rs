//! A connection to a peer's port, shared by all endpoints of one interface to that port.

use std::cell::{Cell, UnsafeCell};
use std::io;
use std::rc::{Rc, Weak};

use barewire_shm::{LinkError, Peer, PortAddress};

use super::ID;
use super::interface::Shared;
use super::state::State;
use crate::base::error::{Cause, ConnectError, EndpointError, Operation, Source};
use crate::transport::common::post_state::PostBlock;
use crate::transport::handle::{EndpointList as _, InterfaceState as _, WeakEndpoints};

/// One socket, one SPSC ring and one mapping of each region, however many endpoints use them.
pub(super) struct Connection {
    peer: UnsafeCell<Peer>,
    address: PortAddress,
    /// Slot in [`Connections`], by which the driver reports the connection.
    name: Cell<u32>,
    /// The socket is connected and registered with the interface's epoll.
    watched: Cell<bool>,
    endpoints: WeakEndpoints<State>,
}

/// Connects to the socket of a port and checks the peer's user.
pub(super) fn connect(shared: &Shared, address: PortAddress) -> Result<Peer, ConnectError> {
    Peer::connect(address, &shared.config).map_err(|error| match error {
        error @ (LinkError::System { .. }
        | LinkError::Segment(_)
        | LinkError::Descriptors { .. }) => device_error(address, error.into()),
        error => ConnectError::Unreachable {
            transport: ID,
            peer: name_of(address),
            reason: error.to_string(),
        },
    })
}

fn device_error(address: PortAddress, source: Source) -> ConnectError {
    ConnectError::Device { transport: ID, peer: name_of(address), source }
}

fn name_of(address: PortAddress) -> String {
    format!("port {:016x}", address.number)
}

impl Connection {
    /// Starts to connect to the port, without waiting for it.
    pub(super) fn open(shared: &Shared, address: PortAddress) -> Result<Rc<Self>, ConnectError> {
        let peer = connect(shared, address)?;
        let connection = Rc::new(Self {
            peer: UnsafeCell::new(peer),
            address,
            name: Cell::default(),
            watched: Cell::new(false),
            endpoints: WeakEndpoints::default(),
        });
        shared.connections.borrow_mut().add(&connection);
        connection.watch(shared).map_err(|error| device_error(address, error.into()))?;
        shared.knocking.set(shared.knocking.get() || !connection.watched.get());
        Ok(connection)
    }

    /// Registers the socket with the epoll of the interface, once it is connected. Until then
    /// progress polls [`Connections::knocking`].
    fn watch(&self, shared: &Shared) -> io::Result<()> {
        if self.watched.get() || !self.with_peer(|peer| peer.is_connected()) {
            return Ok(());
        }
        self.with_peer(|peer| shared.watcher.watch(peer, self.name.get()))?;
        self.watched.set(true);
        Ok(())
    }

    /// Runs `run` with the driver's end.
    #[inline(always)]
    pub(super) fn with_peer<R>(&self, run: impl FnOnce(&mut Peer) -> R) -> R {
        // SAFETY: the connection stays on its thread. Every `run` is a closure of this transport's
        // modules that calls only the driver, which calls no code of this transport or of the user.
        // So no second reference exists while this one does.
        run(unsafe { &mut *self.peer.get() })
    }

    /// As [`Self::with_peer`], for places where a closure would not be inlined.
    ///
    /// # Safety
    /// The caller uses the result only to call the driver, and drops it before it calls anything
    /// else.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the contract of this function")]
    pub(super) unsafe fn peer(&self) -> &mut Peer {
        // SAFETY: the connection stays on its thread, and the caller uses the reference only to
        // call the driver, which does not call back (contract of this function). So no second
        // reference exists.
        unsafe { &mut *self.peer.get() }
    }

    fn is_knocking(&self) -> bool {
        self.with_peer(|peer| !peer.is_connected() && peer.error().is_none())
    }

    /// Returns whether the connection leads to this port and has not failed.
    fn serves(&self, address: PortAddress) -> bool {
        self.address == address && self.with_peer(|peer| peer.error().is_none())
    }

    /// Adds an endpoint, to notify when the port responds or the connection fails.
    pub(super) fn join(&self, state: &Rc<State>) {
        self.endpoints.add(state);
    }

    /// Processes what the peer sent over the socket, or tries again to connect it.
    pub(super) fn tend(&self, shared: &Shared) {
        let tended = self.with_peer(Peer::tend).is_ok();
        if !tended || self.watch(shared).is_err() {
            return self.fail(shared, None);
        }
        if !self.with_peer(|peer| peer.is_ready()) {
            return;
        }
        for state in self.endpoints.all() {
            if state.posting.has(PostBlock::Connecting) {
                state.posting.set(PostBlock::Connecting, false);
                shared.connected.set(shared.connected.get() + 1);
            }
        }
        if !shared.core.arbiter.is_empty() {
            shared.call_attention();
        }
    }

    /// Fails every endpoint of the lost connection. `noticed` is the operation that found the
    /// failure, and its endpoint. The error handler runs with the next progress.
    #[cold]
    pub(super) fn fail(&self, shared: &Shared, noticed: Option<(&State, Operation)>) {
        if self.watched.replace(false) {
            self.with_peer(|peer| shared.watcher.unwatch(peer));
        }
        let (peer, cause) = self.with_peer(|peer| {
            let name = peer_name(peer.process());
            let Some(error) = peer.error() else { return (name, Cause::Unknown) };
            (format!("{name} ({error})"), cause(error))
        });
        for state in self.endpoints.all() {
            let operation = match noticed {
                Some((first, operation)) if std::ptr::eq(first, Rc::as_ptr(&state)) => operation,
                _ => Operation::Unnamed,
            };
            let error = EndpointError {
                transport: ID,
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

/// The connections of an interface, by the slots with which the driver reports them.
#[derive(Default)]
pub(super) struct Connections(Vec<Weak<Connection>>);

impl Connections {
    /// Returns the working connection to this port, if there is one.
    pub(super) fn find(&self, address: PortAddress) -> Option<Rc<Connection>> {
        self.0.iter().filter_map(Weak::upgrade).find(|connection| connection.serves(address))
    }

    /// Returns the connections whose sockets are not connected yet.
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

/// The name of a peer in an error: 0 is no process id that this process could use.
pub(super) fn peer_name(process: i32) -> String {
    if process == 0 { "a peer".to_owned() } else { format!("process {process}") }
}

/// Converts an error of the driver.
pub(super) fn cause(error: &LinkError) -> Cause {
    match error {
        LinkError::NotListening | LinkError::Busy { .. } | LinkError::Ended => {
            Cause::PeerUnreachable
        }
        LinkError::User { .. } | LinkError::Secret | LinkError::Full | LinkError::Rejected => {
            Cause::RemoteRequest
        }
        LinkError::Corrupt(_) | LinkError::PeerDescriptors | LinkError::PeerMemory => {
            Cause::RemoteOperation
        }
        LinkError::Segment(_) | LinkError::System { .. } | LinkError::Descriptors { .. } => {
            Cause::LocalOperation
        }
        _ => Cause::Unknown,
    }
}
