//! `cma`: puts and gets between processes of one machine by one copy of the kernel's (cross memory attach, process_vm_readv(2)).
//!
//! Any memory that is registered can be reached, also memory that no other process maps; there are no messages. An endpoint tests whether
//! the kernel allows it when it connects, and reports the reason if not. What is longer than a slice is done slice by slice in progress.
//!
//! The owner of memory keeps a table of its regions (`barewire_shm::Table`). An initiator pins a region there around each slice, so a key
//! to memory that was freed reaches nothing.

mod address;
mod domain;
mod endpoint;
mod interface;
mod transfer;

pub use domain::{Domain, Memory, RemoteKey};
pub use endpoint::Endpoint;
pub use interface::{Interface, Progress};

use crate::address::{DeviceAddress, EndpointAddress, InterfaceAddress, TransportId};
use crate::attributes::{AmLimits, AtomicOperations, Attributes, Flags, RmaLimits};
use crate::config::InterfaceConfig;
use crate::error::{ConnectError, OpenError};
use crate::transport::Transport;

/// The name of the transport.
pub const NAME: &str = TransportId::Cma.name();
/// The name of its one device.
pub const DEVICE: &str = "memory";

/// Slices per operation.
const MAX_IOV: usize = barewire_shm::MAX_RANGES;
/// Bytes that a post copies at most, and one progress for an endpoint: at the speed of memory, less than a tenth of a millisecond.
const SLICE: usize = 1 << 20;
/// The same where several endpoints have something in progress.
const SLICE_OF_MANY: usize = 256 << 10;
/// Operations that an endpoint has in progress.
const MAX_IN_PROGRESS: usize = 64;

/// The transport as a type, for code that is generic over it.
#[derive(Debug)]
pub enum Cma {}

impl Transport for Cma {
    const ID: TransportId = TransportId::Cma;
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
    let rma = RmaLimits { max_short: 0, max_bcopy: 0, min_zcopy: 0, max_zcopy: usize::MAX, max_iov: MAX_IOV };
    Attributes {
        put: rma,
        get: rma,
        am: AmLimits::default(),
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
        bandwidth: 11.0e9,
        max_endpoints: u32::MAX,
    }
}
