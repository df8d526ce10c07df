//! `self`: communication within a process through plain memory.
//!
//! A send runs the receiver's handler inside the call. Sends from inside a handler are queued: the
//! next progress, or the next send from outside, delivers them in order. So a handler never runs
//! inside another, and a handler that sends to itself does not keep a call from returning.

mod domain;
mod endpoint;
mod interface;
mod limits;
mod list;
mod window;

pub use domain::{Domain, Memory, RemoteKey};
pub use interface::Progress;
pub use limits::DEVICE;
pub(crate) use limits::ID;
pub use window::{View, Window};

use super::handle;
use crate::base::address::TransportId;
use crate::base::attributes::{
    AmLimits, AtomicOperations, Attributes, Flags, Place, RmaLimits, TagLimits,
};
use crate::base::config::InterfaceConfig;
use limits::{BUFFER, MAX_IOV, SEGMENT, data};

/// An endpoint to its own interface. Cloning gives another handle to the same endpoint.
pub type Endpoint = handle::Endpoint<Self_>;
/// A handle to an open interface; cloning gives another handle to the same one.
pub type Interface = handle::Interface<Self_>;

impl handle::States for Self_ {
    const ID: TransportId = ID;
    type Shared = interface::Shared;
    type State = endpoint::State;
    type Endpoints = handle::WeakEndpoints<Self::State>;
}

/// The transport as a type, for code that is generic over it.
#[derive(Debug)]
pub enum Self_ {}

super::object::objects!(Memory, Progress, RemoteKey);

/// Returns what an interface of this transport can do.
pub fn attributes(_: &InterfaceConfig) -> Attributes {
    Attributes {
        put: RmaLimits {
            max_short: usize::MAX,
            max_bcopy: SEGMENT,
            min_zcopy: 0,
            max_zcopy: usize::MAX,
            max_iov: MAX_IOV,
        },
        get: RmaLimits {
            max_short: 0,
            max_bcopy: SEGMENT,
            min_zcopy: 0,
            max_zcopy: usize::MAX,
            max_iov: MAX_IOV,
        },
        am: AmLimits {
            max_short: SEGMENT - crate::transport::common::message::SHORT_HEADER,
            max_bcopy: SEGMENT,
            min_zcopy: 0,
            max_zcopy: SEGMENT,
            max_iov: MAX_IOV,
            max_header: 256,
        },
        tag: TagLimits::default(),
        atomic32: AtomicOperations::all(),
        atomic64: AtomicOperations::all(),
        flags: Flags::CONNECT_TO_INTERFACE
            | Flags::PENDING
            | Flags::ERRHANDLE_REMOTE_MEM
            | Flags::RMA
            | Flags::MESSAGES
            | Flags::EVENT_FD
            | Flags::EP_CHECK
            | Flags::ATOMIC_CPU
            | Flags::WINDOWS
            | Flags::SEND_INVALIDATE
            | Flags::VIEWS,
        overhead_ns: 10.0,
        latency_ns: 0.0,
        latency_per_endpoint_ns: 0.0,
        bandwidth: 6.9e9,
        shared_duplex: true,
        place: Place::Process,
        priority: 60,
        max_endpoints: u32::MAX,
    }
}
