//! The endpoint.

use std::cell::Cell;
use std::fmt;
use std::rc::{Rc, Weak};

use super::{EndpointList, InterfaceState};
use crate::base::address::{EndpointAddress, PeerAddress, TransportId};
use crate::base::capability::Flush;
use crate::base::completion::Completion;
use crate::base::counters::Counters;
use crate::base::error::{EndpointError, PostError};
use crate::base::status::{FlushMode, Post};
use crate::transport;
use crate::transport::common::pending::{HasPending, PendingQueue, Request};
use crate::transport::common::post_state::{PostBlock, PostState};

/// The endpoint of a transport in the dynamic API, which implements this.
pub(crate) trait InDynamic: Sized {
    type Dynamic: 'static;

    fn to_dynamic(endpoint: &Endpoint<Self>) -> Self::Dynamic
    where
        Self: States;
}

/// The states of a transport's interfaces and endpoints.
pub(crate) trait States: InDynamic + 'static {
    const ID: TransportId;
    type Shared: InterfaceState<Transport = Self>;
    type State: EndpointState<Transport = Self>;
    /// How an interface keeps its endpoints.
    type Endpoints: EndpointList<Self::State>;
}

/// The state of an endpoint, behind its handles.
pub(crate) trait EndpointState: Sized + 'static {
    type Transport: States<State = Self>;

    fn shared(&self) -> &Rc<<Self::Transport as States>::Shared>;
    fn posting(&self) -> &PostState;
    fn pending(&self) -> &PendingQueue<Endpoint<Self::Transport>>;

    /// Returns where peers find the endpoint.
    fn address(&self) -> EndpointAddress;

    /// Returns the reason if the endpoint failed.
    fn error(&self) -> Option<EndpointError>;

    /// Returns whether the endpoint is connected, but the peer has not responded yet.
    fn is_connecting(&self) -> bool {
        self.posting().has(PostBlock::Connecting) && self.posting().is_alive()
    }

    /// Returns whether a request may be queued: some post would be refused for lack of resources,
    /// and for no other reason.
    fn may_wait(&self) -> bool;

    fn counters(&self) -> Counters {
        self.posting().tally.read()
    }

    /// Returns the count of handles, if the endpoint is closed with the last one.
    fn handles(&self) -> Option<&Cell<u32>> {
        None
    }

    /// Called when the last of the counted handles is dropped.
    fn close(&self) {}

    /// Sends what was posted and waits for more to send with it.
    fn send_waiting(&self) {}

    /// Returns whether nothing is outstanding. Without a method of its own, an endpoint completes
    /// each operation in its post.
    fn is_idle(&self) -> bool {
        true
    }

    /// Returns whether [`Self::flush_all`] would succeed.
    fn can_flush(&self) -> bool {
        true
    }

    /// Lets `completion` wait until everything outstanding is finished, also on a failed endpoint.
    /// The caller has checked [`Self::can_flush`].
    fn flush_all(&self, completion: Option<&Completion>) -> Result<(), PostError> {
        let _ = completion;
        Ok(())
    }

    /// See [`Flush::flush`].
    fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post;

    /// Orders later operations after outstanding ones.
    fn fence(&self) {}

    /// Posts an operation that fails if the peer is dead, unless an outstanding one does. Called in
    /// progress for an endpoint that is connected and has not failed, and only over transports that
    /// [probe](super::Keepalive).
    ///
    /// # Errors
    /// [`PostError::NoResource`] if the interface has no resources for another probe.
    fn probe(&self) -> Result<(), PostError> {
        Ok(())
    }
}

/// Implements the accessors of [`EndpointState`] by the fields of the same names.
macro_rules! endpoint_fields {
    ($transport:ty) => {
        type Transport = $transport;

        fn shared(&self) -> &std::rc::Rc<Shared> {
            &self.shared
        }

        fn posting(&self) -> &$crate::transport::common::post_state::PostState {
            &self.posting
        }

        fn pending(
            &self,
        ) -> &$crate::transport::common::pending::PendingQueue<
            $crate::transport::handle::Endpoint<$transport>,
        > {
            &self.pending
        }
    };
}
pub(crate) use endpoint_fields;

/// One end of a connection. Cloning gives another handle to the same endpoint; dropping the last
/// one closes it.
#[must_use = "dropping the last handle closes the endpoint"]
pub struct Endpoint<T: States>(pub(crate) Rc<T::State>);

impl<T: States> Endpoint<T> {
    /// Returns a handle to an endpoint.
    #[inline]
    pub(crate) fn handle(state: Rc<T::State>) -> Self {
        if let Some(handles) = state.handles() {
            handles.set(handles.get() + 1);
        }
        Self(state)
    }

    /// Out of line, so that the drop of another handle stays short.
    #[cold]
    #[inline(never)]
    fn close(&self) {
        self.0.close();
        // Progress may need the state for longer.
        self.purge(|| {});
    }
}

impl<T: States> Clone for Endpoint<T> {
    #[inline]
    fn clone(&self) -> Self {
        Self::handle(Rc::clone(&self.0))
    }
}

impl<T: States> Drop for Endpoint<T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(handles) = self.0.handles() {
            handles.set(handles.get() - 1);
            if handles.get() == 0 {
                self.close();
            }
        }
    }
}

impl<T: States> fmt::Debug for Endpoint<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("transport", &T::ID)
            .field("address", &self.0.address())
            .field("error", &self.0.error())
            .finish_non_exhaustive()
    }
}

impl<T: States> transport::Endpoint for Endpoint<T> {
    fn address(&self) -> PeerAddress {
        self.0.shared().address().with_endpoint(self.0.address())
    }

    fn error(&self) -> Option<EndpointError> {
        self.0.error()
    }

    fn counters(&self) -> Counters {
        self.0.counters()
    }

    fn is_connecting(&self) -> bool {
        self.0.is_connecting()
    }
}

impl<T: States> Flush for Endpoint<T> {
    fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        self.0.flush(mode, completion)
    }

    fn fence(&self) -> Result<(), PostError> {
        self.0.posting().check()?;
        self.0.fence();
        Ok(())
    }
}

impl<T: States> HasPending for Endpoint<T> {
    type Weak = Weak<T::State>;
    type Dynamic = T::Dynamic;

    fn to_dynamic(&self) -> T::Dynamic {
        T::to_dynamic(self)
    }

    fn downgrade(&self) -> Weak<T::State> {
        Rc::downgrade(&self.0)
    }

    fn upgrade(endpoint: &Weak<T::State>) -> Option<Self> {
        let state = endpoint.upgrade()?;
        let is_closed = state.handles().is_some_and(|handles| handles.get() == 0);
        (!is_closed).then(|| Self::handle(state))
    }

    fn pending(&self) -> &PendingQueue<Self> {
        self.0.pending()
    }

    fn post_state(&self) -> &PostState {
        self.0.posting()
    }

    fn may_wait(&self) -> bool {
        self.0.may_wait()
    }

    fn wait(&self, request: Request<Self>) {
        self.0.shared().core().arbiter.add(self, request);
        self.0.shared().call_attention();
    }
}
