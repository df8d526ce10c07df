//! `cma`: puts and gets between processes of one machine, with one copy by the kernel (cross memory
//! attach, process_vm_readv(2)).
//!
//! Any registered memory can be accessed, including memory that no other process can map; there are
//! no messages. An endpoint checks on connect whether the kernel allows the access, and reports the
//! reason if not. Progress carries out operations longer than a slice, slice by slice.
//!
//! The owner of memory keeps a table of its regions (`barewire_shm::Table`). An initiator pins a
//! region there around each slice, so a key to freed memory grants no access.

mod address;
mod domain;
mod endpoint;
mod interface;
mod limits;
mod transfer;

pub use domain::{Domain, Memory, RemoteKey};
pub use interface::Progress;
pub use limits::DEVICE;
pub(crate) use limits::ID;

use super::handle;
use crate::base::address::TransportId;
use crate::base::attributes::{
    AmLimits, AtomicOperations, Attributes, Flags, Place, RmaLimits, TagLimits,
};
use crate::base::config::InterfaceConfig;
use limits::{MAX_IN_PROGRESS, MAX_IOV, SLICE, SLICE_OF_MANY};

/// Access to another process's memory. Cloning gives another handle to the same endpoint; dropping
/// the last one closes it, and operations in progress complete as cancelled.
pub type Endpoint = handle::Endpoint<Cma>;
/// A handle to an open interface; cloning gives another handle to the same one.
pub type Interface = handle::Interface<Cma>;

impl handle::States for Cma {
    const ID: TransportId = ID;
    type Shared = interface::Shared;
    type State = endpoint::State;
    type Endpoints = handle::WeakEndpoints<Self::State>;
}

/// The transport as a type, for code that is generic over it.
#[derive(Debug)]
pub enum Cma {}

super::object::objects!(Memory, Progress, RemoteKey);

/// Returns what an interface of this transport can do.
pub fn attributes(_: &InterfaceConfig) -> Attributes {
    let rma = RmaLimits {
        max_short: 0,
        max_bcopy: 0,
        min_zcopy: 0,
        max_zcopy: usize::MAX,
        max_iov: MAX_IOV,
    };
    Attributes {
        put: rma,
        get: rma,
        am: AmLimits::default(),
        tag: TagLimits::default(),
        atomic32: AtomicOperations::empty(),
        atomic64: AtomicOperations::empty(),
        flags: Flags::CONNECT_TO_EP
            | Flags::CONNECT_TO_INTERFACE
            | Flags::PENDING
            | Flags::ERRHANDLE_PEER_FAILURE
            | Flags::ERRHANDLE_REMOTE_MEM
            | Flags::PUT_ZCOPY
            | Flags::GET_ZCOPY
            | Flags::EVENT_FD
            | Flags::EP_CHECK
            | Flags::INTER_PROCESS,
        overhead_ns: 2000.0,
        latency_ns: 80.0,
        latency_per_endpoint_ns: 0.0,
        bandwidth: 11.0e9,
        shared_duplex: true,
        place: Place::Node,
        priority: 40,
        max_endpoints: u32::MAX,
    }
}
