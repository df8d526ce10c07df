//! `self`: a process talks to itself, through plain memory.
//!
//! A send runs the receiver's handler inside the call. Sends from inside a handler are queued and delivered, in
//! order, by the outermost call, so a handler never runs inside another.

mod domain;
mod endpoint;
mod interface;

pub use domain::{Domain, Memory, RemoteKey};
pub use endpoint::Endpoint;
pub use interface::{Interface, Progress};

use crate::address::{DeviceAddress, InterfaceAddress, TransportId};
use crate::attributes::{AmLimits, AtomicOperations, Attributes, Flags, RmaLimits};
use crate::config::InterfaceConfig;
use crate::error::{ConnectError, OpenError};
use crate::message::HOME;
use crate::transport::Transport;

/// The name of the transport.
pub const NAME: &str = TransportId::Self_.name();
/// The name of its one device.
pub const DEVICE: &str = "memory";

/// Bytes of a message.
const SEGMENT: usize = 8256;
/// Bytes of a buffer: data behind what the message's keeper needs.
const BUFFER: usize = HOME + SEGMENT;
const _: () =
    assert!(BUFFER.is_multiple_of(align_of::<usize>()), "buffers that follow each other are aligned");

/// Where data lies in a buffer.
fn data(buffer: &mut [u8; BUFFER]) -> &mut [u8; SEGMENT] {
    buffer.last_chunk_mut().expect("a buffer is longer than its data")
}
/// Slices per zero-copy operation; there is no reason for a limit but that one is promised.
const MAX_IOV: usize = 16;

/// The transport as a type, for code that is generic over it.
#[derive(Debug)]
pub enum Self_ {}

impl Transport for Self_ {
    const ID: TransportId = TransportId::Self_;
    type Domain = Domain;
    type Memory = Memory;
    type RemoteKey = RemoteKey;
    type Interface = Interface;
    type Progress = Progress;
    type Endpoint = Endpoint;

    fn attributes(_: &InterfaceConfig) -> Attributes {
        attributes()
    }

    fn open(device: &str) -> Result<Domain, OpenError> {
        Domain::open(device)
    }

    fn open_interface(domain: &Domain, config: &InterfaceConfig) -> Result<(Interface, Progress), OpenError> {
        Interface::open(domain, config)
    }

    fn connect_to_interface(
        interface: &Interface,
        device: &DeviceAddress,
        address: &InterfaceAddress,
    ) -> Result<Endpoint, ConnectError> {
        Endpoint::connect_to_interface(interface, device, address)
    }
}

super::object::objects!(Domain, Memory, Interface, Progress, Endpoint);

/// What an interface of this transport can do.
pub fn attributes() -> Attributes {
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
            max_short: SEGMENT - crate::message::SHORT_HEADER,
            max_bcopy: SEGMENT,
            min_zcopy: 0,
            max_zcopy: SEGMENT,
            max_iov: MAX_IOV,
            max_header: 256,
        },
        atomic32: AtomicOperations::all(),
        atomic64: AtomicOperations::all(),
        flags: Flags::CONNECT_TO_INTERFACE
            | Flags::PENDING
            | Flags::ERRHANDLE_REMOTE_MEM
            | Flags::PUT_SHORT
            | Flags::PUT_BCOPY
            | Flags::PUT_ZCOPY
            | Flags::GET_BCOPY
            | Flags::GET_ZCOPY
            | Flags::AM_SHORT
            | Flags::AM_SHORT_IOV
            | Flags::AM_BCOPY
            | Flags::EVENT_FD
            | Flags::EP_CHECK
            | Flags::AM_ZCOPY
            | Flags::ATOMIC_CPU,
        overhead_ns: 10.0,
        latency_ns: 0.0,
        bandwidth: 6.9e9,
        max_endpoints: u32::MAX,
    }
}
