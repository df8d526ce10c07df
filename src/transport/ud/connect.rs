//! Connecting two endpoints.

use std::rc::Rc;

use super::Driver;
use super::address::{self, PeerName, QueueAddress};
use super::interface::Shared;
use super::state::{Peer, State};
use crate::base::address::PeerAddress;
use crate::base::error::ConnectError;
use crate::transport::common::post_state::PostBlock;
use crate::transport::handle::InterfaceState as _;
use crate::transport::reliable::{Claim, Kind, Request, Requesting};

impl<D: Driver> State<D> {
    /// Connects to an endpoint whose name is known, and sends it this endpoint's name.
    pub(crate) fn connect(&self, peer: &PeerAddress) -> Result<(), ConnectError> {
        let port = address::port::<D>(peer.device())?;
        let (queue, name) = QueueAddress::unpack_endpoint::<D>(peer.endpoint_for(D::ID)?)?;
        if !self.posting.has(PostBlock::Unconnected) || !self.posting.is_alive() {
            return Err(ConnectError::Connected { transport: D::ID });
        }
        self.set_peer(self.shared.resolve(port, queue, Some(name))?);
        self.posting.set(PostBlock::Unconnected, false);
        Ok(())
    }

    /// Requests the name of the peer's endpoint.
    pub(super) fn request(&self) {
        // If there is no room, a later retry sends it.
        let packet = self.introduction().to_packet(Kind::Request, 0);
        self.send_control(|_| packet.to_vec());
    }

    /// Sends this endpoint's name to the peer.
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
            address: shared.own.for_request(D::port(&shared.domain)),
        }
    }

    /// Stores the name of the peer's endpoint. Returns false if another name is stored already.
    pub(super) fn introduced(&self, name: u32) -> bool {
        let mut peer = self.peer.borrow_mut();
        let Some(peer) = peer.as_mut() else { return false };
        let known = *peer.endpoint.get_or_insert(name);
        if known != name {
            return false;
        }
        self.requesting.set(None);
        if self.posting.has(PostBlock::Connecting) {
            self.posting.set(PostBlock::Connecting, false);
            self.shared.call_attention();
        }
        true
    }
}

impl<D: Driver> Shared<D> {
    /// Returns the route to a peer.
    fn resolve(
        &self,
        port: D::Port,
        queue: QueueAddress,
        endpoint: Option<u32>,
    ) -> Result<Peer<D>, ConnectError> {
        let who = PeerName { port, qpn: queue.qpn };
        if queue.log_mtu < self.own.log_mtu {
            let reason = format!(
                "it accepts packets of at most {} bytes, and this interface sends up to {}: open both interfaces with the same path_mtu",
                1 << queue.log_mtu,
                1 << self.own.log_mtu
            );
            return Err(ConnectError::Unreachable {
                transport: D::ID,
                peer: who.to_string(),
                reason,
            });
        }
        let to = D::destination(self, port, queue.qpn)?;
        Ok(Peer { to, endpoint, who })
    }

    /// Opens an endpoint to an interface: one that the peer has requested before, or a new one that
    /// sends a request.
    pub(crate) fn connect_to_interface(
        self: &Rc<Self>,
        peer: &PeerAddress,
    ) -> Result<Rc<State<D>>, ConnectError> {
        let port = address::port::<D>(peer.device())?;
        let queue = QueueAddress::unpack::<D>(peer.interface())?;
        let claim = self.directory.borrow_mut().claim(queue.interface);
        let number = match claim {
            Claim::Waiting { place } => {
                return self.at(place).ok_or_else(|| ConnectError::Unreachable {
                    transport: D::ID,
                    peer: PeerName { port, qpn: queue.qpn }.to_string(),
                    reason: "its endpoint was closed meanwhile: try again".to_owned(),
                });
            }
            Claim::New { number } => number,
        };
        let peer = self.resolve(port, queue, None)?;
        let state = self.open_endpoint().map_err(|error| ConnectError::Device {
            transport: D::ID,
            peer: peer.who.to_string(),
            source: error.into(),
        })?;
        self.directory.borrow_mut().enter(queue.interface, number, state.place(), true);
        state.number.set(number);
        state.set_peer(peer);
        let whole = self.config.connect_timeout.as_nanos() as u64;
        state.requesting.set(Some(Requesting::new(self.now(), whole)));
        state.watch_timers();
        state.posting.set(PostBlock::Connecting, true);
        state.posting.set(PostBlock::Unconnected, false);
        state.request();
        Ok(state)
    }

    /// Handles a peer's request for an endpoint. Invalid requests get no response, so that an
    /// unauthorised sender learns nothing and costs little.
    pub(super) fn requested(self: &Rc<Self>, request: &Request, qpn: u32) {
        let Ok((port, queue)) = QueueAddress::of_request(&request.address, request.interface)
        else {
            return;
        };
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
        state.set_peer(peer);
        state.posting.set(PostBlock::Unconnected, false);
        state.reply();
    }
}
