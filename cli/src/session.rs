//! One connected endpoint: to the peer, or back to this process.

use crate::control::{Hex, Message};
use crate::error::{Error, local};
use crate::link::Link;
use crate::transports;
use crate::wait::Wait;
use barewire::{
    Access, Attributes, Completion, DeviceId, Domain, Endpoint, Flags, FlushMode, Interface,
    InterfaceConfig, Memory, OpenError, PeerAddress, Posted, RemoteKey, TransportId, Worker,
};
use std::fmt::Display;

const SET_UP: &str = "the connection's set-up";
/// The address for connections of a process to itself.
const HERE: &str = "127.0.0.1";

/// A region of the peer.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) key: RemoteKey,
}

/// A connected endpoint and the objects that it uses. Fields are dropped in this order.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    pub(crate) endpoint: Endpoint,
    /// The other endpoint in a loopback of two endpoints.
    _far: Option<Endpoint>,
    pub(crate) interface: Interface,
    pub(crate) wait: Wait<'a>,
    pub(crate) domain: Domain,
}

impl<'a> Session<'a> {
    /// Opens the device and connects an endpoint to that of the peer, which does the same.
    pub(crate) fn connect(
        link: &'a mut Link,
        transport: TransportId,
        device: &str,
    ) -> Result<Self, Error> {
        near(link, transport)?;
        let device = &place(link, transport, device)?;
        let (domain, worker, interface) = open(transport, device)?;
        let failed =
            |error: OpenError| local(format!("cannot open {transport} on {device}"), &error);
        let endpoint = Endpoint::new(&interface).map_err(failed)?;
        let ours = Message::Address { peer: Hex(endpoint.address().to_bytes()) };
        let mut wait = Wait::new(Some(link), worker, endpoint.clone(), interface.attributes());
        wait.send(&ours, SET_UP)?;
        let peer = match wait.message(SET_UP)? {
            same if same == ours => {
                return Err(wait.protocol("it sent this process's own address back".into()));
            }
            Message::Address { peer } => peer,
            other => return Err(wait.unexpected(&other, "address")),
        };
        let useless = |error: &dyn Display| {
            wait.protocol(format!("its address cannot be used here: {error}"))
        };
        let peer = PeerAddress::from_bytes(&peer.0).map_err(|error| useless(&error))?;
        endpoint.connect(&peer).map_err(|error| useless(&error))?;
        // Nothing may be sent before the peer's end is connected as well.
        wait.barrier(SET_UP)?;
        Ok(Self { endpoint, _far: None, interface, wait, domain })
    }

    /// Opens the device and connects an endpoint to its own interface, or to another endpoint
    /// there.
    pub(crate) fn loopback(transport: TransportId, device: &str) -> Result<Self, Error> {
        let device = if device == transports::ROUTE { HERE } else { device };
        let (domain, worker, interface) = open(transport, device)?;
        let failed = |error: &dyn std::error::Error| {
            local(format!("cannot connect {transport} on {device} to itself"), error)
        };
        let (endpoint, far) = if interface.attributes().flags.contains(Flags::CONNECT_TO_INTERFACE)
        {
            (interface.connect(&interface.address()).map_err(|error| failed(&error))?, None)
        } else {
            let new = || Endpoint::new(&interface).map_err(|error| failed(&error));
            let (endpoint, far) = (new()?, new()?);
            let connected = endpoint.connect(&far.address());
            let connected = connected.and_then(|()| far.connect(&endpoint.address()));
            connected.map_err(|error| failed(&error))?;
            (endpoint, Some(far))
        };
        let wait = Wait::new(None, worker, endpoint.clone(), interface.attributes());
        Ok(Self { endpoint, _far: far, interface, wait, domain })
    }

    /// The attributes of the interface.
    pub(crate) fn attributes(&self) -> &Attributes {
        self.interface.attributes()
    }

    /// Allocates a region of at least one byte that the peer may read and write.
    pub(crate) fn allocate(&self, length: usize) -> Result<Memory, Error> {
        self.domain
            .allocate(length.max(1), Access::all())
            .map_err(|error| local(format!("cannot allocate {length} bytes"), &error))
    }

    /// Sends the address and key of a region to the peer and receives those of a region of at least
    /// `length` bytes; a loopback returns `region`.
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
            Message::Region { length: theirs, .. } if theirs < length as u64 => Err(self
                .wait
                .protocol(format!("its region has {theirs} bytes where {length} are needed"))),
            Message::Region { address, key, .. } => {
                let key = self.domain.unpack_key(&key.0);
                let key = key.map_err(|error| {
                    self.wait.protocol(format!("its key cannot be used here: {error}"))
                })?;
                Ok(Remote { address, key })
            }
            other => Err(self.wait.unexpected(&other, "region")),
        }
    }

    /// Waits until all posted operations, which carry about `bytes`, have reached the peer's
    /// memory.
    pub(crate) fn flush(&mut self, during: &str, bytes: u64) -> Result<(), Error> {
        let completion = Completion::counter();
        let endpoint = &self.endpoint;
        let flush = || endpoint.flush(FlushMode::Remote, Some(&completion));
        match self.wait.post(during, flush)? {
            Posted::Done => Ok(()),
            Posted::InProgress => self.wait.complete(during, &completion, bytes),
        }
    }
}

/// Refuses transports that use the kernel of this machine unless the peer is on this machine.
fn near(link: &Link, transport: TransportId) -> Result<(), Error> {
    if link.is_near() || ![TransportId::Shm, TransportId::Cma].contains(&transport) {
        return Ok(());
    }
    Err(link.protocol(format!(
        "transport '{transport}' joins processes of one machine, and the two ends of the control connection have \
         different addresses"
    )))
}

/// The device to open for a peer: the named one, or the source address of packets to the peer.
fn place(link: &Link, transport: TransportId, device: &str) -> Result<String, Error> {
    if transport == TransportId::Tcp && !link.is_pair() {
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

fn open(transport: TransportId, device: &str) -> Result<(Domain, Worker, Interface), Error> {
    let config = InterfaceConfig::from_env().map_err(|error| Error::Usage(error.to_string()))?;
    let mut worker = Worker::new();
    let opened = Domain::open(&DeviceId::new(transport, device)).and_then(|domain| {
        let interface = Interface::open(&mut worker, &domain, &config)?;
        Ok((domain, interface))
    });
    match opened {
        Ok((domain, interface)) => Ok((domain, worker, interface)),
        Err(error) => Err(local(format!("cannot open {transport} on {device}"), &error)),
    }
}
