//! The interface: what its endpoints share, and who comes in.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use barewire_tcp::connector::Connector;
use barewire_tcp::door::{Admitted, Door, Limits};
use barewire_tcp::handshake::{Claim, Purpose, Verdict};
use barewire_tcp::outbox::Spare;

use super::address::{self, End};
use super::connection::Connection;
use super::domain::Domain;
use super::endpoint::Endpoint;
use super::poller::{Interest, Poller, Token};
use super::progress::Progress;
use super::reader::{Scratch, SpareLarge};
use super::state::{Early, PendingFailure, State};
use super::{NAME, address as addresses};
use crate::address::{DeviceAddress, InterfaceAddress};
use crate::attributes::Attributes;
use crate::completion::Completion;
use crate::config::{InterfaceConfig, check};
use crate::counters::{Counters, Past};
use crate::error::{EndpointError, HandlerError, OpenError, Operation, PostError};
use crate::fork;
use crate::message::Message;
use crate::panics::Panics;
use crate::status::{Post, Posted};
use crate::transport::common::gate::Block;
use crate::transport::common::handlers::Handlers;
use crate::transport::common::pending::Arbiter;
use crate::transport::common::random;

pub(super) struct Shared {
    pub(super) poller: Poller<State>,
    pub(super) spare: Spare,
    pub(super) spare_large: SpareLarge,
    pub(super) handlers: Handlers,
    /// Rounds of progress so far.
    pub(super) round: Cell<u64>,
    /// By index; the places of closed ones are used again.
    pub(super) endpoints: RefCell<Vec<Option<Rc<State>>>>,
    free: RefCell<Vec<u32>>,
    /// Endpoints ever opened: no two have the same number.
    opened: Cell<u32>,
    // Endpoints, by index, that progress has to look at.
    /// Something waits to be sent.
    pub(super) dirty: RefCell<Vec<u32>>,
    /// A connection is in the making.
    pub(super) connecting: RefCell<Vec<u32>>,
    /// The peer will connect.
    pub(super) expecting: RefCell<Vec<u32>>,
    /// Failed or cancelled, and nobody was told yet.
    pub(super) failed: RefCell<Vec<u32>>,
    /// Messages wait for buffers that have come back.
    pub(super) resuming: RefCell<Vec<u32>>,
    /// Without handles.
    pub(super) closing: RefCell<Vec<u32>>,
    /// Connections that this end closed in order.
    pub(super) draining: RefCell<Vec<Connection>>,
    pub(super) arbiter: Arbiter<Endpoint>,
    /// A handler was set.
    pub(super) renewed: Cell<bool>,
    pub(super) closed: Cell<bool>,
    pub(super) door: RefCell<Door>,
    pub(super) address: SocketAddr,
    number: u64,
    pub(super) domain: Domain,
    pub(super) config: InterfaceConfig,
    attributes: Attributes,
    /// What the endpoints did that are gone.
    pub(super) past: Past,
}

/// A handle to an open interface; cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Interface(pub(super) Rc<Shared>);

impl Interface {
    /// Opens an interface: it listens on a free port of the domain's address.
    ///
    /// # Errors
    /// [`OpenError::Setting`] for a setting that cannot be, [`OpenError::Device`] if the system refuses.
    pub fn open(domain: &Domain, config: &InterfaceConfig) -> Result<(Self, Progress), OpenError> {
        check(NAME, "send_ring", config.send_ring, 1, 65536)?;
        check(NAME, "receive_ring", config.receive_ring, 1, 65536)?;
        check(NAME, "spare_receive_buffers", config.spare_receive_buffers, 0, 65536)?;
        check(NAME, "max_endpoints", config.max_endpoints, 1, 1 << 20)?;
        config.checked_bcopy_buffers(NAME)?;
        let protected = domain.protect(config.integrity);
        let limits = Limits { silence: config.peer_timeout, protected, ..Limits::default() };
        let door = Door::open(domain.ip(), domain.key().clone(), limits)
            .map_err(|e| domain.refused("listen for peers", e))?;
        let watch = || -> io::Result<Poller<State>> {
            let poller = Poller::new()?;
            poller.add(&door, Token::Door, Interest::IN)?;
            Ok(poller)
        };
        let poller = watch().map_err(|e| domain.refused("watch for peers", e))?;
        let scratch = Scratch::new().map_err(|e| domain.refused("allocate a receive buffer", e))?;
        let shared = Rc::new(Shared {
            poller,
            spare: Spare::default(),
            spare_large: SpareLarge::default(),
            handlers: Handlers::new(),
            round: Cell::new(1),
            endpoints: RefCell::default(),
            free: RefCell::default(),
            opened: Cell::new(0),
            dirty: RefCell::default(),
            connecting: RefCell::default(),
            expecting: RefCell::default(),
            failed: RefCell::default(),
            resuming: RefCell::default(),
            closing: RefCell::default(),
            draining: RefCell::default(),
            arbiter: Arbiter::new(),
            renewed: Cell::new(false),
            closed: Cell::new(false),
            address: door.address(),
            door: RefCell::new(door),
            number: random::number(),
            domain: domain.clone(),
            config: config.clone(),
            attributes: super::attributes(config),
            past: Past::default(),
        });
        fork::watch(&shared);
        Ok((Self(Rc::clone(&shared)), Progress::new(shared, scratch)))
    }

    /// What the interface can do.
    pub fn attributes(&self) -> &Attributes {
        &self.0.attributes
    }

    /// The address and port that the interface listens on.
    pub fn device_address(&self) -> DeviceAddress {
        addresses::device(self.0.address)
    }

    /// The interface's number. Endpoints connect to endpoints.
    pub fn address(&self) -> InterfaceAddress {
        address::interface(self.0.number)
    }

    /// Connections from strangers so far: they did not prove that they know the job's key.
    pub fn strangers(&self) -> u64 {
        self.0.door.borrow().refused()
    }

    /// Sets the handler of active messages `id`, replacing an older one with the next progress. It runs inside progress and may post.
    ///
    /// # Errors
    /// [`HandlerError::UnknownHandlerId`] if `id` is 32 or more, [`HandlerError::Closed`].
    pub fn set_handler(
        &self,
        id: u8,
        handler: impl FnMut(Message<'_>) + 'static,
    ) -> Result<(), HandlerError> {
        self.0.handlers.set(id, Box::new(handler))?;
        self.0.renewed.set(true);
        Ok(())
    }

    /// Sets the handler that is called once for each endpoint that fails.
    pub fn set_error_handler(&self, handler: impl FnMut(&EndpointError) + 'static) {
        self.0.handlers.set_error(Box::new(handler));
    }

    /// Messages that came for an id without handler, and were dropped.
    pub fn unhandled(&self) -> u64 {
        self.0.handlers.unhandled()
    }

    /// What all endpoints of the interface did so far, also those that are gone.
    pub fn counters(&self) -> Counters {
        self.0
            .endpoints
            .borrow()
            .iter()
            .flatten()
            .fold(self.0.past.get(), |sum, state| sum + state.gate.tally.read())
    }

    /// Waits for what every endpoint has outstanding. The completion is counted down once, when all is finished.
    ///
    /// # Errors
    /// [`PostError::NoResource`], [`PostError::Closed`]
    pub fn flush(&self, completion: Option<&Completion>) -> Post {
        let shared = &*self.0;
        shared.check_open()?;
        let endpoints: Vec<Rc<State>> = shared.endpoints.borrow().iter().flatten().cloned().collect();
        for state in &endpoints {
            state.send_all();
        }
        let busy = || endpoints.iter().filter(|state| !state.is_idle());
        let count = busy().count();
        if count == 0 {
            return Ok(Posted::Done);
        }
        if !busy().all(|state| state.can_wait()) {
            return Err(PostError::NoResource);
        }
        let Some(completion) = completion.cloned() else { return Ok(Posted::InProgress) };
        let all = Completion::new(count as u32, move |result| completion.count_down(result));
        busy().try_for_each(|state| state.wait_for_all(&all, false))?;
        Ok(Posted::InProgress)
    }

    /// On every endpoint, what is posted next takes effect after what is outstanding.
    ///
    /// # Errors
    /// [`PostError::Closed`]
    pub fn fence(&self) -> Result<(), PostError> {
        self.0.check_open()?;
        self.0.endpoints.borrow().iter().flatten().for_each(|state| state.fence());
        Ok(())
    }
}

impl fork::Inherited for Shared {
    fn close_in_child(&self) {
        self.closed.set(true);
        if let Ok(endpoints) = self.endpoints.try_borrow() {
            endpoints.iter().flatten().for_each(|state| state.gate.close_in_child());
        }
    }
}

impl Shared {
    pub(super) fn check_open(&self) -> Result<(), PostError> {
        if self.closed.get() { Err(PostError::Closed) } else { Ok(()) }
    }

    pub(super) fn endpoint(&self, index: u32) -> Option<Rc<State>> {
        self.endpoints.borrow().get(index as usize).cloned().flatten()
    }

    /// Messages of the endpoint at `index` may go on.
    pub(super) fn resume_later(&self, index: u32) {
        self.resuming.borrow_mut().push(index);
        self.poller.wake();
    }

    /// Begins to connect.
    pub(super) fn connector(&self, peer: SocketAddr, claim: Claim) -> io::Result<Connector> {
        let protected = self.domain.wants_protection(self.config.integrity);
        let limits = Limits { silence: self.config.peer_timeout, protected, ..Limits::default() };
        let source: IpAddr = self.domain.ip();
        if source.is_ipv4() != peer.is_ipv4() {
            return Err(io::ErrorKind::NetworkUnreachable.into());
        }
        Connector::start(peer, Some(source), self.domain.key(), claim, self.config.connect_timeout, limits)
    }

    /// A new endpoint, not connected.
    pub(super) fn open_endpoint(self: &Rc<Self>) -> Result<Rc<State>, OpenError> {
        if self.closed.get() {
            return Err(OpenError::Closed { transport: NAME });
        }
        let mut endpoints = self.endpoints.borrow_mut();
        let index = match self.free.borrow_mut().pop() {
            Some(index) => index,
            None if endpoints.len() < self.config.max_endpoints as usize => {
                endpoints.push(None);
                endpoints.len() as u32 - 1
            }
            None => {
                let limit = self.config.max_endpoints;
                return Err(OpenError::TooManyEndpoints { transport: NAME, limit });
            }
        };
        let opened = self.opened.get().wrapping_add(1);
        self.opened.set(opened);
        let own = End { interface: self.number, endpoint: u64::from(opened) << 32 | u64::from(index) };
        let state = State::new(self, index, own);
        if let Some(place) = endpoints.get_mut(index as usize) {
            *place = Some(Rc::clone(&state));
        }
        Ok(state)
    }

    /// The last handle of `state` is gone: its connections end now, what was outstanding is finished by progress.
    pub(super) fn close_endpoint(&self, state: &State) {
        if self.closed.get() {
            return;
        }
        state.shut_down(Block::Failed);
        self.closing.borrow_mut().push(state.index);
        self.poller.wake();
    }

    /// Finishes and forgets endpoints without handles.
    pub(super) fn reap_closed(&self) -> usize {
        let mut panics = Panics::default();
        let closing = self.closing.take();
        for &index in &closing {
            let state = self.endpoints.borrow_mut().get_mut(index as usize).and_then(Option::take);
            if let Some(state) = state {
                panics.catch(|| state.finish_closed());
                self.free.borrow_mut().push(index);
            }
        }
        closing.len()
    }

    /// Somebody of this job wants an endpoint.
    pub(super) fn admit(&self, newcomer: Admitted) {
        let claim = newcomer.claim;
        let from = End { interface: claim.from_service, endpoint: claim.from_endpoint };
        let wanted = End { interface: claim.service, endpoint: claim.endpoint };
        let state = self.endpoint(claim.endpoint as u32).filter(|state| state.own == wanted);
        let Some(state) = state.filter(|state| claim.purpose == Purpose::Messages && state.gate.is_alive())
        else {
            return newcomer.refuse(Verdict::Unknown);
        };
        match state.peer.get() {
            // Nobody knows yet whom to expect; the newest is kept, since an end that got no answer tries again.
            None => {
                if let Ok(socket) = newcomer.welcome() {
                    state.early.replace(Some(Early { from, socket }));
                }
            }
            Some(peer) if peer.end == from => state.accept(newcomer),
            Some(_) => newcomer.refuse(Verdict::Taken),
        }
    }
}

impl State {
    /// The peer connects.
    fn accept(&self, newcomer: Admitted) {
        // A `pack` function makes progress. Without a verdict the peer tries again.
        let Ok(mut connection) = self.messages.try_borrow_mut() else { return };
        // A second time: it heard nothing of the first, and nothing was said there.
        let is_silent = connection.outbox().sent() == 0 && !self.reader.borrow().has_read();
        if !(connection.is_expected() || connection.is_open() && is_silent) {
            drop(connection);
            return newcomer.refuse(Verdict::Taken);
        }
        let Ok(socket) = newcomer.welcome() else { return };
        let (poller, spare, round) = (&self.shared.poller, &self.shared.spare, self.shared.round.get());
        let opened = connection.open(poller, socket).map_err(Into::into);
        let sent = opened.and_then(|()| connection.send(poller, spare, round));
        if let Err(error) = sent {
            self.fail(PendingFailure::of_sending(Operation::Connect, &error));
        }
        self.progress_later();
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
