//! What a device requires of its driver beyond the PRM's commands, as some ports and hosts do.

use std::fmt;
use std::str::FromStr;

use barewire_layouts::command::qp::Mtu;
use thiserror::Error;

/// MTU of an Ethernet port on which packets of every path MTU fit.
const JUMBO_MTU: u16 = 4200;
/// Every UDP port.
const ALL_PORTS: (u16, u16) = (0, u16::MAX);

/// Facts of a port and its host. The default is the most permissive: a driver that works only with
/// it fails on a part of the machines in use. See `docs/guide/hardware.md`.
///
/// As text, for [`REQUIREMENTS_VARIABLE`](crate::REQUIREMENTS_VARIABLE):
/// `mtu=1500,udp-ports=50000-60000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Requirements {
    /// The MTU of the port's Ethernet interface in bytes: 4200 by default. A queue pair whose path
    /// MTU does not fit is refused.
    pub mtu: u16,
    /// The UDP source ports that RoCE queue pairs may use, the lowest and the highest: all by
    /// default. Other ports are refused.
    pub udp_source_ports: (u16, u16),
    /// The device's clock runs in real time only: queue pairs with time stamps of a free-running
    /// clock are refused.
    pub real_time_clock: bool,
    /// InfiniBand ports require a global route, as those of virtual functions do, which share the
    /// LID of their device. Connections without one are refused; an adapter would accept them, and
    /// their packets would be lost.
    pub global_route: bool,
    /// The host translates DMA addresses. Then user memory that a program registers by DEVX has
    /// the largest pages that divide its length, and memory keys whose first address has another
    /// offset in such a page are refused.
    pub iommu: bool,
    /// Stores to UAR pages are not combined, as in many virtual machines: pages for BlueFlame are
    /// refused, and programs write 8 bytes per doorbell.
    pub no_write_combining: bool,
    /// Queue pairs that programs create by DEVX are refused: the limit of the firmware is reached.
    pub no_devx_queue_pairs: bool,
}

impl Default for Requirements {
    fn default() -> Self {
        Self {
            mtu: JUMBO_MTU,
            udp_source_ports: ALL_PORTS,
            real_time_clock: false,
            global_route: false,
            iommu: false,
            no_write_combining: false,
            no_devx_queue_pairs: false,
        }
    }
}

impl Requirements {
    /// Returns the largest path MTU of the port.
    pub(crate) fn path_mtu(self) -> Mtu {
        Mtu::within(self.mtu).unwrap_or(Mtu::Bytes256)
    }
}

impl fmt::Display for Requirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mtu={}", self.mtu)?;
        if self.udp_source_ports != ALL_PORTS {
            let (first, last) = self.udp_source_ports;
            write!(f, ",udp-ports={first}-{last}")?;
        }
        let switches = [
            ("real-time-clock", self.real_time_clock),
            ("global-route", self.global_route),
            ("iommu", self.iommu),
            ("no-wc", self.no_write_combining),
            ("no-devx-qps", self.no_devx_queue_pairs),
        ];
        for (name, set) in switches {
            if set {
                write!(f, ",{name}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Requirements {
    type Err = RequirementsError;

    fn from_str(text: &str) -> Result<Self, RequirementsError> {
        let mut requirements = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let wrong = || RequirementsError::Value { name: name.to_owned() };
            match name {
                "mtu" => {
                    let mtu = value.parse().ok().filter(|&mtu| Mtu::within(mtu).is_some());
                    requirements.mtu = mtu.ok_or_else(wrong)?;
                }
                "udp-ports" => {
                    let ports = value
                        .split_once('-')
                        .and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
                    let ports = ports.filter(|(first, last)| first <= last);
                    requirements.udp_source_ports = ports.ok_or_else(wrong)?;
                }
                "real-time-clock" => requirements.real_time_clock = true,
                "global-route" => requirements.global_route = true,
                "iommu" => requirements.iommu = true,
                "no-wc" => requirements.no_write_combining = true,
                "no-devx-qps" => requirements.no_devx_queue_pairs = true,
                _ => return Err(RequirementsError::Name { name: name.to_owned() }),
            }
        }
        Ok(requirements)
    }
}

/// A text does not describe requirements.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequirementsError {
    /// A requirement does not exist.
    #[error("there is no requirement '{name}'")]
    Name {
        /// Its name.
        name: String,
    },
    /// A value is missing, not a number, or out of range.
    #[error("the value of '{name}' is missing or out of range")]
    Value {
        /// Name of the requirement.
        name: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_both_ways() {
        for text in [
            "mtu=1500",
            "mtu=4200,udp-ports=50000-60000,real-time-clock,global-route,iommu,no-wc,no-devx-qps",
        ] {
            assert_eq!(text.parse::<Requirements>().unwrap().to_string(), text);
        }
        assert_eq!("".parse(), Ok(Requirements::default()));
        let name = "mut=1".parse::<Requirements>().unwrap_err();
        assert_eq!(name, RequirementsError::Name { name: "mut".to_owned() });
        for text in ["mtu", "mtu=300", "mtu=65536", "udp-ports=5", "udp-ports=6-5"] {
            let name = text.split('=').next().unwrap_or("").to_owned();
            let error = text.parse::<Requirements>().unwrap_err();
            assert_eq!(error, RequirementsError::Value { name }, "{text}");
        }
    }

    #[test]
    fn path_mtus_of_ports() {
        for (mtu, bytes) in [(1500, 1024), (2200, 2048), (4200, 4096), (9000, 4096), (352, 256)] {
            let requirements = Requirements { mtu, ..Requirements::default() };
            assert_eq!(requirements.path_mtu().bytes(), bytes);
        }
    }
}
