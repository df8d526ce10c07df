//! The endpoint: connecting, waiting and closing. Each transport implements its posts.

use std::fmt;
use std::rc::Rc;

use super::{Driver, Interface, QueueAddress, State, address};
use crate::address::PeerAddress;
use crate::capability::Flush;
use crate::completion::Completion;
use crate::counters::Counters;
use crate::error::{ConnectError, EndpointError, OpenError, PostError};
use crate::status::{FlushMode, Post};
use crate::transport::common::pending::{HasPending, PendingQueue, Request};
use crate::transport::common::post_state::{PostBlock, PostState};
use crate::transport::{self, Interface as _};

/// One end of a connection: a queue pair. A clone is another handle to the same one.
///
/// Dropping the last handle stops the queue pair: outstanding operations complete as cancelled in
/// the next progress. Flush before the drop if they must arrive.
#[must_use = "dropping the last handle closes the endpoint"]
pub struct Endpoint<D: Driver>(pub(crate) Rc<State<D>>);

impl<D: Driver> Endpoint<D> {
    /// Creates an unconnected endpoint. It takes its share of the interface's completion queue.
    ///
    /// # Errors
    /// [`OpenError::TooManyEndpoints`], [`OpenError::Device`], [`OpenError::Closed`]
    pub fn new(interface: &Interface<D>) -> Result<Self, OpenError> {
        interface.0.open_endpoint().map(Self::handle)
    }

    fn handle(state: Rc<State<D>>) -> Self {
        state.handles.set(state.handles.get() + 1);
        Self(state)
    }

    /// Connects to the peer's endpoint. Both ends connect to each other; after that, both can post.
    ///
    /// # Errors
    /// [`ConnectError::NoEndpoint`], [`ConnectError::ForeignTransport`], [`ConnectError::Address`]
    /// and [`ConnectError::Unreachable`] for addresses that are not usable here,
    /// [`ConnectError::Connected`] the second time, [`ConnectError::Device`] if the device refuses.
    pub fn connect(&self, peer: &PeerAddress) -> Result<(), ConnectError> {
        let port = address::port::<D>(peer.device())?;
        let peer = QueueAddress::unpack::<D>(peer.endpoint_for(D::ID)?)?;
        if !self.0.posting.has(PostBlock::Unconnected) || !self.0.posting.is_alive() {
            return Err(ConnectError::Connected { transport: D::ID });
        }
        self.0.connect(port, &peer)
    }
}

impl<D: Driver> transport::Endpoint for Endpoint<D> {
    fn address(&self) -> PeerAddress {
        Interface(Rc::clone(&self.0.shared)).address().with_endpoint(self.0.own.pack::<D>())
    }

    fn error(&self) -> Option<EndpointError> {
        self.0.error()
    }

    fn counters(&self) -> Counters {
        self.0.counters()
    }
}

impl<D: Driver> Flush for Endpoint<D> {
    fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        self.0.flush(mode, completion)
    }

    fn fence(&self) -> Result<(), PostError> {
        self.0.posting.check()?;
        self.0.fence();
        Ok(())
    }
}

impl<D: Driver> HasPending for Endpoint<D> {
    fn pending(&self) -> &PendingQueue<Self> {
        &self.0.pending
    }

    fn post_state(&self) -> &PostState {
        &self.0.posting
    }

    fn may_wait(&self) -> bool {
        self.0.may_wait()
    }

    fn wait(&self, request: Request<Self>) {
        self.0.shared.arbiter.add(self.clone(), request);
        self.0.shared.call_attention();
    }
}

impl<D: Driver> Clone for Endpoint<D> {
    fn clone(&self) -> Self {
        Self::handle(Rc::clone(&self.0))
    }
}

impl<D: Driver> Drop for Endpoint<D> {
    fn drop(&mut self) {
        let handles = self.0.handles.get() - 1;
        self.0.handles.set(handles);
        if handles == 0 {
            self.0.shared.close_endpoint(&self.0);
        }
    }
}

impl<D: Driver> fmt::Debug for Endpoint<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("transport", &D::ID)
            .field("own", &self.0.own)
            .finish_non_exhaustive()
    }
}
