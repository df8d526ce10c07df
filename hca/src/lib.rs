//! A software model of a ConnectX HCA: PRM commands in, RoCEv2 packets out.
//!
//! A [`Device`] is the counterpart of an mlx5 driver. It executes PRM commands
//! ([`Device::execute`]), registers user memory ([`Device::register_umem`]), polls the doorbells of
//! its UAR pages, fetches and checks WQEs, moves the data and writes CQEs. Devices of one or
//! several processes exchange RoCEv2 packets over UDP port 4791, each on its own address.
//!
//! It is a model for correctness, not for speed. It is written from the public headers and the
//! InfiniBand specification, and does not depend on the driver in `barewire-mlx5`.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod adapter;
mod address;
mod command;
mod config;
mod counters;
mod device;
mod engine;
mod families;
mod key;
mod limits;
mod memory;
mod object;
mod requirements;
mod sentry;
mod state;
mod table;
mod thread;
mod wake;
mod wire;

pub use adapter::{Adapter, Facts};
pub use address::mac;
pub use command::CommandSyndrome;
pub use config::{
    ADDRESS_VARIABLE, Config, ConfigError, FAULTS_VARIABLE, Mode, OpenError, PCAP_VARIABLE,
    REQUIREMENTS_VARIABLE, RESERVED_VARIABLE, WireKind,
};
pub use counters::{COUNTER_FILES, Count, Counters, SyndromeCounts};
pub use device::Device;
pub use engine::{Finding, Report, ReservedBits, Strict};
pub use families::Families;
pub use key::{KEY_VARIABLE, Key, KeyError};
pub use memory::{
    AbsentPages, DeviceMemory, Mapping, PagingError, UmemAccess, UmemError, WrittenBack, check_pin,
    host_page, pages_around,
};
pub use object::{
    EventChannel, EventWatch, Management, ManagementDatagram, ObjectCounts, ObjectWatch, UarPage,
};
pub use requirements::{REQUIREMENTS, Requirement, Requirements, RequirementsError};
pub use state::Fault;
pub use thread::DoorbellWake;
pub use wire::{Fabric, Faults, FaultsError, LinkError, WIRE_VARIABLE, set_link};
