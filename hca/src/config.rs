//! How a device is opened.

use std::env;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use barewire_layouts::command::capability::PortType;
use thiserror::Error;

use crate::engine::Strict;
use crate::wire::{Fabric, Faults, FaultsError};

/// Environment variable with the IP address of devices, for [`Config::from_env`].
pub const ADDRESS_VARIABLE: &str = "BAREWIRE_HCA_ADDRESS";
/// Environment variable with the faults of devices' wires, for [`Config::from_env`].
pub const FAULTS_VARIABLE: &str = "BAREWIRE_HCA_FAULTS";

/// Environment variable with the file that devices' packets are written to, for [`Config::from_env`].
pub const PCAP_VARIABLE: &str = "BAREWIRE_HCA_PCAP";

/// What a device shall be. The default is a thread of its own, UDP on a free address, no faults, findings on standard error.
#[derive(Clone, Debug)]
pub struct Config {
    /// The device's IP address, IPv4 or IPv6; `None` for a free one in 127.0.0.0/8, or the fabric's next.
    pub address: Option<IpAddr>,
    /// Who runs the engine.
    pub mode: Mode,
    /// What carries the packets.
    pub wire: WireKind,
    /// What the port says it is. The wire is the same: with [`PortType::InfiniBand`] peers are named by LIDs, too, the last 16 bits of their
    /// addresses.
    pub port_type: PortType,
    /// Ports: one, or two.
    pub ports: u8,
    /// The IP address of the second port, as `address` is that of the first.
    pub second_address: Option<IpAddr>,
    /// What happens to packets on the way out.
    pub faults: Faults,
    /// The pcap file that gets what the wire carries; `%a` in its name stands for the port's address. It grows without a limit. Without
    /// `%a` a second port's ends in `.2.pcap`.
    pub pcap: Option<PathBuf>,
    /// What the device does about mistakes in WQEs and doorbells.
    pub strict: Strict,
    /// Connections that the device's targets of dynamic connections hold at a time, all together: 4096, at most 16384. Who asks for
    /// one more is told to come again.
    pub dynamic_connections: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            address: None,
            mode: Mode::default(),
            wire: WireKind::default(),
            port_type: PortType::Ethernet,
            ports: 1,
            second_address: None,
            faults: Faults::default(),
            pcap: None,
            strict: Strict::default(),
            dynamic_connections: 4096,
        }
    }
}

/// Who runs a device's engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A thread of the device's own, which ends with the last handle.
    #[default]
    Thread,
    /// The same, but it looks for doorbells now and then even where the kernel could wake it for one: for who cannot have a userfaultfd on
    /// the UAR pages, and for tests of what it costs to be without.
    PollingThread,
    /// Whoever calls [`crate::Device::step`]: the same steps give the same run.
    Stepped,
}

/// What carries packets between devices.
#[derive(Clone, Debug, Default)]
pub enum WireKind {
    /// UDP port 4791 of the device's address: RoCEv2 as other hosts and tools know it.
    #[default]
    Udp,
    /// A switch inside the process.
    Fabric(Fabric),
}

impl Config {
    /// The default, with address, faults and capture file from [`ADDRESS_VARIABLE`] (`127.7.0.1`), [`FAULTS_VARIABLE`]
    /// (`drop=0.01,duplicate=0.01,reorder=0.01,corrupt=0.01,seed=7`) and [`PCAP_VARIABLE`] (`/tmp/%a.pcap`). A variable that is empty counts as not set.
    ///
    /// # Errors
    /// [`ConfigError`] names the variable and what is wrong with it.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_variables(|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let set = |name| variable(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let address = set(ADDRESS_VARIABLE)
            .map(|text| text.parse().map_err(|_| ConfigError::Address { text }))
            .transpose()?;
        let faults = set(FAULTS_VARIABLE)
            .map(|text| text.parse().map_err(|source| ConfigError::Faults { text, source }))
            .transpose()?;
        let pcap = set(PCAP_VARIABLE).map(PathBuf::from);
        Ok(Self { address, faults: faults.unwrap_or_default(), pcap, ..Self::default() })
    }
}

/// An environment variable does not say what it should.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// [`ADDRESS_VARIABLE`] is no IP address.
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
        /// What is wrong.
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
        /// The address asked for.
        address: IpAddr,
    },
    /// The RoCEv2 port of the address could not be taken.
    #[error(
        "cannot take UDP port 4791 of {address}: {source}; another device may have it, choose another address"
    )]
    Bind {
        /// The address asked for.
        address: IpAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// No address could be taken.
    #[error("cannot take UDP port 4791 of any address in 127.0.0.0/8: {source}")]
    NoAddress {
        /// The kernel's last answer.
        source: io::Error,
    },
    /// The fabric has such a port already.
    #[error("the fabric has a device with the address {address} already")]
    AddressTaken {
        /// The address asked for.
        address: IpAddr,
    },
    /// The capture file cannot be made.
    #[error("cannot write the capture file '{}': {source}", path.display())]
    Capture {
        /// The file, as configured.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The fabric has no address left.
    #[error("the fabric has no address left")]
    FabricFull,
    /// The device's thread could not be started.
    #[error("cannot start the device's thread: {source}")]
    Thread {
        /// The kernel's answer.
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
        assert_eq!(text, "BAREWIRE_HCA_ADDRESS='localhost' is no IP address such as 127.7.0.1 or ::1");
        let text = config("", "drop=2").unwrap_err().to_string();
        assert!(text.starts_with("BAREWIRE_HCA_FAULTS='drop=2' is wrong: "), "{text}");
    }
}
