//! The interface: what its endpoints share, and the progress of all of them.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use barewire_mlx5::{
    Buffer, Completion as Event, CompletionKind, CompletionQueue, Mtu, RcConfig, RcQueuePair, Uar,
};

use super::address::{self, QueueAddress};
use super::domain::{Domain, Registered};
use super::endpoint::Endpoint;
use super::operation::InFlightQueue;
use super::peers::Peers;
use super::receive::Receiver;
use super::state::{Parts, State};
use super::{BUFFER, MAX_ZCOPY, NAME};
use crate::active_message::{Handlers, Message};
use crate::address::{DeviceAddress, InterfaceAddress};
use crate::capability::Attributes;
use crate::completion::Completion;
use crate::config::{InterfaceConfig, check};
use crate::error::{EndpointError, HandlerError, OpenError, PostError};
use crate::gate::Block;
use crate::memory::Access;
use crate::pending::Arbiter;
use crate::pool::Pool;
use crate::status::{Post, Posted};

/// Completions taken per call of progress, so that a busy queue does not keep the caller for ever.
const POLL_BATCH: usize = 16;
const MASK24: u64 = 0x00ff_ffff;

pub(super) struct Shared {
    completions: UnsafeCell<CompletionQueue>,
    /// Pending requests, or endpoints to be closed, are waiting for progress.
    attention: Cell<bool>,
    peers: Peers<State>,
    pub(super) handlers: Handlers,
    pub(super) buffers: Pool<Registered, BUFFER>,
    pub(super) buffers_key: u32,
    pub(super) arbiter: Arbiter<Endpoint>,
    /// Every endpoint that is not closed. `peers` points to these.
    endpoints: RefCell<Vec<Rc<State>>>,
    /// Endpoints without handles that are still in `endpoints`.
    closing: Cell<u32>,
    closed: Cell<bool>,
    /// What peers read to flush.
    flush_word: Buffer,
    uar: Uar,
    pub(super) domain: Domain,
    /// The domain's tag: whose slices these endpoints take.
    pub(super) tag: u32,
    pub(super) config: InterfaceConfig,
    pub(super) attributes: Attributes,
    pub(super) mtu: Mtu,
}

/// A handle to an open interface; cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Interface(pub(super) Rc<Shared>);

/// The one owner of an interface's progress. Dropping it closes the interface: outstanding operations complete as
/// cancelled, handlers are dropped and posts answer [`PostError::Closed`].
pub struct Progress(Rc<Shared>);

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
        let completions = CompletionQueue::create(domain.context(), &uar, entries)
            .map_err(|e| domain.refused("create a completion queue", e))?;
        let mut attributes = super::attributes(config);
        let max_message = usize::try_from(domain.context().capabilities().max_message).unwrap_or(usize::MAX);
        attributes.put.max_zcopy = MAX_ZCOPY.min(max_message);
        attributes.get.max_zcopy = attributes.put.max_zcopy;
        let shared = Rc::new(Shared {
            completions: UnsafeCell::new(completions),
            attention: Cell::new(false),
            peers: Peers::new(),
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
            mtu,
        });
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

    /// Sets the handler of active messages `id`, replacing an older one. It runs inside progress and may post.
    ///
    /// # Errors
    /// [`HandlerError::UnknownHandlerId`] if `id` is 32 or more.
    pub fn set_handler(
        &self,
        id: u8,
        handler: impl FnMut(Message<'_>) + 'static,
    ) -> Result<(), HandlerError> {
        self.0.handlers.set(id, Box::new(handler))
    }

    /// Sets the handler that is called once for each endpoint that fails.
    pub fn set_error_handler(&self, handler: impl FnMut(&EndpointError) + 'static) {
        self.0.handlers.set_error(Box::new(handler));
    }

    /// Messages that came for an id without handler, or without an id, and were dropped.
    pub fn unhandled(&self) -> u64 {
        self.0.handlers.unhandled()
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

/// Checks the settings against each other and the device. Answers the MTU and the entries of the completion queue: one for
/// every WQE that may be outstanding, as each may give an error completion.
fn check_settings(domain: &Domain, config: &InterfaceConfig) -> Result<(Mtu, u32), OpenError> {
    let capabilities = domain.context().capabilities();
    let refuse = |setting, value: u32, reason: String| {
        Err(OpenError::Setting { transport: NAME, setting, value: value.into(), reason })
    };
    for (setting, value, least) in
        [("send_ring", config.send_ring, 16), ("receive_ring", config.receive_ring, 1)]
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

impl Shared {
    pub(super) fn check_open(&self) -> Result<(), PostError> {
        if self.closed.get() { Err(PostError::Closed) } else { Ok(()) }
    }

    /// Asks progress to look at pending requests and closing endpoints.
    pub(super) fn call_attention(&self) {
        self.attention.set(true);
    }

    /// A new endpoint, not connected.
    pub(super) fn open_endpoint(self: &Rc<Self>) -> Result<Rc<State>, OpenError> {
        if self.closed.get() {
            return Err(OpenError::Closed { transport: NAME });
        }
        let config = &self.config;
        // The completion queue was sized for this many.
        if self.endpoints.borrow().len() >= config.max_endpoints as usize {
            return Err(OpenError::TooManyEndpoints { transport: NAME, limit: config.max_endpoints });
        }
        let domain = &self.domain;
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
        };
        // SAFETY: the queue is only borrowed mutably inside `Progress::poll`, which calls nothing that comes here.
        let completions = unsafe { &*self.completions.get() };
        let pair =
            RcQueuePair::create(domain.protection(), &self.uar, completions, completions, &pair_config)
                .map_err(|e| domain.refused("create a queue pair", e))?;
        let flush = self.flush_word.region();
        let own = QueueAddress {
            qpn: pair.number(),
            psn: (crate::random::number() & MASK24) as u32,
            mtu: self.mtu,
            log_max_reads: config.max_rd_atomic.ilog2() as u8,
            flush_address: flush.address(),
            flush_key: flush.rkey(),
        };
        let shared = Rc::clone(self);
        let state = State::new(Parts { pair, in_flight, results, receiver, own, shared });
        self.peers.set(own.qpn, Some(NonNull::from(&*state)));
        self.endpoints.borrow_mut().push(Rc::clone(&state));
        Ok(state)
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

    #[inline]
    fn dispatch(&self, event: &Event) {
        let Some(state) = self.peers.get(event.qpn) else { return };
        // SAFETY: `peers` points into `endpoints`, whose entries are dropped by `bury` and `close` only. Both are called by
        // `Progress`, with `&mut self`, when no `dispatch` is running.
        let state = unsafe { state.as_ref() };
        match event.kind {
            CompletionKind::Send => state.complete(event.wqe_counter),
            CompletionKind::Receive => state.receive(event.wqe_counter, event.byte_count),
            CompletionKind::SendError(failure) => state.fail_send(event.wqe_counter, failure),
            CompletionKind::ReceiveError(failure) => state.fail_receive(failure),
            // Nothing of ours sends with an immediate; the receive WQE is gone all the same.
            CompletionKind::ReceiveImmediate(_) | CompletionKind::WriteImmediate(_) => {
                state.receive(event.wqe_counter, 0);
            }
            CompletionKind::Other(_) => {}
        }
    }

    /// Finishes and drops endpoints without handles. To be called when the completion queue is empty: then no completion
    /// of theirs is left in it, what was not completed was not carried out, and their share of the queue is free.
    fn bury(&self) {
        let closing: Vec<_> =
            self.endpoints.borrow_mut().extract_if(.., |state| state.handles.get() == 0).collect();
        self.closing.set(0);
        for state in closing {
            self.peers.set(state.own.qpn, None);
            state.abandon();
        }
    }

    fn close(&self) {
        self.closed.set(true);
        let endpoints = self.endpoints.take();
        for state in &endpoints {
            state.stop(Block::Closed);
            self.peers.set(state.own.qpn, None);
        }
        for state in &endpoints {
            state.abandon();
        }
        self.arbiter.clear();
        self.handlers.clear();
    }
}

impl Progress {
    #[inline]
    fn poll(&mut self) -> Option<Event> {
        // SAFETY: `Progress` is the one that polls and is borrowed mutably; `open_endpoint` borrows the queue only while it
        // creates a queue pair, which does not poll.
        unsafe { (*self.0.completions.get()).poll() }
    }

    /// Delivers messages, finishes operations and gives pending requests their turn. Never blocks. Answers how many events
    /// there were.
    #[inline]
    pub fn progress(&mut self) -> usize {
        let mut events = 0;
        while let Some(event) = self.poll() {
            self.0.dispatch(&event);
            events += 1;
            if events == POLL_BATCH {
                return events + self.0.settle(false);
            }
        }
        if self.0.attention.get() {
            events += self.0.settle(true);
        }
        events
    }
}

impl Shared {
    /// What progress does besides completions. `drained`: the completion queue was just found empty.
    #[cold]
    fn settle(&self, drained: bool) -> usize {
        let mut events = 0;
        if drained && self.closing.get() > 0 {
            events += self.closing.get() as usize;
            self.bury();
        }
        events += self.arbiter.dispatch();
        self.attention.set(self.closing.get() > 0 || !self.arbiter.is_empty());
        events
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.close();
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

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress")
            .field("transport", &NAME)
            .field("device", &self.0.domain.device())
            .finish_non_exhaustive()
    }
}
