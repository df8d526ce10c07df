//! Opening what a node uses: the only file that opens domains, interfaces and endpoints.

use barewire::address::EndpointAddress;
use barewire::transport::tcp;
use barewire::{
    Absent, ConnectError, DeviceId, Domain, Endpoint, Flags, Interface, PeerAddress, TransportId,
    Worker, components,
};
use barewire_tcp::interfaces::Routes;
use barewire_tcp::{HostAddress, Key};

use super::rules::Rules;
use crate::address::{Entry, Summary};

/// An interface of the node.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) domain: Domain,
    pub(crate) interface: Interface,
    pub(crate) entry: Entry,
    /// The address of the network interface; of `tcp` only.
    pub(super) host: Option<HostAddress>,
}

/// Opens everything that the rules admit. What cannot be opened is absent, with the reason.
pub(super) fn open_all(
    worker: &mut Worker,
    rules: &Rules,
    key: Option<&Key>,
) -> (Vec<Opened>, Vec<Absent>) {
    let (mut opened, mut absent, mut known) = (Vec::new(), Vec::new(), Vec::new());
    for component in components() {
        absent.extend(component.absent);
        for device in component.devices {
            for transport in device.transports {
                known.push(transport.device.clone());
                let software = transport.attributes.flags.contains(Flags::SOFTWARE_DEVICE);
                let result = rules
                    .admit(&transport.device, software)
                    .map_err(str::to_owned)
                    .and_then(|()| open(worker, rules, key, &transport.device));
                match result {
                    Ok(one) => opened.push(one),
                    Err(reason) => {
                        let what = format!("{} on {}", transport.device.transport(), device.name);
                        absent.push(Absent::new(what, reason));
                    }
                }
            }
        }
    }
    absent.extend(rules.unknown(&known).map(|name| {
        let reason = "no transport and no device of this machine has this name";
        Absent::new(name.clone(), reason.to_owned())
    }));
    (number(opened), absent)
}

/// Numbers the devices; entries of one device follow each other.
fn number(mut opened: Vec<Opened>) -> Vec<Opened> {
    let mut devices: Vec<String> = Vec::new();
    for one in &mut opened {
        let name = one.domain.name();
        let known = devices.iter().position(|known| known == name);
        one.entry.device = known.unwrap_or(devices.len()) as u16;
        if known.is_none() {
            devices.push(name.to_owned());
        }
    }
    opened.sort_by_key(|one| one.entry.device);
    opened
}

fn open(
    worker: &mut Worker,
    rules: &Rules,
    key: Option<&Key>,
    device: &DeviceId,
) -> Result<Opened, String> {
    let id = device.transport();
    let mut host = None;
    let domain = match (id, key) {
        (TransportId::Tcp, Some(key)) => tcp::Domain::open_with_key(device.name(), key.clone())
            .map(|domain| {
                host = Some(domain.address());
                Domain::from_static::<tcp::Tcp>(domain)
            }),
        // Without a key, only this process could connect.
        (TransportId::Tcp, None) => {
            return Err("there is no job key: see BAREWIRE_KEY_FILE".to_owned());
        }
        _ => Domain::open(device),
    }
    .map_err(|error| error.to_string())?;
    let interface =
        Interface::open(worker, &domain, &rules.config).map_err(|error| error.to_string())?;
    let summary = Summary::of(interface.attributes(), rules.endpoints);
    let address = interface.address();
    // `self` needs no address: the uuid of the node names the process.
    let addresses = (id != TransportId::Self_).then(|| (*address.device(), *address.interface()));
    Ok(Opened { domain, interface, entry: Entry::new(id, 0, summary, addresses), host })
}

impl Opened {
    /// A peer's interface; this one's for `self`, which has no address.
    pub(super) fn peer(&self, peer: &Entry) -> PeerAddress {
        let own = self.interface.address();
        match (peer.device_address, peer.interface_address) {
            (Some(device), Some(interface)) => {
                PeerAddress::new(device, interface, None).unwrap_or(own)
            }
            _ => own,
        }
    }

    /// Tries whether a peer's interface can be reached. Returns whether the route there leaves
    /// through this interface.
    pub(super) fn reaches(&self, peer: &Entry, routes: &Routes) -> Result<bool, String> {
        let reached = self.interface.reaches_by(&self.peer(peer), routes);
        reached.map_err(|error| error.to_string())
    }

    /// An endpoint to a peer's interface.
    pub(super) fn connect_to_interface(&self, peer: &Entry) -> Result<Endpoint, ConnectError> {
        self.interface.connect(&self.peer(peer))
    }

    /// An endpoint that is to be connected to a peer's, and its address.
    pub(super) fn open_endpoint(&self) -> Result<(Endpoint, Vec<u8>), ConnectError> {
        let endpoint = Endpoint::new(&self.interface)?;
        let address = endpoint.address().endpoint().map(EndpointAddress::to_bytes);
        Ok((endpoint, address.unwrap_or_default()))
    }

    /// Connects an endpoint of this interface to the peer's, whose address came from the peer.
    pub(super) fn connect_endpoint(
        &self,
        endpoint: &Endpoint,
        peer: &Entry,
        address: &[u8],
    ) -> Result<(), ConnectError> {
        let peer = self.peer(peer);
        let wrong = |source| ConnectError::Address { transport: peer.transport(), source };
        let address = EndpointAddress::from_bytes(address).map_err(wrong)?;
        let peer = PeerAddress::new(*peer.device(), *peer.interface(), Some(address));
        endpoint.connect(&peer.map_err(wrong)?)
    }
}
