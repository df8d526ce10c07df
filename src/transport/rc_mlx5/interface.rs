//! The interface: what its endpoints share, and the progress of all of them.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::Instant;

use barewire_mlx5::{Buffer, CompletionQueue, Mtu, Notifier, RcConfig, RcQueuePair, Uar};

use super::address::{self, QueueAddress};
use super::domain::{Domain, Registered};
use super::endpoint::Endpoint;
use super::progress::Progress;
use super::receive::Receiver;
use super::state::{Parts, State};
use super::{BUFFER, MAX_ZCOPY, NAME};
use crate::address::{DeviceAddress, InterfaceAddress};
use crate::attributes::{Attributes, Flags};
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

const MASK24: u64 = 0x00ff_ffff;

pub(super) struct Shared {
    pub(super) completions: UnsafeCell<CompletionQueue>,
    /// Pending requests, or endpoints to be closed, are waiting for progress.
    pub(super) attention: Cell<bool>,
    /// A callback panicked; see `State::catch_up`.
    pub(super) unwound: Cell<bool>,
    pub(super) peers: Peers<State>,
    pub(super) handlers: Handlers,
    pub(super) buffers: Pool<Registered, BUFFER>,
    pub(super) buffers_key: u32,
    pub(super) arbiter: Arbiter<Endpoint>,
    /// Every endpoint that is not closed. `peers` points to these.
    pub(super) endpoints: RefCell<Vec<Rc<State>>>,
    /// Endpoints without handles that are still in `endpoints`.
    pub(super) closing: Cell<u32>,
    pub(super) closed: Cell<bool>,
    /// What peers read to flush.
    flush_word: Buffer,
    uar: Uar,
    pub(super) domain: Domain,
    /// The domain's tag: whose slices these endpoints take.
    pub(super) tag: u32,
    pub(super) config: InterfaceConfig,
    pub(super) attributes: Attributes,
    /// What the endpoints did that are gone.
    pub(super) past: Past,
    pub(super) mtu: Mtu,
    /// What a thread can sleep on, where the device gives it.
    notifier: Option<Notifier>,
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
        let (mtu, entries) = check_settings(domain, config)?;
        let buffers = Registered::allocate(domain, config.checked_bcopy_buffers(NAME)? * BUFFER)
            .map_err(|e| domain.refused("register buffers", e))?;
        let flush_word = domain
            .buffer(size_of::<u64>(), Access::REMOTE_READ)
            .map_err(|e| domain.refused("register a flush word", e))?;
        let uar = Uar::allocate(domain.context()).map_err(|e| domain.refused("take a UAR page", e))?;
        let (completions, notifier) = CompletionQueue::create_with_notifier(domain.context(), &uar, entries)
            .map_err(|e| domain.refused("create a completion queue", e))?;
        let mut attributes = super::attributes(config);
        let max_message = usize::try_from(domain.context().capabilities().max_message).unwrap_or(usize::MAX);
        attributes.put.max_zcopy = MAX_ZCOPY.min(max_message);
        attributes.get.max_zcopy = attributes.put.max_zcopy;
        if !domain.context().capabilities().masked_atomics {
            super::without_masked_atomics(&mut attributes);
        }
        attributes.flags.set(Flags::EVENT_FD, notifier.is_some());
        let shared = Rc::new(Shared {
            completions: UnsafeCell::new(completions),
            attention: Cell::new(false),
            unwound: Cell::new(false),
            peers: Peers::new(config.max_endpoints, domain.context().takes_user_index()),
            handlers: Handlers::new(),
            buffers_key: buffers.key(),
            buffers: Pool::new(buffers),
            arbiter: Arbiter::new(),
            endpoints: RefCell::new(Vec::with_capacity(config.max_endpoints as usize)),
            closing: Cell::new(0),
            closed: Cell::new(false),
            flush_word,
            uar,
            domain: domain.clone(),
            tag: domain.tag(),
            config: config.clone(),
            attributes,
            past: Past::default(),
            mtu,
            notifier,
        });
        fork::watch(&shared);
        Ok((Self(Rc::clone(&shared)), Progress(shared)))
    }

    /// What the interface can do.
    pub fn attributes(&self) -> &Attributes {
        &self.0.attributes
    }

    /// The device's GID and Ethernet address.
    pub fn device_address(&self) -> DeviceAddress {
        address::device(self.0.domain.context().port_address())
    }

    /// Says nothing: endpoints connect to endpoints.
    pub fn address(&self) -> InterfaceAddress {
        address::interface()
    }

    /// What all endpoints of the interface did so far, also those that are gone.
    pub fn counters(&self) -> Counters {
        self.0.endpoints.borrow().iter().fold(self.0.past.get(), |sum, state| sum + state.counters())
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

    /// A descriptor to sleep on after [`Self::arm`].
    ///
    /// # Errors
    /// [`EventError::Missing`] if the device gives none.
    pub fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(Some(self.0.notifier()?.as_fd()))
    }

    /// Has the next completion make [`Self::event_fd`] readable.
    ///
    /// # Errors
    /// [`EventError::Busy`] if progress has something to do; [`EventError::Missing`].
    pub fn arm(&self) -> Result<Option<Instant>, EventError> {
        if self.0.closed.get() {
            return Err(EventError::Closed { transport: NAME });
        }
        let shared = &*self.0;
        let notifier = shared.notifier()?;
        // What waits for completions is no reason to stay awake.
        let unsettled = shared.attention.get() && shared.arbiter.is_empty();
        // SAFETY: as in `Progress::take`: borrowed until the end of this function, which runs no code of the user's.
        let completions = unsafe { &mut *shared.completions.get() };
        if unsettled || shared.closing.get() > 0 || shared.unwound.get() || !completions.is_empty() {
            return Err(EventError::Busy);
        }
        // A completion that came since makes it readable, too.
        notifier.arm(completions);
        Ok(None)
    }
}

/// Checks the settings against each other and the device. Answers the MTU and the entries of the completion queue: one for
/// every WQE that may be outstanding, as each may give an error completion.
fn check_settings(domain: &Domain, config: &InterfaceConfig) -> Result<(Mtu, u32), OpenError> {
    let capabilities = domain.context().capabilities();
    let refuse = |setting, value: u32, reason: String| {
        Err(OpenError::Setting { transport: NAME, setting, value: value.into(), reason })
    };
    for (setting, value, least) in
        [("send_ring", config.send_ring, 16), ("receive_ring", config.receive_ring, 4)]
    {
        check(NAME, setting, value, least, capabilities.max_queue_entries)?;
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
    let per_endpoint = config.send_ring + config.receive_ring;
    let most = capabilities.max_cq_entries / per_endpoint;
    check(NAME, "max_endpoints", config.max_endpoints, 1, most)?;
    match address::mtu_from_bytes(config.path_mtu) {
        Some(mtu) => Ok((mtu, config.max_endpoints * per_endpoint)),
        None => refuse("path_mtu", config.path_mtu, "it must be 256, 512, 1024, 2048 or 4096".to_owned()),
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
    fn notifier(&self) -> Result<&Notifier, EventError> {
        let reason = "the way to the device tells of no completions";
        self.notifier.as_ref().ok_or(EventError::Missing { transport: NAME, reason })
    }

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
        let Some(index) = self.peers.claim() else {
            return Err(OpenError::TooManyEndpoints { transport: NAME, limit: self.config.max_endpoints });
        };
        let state = self.build_endpoint(index).inspect_err(|_| self.peers.release(index, None))?;
        if let Some(user_index) = state.user_index.get() {
            self.peers.set(user_index, NonNull::from(&*state));
        }
        self.endpoints.borrow_mut().push(Rc::clone(&state));
        Ok(state)
    }

    fn build_endpoint(self: &Rc<Self>, index: u32) -> Result<Rc<State>, OpenError> {
        let (config, domain) = (&self.config, &self.domain);
        let receiver = Receiver::new(domain, config.receive_ring, config.spare_receive_buffers)
            .map_err(|e| domain.refused("register receive buffers", e))?;
        let in_flight = InFlightQueue::new(config.send_ring);
        let words = in_flight.slots() as usize + 1;
        let results = domain
            .buffer(words * size_of::<u64>(), Access::LOCAL_WRITE)
            .map_err(|e| domain.refused("register result words", e))?;
        let pair_config = RcConfig {
            send_blocks: config.send_ring,
            receive_entries: config.receive_ring,
            signal_period: config.signal_every,
            access: barewire_mlx5::Access::all(),
            user_index: index,
        };
        // SAFETY: the queue is only borrowed mutably while `Progress` polls it, which calls nothing that comes here.
        let completions = unsafe { &*self.completions.get() };
        let pair =
            RcQueuePair::create(domain.protection(), &self.uar, completions, completions, &pair_config)
                .map_err(|e| domain.refused("create a queue pair", e))?;
        let user_index = pair.user_index();
        let flush = self.flush_word.region();
        let own = QueueAddress {
            qpn: pair.number(),
            psn: (crate::transport::common::random::number() & MASK24) as u32,
            mtu: self.mtu,
            log_max_reads: config.max_rd_atomic.ilog2() as u8,
            flush_address: flush.address(),
            flush_key: flush.rkey(),
        };
        let shared = Rc::clone(self);
        Ok(State::new(Parts { pair, in_flight, results, receiver, own, index, user_index, shared }))
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
