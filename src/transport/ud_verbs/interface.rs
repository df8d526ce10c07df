//! The interface: one queue pair, and the endpoints that share it.

use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire_verbs::{Capacity, OneThread, QueuePairKind, QueuePairOptions};

use super::address::{self, QueueAddress};
use super::progress::Progress;
use super::socket::{Socket, bring_up};
use super::state::State;
use super::{BUFFER, Endpoint, ID, INLINE, Interface, MAX_MTU, UdVerbs};
use crate::address::PeerAddress;
use crate::config::{InterfaceConfig, check};
use crate::error::{Cause, ConnectError, OpenError, Operation};
use crate::event::{Armed, EventError};
use crate::panics::Panics;
use crate::transport::common::random;
use crate::transport::common::registered::Domain as _;
use crate::transport::handle::{EndpointList as _, InterfaceCore, InterfaceState, Slots};
use crate::transport::rdma::{Completions, Domain, Pair, QueuePair};
use crate::transport::reliable::{Directory, Patience, TICK, Time};

pub(crate) struct Shared {
    pub(super) core: InterfaceCore<UdVerbs>,
    pub(super) socket: Rc<Socket>,
    pub(super) completions: Completions,
    /// Progress has something to do besides packets.
    pub(super) attention: Cell<bool>,
    /// A callback panicked; see `State::catch_up`.
    pub(super) unwound: Cell<bool>,
    /// Some endpoint may have a timer.
    pub(super) timed: Cell<bool>,
    /// Some endpoints wait to be dropped.
    pub(super) closing: Cell<bool>,
    /// Slots of endpoints that must send an acknowledgement.
    pub(super) owing: RefCell<Vec<u32>>,
    failing: RefCell<Vec<(Rc<State>, Operation, Cause)>>,
    pub(super) directory: RefCell<Directory>,
    started: Instant,
    pub(super) patience: Patience,
    pub(super) own: QueueAddress,
    pub(super) domain: Domain,
    /// The domain's tag: endpoints accept only slices with it.
    pub(super) tag: u32,
    pub(super) config: InterfaceConfig,
}

impl Interface {
    /// Opens an interface.
    ///
    /// # Errors
    /// [`OpenError::Setting`] for a setting with an invalid value, [`OpenError::Device`] if the
    /// device refuses.
    pub fn open(domain: &Domain, config: &InterfaceConfig) -> Result<(Self, Progress), OpenError> {
        let receives = check_settings(domain, config)?;
        let domain = &domain.chosen(config)?;
        let mtu = config.path_mtu.min(domain.port().active_mtu).clamp(256, MAX_MTU as u32);
        let sends = domain
            .blocks(config.checked_bcopy_buffers(ID)? * BUFFER)
            .map_err(|e| domain.refused("register buffers", e))?;
        let completions = Completions::new(domain, config.send_ring + receives)?;
        let (qp, inline) = queue_pair(domain, &completions, config, receives)?;
        let own = QueueAddress {
            qpn: qp.number(),
            log_mtu: mtu.ilog2() as u8,
            interface: random::number(),
        };
        let pair = Pair::new(qp, config.send_ring, 0, config.signal_every);
        let socket = Socket::new(pair, sends, receives, inline, mtu);
        let attributes = super::attributes_of(config, mtu as usize);
        let shared = Rc::new(Shared {
            core: InterfaceCore::new(attributes, Slots::default()),
            socket,
            completions,
            attention: Cell::new(false),
            unwound: Cell::new(false),
            timed: Cell::new(false),
            closing: Cell::new(false),
            owing: RefCell::default(),
            failing: RefCell::default(),
            directory: RefCell::default(),
            started: Instant::now(),
            patience: patience(config),
            own,
            domain: domain.clone(),
            tag: domain.tag(),
            config: config.clone(),
        });
        shared.grow(1)?;
        Ok((Self::open_with(&shared), Progress::new(shared)))
    }

    /// Opens an endpoint to an interface. The peer opens one in turn, which its next call to
    /// connect to this interface returns. Until the peer responds, posts return
    /// [`PostError::NoResource`](crate::PostError::NoResource).
    ///
    /// # Errors
    /// As [`Endpoint::connect`], and [`ConnectError::Open`].
    pub fn connect(&self, peer: &PeerAddress) -> Result<Endpoint, ConnectError> {
        self.0.connect_to_interface(peer.device(), peer.interface()).map(Endpoint::handle)
    }
}

impl InterfaceState for Shared {
    type Transport = UdVerbs;

    fn core(&self) -> &InterfaceCore<UdVerbs> {
        &self.core
    }

    fn call_attention(&self) {
        self.attention.set(true);
    }

    fn address(&self) -> PeerAddress {
        PeerAddress::of_interface(address::device(&self.domain), self.own.pack())
    }

    fn reaches(self: &Rc<Self>, peer: &PeerAddress) -> Result<(), ConnectError> {
        let _ = address::port(peer.device())?;
        QueueAddress::unpack(peer.interface()).map(drop)
    }

    fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(Some(self.completions.descriptor()))
    }

    fn arm(&self) -> Result<Armed, EventError> {
        if self.attention.get() || !self.owing.borrow().is_empty() {
            return Ok(Armed::Ready);
        }
        let armed = self.completions.arm()?;
        let due = self.core.endpoints.all().iter().filter_map(|state| state.due()).min();
        let due = due.and_then(|due| self.started.checked_add(Duration::from_nanos(due)));
        Ok(armed.and(Armed::until(due)))
    }
}

/// Checks the settings against each other and the device. Returns the capacity of the receive
/// queue.
fn check_settings(domain: &Domain, config: &InterfaceConfig) -> Result<u32, OpenError> {
    let limits = domain.limits();
    for (setting, value, least) in
        [("send_ring", config.send_ring, 16), ("receive_ring", config.receive_ring, 4)]
    {
        check(ID, setting, value, least, limits.requests.min(1 << 15))?;
        if !value.is_power_of_two() {
            let reason = "it must be a power of two".to_owned();
            return Err(OpenError::Setting { transport: ID, setting, value: value.into(), reason });
        }
    }
    check(ID, "spare_receive_buffers", config.spare_receive_buffers, 0, 32768)?;
    check(ID, "signal_every", config.signal_every, 1, 1 << 15)?;
    check(ID, "ack_timeout", config.ack_timeout.into(), 0, 31)?;
    check(ID, "service_level", config.service_level.into(), 0, 15)?;
    if !config.path_mtu.is_power_of_two() || !(256..=4096).contains(&config.path_mtu) {
        let reason = "it must be 256, 512, 1024, 2048 or 4096".to_owned();
        let value = config.path_mtu.into();
        return Err(OpenError::Setting { transport: ID, setting: "path_mtu", value, reason });
    }
    check(ID, "max_endpoints", config.max_endpoints, 1, 1 << 15)?;
    let most = limits.requests.min(limits.completions.saturating_sub(config.send_ring)).max(4);
    Ok(config.receive_ring.saturating_mul(config.max_endpoints).min(most))
}

/// Returns the timeouts. Retries are at most as far apart as those of a connected queue pair.
fn patience(config: &InterfaceConfig) -> Patience {
    let between = match config.ack_timeout {
        // A device reads 0 as no limit.
        0 => 1000 * TICK,
        exponent => 4096_u64 << exponent,
    };
    Patience { between, whole: config.peer_timeout.as_nanos() as Time }
}

/// Creates the queue pair, ready to use, and returns it with its limit of inline bytes.
fn queue_pair(
    domain: &Domain,
    completions: &Completions,
    config: &InterfaceConfig,
    receives: u32,
) -> Result<(QueuePair, usize), OpenError> {
    let options = |inline: usize| QueuePairOptions {
        kind: QueuePairKind::UnreliableDatagram,
        send_queue: completions.reference(),
        receive_queue: completions.reference(),
        shared_receive: None,
        capacity: Capacity {
            sends: config.send_ring,
            receives,
            send_elements: 1,
            receive_elements: 1,
            inline: inline as u32,
        },
        signal_all: false,
    };
    let thread = OneThread::new(domain.context());
    let make = |inline| thread.queue_pair(domain.protection(), &options(inline));
    let qp =
        make(INLINE).or_else(|_| make(0)).map_err(|e| domain.refused("create a queue pair", e))?;
    bring_up(&qp, domain).map_err(|e| domain.refused("bring a queue pair up", e))?;
    let inline = INLINE.min(qp.capacity().inline as usize);
    Ok((qp, inline))
}

impl Shared {
    /// Makes progress finish the operations that were left behind by a callback that panicked.
    pub(super) fn catch_up_later(&self) {
        self.unwound.set(true);
        self.call_attention();
    }

    /// Makes progress, where callbacks run, fail the endpoint.
    #[cold]
    pub(super) fn fail_later(&self, state: &Rc<State>, operation: Operation, cause: Cause) {
        self.failing.borrow_mut().push((Rc::clone(state), operation, cause));
        self.call_attention();
    }

    pub(super) fn fail_now(&self) {
        let mut panics = Panics::default();
        for (state, operation, cause) in self.failing.take() {
            panics.catch(|| state.fail(operation, cause, None));
        }
    }

    /// Nanoseconds since the interface was opened.
    pub(super) fn now(&self) -> Time {
        self.started.elapsed().as_nanos() as Time
    }

    /// Registers receive buffers for `endpoints` endpoints.
    fn grow(&self, endpoints: usize) -> Result<(), OpenError> {
        let count = self.config.receive_ring + self.config.spare_receive_buffers;
        self.socket
            .grow(&self.domain, endpoints, count)
            .map_err(|e| self.domain.refused("register receive buffers", e))
    }

    /// Creates an unconnected endpoint.
    pub(super) fn open_endpoint(self: &Rc<Self>) -> Result<Rc<State>, OpenError> {
        self.core.check_opening()?;
        let (endpoints, limit) = (&self.core.endpoints, self.config.max_endpoints);
        self.grow((endpoints.count() + 1).min(limit as usize))?;
        let high = (random::number() as u32) << 16;
        let full = || OpenError::TooManyEndpoints { transport: ID, limit };
        endpoints.add(limit, |slot| State::new(Rc::clone(self), high | slot)).ok_or_else(full)
    }

    /// Returns the endpoint in the slot `place`.
    pub(super) fn at(&self, place: u32) -> Option<Rc<State>> {
        self.core.endpoints.get(place)
    }

    /// Returns the endpoint with this name.
    pub(super) fn named(&self, name: u32) -> Option<Rc<State>> {
        self.at(name & u32::from(u16::MAX)).filter(|state| state.name == name)
    }

    /// Makes progress drop the endpoint.
    pub(super) fn close_later(&self, state: &State) {
        state.closing.set(true);
        self.closing.set(true);
        self.call_attention();
    }
}
