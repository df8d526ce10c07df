//! How a device is opened.

use std::env;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use barewire_layouts::command::capability::PortType;
use thiserror::Error;

use crate::engine::{ReservedBits, Strict};
use crate::key::{KEY_VARIABLE, Key, KeyError};
use crate::requirements::{Requirements, RequirementsError};
use crate::wire::{Fabric, Faults, FaultsError, WIRE_VARIABLE};

/// Environment variable with the IP address of devices, for [`Config::from_env`].
pub const ADDRESS_VARIABLE: &str = "BAREWIRE_HCA_ADDRESS";
/// Environment variable with the faults of devices' wires, for [`Config::from_env`].
pub const FAULTS_VARIABLE: &str = "BAREWIRE_HCA_FAULTS";

/// Environment variable with the file that devices' packets, payload included, are written to, for
/// [`Config::from_env`].
pub const PCAP_VARIABLE: &str = "BAREWIRE_HCA_PCAP";

/// Environment variable with what devices do about reserved bits, for [`Config::from_env`].
pub const RESERVED_VARIABLE: &str = "BAREWIRE_HCA_RESERVED";

/// Environment variable with the requirements of devices, for [`Config::from_env`].
pub const REQUIREMENTS_VARIABLE: &str = "BAREWIRE_HCA_REQUIRE";

barewire_layouts::with_setters! {
    /// Configuration of a device. The default is a thread, UDP on a free address, no faults, and
    /// findings on standard error.
    #[derive(Clone, Debug)]
    pub struct Config {
        /// The device's IP address, IPv4 or IPv6; `None` for a free one in 127.0.0.0/8, or the
        /// fabric's next.
        pub address: Option<IpAddr>,
        /// Who runs the engine.
        pub mode: Mode,
        /// The transport of the packets.
        pub wire: WireKind,
        /// The key of [`WireKind::Udp`]; `None` for the user's key: see [`Key::of_user`].
        pub key: Option<Key>,
        /// Seed of the first numbers of queue pairs, shared receive queues and memory keys. `None`
        /// for the kernel's random numbers; with [`Mode::Stepped`] for the lowest numbers.
        pub seed: Option<u64>,
        /// The port type that the device reports. The wire is the same; with
        /// [`PortType::InfiniBand`] peers are also named by LIDs, the last 16 bits of their
        /// addresses.
        pub port_type: PortType,
        /// Number of ports: one or two.
        pub ports: u8,
        /// The IP address of the second port; see `address`.
        pub second_address: Option<IpAddr>,
        /// Faults of outgoing packets.
        pub faults: Faults,
        /// The pcap file to which packets are written, payload included. `%a` in its name stands
        /// for the port's address; without it, the second port's file name ends in `.2.pcap`. Only
        /// the owner may read the file (mode 0600); a link or another user's file is refused. Its
        /// size is not limited.
        pub pcap: Option<PathBuf>,
        /// How the device handles mistakes in WQEs and doorbells.
        pub strict: Strict,
        /// What the device does about reserved bits of WQEs.
        pub reserved_bits: ReservedBits,
        /// What the ports and the host require of a driver.
        pub requirements: Requirements,
        /// Most connections of all targets of dynamic connections: 4096 by default, at most 16384.
        /// The device asks the senders of further requests to retry.
        pub dynamic_connections: usize,
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            address: None,
            mode: Mode::default(),
            wire: WireKind::default(),
            key: None,
            seed: None,
            port_type: PortType::Ethernet,
            ports: 1,
            second_address: None,
            faults: Faults::default(),
            pcap: None,
            strict: Strict::default(),
            reserved_bits: ReservedBits::default(),
            requirements: Requirements::default(),
            dynamic_connections: 4096,
        }
    }
}

/// What runs a device's engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A thread, which ends with the last handle.
    #[default]
    Thread,
    /// A thread that polls for doorbells even if the kernel could wake it. For processes that
    /// cannot have a userfaultfd on the UAR pages, and for tests of that case.
    PollingThread,
    /// The caller of [`crate::Device::step`]: the same steps give the same run.
    Stepped,
}

/// What carries packets between devices.
#[derive(Clone, Debug, Default)]
pub enum WireKind {
    /// Shared memory to devices of this user with the same key in this network namespace, and
    /// [`WireKind::Udp`] to others. Programs that capture packets of the loopback do not see those
    /// in shared memory; [`Config::pcap`] has them.
    #[default]
    Auto,
    /// UDP port 4791 of the device's address. Each RoCEv2 packet is followed by a tag under a key
    /// ([`Config::key`]), so that only devices with the same key communicate. Other packets are
    /// dropped and counted. Capture files show the packets without their tags.
    Udp,
    /// UDP without tags: RoCEv2 as used by adapters, the kernel's Soft-RoCE and packet tools. Any
    /// process that can send to the address can forge packets: on one host, every local user.
    Roce,
    /// A switch inside the process.
    Fabric(Fabric),
}

impl Config {
    /// Returns the default configuration, changed by these variables. An empty variable counts as
    /// not set.
    /// - [`ADDRESS_VARIABLE`][]: `127.7.0.1`
    /// - [`FAULTS_VARIABLE`][]: `drop=0.01,duplicate=0.01,reorder=0.01,corrupt=0.01,seed=7`
    /// - [`PCAP_VARIABLE`][]: `/tmp/%a.pcap`
    /// - [`WIRE_VARIABLE`][]: `auto`, `udp` or `roce`, see [`WireKind`]
    /// - [`KEY_VARIABLE`][]: the key of `auto` and `udp`, as hexadecimal digits
    /// - [`RESERVED_VARIABLE`][]: `ignore` or `refuse`, see [`ReservedBits`]
    /// - [`REQUIREMENTS_VARIABLE`][]: `mtu=1500`, see [`Requirements`]
    ///
    /// # Errors
    /// [`ConfigError`] names the variable and the mistake.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_variables(|name| {
            env::var_os(name).map(|value| value.to_string_lossy().into_owned())
        })
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let set = |name| {
            variable(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let address = set(ADDRESS_VARIABLE)
            .map(|text| text.parse().map_err(|_| ConfigError::Address { text }))
            .transpose()?;
        let faults = set(FAULTS_VARIABLE)
            .map(|text| text.parse().map_err(|source| ConfigError::Faults { text, source }))
            .transpose()?;
        let pcap = set(PCAP_VARIABLE).map(PathBuf::from);
        let key =
            set(KEY_VARIABLE).map(|text| text.parse()).transpose().map_err(ConfigError::Key)?;
        let wire = match set(WIRE_VARIABLE).as_deref() {
            None | Some("auto") => WireKind::Auto,
            Some("udp") => WireKind::Udp,
            Some("roce") => WireKind::Roce,
            Some(text) => return Err(ConfigError::Wire { text: text.to_owned() }),
        };
        let reserved_bits = match set(RESERVED_VARIABLE).as_deref() {
            None | Some("ignore") => ReservedBits::Ignore,
            Some("refuse") => ReservedBits::Refuse,
            Some(text) => return Err(ConfigError::Reserved { text: text.to_owned() }),
        };
        let requirements = set(REQUIREMENTS_VARIABLE)
            .map(|text| text.parse().map_err(|source| ConfigError::Requirements { text, source }))
            .transpose()?
            .unwrap_or_default();
        let faults = faults.unwrap_or_default();
        let given = Self { address, wire, key, faults, pcap, ..Self::default() };
        Ok(Self { reserved_bits, requirements, ..given })
    }
}

/// An environment variable has a wrong value.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// [`KEY_VARIABLE`] is not a key. The error does not show it.
    #[error("{KEY_VARIABLE} is wrong: {0}")]
    Key(#[source] KeyError),
    /// [`WIRE_VARIABLE`] is not a wire.
    #[error("{WIRE_VARIABLE}='{text}' is wrong: it is auto, udp or roce")]
    Wire {
        /// Its value.
        text: String,
    },
    /// [`RESERVED_VARIABLE`] is not a policy.
    #[error("{RESERVED_VARIABLE}='{text}' is wrong: it is ignore or refuse")]
    Reserved {
        /// Its value.
        text: String,
    },
    /// [`REQUIREMENTS_VARIABLE`] does not describe requirements.
    #[error("{REQUIREMENTS_VARIABLE}='{text}' is wrong: {source}; write for example mtu=1500")]
    Requirements {
        /// Its value.
        text: String,
        /// The mistake.
        source: RequirementsError,
    },
    /// [`ADDRESS_VARIABLE`] is not an IP address.
    #[error("{ADDRESS_VARIABLE}='{text}' is no IP address such as 127.7.0.1 or ::1")]
    Address {
        /// Its value.
        text: String,
    },
    /// [`FAULTS_VARIABLE`] does not describe faults.
    #[error("{FAULTS_VARIABLE}='{text}' is wrong: {source}; write for example drop=0.01,seed=7")]
    Faults {
        /// Its value.
        text: String,
        /// The mistake.
        source: FaultsError,
    },
}

/// A device could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The address is not one that a device can have.
    #[error(
        "a device cannot have the address {address}: it must be a unicast address of this host, such as 127.7.0.1"
    )]
    Address {
        /// The requested address.
        address: IpAddr,
    },
    /// The RoCEv2 port of the address could not be bound.
    #[error(
        "cannot take UDP port 4791 of {address}: {source}; an address is for one device, \
         and one of this or another process may have it: if this device is needed, choose another \
         address"
    )]
    Bind {
        /// The requested address.
        address: IpAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// No free address was found.
    #[error("cannot take UDP port 4791 of any address in 127.0.0.0/8: {source}")]
    NoAddress {
        /// The kernel's last error.
        source: io::Error,
    },
    /// The fabric already has a port with this address.
    #[error("the fabric has a device with the address {address} already")]
    AddressTaken {
        /// The requested address.
        address: IpAddr,
    },
    /// No key for the packets could be read or created.
    #[error("a device needs a key for its packets: {source}")]
    Key {
        /// The cause.
        #[from]
        source: KeyError,
    },
    /// The capture file could not be created.
    #[error("cannot write the capture file '{}': {source}", path.display())]
    Capture {
        /// The file, as configured.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The fabric has no address left.
    #[error("the fabric has no address left")]
    FabricFull,
    /// The device's thread could not be started.
    #[error("cannot start the device's thread: {source}")]
    Thread {
        /// The kernel's error.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(address: &str, faults: &str) -> Result<Config, ConfigError> {
        Config::from_variables(|name| match name {
            ADDRESS_VARIABLE => Some(address.to_owned()),
            FAULTS_VARIABLE => Some(faults.to_owned()),
            PCAP_VARIABLE => Some("/tmp/%a.pcap".to_owned()),
            _ => None,
        })
    }

    #[test]
    fn key_and_wire_are_read() {
        let read = |variable: &'static str, text: &str| {
            Config::from_variables(|name| (name == variable).then(|| text.to_owned()))
        };
        let digits = "5a".repeat(32);
        assert_eq!(read(KEY_VARIABLE, &digits).unwrap().key, Some(digits.parse().unwrap()));
        let text = read(KEY_VARIABLE, "secret").unwrap_err().to_string();
        assert!(
            text.starts_with("BAREWIRE_HCA_KEY is wrong") && !text.contains("secret"),
            "{text}"
        );
        assert!(matches!(read(WIRE_VARIABLE, "").unwrap().wire, WireKind::Auto));
        assert!(matches!(read(WIRE_VARIABLE, "udp").unwrap().wire, WireKind::Udp));
        assert!(matches!(read(WIRE_VARIABLE, "roce").unwrap().wire, WireKind::Roce));
        let text = read(WIRE_VARIABLE, "tcp").unwrap_err().to_string();
        assert_eq!(text, "BAREWIRE_HCA_WIRE='tcp' is wrong: it is auto, udp or roce");
    }

    #[test]
    fn variables_are_read() {
        let config = config(" 127.7.0.1 ", "drop=0.01,seed=7").unwrap();
        assert_eq!(config.address, Some(IpAddr::from([127, 7, 0, 1])));
        assert_eq!(config.faults, Faults { drop: 0.01, seed: 7, ..Faults::default() });
        assert_eq!(config.mode, Mode::Thread);
        assert_eq!(config.pcap, Some("/tmp/%a.pcap".into()));
    }

    #[test]
    fn unset_and_empty_are_the_default() {
        for config in [config("", "  "), Config::from_variables(|_| None)] {
            let config = config.unwrap();
            assert_eq!((config.address, config.faults), (None, Faults::default()));
        }
    }

    #[test]
    fn mistakes_are_named() {
        let text = config("localhost", "").unwrap_err().to_string();
        assert_eq!(
            text,
            "BAREWIRE_HCA_ADDRESS='localhost' is no IP address such as 127.7.0.1 or ::1"
        );
        let text = config("", "drop=2").unwrap_err().to_string();
        assert!(text.starts_with("BAREWIRE_HCA_FAULTS='drop=2' is wrong: "), "{text}");
    }
}
