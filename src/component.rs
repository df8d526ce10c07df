//! What there is on this machine, and what is missing and why.

use crate::capability::Attributes;
use crate::transport::{rc_mlx5, self_};

/// A family of devices.
#[derive(Debug, Clone)]
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

/// Lists components, their devices and transports, and for what is absent the reason. Opens no device.
pub fn components() -> Vec<Component> {
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
            devices: vec![DeviceInfo {
                name: rc_mlx5::SOFT_DEVICE.to_owned(),
                description: "software HCA of this process, RoCEv2 over UDP on loopback".to_owned(),
                transports: vec![TransportInfo {
                    name: rc_mlx5::NAME,
                    attributes: rc_mlx5::attributes(&crate::InterfaceConfig::default()),
                }],
            }],
            absent: vec![Absent::new("mlx5 hardware", "this version drives the software HCA only")],
        },
    ]
}
