//! The driver of any RDMA device, through libibverbs, for the core of reliable connections.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire_verbs::{
    Access as Rights, AtomicScope, Capacity, Data, Element, Initialize, OneThread, QueuePairKind,
    QueuePairOptions, ReadyToReceive, ReadyToSend,
};

use super::progress::CHECK_EVERY;
use super::receive::Receiver;
use super::{Grants, ID, INLINE, MAX_ELEMENTS, RcVerbs, attributes_of};
use crate::base::address::TransportId;
use crate::base::attributes::Attributes;
use crate::base::config::InterfaceConfig;
use crate::base::error::{Cause, ConnectError, OpenError, Operation, OperationError, Source};
use crate::base::event::{Armed, EventError};
use crate::transport::common::operation::InFlightQueue;
use crate::transport::common::post_state::PostBlock;
use crate::transport::common::registered::Domain as _;
use crate::transport::rc;
use crate::transport::rc::{Created, Limits, MAX_ZCOPY, Opened, Path, QueueFull};
use crate::transport::rdma::{self, Completions, Domain, Pair, PortAddress};

/// An endpoint of this transport, behind its handles.
pub(super) type State = rc::State<RcVerbs>;
/// An interface of this transport, behind its handles.
pub(super) type Shared = rc::Shared<RcVerbs>;

/// How long a queue pair in error may take to return its requests of the shared receive queue.
const GRACE: Duration = Duration::from_millis(200);

/// The driver's state of an interface.
pub(crate) struct Interface {
    pub(super) completions: Completions,
    /// The receive queue of all endpoints, or `None` if each has its own.
    pub(super) receiver: Option<Rc<Receiver>>,
    thread: OneThread,
    grants: Grants,
    /// log2 of the path MTU in bytes.
    log_mtu: u8,
    /// Limit of reads and atomics in flight, of an endpoint and of its peer.
    reads: u8,
    /// Progress calls without a completion until the device's events are checked.
    pub(super) check_in: Cell<u32>,
}

/// The driver's state of an endpoint.
pub(crate) struct Endpoint {
    /// The endpoint's own receiver, or the one that all endpoints of the interface share.
    pub(super) receiver: Rc<Receiver>,
    /// Whether the device reported that the queue pair took its last request from the shared
    /// receive queue.
    last_taken: Cell<bool>,
    /// When the endpoint was closed. No message is delivered from then on.
    stopped: Cell<Option<Instant>>,
}

impl rc::Queue for Pair {
    type Segment = Element;
    const LARGEST_POST: u32 = 1;
    const HAS_NOP: bool = false;

    #[inline(always)]
    fn segment(address: u64, length: u32, key: u32) -> Element {
        Element::new(address, length, key)
    }

    #[inline(always)]
    fn room(&self) -> u32 {
        self.room()
    }

    fn posted(&self) -> u64 {
        self.posted()
    }

    fn last(&self) -> u16 {
        self.last()
    }

    #[inline]
    fn is_idle(&self) -> bool {
        self.is_idle()
    }

    fn last_is_signaled(&self) -> bool {
        self.last_is_signaled()
    }

    fn is_done(&self, index: u16) -> bool {
        self.is_done(index)
    }

    #[inline]
    fn request_completion(&mut self) {
        self.request_completion();
    }

    fn fence(&mut self) {
        self.fence();
    }

    fn most_outstanding(&self) -> u32 {
        self.most_outstanding()
    }

    fn limit_outstanding(&mut self, most: u32) -> u32 {
        self.limit_outstanding(most)
    }

    #[inline(always)]
    fn reap(&mut self, index: u16) {
        self.reap(index);
    }

    fn read_word(&mut self, local: Element, remote: u64, key: u32) -> Result<(), QueueFull> {
        let data = Data::Elements(std::slice::from_ref(&local));
        self.post(Operation::Flush, rdma::read(remote, key), data, true)
            .map(drop)
            .map_err(|_| QueueFull)
    }

    fn to_error(&mut self) -> Result<(), Source> {
        Ok(self.qp().fail()?)
    }
}

impl rc::Port for PortAddress {
    fn to_bytes(self) -> [u8; 24] {
        self.to_bytes()
    }

    fn from_bytes(bytes: &[u8; 24]) -> Self {
        Self::from_bytes(bytes)
    }
}

impl rc::Driver for RcVerbs {
    const ID: TransportId = TransportId::RcVerbs;
    /// log2 of the number of bytes.
    const MTU_CODES: std::ops::RangeInclusive<u8> = 8..=12;
    const READS_CODES: std::ops::RangeInclusive<u8> = 0..=u8::MAX;

    type Domain = Domain;
    type Port = PortAddress;
    type Queue = Pair;
    type InFlight = InFlightQueue;
    type Tail = ();
    type Interface = Interface;
    type Endpoint = Endpoint;

    fn limits(domain: &Domain) -> Limits {
        let limits = domain.limits();
        Limits { requests: limits.requests.min(1 << 15), completions: limits.completions }
    }

    fn port(domain: &Domain) -> PortAddress {
        PortAddress::of(domain)
    }

    fn choose(domain: &Domain, config: &InterfaceConfig) -> Result<Domain, OpenError> {
        domain.chosen(config)
    }

    fn open(
        domain: &Domain,
        config: &InterfaceConfig,
        sends: u32,
    ) -> Result<Opened<Self>, OpenError> {
        let receiver = Receiver::shared(domain, config)?;
        let limit = Self::limits(domain).completions;
        let most = limit.saturating_sub(sends) / config.receive_ring;
        let (max_endpoints, receives) = match &receiver {
            Some(receiver) => (config.max_endpoints, receiver.room()),
            None => (
                config.max_endpoints.min(most),
                config.max_endpoints.min(most) * config.receive_ring,
            ),
        };
        let entries = rc::entries(ID, config, limit, [sends, receives])?;
        let completions = Completions::new(domain, entries)?;
        let thread = OneThread::new(domain.context());
        let grants = grants(domain, &thread, &completions, receiver.as_deref(), config)?;
        let limits = domain.limits();
        let mtu = config.path_mtu.min(domain.port().active_mtu.max(256));
        let attributes = Attributes { max_endpoints, ..attributes_of(config, &grants) };
        Ok(Opened {
            attributes,
            has_user_index: true,
            interface: Interface {
                completions,
                receiver,
                thread,
                grants,
                log_mtu: mtu.ilog2() as u8,
                reads: config
                    .max_rd_atomic
                    .min(limits.responder_resources)
                    .min(limits.initiator_depth),
                check_in: Cell::new(CHECK_EVERY),
            },
        })
    }

    fn has_failed(shared: &Shared) -> bool {
        shared.domain.has_failed()
    }

    fn create(shared: &Shared, slot: u32) -> Result<Created<Self>, OpenError> {
        let (config, domain, interface) = (&shared.config, &shared.domain, &shared.driver);
        let common = interface.receiver.as_ref();
        let (inline, elements) = (interface.grants.inline, interface.grants.elements as u32);
        let options = options(
            &interface.completions,
            common.map(|common| &**common),
            config,
            inline,
            elements,
        );
        let qp = interface
            .thread
            .queue_pair(domain.protection(), &options)
            .map_err(|e| domain.refused("create a queue pair", e))?;
        let rights = Rights::LOCAL_WRITE
            | Rights::REMOTE_WRITE
            | Rights::REMOTE_READ
            | Rights::REMOTE_ATOMIC;
        let values = Initialize {
            port: domain.port().number,
            partition_index: domain.partition_index(),
            access: rights,
            queue_key: 0,
        };
        qp.initialize(&values).map_err(|e| domain.refused("initialize a queue pair", e))?;
        let receiver = match common {
            Some(common) => {
                // Discards the event of an earlier queue pair with this number.
                domain.check_events();
                domain.has_ended(qp.number());
                Rc::clone(common)
            }
            None => Receiver::own(domain, qp.receive_queue(), slot, config)
                .map_err(|e| domain.refused("register receive buffers", e))?,
        };
        Ok(Created {
            qpn: qp.number(),
            mtu: interface.log_mtu,
            reads: interface.reads,
            user_index: Some(slot),
            queue: Pair::new(qp, config.send_ring, slot, config.signal_every),
            endpoint: Endpoint { receiver, last_taken: Cell::new(false), stopped: Cell::new(None) },
            tail: (),
        })
    }

    fn connect(state: &State, path: &Path<Self>) -> Result<(), ConnectError> {
        let config = &state.shared.config;
        let receive = ReadyToReceive {
            mtu: 1 << path.mtu,
            peer: path.qpn,
            packet_sequence_number: path.receive_psn,
            responder_resources: path.reads,
            rnr_timer: config.min_rnr_timer,
            route: path.port.route(&state.shared.domain, config, ID)?,
        };
        let send = ReadyToSend {
            packet_sequence_number: path.send_psn,
            timeout: config.ack_timeout,
            retries: config.retry_count,
            rnr_retries: config.rnr_retry,
            initiator_depth: path.reads,
        };
        let connected = state.with_queue(|pair| {
            pair.qp().ready_to_receive(Some(&receive))?;
            pair.qp().ready_to_send(&send)
        });
        connected.map_err(|error| State::refused(path, error))
    }

    /// Buffers posted to a queue pair in error would return flushed, again and again.
    fn stop_receiving(state: &State) {
        if state.shared.driver.receiver.is_none() {
            state.driver.receiver.close();
        }
    }

    fn stop(state: &State) {
        state.driver.stopped.set(Some(Instant::now()));
        Self::stop_receiving(state);
        // A device that refuses keeps the queue pair until it is destroyed, and its memory with it.
        let _ = state
            .with_queue(|pair| if state.drains() { pair.qp().fail() } else { pair.qp().reset() });
    }

    fn is_released(state: &State) -> bool {
        if !state.drains() {
            return true;
        }
        state.check_last_taken();
        let last_taken = state.driver.last_taken.get();
        if last_taken && state.with_queue(|pair| pair.is_idle()) {
            return true;
        }
        // Not every device reports the event (Soft-RoCE does since Linux 6.4).
        let is_late = state.driver.stopped.get().is_some_and(|since| since.elapsed() > GRACE);
        if is_late && !last_taken {
            state.driver.receiver.count_lost();
        }
        is_late
    }

    /// Describes the retries to an unresponsive peer, or a problem of the local port.
    fn detail(shared: &Shared, cause: Cause) -> Option<String> {
        let config = &shared.config;
        let tried = match cause {
            Cause::PeerUnreachable => format!(
                "tried {} times, at least {:.1?} apart (retry_count {}, ack_timeout {})",
                1 + config.retry_count,
                Duration::from_nanos(4096) * (1 << config.ack_timeout),
                config.retry_count,
                config.ack_timeout,
            ),
            Cause::ReceiverNotReady => {
                format!("retried {} times (rnr_retry; min_rnr_timer of the peer)", config.rnr_retry)
            }
            Cause::DeviceFailed => {
                return Some(format!("{} reported DEVICE_FATAL", shared.domain.device()));
            }
            _ => return rdma::port_trouble(&shared.domain),
        };
        Some(rdma::unanswered(&shared.domain, &tried))
    }

    #[inline(always)]
    fn take(progress: &mut super::Progress) -> usize {
        progress.take()
    }

    fn is_drained(shared: &Shared) -> bool {
        if shared.driver.receiver.is_some() {
            shared.domain.check_events();
        }
        let completions = &shared.driver.completions;
        completions.is_empty() && completions.fill() == 0
    }

    fn close(shared: &Shared) {
        if let Some(receiver) = &shared.driver.receiver {
            receiver.close();
        }
    }

    fn event_fd(shared: &Shared) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(Some(shared.driver.completions.descriptor()))
    }

    fn arm(shared: &Shared) -> Result<Armed, EventError> {
        if shared.needs_attention() {
            return Ok(Armed::Ready);
        }
        shared.driver.completions.arm()
    }
}

/// An endpoint that receives from a shared queue.
impl State {
    /// Returns whether the queue pair must return the requests that it took from the shared receive
    /// queue, which stays in use. A reset would lose them.
    fn drains(&self) -> bool {
        let ended = self.posting.has(PostBlock::Closed) || self.posting.has(PostBlock::Unconnected);
        self.shared.driver.receiver.is_some() && !ended
    }

    /// Returns whether the device has reported, since the last call, that the queue pair is in
    /// error and took its last request from the shared receive queue.
    fn check_last_taken(&self) -> bool {
        let taken = self.shared.domain.has_ended(self.own.qpn);
        self.driver.last_taken.set(taken || self.driver.last_taken.get());
        taken
    }

    /// Fails the endpoint if the device has reported that its queue pair is in error. With a shared
    /// receive queue, no flushed receive request reports it.
    #[cold]
    pub(super) fn check_failure(&self) {
        if self.check_last_taken() {
            self.fail_receive(OperationError { cause: Cause::Flushed, syndrome: None });
        }
    }

    /// Returns whether the endpoint was closed. Its messages are no longer delivered.
    pub(super) fn is_stopped(&self) -> bool {
        self.driver.stopped.get().is_some()
    }
}

/// Finds what a queue pair with these settings is granted, by creating one.
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
        atomics: limits.atomics != AtomicScope::None,
        implicit_paging: limits.implicit_paging,
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
