//! The interface: one queue pair, and the endpoints that share it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire_verbs::{Capacity, OneThread, QueuePairKind, QueuePairOptions};

use super::address::{self, QueueAddress};
use super::endpoint::Endpoint;
use super::progress::Progress;
use super::socket::{Socket, bring_up};
use super::state::State;
use super::{BUFFER, ID, INLINE, MAX_MTU};
use crate::address::PeerAddress;
use crate::attributes::Attributes;
use crate::completion::Completion;
use crate::config::{InterfaceConfig, check};
use crate::counters::{Counters, Past};
use crate::error::{Cause, ConnectError, OpenError, Operation, PostError};
use crate::event::{Armed, EventError};
use crate::fork;
use crate::panics::Panics;
use crate::status::{Post, Posted};
use crate::transport::common::pending::Arbiter;
use crate::transport::common::post_state::PostBlock;
use crate::transport::common::random;
use crate::transport::common::registered::Domain as _;
use crate::transport::rdma::{Completions, Domain, Pair, QueuePair};
use crate::transport::reliable::{Directory, Patience, TICK, Time};
use crate::transport::sealed::Handled;
use crate::transport::{self, common::handlers::Handlers};

pub(super) struct Shared {
    pub(super) socket: Rc<Socket>,
    pub(super) completions: Completions,
    /// Progress has something to do besides packets.
    pub(super) attention: Cell<bool>,
    /// A callback panicked; see `State::catch_up`.
    pub(super) unwound: Cell<bool>,
    /// Some endpoint may have a timer.
    pub(super) timed: Cell<bool>,
    pub(super) handlers: Handlers,
    pub(super) arbiter: Arbiter<Endpoint>,
    /// By slot.
    pub(super) endpoints: RefCell<Vec<Option<Rc<State>>>>,
    /// Some endpoints wait to be dropped.
    pub(super) closing: Cell<bool>,
    /// Slots of endpoints that must send an acknowledgement.
    pub(super) owing: RefCell<Vec<u32>>,
    failing: RefCell<Vec<(Rc<State>, Operation, Cause)>>,
    pub(super) directory: RefCell<Directory>,
    pub(super) closed: Cell<bool>,
    started: Instant,
    pub(super) patience: Patience,
    pub(super) own: QueueAddress,
    pub(super) domain: Domain,
    /// The domain's tag: endpoints accept only slices with it.
    pub(super) tag: u32,
    pub(super) config: InterfaceConfig,
    pub(super) attributes: Attributes,
    /// Counts of endpoints that were dropped.
    pub(super) past: Past,
}

/// A handle to an open interface; cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Interface(pub(super) Rc<Shared>);

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
        let shared = Rc::new(Shared {
            socket,
            completions,
            attention: Cell::new(false),
            unwound: Cell::new(false),
            timed: Cell::new(false),
            handlers: Handlers::new(),
            arbiter: Arbiter::new(),
            endpoints: RefCell::default(),
            closing: Cell::new(false),
            owing: RefCell::default(),
            failing: RefCell::default(),
            directory: RefCell::default(),
            closed: Cell::new(false),
            started: Instant::now(),
            patience: patience(config),
            own,
            domain: domain.clone(),
            tag: domain.tag(),
            config: config.clone(),
            attributes: super::attributes_of(config, mtu as usize),
            past: Past::default(),
        });
        shared.grow(1)?;
        fork::watch(&shared);
        Ok((Self(Rc::clone(&shared)), Progress::new(shared)))
    }

    /// Opens an endpoint to an interface. The peer opens one in turn, which its next call to
    /// connect to this interface returns. Until the peer responds, posts return
    /// [`PostError::NoResource`].
    ///
    /// # Errors
    /// As [`Endpoint::connect`], and [`ConnectError::Open`].
    pub fn connect(&self, peer: &PeerAddress) -> Result<Endpoint, ConnectError> {
        self.0.connect_to_interface(peer.device(), peer.interface()).map(Endpoint::handle)
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
        PeerAddress::of_interface(address::device(&self.0.domain), self.0.own.pack())
    }

    fn reaches(&self, peer: &PeerAddress) -> Result<(), ConnectError> {
        let _ = address::port(peer.device())?;
        QueueAddress::unpack(peer.interface()).map(drop)
    }

    fn counters(&self) -> Counters {
        self.0
            .endpoints
            .borrow()
            .iter()
            .flatten()
            .fold(self.0.past.get(), |sum, state| sum + state.counters())
    }

    fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(Some(self.0.completions.descriptor()))
    }

    fn arm(&self) -> Result<Armed, EventError> {
        if self.0.closed.get() {
            return Err(EventError::Closed { transport: ID });
        }
        let shared = &self.0;
        if shared.attention.get() || !shared.owing.borrow().is_empty() {
            return Ok(Armed::Ready);
        }
        let armed = shared.completions.arm()?;
        let due = shared.states().iter().filter_map(|state| state.due()).min();
        let due = due.and_then(|due| shared.started.checked_add(Duration::from_nanos(due)));
        Ok(armed.and(Armed::until(due)))
    }

    fn flush(&self, completion: Option<&Completion>) -> Post {
        self.0.check_open()?;
        let mut busy = self.0.states();
        busy.retain(|state| !state.is_idle());
        if busy.is_empty() {
            return Ok(Posted::Done);
        }
        if !busy.iter().all(|state| state.can_flush()) {
            return Err(PostError::NoResource);
        }
        if let Some(completion) = completion {
            for state in &busy {
                state.flush_later(completion, false);
            }
        }
        Ok(Posted::InProgress)
    }

    fn fence(&self) -> Result<(), PostError> {
        self.0.check_open()
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

impl fork::Inherited for Shared {
    fn close_in_child(&self) {
        self.closed.set(true);
        // Progress then finds the interface closed.
        self.call_attention();
        if let Ok(endpoints) = self.endpoints.try_borrow() {
            endpoints.iter().flatten().for_each(|state| state.posting.close_in_child());
        }
    }
}

impl Shared {
    pub(super) fn check_open(&self) -> Result<(), PostError> {
        if self.closed.get() { Err(PostError::Closed) } else { Ok(()) }
    }

    /// Makes the next progress do more than check for packets.
    pub(super) fn call_attention(&self) {
        self.attention.set(true);
    }

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
        if self.closed.get() {
            return Err(OpenError::Closed { transport: ID });
        }
        let (free, open) = {
            let endpoints = self.endpoints.borrow();
            let free = endpoints.iter().position(Option::is_none).unwrap_or(endpoints.len());
            (free, endpoints.iter().flatten().count())
        };
        if open >= self.config.max_endpoints as usize {
            return Err(OpenError::TooManyEndpoints {
                transport: ID,
                limit: self.config.max_endpoints,
            });
        }
        self.grow(open + 1)?;
        let name = (random::number() as u32) << 16 | free as u32;
        let state = State::new(Rc::clone(self), name);
        let mut endpoints = self.endpoints.borrow_mut();
        if free == endpoints.len() {
            endpoints.push(None);
        }
        endpoints[free] = Some(Rc::clone(&state));
        Ok(state)
    }

    /// Returns the endpoint in the slot `place`.
    pub(super) fn at(&self, place: u32) -> Option<Rc<State>> {
        self.endpoints.borrow().get(place as usize)?.clone()
    }

    /// Returns the endpoint with this name.
    pub(super) fn named(&self, name: u32) -> Option<Rc<State>> {
        self.at(name & u32::from(u16::MAX)).filter(|state| state.name == name)
    }

    /// Returns every open endpoint.
    pub(super) fn states(&self) -> Vec<Rc<State>> {
        self.endpoints.borrow().iter().flatten().cloned().collect()
    }

    /// Called when the last handle of `state` is dropped: progress finishes the outstanding
    /// operations.
    pub(super) fn close_endpoint(&self, state: &State) {
        if !self.closed.get() {
            state.stop(PostBlock::Failed);
            self.close_later(state);
        }
    }

    /// Makes progress drop the endpoint.
    pub(super) fn close_later(&self, state: &State) {
        state.closing.set(true);
        self.closing.set(true);
        self.call_attention();
    }
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interface")
            .field("transport", &ID)
            .field("device", &self.0.domain.device())
            .finish_non_exhaustive()
    }
}
