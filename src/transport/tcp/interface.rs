//! The interface: what its endpoints share.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use barewire_tcp::HostAddress;
use barewire_tcp::interfaces::Routes;
use barewire_tcp::leftover::Courier;
use barewire_tcp::listener::Limits;
use barewire_tcp::outbox::Spare;

use super::accept::Accepting;
use super::address::{self, End};
use super::agenda::{Agenda, Task};
use super::connection::Connection;
use super::domain::Domain;
use super::event;
use super::poller::{LISTEN, Poller, Token};
use super::progress::Progress;
use super::reader::{Scratch, SpareLarge};
use super::state::State;
use super::{EAGER, Endpoint, ID, Interface, Tcp};
use crate::base::address::{DeviceAddress, PeerAddress};
use crate::base::attributes::Place;
use crate::base::config::{InterfaceConfig, check};
use crate::base::error::{ConnectError, OpenError};
use crate::base::event::{Armed, EventError};
use crate::base::network::network;
use crate::base::random;
use crate::transport::handle::{InterfaceCore, InterfaceState, Slots};

pub(crate) struct Shared {
    pub(super) core: InterfaceCore<Tcp>,
    pub(super) poller: Poller<State>,
    pub(super) agenda: Agenda,
    /// Handlers were set since the last message, or a handler holds the sender of its message.
    pub(super) has_news: Cell<bool>,
    /// The handler that runs holds the sender of its message.
    pub(super) holds: Cell<bool>,
    /// The endpoints from which nothing is received.
    pub(super) held: RefCell<Vec<u32>>,
    /// Rounds of progress so far.
    pub(super) round: Cell<u64>,
    pub(super) accepting: RefCell<Accepting>,
    /// By which connections have a thread send for them, if the interface is unattended.
    pub(super) courier: Option<Courier>,
    /// Copied bytes that are sent without waiting for more.
    pub(super) eager: usize,
    /// Connections that this end closed in order.
    pub(super) draining: RefCell<Vec<Connection>>,
    pub(super) spare: Spare,
    pub(super) spare_large: SpareLarge,
    pub(super) domain: Domain,
    pub(super) config: InterfaceConfig,
    pub(super) address: SocketAddr,
    /// Endpoints ever opened: no two have the same number.
    opened: Cell<u32>,
    number: u64,
}

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
        config.checked_keepalive(ID)?;
        let protected = domain.protect(config.integrity);
        let limits = Limits { peer_timeout: config.peer_timeout, protected, ..Limits::default() };
        let number = random::number();
        let accepting = if config.unattended {
            Accepting::by_thread(domain, number)
                .map(|(accepting, address, courier)| (accepting, address, Some(courier)))
        } else {
            Accepting::by_progress(domain, limits)
                .map(|(accepting, address)| (accepting, address, None))
        };
        let (accepting, address, courier) =
            accepting.map_err(|e| domain.refused("listen for peers", e))?;
        let watch = || -> io::Result<Poller<State>> {
            let poller = Poller::new()?;
            poller.add(&accepting, Token::Listener, LISTEN)?;
            Ok(poller)
        };
        domain.note(address);
        let poller = watch().map_err(|e| domain.refused("watch for peers", e))?;
        let mut attributes = super::attributes(config);
        if domain.address().is_loopback() {
            attributes.place = Place::Loopback;
        }
        let scratch = Scratch::new().map_err(|e| domain.refused("allocate a receive buffer", e))?;
        let shared = Rc::new(Shared {
            core: InterfaceCore::new(attributes, Slots::default()),
            poller,
            agenda: Agenda::default(),
            has_news: Cell::new(false),
            holds: Cell::new(false),
            held: RefCell::default(),
            round: Cell::new(1),
            address,
            accepting: RefCell::new(accepting),
            courier,
            eager: if config.unattended { 0 } else { EAGER },
            draining: RefCell::default(),
            spare: Spare::default(),
            spare_large: SpareLarge::default(),
            domain: domain.clone(),
            config: config.clone(),
            opened: Cell::new(0),
            number,
        });
        Ok((Self::open_with(&shared), Progress::new(shared, scratch)))
    }

    /// Opens an endpoint to an interface. Both are [unattended](InterfaceConfig::unattended).
    ///
    /// # Errors
    /// As [`Endpoint::connect`], and [`OpenError`]; [`ConnectError::Unsupported`] if this interface is
    /// not unattended.
    pub fn connect(&self, peer: &PeerAddress) -> Result<Endpoint, ConnectError> {
        if !self.0.config.unattended {
            let instead =
                "endpoint to endpoint: use Endpoint::new and Endpoint::connect, or set unattended";
            return Err(ConnectError::Unsupported { transport: ID, instead });
        }
        let endpoint = Endpoint::new(self)?;
        let address = self.0.way_to(peer.device(), &Routes::default())?;
        let number = address::unpack_interface(peer.interface())?;
        endpoint.0.connect_to_interface(address, number)?;
        Ok(endpoint)
    }

    /// Connections so far that did not prove the job's key.
    pub fn strangers(&self) -> u64 {
        self.0.accepting.borrow().refused()
    }
}

impl InterfaceState for Shared {
    type Transport = Tcp;

    fn core(&self) -> &InterfaceCore<Tcp> {
        &self.core
    }

    fn call_attention(&self) {
        self.has_news.set(true);
    }

    fn hold_sender(&self) -> bool {
        self.holds.set(true);
        self.has_news.set(true);
        true
    }

    fn release_senders(&self) {
        for state in self.held.take().into_iter().filter_map(|slot| self.endpoint(slot)) {
            state.release();
        }
    }

    // Readable while a socket is ready, or a post since `arm` left something to progress.
    fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(Some(self.poller.as_fd()))
    }

    fn examine(&self) {
        self.poller.examine();
    }

    fn arm(&self) -> Result<Armed, EventError> {
        event::arm(self)
    }

    fn address(&self) -> PeerAddress {
        PeerAddress::of_interface(address::device(self.address), address::interface(self.number))
    }

    fn reaches(self: &Rc<Self>, peer: &PeerAddress) -> Result<(), ConnectError> {
        self.way_to(peer.device(), &Routes::default()).map(drop)
    }

    fn reaches_by(
        self: &Rc<Self>,
        peer: &PeerAddress,
        routes: &Routes,
    ) -> Result<bool, ConnectError> {
        let address = HostAddress::from(self.way_to(peer.device(), routes)?);
        let is_here = peer.device().network() == Some(network());
        // On which link a link-local address is, connecting shows.
        let leads_there = || {
            !address.is_link_local()
                && routes.lead_to(self.domain.address(), address).unwrap_or(false)
        };
        Ok(is_here || leads_there())
    }
}

impl Shared {
    /// Returns the socket address of a peer's device, if it can lead to the peer: whether the peer
    /// is there, connecting shows.
    pub(super) fn way_to(
        &self,
        device: &DeviceAddress,
        routes: &Routes,
    ) -> Result<SocketAddr, ConnectError> {
        let own = self.domain.address();
        // The peer's scope says nothing to this host.
        let theirs = own.toward(address::unpack_device(device)?);
        self.domain.check_key(theirs)?;
        let (peer, is_elsewhere) = (HostAddress::from(theirs), device.network() != Some(network()));
        let reason = if own.ip().is_ipv4() != theirs.is_ipv4() {
            "the addresses are of different families, IPv4 and IPv6".to_owned()
        } else if own.is_link_local() != peer.is_link_local() {
            "one of the addresses is link-local, and the other is not".to_owned()
        } else if own.is_loopback() != peer.is_loopback() {
            "one of the addresses is of the loopback, which leads to no other host".to_owned()
        } else if own.is_loopback() && is_elsewhere {
            "the addresses are of the loopbacks of different hosts or containers".to_owned()
        } else {
            match routes.source_of(peer) {
                Ok(source) if source == peer && is_elsewhere => {
                    "the peer is on another host or in another container, and this one has the \
                     address, too"
                        .to_owned()
                }
                Ok(source) if source != peer && peer.is_link_local() && !is_elsewhere => {
                    "another interface of this host has the address".to_owned()
                }
                Ok(_) => return Ok(theirs),
                Err(error) if super::connect::is_no_route(&error) => {
                    format!("there is no route to it ({error})")
                }
                Err(error) => {
                    let peer = theirs.to_string();
                    return Err(ConnectError::Device { transport: ID, peer, source: error.into() });
                }
            }
        };
        let reason = format!("{reason}: this interface has {own}");
        Err(ConnectError::Unreachable { transport: ID, peer: theirs.to_string(), reason })
    }

    /// Has progress visit the endpoint in this slot.
    pub(super) fn visit_later(&self, task: Task, slot: u32) {
        self.agenda.push(task, slot);
        self.poller.wake();
    }

    pub(super) fn endpoint(&self, slot: u32) -> Option<Rc<State>> {
        self.core.endpoints.get(slot)
    }

    /// A new endpoint, not connected.
    pub(super) fn open_endpoint(self: &Rc<Self>) -> Result<Rc<State>, OpenError> {
        self.core.check_opening()?;
        let opened = self.opened.get().wrapping_add(1);
        self.opened.set(opened);
        let limit = self.config.max_endpoints;
        let make = |slot| State::new(self, End::new(self.number, opened, slot));
        let full = || OpenError::TooManyEndpoints { transport: ID, limit };
        self.core.endpoints.add(limit, make).ok_or_else(full)
    }
}
