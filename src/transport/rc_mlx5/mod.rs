//! `rc_mlx5`: reliable connected queue pairs of mlx5 devices, through barewire's own driver.
//!
//! An interface has one UAR page. What it shares with `rc_verbs` is in `transport::rc`.
//!
//! ```
//! use barewire::capability::{Flush, PutShort};
//! use barewire::transport::rc_mlx5::{Domain, Endpoint, Interface, SOFT_DEVICE};
//! use barewire::transport::{Domain as _, Endpoint as _};
//! use barewire::{Access, FlushMode, InterfaceConfig, Posted};
//!
//! let domain = Domain::open(SOFT_DEVICE)?;
//! let (interface, mut progress) = Interface::open(&domain, &InterfaceConfig::default())?;
//! // Two ends, usually in two processes. Each gets the other's addresses.
//! let (here, there) = (Endpoint::new(&interface)?, Endpoint::new(&interface)?);
//! here.connect(&there.address())?;
//! there.connect(&here.address())?;
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

#![expect(private_bounds, reason = "sealed: the drivers are this crate's own")]

mod atomic;
pub(in crate::transport) mod change;
mod domain;
pub(in crate::transport) mod driver;
pub(in crate::transport) mod failure;
#[cfg(feature = "verbs")]
pub(crate) mod hardware;
mod list;
mod message;
mod post;
mod probe;
mod progress;
mod receive;
pub(in crate::transport) mod requests;
mod revoked;
mod rma;
pub(in crate::transport) mod shared;
#[cfg(feature = "soft")]
mod soft;
pub(crate) mod tags;

pub use super::common::registered::RemoteKey;
pub use change::{View, Window};
pub use domain::{Domain, Memory, SOFT_DEVICE};
#[cfg(test)]
pub(in crate::transport) use tags::TagNumber;

use barewire_mlx5::Capabilities;
use barewire_mlx5::queue::send::{
    MAX_RDMA_SEGMENTS, MAX_SEND_INLINE, MAX_SEND_SEGMENTS, MAX_WRITE_INLINE,
};

use super::rc::{self, AM_HEADER, MAX_AM, MAX_AM_HEADER, MAX_ZCOPY, SEGMENT};
use crate::base::address::TransportId;
use crate::base::attributes::{
    AmLimits, AtomicOperations, Attributes, Flags, Place, RmaLimits, TagLimits,
};
use crate::base::config::{Choice, InterfaceConfig};
use crate::base::error::OpenError;
use crate::transport::common::message::SHORT_HEADER;
use requests::Requests;

/// The transport.
pub(crate) const ID: TransportId = TransportId::RcMlx5;

/// One end of a connection: a queue pair.
pub type Endpoint = rc::Endpoint<RcMlx5>;
/// A handle to an open interface.
pub type Interface = rc::Interface<RcMlx5>;
/// The progress of an interface.
pub type Progress = rc::Progress<RcMlx5>;

/// The transport as a type, for code that is generic over it.
#[derive(Debug)]
pub enum RcMlx5 {}

super::object::objects!(Memory, Progress, RemoteKey);

impl Interface {
    /// Opens an interface.
    ///
    /// # Errors
    /// [`OpenError::Setting`] for a setting with an invalid value, [`OpenError::Device`] if the
    /// device refuses.
    pub fn open(domain: &Domain, config: &InterfaceConfig) -> Result<(Self, Progress), OpenError> {
        Self::open_on(domain, config)
    }
}

const MAX_PUT_SHORT: usize = MAX_WRITE_INLINE;
const MAX_AM_SHORT: usize = MAX_SEND_INLINE - AM_HEADER - SHORT_HEADER;
const MAX_RMA_SLICES: usize = MAX_RDMA_SEGMENTS;
/// The header takes one segment.
const MAX_AM_SLICES: usize = MAX_SEND_SEGMENTS - 1;

/// Returns the longest payload of a short message.
const fn max_am_short<D: rc::Driver<Queue: Requests>>() -> usize {
    <D::Queue as Requests>::MAX_SEND_INLINE - AM_HEADER - SHORT_HEADER
}

/// Returns what an interface of this transport with these settings can do, on a device with common
/// limits and masked atomics.
pub fn attributes(config: &InterfaceConfig) -> Attributes {
    let rma = RmaLimits {
        max_short: 0,
        max_bcopy: SEGMENT,
        min_zcopy: 0,
        max_zcopy: MAX_ZCOPY,
        max_iov: MAX_RMA_SLICES,
    };
    let matches = config.tag_matching != Choice::No;
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
        tag: if matches { tags::limits(config.tag_list_size) } else { TagLimits::default() },
        atomic32: AtomicOperations::all(),
        atomic64: AtomicOperations::all(),
        flags: Flags::CONNECT_TO_EP
            | Flags::NETWORK
            | Flags::ERRHANDLE_REMOTE_MEM
            | Flags::RMA
            | Flags::MESSAGES
            | Flags::EP_CHECK
            | Flags::ATOMIC_DEVICE
            | Flags::WINDOWS
            | Flags::VIEWS
            | Flags::DEVICE_MEMORY
            | Flags::WHOLE_ADDRESS_SPACE
            | Flags::DMA_BUF
            | if matches { Flags::TAGS } else { Flags::SEND_INVALIDATE },
        overhead_ns: 40.0,
        latency_ns: 800.0,
        latency_per_endpoint_ns: 1.0,
        bandwidth: 12.5e9,
        shared_duplex: false,
        place: Place::Network,
        priority: 30,
        max_endpoints: config.max_endpoints,
    }
}

/// Returns what an interface can do on a device with these capabilities.
pub(in crate::transport) fn attributes_of(
    config: &InterfaceConfig,
    capabilities: &Capabilities,
) -> Attributes {
    let mut attributes = attributes(config);
    let max_message = usize::try_from(capabilities.max_message).unwrap_or(usize::MAX);
    attributes.put.max_zcopy = MAX_ZCOPY.min(max_message);
    attributes.get.max_zcopy = attributes.put.max_zcopy;
    if !capabilities.masked_atomics {
        attributes.atomic32 = AtomicOperations::empty();
        attributes.atomic64 = AtomicOperations::INFINIBAND;
    }
    if capabilities.log_max_tags == 0 {
        attributes.tag = TagLimits::default();
        attributes.flags.remove(Flags::TAGS);
        attributes.flags.insert(Flags::SEND_INVALIDATE);
    }
    restrict(&mut attributes.flags, capabilities);
    attributes
}

/// Removes the kinds of memory that a device with these capabilities lacks.
pub(in crate::transport) fn restrict(flags: &mut Flags, capabilities: &Capabilities) {
    if capabilities.device_memory == 0 {
        flags.remove(Flags::DEVICE_MEMORY);
    }
    if !capabilities.implicit_paging {
        flags.remove(Flags::WHOLE_ADDRESS_SPACE);
    }
}
