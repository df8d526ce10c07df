//! What there is on this machine, and what is missing and why.

use barewire_verbs::Finding;

use crate::attributes::Attributes;
use crate::config::InterfaceConfig;
use crate::transport::{cma, rc_mlx5, self_, shm, tcp};
#[cfg(feature = "verbs")]
use crate::transport::{rc_verbs, rdma, ud_verbs};

/// A family of devices.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Component {
    /// Name.
    pub name: &'static str,
    /// One line.
    pub description: &'static str,
    /// Devices that can be opened.
    pub devices: Vec<DeviceInfo>,
    /// Devices or transports that cannot be used here.
    pub absent: Vec<Absent>,
}

/// A device and the transports over it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Name for [`Domain::open`](crate::Domain::open).
    pub name: String,
    /// One line.
    pub description: String,
    /// Transports.
    pub transports: Vec<TransportInfo>,
}

/// A transport over a device.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TransportInfo {
    /// Name for [`Domain::open`](crate::Domain::open).
    pub name: &'static str,
    /// What it can do with default settings.
    pub attributes: Attributes,
}

/// Something that is not usable here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    /// Device or transport.
    pub what: String,
    /// Why, and what would change it.
    pub reason: String,
}

impl Absent {
    fn new(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { what: what.into(), reason: reason.into() }
    }
}

/// Lists components, their devices and transports, and for what is absent the reason. Leaves nothing behind. With the feature `verbs` it
/// opens the machine's mlx5 devices for a moment, to say how they are set up and why so.
///
/// ```
/// for component in barewire::components() {
///     for device in &component.devices {
///         println!("{} {}", device.name, device.transports[0].name);
///     }
///     for absent in &component.absent {
///         println!("no {}: {}", absent.what, absent.reason);
///     }
/// }
/// ```
pub fn components() -> Vec<Component> {
    let findings = barewire_verbs::probe();
    let (mut mlx5_devices, mlx5_absent) = hardware(&findings);
    let (verbs_devices, verbs_absent) = verbs(&findings);
    let description = "software HCA of this process, RoCEv2 over UDP on loopback".to_owned();
    let attributes = rc_mlx5::attributes(&InterfaceConfig::default());
    mlx5_devices.insert(0, over_rc_mlx5(rc_mlx5::SOFT_DEVICE.to_owned(), description, attributes));
    vec![
        Component {
            name: "self",
            description: "this process's own memory",
            devices: vec![DeviceInfo {
                name: self_::DEVICE.to_owned(),
                description: "loopback inside one interface".to_owned(),
                transports: vec![TransportInfo { name: self_::NAME, attributes: self_::attributes() }],
            }],
            absent: vec![],
        },
        Component {
            name: "mlx5",
            description: "ConnectX devices through barewire's own driver",
            devices: mlx5_devices,
            absent: mlx5_absent,
        },
        Component {
            name: "verbs",
            description: "RDMA devices through libibverbs",
            devices: verbs_devices,
            absent: verbs_absent,
        },
        Component {
            name: "shm",
            description: "memory shared by processes of this machine",
            devices: vec![DeviceInfo {
                name: shm::DEVICE.to_owned(),
                description: "this machine's memory".to_owned(),
                transports: vec![
                    TransportInfo { name: shm::NAME, attributes: shm::attributes() },
                    TransportInfo { name: cma::NAME, attributes: cma::attributes() },
                ],
            }],
            absent: vec![],
        },
        sockets(),
    ]
}

/// Network interfaces, which serve peers by TCP.
fn sockets() -> Component {
    let mut component =
        Component { name: "tcp", description: "TCP sockets", devices: vec![], absent: vec![] };
    let interfaces = match tcp::devices() {
        Ok(interfaces) => interfaces,
        Err(error) => {
            component.absent.push(Absent::new(tcp::NAME, error.to_string()));
            return component;
        }
    };
    for interface in interfaces {
        if let Some(reason) = interface.reason {
            component.absent.push(Absent::new(format!("{} on {}", tcp::NAME, interface.name), reason));
            continue;
        }
        let addresses: Vec<_> = interface.addresses.iter().map(ToString::to_string).collect();
        component.devices.push(DeviceInfo {
            name: interface.name,
            description: format!("network interface with {}", addresses.join(", ")),
            transports: vec![TransportInfo {
                name: tcp::NAME,
                attributes: tcp::attributes(&InterfaceConfig::default()),
            }],
        });
    }
    component
}

fn over_rc_mlx5(name: String, description: String, attributes: Attributes) -> DeviceInfo {
    DeviceInfo { name, description, transports: vec![TransportInfo { name: rc_mlx5::NAME, attributes }] }
}

/// The machine's devices that the driver drives, and why it does not drive the others.
#[cfg(feature = "verbs")]
fn hardware(findings: &[Finding]) -> (Vec<DeviceInfo>, Vec<Absent>) {
    let (mut devices, mut absent) = (Vec::new(), Vec::new());
    for found in rc_mlx5::hardware::found() {
        match found.setup {
            Ok((how, attributes)) => {
                devices.push(over_rc_mlx5(found.device, format!("ConnectX device, {how}"), attributes));
            }
            Err(reason) => absent.push(Absent::new(found.device, reason)),
        }
    }
    if devices.is_empty() && absent.is_empty() {
        absent = without_verbs(findings);
    }
    (devices, absent)
}

#[cfg(not(feature = "verbs"))]
fn hardware(findings: &[Finding]) -> (Vec<DeviceInfo>, Vec<Absent>) {
    (Vec::new(), without_verbs(findings))
}

/// What the driver lacks on this machine, as far as sysfs tells.
fn without_verbs(findings: &[Finding]) -> Vec<Absent> {
    let reason = |finding: &Finding| {
        if finding.usable {
            "the device is there, but this build lacks the feature verbs, and so reaches the software HCA only".to_owned()
        } else {
            finding.reason.clone()
        }
    };
    let ours = findings.iter().filter(|finding| {
        // A finding that names no device is about the whole machine.
        finding.device.starts_with("mlx5") || finding.device == MACHINE
    });
    ours.map(|finding| Absent::new(hardware_name(finding), reason(finding))).collect()
}

/// The device of findings about the machine as a whole.
const MACHINE: &str = barewire_verbs::MACHINE;

fn hardware_name(finding: &Finding) -> String {
    if finding.device == MACHINE { "ConnectX hardware".to_owned() } else { finding.device.clone() }
}

/// The machine's devices that transports over verbs drive, and why there are not more.
#[cfg(feature = "verbs")]
fn verbs(findings: &[Finding]) -> (Vec<DeviceInfo>, Vec<Absent>) {
    let (mut devices, mut absent) = (Vec::new(), Vec::new());
    let config = InterfaceConfig::default();
    for found in rdma::found() {
        match found.state {
            Ok(address) => devices.push(DeviceInfo {
                name: found.device,
                description: format!("RDMA device, {address}"),
                transports: vec![
                    TransportInfo { name: rc_verbs::NAME, attributes: rc_verbs::attributes(&config) },
                    TransportInfo { name: ud_verbs::NAME, attributes: ud_verbs::attributes(&config) },
                ],
            }),
            Err(reason) => {
                for transport in VERBS_TRANSPORTS {
                    absent.push(Absent::new(format!("{transport} on {}", found.device), reason.clone()));
                }
            }
        }
    }
    if devices.is_empty() && absent.is_empty() {
        absent = no_verbs(findings);
    }
    (devices, absent)
}

#[cfg(not(feature = "verbs"))]
fn verbs(findings: &[Finding]) -> (Vec<DeviceInfo>, Vec<Absent>) {
    (Vec::new(), no_verbs(findings))
}

/// The transports over verbs.
const VERBS_TRANSPORTS: [&str; 2] = ["rc_verbs", "ud_verbs"];

/// Why there are no transports over verbs.
fn no_verbs(findings: &[Finding]) -> Vec<Absent> {
    let absent = |transport: &str, finding: &Finding| {
        let what = match finding.device.as_str() {
            MACHINE => transport.to_owned(),
            device => format!("{transport} on {device}"),
        };
        let missing = "the device is there, but this build lacks the feature verbs";
        Absent::new(what, if finding.usable { missing } else { &finding.reason })
    };
    let of = |transport: &'static str| findings.iter().map(move |finding| absent(transport, finding));
    VERBS_TRANSPORTS.into_iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(device: &str, usable: bool) -> Finding {
        Finding { device: device.to_owned(), usable, reason: format!("{device} is so") }
    }

    #[test]
    fn every_absence_has_its_reason() {
        let findings = [finding("mlx5_0", true), finding("rxe0", false)];
        let absent = without_verbs(&findings);
        assert_eq!(absent.len(), 1);
        assert!(absent[0].what == "mlx5_0" && absent[0].reason.contains("software HCA only"));
        let names: Vec<_> = no_verbs(&findings).into_iter().map(|absent| absent.what).collect();
        assert_eq!(names[..2], ["rc_verbs on mlx5_0", "rc_verbs on rxe0"]);
        let nothing = [finding(MACHINE, false)];
        assert_eq!(without_verbs(&nothing), [Absent::new("ConnectX hardware", "rdma is so")]);
        assert_eq!(no_verbs(&nothing)[1], Absent::new("ud_verbs", "rdma is so"));
    }
}
