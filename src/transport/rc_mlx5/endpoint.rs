//! The endpoint: connecting, waiting and closing. Posting is in [`post`](super::post).

use std::rc::Rc;

use barewire_mlx5::RcPath;

use super::NAME;
use super::address::{self, Peer, QueueAddress};
use super::domain::RemoteKey;
use super::interface::Interface;
use super::state::State;
use crate::address::{DeviceAddress, EndpointAddress};
use crate::capability::RemoteMemory;
use crate::completion::Completion;
use crate::error::{ConnectError, OpenError, PostError};
use crate::status::{FlushMode, Post};
use crate::transport::common::gate::Block;

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
    /// [`ConnectError::ForeignTransport`] and [`ConnectError::Address`] for addresses that are not usable here,
    /// [`ConnectError::Connected`] the second time, [`ConnectError::Device`] if the device refuses.
    pub fn connect(&self, device: &DeviceAddress, address: &EndpointAddress) -> Result<(), ConnectError> {
        let state = &*self.0;
        let remote = address::port(device)?;
        let peer = QueueAddress::unpack(address)?;
        if !state.gate.has(Block::Unconnected) || !state.gate.is_alive() {
            return Err(ConnectError::Connected { transport: NAME });
        }
        let config = &state.shared.config;
        // Both ends come to the same values, each from its own and the other's.
        let path = RcPath {
            receive_psn: peer.psn,
            send_psn: state.own.psn,
            mtu: if (peer.mtu as u8) < state.own.mtu as u8 { peer.mtu } else { state.own.mtu },
            ack_timeout: config.ack_timeout,
            retry_count: config.retry_count,
            rnr_retry: config.rnr_retry,
            min_rnr_nak: config.min_rnr_timer,
            log_max_reads: state.own.log_max_reads.min(peer.log_max_reads),
            ..RcPath::new(remote, peer.qpn)
        };
        state.connect(&path, &peer).map_err(|error| ConnectError::Device {
            transport: NAME,
            peer: Peer { gid: remote.gid, qpn: peer.qpn }.to_string(),
            source: error.into(),
        })
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
    Atomics, Flush, Pending
);
