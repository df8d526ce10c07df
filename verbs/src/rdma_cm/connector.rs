//! The client's side.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rdma_sys::rdma_cm_event_type as kind;

use super::error::{ConnectError, Reason, Step};
use super::{
    Connect, Connection, Deadline, Offer, Prepared, REQUEST_DATA, address, status_error, wait,
};
use crate::sys::{CmEvent, CmId};
use crate::{Access, Initialize};

/// A peer's address with the device and the path that lead to it.
#[must_use = "call connect"]
pub struct Connector(Prepared);

impl Connector {
    /// Finds the device and the path for a peer's address.
    ///
    /// # Errors
    /// [`ConnectError::NoManager`], [`ConnectError::NoDevice`], [`ConnectError::NoPath`] or
    /// [`ConnectError::TimedOut`].
    pub fn resolve(peer: SocketAddr, timeout: Duration) -> Result<Self, ConnectError> {
        Self::find(None, peer, Deadline::after(timeout))
    }

    /// Like [`Self::resolve`], for the device that has the address `from`. Its port may be 0.
    ///
    /// # Errors
    /// Those of [`Self::resolve`].
    pub fn resolve_from(
        from: SocketAddr,
        peer: SocketAddr,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        Self::find(Some(from), peer, Deadline::after(timeout))
    }

    fn find(
        from: Option<SocketAddr>,
        peer: SocketAddr,
        deadline: Deadline,
    ) -> Result<Self, ConnectError> {
        let mut id = CmId::create().map_err(|source| ConnectError::NoManager { source })?;
        let from = from.map(address::to_bytes);
        let to = address::to_bytes(peer);
        id.resolve_address(from.as_ref(), &to, deadline.milliseconds())
            .map_err(|source| ConnectError::NoDevice { peer, source })?;
        let event = next(&mut id, peer, Step::Address, deadline)?;
        if event.kind != kind::RDMA_CM_EVENT_ADDR_RESOLVED {
            let no_device = |source| ConnectError::NoDevice { peer, source };
            return Err(unresolved(&event, peer, Step::Address, deadline, no_device));
        }
        let device = id.device().unwrap_or_default();
        let no_path = |source| ConnectError::NoPath { peer, device: device.clone(), source };
        id.resolve_route(deadline.milliseconds()).map_err(no_path)?;
        let event = next(&mut id, peer, Step::Path, deadline)?;
        if event.kind != kind::RDMA_CM_EVENT_ROUTE_RESOLVED {
            return Err(unresolved(&event, peer, Step::Path, deadline, no_path));
        }
        Prepared::new(id, peer).map(Self)
    }

    /// The peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.0.peer
    }

    /// The name of the device that leads to the peer, for [`Context::open`](crate::Context::open).
    pub fn device(&self) -> &str {
        &self.0.device
    }

    /// The port of the device, from 1.
    pub fn port(&self) -> u8 {
        self.0.port
    }

    /// The parameters of [`QueuePair::initialize`](crate::QueuePair::initialize), with the peer's
    /// rights.
    pub fn initialize(&self, access: Access) -> Initialize {
        self.0.initialize(access)
    }

    /// Sends a request to the peer, and connects the queue pair when the peer has accepted it. The
    /// queue pair must be in the state INIT ([`Self::initialize`]) and belong to [`Self::device`].
    /// Post receive requests before: the peer may send at once.
    ///
    /// # Errors
    /// [`ConnectError::Rejected`], [`ConnectError::Unreachable`], [`ConnectError::TimedOut`], or an
    /// error of a parameter or the queue pair. The queue pair is then to be reset or dropped.
    pub fn connect<Q: Connect>(
        self,
        queue: &mut Q,
        offer: &Offer<'_>,
        timeout: Duration,
    ) -> Result<Connection, ConnectError> {
        let Self(mut prepared) = self;
        let (peer, deadline) = (prepared.peer, Deadline::after(timeout));
        let failed = |action| move |source| ConnectError::Failed { peer, action, source };
        let values = prepared.values(queue, offer, REQUEST_DATA)?;
        prepared.id.connect(&values).map_err(failed("send a request to"))?;
        let event = next(&mut prepared.id, peer, Step::Response, deadline)?;
        if event.kind != kind::RDMA_CM_EVENT_CONNECT_RESPONSE {
            return Err(refusal(peer, event));
        }
        let limits = (values.responder_resources, values.initiator_depth);
        prepared.join(queue, limits)?;
        prepared.id.establish().map_err(failed("confirm the connection with"))?;
        Ok(Connection::new(prepared, event.private_data))
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("peer", &self.peer())
            .field("device", &self.device())
            .field("port", &self.port())
            .finish_non_exhaustive()
    }
}

/// Waits for the next event of a connection with `peer`.
pub(super) fn next(
    id: &mut CmId,
    peer: SocketAddr,
    step: Step,
    deadline: Deadline,
) -> Result<CmEvent, ConnectError> {
    let event = wait(id, deadline);
    let event = event.map_err(|source| ConnectError::Failed {
        peer,
        action: "wait for events of",
        source,
    })?;
    event.ok_or(ConnectError::TimedOut { peer, step, after: deadline.given })
}

/// The error of a search that failed. The kernel's time and that of this side end together.
fn unresolved(
    event: &CmEvent,
    peer: SocketAddr,
    step: Step,
    deadline: Deadline,
    otherwise: impl FnOnce(io::Error) -> ConnectError,
) -> ConnectError {
    let source = status_error(event);
    if source.kind() == io::ErrorKind::TimedOut {
        return ConnectError::TimedOut { peer, step, after: deadline.given };
    }
    otherwise(source)
}

/// The error of an event that ends an attempt.
pub(super) fn refusal(peer: SocketAddr, event: CmEvent) -> ConnectError {
    match event.kind {
        kind::RDMA_CM_EVENT_REJECTED => ConnectError::Rejected {
            peer,
            reason: Reason::of(event.status),
            private_data: event.private_data,
        },
        kind::RDMA_CM_EVENT_DISCONNECTED => ConnectError::Disconnected { peer },
        _ => ConnectError::Unreachable { peer, source: status_error(&event) },
    }
}
