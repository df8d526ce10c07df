//! `shm`: communication between processes of one machine through shared memory.
//!
//! An interface is a port of the driver `barewire-shm`; an endpoint is a connection to a port. An
//! active message of up to 16 bytes is half a cache line, and one of up to 48 bytes a whole one; a
//! longer one lies in a buffer that the handler reads in place. Puts, gets and atomics are carried
//! out by the CPU on the peer's memory, which is mapped here, before the call returns. Peers can
//! access memory that the domain allocates, but not memory that it registers, since other processes
//! cannot map it; the transport `cma` is for that.
//!
//! A region is mapped when a key to it is first used, by its descriptor in `/proc`. Where the kernel
//! denies that (another user, another PID namespace, an undumpable owner), the owner passes the
//! region on with its next progress; until then posts with the key return
//! [`NoResource`](crate::PostError::NoResource), as do all posts until the peer has accepted the
//! connection. Between interfaces of one process neither needs progress of the peer.
//!
//! The list of a view's ranges is a region as well, which peers read before they access the ranges.
//! Its end ends the key: an access that has begun may still be carried out.

mod address;
mod atomic;
mod connection;
mod domain;
mod endpoint;
mod gather;
mod interface;
mod limits;
mod list;
mod message;
mod pointer;
mod progress;
mod rma;
mod state;
mod views;

pub use domain::{Domain, Memory, RemoteKey};
pub use limits::DEVICE;
pub(crate) use limits::ID;
pub use list::View;
pub use pointer::RemotePointer;
pub use progress::Progress;

use super::handle;
use crate::base::address::TransportId;
use crate::base::attributes::{
    AmLimits, AtomicOperations, Attributes, Flags, Place, RmaLimits, TagLimits,
};
use crate::base::config::InterfaceConfig;
use limits::{MAX_AM_HEADER, MAX_AM_SHORT, MAX_IOV, SEGMENT};

/// A connection to a peer's interface. Cloning gives another handle to the same endpoint; dropping
/// the last one closes it. Messages that were sent still arrive.
pub type Endpoint = handle::Endpoint<Shm>;
/// A handle to an open interface; cloning gives another handle to the same one.
pub type Interface = handle::Interface<Shm>;

impl handle::States for Shm {
    const ID: TransportId = ID;
    type Shared = interface::Shared;
    type State = state::State;
    type Endpoints = handle::WeakEndpoints<Self::State>;
}

/// The transport as a type, for code that is generic over it.
#[derive(Debug)]
pub enum Shm {}

super::object::objects!(Memory, Progress, RemoteKey);

/// Returns what an interface of this transport can do.
pub fn attributes(_: &InterfaceConfig) -> Attributes {
    let rma = RmaLimits {
        max_short: 0,
        max_bcopy: SEGMENT,
        min_zcopy: 0,
        max_zcopy: usize::MAX,
        max_iov: MAX_IOV,
    };
    Attributes {
        put: RmaLimits { max_short: usize::MAX, ..rma },
        get: rma,
        am: AmLimits {
            max_short: MAX_AM_SHORT,
            max_bcopy: SEGMENT,
            min_zcopy: 0,
            max_zcopy: SEGMENT,
            max_iov: MAX_IOV,
            max_header: MAX_AM_HEADER,
        },
        tag: TagLimits::default(),
        atomic32: AtomicOperations::all(),
        atomic64: AtomicOperations::all(),
        flags: Flags::CONNECT_TO_EP
            | Flags::CONNECT_TO_INTERFACE
            | Flags::PENDING
            | Flags::ERRHANDLE_PEER_FAILURE
            | Flags::ERRHANDLE_REMOTE_MEM
            | Flags::RMA
            | Flags::MESSAGES
            | Flags::EP_CHECK
            | Flags::ATOMIC_CPU
            | Flags::EVENT_FD
            | Flags::RKEY_PTR
            | Flags::VIEWS
            | Flags::INTER_PROCESS,
        overhead_ns: 10.0,
        latency_ns: 80.0,
        latency_per_endpoint_ns: 0.0,
        bandwidth: 12.0e9,
        shared_duplex: true,
        place: Place::Node,
        priority: 50,
        max_endpoints: u32::MAX,
    }
}
