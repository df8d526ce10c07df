//! The interface.

use std::cell::Cell;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

use super::{Endpoint, EndpointList, EndpointState, Keepalive, States};
use crate::base::address::PeerAddress;
use crate::base::attributes::Attributes;
use crate::base::completion::Completion;
use crate::base::counters::{Counters, Past};
use crate::base::error::{ConnectError, OpenError, PostError};
use crate::base::event::{Armed, EventError};
use crate::base::fork;
use crate::base::panics::Panics;
use crate::base::status::{Post, Posted};
use crate::transport::common::pending::Arbiter;
use crate::transport::sealed::Handled;
#[cfg(feature = "tcp")]
use crate::transport::tcp::Routes;
use crate::transport::{self, common::handlers::Handlers};

/// The part of an interface's state that every transport has.
pub(crate) struct InterfaceCore<T: States> {
    pub(crate) handlers: Handlers,
    pub(crate) arbiter: Arbiter<Endpoint<T>>,
    pub(crate) endpoints: T::Endpoints,
    pub(crate) closed: Cell<bool>,
    pub(crate) attributes: Attributes,
    /// Counts of endpoints that were dropped.
    pub(crate) past: Past,
    /// The probes of idle endpoints. `None` if the settings ask for none, or if the kernel reports
    /// the death of a peer.
    pub(crate) keepalive: Option<Keepalive>,
}

impl<T: States> InterfaceCore<T> {
    pub(crate) fn new(attributes: Attributes, endpoints: T::Endpoints) -> Self {
        Self {
            handlers: Handlers::new(),
            arbiter: Arbiter::new(),
            endpoints,
            closed: Cell::new(false),
            attributes,
            past: Past::default(),
            keepalive: None,
        }
    }

    /// Returns the part of an interface that probes idle endpoints.
    pub(crate) fn with_keepalive(self, keepalive: Option<Keepalive>) -> Self {
        Self { keepalive, ..self }
    }

    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), PostError> {
        if self.closed.get() { Err(PostError::Closed) } else { Ok(()) }
    }

    /// Drops the waiting requests and the handlers of an interface that is closed.
    pub(crate) fn clear(&self, panics: &mut Panics) {
        panics.catch(|| self.arbiter.clear());
        panics.catch(|| self.handlers.close());
        // Inside a handler, the outermost delivery further up the stack drops the handlers.
        if let Some(mut running) = self.handlers.enter() {
            panics.catch(|| running.install_pending());
        }
    }

    /// Refuses new endpoints of a closed interface.
    pub(crate) fn check_opening(&self) -> Result<(), OpenError> {
        if self.closed.get() { Err(OpenError::Closed { transport: T::ID }) } else { Ok(()) }
    }
}

/// The state of an interface, behind its handles.
pub(crate) trait InterfaceState: Sized + 'static {
    type Transport: States<Shared = Self>;

    fn core(&self) -> &InterfaceCore<Self::Transport>;

    /// Makes the next progress install new handlers, and run pending requests.
    fn call_attention(&self);

    /// See [`crate::Interface::hold_sender`].
    fn hold_sender(&self) -> bool {
        false
    }

    /// See [`crate::Interface::release_senders`].
    fn release_senders(&self) {}

    /// Returns where peers find the interface.
    fn address(&self) -> PeerAddress;

    /// See [`transport::Interface::reaches`].
    fn reaches(self: &Rc<Self>, peer: &PeerAddress) -> Result<(), ConnectError>;

    /// See [`transport::Interface::reaches_by`].
    #[cfg(feature = "tcp")]
    fn reaches_by(self: &Rc<Self>, peer: &PeerAddress, _: &Routes) -> Result<bool, ConnectError> {
        self.reaches(peer).map(|()| true)
    }

    /// See [`transport::Interface::event_fd`].
    fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError>;

    /// See [`transport::Interface::arm`]. The interface is open.
    fn arm(&self) -> Result<Armed, EventError>;

    /// See [`transport::Interface::examine`]. Devices report the end of peers by completions.
    fn examine(&self) {}
}

/// A handle to an open interface; cloning gives another handle to the same one.
pub struct Interface<T: States>(pub(crate) Rc<T::Shared>);

impl<T: States> Interface<T> {
    /// Returns the first handle to an interface, which children of this process will not use.
    pub(crate) fn open_with(shared: &Rc<T::Shared>) -> Self {
        fork::watch(shared);
        Self(Rc::clone(shared))
    }
}

impl<T: States> Clone for Interface<T> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<T: States> fmt::Debug for Interface<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interface")
            .field("transport", &T::ID)
            .field("address", &self.0.address())
            .finish_non_exhaustive()
    }
}

impl<T: States> Handled for Interface<T> {
    fn handlers(&self) -> &Handlers {
        &self.0.core().handlers
    }

    fn call_attention(&self) {
        self.0.call_attention();
    }

    fn hold_sender(&self) -> bool {
        self.0.hold_sender()
    }

    fn release_senders(&self) {
        self.0.release_senders();
    }
}

// The fences are for transports that write the peer's memory themselves.
impl<T: States> transport::Interface for Interface<T> {
    fn attributes(&self) -> &Attributes {
        &self.0.core().attributes
    }

    fn address(&self) -> PeerAddress {
        self.0.address()
    }

    fn reaches(&self, peer: &PeerAddress) -> Result<(), ConnectError> {
        self.0.reaches(peer)
    }

    #[cfg(feature = "tcp")]
    fn reaches_by(&self, peer: &PeerAddress, routes: &Routes) -> Result<bool, ConnectError> {
        self.0.reaches_by(peer, routes)
    }

    fn counters(&self) -> Counters {
        let core = self.0.core();
        core.endpoints.all().iter().fold(core.past.get(), |sum, state| sum + state.counters())
    }

    fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        self.0.event_fd()
    }

    fn arm(&self) -> Result<Armed, EventError> {
        let core = self.0.core();
        if core.closed.get() {
            return Err(EventError::Closed { transport: T::ID });
        }
        if core.keepalive.is_none() {
            return self.0.arm();
        }
        if core.is_keepalive_due() {
            self.0.call_attention();
            return Ok(Armed::Ready);
        }
        Ok(self.0.arm()?.and(Armed::until(core.next_keepalive())))
    }

    fn examine(&self) {
        let core = self.0.core();
        if core.keepalive.is_some() && core.is_keepalive_due() {
            self.0.call_attention();
        }
        self.0.examine();
    }

    fn flush(&self, completion: Option<&Completion>) -> Post {
        self.0.core().check_open()?;
        fence(Ordering::SeqCst);
        let endpoints = self.0.core().endpoints.all();
        for state in &endpoints {
            state.send_waiting();
        }
        let busy = || endpoints.iter().filter(|state| !state.is_idle());
        if busy().next().is_none() {
            return Ok(Posted::Done);
        }
        if !busy().all(|state| state.can_flush()) {
            return Err(PostError::NoResource);
        }
        busy().try_for_each(|state| state.flush_all(completion))?;
        Ok(Posted::InProgress)
    }

    fn fence(&self) -> Result<(), PostError> {
        self.0.core().check_open()?;
        fence(Ordering::SeqCst);
        for state in self.0.core().endpoints.all() {
            state.fence();
        }
        Ok(())
    }
}

impl<S: InterfaceState> fork::Inherited for S {
    fn close_in_child(&self) {
        self.core().closed.set(true);
        // Progress in the child finds the interface closed.
        self.call_attention();
        self.core().endpoints.for_each(|state| state.posting().close_in_child());
    }
}
