//! The driver of mlx5 devices for the core of reliable connections.

use std::cell::{Cell, OnceCell, UnsafeCell};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire_mlx5::doorbell::Adaptive;
use barewire_mlx5::queue::send::MAX_WQE_BLOCKS;
use barewire_mlx5::queue::shared_receive::SharedReceiveQueue;
use barewire_mlx5::{
    CompletionQueue, ControlFlags, DataSegment, Mtu, Notifier, PortAddress, RcConfig, RcPath,
    ReceiveQueue, RemoteAddressSegment, Uar, WqeIndex,
};

use super::domain::Domain;
use super::receive::Receiver;
use super::shared::{self, SharedReceiver, ring_of};
use super::tags::{self, Matching, TagEnd, TagNumber};
use super::{ID, RcMlx5, attributes_of};
use crate::base::address::TransportId;
use crate::base::attributes::Flags;
use crate::base::config::{Choice, InterfaceConfig};
use crate::base::error::{Cause, ConnectError, OpenError, OperationError, Source};
use crate::base::event::{Armed, EventError, after};
use crate::transport::common::operation::InFlightQueue;
use crate::transport::common::post_state::PostBlock;
use crate::transport::common::registered::Domain as _;
use crate::transport::common::watch::Alarm;
use crate::transport::handle::{InterfaceState as _, Keepalive};
use crate::transport::rc;
use crate::transport::rc::{Created, Limits, Opened, Path, QueueFull};

/// An endpoint of this transport, behind its handles.
pub(super) type State = rc::State<RcMlx5>;
/// An interface of this transport, behind its handles.
pub(super) type Shared = rc::Shared<RcMlx5>;

/// A queue pair whose doorbell suits the UAR page, with or without a receive ring.
pub(crate) type RcQueuePair = barewire_mlx5::RcQueuePair<Adaptive, Option<ReceiveQueue>>;

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
    /// When the endpoint was stopped, if its queue pair must first return what it took from the
    /// shared receive queue.
    stopped: Cell<Option<Instant>>,
    /// The count of posted blocks behind the last probe; 0 before the first.
    pub(super) probed: Cell<u64>,
}

impl rc::Queue for RcQueuePair {
    type Segment = DataSegment;
    const LARGEST_POST: u32 = MAX_WQE_BLOCKS;
    const HAS_NOP: bool = true;

    #[inline(always)]
    fn segment(address: u64, length: u32, key: u32) -> DataSegment {
        DataSegment::new(address, length, key)
    }

    #[inline(always)]
    fn room(&self) -> u32 {
        self.send.room()
    }

    #[inline]
    fn posted(&self) -> u64 {
        self.send.posted()
    }

    #[inline]
    fn operations(&self) -> Option<u64> {
        Some(self.send.wqes())
    }

    #[inline]
    fn last(&self) -> u16 {
        self.send.last_index().map_or(0, |WqeIndex(index)| index)
    }

    #[inline]
    fn is_idle(&self) -> bool {
        self.send.is_idle()
    }

    fn last_is_signaled(&self) -> bool {
        self.send.last_is_signaled()
    }

    #[inline]
    fn is_done(&self, index: u16) -> bool {
        self.send.is_done(WqeIndex(index))
    }

    #[inline]
    fn request_completion(&mut self) {
        self.send.request_completion();
    }

    fn fence(&mut self) {
        self.send.fence();
    }

    fn most_outstanding(&self) -> u32 {
        self.send.most_outstanding()
    }

    fn limit_outstanding(&mut self, most: u32) -> u32 {
        self.send.limit_outstanding(most)
    }

    #[inline(always)]
    fn reap(&mut self, index: u16) {
        self.send.reap(index);
    }

    fn read_word(&mut self, local: DataSegment, remote: u64, key: u32) -> Result<(), QueueFull> {
        let remote = RemoteAddressSegment::new(remote, key);
        self.send.read(local, remote, ControlFlags::COMPLETION).map(drop).map_err(|_| QueueFull)
    }

    fn nop(&mut self) -> Result<(), QueueFull> {
        self.send.nop(ControlFlags::COMPLETION).map(drop).map_err(|_| QueueFull)
    }

    fn to_error(&mut self) -> Result<(), Source> {
        Ok(RcQueuePair::to_error(self)?)
    }
}

impl rc::Port for PortAddress {
    fn to_bytes(self) -> [u8; 24] {
        let mut body = [0; 24];
        body[..16].copy_from_slice(&self.gid);
        body[16..22].copy_from_slice(&self.mac);
        body[22..].copy_from_slice(&self.lid.to_be_bytes());
        body
    }

    fn from_bytes(body: &[u8; 24]) -> Self {
        let mut port =
            Self { gid: [0; 16], mac: [0; 6], lid: u16::from_be_bytes([body[22], body[23]]) };
        port.gid.copy_from_slice(&body[..16]);
        port.mac.copy_from_slice(&body[16..22]);
        port
    }
}

/// How long a stopped queue pair takes at most to return a receive WQE that it took from the shared
/// queue: the device completes it as flushed when the queue pair enters the error state.
pub(in crate::transport) const GRACE: Duration = Duration::from_millis(50);
/// The longest sleep before progress looks for an event of the device.
pub(in crate::transport) const ATTENTION: Duration = Duration::from_secs(1);

const MTUS: [Mtu; 5] =
    [Mtu::Bytes256, Mtu::Bytes512, Mtu::Bytes1024, Mtu::Bytes2048, Mtu::Bytes4096];

/// Returns the path MTU of a code in an address, as the PRM defines it.
fn mtu_of(code: u8) -> Mtu {
    MTUS.into_iter().find(|mtu| *mtu as u8 == code).unwrap_or(Mtu::Bytes256)
}

/// Returns the code of the MTU of `bytes`, a power of two from 256 to 4096.
pub(in crate::transport) fn mtu_code(bytes: u32) -> u8 {
    let place = bytes.ilog2().saturating_sub(8) as usize;
    MTUS.get(place).copied().unwrap_or(Mtu::Bytes4096) as u8
}

impl rc::Driver for RcMlx5 {
    const ID: TransportId = TransportId::RcMlx5;
    const MTU_CODES: std::ops::RangeInclusive<u8> = Mtu::Bytes256 as u8..=Mtu::Bytes4096 as u8;
    /// The log2 of the number (3 bits).
    const READS_CODES: std::ops::RangeInclusive<u8> = 0..=7;

    type Domain = Domain;
    type Port = PortAddress;
    type Queue = RcQueuePair;
    type InFlight = InFlightQueue;
    type Tail = TagNumber;
    type Interface = Interface;
    type Endpoint = Endpoint;

    fn limits(domain: &Domain) -> Limits {
        let capabilities = domain.context().capabilities();
        Limits {
            requests: capabilities.max_queue_entries,
            completions: capabilities.max_cq_entries,
        }
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
        let matches_tags = matches_tags(domain, config);
        let receiver = match config.shared_receive_queue {
            _ if matches_tags => None,
            Choice::No => None,
            Choice::Yes => Some(shared_receiver(domain, config)?),
            Choice::Auto => shared_receiver(domain, config)
                .inspect_err(|error| tracing::debug!(%error, "endpoints have receive rings"))
                .ok(),
        };
        let mut attributes = attributes_of(config, context.capabilities());
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
            state.driver.stopped.set(Some(Instant::now()));
            let _ = state.with_queue(RcQueuePair::to_error);
        } else {
            let _ = state.with_queue(RcQueuePair::reset);
        }
    }

    fn is_released(state: &State) -> bool {
        state.driver.stopped.get().is_none_or(|since| since.elapsed() > GRACE)
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
        // If a completion arrived in the meantime, arming makes the descriptor readable, too.
        notifier.arm(completions);
        // The failure of the device does not make the descriptor readable.
        Ok(Armed::Until(after(Instant::now(), ATTENTION)))
    }
}

/// Returns the driver's path to queue pair `qpn` of the peer.
pub(in crate::transport) fn path_to<D: rc::Driver<Port = PortAddress>>(
    config: &InterfaceConfig,
    path: &Path<D>,
    qpn: u32,
) -> RcPath {
    RcPath::new(path.port, qpn)
        .receive_psn(path.receive_psn)
        .send_psn(path.send_psn)
        .mtu(mtu_of(path.mtu))
        .ack_timeout(config.ack_timeout)
        .retry_count(config.retry_count)
        .rnr_retry(config.rnr_retry)
        .min_rnr_nak(config.min_rnr_timer)
        .log_max_reads(path.reads)
        .traffic_class(config.traffic_class)
        .service_level(config.service_level)
}

/// Most buffers of a shared receive queue.
pub(in crate::transport) fn most_buffers(config: &InterfaceConfig) -> u32 {
    let per_endpoint = config.receive_ring.saturating_add(config.spare_receive_buffers);
    let all = per_endpoint.saturating_mul(config.max_endpoints);
    all.min(config.max_receive_buffers.max(config.receive_ring))
}

/// Returns whether an interface with these settings matches tags.
fn matches_tags(domain: &Domain, config: &InterfaceConfig) -> bool {
    match config.tag_matching {
        Choice::No => false,
        Choice::Yes => true,
        Choice::Auto => domain.context().capabilities().log_max_tags > 0,
    }
}

fn shared_receiver(domain: &Domain, config: &InterfaceConfig) -> Result<shared::Owner, OpenError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_path_mtus() {
        for (code, bytes) in (1..=5).zip([256, 512, 1024, 2048, 4096]) {
            assert_eq!((mtu_code(bytes), mtu_of(code) as u8), (code, code));
        }
    }
}
