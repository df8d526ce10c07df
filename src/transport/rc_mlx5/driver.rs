//! The driver of mlx5 devices for the core of reliable connections.

use std::cell::{Cell, OnceCell, UnsafeCell};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::Instant;

use barewire_mlx5::queue::shared_receive::SharedReceiveQueue;
use barewire_mlx5::{CompletionQueue, Family, Notifier, PortAddress, RcConfig, ReceiveQueue, Uar};

use super::queue::RcQueuePair;
use super::receive::Receiver;
use super::stop::Stop;
use super::tags::{self, Matching, TagEnd, TagNumber};
use super::{Domain, ID, RcMlx5, attributes_of, match_no_tags};
use crate::base::address::TransportId;
use crate::base::attributes::Flags;
use crate::base::config::{Choice, InterfaceConfig};
use crate::base::error::{Cause, ConnectError, OpenError, OperationError};
use crate::base::event::{Armed, EventError, after};
use crate::transport::common::operation::InFlightQueue;
use crate::transport::common::post_state::PostBlock;
use crate::transport::common::registered::Domain as _;
use crate::transport::common::watch::Alarm;
use crate::transport::handle::{InterfaceState as _, Keepalive};
use crate::transport::mlx5::domain::ATTENTION;
use crate::transport::mlx5::path::{self, mtu_code, path_to};
use crate::transport::mlx5::shared::{self, SharedReceiver, most_buffers, ring_of};
use crate::transport::rc;
use crate::transport::rc::{Created, Limits, Opened, Path};

/// An endpoint of this transport, behind its handles.
pub(super) type State = rc::State<RcMlx5>;
/// An interface of this transport, behind its handles.
pub(super) type Shared = rc::Shared<RcMlx5>;

/// The driver's state of an interface.
pub(crate) struct Interface {
    /// Polled only by progress.
    pub(super) completions: UnsafeCell<CompletionQueue>,
    /// From which all endpoints receive; `None` if each has its own, or if the queue matches tags.
    pub(super) receiver: Option<shared::Owner>,
    /// The queue from which all endpoints receive, if it matches tags.
    pub(super) tags: Option<Box<Matching>>,
    /// Which endpoints to probe next.
    pub(super) probes: super::probe::Probes,
    pub(super) uar: Uar,
    /// Code of the path MTU.
    mtu: u8,
    /// The completion events, if the device has them.
    notifier: Option<Notifier>,
    /// Calls for attention when the device fails.
    alarm: OnceCell<Alarm>,
}

impl Interface {
    /// Returns the buffers from which all endpoints receive, if they share them.
    pub(super) fn shared_receiver(&self) -> Option<&SharedReceiver> {
        self.tags
            .as_ref()
            .map(|tags| &tags.receiver)
            .or(self.receiver.as_ref())
            .map(|owner| &**owner)
    }

    fn notifier(&self) -> Result<&Notifier, EventError> {
        let reason = "this command channel has no completion events";
        self.notifier.as_ref().ok_or(EventError::Missing { transport: ID, reason })
    }
}

/// The driver's state of an endpoint.
pub(crate) struct Endpoint {
    /// Its own receive buffers, if it does not share the interface's.
    pub(super) receiver: Option<Box<Receiver>>,
    /// Its second queue pair, if the interface matches tags.
    pub(super) tags: Option<Box<TagEnd>>,
    /// That the endpoint was stopped, if its queue pair must first return what it took from the
    /// shared receive queue.
    stopped: Cell<Option<Stop>>,
    /// The count of posted blocks behind the last probe; 0 before the first.
    pub(super) probed: Cell<u64>,
}

impl rc::Driver for RcMlx5 {
    const ID: TransportId = TransportId::RcMlx5;
    const MTU_CODES: RangeInclusive<u8> = path::MTU_CODES;
    const READS_CODES: RangeInclusive<u8> = path::READS_CODES;

    type Domain = Domain;
    type Port = PortAddress;
    type Queue = RcQueuePair;
    type InFlight = InFlightQueue;
    type Tail = TagNumber;
    type Interface = Interface;
    type Endpoint = Endpoint;

    fn limits(domain: &Domain) -> Limits {
        path::limits(domain)
    }

    fn port(domain: &Domain) -> PortAddress {
        domain.port().address
    }

    fn choose(domain: &Domain, config: &InterfaceConfig) -> Result<Domain, OpenError> {
        domain.chosen(config)
    }

    fn open(
        domain: &Domain,
        config: &InterfaceConfig,
        sends: u32,
    ) -> Result<Opened<Self>, OpenError> {
        let context = domain.context();
        let matches_tags = matches_tags(domain, config)?;
        let receiver = match config.shared_receive_queue {
            _ if matches_tags => None,
            Choice::No => None,
            Choice::Yes => Some(shared_receiver(domain, config)?),
            Choice::Auto => shared_receiver(domain, config)
                .inspect_err(|error| tracing::debug!(%error, "endpoints have receive rings"))
                .ok(),
        };
        let mut attributes = attributes_of(config, context.capabilities());
        if !matches_tags {
            match_no_tags(&mut attributes);
        }
        let limit = context.capabilities().max_cq_entries;
        let receives = if matches_tags {
            tags::completions(domain, config)?
        } else if receiver.is_some() {
            ring_of(most_buffers(config))
        } else {
            let most = limit.saturating_sub(sends) / config.receive_ring;
            attributes.max_endpoints = config.max_endpoints.min(most);
            attributes.max_endpoints * config.receive_ring
        };
        let entries = rc::entries(ID, config, limit, [sends, receives])?;
        let uar = Uar::allocate(context).map_err(|e| domain.refused("take a UAR page", e))?;
        let (completions, notifier) = CompletionQueue::create_with_notifier(context, &uar, entries)
            .map_err(|e| domain.refused("create a completion queue", e))?;
        let tags = matches_tags.then(|| Matching::create(domain, &uar, &completions, config));
        let tags = tags.transpose()?;
        if let Some(tags) = &tags {
            attributes.tag.max_receives = tags.capacity();
        }
        attributes.flags.set(Flags::EVENT_FD, notifier.is_some());
        domain.note_software(&mut attributes.flags);
        let completions = UnsafeCell::new(completions);
        let mtu = mtu_code(config.path_mtu).min(domain.port().mtu as u8);
        Ok(Opened {
            attributes,
            has_user_index: context.takes_user_index(),
            interface: Interface {
                completions,
                receiver,
                tags,
                probes: super::probe::Probes::default(),
                uar,
                mtu,
                notifier,
                alarm: OnceCell::new(),
            },
        })
    }

    fn opened(shared: &Rc<Shared>) -> Result<(), OpenError> {
        let keepalive = shared.core.keepalive.as_ref();
        let Some(watch) = shared.domain.watch()? else { return Keepalive::refuse(keepalive, ID) };
        let flag = NonNull::from(&shared.attention);
        // SAFETY: the alarm is a part of the value that contains the flag, which does not move out
        // of its `Rc`: it is dropped before the flag's memory is freed.
        let alarm = unsafe { watch.alarm(flag, shared.is_probing() || keepalive.is_some()) };
        let _ = shared.driver.alarm.set(alarm);
        Ok(())
    }

    fn has_failed(shared: &Shared) -> bool {
        shared.domain.failure().is_some()
    }

    fn detail(shared: &Shared, cause: Cause) -> Option<String> {
        shared.domain.failure().filter(|_| cause == Cause::DeviceFailed)
    }

    fn create(shared: &Shared, slot: u32) -> Result<Created<Self>, OpenError> {
        let (config, domain, interface) = (&shared.config, &shared.domain, &shared.driver);
        let own = || Receiver::new(domain, config.receive_ring, config.spare_receive_buffers);
        let receiver = interface.shared_receiver().is_none().then(own).transpose();
        let receiver =
            receiver.map_err(|e| domain.refused("register receive buffers", e))?.map(Box::new);
        let pair_config = RcConfig::default()
            .send_blocks(config.send_ring)
            .receive_entries(config.receive_ring)
            .signal_period(config.signal_every)
            .user_index(slot)
            .overcommit(true)
            .inline_receive(interface.receiver.is_some())
            .port(Some(*domain.port()));
        // SAFETY: the queue is borrowed mutably only while `Progress` polls it or `arm` uses it;
        // neither runs user code meanwhile, so this function is not called then.
        let completions = unsafe { &*interface.completions.get() };
        let create = |queue: Option<&mut SharedReceiveQueue>| {
            RcQueuePair::create_sharing(
                domain.protection(),
                &interface.uar,
                completions,
                completions,
                queue.as_deref(),
                &pair_config,
            )
        };
        let pair = match interface.shared_receiver() {
            Some(receiver) => receiver.with_queue(|queue| create(Some(queue))),
            None => create(None),
        };
        let pair = pair.map_err(|e| domain.refused("create a queue pair", e))?;
        let tags = interface.tags.as_ref().map(|matching| TagEnd::create(shared, matching, slot));
        let tags = tags.transpose()?;
        let tail = TagNumber(tags.as_ref().map_or(0, |end| end.number()));
        Ok(Created {
            qpn: pair.number(),
            mtu: interface.mtu,
            reads: config.max_rd_atomic.ilog2() as u8,
            user_index: pair.user_index(),
            queue: pair,
            endpoint: Endpoint { receiver, tags, stopped: Cell::new(None), probed: Cell::new(0) },
            tail,
        })
    }

    fn created(state: &State) {
        if let Some(receiver) = &state.driver.receiver {
            state.with_ring(|ring| receiver.refill(ring, state));
        }
    }

    fn connect(state: &State, path: &Path<Self>) -> Result<(), ConnectError> {
        let config = &state.shared.config;
        // Each end's posts go to the second queue pair of the other, if both have one.
        let TagNumber(theirs) = path.tail;
        let end = state.driver.tags.as_ref().filter(|_| theirs != 0);
        let connection = path_to(config, path, if end.is_some() { theirs } else { path.qpn });
        state
            .with_queue(|pair| pair.connect(&connection))
            .and_then(|()| end.map_or(Ok(()), |end| end.connect(&path_to(config, path, path.qpn))))
            .map_err(|error| State::refused(path, error))
    }

    fn stop_receiving(state: &State) {
        // Otherwise the peer, whose posts are acknowledged, would not notice.
        if let Some(end) = &state.driver.tags {
            end.stop();
            state.fail_announced(OperationError { cause: Cause::Flushed, syndrome: None });
        }
    }

    fn stop(state: &State) {
        if let Some(receiver) = &state.driver.receiver {
            receiver.close();
        }
        if let Some(end) = &state.driver.tags {
            end.stop();
            state.fail_announced(OperationError::CANCELED);
        }
        // A device that refuses keeps the queue pair until it is destroyed, and its memory with it.
        if state.drains() {
            state.driver.stopped.set(Some(Stop::new(Instant::now())));
            let _ = state.with_queue(RcQueuePair::to_error);
        } else {
            let _ = state.with_queue(RcQueuePair::reset);
        }
    }

    fn before_release(shared: &Shared) {
        if shared.driver.shared_receiver().is_some() {
            shared.domain.context().read_queue_events();
        }
    }

    fn is_released(state: &State) -> bool {
        let Some(stop) = state.driver.stopped.get() else { return true };
        let drained = state.is_drained().filter(|_| !Self::has_failed(&state.shared));
        // Read after the event: what the queue pair returned before it is in the queue, or taken.
        let is_empty = || Self::is_drained(&state.shared);
        let (stop, is_released) = stop.advance(Instant::now(), drained, is_empty);
        state.driver.stopped.set(Some(stop));
        is_released
    }

    fn is_probe(state: &State) -> bool {
        state.is_only_probed()
    }

    fn has_own_windows(state: &State) -> bool {
        // Otherwise they arrive at the second one.
        !state.driver.tags.as_ref().is_some_and(|end| end.is_matched.get())
    }

    fn settle(shared: &Shared) {
        shared.probe_endpoints();
    }

    #[inline(always)]
    fn progress(progress: &mut super::Progress) -> usize {
        progress.poll()
    }

    #[inline(always)]
    fn take(progress: &mut super::Progress) -> usize {
        progress.take::<false>()
    }

    fn take_closing(progress: &mut super::Progress) -> usize {
        progress.settle_tags();
        progress.take_closing()
    }

    fn is_drained(shared: &Shared) -> bool {
        // SAFETY: the queue is borrowed mutably only while `Progress` polls it or `arm` uses it;
        // neither runs user code meanwhile, so this function is not called then.
        unsafe { &*shared.driver.completions.get() }.is_empty()
    }

    fn close(shared: &Shared) {
        if let Some(tags) = &shared.driver.tags {
            tags.close();
        }
    }

    fn event_fd(shared: &Shared) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(Some(shared.driver.notifier()?.as_fd()))
    }

    fn arm(shared: &Shared) -> Result<Armed, EventError> {
        let notifier = shared.driver.notifier()?;
        if Self::has_failed(shared) && shared.has_living_endpoint() {
            shared.call_attention();
            return Ok(Armed::Ready);
        }
        // Requests that wait for completions do not prevent a sleep.
        let arbiter = &shared.core.arbiter;
        let unsettled = shared.needs_attention() && (arbiter.is_empty() || arbiter.has_new());
        // SAFETY: only `Progress` polls the queue, and it does not call this function while it
        // does. The borrow ends with this function, which runs no user code.
        let completions = unsafe { &mut *shared.driver.completions.get() };
        if unsettled || shared.closing.get() > 0 || shared.unwound.get() || !completions.is_empty()
        {
            return Ok(Armed::Ready);
        }
        if !notifier.arm(completions) {
            return Ok(Armed::Ready);
        }
        // The failure of the device does not make the descriptor readable.
        Ok(Armed::Until(after(Instant::now(), ATTENTION)))
    }
}

/// Returns whether an interface with these settings matches tags.
fn matches_tags(domain: &Domain, config: &InterfaceConfig) -> Result<bool, OpenError> {
    match config.tag_matching {
        Choice::No => Ok(false),
        Choice::Yes => domain.check_family(Family::Tags).map(|()| true),
        Choice::Auto => {
            let has_tags = Family::Tags.is_offered(domain.context().capabilities());
            Ok(has_tags && domain.check_family(Family::Tags).is_ok())
        }
    }
}

fn shared_receiver(domain: &Domain, config: &InterfaceConfig) -> Result<shared::Owner, OpenError> {
    domain.check_family(Family::SharedReceive)?;
    SharedReceiver::create(domain, config.receive_ring, most_buffers(config))
}

impl State {
    /// Runs `run` with the endpoint's own receive ring, if it has one.
    #[inline(always)]
    pub(super) fn with_ring(&self, run: impl FnOnce(&mut ReceiveQueue)) {
        self.with_queue(|pair| {
            if let Some(ring) = &mut pair.receive {
                run(ring);
            }
        });
    }

    /// Returns whether the device has reported that the queue pairs, which are in error, hold no
    /// WQE of the shared receive queue any more; `None` if it does not report it.
    fn is_drained(&self) -> Option<bool> {
        let end = self.driver.tags.as_ref().map_or(Some(true), |end| end.is_drained());
        Some(end? && self.with_queue(|pair| pair.is_drained())?)
    }

    /// Returns whether the queue pair must return the WQE that it took from the shared receive
    /// queue, which stays in use. A reset would lose it.
    fn drains(&self) -> bool {
        let ended = self.posting.has(PostBlock::Closed) || self.posting.has(PostBlock::Unconnected);
        self.shared.driver.shared_receiver().is_some() && !ended
    }

    /// Returns whether the endpoint was closed. Its messages are no longer delivered.
    pub(super) fn is_stopped(&self) -> bool {
        self.driver.stopped.get().is_some()
    }
}
