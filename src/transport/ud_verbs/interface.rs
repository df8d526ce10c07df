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
use super::{BUFFER, INLINE, MAX_MTU, NAME};
use crate::address::{DeviceAddress, InterfaceAddress};
use crate::attributes::Attributes;
use crate::completion::Completion;
use crate::config::{InterfaceConfig, check};
use crate::counters::{Counters, Past};
use crate::error::{Cause, OpenError, Operation, PostError};
use crate::event::EventError;
use crate::fork;
use crate::panics::Panics;
use crate::status::{Post, Posted};
use crate::transport::common::gate::Block;
use crate::transport::common::handlers::Handlers;
use crate::transport::common::pending::Arbiter;
use crate::transport::common::random;
use crate::transport::common::registered::Domain as _;
use crate::transport::rdma::{Completions, Domain, Pair, QueuePair};
use crate::transport::reliable::{Directory, Patience, TICK, Time};

pub(super) struct Shared {
    pub(super) socket: Rc<Socket>,
    pub(super) completions: Completions,
    /// Progress has something to do besides packets.
    pub(super) attention: Cell<bool>,
    /// A callback panicked; see `State::catch_up`.
    pub(super) unwound: Cell<bool>,
    /// Some endpoint has something to be timed.
    pub(super) timed: Cell<bool>,
    pub(super) handlers: Handlers,
    pub(super) arbiter: Arbiter<Endpoint>,
    /// By their places.
    pub(super) endpoints: RefCell<Vec<Option<Rc<State>>>>,
    /// Some endpoints are to be dropped.
    pub(super) closing: Cell<bool>,
    /// Places of those who owe their peers an acknowledgement.
    pub(super) owing: RefCell<Vec<u32>>,
    failing: RefCell<Vec<(Rc<State>, Operation, Cause)>>,
    pub(super) directory: RefCell<Directory>,
    pub(super) closed: Cell<bool>,
    started: Instant,
    pub(super) patience: Patience,
    pub(super) own: QueueAddress,
    pub(super) domain: Domain,
    /// The domain's tag: whose slices these endpoints take.
    pub(super) tag: u32,
    pub(super) config: InterfaceConfig,
    pub(super) attributes: Attributes,
    /// What the endpoints did that are gone.
    pub(super) past: Past,
}

/// A handle to an open interface; cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Interface(pub(super) Rc<Shared>);

crate::transport::common::handle::interface_handlers!();

impl Interface {
    /// Opens an interface.
    ///
    /// # Errors
    /// [`OpenError::Setting`] for a setting that cannot be, [`OpenError::Device`] if the device refuses.
    pub fn open(domain: &Domain, config: &InterfaceConfig) -> Result<(Self, Progress), OpenError> {
        let receives = check_settings(domain, config)?;
        let mtu = config.path_mtu.min(domain.port().active_mtu).clamp(256, MAX_MTU as u32);
        let sends = domain
            .blocks(config.checked_bcopy_buffers(NAME)? * BUFFER)
            .map_err(|e| domain.refused("register buffers", e))?;
        let completions = Completions::new(domain, config.send_ring + receives)?;
        let (qp, inline) = queue_pair(domain, &completions, config, receives)?;
        let own = QueueAddress { qpn: qp.number(), log_mtu: mtu.ilog2() as u8, interface: random::number() };
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

    /// What the interface can do.
    pub fn attributes(&self) -> &Attributes {
        &self.0.attributes
    }

    /// The port's GID or LID.
    pub fn device_address(&self) -> DeviceAddress {
        address::device(&self.0.domain)
    }

    /// The interface's queue pair.
    pub fn address(&self) -> InterfaceAddress {
        self.0.own.pack()
    }

    /// What all endpoints of the interface did so far, also those that are gone.
    pub fn counters(&self) -> Counters {
        self.0
            .endpoints
            .borrow()
            .iter()
            .flatten()
            .fold(self.0.past.get(), |sum, state| sum + state.counters())
    }

    /// What becomes readable when something completes at an interface that is armed.
    ///
    /// # Errors
    /// None.
    pub fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(Some(self.0.completions.descriptor()))
    }

    /// From now on the [descriptor](Self::event_fd) tells when something comes. Answers when a timer is due, if one runs.
    ///
    /// # Errors
    /// [`EventError::Busy`] if something is there to be done, [`EventError::System`]
    pub fn arm(&self) -> Result<Option<Instant>, EventError> {
        if self.0.closed.get() {
            return Err(EventError::Closed { transport: NAME });
        }
        let shared = &self.0;
        if shared.attention.get() || !shared.owing.borrow().is_empty() {
            return Err(EventError::Busy);
        }
        shared.completions.arm()?;
        let due = shared.states().iter().filter_map(|state| state.due()).min();
        Ok(due.and_then(|due| shared.started.checked_add(Duration::from_nanos(due))))
    }

    /// Waits until what every endpoint has outstanding is acknowledged. The completion is counted down once, when all is.
    ///
    /// # Errors
    /// [`PostError::NoResource`], [`PostError::Closed`]
    pub fn flush(&self, completion: Option<&Completion>) -> Post {
        self.0.check_open()?;
        let mut busy = self.0.states();
        busy.retain(|state| !state.is_idle());
        if busy.is_empty() {
            return Ok(Posted::Done);
        }
        if !busy.iter().all(|state| state.can_flush()) {
            return Err(PostError::NoResource);
        }
        if let Some(completion) = completion.cloned() {
            let all = Completion::new(busy.len() as u32, move |result| completion.count_down(result));
            for state in &busy {
                state.flush_later(all.clone());
            }
        }
        Ok(Posted::InProgress)
    }

    /// On every endpoint, messages posted later are handled after those posted before, as they are anyway.
    ///
    /// # Errors
    /// [`PostError::Closed`]
    pub fn fence(&self) -> Result<(), PostError> {
        self.0.check_open()
    }
}

/// Checks the settings against each other and the device. Answers the room of the receive queue.
fn check_settings(domain: &Domain, config: &InterfaceConfig) -> Result<u32, OpenError> {
    let limits = domain.limits();
    for (setting, value, least) in
        [("send_ring", config.send_ring, 16), ("receive_ring", config.receive_ring, 4)]
    {
        check(NAME, setting, value, least, limits.requests.min(1 << 15))?;
        if !value.is_power_of_two() {
            let reason = "it must be a power of two".to_owned();
            return Err(OpenError::Setting { transport: NAME, setting, value: value.into(), reason });
        }
    }
    check(NAME, "spare_receive_buffers", config.spare_receive_buffers, 0, 32768)?;
    check(NAME, "signal_every", config.signal_every, 1, 1 << 15)?;
    check(NAME, "ack_timeout", config.ack_timeout.into(), 0, 31)?;
    if !config.path_mtu.is_power_of_two() || !(256..=4096).contains(&config.path_mtu) {
        let reason = "it must be 256, 512, 1024, 2048 or 4096".to_owned();
        let value = config.path_mtu.into();
        return Err(OpenError::Setting { transport: NAME, setting: "path_mtu", value, reason });
    }
    check(NAME, "max_endpoints", config.max_endpoints, 1, 1 << 15)?;
    let most = limits.requests.min(limits.completions.saturating_sub(config.send_ring)).max(4);
    Ok(config.receive_ring.saturating_mul(config.max_endpoints).min(most))
}

/// Tries come at most as far apart as those of a connection's device would.
fn patience(config: &InterfaceConfig) -> Patience {
    let between = match config.ack_timeout {
        // For ever, in a device's words.
        0 => 1000 * TICK,
        exponent => 4096_u64 << exponent,
    };
    Patience { between, whole: config.peer_timeout.as_nanos() as Time }
}

/// The queue pair, ready, and the bytes that its requests carry themselves.
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
    let qp = make(INLINE).or_else(|_| make(0)).map_err(|e| domain.refused("create a queue pair", e))?;
    bring_up(&qp, domain.port().number).map_err(|e| domain.refused("bring a queue pair up", e))?;
    let inline = INLINE.min(qp.capacity().inline as usize);
    Ok((qp, inline))
}

impl fork::Inherited for Shared {
    fn close_in_child(&self) {
        self.closed.set(true);
        // Progress finds it closed there.
        self.call_attention();
        if let Ok(endpoints) = self.endpoints.try_borrow() {
            endpoints.iter().flatten().for_each(|state| state.gate.close_in_child());
        }
    }
}

impl Shared {
    pub(super) fn check_open(&self) -> Result<(), PostError> {
        if self.closed.get() { Err(PostError::Closed) } else { Ok(()) }
    }

    /// Asks progress to look at more than packets.
    pub(super) fn call_attention(&self) {
        self.attention.set(true);
    }

    /// Asks progress to finish what a callback that panicked left behind.
    pub(super) fn catch_up_later(&self) {
        self.unwound.set(true);
        self.call_attention();
    }

    /// Lets the endpoint fail in progress, where callbacks run.
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

    /// Receive buffers for so many endpoints.
    fn grow(&self, endpoints: usize) -> Result<(), OpenError> {
        let count = self.config.receive_ring + self.config.spare_receive_buffers;
        self.socket
            .grow(&self.domain, endpoints, count)
            .map_err(|e| self.domain.refused("register receive buffers", e))
    }

    /// A new endpoint, not connected.
    pub(super) fn open_endpoint(self: &Rc<Self>) -> Result<Rc<State>, OpenError> {
        if self.closed.get() {
            return Err(OpenError::Closed { transport: NAME });
        }
        let (free, open) = {
            let endpoints = self.endpoints.borrow();
            let free = endpoints.iter().position(Option::is_none).unwrap_or(endpoints.len());
            (free, endpoints.iter().flatten().count())
        };
        if open >= self.config.max_endpoints as usize {
            return Err(OpenError::TooManyEndpoints { transport: NAME, limit: self.config.max_endpoints });
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

    /// The endpoint at a place.
    pub(super) fn at(&self, place: u32) -> Option<Rc<State>> {
        self.endpoints.borrow().get(place as usize)?.clone()
    }

    /// The endpoint of this name.
    pub(super) fn named(&self, name: u32) -> Option<Rc<State>> {
        self.at(name & u32::from(u16::MAX)).filter(|state| state.name == name)
    }

    /// Every endpoint that is open.
    pub(super) fn states(&self) -> Vec<Rc<State>> {
        self.endpoints.borrow().iter().flatten().cloned().collect()
    }

    /// Nobody has a handle of `state` any more: what was outstanding is finished by progress.
    pub(super) fn close_endpoint(&self, state: &State) {
        if !self.closed.get() {
            state.stop(Block::Failed);
            self.close_later(state);
        }
    }

    /// Progress drops the endpoint.
    pub(super) fn close_later(&self, state: &State) {
        state.closing.set(true);
        self.closing.set(true);
        self.call_attention();
    }
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interface")
            .field("transport", &NAME)
            .field("device", &self.0.domain.device())
            .finish_non_exhaustive()
    }
}
