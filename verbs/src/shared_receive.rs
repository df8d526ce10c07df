//! Shared receive queues.

use std::fmt;
use std::sync::Arc;

use crate::dv::{self, SharedReceiveFacts};
use crate::post::{Element, PostError, Receive};
use crate::sys::Srq;
use crate::{Error, ProtectionDomain};

/// Verbs post to the queue ([`SharedReceiveQueue::post`]), and nobody else does.
#[derive(Debug)]
pub struct ReceivePoster(());

/// Receive requests for several queue pairs. `A` says who has access to its ring: verbs, or a driver of the program's own
/// ([`dv::SharedReceiveQueue`]).
pub struct SharedReceiveQueue<A = ReceivePoster> {
    queue: Arc<Srq>,
    requests: u32,
    elements: u32,
    access: A,
}

/// Names a shared receive queue to queue pairs, and keeps it alive.
#[derive(Clone)]
pub struct SharedReceiveQueueRef(Arc<Srq>);

/// Names a shared receive queue in events. No other queue of the process has the same name while this one is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedReceiveQueueId(pub(crate) usize);

impl SharedReceiveQueue {
    /// A queue of at least so many requests, of so many scatter elements each.
    ///
    /// # Errors
    /// If the device has none of this size.
    pub fn new(domain: &ProtectionDomain, requests: u32, elements: u32) -> Result<Self, Error> {
        let (mut requests, mut elements) = (requests, elements);
        let queue = Srq::create(domain.handle(), &mut requests, &mut elements).map_err(|source| {
            let action = format!("create a shared receive queue of {requests} ({elements} elements each)");
            Error::new(domain.device(), action, source)
        })?;
        Ok(Self { queue: Arc::new(queue), requests, elements, access: ReceivePoster(()) })
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// [`PostError::Full`] if as many as there is room for are outstanding.
    #[inline]
    pub fn post(&self, id: u64, elements: &[Element]) -> Result<(), PostError> {
        if elements.len() > self.elements as usize {
            return Err(PostError::TooManyElements { count: elements.len(), most: self.elements });
        }
        self.queue.receive(id, Element::as_verbs(elements)).map_err(PostError::from_errno)
    }

    /// Posts receive requests, in one call for every 16.
    ///
    /// # Errors
    /// How many were posted, from the first on, and why the next was not.
    pub fn post_all(&self, receives: &[Receive]) -> Result<(), (usize, PostError)> {
        let posted = self.queue.receive_all(receives, Receive::as_verbs);
        posted.map_err(|(posted, errno)| (posted, PostError::from_errno(errno)))
    }

    /// Gives the queue's ring to a driver of the program's own.
    ///
    /// # Errors
    /// If the device is not one of libmlx5, or that is not installed.
    pub fn open_direct(self) -> Result<dv::SharedReceiveQueue, Error> {
        let context = self.queue.parents().context();
        let facts = dv::open(context, "a shared receive queue", &*self.queue)?;
        let access = SharedReceiveFacts::try_from(facts)
            .map_err(|source| Error::new(context.name(), "open a shared receive queue", source))?;
        Ok(SharedReceiveQueue { queue: self.queue, requests: self.requests, elements: self.elements, access })
    }
}

impl SharedReceiveQueue<SharedReceiveFacts> {
    /// Where it is.
    pub fn facts(&self) -> &SharedReceiveFacts {
        &self.access
    }
}

impl<A> SharedReceiveQueue<A> {
    /// How many requests it has room for.
    pub fn requests(&self) -> u32 {
        self.requests
    }

    /// How many scatter elements a request may have.
    pub fn elements(&self) -> u32 {
        self.elements
    }

    /// Asks for [`crate::EventKind::SharedReceiveLimit`] once fewer than `limit` requests are left; 0 asks for none.
    ///
    /// # Errors
    /// If the limit is beyond the size.
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        self.queue.limit(limit).map_err(|source| {
            let device = self.queue.parents().context().name();
            Error::new(device, format!("set the limit of a shared receive queue to {limit}"), source)
        })
    }

    /// What events name it by.
    pub fn id(&self) -> SharedReceiveQueueId {
        SharedReceiveQueueId(self.queue.identity())
    }

    /// What queue pairs name it by.
    pub fn reference(&self) -> SharedReceiveQueueRef {
        SharedReceiveQueueRef(Arc::clone(&self.queue))
    }
}

impl SharedReceiveQueueRef {
    pub(crate) fn handle(&self) -> &Arc<Srq> {
        &self.0
    }
}

impl<A: fmt::Debug> fmt::Debug for SharedReceiveQueue<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue")
            .field("requests", &self.requests)
            .field("elements", &self.elements)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SharedReceiveQueueRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueueRef").finish_non_exhaustive()
    }
}
