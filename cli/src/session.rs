//! One connected endpoint: to the peer, or back to this process.

use crate::control::{Hex, Message};
use crate::error::{Error, local};
use crate::link::Link;
use crate::transports;
use crate::wait::Wait;
use barewire::transport::{cma, shm, tcp};
use barewire::{
    Access, Attributes, Completion, DeviceAddress, Domain, Endpoint, EndpointAddress, Flags, FlushMode,
    Interface, InterfaceConfig, Memory, OpenError, Posted, RemoteKey, Worker,
};
use std::fmt::Display;

const SET_UP: &str = "the connection's set-up";
/// Where the route from a process to itself leads.
const HERE: &str = "127.0.0.1";

/// A region of the peer.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) key: RemoteKey,
}

/// A connected endpoint with everything under it. Fields are dropped in this order.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    pub(crate) endpoint: Endpoint,
    /// In a loopback of endpoints the other one.
    _far: Option<Endpoint>,
    pub(crate) interface: Interface,
    pub(crate) wait: Wait<'a>,
    pub(crate) domain: Domain,
}

impl<'a> Session<'a> {
    /// Opens the device and connects an endpoint to the peer's, which does the same.
    pub(crate) fn connect(link: &'a mut Link, transport: &str, device: &str) -> Result<Self, Error> {
        near(link, transport)?;
        let device = &place(link, transport, device)?;
        let (domain, worker, interface) = open(transport, device)?;
        let failed = |error: OpenError| local(format!("cannot open {transport} on {device}"), &error);
        let endpoint = Endpoint::new(&interface).map_err(failed)?;
        let ours = Message::Address {
            device: Hex(interface.device_address().to_bytes()),
            endpoint: Hex(endpoint.address().to_bytes()),
        };
        let mut wait = Wait::new(Some(link), worker, endpoint.clone(), interface.attributes());
        wait.send(&ours, SET_UP)?;
        let (device, address) = match wait.message(SET_UP)? {
            same if same == ours => {
                return Err(wait.protocol("it sent this process's own address back".into()));
            }
            Message::Address { device, endpoint } => (device, endpoint),
            other => return Err(wait.unexpected(&other, "address")),
        };
        let useless = |wait: &Wait, what: &str, error: &dyn Display| {
            wait.protocol(format!("its {what} is of no use here: {error}"))
        };
        let device =
            DeviceAddress::from_bytes(&device.0).map_err(|error| useless(&wait, "device address", &error))?;
        let address = EndpointAddress::from_bytes(&address.0)
            .map_err(|error| useless(&wait, "endpoint address", &error))?;
        endpoint.connect(&device, &address).map_err(|error| useless(&wait, "address", &error))?;
        // Nothing may be sent before the peer's end is connected too.
        wait.barrier(SET_UP)?;
        Ok(Self { endpoint, _far: None, interface, wait, domain })
    }

    /// Opens the device and connects an endpoint to its own interface, or to another one there.
    pub(crate) fn loopback(transport: &str, device: &str) -> Result<Self, Error> {
        let device = if device == transports::ROUTE { HERE } else { device };
        let (domain, worker, interface) = open(transport, device)?;
        let failed = |error: &dyn std::error::Error| {
            local(format!("cannot connect {transport} on {device} to itself"), error)
        };
        let here = interface.device_address();
        let (endpoint, far) = if interface.attributes().flags.contains(Flags::CONNECT_TO_INTERFACE) {
            let endpoint = Endpoint::connect_to_interface(&interface, &here, &interface.address());
            (endpoint.map_err(|error| failed(&error))?, None)
        } else {
            let new = || Endpoint::new(&interface).map_err(|error| failed(&error));
            let (endpoint, far) = (new()?, new()?);
            let connected = endpoint.connect(&here, &far.address());
            let connected = connected.and_then(|()| far.connect(&here, &endpoint.address()));
            connected.map_err(|error| failed(&error))?;
            (endpoint, Some(far))
        };
        let wait = Wait::new(None, worker, endpoint.clone(), interface.attributes());
        Ok(Self { endpoint, _far: far, interface, wait, domain })
    }

    /// What the interface can do.
    pub(crate) fn attributes(&self) -> &Attributes {
        self.interface.attributes()
    }

    /// Allocates a region of at least one byte that the peer may read and write.
    pub(crate) fn allocate(&self, length: usize) -> Result<Memory, Error> {
        self.domain
            .allocate(length.max(1), Access::all())
            .map_err(|error| local(format!("cannot allocate {length} bytes"), &error))
    }

    /// Tells the peer of a region and gets one in exchange, which must have at least `length` bytes; in a
    /// loopback the region itself comes back.
    pub(crate) fn exchange(&mut self, region: &Memory, length: usize) -> Result<Remote, Error> {
        const DURING: &str = "the exchange of keys";
        let ours = Message::Region {
            address: region.address(),
            length: region.len() as u64,
            key: Hex(region.pack_key()),
        };
        let theirs = if self.wait.is_loopback() {
            ours
        } else {
            self.wait.send(&ours, DURING)?;
            self.wait.message(DURING)?
        };
        match theirs {
            Message::Region { length: theirs, .. } if theirs < length as u64 => {
                Err(self.wait.protocol(format!("its region has {theirs} bytes where {length} are needed")))
            }
            Message::Region { address, key, .. } => {
                let key = self.domain.unpack_key(&key.0);
                let key =
                    key.map_err(|error| self.wait.protocol(format!("its key is of no use here: {error}")))?;
                Ok(Remote { address, key })
            }
            other => Err(self.wait.unexpected(&other, "region")),
        }
    }

    /// Waits until everything posted so far is in the peer's memory; it carries about `bytes`.
    pub(crate) fn flush(&mut self, during: &str, bytes: u64) -> Result<(), Error> {
        let completion = Completion::counter(1);
        let endpoint = &self.endpoint;
        let flush = || endpoint.flush(FlushMode::Remote, Some(&completion));
        match self.wait.post(during, flush)? {
            Posted::Done => Ok(()),
            Posted::InProgress => self.wait.complete(during, &completion, bytes),
        }
    }
}

/// Refuses what reaches into the peer's memory by the kernel of this machine unless the peer is on
/// this machine.
fn near(link: &Link, transport: &str) -> Result<(), Error> {
    if link.is_near() || ![shm::NAME, cma::NAME].contains(&transport) {
        return Ok(());
    }
    Err(link.protocol(format!(
        "transport '{transport}' joins processes of one machine, and the two ends of the control connection have \
         different addresses"
    )))
}

/// The device to open for a peer: the one that was named, or the address from which packets to the peer leave.
fn place(link: &Link, transport: &str, device: &str) -> Result<String, Error> {
    if transport == tcp::NAME && !link.is_pair() {
        transports::need_key(transport)?;
    }
    if device != transports::ROUTE {
        return Ok(device.to_owned());
    }
    match link.local() {
        Some(address) => Ok(address.to_string()),
        None => Err(Error::Local("the control connection is closed".into())),
    }
}

fn open(transport: &str, device: &str) -> Result<(Domain, Worker, Interface), Error> {
    let config = InterfaceConfig::from_env().map_err(|error| Error::Usage(error.to_string()))?;
    let mut worker = Worker::new();
    let opened = Domain::open(transport, device).and_then(|domain| {
        let interface = Interface::open(&mut worker, &domain, &config)?;
        Ok((domain, interface))
    });
    match opened {
        Ok((domain, interface)) => Ok((domain, worker, interface)),
        Err(error) => Err(local(format!("cannot open {transport} on {device}"), &error)),
    }
}
