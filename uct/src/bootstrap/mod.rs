//! Connections to interfaces, over transports that connect endpoint to endpoint.
//!
//! libucp requires a transport that connects to interfaces for its first messages. `rc_mlx5` and
//! `rc_verbs` do not: no endpoint of the peer would own the connection. Here the interface owns it.
//! Each interface has a listener, whose [`Contact`] is part of its address:
//!
//! 1. `uct_ep_create` with an address opens an endpoint, connects to the peer's listener, and sends
//!    the address of the endpoint.
//! 2. The peer opens a passive endpoint, connects it, and responds with its address.
//! 3. The endpoint connects, and its pending requests run. Until then posts return
//!    `UCS_ERR_NO_RESOURCE`.
//!
//! The connection stays open: its end tells the peer to close the passive endpoint. Its two ends
//! prove that they have the job's key first (`barewire_tcp`). Without a key, interfaces have no
//! listener, and these transports connect endpoint to endpoint only.
//!
//! The [`Waker`] runs [`Bootstrap::work`] inside the progress of the worker when there is something
//! to do, so that progress costs nothing otherwise.

mod contact;
mod link;
#[cfg(test)]
mod tests;
mod waker;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use barewire::{Interface, TransportId};
use barewire_tcp::connector::Connector;
use barewire_tcp::frames::Stream;
use barewire_tcp::handshake::{Claim, Purpose, Verdict};
use barewire_tcp::listener::{Authenticated, Limits, Listener};
use barewire_tcp::stall_timer::StallTimer;
use barewire_tcp::{HostAddress, Key, interfaces};

pub(crate) use contact::Contact;
use link::Link;
use waker::Waker;

use crate::endpoint::Ep;
use crate::iface::Iface;
use crate::watched::{Watched, share_of_descriptors};
use crate::worker::Worker;

/// How long an endpoint may take to be accepted, and then to learn the peer's address. Time in
/// which the process makes no progress does not count.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long messages may still arrive that the peer sent before it closed its end.
const GRACE: Duration = Duration::from_secs(1);
/// One in so many descriptors of the process may be a connection that a peer opened to an
/// interface. A transport may need another descriptor for it, and a process has several interfaces.
const DESCRIPTORS: u64 = 8;
/// More bytes than any address of an endpoint has.
const LONGEST: usize = 1024;
/// The token of the listener; links have their numbers.
const LISTENER: u64 = u64::MAX;

/// Returns whether a transport needs this to connect to interfaces.
pub(crate) fn is_needed(transport: TransportId) -> bool {
    matches!(transport, TransportId::RcMlx5 | TransportId::RcVerbs)
}

/// The listener of an interface, and its links to others.
pub(crate) struct Bootstrap {
    waker: Waker,
    /// Readable if there is something to do.
    watched: Watched,
    listener: RefCell<Listener>,
    key: Key,
    limits: Limits,
    pub(crate) contact: Contact,
    links: RefCell<BTreeMap<u64, Link>>,
    next: Cell<u64>,
    /// The number of links that peers may open.
    most: usize,
    /// Readable if there is something to do here or at the interface itself.
    events: OnceCell<Watched>,
}

impl Bootstrap {
    /// Listens for the peers of an interface.
    ///
    /// # Errors
    /// There is no job key, no async context, or no descriptor.
    pub(crate) fn open(iface: &Iface, worker: *mut Worker) -> io::Result<Self> {
        let key = Key::from_env().map_err(io::Error::other)?.ok_or_else(|| {
            io::Error::other("connections to interfaces need the job's key: set BAREWIRE_KEY_FILE")
        })?;
        Self::with_key(iface, worker, key)
    }

    fn with_key(iface: &Iface, worker: *mut Worker, key: Key) -> io::Result<Self> {
        let address = listen_address(&iface.interface);
        let limits = Limits::toward(address.ip());
        let listener = Listener::open(address, key.clone(), limits)?;
        let mut number = [0; 8];
        rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())?;
        let contact = Contact { number: u64::from_ne_bytes(number), address: listener.address() };
        let watched = Watched::new()?;
        watched.add(LISTENER, listener.as_fd())?;
        Ok(Self {
            most: share_of_descriptors(DESCRIPTORS),
            waker: Waker::start(iface, worker, watched.as_raw_fd())?,
            watched,
            listener: RefCell::new(listener),
            key,
            limits,
            contact,
            links: RefCell::default(),
            next: Cell::new(0),
            events: OnceCell::new(),
        })
    }

    /// Begins to connect an endpoint to the interface of a contact. Returns the number of the link.
    pub(crate) fn dial(&self, ep: NonNull<Ep>, peer: Contact) -> io::Result<u64> {
        let claim = Claim {
            purpose: Purpose::Control,
            service: peer.number,
            endpoint: 0,
            from_service: self.contact.number,
            from_endpoint: 0,
        };
        let connector =
            Connector::start(peer.address, None, &self.key, claim, TIMEOUT, self.limits)?;
        let id = self.number();
        self.put(id, Link::Dialing { connector: Box::new(connector), ep });
        self.waker.schedule();
        Ok(id)
    }

    /// Returns a descriptor that is readable if there is something to do here, or if that of the
    /// interface is.
    pub(crate) fn with_events(&self, interface: RawFd) -> io::Result<RawFd> {
        if let Some(events) = self.events.get() {
            return Ok(events.as_raw_fd());
        }
        let events = Watched::new()?;
        // SAFETY: the descriptor is the interface's, which is open.
        let interface = unsafe { BorrowedFd::borrow_raw(interface) };
        events.add(0, interface)?;
        events.add(0, &self.watched)?;
        Ok(self.events.get_or_init(|| events).as_raw_fd())
    }

    /// Ends the link of an endpoint.
    pub(crate) fn hang_up(&self, id: u64) {
        let removed = self.links.borrow_mut().remove(&id);
        drop(removed);
    }

    /// Stops the calls of [`Self::work`], and ends all links.
    pub(crate) fn close(&self) {
        self.waker.stop();
        let links = self.links.take();
        drop(links);
    }

    /// Does what can be done without waiting. Returns whether it must be called again soon.
    pub(crate) fn work(&self, iface: &Iface) -> bool {
        self.work_at(iface, Instant::now())
    }

    fn work_at(&self, iface: &Iface, now: Instant) -> bool {
        let mut authenticated = Vec::new();
        self.listener.borrow_mut().work(now, &mut authenticated);
        for peer in authenticated {
            self.admit(peer, now);
        }
        for id in self.ready(now) {
            let link = self.links.borrow_mut().remove(&id);
            if let Some(link) = link {
                self.step(id, link, iface, now);
            }
        }
        !self.listener.borrow().is_idle() || self.links.borrow().values().any(Link::is_polled)
    }

    fn number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    fn put(&self, id: u64, link: Link) {
        self.links.borrow_mut().insert(id, link);
    }

    fn admit(&self, peer: Authenticated, now: Instant) {
        let Claim { purpose, service, .. } = peer.claim;
        if purpose != Purpose::Control || service != self.contact.number {
            return peer.refuse(Verdict::Unknown);
        }
        if self.links.borrow().values().filter(|link| link.is_accepted()).count() >= self.most {
            return peer.refuse(Verdict::Full);
        }
        let id = self.number();
        let admitted = peer.welcome().and_then(|socket| {
            let stream = Stream::new(socket, LONGEST);
            self.watched.add(id, &stream)?;
            Ok(stream)
        });
        match admitted {
            Ok(stream) => {
                let timer = StallTimer::new(TIMEOUT, now);
                self.put(id, Link::Asked { stream, timer });
            }
            Err(error) => crate::log::diag(&error),
        }
    }

    /// Returns the links that may have something to do.
    fn ready(&self, now: Instant) -> Vec<u64> {
        let mut ready = self.watched.ready();
        let links = self.links.borrow();
        let due = links.iter().filter(|(_, link)| link.is_polled() || link.is_over(now));
        ready.extend(due.map(|(id, _)| *id));
        ready.sort_unstable();
        ready.dedup();
        ready
    }
}

/// The address that peers connect to: that of a `tcp` device itself, or of the first network
/// interface that leads to other hosts. Software HCAs reach only this host.
fn listen_address(interface: &Interface) -> HostAddress {
    let loopback = Ipv4Addr::LOCALHOST.into();
    let known = interfaces::list().unwrap_or_default();
    if interface.transport() == TransportId::Tcp {
        let own = interface.address().device().socket_address();
        let own = own.map_or(loopback, HostAddress::from);
        // With the scope, which is not a part of the address that peers get.
        let mut all = known.iter().flat_map(|one| &one.addresses);
        return all.find(|one| one.ip() == own.ip()).copied().unwrap_or(own);
    }
    let usable = known.iter().find(|one| one.reason.is_none() && !one.is_loopback());
    usable.and_then(|one| one.addresses.first()).copied().unwrap_or(loopback)
}
