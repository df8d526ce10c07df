//! `rc_mlx5`: reliable connected queue pairs of mlx5 devices, through barewire's own driver.
//!
//! A domain is one device and one protection domain; an interface has one UAR page, one completion queue for both directions
//! and one pool of registered buffers; an endpoint is one queue pair. Credits are bounded so that the completion
//! queue, which the device does not check for overruns, cannot overrun: it has an entry for every WQE that the queue
//! pairs of the interface can have outstanding.
//!
//! On the wire an active message is a SEND with 4 bytes in front: the handler id and 3 reserved zeros.
//!
//! ```
//! use barewire::transport::rc_mlx5::{Domain, Endpoint, Interface, SOFT_DEVICE};
//! use barewire::{Access, FlushMode, InterfaceConfig, Posted};
//!
//! let domain = Domain::open(SOFT_DEVICE)?;
//! let (interface, mut progress) = Interface::open(&domain, &InterfaceConfig::default())?;
//! // Two ends, which would be in two processes; each gets the other's addresses.
//! let (here, there) = (Endpoint::new(&interface)?, Endpoint::new(&interface)?);
//! here.connect(&interface.device_address(), &there.address())?;
//! there.connect(&interface.device_address(), &here.address())?;
//!
//! let memory = domain.allocate(4096, Access::REMOTE_WRITE)?;
//! let key = domain.unpack_key(&memory.pack_key())?;
//! here.put_short(b"eight by", memory.address() + 64, &key)?;
//! while here.flush(FlushMode::Remote, None)? == Posted::InProgress {
//!     progress.progress();
//! }
//! let mut bytes = [0; 8];
//! memory.read(64, &mut bytes)?;
//! assert_eq!(&bytes, b"eight by");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod address;
mod atomic;
mod domain;
mod endpoint;
mod failure;
mod flush;
#[cfg(feature = "verbs")]
pub(crate) mod hardware;
mod interface;
mod list;
mod message;
mod post;
mod progress;
mod receive;
mod rma;
mod state;

pub use domain::{Domain, Memory, RemoteKey, SOFT_DEVICE};
pub use endpoint::Endpoint;
pub use interface::Interface;
pub use progress::Progress;

use barewire_mlx5::queue::send::{MAX_RDMA_SEGMENTS, MAX_SEND_INLINE, MAX_SEND_SEGMENTS, MAX_WRITE_INLINE};

use crate::address::{DeviceAddress, EndpointAddress, TransportId};
use crate::attributes::{AmLimits, AtomicOperations, Attributes, Flags, RmaLimits};
use crate::config::InterfaceConfig;
use crate::error::{ConnectError, OpenError};
use crate::message::{HOME, SHORT_HEADER};
use crate::transport::Transport;

/// The name of the transport.
pub const NAME: &str = TransportId::RcMlx5.name();

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

const MAX_PUT_SHORT: usize = MAX_WRITE_INLINE;
const MAX_AM_SHORT: usize = MAX_SEND_INLINE - AM_HEADER - SHORT_HEADER;
const MAX_AM: usize = SEGMENT - AM_HEADER;
const MAX_RMA_SLICES: usize = MAX_RDMA_SEGMENTS;
/// One segment is the header's.
const MAX_AM_SLICES: usize = MAX_SEND_SEGMENTS - 1;
const MAX_AM_HEADER: usize = 256;
/// Longest message of a zero-copy put or get, unless the device says less.
const MAX_ZCOPY: usize = 1 << 30;

/// The transport as a type, for code that is generic over it.
#[derive(Debug)]
pub enum RcMlx5 {}

impl Transport for RcMlx5 {
    const ID: TransportId = TransportId::RcMlx5;
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

super::object::objects!(Domain, Memory, Interface, Progress, Endpoint);

/// What an interface of this transport with these settings can do, on a device with common limits and masked atomics.
pub fn attributes(config: &InterfaceConfig) -> Attributes {
    let rma = RmaLimits {
        max_short: 0,
        max_bcopy: SEGMENT,
        min_zcopy: 0,
        max_zcopy: MAX_ZCOPY,
        max_iov: MAX_RMA_SLICES,
    };
    Attributes {
        put: RmaLimits { max_short: MAX_PUT_SHORT, ..rma },
        get: rma,
        am: AmLimits {
            max_short: MAX_AM_SHORT,
            max_bcopy: MAX_AM,
            min_zcopy: 0,
            max_zcopy: MAX_AM,
            max_iov: MAX_AM_SLICES,
            max_header: MAX_AM_HEADER,
        },
        atomic32: AtomicOperations::all(),
        atomic64: AtomicOperations::all(),
        flags: Flags::CONNECT_TO_EP
            | Flags::PENDING
            | Flags::ERRHANDLE_PEER_FAILURE
            | Flags::ERRHANDLE_REMOTE_MEM
            | Flags::PUT_SHORT
            | Flags::PUT_BCOPY
            | Flags::PUT_ZCOPY
            | Flags::GET_BCOPY
            | Flags::GET_ZCOPY
            | Flags::AM_SHORT
            | Flags::AM_SHORT_IOV
            | Flags::EP_CHECK
            | Flags::AM_BCOPY
            | Flags::AM_ZCOPY
            | Flags::ATOMIC_DEVICE
            | Flags::INTER_PROCESS
            | Flags::INTER_NODE
            | Flags::EVENT_FD,
        overhead_ns: 40.0,
        latency_ns: 800.0,
        bandwidth: 12.5e9,
        max_endpoints: config.max_endpoints,
    }
}

/// The same on a device without masked atomics.
fn without_masked_atomics(attributes: &mut Attributes) {
    attributes.atomic32 = AtomicOperations::empty();
    attributes.atomic64 = AtomicOperations::INFINIBAND;
}
