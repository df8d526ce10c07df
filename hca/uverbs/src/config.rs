//! What the program's devices shall be: environment variables, which `barewire hca run` sets.

use std::collections::hash_map::RandomState;
use std::env;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::Ipv4Addr;

use barewire_hca::{Config, ConfigError, Device, OpenError};
use barewire_layouts::command::capability::PortType;
use thiserror::Error;

/// How many devices there are: `mlx5_0` and so on.
pub(crate) const DEVICES_VARIABLE: &str = "BAREWIRE_HCA_DEVICES";
/// What the ports look like: `roce` or `ib`.
pub(crate) const LINK_VARIABLE: &str = "BAREWIRE_HCA_LINK";
/// Whether programs may send commands of their own: `no` refuses DEVX, as a kernel does to who has no right to it.
pub(crate) const DEVX_VARIABLE: &str = "BAREWIRE_HCA_DEVX";
/// How many ports each device has: one or two.
pub(crate) const PORTS_VARIABLE: &str = "BAREWIRE_HCA_PORTS";
/// The tree that stands for `/sys`; libibverbs looks at it, too.
pub(crate) const SYSFS_VARIABLE: &str = "SYSFS_PATH";

/// The most ports.
const MOST_PORTS: u8 = 2;
/// The most devices.
const MOST_DEVICES: usize = 16;

/// The link layer that the ports show. The wire is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Link {
    /// Ethernet: peers are named by GIDs that hold IP addresses.
    #[default]
    Roce,
    /// InfiniBand: peers may be named by LIDs, the last 16 bits of their addresses.
    InfiniBand,
}

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) devices: usize,
    pub(crate) link: Link,
    pub(crate) devx: bool,
    pub(crate) ports: u8,
}

impl Settings {
    pub(crate) fn from_env() -> Self {
        let text = |name| env::var(name).unwrap_or_default();
        Self {
            devices: text(DEVICES_VARIABLE).parse().unwrap_or(1).clamp(1, MOST_DEVICES),
            devx: text(DEVX_VARIABLE) != "no",
            ports: text(PORTS_VARIABLE).parse().unwrap_or(1).clamp(1, MOST_PORTS),
            link: if text(LINK_VARIABLE) == "ib" { Link::InfiniBand } else { Link::Roce },
        }
    }
}

/// Where devices with InfiniBand ports are: 127.66.0.0/16, so that a LID, the last 16 bits, says it all.
const SUBNET: [u8; 2] = [127, 66];
/// Addresses that are tried.
const TRIES: u32 = 64;

/// Opens device `number`. An address given by hand is the first device's.
pub(crate) fn open(number: usize, settings: Settings) -> Result<Device, Failure> {
    let mut config = Config::from_env()?;
    config.ports = settings.ports;
    if settings.link == Link::InfiniBand {
        config.port_type = PortType::InfiniBand;
    }
    if number != 0 {
        config.address = None;
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

/// Any address of the subnet whose LID is that of a port: neither 0 nor multicast.
fn subnet_address() -> Ipv4Addr {
    const MULTICAST: u8 = 0xc0;
    // Every state of the standard library's hash maps has a random seed.
    let [a, b, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
    Ipv4Addr::new(SUBNET[0], SUBNET[1], a % MULTICAST, b.clamp(1, 254))
}

/// A device could not be opened.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Open(#[from] OpenError),
}
