//! Settings of the program's devices: environment variables that `barewire hca run` sets.

use std::collections::hash_map::RandomState;
use std::env;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::Ipv4Addr;

use barewire_hca::{Config, ConfigError, Device, FAULTS_VARIABLE, OpenError};
use barewire_layouts::command::capability::PortType;
use thiserror::Error;

/// Number of devices: `mlx5_0` and so on.
pub(crate) const DEVICES_VARIABLE: &str = "BAREWIRE_HCA_DEVICES";
/// Link layer of the ports: `roce` or `ib`.
pub(crate) const LINK_VARIABLE: &str = "BAREWIRE_HCA_LINK";
/// Whether the program may use DEVX: `no` refuses it, as the kernel does without CAP_NET_RAW.
pub(crate) const DEVX_VARIABLE: &str = "BAREWIRE_HCA_DEVX";
/// Whether polls without a completion yield the CPU: `no` leaves them alone.
pub(crate) const YIELD_VARIABLE: &str = "BAREWIRE_HCA_YIELD";
/// Whether registered memory counts against RLIMIT_MEMLOCK: `yes`. By default it does not, since
/// the limit of a host without an adapter says nothing about that of a host with one.
pub(crate) const MEMLOCK_VARIABLE: &str = "BAREWIRE_HCA_MEMLOCK";
/// IP addresses of the devices, in order, between commas. The others choose theirs.
pub(crate) const ADDRESSES_VARIABLE: &str = "BAREWIRE_HCA_ADDRESSES";
/// Number of ports per device: 1 or 2.
pub(crate) const PORTS_VARIABLE: &str = "BAREWIRE_HCA_PORTS";
/// The directory that replaces `/sys`. libibverbs reads the same variable.
pub(crate) const SYSFS_VARIABLE: &str = "SYSFS_PATH";

/// Largest number of ports.
const MOST_PORTS: u8 = 2;
/// Largest number of devices.
pub(crate) const MOST_DEVICES: usize = 16;

/// Link layer that the ports report. The wire is RoCEv2 over UDP in both cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Link {
    /// Ethernet: GIDs that contain IP addresses name the peers.
    #[default]
    Roce,
    /// InfiniBand: LIDs, the last 16 bits of the addresses, may name the peers.
    InfiniBand,
}

/// The settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) devices: usize,
    pub(crate) link: Link,
    pub(crate) devx: bool,
    pub(crate) yields: bool,
    pub(crate) memlock: bool,
    /// Whether the wire has faults.
    pub(crate) faults: bool,
    pub(crate) ports: u8,
}

impl Settings {
    pub(crate) fn from_env() -> Self {
        let text = |name| env::var(name).unwrap_or_default();
        Self {
            devices: text(DEVICES_VARIABLE).parse().unwrap_or(1).clamp(1, MOST_DEVICES),
            devx: text(DEVX_VARIABLE) != "no",
            yields: text(YIELD_VARIABLE) != "no",
            memlock: text(MEMLOCK_VARIABLE) == "yes",
            faults: !text(FAULTS_VARIABLE).is_empty(),
            ports: text(PORTS_VARIABLE).parse().unwrap_or(1).clamp(1, MOST_PORTS),
            link: if text(LINK_VARIABLE) == "ib" { Link::InfiniBand } else { Link::Roce },
        }
    }
}

/// Subnet of devices with InfiniBand ports. A LID is the last 16 bits of an address in it.
const SUBNET: [u8; 2] = [127, 66];
/// Number of addresses to try.
const TRIES: u32 = 64;

/// Opens device `number`. An address from the environment applies to the first device only.
pub(crate) fn open(number: usize, settings: Settings) -> Result<Device, Failure> {
    let mut config = Config::from_env()?;
    config.ports = settings.ports;
    if settings.link == Link::InfiniBand {
        config.port_type = PortType::InfiniBand;
    }
    if number != 0 {
        config.address = None;
    }
    let addresses = env::var(ADDRESSES_VARIABLE).unwrap_or_default();
    if let Some(address) = addresses.split(',').nth(number).and_then(|text| text.parse().ok()) {
        config.address = Some(address);
    }
    if settings.link == Link::Roce || config.address.is_some() {
        return Ok(Device::open(config)?);
    }
    let mut attempt = 0;
    loop {
        config.address = Some(subnet_address().into());
        config.second_address = Some(subnet_address().into());
        attempt += 1;
        match Device::open(config.clone()) {
            Err(OpenError::Bind { source, .. })
                if source.kind() == io::ErrorKind::AddrInUse && attempt < TRIES => {}
            result => return Ok(result?),
        }
    }
}

/// Returns a random address of the subnet whose LID is a port's: neither 0 nor multicast.
fn subnet_address() -> Ipv4Addr {
    const MULTICAST: u8 = 0xc0;
    // `RandomState` has a random seed.
    let [a, b, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
    Ipv4Addr::new(SUBNET[0], SUBNET[1], a % MULTICAST, b.clamp(1, 254))
}

/// Why a device could not be opened.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Open(#[from] OpenError),
}
