//! The endpoint: connecting, waiting and closing. Posting is in [`post`](super::post).

use std::rc::Rc;

use barewire_verbs::{ReadyToReceive, ReadyToSend};

use super::NAME;
use super::address::{self, Peer, QueueAddress};
use super::interface::Interface;
use super::state::State;
use crate::address::{DeviceAddress, EndpointAddress};
use crate::capability::RemoteMemory;
use crate::completion::Completion;
use crate::error::{ConnectError, OpenError, PostError};
use crate::status::{FlushMode, Post};
use crate::transport::common::gate::Block;
use crate::transport::rdma::RemoteKey;

/// One end of a connection: a queue pair. Cloning gives another handle to the same one.
///
/// Dropping the last handle stops the queue pair at once; what was outstanding completes as cancelled in the next progress.
/// Flush first what must arrive.
pub struct Endpoint(pub(super) Rc<State>);

impl Endpoint {
    /// Makes an endpoint that can be connected; it takes its share of the interface's completion queue.
    ///
    /// # Errors
    /// [`OpenError::TooManyEndpoints`], [`OpenError::Device`], [`OpenError::Closed`]
    pub fn new(interface: &Interface) -> Result<Self, OpenError> {
        interface.0.open_endpoint().map(Self::handle)
    }

    /// What the peer passes to [`connect`](Self::connect).
    pub fn address(&self) -> EndpointAddress {
        self.0.own.pack()
    }

    /// Connects to the peer's endpoint. Both ends connect to each other; once both did, both can post.
    ///
    /// # Errors
    /// [`ConnectError::ForeignTransport`], [`ConnectError::Address`] and [`ConnectError::Unreachable`] for addresses that are not usable
    /// here, [`ConnectError::Connected`] the second time, [`ConnectError::Device`] if the device refuses.
    pub fn connect(&self, device: &DeviceAddress, address: &EndpointAddress) -> Result<(), ConnectError> {
        let state = &*self.0;
        let remote = address::port(device)?;
        let peer = QueueAddress::unpack(address)?;
        if !state.gate.has(Block::Unconnected) || !state.gate.is_alive() {
            return Err(ConnectError::Connected { transport: NAME });
        }
        let shared = &state.shared;
        let config = &shared.config;
        // Both ends come to the same values, each from its own and the other's.
        let reads = state.own.reads.min(peer.reads);
        let receive = ReadyToReceive {
            mtu: 1 << state.own.log_mtu.min(peer.log_mtu),
            peer: peer.qpn,
            packet_sequence_number: peer.psn,
            responder_resources: reads,
            rnr_timer: config.min_rnr_timer,
            route: remote.route(&shared.domain, NAME)?,
        };
        let send = ReadyToSend {
            packet_sequence_number: state.own.psn,
            timeout: config.ack_timeout,
            retries: config.retry_count,
            rnr_retries: config.rnr_retry,
            initiator_depth: reads,
        };
        let who = Peer { port: remote, qpn: peer.qpn };
        let connected = state.with_pair(|pair| {
            pair.qp().ready_to_receive(Some(&receive))?;
            pair.qp().ready_to_send(&send)
        });
        connected.map_err(|error| ConnectError::Device {
            transport: NAME,
            peer: who.to_string(),
            source: error.into(),
        })?;
        state.connected(who, &peer);
        Ok(())
    }

    /// Waits for what was posted so far. After `Cancel` the endpoint takes no more posts.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        self.0.flush(mode, completion)
    }

    /// What is posted next takes effect after what is outstanding.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn fence(&self) -> Result<(), PostError> {
        self.0.gate.check()?;
        self.0.fence();
        Ok(())
    }
}

crate::transport::common::handle::endpoint_handle!(NAME, own);

impl RemoteMemory for Endpoint {
    type Key = RemoteKey;
}

crate::capability::delegate!(
    Endpoint: PutShort, PutBcopy, PutZcopy, GetBcopy, GetZcopy, AmShort, AmShortIov, AmBcopy, AmZcopy, Atomic64, AtomicFetch64,
    Flush, Pending
);
