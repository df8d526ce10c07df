//! The attributes of an interface: operations, limits and costs, as data.

use bitflags::bitflags;

bitflags! {
    /// Features of an interface besides its limits.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Flags: u64 {
        /// Endpoints connect endpoint to endpoint.
        const CONNECT_TO_EP = 1 << 0;
        /// Endpoints connect to an interface address.
        const CONNECT_TO_INTERFACE = 1 << 1;
        /// Requests can wait for resources on the endpoint.
        const PENDING = 1 << 2;
        /// The failure of a peer is detected and reported.
        const ERRHANDLE_PEER_FAILURE = 1 << 3;
        /// Remote memory errors (a wrong or expired key, range or right) are reported and not
        /// fatal.
        const ERRHANDLE_REMOTE_MEM = 1 << 4;
        /// Put from the argument.
        const PUT_SHORT = 1 << 8;
        /// Put through a buffer of the interface.
        const PUT_BCOPY = 1 << 9;
        /// Put straight from registered memory.
        const PUT_ZCOPY = 1 << 10;
        /// Get through a buffer of the interface.
        const GET_BCOPY = 1 << 11;
        /// Get straight into registered memory.
        const GET_ZCOPY = 1 << 12;
        /// Active message from the argument.
        const AM_SHORT = 1 << 13;
        /// Active message through a buffer of the interface.
        const AM_BCOPY = 1 << 14;
        /// Active message straight from registered memory.
        const AM_ZCOPY = 1 << 15;
        /// The CPU carries out atomics, which are atomic with the CPU's own.
        const ATOMIC_CPU = 1 << 16;
        /// The device carries out atomics, which are atomic only among the device's operations.
        const ATOMIC_DEVICE = 1 << 17;
        /// Can connect two processes.
        const INTER_PROCESS = 1 << 18;
        /// Can connect two nodes.
        const INTER_NODE = 1 << 19;
        /// A thread can sleep on the interface's event descriptor.
        const EVENT_FD = 1 << 20;
        /// Active message from the argument, in pieces.
        const AM_SHORT_IOV = 1 << 21;
        /// The peer's memory can be mapped: [`Endpoint::rkey_ptr`](crate::Endpoint::rkey_ptr).
        const RKEY_PTR = 1 << 22;
        /// [`Endpoint::check`](crate::Endpoint::check) is supported.
        const EP_CHECK = 1 << 23;
        /// The device is a model in software, for tests and development.
        const SOFTWARE_DEVICE = 1 << 24;
        /// Endpoints bind memory windows: [`Window`](crate::Window).
        const WINDOWS = 1 << 25;
        /// Endpoints put several ranges of memory under one key: [`View`](crate::View).
        const VIEWS = 1 << 26;
        /// Messages end the access by a key of the peer's window:
        /// [`Endpoint::am_short_invalidate`](crate::Endpoint::am_short_invalidate). Not over
        /// interfaces with [`TAGS`](Self::TAGS), whose windows are for every peer of the domain.
        const SEND_INVALIDATE = 1 << 27;
        /// Memory can lie on the device: [`Domain::allocate_on_device`](crate::Domain::allocate_on_device).
        const DEVICE_MEMORY = 1 << 30;
        /// One key can name all memory of the process:
        /// [`Domain::whole_address_space`](crate::Domain::whole_address_space).
        const WHOLE_ADDRESS_SPACE = 1 << 31;
        /// Memory of other devices can be registered by the descriptor of its dma-buf, if the kernel
        /// and the device support it:
        /// [`Domain::register_dma_buf`](crate::Domain::register_dma_buf).
        const DMA_BUF = 1 << 32;
        /// The device matches tags, and there are tagged messages from the argument:
        /// [`Endpoint::tag_short`](crate::Endpoint::tag_short).
        const TAG_EAGER_SHORT = 1 << 33;
        /// Tagged messages through a buffer of the interface:
        /// [`Endpoint::tag_bcopy`](crate::Endpoint::tag_bcopy).
        const TAG_EAGER_BCOPY = 1 << 34;
        /// Tagged messages straight from registered memory:
        /// [`Endpoint::tag_zcopy`](crate::Endpoint::tag_zcopy).
        const TAG_EAGER_ZCOPY = 1 << 35;
        /// The peer's device reads the data of a tagged message when a receive matches it:
        /// [`Endpoint::tag_rendezvous`](crate::Endpoint::tag_rendezvous).
        const TAG_RNDV_ZCOPY = 1 << 36;
    }
}

bitflags! {
    /// The atomics of an interface on words of one size; see [`AtomicOp`](crate::AtomicOp).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct AtomicOperations: u32 {
        /// Add without result.
        const ADD = 1 << 0;
        /// Add, fetching the old value.
        const FETCH_ADD = 1 << 1;
        /// Compare and swap, fetching the old value.
        const COMPARE_SWAP = 1 << 2;
        /// And without result.
        const AND = 1 << 3;
        /// Or without result.
        const OR = 1 << 4;
        /// Exclusive or without result.
        const XOR = 1 << 5;
        /// And, fetching the old value.
        const FETCH_AND = 1 << 6;
        /// Or, fetching the old value.
        const FETCH_OR = 1 << 7;
        /// Exclusive or, fetching the old value.
        const FETCH_XOR = 1 << 8;
        /// Swap, fetching the old value.
        const SWAP = 1 << 9;
    }
}

impl Flags {
    /// Sets what distinguishes the software HCA from other devices, if the device is one.
    #[cfg(feature = "mlx5")]
    pub(crate) fn note_software(&mut self, is_software: bool) {
        self.set(Self::SOFTWARE_DEVICE, is_software);
        if is_software {
            self.remove(Self::DMA_BUF);
        }
    }

    /// Every put and get.
    pub(crate) const RMA: Self = Self::PUT_SHORT
        .union(Self::PUT_BCOPY)
        .union(Self::PUT_ZCOPY)
        .union(Self::GET_BCOPY)
        .union(Self::GET_ZCOPY);
    /// Every active message.
    pub(crate) const MESSAGES: Self =
        Self::AM_SHORT.union(Self::AM_SHORT_IOV).union(Self::AM_BCOPY).union(Self::AM_ZCOPY);
    /// Every tagged message.
    #[cfg(feature = "mlx5")]
    pub(crate) const TAGS: Self = Self::TAG_EAGER_SHORT
        .union(Self::TAG_EAGER_BCOPY)
        .union(Self::TAG_EAGER_ZCOPY)
        .union(Self::TAG_RNDV_ZCOPY);
    /// Between processes of all nodes, with failures of peers detected and a descriptor to sleep
    /// on.
    pub(crate) const NETWORK: Self = Self::PENDING
        .union(Self::EVENT_FD)
        .union(Self::ERRHANDLE_PEER_FAILURE)
        .union(Self::INTER_PROCESS)
        .union(Self::INTER_NODE);
}

impl AtomicOperations {
    /// The atomics of InfiniBand (IBTA 9.4.5). An add without result is a fetch-add there.
    pub const INFINIBAND: Self = Self::ADD.union(Self::FETCH_ADD).union(Self::COMPARE_SWAP);
}

/// Limits of puts or gets, in bytes. Zero for an operation that the transport lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RmaLimits {
    /// Longest short payload.
    pub max_short: usize,
    /// Longest buffered payload.
    pub max_bcopy: usize,
    /// Shortest zero-copy payload.
    pub min_zcopy: usize,
    /// Longest zero-copy payload, all slices together.
    pub max_zcopy: usize,
    /// Slices per zero-copy operation.
    pub max_iov: usize,
}

/// Limits of active messages, in bytes. Zero for an operation that the transport lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct AmLimits {
    /// Longest short payload, besides the 8-byte header.
    pub max_short: usize,
    /// Longest buffered payload.
    pub max_bcopy: usize,
    /// Shortest zero-copy payload.
    pub min_zcopy: usize,
    /// Longest zero-copy message: header and slices together.
    pub max_zcopy: usize,
    /// Slices per zero-copy message.
    pub max_iov: usize,
    /// Longest header of a zero-copy message.
    pub max_header: usize,
}

/// Limits of tagged messages that the device matches. Zero if it matches none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TagLimits {
    /// Longest short payload.
    pub max_short: usize,
    /// Longest buffered payload.
    pub max_bcopy: usize,
    /// Longest zero-copy payload of an eager message, all slices together.
    pub max_zcopy: usize,
    /// Slices per eager message.
    pub max_iov: usize,
    /// Longest payload of a rendezvous.
    pub max_rendezvous: usize,
    /// Longest header of the program in the announcement of a rendezvous.
    pub max_header: usize,
    /// Receives in the list at a time.
    pub max_receives: u32,
}

/// Which processes an interface can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Place {
    /// This process.
    Process,
    /// Processes of this node, through memory.
    Node,
    /// Processes of this node, through a network device that leads to no other node.
    Loopback,
    /// Processes of this and other nodes.
    Network,
}

/// What an interface can do, its limits, and the costs that its model predicts.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Attributes {
    /// Limits of puts.
    pub put: RmaLimits,
    /// Limits of gets.
    pub get: RmaLimits,
    /// Limits of active messages.
    pub am: AmLimits,
    /// Limits of tagged messages that the device matches.
    pub tag: TagLimits,
    /// Atomics on words of 4 bytes.
    pub atomic32: AtomicOperations,
    /// Atomics on words of 8 bytes.
    pub atomic64: AtomicOperations,
    /// Other features.
    pub flags: Flags,
    /// CPU time of one post, in nanoseconds.
    pub overhead_ns: f64,
    /// Time of one message over the wire, in nanoseconds.
    pub latency_ns: f64,
    /// Latency that each further endpoint of the interface adds, in nanoseconds: the device caches
    /// the state of some endpoints only.
    pub latency_per_endpoint_ns: f64,
    /// Bytes per second.
    pub bandwidth: f64,
    /// Both directions share the bandwidth.
    pub shared_duplex: bool,
    /// Which processes can be reached.
    pub place: Place,
    /// Of two transports that are otherwise equal, the one with the larger number is preferred.
    pub priority: u8,
    /// Endpoints that one interface can have.
    pub max_endpoints: u32,
}
