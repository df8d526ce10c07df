//! A software model of a ConnectX HCA: PRM commands in, RoCEv2 packets out.
//!
//! A [`Device`] is the other side of the bytes that an mlx5 driver writes. It takes PRM commands ([`Device::execute`]) and user
//! memory ([`Device::register_umem`]), watches the doorbells of its UAR pages, fetches and checks WQEs, moves the data and writes
//! CQEs. Devices, of one process or of many, talk RoCEv2 over UDP port 4791, each on an address of its own.
//!
//! It is a model for correctness, not for wire speed: what it does is written down by the public headers and the InfiniBand
//! specification, and it knows nothing of the driver in `barewire-mlx5`.

mod address;
mod command;
mod config;
mod counters;
mod device;
mod engine;
mod key;
mod limits;
mod memory;
mod object;
mod sentry;
mod state;
mod table;
mod thread;
mod wake;
mod wire;

pub use command::CommandSyndrome;
pub use config::{
    ADDRESS_VARIABLE, Config, ConfigError, FAULTS_VARIABLE, Mode, OpenError, PCAP_VARIABLE, WireKind,
};
pub use counters::{Counters, SyndromeCounts};
pub use device::Device;
pub use engine::{Finding, Report, Strict};
pub use key::{KEY_VARIABLE, Key, KeyError};
pub use memory::{UmemAccess, UmemError};
pub use object::{EventChannel, ObjectCounts, UarPage};
pub use state::Fault;
pub use thread::DoorbellWake;
pub use wire::{Fabric, Faults, FaultsError, WIRE_VARIABLE};
