//! Discovery of the components, devices and transports of this machine, with the reasons for those
//! that are missing.

#[cfg(any(feature = "mlx5", feature = "verbs"))]
mod rdma;

use crate::base::address::TransportId;
use crate::base::attributes::Attributes;
use crate::base::config::InterfaceConfig;
use crate::base::device::DeviceId;
use crate::transport::self_;

/// A family of devices.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Component {
    /// The name.
    pub name: &'static str,
    /// A description in one line.
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
    /// The name, which its transports have in common.
    pub name: String,
    /// A description in one line.
    pub description: String,
    /// The transports over the device.
    pub transports: Vec<TransportInfo>,
}

/// A transport over a device.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TransportInfo {
    /// The device for [`Domain::open`](crate::Domain::open).
    pub device: DeviceId,
    /// Its attributes with default settings.
    pub attributes: Attributes,
}

impl DeviceInfo {
    fn new(
        name: String,
        description: String,
        transports: impl IntoIterator<Item = (TransportId, Attributes)>,
    ) -> Self {
        let over = |(transport, attributes)| TransportInfo {
            device: DeviceId::new(transport, &name),
            attributes,
        };
        let transports = transports.into_iter().map(over).collect();
        Self { name, description, transports }
    }
}

impl TransportInfo {
    /// Returns the transport.
    pub fn transport(&self) -> TransportId {
        self.device.transport()
    }
}

/// A device or transport that cannot be used here.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Absent {
    /// The device or transport.
    pub what: String,
    /// The reason, and what would change it.
    pub reason: String,
}

impl Absent {
    /// Returns an entry, for lists of devices that a program adds to.
    pub fn new(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { what: what.into(), reason: reason.into() }
    }
}

/// Lists components with their devices and transports, and the reason for each that is missing.
/// Nothing stays open. With the feature `verbs` it opens the machine's mlx5 devices for a moment,
/// to report how they are set up and why.
///
/// ```
/// for component in barewire::components() {
///     for device in &component.devices {
///         println!("{}: {}", device.transports[0].device, device.description);
///     }
///     for absent in &component.absent {
///         println!("no {}: {}", absent.what, absent.reason);
///     }
/// }
/// ```
pub fn components() -> Vec<Component> {
    let mut components = vec![own_memory()];
    #[cfg(any(feature = "mlx5", feature = "verbs"))]
    components.extend(rdma::components());
    components.extend([shared_memory(), sockets()]);
    for component in &mut components {
        component.absent.extend(not_built(component.name));
    }
    components
}

/// Returns the transports of a component that this build lacks.
fn not_built(component: &str) -> impl Iterator<Item = Absent> {
    let transports: &[TransportId] = match component {
        "shm" => &[TransportId::Shm, TransportId::Cma],
        "tcp" => &[TransportId::Tcp],
        _ => &[],
    };
    let lacking = transports.iter().filter(|id| !TransportId::BUILT.contains(id));
    lacking.map(|id| Absent::new(id.name(), format!("this build lacks the feature {id}")))
}

fn own_memory() -> Component {
    Component {
        name: "self",
        description: "this process's own memory",
        devices: vec![DeviceInfo::new(
            self_::DEVICE.to_owned(),
            "loopback inside one interface".to_owned(),
            [(TransportId::Self_, self_::attributes(&InterfaceConfig::default()))],
        )],
        absent: vec![],
    }
}

/// Memory of this machine, for peers on it.
fn shared_memory() -> Component {
    let transports: [(TransportId, Attributes); _] = [
        #[cfg(feature = "shm")]
        (TransportId::Shm, crate::transport::shm::attributes(&InterfaceConfig::default())),
        #[cfg(feature = "cma")]
        (TransportId::Cma, crate::transport::cma::attributes(&InterfaceConfig::default())),
    ];
    let device =
        DeviceInfo::new("memory".to_owned(), "this machine's memory".to_owned(), transports);
    Component {
        name: "shm",
        description: "memory shared by processes of this machine",
        // None in a build without these transports.
        devices: if device.transports.is_empty() { vec![] } else { vec![device] },
        absent: vec![],
    }
}

/// Network interfaces, for peers over TCP.
fn sockets() -> Component {
    #[cfg_attr(not(feature = "tcp"), expect(unused_mut, reason = "nothing is added"))]
    let mut component =
        Component { name: "tcp", description: "TCP sockets", devices: vec![], absent: vec![] };
    #[cfg(feature = "tcp")]
    add_sockets(&mut component);
    component
}

#[cfg(feature = "tcp")]
fn add_sockets(component: &mut Component) {
    use crate::transport::tcp;

    let interfaces = match tcp::devices() {
        Ok(interfaces) => interfaces,
        Err(error) => {
            component.absent.push(Absent::new(TransportId::Tcp.name(), error.to_string()));
            return;
        }
    };
    for interface in interfaces {
        if let Some(reason) = interface.reason {
            component
                .absent
                .push(Absent::new(format!("{} on {}", TransportId::Tcp, interface.name), reason));
            continue;
        }
        let mut attributes = tcp::attributes(&InterfaceConfig::default());
        if interface.is_loopback() {
            attributes.place = crate::Place::Loopback;
        }
        let addresses: Vec<_> = interface.addresses.iter().map(ToString::to_string).collect();
        component.devices.push(DeviceInfo::new(
            interface.name,
            format!("network interface with {}", addresses.join(", ")),
            [(TransportId::Tcp, attributes)],
        ));
    }
}
