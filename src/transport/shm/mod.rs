//! `shm`: processes of one machine through memory that they share.
//!
//! An interface is a port of the driver `barewire-shm`, an endpoint the connection to one. Active messages of up to 48 bytes are one cache
//! line; longer ones lie in a buffer that the handler sees in place. Puts, gets and atomics are done by this CPU, on the peer's memory
//! as it is mapped here, before the call returns. Memory that the domain allocates can be reached by peers; memory that it registers
//! cannot, as nobody else can map it: that is what the transport `cma` is for.
//!
//! A region is mapped when a key to it is first used. Its owner hands it over with its next progress; until
//! then posts with the key return [`NoResource`](crate::PostError::NoResource).

mod address;
mod atomic;
mod connection;
mod domain;
mod endpoint;
mod interface;
mod message;
mod pointer;
mod progress;
mod rma;
mod state;
mod views;

pub(crate) use address::{find_host, host};
pub use domain::{Domain, Memory, RemoteKey};
pub use endpoint::Endpoint;
pub use interface::Interface;
pub use pointer::RemotePointer;
pub use progress::Progress;

use crate::address::{DeviceAddress, EndpointAddress, InterfaceAddress, TransportId};
use crate::attributes::{AmLimits, AtomicOperations, Attributes, Flags, RmaLimits};
use crate::config::InterfaceConfig;
use crate::error::{ConnectError, OpenError};
use crate::message::SHORT_HEADER;
use crate::transport::Transport;

/// The name of the transport.
pub const NAME: &str = TransportId::Shm.name();
/// The name of its one device.
pub const DEVICE: &str = "memory";

/// Bytes of a message in a buffer.
const SEGMENT: usize = 8256;
const _: () = assert!(SEGMENT <= barewire_shm::BUFFER);
/// Slices per zero-copy operation; there is no reason for a limit but that one is promised.
const MAX_IOV: usize = 16;
const MAX_AM_SHORT: usize = SEGMENT - SHORT_HEADER;
const MAX_AM_HEADER: usize = 256;

/// The transport as a type, for code that is generic over it.
#[derive(Debug)]
pub enum Shm {}

impl Transport for Shm {
    const ID: TransportId = TransportId::Shm;
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
    let rma =
        RmaLimits { max_short: 0, max_bcopy: SEGMENT, min_zcopy: 0, max_zcopy: usize::MAX, max_iov: MAX_IOV };
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
        atomic32: AtomicOperations::all(),
        atomic64: AtomicOperations::all(),
        flags: Flags::CONNECT_TO_EP
            | Flags::CONNECT_TO_INTERFACE
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
            | Flags::ATOMIC_CPU
            | Flags::EVENT_FD
            | Flags::RKEY_PTR
            | Flags::INTER_PROCESS,
        overhead_ns: 10.0,
        latency_ns: 80.0,
        bandwidth: 12.0e9,
        max_endpoints: u32::MAX,
    }
}
