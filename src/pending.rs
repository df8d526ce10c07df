//! Requests that wait on an endpoint for resources, as values.

use std::fmt;
use std::rc::Rc;

use crate::endpoint::Endpoint;
use crate::status::PendingResult;

/// A request that waits on an endpoint until resources are freed.
///
/// It takes the endpoint on which it runs as an argument, so that a request taken from one endpoint
/// by [`Endpoint::pending_take`] can be added to another one.
pub struct PendingRequest<E = Endpoint>(Run<E>);

enum Run<E> {
    Owned(Box<dyn FnMut(&E) -> PendingResult>),
    Shared(Rc<dyn Fn(&E) -> PendingResult>),
}

impl<E> PendingRequest<E> {
    /// A request that runs this function.
    pub fn new(run: impl FnMut(&E) -> PendingResult + 'static) -> Self {
        Self(Run::Owned(Box::new(run)))
    }

    /// A request that the caller keeps, to add it again and again without an allocation for each
    /// time.
    pub fn shared(run: Rc<dyn Fn(&E) -> PendingResult>) -> Self {
        Self(Run::Shared(run))
    }

    /// Runs the request on `endpoint`. After [`PendingResult::Again`] it can run again.
    pub fn run(&mut self, endpoint: &E) -> PendingResult {
        match &mut self.0 {
            Run::Owned(run) => run(endpoint),
            Run::Shared(run) => run(endpoint),
        }
    }
}

impl<E> fmt::Debug for PendingRequest<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingRequest")
    }
}
