//! `rc_verbs`: reliable connected queue pairs of any RDMA device, through libibverbs, for devices
//! that barewire's own driver does not support. `transport::rc` has the code that it shares with
//! `rc_mlx5`.
//!
//! The `wr_id` of a request has the endpoint's slot in its upper half. The lower half has the count
//! and the operation of a send request, or the buffer of a receive request.

mod atomic;
mod driver;
mod message;
mod post;
mod progress;
mod receive;
mod rma;

pub use super::rdma::{Domain, Memory, RemoteKey};

use super::rc::{self, AM_HEADER, MAX_AM, MAX_AM_HEADER, MAX_ZCOPY, SEGMENT};
use crate::base::address::TransportId;
use crate::base::attributes::{
    AmLimits, AtomicOperations, Attributes, Flags, Place, RmaLimits, TagLimits,
};
use crate::base::config::InterfaceConfig;
use crate::base::error::OpenError;
use crate::transport::common::message::SHORT_HEADER;

/// The transport.
pub(crate) const ID: TransportId = TransportId::RcVerbs;

/// One end of a connection: a queue pair.
pub type Endpoint = rc::Endpoint<RcVerbs>;
/// A handle to an open interface.
pub type Interface = rc::Interface<RcVerbs>;
/// The progress of an interface.
pub type Progress = rc::Progress<RcVerbs>;

/// The transport as a type, for code that is generic over it.
#[derive(Debug)]
pub enum RcVerbs {}

super::object::objects!(Progress, RemoteKey);

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

/// Inline bytes to request for a queue pair; a device may grant fewer.
const INLINE: usize = 240;
/// Scatter/gather elements to request for a queue pair; a device may grant fewer.
const MAX_ELEMENTS: usize = 12;

/// The limits that a device grants.
#[derive(Clone, Copy, Debug)]
struct Grants {
    inline: usize,
    elements: usize,
    read_elements: usize,
    max_message: usize,
    atomics: bool,
    implicit_paging: bool,
}

impl Grants {
    /// What devices commonly grant.
    const COMMON: Self = Self {
        inline: INLINE,
        elements: MAX_ELEMENTS,
        read_elements: MAX_ELEMENTS,
        max_message: MAX_ZCOPY,
        atomics: true,
        implicit_paging: true,
    };
}

/// Returns what an interface of this transport with these settings can do, on a device with common
/// limits.
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
        | Flags::NETWORK
        | Flags::EP_CHECK
        | Flags::ERRHANDLE_REMOTE_MEM
        | Flags::PUT_BCOPY
        | Flags::PUT_ZCOPY
        | Flags::GET_BCOPY
        | Flags::GET_ZCOPY
        | Flags::AM_BCOPY
        | Flags::AM_ZCOPY;
    let am_short = grants.inline.saturating_sub(AM_HEADER + SHORT_HEADER);
    flags.set(Flags::PUT_SHORT, grants.inline > 0);
    flags.set(Flags::AM_SHORT | Flags::AM_SHORT_IOV, am_short > 0);
    flags.set(Flags::ATOMIC_DEVICE, grants.atomics);
    flags.set(Flags::WHOLE_ADDRESS_SPACE, grants.implicit_paging);
    flags |= Flags::DMA_BUF;
    Attributes {
        put: RmaLimits { max_short: grants.inline, ..rma },
        get: RmaLimits { max_iov: grants.read_elements, ..rma },
        am: AmLimits {
            max_short: am_short,
            max_bcopy: MAX_AM,
            min_zcopy: 0,
            max_zcopy: MAX_AM,
            // The header takes one element.
            max_iov: grants.elements - 1,
            max_header: MAX_AM_HEADER,
        },
        tag: TagLimits::default(),
        atomic32: AtomicOperations::empty(),
        atomic64: if grants.atomics {
            AtomicOperations::INFINIBAND
        } else {
            AtomicOperations::empty()
        },
        flags,
        overhead_ns: 75.0,
        latency_ns: 900.0,
        latency_per_endpoint_ns: 1.0,
        bandwidth: 12.5e9,
        shared_duplex: false,
        place: Place::Network,
        priority: 20,
        max_endpoints: config.max_endpoints,
    }
}
