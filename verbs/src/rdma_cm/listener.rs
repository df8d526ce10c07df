//! The server's side.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rdma_sys::rdma_cm_event_type as kind;

use super::connector::{next, refusal};
use super::error::{ConnectError, Step};
use super::{
    Connect, Connection, Deadline, Offer, Prepared, REJECTION_DATA, RESPONSE_DATA, address,
    checked, is_gone, wait,
};
use crate::sys::CmId;
use crate::{Access, Initialize};

/// Listens to a port for requests of clients. Dropping it rejects those that were not received.
#[must_use = "dropping it ends listening"]
pub struct Listener {
    id: CmId,
    address: SocketAddr,
}

/// Requests that wait, if the caller names no number. The kernel has its own maximum.
const BACKLOG: u32 = 128;

impl Listener {
    /// Listens to an address of an RDMA device, or with 0.0.0.0 or `[::]` to the addresses of all
    /// devices. With port 0 the kernel chooses a free port: see [`Self::address`].
    ///
    /// # Errors
    /// [`ConnectError::NoManager`], or [`ConnectError::Listen`] if the port is in use or no device
    /// has the address.
    pub fn bind(address: SocketAddr) -> Result<Self, ConnectError> {
        let mut id = CmId::create().map_err(|source| ConnectError::NoManager { source })?;
        id.bind(&address::to_bytes(address))
            .and_then(|()| id.listen(BACKLOG))
            .map_err(|source| ConnectError::Listen { address, source })?;
        let [local, _] = id.addresses();
        let address = address::from_bytes(&local).unwrap_or(address);
        Ok(Self { id, address })
    }

    /// The address, with the port that the kernel chose if it was 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next request; `None` if there is none within the time. With a time of zero it
    /// does not wait. A request whose client has given up is dropped.
    ///
    /// # Errors
    /// [`ConnectError::Failed`], for example if the process has no free descriptor; the listener
    /// can be used on. With [`NotConnected`](std::io::ErrorKind::NotConnected) as its source the
    /// listener's device was removed, and no request follows.
    pub fn next_request(&mut self, timeout: Duration) -> Result<Option<Request>, ConnectError> {
        let deadline = Deadline::after(timeout);
        let action = "receive requests at";
        let failed = |source| ConnectError::Failed { peer: self.address, action, source };
        while let Some(event) = wait(&mut self.id, deadline).map_err(failed)? {
            if event.kind == kind::RDMA_CM_EVENT_DEVICE_REMOVAL {
                return Err(failed(io::ErrorKind::NotConnected.into()));
            }
            let Some(id) = event.request else { continue };
            let [_, peer] = id.addresses();
            let peer = address::from_bytes(&peer).unwrap_or(self.address);
            let prepared = match Prepared::new(id, peer) {
                // The client has given up: it no longer waits for a response.
                Err(ConnectError::Failed { source, .. }) if is_gone(&source) => continue,
                prepared => prepared?,
            };
            let asked = (event.responder_resources, event.initiator_depth);
            return Ok(Some(Request { prepared, private_data: event.private_data, asked }));
        }
        Ok(None)
    }
}

impl AsFd for Listener {
    /// Readable when there is a request.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.descriptor()
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The request of a client. Dropping it rejects it.
#[must_use = "dropping it rejects the request"]
pub struct Request {
    prepared: Prepared,
    private_data: Vec<u8>,
    /// The reads and atomics that the client asks for: this side as responder, and as initiator.
    asked: (u8, u8),
}

impl Request {
    /// The client's address.
    pub fn peer(&self) -> SocketAddr {
        self.prepared.peer
    }

    /// The client's private data, with the padding of the message.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The name of the device at which the request arrived, for
    /// [`Context::open`](crate::Context::open).
    pub fn device(&self) -> &str {
        &self.prepared.device
    }

    /// The port of the device, from 1.
    pub fn port(&self) -> u8 {
        self.prepared.port
    }

    /// The parameters of [`QueuePair::initialize`](crate::QueuePair::initialize), with the client's
    /// rights.
    pub fn initialize(&self, access: Access) -> Initialize {
        self.prepared.initialize(access)
    }

    /// Connects the queue pair, accepts the request, and waits until the client has confirmed it.
    /// The queue pair must be in the state INIT ([`Self::initialize`]) and belong to
    /// [`Self::device`]. Post receive requests before: the client may send at once.
    ///
    /// # Errors
    /// [`ConnectError::TimedOut`], [`ConnectError::Rejected`] or [`ConnectError::Unreachable`] if
    /// the client does not confirm, or an error of a parameter or the queue pair. The queue pair is
    /// then to be reset or dropped.
    pub fn accept<Q: Connect>(
        self,
        queue: &mut Q,
        offer: &Offer<'_>,
        timeout: Duration,
    ) -> Result<Connection, ConnectError> {
        let Self { mut prepared, asked, .. } = self;
        let (peer, deadline) = (prepared.peer, Deadline::after(timeout));
        let mut values = prepared.values(queue, offer, RESPONSE_DATA)?;
        values.responder_resources = values.responder_resources.min(asked.0);
        values.initiator_depth = values.initiator_depth.min(asked.1);
        let limits = (values.responder_resources, values.initiator_depth);
        prepared.join(queue, limits)?;
        let action = "accept the request of";
        prepared.id.accept(&values).map_err(|source| ConnectError::Failed {
            peer,
            action,
            source,
        })?;
        let event = next(&mut prepared.id, peer, Step::Confirmation, deadline)?;
        if event.kind != kind::RDMA_CM_EVENT_ESTABLISHED {
            return Err(refusal(peer, event));
        }
        Ok(Connection::new(prepared, self.private_data))
    }

    /// Rejects the request, with at most 148 bytes of private data that say why. The client gets
    /// [`Reason::ByProgram`](super::Reason::ByProgram) and the data.
    ///
    /// # Errors
    /// [`ConnectError::PrivateData`] or [`ConnectError::Failed`].
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), ConnectError> {
        let peer = self.prepared.peer;
        checked(peer, private_data, REJECTION_DATA)?;
        let action = "reject the request of";
        self.prepared.id.reject(private_data).map_err(|source| ConnectError::Failed {
            peer,
            action,
            source,
        })
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("peer", &self.peer())
            .field("device", &self.device())
            .field("port", &self.port())
            .finish_non_exhaustive()
    }
}
