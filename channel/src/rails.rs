//! Rails: the devices and ports that the channels of a program use.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use barewire_layouts::command::capability::PortType;
use barewire_mlx5::channel::DeviceEvents;
use barewire_mlx5::{Context, Error as DeviceError, Mtu, PortAddress, ProtectionDomain};

use crate::config::MAX_RAILS;
use crate::region::{Region, Usage};

/// Longest share of a message in bytes, a multiple of 128.
pub(crate) const MAX_SHARE: u64 = 1 << 30;
/// Largest weight of a rail.
pub(crate) const MAX_WEIGHT: u32 = 1 << 24;
/// Longest name of a rail in bytes.
pub(crate) const MAX_NAME: usize = 64;

/// Why a set of rails is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RailsError {
    /// There are none, or too many.
    #[error("a set has 1 to 8 rails, not {0}")]
    Count(usize),
    /// Two rails have one name.
    #[error("two rails are called {0}")]
    Name(String),
    /// A name is empty or longer than 64 bytes.
    #[error("'{0}' is no name for a rail: it has 1 to 64 bytes")]
    LongName(String),
    /// The device refused.
    #[error("rail {rail}: {source}")]
    Device {
        /// Name of the rail.
        rail: String,
        /// Its error.
        source: DeviceError,
    },
}

/// A device and port, with a protection domain for the memory and queue pairs of channels.
#[derive(Debug)]
pub struct Rail {
    pub(crate) domain: ProtectionDomain,
    pub(crate) info: RailInfo,
    events: Option<Mutex<Box<dyn DeviceEvents>>>,
    broken: AtomicBool,
}

impl Rail {
    /// The port in use of an open device. `name` is for error messages, such as `mlx5_0`.
    ///
    /// Peers in the same subnet are reached. It has 24 bits of an IPv4 address (8 of a loopback
    /// address) and 64 bits of any other GID, unless [`Self::subnet_bits`] changes that.
    pub fn new(name: &str, context: &Context) -> Result<Self, RailsError> {
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(RailsError::LongName(name.to_owned()));
        }
        let domain = ProtectionDomain::allocate(context)
            .map_err(|source| RailsError::Device { rail: name.to_owned(), source })?;
        let (port, capabilities) = (context.port(), context.capabilities());
        let info = RailInfo {
            name: name.to_owned(),
            address: port.address,
            port_type: capabilities.port_type,
            mtu: port.mtu,
            subnet_bits: default_subnet(&port.address.gid),
            max_share: capabilities.max_message.clamp(128, MAX_SHARE) as u32 & !127,
            weight: 1,
            is_standby: false,
        };
        let events = context.device_events().unwrap_or_else(|error| {
            tracing::warn!("{name}: without events, its failure is noticed late: {error}");
            None
        });
        Ok(Self { domain, info, events: events.map(Mutex::new), broken: AtomicBool::new(false) })
    }

    /// Returns whether the device broke down, after reading its events.
    #[cold]
    pub(crate) fn is_broken(&self) -> bool {
        // Another thread that reads the events stores the result.
        if !self.broken.load(Ordering::Relaxed)
            && let Some(Ok(events)) = self.events.as_ref().map(Mutex::try_lock)
            && let Some(event) = events.failure()
        {
            tracing::warn!("rail {}: {event}", self.info.name);
            self.broken.store(true, Ordering::Relaxed);
        }
        self.broken.load(Ordering::Relaxed)
    }

    /// Sets how many leading bits of the GID name the subnet; 0 reaches every peer. IPv4 addresses
    /// are mapped to IPv6: the first 96 bits are the same for all of them.
    #[must_use]
    pub fn subnet_bits(mut self, bits: u8) -> Self {
        self.info.subnet_bits = bits.min(128);
        self
    }

    /// Sets how much this rail carries in proportion to the others, 1 to 2^24: its speed in Mbit/s,
    /// for example. All rails carry the same by default. Of two partners, the smaller weight
    /// counts, so both ends should set it.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.info.weight = weight.clamp(1, MAX_WEIGHT);
        self
    }

    /// Makes this rail a standby rail: it is connected, and carries messages only while one of the
    /// other rails does not work. A rail is on standby if it is at one of the ends.
    #[must_use]
    pub fn standby(mut self) -> Self {
        self.info.is_standby = true;
        self
    }
}

fn default_subnet(gid: &[u8; 16]) -> u8 {
    match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, ..] => 96 + 8,
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..] => 96 + 24,
        _ => 64,
    }
}

/// What a peer learns about a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RailInfo {
    /// Its name.
    pub name: String,
    /// The address of its port.
    pub address: PortAddress,
    /// RoCE or InfiniBand.
    pub port_type: PortType,
    /// The largest path MTU of its port.
    pub mtu: Mtu,
    /// Bits of the GID that name the subnet.
    pub subnet_bits: u8,
    /// Longest share of a message in bytes.
    pub max_share: u32,
    /// What it carries in proportion to other rails: see [`Rail::weight`].
    pub weight: u32,
    /// Whether it carries messages only while others do not work.
    pub is_standby: bool,
}

impl RailInfo {
    /// Returns whether the rails have the same link layer and subnet. Where they differ in the
    /// number of bits, the smaller counts.
    pub fn reaches(&self, other: &Self) -> bool {
        let bits = u32::from(self.subnet_bits.min(other.subnet_bits));
        let differs =
            u128::from_be_bytes(self.address.gid) ^ u128::from_be_bytes(other.address.gid);
        self.port_type == other.port_type && differs.leading_zeros() >= bits
    }
}

impl fmt::Display for RailInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}/{}", self.name, self.address, self.subnet_bits)?;
        match self.port_type {
            PortType::InfiniBand => write!(f, ", InfiniBand, LID {}", self.address.lid)?,
            PortType::Ethernet => write!(f, ", RoCE")?,
        }
        if self.weight > 1 {
            write!(f, ", weight {}", self.weight)?;
        }
        f.write_str(if self.is_standby { ", standby)" } else { ")" })
    }
}

/// A set of one to eight rails. All regions and channels of a set can be used together, on any
/// thread.
#[derive(Clone, Debug)]
pub struct Rails(Arc<[Rail]>);

impl Rails {
    /// Makes a set. The order matters: the first rail of one end that reaches the first of the
    /// other is its partner, and so on.
    pub fn new(rails: Vec<Rail>) -> Result<Self, RailsError> {
        if rails.is_empty() || rails.len() > MAX_RAILS {
            return Err(RailsError::Count(rails.len()));
        }
        for (at, rail) in rails.iter().enumerate() {
            if rails[..at].iter().any(|other| other.info.name == rail.info.name) {
                return Err(RailsError::Name(rail.info.name.clone()));
            }
        }
        Ok(Self(rails.into()))
    }

    /// Allocates `length` zeroed bytes and registers them with every rail.
    ///
    /// # Errors
    /// The length is zero, there is no memory, or a device refused, for example because of the
    /// limit of locked memory (`ulimit -l`).
    pub fn allocate(&self, length: usize, usage: Usage) -> Result<Region, RailsError> {
        Region::allocate(self, length, usage.access())
    }

    /// The rails, as peers learn about them.
    pub fn infos(&self) -> Vec<RailInfo> {
        self.0.iter().map(|rail| rail.info.clone()).collect()
    }

    pub(crate) fn rails(&self) -> &[Rail] {
        &self.0
    }

    #[inline(always)]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
