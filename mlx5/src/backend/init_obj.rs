//! Objects created by verbs and exported by `mlx5dv_init_obj`, for devices without DEVX.

use core::any::Any;
use core::ptr::NonNull;
use std::os::fd::{AsFd, BorrowedFd};

use barewire_layouts::command::qp::{Enhancements, QpState, ServiceType};
use barewire_layouts::cqe::Cqe64;
use barewire_layouts::doorbell::CQ_DOORBELL_OFFSET;
use barewire_layouts::roce::UDP_SOURCE_PORTS;
use barewire_layouts::wqe::{DataSegment, WQEBB};
use barewire_verbs::dv::{
    self, QueuePairInfo, Ring, ScatterToEntry, SharedReceiveInfo, ThreadDomain,
};
use barewire_verbs::{
    self as verbs, AtomicScope, Capacity, CompletionChannel, CompletionQueueRef, Context,
    Initialize, ProtectionDomain, QueuePairKind, QueuePairOptions, QueuePairState, ReadyToReceive,
    ReadyToSend, SharedReceiveQueue, SharedReceiveQueueRef,
};

use super::region::rights;
use super::{CompletionInfo, Initial, Pair, PairInfo, PairSizes, Path, Receive};
use crate::channel::{CompletionEvents, DeviceEvents};
use crate::error::{Error, system};
use crate::queue::completion::CompletionQueue;
use crate::route::{self, Route};
use crate::values::{Access, Capabilities, Port, PortAddress, PortOptions};

/// `PCI_VENDOR_ID_MELLANOX`: the vendor of the enhancements that libmlx5 reports and sets.
const VENDOR: u32 = 0x15b3;

/// Size of a CQE in bytes.
const ENTRY: u16 = size_of::<Cqe64>() as u16;

/// A device opened by verbs.
#[derive(Debug)]
pub(crate) struct Device {
    context: Context,
    route: Route,
}

impl Device {
    pub(crate) fn new(context: Context, route: Route) -> Self {
        Self { context, route }
    }

    /// The capabilities as far as verbs report them.
    pub(crate) fn capabilities(&self) -> Result<Capabilities, Error> {
        let device = self.context.limits().map_err(|error| system("querying the device", error))?;
        let port = self.route.port().number;
        let port =
            self.context.query_port(port).map_err(|error| system("querying the port", error))?;
        let reads = |most: u8| most.checked_ilog2().unwrap_or(0).min(7) as u8;
        let (combines, enhancements) = self.try_pair()?;
        Ok(Capabilities {
            max_queue_entries: device.requests.min(1 << 15),
            max_shared_entries: device.shared_receives.min(1 << 15),
            max_cq_entries: power_of_two_below(device.completions).min(1 << 22),
            max_message: u64::from(port.max_message),
            log_max_reads_requester: reads(device.initiator_depth),
            log_max_reads_responder: reads(device.responder_resources),
            atomics: device.atomics != AtomicScope::None,
            // Queue pairs of verbs support the standard atomics only.
            masked_atomics: false,
            log_max_dc_reads: 0,
            masked_dc_atomics: false,
            relaxed_keys: self.allocate_pd()?.requires_relaxed_order(),
            blueflame: combines,
            write_combining: combines,
            port_type: self.route.port_type(),
            // The kernel chooses both.
            udp_source_ports: UDP_SOURCE_PORTS,
            // They need objects that libmlx5 does not export.
            dynamic_connections: false,
            enhancements: !enhancements.is_none(),
            log_max_streams: (0, 0),
            xrc: false,
            log_max_tags: 0,
            tag_rendezvous: false,
            striding: false,
            timestamp_formats: false,
            on_demand: device.on_demand != 0,
            implicit_paging: device.implicit_paging,
            device_memory: device.device_memory,
        })
    }

    /// The events of the device and its ports.
    pub(crate) fn events(&self) -> Box<dyn DeviceEvents> {
        self.route.events()
    }

    /// The kernel's name of the device.
    pub(crate) fn name(&self) -> &str {
        self.route.device_name()
    }

    /// The port with the entries of its tables that `options` names.
    pub(crate) fn choose_port(&self, options: PortOptions) -> Result<Port, Error> {
        self.route.choose(options)
    }

    /// Returns whether libmlx5 gives queue pairs write-combining registers, and the enhancements
    /// that the device supports. Only a queue pair reports them.
    fn try_pair(&self) -> Result<(bool, Enhancements), Error> {
        let domain = self.allocate_pd()?;
        let thread = self.allocate_register()?;
        let queue = self.create(16)?;
        let capacity =
            Capacity { sends: 1, receives: 1, send_elements: 1, receive_elements: 1, inline: 0 };
        let queues = [&queue, &queue].map(dv::CompletionQueue::reference);
        let kind = QueuePairKind::ReliableConnection;
        let pair =
            create(&domain, thread.as_ref(), queues, None, kind, capacity, ScatterToEntry::Never)?;
        Ok((thread.is_some() && pair.info().register_size > 0, enhancements(&pair)))
    }

    /// The Ethernet address of the next hop from `port` towards a peer.
    pub(crate) fn next_hop(&self, port: &Port, remote: &PortAddress) -> Result<[u8; 6], Error> {
        self.route.next_hop(port, remote)
    }

    pub(crate) fn allocate_pd(&self) -> Result<ProtectionDomain, Error> {
        ProtectionDomain::new(&self.context)
            .map_err(|error| system("allocating a protection domain", error))
    }

    /// A thread domain: its queue pairs have a dedicated register. `None` where pages cannot be
    /// mapped write-combining: then all queue pairs of the context share a register, to which they
    /// write 8 bytes at a time.
    pub(crate) fn allocate_register(&self) -> Result<Option<ThreadDomain>, Error> {
        match ThreadDomain::new(&self.context) {
            Ok(thread) => Ok(Some(thread)),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
            Err(error) => Err(system("allocating a register", error)),
        }
    }

    fn create(&self, entries: u32) -> Result<dv::CompletionQueue, Error> {
        dv::CompletionQueue::create(&self.context, entries, ENTRY)
            .map_err(|error| system("creating a completion queue", error))
    }

    /// Creates a queue of `entries` CQEs, a power of two, without overrun checks.
    pub(crate) fn create_cq(&self, entries: u32) -> Result<CompletionInfo, Error> {
        // libmlx5 reserves one entry.
        prepared(self.create(entries - 1)?, entries)
    }

    /// Like [`Self::create_cq`], and returns the CQ doorbell and a descriptor for events as well.
    pub(crate) fn create_cq_with_events(
        &self,
        entries: u32,
    ) -> Result<(CompletionInfo, NonNull<u64>, Events), Error> {
        let channel = CompletionChannel::new(&self.context)
            .map_err(|error| system("creating a completion channel", error))?;
        let queue = dv::CompletionQueue::create_with_channel(&channel, entries - 1, ENTRY)
            .map_err(|error| system("creating a completion queue", error))?;
        // SAFETY: the offset lies inside the UAR page, which libmlx5 maps for the life of the
        // queue.
        let doorbell = unsafe { queue.info().uar.add(CQ_DOORBELL_OFFSET) }.cast();
        Ok((prepared(queue, entries)?, doorbell, Events(channel)))
    }
}

/// Gives the ring of a queue of `entries` CQEs to the device, and describes the queue.
fn prepared(queue: dv::CompletionQueue, entries: u32) -> Result<CompletionInfo, Error> {
    let facts = *queue.info();
    let ring =
        expect("the ring of a completion queue", facts.ring, entries, size_of::<Cqe64>())?.cast();
    // SAFETY: the ring has `entries` CQEs, and no queue pair completes to it yet.
    unsafe { CompletionQueue::initialise(ring, entries) };
    Ok(CompletionInfo {
        number: facts.number,
        ring,
        doorbell_record: facts.doorbell_record.cast(),
        object: Box::new(queue),
    })
}

/// Completion events that libibverbs reads from the kernel.
#[derive(Debug)]
pub(crate) struct Events(CompletionChannel);

impl CompletionEvents for Events {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn take(&self) -> bool {
        let mut any = false;
        // Dropping an event acknowledges it.
        while let Ok(Some(_)) = self.0.next_event() {
            any = true;
        }
        any
    }
}

/// Allocates a key that work requests fill with up to `entries` ranges.
pub(crate) fn allocate_window(
    domain: &ProtectionDomain,
    entries: u32,
    ends_by_send: bool,
) -> Result<barewire_verbs::MemoryWindow, Error> {
    /// The list of a window that libmlx5 allocates (linux mr.c: `mlx5_ib_alloc_mw`).
    const ROOM: u32 = 4;
    if entries > ROOM {
        return Err(Error::Unsupported {
            what: "memory keys of more than 4 ranges",
            reason: "objects of verbs have no more; set the device up by DEVX",
        });
    }
    let window = if ends_by_send {
        barewire_verbs::MemoryWindow::allocate(domain)
    } else {
        barewire_verbs::MemoryWindow::allocate_shared(domain)
    };
    window.map_err(|error| system("allocating a memory window", error))
}

/// Creates a queue pair in the reset state.
pub(crate) fn create_pair(
    domain: &ProtectionDomain,
    thread: Option<&ThreadDomain>,
    queues: [&(dyn Any + Send + Sync); 2],
    sizes: &PairSizes<'_>,
) -> Result<PairInfo, Error> {
    let (kind, shared) = match (sizes.service, sizes.receive) {
        (ServiceType::Ud, Receive::Own(_)) => (QueuePairKind::UnreliableDatagram, None),
        (ServiceType::Rc, Receive::Own(_)) => (QueuePairKind::ReliableConnection, None),
        (ServiceType::Rc, Receive::Shared(queue)) => {
            (QueuePairKind::ReliableConnection, Some(queue.reference()?))
        }
        _ => {
            return Err(Error::Unsupported {
                what: "queue pairs of other services than RC and UD",
                reason: "the driver creates them by DEVX only",
            });
        }
    };
    let receive_entries = sizes.receive.entries();
    let scatter =
        if sizes.inline_receive { ScatterToEntry::Received } else { ScatterToEntry::Never };
    // libmlx5 decides how many requests a block holds (1, 2 or 4), so each is tried.
    for requests_per_block in [4, 2, 1] {
        let capacity = Capacity {
            sends: sizes.send_blocks / requests_per_block,
            receives: receive_entries,
            send_elements: 1,
            receive_elements: 1,
            inline: 0,
        };
        let queues = [reference(queues[0])?, reference(queues[1])?];
        let pair = create(domain, thread, queues, shared.clone(), kind, capacity, scatter)?;
        if pair.info().send.is_some_and(|ring| ring.entries >= sizes.send_blocks) {
            return facts(pair, sizes);
        }
    }
    Err(Error::parameter(
        "send WQEBBs",
        sizes.send_blocks,
        "a number for which libmlx5 creates a ring of that size",
    ))
}

/// The enhancements (ECE) that libmlx5 reports: those that the device supports, or has accepted.
fn enhancements(pair: &dv::QueuePair) -> Enhancements {
    match pair.enhancements() {
        Ok(found) if found.vendor == VENDOR => Enhancements::from_bits(found.options),
        _ => Enhancements::NONE,
    }
}

/// Describes the queue pair if its rings have the requested sizes.
fn facts(pair: dv::QueuePair, sizes: &PairSizes<'_>) -> Result<PairInfo, Error> {
    let QueuePairInfo { number, send, receive, doorbell_record, register, .. } = *pair.info();
    let ring = |what, ring: Option<Ring>, entries, stride| {
        let ring =
            ring.ok_or_else(|| system("opening a queue pair", "the queue pair lacks a ring"))?;
        expect(what, ring, entries, stride)
    };
    let receive_ring = match sizes.receive.entries() {
        0 => NonNull::dangling(),
        entries => ring("the receive ring", receive, entries, size_of::<DataSegment>())?.cast(),
    };
    Ok(PairInfo {
        number,
        // libmlx5 assigned an index and does not report it.
        user_index: None,
        enhancements: enhancements(&pair),
        send_ring: ring("the send ring", send, sizes.send_blocks, WQEBB)?,
        receive_ring,
        doorbell_record: doorbell_record.cast(),
        register,
        object: Box::new(VerbsPair { pair }),
    })
}

/// The start of a ring, if it has the expected number of entries and stride.
fn expect(
    what: &'static str,
    ring: Ring,
    entries: u32,
    stride: usize,
) -> Result<NonNull<u8>, Error> {
    if ring.entries == entries && ring.stride as usize == stride {
        return Ok(ring.start);
    }
    let Ring { entries: got, stride: bytes, .. } = ring;
    Err(Error::parameter(
        what,
        got,
        format!("{entries} entries of {stride} bytes; the ring has entries of {bytes} bytes"),
    ))
}

fn create(
    domain: &ProtectionDomain,
    thread: Option<&ThreadDomain>,
    [send_queue, receive_queue]: [CompletionQueueRef; 2],
    shared_receive: Option<SharedReceiveQueueRef>,
    kind: QueuePairKind,
    capacity: Capacity,
    scatter: ScatterToEntry,
) -> Result<dv::QueuePair, Error> {
    let options = QueuePairOptions {
        kind,
        send_queue,
        receive_queue,
        shared_receive,
        capacity,
        signal_all: false,
    };
    dv::QueuePair::create(domain, thread, &options, scatter)
        .map_err(|error| system("creating a queue pair", error))
}

/// A shared receive queue that was created: its number, ring and doorbell record.
pub(crate) struct SharedInfo {
    pub(crate) number: u32,
    pub(crate) ring: NonNull<u8>,
    pub(crate) doorbell_record: NonNull<u32>,
    pub(crate) queue: dv::SharedReceiveQueue,
}

/// Creates a shared receive queue of `entries` WQEs, a power of two, of `stride` bytes each.
pub(crate) fn create_shared(
    domain: &ProtectionDomain,
    entries: u32,
    segments: usize,
    stride: usize,
) -> Result<SharedInfo, Error> {
    // libmlx5 adds the WQE that stays behind.
    let queue = SharedReceiveQueue::new(domain, entries - 1, segments as u32)
        .and_then(SharedReceiveQueue::open_direct)
        .map_err(|error| system("creating a shared receive queue", error))?;
    let SharedReceiveInfo { number, start, stride: bytes, head, tail, doorbell_record } =
        *queue.info();
    let ring = Ring { start, entries: tail.wrapping_sub(head).wrapping_add(1), stride: bytes };
    let ring = expect("the ring of a shared receive queue", ring, entries, stride)?;
    Ok(SharedInfo { number, ring, doorbell_record: doorbell_record.cast(), queue })
}

fn reference(queue: &(dyn Any + Send + Sync)) -> Result<CompletionQueueRef, Error> {
    let queue = queue.downcast_ref::<dv::CompletionQueue>();
    queue
        .map(dv::CompletionQueue::reference)
        .ok_or_else(|| Error::parameter("completion queue", 0u32, "a queue of this device"))
}

fn power_of_two_below(value: u32) -> u32 {
    value.checked_ilog2().map_or(0, |log| 1 << log)
}

/// A queue pair of verbs.
#[derive(Debug)]
struct VerbsPair {
    pair: dv::QueuePair,
}

impl Pair for VerbsPair {
    fn initialise(&self, port: &Port, initial: &Initial) -> Result<(), Error> {
        let (access, queue_key) = match *initial {
            // `LOCAL_WRITE` is not a right of the peer.
            Initial::Connected { access, .. } => (access - Access::LOCAL_WRITE, 0),
            Initial::Datagrams { queue_key } => (Access::empty(), queue_key),
        };
        let values = Initialize {
            port: port.number,
            partition_index: port.partition_index,
            access: rights(access),
            queue_key,
        };
        self.pair.initialize(&values).map_err(|error| system("initialising a queue pair", error))
    }

    fn connect(&self, port: &Port, path: &Path<'_>) -> Result<Enhancements, Error> {
        let wanted = path.wanted;
        // libmlx5 passes them to the kernel with the next transition.
        if !wanted.enhancements.is_none() {
            let options = wanted.enhancements.bits();
            self.pair
                .set_enhancements(&verbs::Enhancements { vendor: VENDOR, options, mask: 0 })
                .map_err(|error| system("setting the enhancements of a queue pair", error))?;
        }
        let remote: &PortAddress = &wanted.remote;
        let route = route::to(port, path.port_type, remote)
            .with_service(wanted.service_level, wanted.traffic_class);
        let receive = ReadyToReceive {
            mtu: path.mtu.bytes() as u32,
            peer: wanted.remote_qpn,
            packet_sequence_number: wanted.receive_psn,
            responder_resources: 1 << path.log_responder_reads,
            rnr_timer: wanted.min_rnr_nak,
            route,
        };
        let send = ReadyToSend {
            packet_sequence_number: path.send_psn,
            timeout: wanted.ack_timeout,
            retries: wanted.retry_count,
            rnr_retries: wanted.rnr_retry,
            initiator_depth: 1 << path.log_requester_reads,
        };
        self.pair
            .ready_to_receive(Some(&receive))
            .and_then(|()| self.pair.ready_to_send(&send))
            .map_err(|error| system("connecting a queue pair", error))?;
        // Of a queue pair that has set none, libmlx5 reports those that the device supports.
        let is_set = !wanted.enhancements.is_none();
        Ok(if is_set { enhancements(&self.pair) } else { Enhancements::NONE })
    }

    fn activate(&self, _: &Port) -> Result<(), Error> {
        let send = ReadyToSend {
            packet_sequence_number: 0,
            timeout: 0,
            retries: 0,
            rnr_retries: 0,
            initiator_depth: 0,
        };
        self.pair
            .ready_to_receive(None)
            .and_then(|()| self.pair.ready_to_send(&send))
            .map_err(|error| system("activating a queue pair", error))
    }

    fn fail(&self) -> Result<(), Error> {
        self.pair.fail().map_err(|error| system("moving a queue pair to error", error))
    }

    fn reset(&self) -> Result<(), Error> {
        self.pair.reset().map_err(|error| system("resetting a queue pair", error))
    }

    fn state(&self) -> Result<QpState, Error> {
        let state = self.pair.state().map_err(|error| system("querying a queue pair", error))?;
        Ok(match state {
            QueuePairState::Reset => QpState::Rst,
            QueuePairState::Initialized => QpState::Init,
            QueuePairState::ReadyToReceive => QpState::Rtr,
            QueuePairState::ReadyToSend => QpState::Rts,
            QueuePairState::SendDrained => QpState::Sqd,
            QueuePairState::SendError => QpState::Sqer,
            QueuePairState::Error => QpState::Err,
            QueuePairState::Unknown(state) => {
                return Err(system("querying a queue pair", format!("unknown state {state}")));
            }
        })
    }
}
