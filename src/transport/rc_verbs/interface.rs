//! The interface: what its endpoints share, and the progress of all of them.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::Instant;

use barewire_verbs::{Access as Rights, Capacity, Initialize, OneThread, QueuePairKind, QueuePairOptions};

use super::address::{self, MASK24, QueueAddress};
use super::endpoint::Endpoint;
use super::progress::Progress;
use super::receive::Receiver;
use super::state::{Parts, State};
use super::{BUFFER, Grants, INLINE, MAX_ELEMENTS, MAX_ZCOPY, NAME};
use crate::address::{DeviceAddress, InterfaceAddress};
use crate::attributes::Attributes;
use crate::completion::Completion;
use crate::config::{InterfaceConfig, check};
use crate::counters::{Counters, Past};
use crate::error::{OpenError, PostError};
use crate::event::EventError;
use crate::fork;
use crate::memory::Access;
use crate::status::{Post, Posted};
use crate::transport::common::gate::Block;
use crate::transport::common::handlers::Handlers;
use crate::transport::common::operation::InFlightQueue;
use crate::transport::common::peers::Peers;
use crate::transport::common::pending::Arbiter;
use crate::transport::common::pool::Pool;
use crate::transport::rdma::{Buffer, Completions, Domain, Pair, Registered};

pub(super) struct Shared {
    pub(super) completions: Completions,
    /// Pending requests, or endpoints to be closed, are waiting for progress.
    pub(super) attention: Cell<bool>,
    /// A callback panicked; see `State::catch_up`.
    pub(super) unwound: Cell<bool>,
    pub(super) peers: Peers<State>,
    pub(super) handlers: Handlers,
    pub(super) buffers: Pool<Registered, BUFFER>,
    pub(super) buffers_key: u32,
    /// What all endpoints receive from, unless each has its own.
    pub(super) receiver: Option<Rc<Receiver>>,
    pub(super) arbiter: Arbiter<Endpoint>,
    /// Every endpoint that is not closed. `peers` points to these.
    pub(super) endpoints: RefCell<Vec<Rc<State>>>,
    /// Endpoints without handles that are still in `endpoints`.
    pub(super) closing: Cell<u32>,
    pub(super) closed: Cell<bool>,
    /// What peers read to flush.
    flush_word: Buffer,
    thread: OneThread,
    pub(super) domain: Domain,
    /// The domain's tag: whose slices these endpoints take.
    pub(super) tag: u32,
    pub(super) config: InterfaceConfig,
    pub(super) attributes: Attributes,
    /// What the endpoints did that are gone.
    pub(super) past: Past,
    grants: Grants,
    pub(super) log_mtu: u8,
    /// Reads and atomics in flight of an endpoint, and of its peer.
    pub(super) reads: u8,
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
        let entries = check_settings(domain, config)?;
        let mtu = config.path_mtu.min(domain.port().active_mtu.max(256));
        let buffers = Registered::allocate(domain, config.checked_bcopy_buffers(NAME)? * BUFFER)
            .map_err(|e| domain.refused("register buffers", e))?;
        let flush_word = domain
            .buffer(size_of::<u64>(), Access::REMOTE_READ)
            .map_err(|e| domain.refused("register a flush word", e))?;
        let completions = Completions::new(domain, entries)?;
        let receiver = Receiver::shared(domain, config)?;
        let thread = OneThread::new(domain.context());
        let grants = grants(domain, &thread, &completions, receiver.as_deref(), config)?;
        let limits = domain.limits();
        let shared = Rc::new(Shared {
            completions,
            attention: Cell::new(false),
            unwound: Cell::new(false),
            peers: Peers::new(config.max_endpoints, true),
            handlers: Handlers::new(),
            buffers_key: buffers.key(),
            buffers: Pool::new(buffers),
            receiver,
            arbiter: Arbiter::new(),
            endpoints: RefCell::new(Vec::with_capacity(config.max_endpoints as usize)),
            closing: Cell::new(0),
            closed: Cell::new(false),
            flush_word,
            thread,
            domain: domain.clone(),
            tag: domain.tag(),
            config: config.clone(),
            attributes: super::attributes_of(config, &grants),
            past: Past::default(),
            grants,
            log_mtu: mtu.ilog2() as u8,
            reads: config.max_rd_atomic.min(limits.responder_resources).min(limits.initiator_depth),
        });
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

    /// Says nothing: endpoints connect to endpoints.
    pub fn address(&self) -> InterfaceAddress {
        address::interface()
    }

    /// What all endpoints of the interface did so far, also those that are gone.
    pub fn counters(&self) -> Counters {
        self.0.endpoints.borrow().iter().fold(self.0.past.get(), |sum, state| sum + state.counters())
    }

    /// What becomes readable when something completes at an interface that is armed.
    ///
    /// # Errors
    /// None.
    pub fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(Some(self.0.completions.descriptor()))
    }

    /// From now on the [descriptor](Self::event_fd) tells when something completes.
    ///
    /// # Errors
    /// [`EventError::Busy`] if something is there to be done, [`EventError::System`]
    pub fn arm(&self) -> Result<Option<Instant>, EventError> {
        if self.0.closed.get() {
            return Err(EventError::Closed { transport: NAME });
        }
        if self.0.attention.get() {
            return Err(EventError::Busy);
        }
        self.0.completions.arm().map(|()| None)
    }

    /// Waits for what every endpoint has outstanding. The completion is counted down once, when all is finished.
    ///
    /// # Errors
    /// [`PostError::NoResource`], [`PostError::Closed`]
    pub fn flush(&self, completion: Option<&Completion>) -> Post {
        let shared = &*self.0;
        shared.check_open()?;
        let endpoints = shared.endpoints.borrow();
        let busy = || endpoints.iter().filter(|state| !state.is_idle());
        let count = busy().count();
        if count == 0 {
            return Ok(Posted::Done);
        }
        if !busy().all(|state| state.can_flush()) {
            return Err(PostError::NoResource);
        }
        let all = match completion.cloned() {
            Some(completion) => Completion::new(count as u32, move |result| completion.count_down(result)),
            None => Completion::counter(count as u32),
        };
        busy().try_for_each(|state| state.flush_all(&all))?;
        Ok(Posted::InProgress)
    }

    /// On every endpoint, what is posted next takes effect after what is outstanding.
    ///
    /// # Errors
    /// [`PostError::Closed`]
    pub fn fence(&self) -> Result<(), PostError> {
        self.0.check_open()?;
        self.0.endpoints.borrow().iter().for_each(|state| state.fence());
        Ok(())
    }
}

/// Checks the settings against each other and the device. Answers the entries of the completion queue: one for
/// every request that may be outstanding, as each may give an error completion.
fn check_settings(domain: &Domain, config: &InterfaceConfig) -> Result<u32, OpenError> {
    let limits = domain.limits();
    let refuse = |setting, value: u32, reason: String| {
        Err(OpenError::Setting { transport: NAME, setting, value: value.into(), reason })
    };
    for (setting, value, least) in
        [("send_ring", config.send_ring, 16), ("receive_ring", config.receive_ring, 4)]
    {
        check(NAME, setting, value, least, limits.requests.min(1 << 15))?;
        if !value.is_power_of_two() {
            return refuse(setting, value, "it must be a power of two".to_owned());
        }
    }
    check(NAME, "spare_receive_buffers", config.spare_receive_buffers, 0, 65536)?;
    check(NAME, "signal_every", config.signal_every, 1, 1 << 15)?;
    check(NAME, "ack_timeout", config.ack_timeout.into(), 0, 31)?;
    check(NAME, "retry_count", config.retry_count.into(), 0, 7)?;
    check(NAME, "rnr_retry", config.rnr_retry.into(), 0, 7)?;
    check(NAME, "min_rnr_timer", config.min_rnr_timer.into(), 0, 31)?;
    check(NAME, "max_rd_atomic", config.max_rd_atomic.into(), 1, 16)?;
    if !config.path_mtu.is_power_of_two() || !(256..=4096).contains(&config.path_mtu) {
        let reason = "it must be 256, 512, 1024, 2048 or 4096".to_owned();
        return refuse("path_mtu", config.path_mtu, reason);
    }
    let per_endpoint = config.send_ring + config.receive_ring;
    check(NAME, "max_endpoints", config.max_endpoints, 1, limits.completions / per_endpoint)?;
    Ok(config.max_endpoints * per_endpoint)
}

/// What queue pairs of these settings are granted, by asking for one.
fn grants(
    domain: &Domain,
    thread: &OneThread,
    completions: &Completions,
    receiver: Option<&Receiver>,
    config: &InterfaceConfig,
) -> Result<Grants, OpenError> {
    let limits = domain.limits();
    let elements = limits.elements.clamp(2, MAX_ELEMENTS as u32);
    let granted = [INLINE, INLINE / 2, 0].map(|inline| {
        let options = options(completions, receiver, config, inline, elements);
        thread.queue_pair(domain.protection(), &options).map(|qp| qp.capacity())
    });
    let [most, fewer, none] = granted;
    let granted = most.or(fewer).or(none).map_err(|e| domain.refused("create a queue pair", e))?;
    Ok(Grants {
        inline: INLINE.min(granted.inline as usize),
        elements: elements as usize,
        read_elements: elements.min(limits.read_elements.max(1)) as usize,
        max_message: (domain.port().max_message as usize).min(MAX_ZCOPY),
        atomics: limits.atomics != barewire_verbs::AtomicScope::None,
    })
}

fn options(
    completions: &Completions,
    receiver: Option<&Receiver>,
    config: &InterfaceConfig,
    inline: usize,
    elements: u32,
) -> QueuePairOptions {
    QueuePairOptions {
        kind: QueuePairKind::ReliableConnection,
        send_queue: completions.reference(),
        receive_queue: completions.reference(),
        shared_receive: receiver.and_then(Receiver::reference),
        capacity: Capacity {
            sends: config.send_ring,
            receives: if receiver.is_some() { 0 } else { config.receive_ring },
            send_elements: elements,
            receive_elements: 1,
            inline: inline as u32,
        },
        signal_all: false,
    }
}

impl fork::Inherited for Shared {
    fn close_in_child(&self) {
        self.closed.set(true);
        // Progress finds it closed there.
        self.call_attention();
        if let Ok(endpoints) = self.endpoints.try_borrow() {
            endpoints.iter().for_each(|state| state.gate.close_in_child());
        }
    }
}

impl Shared {
    pub(super) fn check_open(&self) -> Result<(), PostError> {
        if self.closed.get() { Err(PostError::Closed) } else { Ok(()) }
    }

    /// Asks progress to look at pending requests and closing endpoints.
    pub(super) fn call_attention(&self) {
        self.attention.set(true);
    }

    /// Asks progress to finish what a callback that panicked left behind.
    pub(super) fn catch_up_later(&self) {
        self.unwound.set(true);
        self.call_attention();
    }

    /// A new endpoint, not connected.
    pub(super) fn open_endpoint(self: &Rc<Self>) -> Result<Rc<State>, OpenError> {
        if self.closed.get() {
            return Err(OpenError::Closed { transport: NAME });
        }
        // The completion queue was sized for this many.
        let Some(place) = self.peers.claim() else {
            return Err(OpenError::TooManyEndpoints { transport: NAME, limit: self.config.max_endpoints });
        };
        let state = self.build_endpoint(place).inspect_err(|_| self.peers.release(place, None))?;
        self.peers.set(place, NonNull::from(&*state));
        self.endpoints.borrow_mut().push(Rc::clone(&state));
        Ok(state)
    }

    fn build_endpoint(self: &Rc<Self>, place: u32) -> Result<Rc<State>, OpenError> {
        let (config, domain) = (&self.config, &self.domain);
        let in_flight = InFlightQueue::new(config.send_ring);
        let words = in_flight.slots() as usize + 1;
        let results = domain
            .buffer(words * size_of::<u64>(), Access::LOCAL_WRITE)
            .map_err(|e| domain.refused("register result words", e))?;
        let shared = self.receiver.as_ref();
        let (inline, elements) = (self.grants.inline, self.grants.elements as u32);
        let options = options(&self.completions, shared.map(|shared| &**shared), config, inline, elements);
        let qp = self
            .thread
            .queue_pair(domain.protection(), &options)
            .map_err(|e| domain.refused("create a queue pair", e))?;
        let rights = Rights::LOCAL_WRITE | Rights::REMOTE_WRITE | Rights::REMOTE_READ | Rights::REMOTE_ATOMIC;
        let values =
            Initialize { port: domain.port().number, partition_index: 0, access: rights, queue_key: 0 };
        qp.initialize(&values).map_err(|e| domain.refused("initialize a queue pair", e))?;
        let receiver = match shared {
            Some(shared) => {
                // What was told of an older queue pair of this number.
                domain.hear();
                domain.has_ended(qp.number());
                Rc::clone(shared)
            }
            None => Receiver::own(domain, qp.receive_queue(), place, config)
                .map_err(|e| domain.refused("register receive buffers", e))?,
        };
        let flush = &self.flush_word.region;
        let own = QueueAddress {
            qpn: qp.number(),
            psn: crate::transport::common::random::number() as u32 & MASK24,
            log_mtu: self.log_mtu,
            reads: self.reads,
            flush_address: flush.address(),
            flush_key: flush.remote_key(),
        };
        let pair = Pair::new(qp, config.send_ring, place, config.signal_every);
        let shared = Rc::clone(self);
        Ok(State::new(Parts { pair, in_flight, results, receiver, own, place, shared }))
    }

    /// The last handle of `state` is gone: the device lets go of it now, what was outstanding is finished by progress.
    pub(super) fn close_endpoint(&self, state: &State) {
        if self.closed.get() {
            return;
        }
        state.stop(Block::Failed);
        self.closing.set(self.closing.get() + 1);
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
