//! Support for tests that need an RDMA device. They are ignored by default. `tests/verbs.rs` of
//! `barewire-cli` runs them with the software HCA as `mlx5_0`. To run them with a device of the
//! machine: `BAREWIRE_DEVICE=mlx5_0 cargo test -p barewire-verbs --features rdma-sys --tests --
//! --ignored`

#![allow(dead_code, unsafe_code, reason = "each test binary uses some of it; memory is registered")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use barewire_verbs::{
    Access, Capacity, CompletionQueue, Context, Element, Initialize, LinkLayer, MemoryRegion, Port,
    ProtectionDomain, QueuePair, QueuePairKind, QueuePairOptions, ReadyToReceive, ReadyToSend,
    Remote, Route, WorkCompletion,
};

/// A timeout that suffices on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// The name of the device under test.
pub(crate) fn device() -> String {
    std::env::var("BAREWIRE_DEVICE").unwrap_or_else(|_| "mlx5_0".to_owned())
}

/// Polls until there is a result, or panics after the timeout.
pub(crate) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "timeout: {what}");
        std::thread::yield_now();
    }
}

/// Page-aligned zeroed memory for a device.
pub(crate) struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the value owns its allocation, which any thread may free.
unsafe impl Send for Pages {}

impl Pages {
    pub(crate) fn new(length: usize) -> Self {
        let layout = Layout::from_size_align(length, 4096).unwrap();
        // SAFETY: `alloc_zeroed` requires a size other than zero, and every test passes one.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
        Self { start, layout }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn address(&self, offset: usize) -> u64 {
        assert!(offset < self.layout.size());
        self.start.as_ptr() as u64 + offset as u64
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.layout.size());
        for (at, &byte) in bytes.iter().enumerate() {
            // SAFETY: the index was checked to be inside the allocation. The access is volatile,
            // because a device may read at the same time.
            unsafe { self.start.add(offset + at).write_volatile(byte) };
        }
    }

    pub(crate) fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        assert!(offset + N <= self.layout.size());
        // SAFETY: the index was checked to be inside the allocation. The access is volatile,
        // because a device may write at the same time.
        std::array::from_fn(|at| unsafe { self.start.add(offset + at).read_volatile() })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout, and is freed only here.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Port 1, which must be active.
pub(crate) fn port(context: &Context) -> Port {
    context.query_port(1).unwrap()
}

/// The route from the port to itself: by LID on InfiniBand, by the chosen GID on Ethernet.
pub(crate) fn to_itself(context: &Context, domain: &ProtectionDomain) -> Route {
    let port = port(context);
    if port.link_layer == LinkLayer::Ethernet {
        let entry = context.choose_gid(domain, &port).unwrap().entry;
        Route::to_gid(port.number, entry.gid, u8::try_from(entry.index).unwrap())
    } else {
        Route::to_lid(port.number, port.lid)
    }
}

/// Parameters of a small queue pair whose completions go to `queue`.
pub(crate) fn options(kind: QueuePairKind, queue: &CompletionQueue) -> QueuePairOptions {
    QueuePairOptions {
        kind,
        send_queue: queue.reference(),
        receive_queue: queue.reference(),
        shared_receive: None,
        capacity: Capacity {
            sends: 16,
            receives: 16,
            send_elements: 2,
            receive_elements: 1,
            inline: 64,
        },
        signal_all: false,
    }
}

/// A small RC queue pair whose completions go to `queue`.
pub(crate) fn reliable(domain: &ProtectionDomain, queue: &CompletionQueue) -> QueuePair {
    QueuePair::new(domain, &options(QueuePairKind::ReliableConnection, queue)).unwrap()
}

/// Waits for the next completion.
pub(crate) fn completion(queue: &CompletionQueue) -> WorkCompletion {
    let mut found = [WorkCompletion::empty()];
    wait_for("a completion", || !queue.poll(&mut found).unwrap().is_empty());
    let [found] = found;
    found
}

/// Page-aligned memory, registered with all access flags for peers.
pub(crate) struct Buffer {
    pub(crate) region: MemoryRegion,
    pub(crate) pages: Pages,
}

impl Buffer {
    pub(crate) fn new(domain: &ProtectionDomain) -> Self {
        let pages = Pages::new(8192);
        // SAFETY: the memory is read and written by volatile accesses only. The region is dropped,
        // and so deregistered, before the memory.
        let region =
            unsafe { MemoryRegion::register(domain, pages.start(), 8192, all_access()) }.unwrap();
        Self { region, pages }
    }

    pub(crate) fn element(&self, offset: u64, length: u32) -> Element {
        Element::of(&self.region, offset, length)
    }

    pub(crate) fn remote(&self, offset: u64) -> Remote {
        Remote { address: self.region.address() + offset, key: self.region.remote_key() }
    }
}

/// All access flags for peers.
pub(crate) fn all_access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

/// Brings a queue pair to RTS, connected to queue pair `peer` by `route`.
pub(crate) fn connect<A>(qp: &QueuePair<A>, peer: u32, route: Route) {
    qp.initialize(&Initialize { port: 1, partition_index: 0, access: all_access(), queue_key: 0 })
        .unwrap();
    let receive = ReadyToReceive {
        mtu: 1024,
        peer,
        packet_sequence_number: 7,
        responder_resources: 4,
        rnr_timer: 12,
        route,
    };
    qp.ready_to_receive(Some(&receive)).unwrap();
    let send = ReadyToSend {
        packet_sequence_number: 7,
        timeout: 14,
        retries: 7,
        rnr_retries: 7,
        initiator_depth: 4,
    };
    qp.ready_to_send(&send).unwrap();
}
