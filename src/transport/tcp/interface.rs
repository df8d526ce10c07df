//! The interface: what its endpoints share.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use barewire_tcp::listener::{Limits, Listener};
use barewire_tcp::outbox::Spare;

use super::ID;
use super::address::{self, End};
use super::agenda::{Agenda, Task};
use super::connection::Connection;
use super::domain::Domain;
use super::endpoint::Endpoint;
use super::event;
use super::poller::{Interest, Poller, Token};
use super::progress::Progress;
use super::reader::{Scratch, SpareLarge};
use super::state::State;
use crate::address::PeerAddress;
use crate::attributes::{Attributes, Place};
use crate::completion::Completion;
use crate::config::{InterfaceConfig, check};
use crate::counters::{Counters, Past};
use crate::error::{ConnectError, OpenError, PostError};
use crate::event::{Armed, EventError};
use crate::fork;
use crate::status::{Post, Posted};
use crate::transport::common::pending::Arbiter;
use crate::transport::common::random;
use crate::transport::sealed::Handled;
use crate::transport::{self, common::handlers::Handlers};

pub(super) struct Shared {
    pub(super) poller: Poller<State>,
    pub(super) agenda: Agenda,
    pub(super) handlers: Handlers,
    /// A handler was set since the last message.
    pub(super) has_new_handlers: Cell<bool>,
    pub(super) arbiter: Arbiter<Endpoint>,
    /// Rounds of progress so far.
    pub(super) round: Cell<u64>,
    pub(super) closed: Cell<bool>,
    pub(super) listener: RefCell<Listener>,
    /// Connections that this end closed in order.
    pub(super) draining: RefCell<Vec<Connection>>,
    pub(super) spare: Spare,
    pub(super) spare_large: SpareLarge,
    pub(super) domain: Domain,
    pub(super) config: InterfaceConfig,
    /// What the closed endpoints did.
    pub(super) past: Past,
    pub(super) address: SocketAddr,
    /// By slot.
    endpoints: RefCell<Vec<Option<Rc<State>>>>,
    /// The slots of closed endpoints.
    free: RefCell<Vec<u32>>,
    /// Endpoints ever opened: no two have the same number.
    opened: Cell<u32>,
    number: u64,
    attributes: Attributes,
}

/// A handle to an open interface; cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Interface(pub(super) Rc<Shared>);

impl Interface {
    /// Opens an interface: it listens on a free port of the domain's address.
    ///
    /// # Errors
    /// [`OpenError::Setting`] for a setting that is out of range, [`OpenError::Device`] if the
    /// kernel refuses.
    pub fn open(domain: &Domain, config: &InterfaceConfig) -> Result<(Self, Progress), OpenError> {
        check(ID, "send_ring", config.send_ring, 1, 65536)?;
        check(ID, "receive_ring", config.receive_ring, 1, 65536)?;
        check(ID, "spare_receive_buffers", config.spare_receive_buffers, 0, 65536)?;
        check(ID, "max_endpoints", config.max_endpoints, 1, 1 << 20)?;
        config.checked_bcopy_buffers(ID)?;
        let protected = domain.protect(config.integrity);
        let limits = Limits { peer_timeout: config.peer_timeout, protected, ..Limits::default() };
        let listener = Listener::open(domain.ip(), domain.key().clone(), limits)
            .map_err(|e| domain.refused("listen for peers", e))?;
        let watch = || -> io::Result<Poller<State>> {
            let poller = Poller::new()?;
            poller.add(&listener, Token::Listener, Interest::IN)?;
            Ok(poller)
        };
        let poller = watch().map_err(|e| domain.refused("watch for peers", e))?;
        let mut attributes = super::attributes(config);
        if domain.ip().is_loopback() {
            attributes.place = Place::Loopback;
        }
        let scratch = Scratch::new().map_err(|e| domain.refused("allocate a receive buffer", e))?;
        let shared = Rc::new(Shared {
            poller,
            agenda: Agenda::default(),
            handlers: Handlers::new(),
            has_new_handlers: Cell::new(false),
            arbiter: Arbiter::new(),
            round: Cell::new(1),
            closed: Cell::new(false),
            address: listener.address(),
            listener: RefCell::new(listener),
            draining: RefCell::default(),
            spare: Spare::default(),
            spare_large: SpareLarge::default(),
            domain: domain.clone(),
            config: config.clone(),
            past: Past::default(),
            endpoints: RefCell::default(),
            free: RefCell::default(),
            opened: Cell::new(0),
            number: random::number(),
            attributes,
        });
        fork::watch(&shared);
        Ok((Self(Rc::clone(&shared)), Progress::new(shared, scratch)))
    }

    /// Connections so far that did not prove the job's key.
    pub fn strangers(&self) -> u64 {
        self.0.listener.borrow().refused()
    }
}

impl Handled for Interface {
    fn handlers(&self) -> &Handlers {
        &self.0.handlers
    }

    fn call_attention(&self) {
        self.0.has_new_handlers.set(true);
    }
}

impl transport::Interface for Interface {
    // Readable while a socket is ready, or a post since `arm` left something to progress.
    fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(Some(self.0.poller.as_fd()))
    }

    fn arm(&self) -> Result<Armed, EventError> {
        event::arm(&self.0)
    }

    fn attributes(&self) -> &Attributes {
        &self.0.attributes
    }

    fn address(&self) -> PeerAddress {
        self.0.peer_address()
    }

    fn reaches(&self, peer: &PeerAddress) -> Result<(), ConnectError> {
        let (own, theirs) = (self.0.address.ip(), address::unpack_device(peer.device())?);
        let reason = if own.is_ipv4() != theirs.is_ipv4() {
            "the addresses are of different families, IPv4 and IPv6"
        } else if own.is_loopback() != theirs.ip().is_loopback() {
            "one of the addresses is of the loopback, which leads to no other host"
        } else {
            return Ok(());
        };
        let reason = format!("{reason}: this interface has {own}");
        Err(ConnectError::Unreachable { transport: ID, peer: theirs.to_string(), reason })
    }

    fn counters(&self) -> Counters {
        let endpoints = self.0.endpoints();
        endpoints.iter().fold(self.0.past.get(), |sum, state| sum + state.posting.tally.read())
    }

    fn flush(&self, completion: Option<&Completion>) -> Post {
        let shared = &*self.0;
        shared.check_open()?;
        let endpoints = shared.endpoints();
        for state in &endpoints {
            state.send_all();
        }
        let busy = || endpoints.iter().filter(|state| !state.is_idle());
        if busy().next().is_none() {
            return Ok(Posted::Done);
        }
        if !busy().all(|state| state.can_wait()) {
            return Err(PostError::NoResource);
        }
        if let Some(completion) = completion {
            busy().try_for_each(|state| state.wait_for_all(completion, false))?;
        }
        Ok(Posted::InProgress)
    }

    fn fence(&self) -> Result<(), PostError> {
        self.0.check_open()?;
        self.0.endpoints().iter().for_each(|state| state.fence());
        Ok(())
    }
}

impl fork::Inherited for Shared {
    fn close_in_child(&self) {
        self.closed.set(true);
        if let Ok(endpoints) = self.endpoints.try_borrow() {
            endpoints.iter().flatten().for_each(|state| state.posting.close_in_child());
        }
    }
}

impl Shared {
    pub(super) fn check_open(&self) -> Result<(), PostError> {
        if self.closed.get() { Err(PostError::Closed) } else { Ok(()) }
    }

    /// Has progress visit the endpoint in this slot.
    pub(super) fn visit_later(&self, task: Task, slot: u32) {
        self.agenda.push(task, slot);
        self.poller.wake();
    }

    pub(super) fn peer_address(&self) -> PeerAddress {
        PeerAddress::of_interface(address::device(self.address), address::interface(self.number))
    }

    // Endpoints.

    pub(super) fn endpoint(&self, slot: u32) -> Option<Rc<State>> {
        self.endpoints.borrow().get(slot as usize).cloned().flatten()
    }

    fn endpoints(&self) -> Vec<Rc<State>> {
        self.endpoints.borrow().iter().flatten().cloned().collect()
    }

    /// Takes all endpoints, of an interface that is closed.
    pub(super) fn take_endpoints(&self) -> Vec<Rc<State>> {
        self.endpoints.take().into_iter().flatten().collect()
    }

    /// A new endpoint, not connected.
    pub(super) fn open_endpoint(self: &Rc<Self>) -> Result<Rc<State>, OpenError> {
        if self.closed.get() {
            return Err(OpenError::Closed { transport: ID });
        }
        let mut endpoints = self.endpoints.borrow_mut();
        let slot = match self.free.borrow_mut().pop() {
            Some(slot) => slot,
            None if endpoints.len() < self.config.max_endpoints as usize => {
                endpoints.push(None);
                endpoints.len() as u32 - 1
            }
            None => {
                let limit = self.config.max_endpoints;
                return Err(OpenError::TooManyEndpoints { transport: ID, limit });
            }
        };
        let opened = self.opened.get().wrapping_add(1);
        self.opened.set(opened);
        let state = State::new(self, End::new(self.number, opened, slot));
        endpoints[slot as usize] = Some(Rc::clone(&state));
        Ok(state)
    }

    /// Frees the slot of a finished endpoint.
    pub(super) fn remove_endpoint(&self, slot: u32) {
        let state = self.endpoints.borrow_mut().get_mut(slot as usize).and_then(Option::take);
        if state.is_some() {
            self.free.borrow_mut().push(slot);
        }
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
