//! The endpoint that last changed a window: the window's state is known only while it is alive.

use std::fmt;
use std::rc::{Rc, Weak};

use crate::transport::handle::{Endpoint, EndpointState, States};

/// An endpoint, without keeping it open.
#[derive(Clone)]
pub(crate) struct Poster(Weak<dyn Alive>);

trait Alive {
    fn is_alive(&self) -> bool;
}

impl<S: EndpointState> Alive for S {
    fn is_alive(&self) -> bool {
        self.posting().is_alive()
    }
}

impl Poster {
    /// Refers to `endpoint`.
    pub(crate) fn of<T: States>(endpoint: &Endpoint<T>) -> Self {
        let weak: Weak<T::State> = Rc::downgrade(&endpoint.0);
        Self(weak)
    }

    /// Returns whether the endpoint has failed or was closed.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.upgrade().is_none_or(|state| !state.is_alive())
    }

    /// Returns whether both are the same endpoint.
    pub(crate) fn is(&self, other: &Self) -> bool {
        std::ptr::addr_eq(self.0.as_ptr(), other.0.as_ptr())
    }
}

impl fmt::Debug for Poster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poster").field("has_ended", &self.has_ended()).finish()
    }
}
