//! The port of a device of this machine, and its routes to peers, as the kernel reports them.

use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;

use barewire_layouts::command::capability::PortType;
use barewire_layouts::command::qp::Mtu;
use barewire_verbs::dv::Devx;
use barewire_verbs::{
    AddressHandle, Context, EventKind, Gid, GidKind, LinkLayer, ProtectionDomain,
};

use crate::channel::{DeviceEvent, DeviceEvents};
use crate::error::{Error, system};
use crate::kernel_pair::KernelPair;
use crate::values::{Port, PortAddress, PortOptions};

/// A port and the selected GID.
#[derive(Debug)]
pub(crate) struct Route {
    context: Context,
    domain: ProtectionDomain,
    attributes: barewire_verbs::Port,
    port: Port,
    port_type: PortType,
    /// The reason for the choice of the GID.
    reason: String,
}

impl Route {
    /// The route of port `number`.
    pub(crate) fn new(context: &Context, number: u8) -> Result<Self, Error> {
        let attributes =
            context.query_port(number).map_err(|error| system("querying the port", error))?;
        let domain = ProtectionDomain::new(context)
            .map_err(|error| system("allocating a protection domain", error))?;
        let port_type = match attributes.link_layer {
            LinkLayer::Ethernet => PortType::Ethernet,
            _ => PortType::InfiniBand,
        };
        let (port, reason) =
            choose(context, &domain, &attributes, port_type, PortOptions::default())?;
        Ok(Self { context: context.clone(), domain, attributes, port, port_type, reason })
    }

    /// The kernel's name of the device.
    pub(crate) fn device_name(&self) -> &str {
        self.context.name()
    }

    /// The port with the entries of its tables that `options` names.
    pub(crate) fn choose(&self, options: PortOptions) -> Result<Port, Error> {
        let Self { context, domain, attributes, port_type, .. } = self;
        choose(context, domain, attributes, *port_type, options).map(|(port, _)| port)
    }

    /// Returns whether one region may cover the whole address space.
    pub(crate) fn pages_address_space(&self) -> bool {
        self.context.limits().is_ok_and(|limits| limits.implicit_paging)
    }

    pub(crate) fn port(&self) -> &Port {
        &self.port
    }

    /// The events of the device and its ports.
    pub(crate) fn events(&self) -> Box<dyn DeviceEvents> {
        Box::new(KernelEvents { context: self.context.clone(), removed: Cell::new(false) })
    }

    /// Creates a queue pair of the kernel on the port.
    pub(crate) fn kernel_pair(&self, devx: &Devx) -> Result<KernelPair, Error> {
        KernelPair::new(&self.context, &self.domain, devx, &self.port)
    }

    /// Allocates a protection domain of the device.
    pub(crate) fn allocate_domain(&self) -> Result<ProtectionDomain, Error> {
        ProtectionDomain::new(&self.context)
            .map_err(|error| crate::error::system("allocating a protection domain", error))
    }

    pub(crate) fn port_type(&self) -> PortType {
        self.port_type
    }

    pub(crate) fn reason(&self) -> &str {
        &self.reason
    }

    /// The Ethernet address of the next hop towards a peer. The kernel resolves it, which may
    /// require network traffic.
    pub(crate) fn next_hop(&self, port: &Port, remote: &PortAddress) -> Result<[u8; 6], Error> {
        next_hop(&self.domain, port, self.port_type, remote)
    }
}

fn next_hop(
    domain: &ProtectionDomain,
    port: &Port,
    port_type: PortType,
    remote: &PortAddress,
) -> Result<[u8; 6], Error> {
    if port_type == PortType::InfiniBand {
        return Ok([0; 6]);
    }
    let resolved = AddressHandle::new(domain, &to(port, port_type, remote))
        .and_then(|handle| handle.address_vector())
        .map_err(|error| system("resolving the peer's address", error))?;
    Ok(resolved.mac)
}

/// The port, and the reason for its GID.
fn choose(
    context: &Context,
    domain: &ProtectionDomain,
    attributes: &barewire_verbs::Port,
    port_type: PortType,
    options: PortOptions,
) -> Result<(Port, String), Error> {
    let PortOptions { gid_index, partition_key } = options;
    let wanted = barewire_verbs::PortOptions { gid_index, partition_key };
    let choice = context
        .choose_port(domain, attributes, wanted)
        .map_err(|error| system("choosing the port's GID and partition", error))?;
    let entry = choice.gid.entry;
    let gid_index = u8::try_from(entry.index)
        .map_err(|_| Error::parameter("GID index", entry.index, "at most 255"))?;
    let address = PortAddress { gid: entry.gid.0, mac: [0; 6], lid: attributes.lid };
    let mut port = Port {
        number: attributes.number,
        gid_index,
        address,
        global_route: attributes.global_route || port_type == PortType::Ethernet,
        uses_udp: port_type == PortType::Ethernet && entry.kind != GidKind::RoceV1,
        mtu: active_mtu(attributes.active_mtu)?,
        partition_index: choice.partition_index,
        limited_member: choice.limited_member,
        counter_set: 0,
        lag_ports: 0,
    };
    // Peers that do not resolve a next hop send to this address.
    port.address.mac = next_hop(domain, &port, port_type, &address)?;
    Ok((port, choice.gid.reason))
}

/// Events that libibverbs reads from the kernel.
#[derive(Debug)]
struct KernelEvents {
    context: Context,
    /// The removal of the device was reported. Reading fails from then on.
    removed: Cell<bool>,
}

impl DeviceEvents for KernelEvents {
    fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        self.context.event_descriptor().map_err(io::Error::other)
    }

    fn next_event(&self) -> Option<DeviceEvent> {
        let event = match self.context.next_event() {
            Ok(event) => event?,
            Err(error) => {
                if self.removed.replace(true) {
                    return None;
                }
                return Some(DeviceEvent::Fatal(format!("the device was removed ({error})")));
            }
        };
        Some(match event.kind() {
            EventKind::DeviceFatal => DeviceEvent::Fatal("DEVICE_FATAL".to_owned()),
            EventKind::PortActive(port) => DeviceEvent::PortUp(port),
            EventKind::PortError(port) => DeviceEvent::PortDown(port),
            EventKind::QueuePairAccess(number) => DeviceEvent::QueuePairAccess(number),
            EventKind::QueuePairRequest(number) => DeviceEvent::QueuePairRequest(number),
            EventKind::QueuePairFatal(number) => DeviceEvent::QueuePairFatal(number),
            EventKind::LastRequestReached(number) => DeviceEvent::LastRequestReached(number),
            EventKind::CompletionQueueError(_) => DeviceEvent::CompletionQueueError(None),
            other => DeviceEvent::Other(format!("{other:?}")),
        })
    }
}

/// The MTU of `bytes` bytes.
fn active_mtu(bytes: u32) -> Result<Mtu, Error> {
    let known = Mtu::ALL.iter().find(|mtu| mtu.bytes() as u32 == bytes).copied();
    known.ok_or_else(|| Error::parameter("active MTU of the port", bytes, "256 to 4096"))
}

/// The route from `port` to a peer, as verbs represent it.
pub(crate) fn to(port: &Port, port_type: PortType, remote: &PortAddress) -> barewire_verbs::Route {
    match port_type {
        PortType::InfiniBand if remote.lid != 0 && !port.global_route => {
            barewire_verbs::Route::to_lid(port.number, remote.lid)
        }
        _ => barewire_verbs::Route::to_gid(port.number, Gid(remote.gid), port.gid_index)
            .with_lid(remote.lid),
    }
}
