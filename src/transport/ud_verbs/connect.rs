//! How two endpoints find each other.

use std::rc::Rc;

use barewire_verbs::AddressHandle;

use super::NAME;
use super::address::{self, PeerName, QueueAddress};
use super::interface::Shared;
use super::socket::Destination;
use super::state::{Peer, State};
use crate::address::{DeviceAddress, EndpointAddress, InterfaceAddress};
use crate::error::ConnectError;
use crate::transport::common::gate::Block;
use crate::transport::common::registered::Domain as _;
use crate::transport::rdma::PortAddress;
use crate::transport::reliable::{Claim, Kind, Request, Requesting};

impl State {
    /// Connects to an endpoint whose name is known, and which is told this one's.
    pub(super) fn connect(
        &self,
        device: &DeviceAddress,
        address: &EndpointAddress,
    ) -> Result<(), ConnectError> {
        let port = address::port(device)?;
        let (queue, name) = QueueAddress::unpack_endpoint(address)?;
        if !self.gate.has(Block::Unconnected) || !self.gate.is_alive() {
            return Err(ConnectError::Connected { transport: NAME });
        }
        self.peer.replace(Some(self.shared.resolve(port, queue, Some(name))?));
        self.gate.set(Block::Unconnected, false);
        Ok(())
    }

    /// Asks the peer for its endpoint's name.
    pub(super) fn request(&self) {
        // Without room for it, it is asked again later.
        let packet = self.introduction().to_packet(Kind::Request, 0);
        self.send_control(|_| packet.to_vec());
    }

    /// Tells it this one's.
    fn reply(&self) {
        let introduction = self.introduction();
        self.send_control(|to| introduction.to_packet(Kind::Reply, to).to_vec());
    }

    fn introduction(&self) -> Request {
        let shared = &self.shared;
        Request {
            from: self.name,
            number: self.number.get(),
            interface: shared.own.interface,
            address: shared.own.for_request(PortAddress::of(&shared.domain)),
        }
    }

    /// The peer's endpoint has this name. False if another is known already.
    pub(super) fn introduced(&self, name: u32) -> bool {
        let mut peer = self.peer.borrow_mut();
        let Some(peer) = peer.as_mut() else { return false };
        let known = *peer.endpoint.get_or_insert(name);
        if known != name {
            return false;
        }
        self.requesting.set(None);
        if self.gate.has(Block::Connecting) {
            self.gate.set(Block::Connecting, false);
            self.shared.call_attention();
        }
        true
    }
}

impl Shared {
    /// The way to a peer.
    fn resolve(
        &self,
        port: PortAddress,
        queue: QueueAddress,
        endpoint: Option<u32>,
    ) -> Result<Peer, ConnectError> {
        let who = PeerName { port, qpn: queue.qpn };
        if queue.log_mtu < self.own.log_mtu {
            let reason = format!(
                "it takes packets of {} bytes at most, and those from here have up to {}: open both interfaces with the same path_mtu",
                1 << queue.log_mtu,
                1 << self.own.log_mtu
            );
            return Err(ConnectError::Unreachable { transport: NAME, peer: who.to_string(), reason });
        }
        let route = port.route(&self.domain, NAME)?;
        let handle = AddressHandle::new(self.domain.protection(), &route);
        let handle = handle.map_err(|error| ConnectError::Device {
            transport: NAME,
            peer: who.to_string(),
            source: error.into(),
        })?;
        Ok(Peer { to: Destination { handle, qpn: queue.qpn }, endpoint, who })
    }

    /// An endpoint to an interface: one that the peer asked for before, or a new one that asks.
    pub(super) fn connect_to_interface(
        self: &Rc<Self>,
        device: &DeviceAddress,
        address: &InterfaceAddress,
    ) -> Result<Rc<State>, ConnectError> {
        let port = address::port(device)?;
        let queue = QueueAddress::unpack(address)?;
        let claim = self.directory.borrow_mut().claim(queue.interface);
        let number = match claim {
            Claim::Waiting { place } => {
                return self.at(place).ok_or_else(|| ConnectError::Unreachable {
                    transport: NAME,
                    peer: PeerName { port, qpn: queue.qpn }.to_string(),
                    reason: "its endpoint was closed meanwhile: try again".to_owned(),
                });
            }
            Claim::New { number } => number,
        };
        let peer = self.resolve(port, queue, None)?;
        let state = self.open_endpoint().map_err(|error| ConnectError::Device {
            transport: NAME,
            peer: peer.who.to_string(),
            source: error.into(),
        })?;
        self.directory.borrow_mut().enter(queue.interface, number, state.place(), true);
        state.number.set(number);
        state.peer.replace(Some(peer));
        let whole = self.config.connect_timeout.as_nanos() as u64;
        state.requesting.set(Some(Requesting::new(self.now(), whole)));
        self.timed.set(true);
        state.gate.set(Block::Connecting, true);
        state.gate.set(Block::Unconnected, false);
        state.request();
        Ok(state)
    }

    /// A peer asks for an endpoint. What cannot be is not answered, so that a stranger learns nothing and costs nothing.
    pub(super) fn requested(self: &Rc<Self>, request: &Request, qpn: u32) {
        let Ok((port, queue)) = QueueAddress::of_request(&request.address, request.interface) else { return };
        let (found, ended) = {
            let directory = self.directory.borrow();
            let (interface, number) = (request.interface, request.number);
            (directory.find(interface, number), directory.has_ended(interface, number))
        };
        if queue.qpn != qpn || ended {
            return;
        }
        if let Some(state) = found.and_then(|place| self.at(place)) {
            if state.introduced(request.from) {
                state.reply();
            }
            return;
        }
        let Ok(peer) = self.resolve(port, queue, Some(request.from)) else { return };
        let Ok(state) = self.open_endpoint() else { return };
        self.directory.borrow_mut().enter(request.interface, request.number, state.place(), false);
        state.number.set(request.number);
        state.peer.replace(Some(peer));
        state.gate.set(Block::Unconnected, false);
        state.reply();
    }
}
