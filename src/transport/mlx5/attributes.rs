//! What interfaces of connected transports can do.

use barewire_mlx5::Capabilities;
use barewire_mlx5::queue::send::{
    MAX_RDMA_SEGMENTS, MAX_SEND_INLINE, MAX_SEND_SEGMENTS, MAX_WRITE_INLINE,
};

use crate::base::attributes::{
    AmLimits, AtomicOperations, Attributes, Flags, Place, RmaLimits, TagLimits,
};
use crate::base::config::InterfaceConfig;
use crate::transport::common::message::SHORT_HEADER;
use crate::transport::rc::{AM_HEADER, MAX_AM, MAX_AM_HEADER, MAX_ZCOPY, SEGMENT};

const MAX_PUT_SHORT: usize = MAX_WRITE_INLINE;
const MAX_AM_SHORT: usize = MAX_SEND_INLINE - AM_HEADER - SHORT_HEADER;
pub(super) const MAX_RMA_SLICES: usize = MAX_RDMA_SEGMENTS;
/// The header takes one segment.
pub(super) const MAX_AM_SLICES: usize = MAX_SEND_SEGMENTS - 1;

/// Returns what an interface with these settings can do whose endpoints have a queue pair each, on a
/// device with common limits and masked atomics.
pub(in crate::transport) fn attributes(config: &InterfaceConfig) -> Attributes {
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
        tag: TagLimits::default(),
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
            | Flags::DMA_BUF,
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

/// Restricts the attributes to what a device with these capabilities has, whose queues of the
/// transport have masked atomics if `is_masked`.
pub(in crate::transport) fn restrict(
    attributes: &mut Attributes,
    capabilities: &Capabilities,
    is_masked: bool,
) {
    let max_message = usize::try_from(capabilities.max_message).unwrap_or(usize::MAX);
    attributes.put.max_zcopy = MAX_ZCOPY.min(max_message);
    attributes.get.max_zcopy = attributes.put.max_zcopy;
    if !is_masked {
        attributes.atomic32 = AtomicOperations::empty();
        attributes.atomic64 = AtomicOperations::INFINIBAND;
    }
    let flags = &mut attributes.flags;
    if capabilities.device_memory == 0 {
        flags.remove(Flags::DEVICE_MEMORY);
    }
    if !capabilities.implicit_paging {
        flags.remove(Flags::WHOLE_ADDRESS_SPACE);
    }
}
