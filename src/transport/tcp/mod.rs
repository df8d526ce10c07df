//! Messages and one-sided operations over TCP sockets.
//!
//! A domain is an address of this host with the job's key. An interface listens on it and has an
//! epoll descriptor. An endpoint is one connection for messages in both directions and, once it
//! puts, gets or uses atomics, a second one to the thread that serves the memory of the peer's
//! domain (`barewire_tcp::target`): the peer need not make progress for these operations. Of two
//! endpoints that connect to each other, the one with the smaller numbers opens the connection, so
//! there is only one.
//!
//! The first message after a progress call is sent immediately. Those posted after it are
//! coalesced, and sent with the next progress call or once they have 32 KiB; there is no timer. If
//! one connection alone has been active, progress polls it directly and takes it out of epoll.
//! Every 32 calls, or when several are active, it uses epoll. An idle connection therefore does not
//! slow progress (tests/hot_path/idle.rs), and needs a descriptor and less than 1 KiB besides the
//! kernel's socket: 16 buffers of 256 KiB per interface are shared. A peer that has the key can
//! make this end hold one message of up to 1 MiB per connection, and 320 KiB of messages that wait
//! until kept ones are dropped.
//!
//! MSG_ZEROCOPY is not used. On the loopback, the kernel (Linux 6.18) copied all such sends anyway
//! (SO_EE_CODE_ZEROCOPY_COPIED), and the notifications reduced the rate at 1 MiB to 0.5 to 0.7 of
//! that of plain sends. With a network card it was not measured.
//!
//! With [`InterfaceConfig::unattended`], the thread of the domain also accepts connections, so that
//! peers need no progress of this process to connect, and endpoints can connect to the interface
//! alone (UCX's CONNECT_TO_IFACE), whose connections are those of endpoints without handles. What was
//! posted is then with the kernel, or with the thread if the socket was full (`leftover`), when the
//! post returns.
//!
//! Messages are ordered among each other, and so are operations on memory. A message may be handled
//! before an earlier put arrives, unless a fence separates them. An operation on memory behind a
//! fence is posted once the kernel has taken the messages before it; between hosts, its connection
//! may still be faster than theirs. No byte of a connection is
//! processed before the peer has proved the job's key.
//!
//! Connections off the loopback, or with [`InterfaceConfig::integrity`], are protected: their bytes
//! are in records that are encrypted and authenticated (`barewire_tcp::seal`). No byte takes effect
//! before its record is verified, so received bytes and zero-copy operations are copied once more.
//! Such a connection needs 1.5 KiB more when it is idle.

mod accept;
mod address;
mod agenda;
mod atomic;
mod close;
mod connect;
mod connection;
mod domain;
mod endpoint;
mod event;
mod failure;
mod flush;
mod interface;
mod life;
mod limits;
mod message;
mod poller;
mod progress;
mod reader;
mod receive;
mod remote_memory;
mod rma;
mod state;
mod waiters;
mod window;

pub use address::RemoteKey;
pub use barewire_tcp::interfaces::Routes;
pub use barewire_tcp::{HostAddress, Key};
pub use domain::{Domain, Memory, devices, toward};
pub(crate) use limits::ID;
pub use progress::Progress;
pub use window::{View, Window};

use super::handle;
use crate::base::address::TransportId;
use crate::base::attributes::{
    AmLimits, AtomicOperations, Attributes, Flags, Place, RmaLimits, TagLimits,
};
use crate::base::config::InterfaceConfig;
use crate::transport::common::message::SHORT_HEADER;
use limits::{COPIED, EAGER, MAX_AM, MAX_AM_HEADER, MAX_IOV, MAX_ZCOPY, SEGMENT};

/// One end of a connection. Cloning gives another handle to the same one.
///
/// Dropping the last handle closes it: what the kernel has taken is delivered, and what is
/// outstanding completes as canceled in the next progress. Flush first what must arrive.
pub type Endpoint = handle::Endpoint<Tcp>;
/// A handle to an open interface; cloning gives another handle to the same one.
pub type Interface = handle::Interface<Tcp>;

impl handle::States for Tcp {
    const ID: TransportId = ID;
    type Shared = interface::Shared;
    type State = state::State;
    type Endpoints = handle::Slots<Self::State>;
}

/// The transport as a type, for code that is generic over it.
#[derive(Debug)]
pub enum Tcp {}

super::object::objects!(Memory, Progress, RemoteKey);

/// What an interface of this transport with these settings can do.
pub fn attributes(config: &InterfaceConfig) -> Attributes {
    let rma = RmaLimits {
        max_short: 0,
        max_bcopy: SEGMENT,
        min_zcopy: 0,
        max_zcopy: MAX_ZCOPY,
        max_iov: MAX_IOV,
    };
    let to_interfaces =
        if config.unattended { Flags::CONNECT_TO_INTERFACE } else { Flags::empty() };
    Attributes {
        put: RmaLimits { max_short: SEGMENT, ..rma },
        get: rma,
        am: AmLimits {
            max_short: SEGMENT - SHORT_HEADER,
            max_bcopy: SEGMENT,
            min_zcopy: 0,
            max_zcopy: MAX_AM,
            max_iov: MAX_IOV,
            max_header: MAX_AM_HEADER,
        },
        tag: TagLimits::default(),
        atomic32: AtomicOperations::all(),
        atomic64: AtomicOperations::all(),
        flags: to_interfaces
            | Flags::CONNECT_TO_EP
            | Flags::NETWORK
            | Flags::ERRHANDLE_REMOTE_MEM
            | Flags::RMA
            | Flags::MESSAGES
            | Flags::ATOMIC_CPU
            | Flags::EP_CHECK
            | Flags::WINDOWS
            | Flags::VIEWS,
        overhead_ns: 1_000.0,
        latency_ns: 5_000.0,
        latency_per_endpoint_ns: 0.0,
        bandwidth: 3.0e9,
        shared_duplex: false,
        place: Place::Network,
        priority: 0,
        max_endpoints: config.max_endpoints,
    }
}
