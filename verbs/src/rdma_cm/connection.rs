//! An established connection, until either side ends it.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rdma_sys::rdma_cm_event_type as kind;

use super::{ConnectError, Deadline, Prepared, address, wait};

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// The peer has disconnected, or has ended. Bring the queue pair to the error state: its
    /// requests then complete as flushed.
    Disconnected,
    /// The device is being removed. Drop all of its objects.
    DeviceRemoved,
    /// The network has moved the peer's address to another device or path, so the connection may
    /// not work any more.
    AddressChanged,
    /// The queue pair number may be used for another connection, some time after the end of this
    /// one.
    TimewaitExit,
    /// Another event, by its number in `enum rdma_cm_event_type`.
    Other(u32),
}

/// A connection of the caller's queue pair. Dropping it disconnects.
#[must_use = "dropping it disconnects"]
pub struct Connection {
    prepared: Prepared,
    private_data: Vec<u8>,
}

impl Connection {
    pub(super) fn new(prepared: Prepared, private_data: Vec<u8>) -> Self {
        Self { prepared, private_data }
    }

    /// The peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.prepared.peer
    }

    /// The address of this side.
    pub fn local(&self) -> Option<SocketAddr> {
        address::from_bytes(&self.prepared.id.addresses()[0])
    }

    /// The name of the device.
    pub fn device(&self) -> &str {
        &self.prepared.device
    }

    /// The peer's private data of its request or response, with the padding of the message.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Waits for the next event; `None` if there is none within the time. With a time of zero it
    /// does not wait. The call that returns [`ConnectionEvent::Disconnected`] responds to the peer,
    /// which waits for it.
    ///
    /// # Errors
    /// [`ConnectError::Failed`].
    pub fn next_event(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<ConnectionEvent>, ConnectError> {
        let (peer, action) = (self.prepared.peer, "wait for events of");
        let event = wait(&mut self.prepared.id, Deadline::after(timeout))
            .map_err(|source| ConnectError::Failed { peer, action, source })?;
        Ok(event.map(|event| match event.kind {
            kind::RDMA_CM_EVENT_DISCONNECTED => {
                // The kernel responds to the peer only now. It fails if the peer has responded.
                let _ = self.prepared.id.disconnect();
                ConnectionEvent::Disconnected
            }
            kind::RDMA_CM_EVENT_DEVICE_REMOVAL => ConnectionEvent::DeviceRemoved,
            kind::RDMA_CM_EVENT_ADDR_CHANGE => ConnectionEvent::AddressChanged,
            kind::RDMA_CM_EVENT_TIMEWAIT_EXIT => ConnectionEvent::TimewaitExit,
            other => ConnectionEvent::Other(other),
        }))
    }

    /// Disconnects. The peer gets [`ConnectionEvent::Disconnected`]; this side gets it when the
    /// peer's program has disconnected too, or after a minute without a response.
    /// Requests that the peer has not acknowledged may be lost: wait for their completions before.
    ///
    /// # Errors
    /// [`ConnectError::Failed`].
    pub fn disconnect(&mut self) -> Result<(), ConnectError> {
        let (peer, action) = (self.prepared.peer, "disconnect from");
        self.prepared.id.disconnect().map_err(|source| ConnectError::Failed {
            peer,
            action,
            source,
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // An error says that the connection has ended.
        let _ = self.prepared.id.disconnect();
    }
}

impl AsFd for Connection {
    /// Readable when there is an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.prepared.id.descriptor()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer())
            .field("local", &self.local())
            .field("device", &self.device())
            .finish_non_exhaustive()
    }
}
