//! `dc_mlx5`: dynamic connections (DC) of mlx5 devices, through barewire's own driver.
//!
//! The transport is meant for many peers: an endpoint is an address, without a queue pair. The
//! endpoints of an interface take its initiators (DCI) in turn, [`InterfaceConfig::dci_count`] of
//! them, and one target (DCT) receives from every peer into one shared receive queue. The
//! operations and their order are those of reliable connections.
//!
//! An endpoint takes an initiator for its first post and returns it when nothing is outstanding,
//! after the callbacks; [`InterfaceConfig::dci_policy`] says which. While all are taken, posts
//! return [`PostError::NoResource`](crate::PostError::NoResource), and requests wait in turn.
//!
//! After [`InterfaceConfig::message_window`] messages, an endpoint sends no more of them until its
//! peer has granted more. So the messages of an endpoint whose peer makes no progress do not
//! occupy an initiator for ever.
//!
//! If an operation fails, the initiator is reset, and its endpoint alone fails.
//!
//! ```
//! use barewire::capability::{Flush, PutShort};
//! use barewire::transport::dc_mlx5::{Domain, Interface, SOFT_DEVICE};
//! use barewire::transport::{Domain as _, Interface as _};
//! use barewire::{Access, FlushMode, InterfaceConfig, Posted};
//!
//! let domain = Domain::open(SOFT_DEVICE)?;
//! let (interface, mut progress) = Interface::open(&domain, &InterfaceConfig::default())?;
//! let endpoint = interface.connect(&interface.address())?;
//! let memory = domain.allocate(4096, Access::REMOTE_WRITE)?;
//! let key = domain.unpack_key(&memory.pack_key())?;
//! endpoint.put_short(b"eight by", memory.address() + 64, &key)?;
//! while endpoint.flush(FlushMode::Remote, None)? == Posted::InProgress {
//!     progress.progress();
//! }
//! let mut bytes = [0; 8];
//! memory.read(64, &mut bytes)?;
//! assert_eq!(&bytes, b"eight by");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod address;
mod atomic;
mod change;
mod completion;
mod control;
mod destinations;
mod endpoint;
mod initiator;
mod interface;
mod message;
mod pool;
mod post;
mod progress;
mod rma;
mod state;

pub use super::mlx5::{Domain, Memory, RemoteKey, SOFT_DEVICE, View, Window};
pub(crate) use address::ID;
pub use progress::Progress;

use barewire_mlx5::Capabilities;
use barewire_mlx5::layouts::wqe::AddressVector;
use barewire_mlx5::queue::send::Destination as _;

use super::rc::AM_HEADER;
use super::{handle, mlx5};
use crate::base::address::TransportId;
use crate::base::attributes::{AmLimits, Attributes, Flags, RmaLimits};
use crate::base::config::InterfaceConfig;
use crate::transport::common::message::SHORT_HEADER;

/// One end of a connection: the address of a peer. A clone is another handle to the same one.
pub type Endpoint = handle::Endpoint<DcMlx5>;
/// A handle to an open interface. A clone is another handle to the same one.
pub type Interface = handle::Interface<DcMlx5>;

impl handle::States for DcMlx5 {
    const ID: TransportId = ID;
    type Shared = interface::Shared;
    type State = state::State;
    type Endpoints = handle::Slots<Self::State>;
}

/// The transport as a type, for code that is generic over it.
#[derive(Debug)]
pub enum DcMlx5 {}

super::object::objects!(Progress, RemoteKey);

const MAX_PUT_SHORT: usize = AddressVector::MAX_WRITE_INLINE;
const MAX_AM_SHORT: usize = AddressVector::MAX_INLINE - AM_HEADER - SHORT_HEADER;
const MAX_RMA_SLICES: usize = AddressVector::MAX_RDMA_SEGMENTS;
/// The header takes one segment.
const MAX_AM_SLICES: usize = AddressVector::MAX_SEND_SEGMENTS - 1;

/// Returns what an interface of this transport with these settings can do, on a device with common
/// limits and masked atomics.
pub fn attributes(config: &InterfaceConfig) -> Attributes {
    let rc = mlx5::attributes(config);
    Attributes {
        put: RmaLimits { max_short: MAX_PUT_SHORT, max_iov: MAX_RMA_SLICES, ..rc.put },
        get: RmaLimits { max_iov: MAX_RMA_SLICES, ..rc.get },
        am: AmLimits { max_short: MAX_AM_SHORT, max_iov: MAX_AM_SLICES, ..rc.am },
        flags: rc.flags | Flags::CONNECT_TO_INTERFACE,
        // The device connects: 60 ns with the message that follows (UCX: uct_dc_mlx5_iface_query).
        latency_ns: rc.latency_ns + 60.0,
        latency_per_endpoint_ns: 0.0,
        priority: rc.priority - 5,
        max_endpoints: MAX_ENDPOINTS,
        ..rc
    }
}

/// Endpoints have 24-bit numbers.
const MAX_ENDPOINTS: u32 = 1 << 24;

/// Returns what an interface can do on a device with these capabilities.
fn attributes_of(config: &InterfaceConfig, capabilities: &Capabilities) -> Attributes {
    let mut attributes = attributes(config);
    mlx5::restrict(&mut attributes, capabilities, capabilities.masked_dc_atomics);
    attributes
}
