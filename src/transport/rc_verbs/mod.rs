//! `rc_verbs`: reliable connected queue pairs of any RDMA device, through libibverbs.
//!
//! For devices that barewire's own driver does not drive. It is shaped as `rc_mlx5` is: a domain is one port of a device and one protection
//! domain; an interface has one completion queue for both directions and one pool of registered buffers; an endpoint is one queue pair. The
//! completion queue has an entry for every request that the queue pairs of the interface can have outstanding.
//!
//! A request's number (`wr_id`) says whose it is and which: the endpoint's place in the upper half; in the lower one the count of the send
//! request and what it does, or the buffer of the receive request.
//!
//! On the wire an active message is a SEND with 4 bytes in front: the handler id and 3 reserved zeros.

mod address;
mod atomic;
mod endpoint;
mod flush;
mod interface;
mod message;
mod post;
mod progress;
mod receive;
mod rma;
mod state;

pub use super::rdma::{Domain, Memory, RemoteKey};
pub use endpoint::Endpoint;
pub use interface::Interface;
pub use progress::Progress;

use crate::address::{DeviceAddress, EndpointAddress, TransportId};
use crate::attributes::{AmLimits, AtomicOperations, Attributes, Flags, RmaLimits};
use crate::config::InterfaceConfig;
use crate::error::{ConnectError, OpenError};
use crate::message::{HOME, SHORT_HEADER};
use crate::transport::Transport;

/// The name of the transport.
pub const NAME: &str = TransportId::RcVerbs.name();

/// Bytes that a buffered operation or an active message carries, the message's header included.
const SEGMENT: usize = 8256;
/// Handler id and reserved bytes in front of every active message.
const AM_HEADER: usize = 4;
/// Where data starts in a buffer.
const DATA: usize = HOME;
/// Where a message starts in a buffer, so that what follows its header is aligned to 8 bytes.
const MESSAGE: usize = DATA - AM_HEADER;
/// Bytes of a buffer: `DATA` and a segment, in whole cache lines.
const BUFFER: usize = (DATA + SEGMENT).next_multiple_of(64);

/// Bytes that a request is asked to carry itself; a device may grant fewer.
const INLINE: usize = 240;
const MAX_AM: usize = SEGMENT - AM_HEADER;
/// Scatter/gather elements that a request is asked to have; a device may have fewer.
const MAX_ELEMENTS: usize = 12;
const MAX_AM_HEADER: usize = 256;
/// Longest message of a zero-copy put or get, unless the device says less.
const MAX_ZCOPY: usize = 1 << 30;

/// What a device grants.
#[derive(Clone, Copy, Debug)]
struct Grants {
    inline: usize,
    elements: usize,
    read_elements: usize,
    max_message: usize,
    atomics: bool,
}

impl Grants {
    /// What devices commonly grant.
    const COMMON: Self = Self {
        inline: INLINE,
        elements: MAX_ELEMENTS,
        read_elements: MAX_ELEMENTS,
        max_message: MAX_ZCOPY,
        atomics: true,
    };
}

/// The transport as a type, for code that is generic over it.
#[derive(Debug)]
pub enum RcVerbs {}

impl Transport for RcVerbs {
    const ID: TransportId = TransportId::RcVerbs;
    type Domain = Domain;
    type Memory = Memory;
    type RemoteKey = RemoteKey;
    type Interface = Interface;
    type Progress = Progress;
    type Endpoint = Endpoint;

    fn attributes(config: &InterfaceConfig) -> Attributes {
        attributes(config)
    }

    fn open(device: &str) -> Result<Domain, OpenError> {
        Domain::open(device)
    }

    fn open_interface(domain: &Domain, config: &InterfaceConfig) -> Result<(Interface, Progress), OpenError> {
        Interface::open(domain, config)
    }

    fn open_endpoint(interface: &Interface) -> Result<Endpoint, OpenError> {
        Endpoint::new(interface)
    }

    fn connect(
        endpoint: &Endpoint,
        device: &DeviceAddress,
        address: &EndpointAddress,
    ) -> Result<(), ConnectError> {
        endpoint.connect(device, address)
    }
}

super::object::objects!(Interface, Progress, Endpoint);

/// What an interface of this transport with these settings can do, on a device with common limits.
pub fn attributes(config: &InterfaceConfig) -> Attributes {
    attributes_of(config, &Grants::COMMON)
}

fn attributes_of(config: &InterfaceConfig, grants: &Grants) -> Attributes {
    let rma = RmaLimits {
        max_short: 0,
        max_bcopy: SEGMENT,
        min_zcopy: 0,
        max_zcopy: MAX_ZCOPY.min(grants.max_message),
        max_iov: grants.elements,
    };
    let mut flags = Flags::CONNECT_TO_EP
        | Flags::PENDING
        | Flags::EVENT_FD
        | Flags::EP_CHECK
        | Flags::ERRHANDLE_PEER_FAILURE
        | Flags::ERRHANDLE_REMOTE_MEM
        | Flags::PUT_BCOPY
        | Flags::PUT_ZCOPY
        | Flags::GET_BCOPY
        | Flags::GET_ZCOPY
        | Flags::AM_BCOPY
        | Flags::AM_ZCOPY
        | Flags::INTER_PROCESS
        | Flags::INTER_NODE;
    let am_short = grants.inline.saturating_sub(AM_HEADER + SHORT_HEADER);
    flags.set(Flags::PUT_SHORT, grants.inline > 0);
    flags.set(Flags::AM_SHORT | Flags::AM_SHORT_IOV, am_short > 0);
    flags.set(Flags::ATOMIC_DEVICE, grants.atomics);
    Attributes {
        put: RmaLimits { max_short: grants.inline, ..rma },
        get: RmaLimits { max_iov: grants.read_elements, ..rma },
        am: AmLimits {
            max_short: am_short,
            max_bcopy: MAX_AM,
            min_zcopy: 0,
            max_zcopy: MAX_AM,
            // One element is the header's.
            max_iov: grants.elements - 1,
            max_header: MAX_AM_HEADER,
        },
        atomic32: AtomicOperations::empty(),
        atomic64: if grants.atomics { AtomicOperations::INFINIBAND } else { AtomicOperations::empty() },
        flags,
        overhead_ns: 75.0,
        latency_ns: 900.0,
        bandwidth: 12.5e9,
        max_endpoints: config.max_endpoints,
    }
}
