//! Shared receive queues.

use std::fmt;
use std::sync::Arc;

use crate::dv::{self, SharedReceiveInfo};
use crate::post::{Element, PostError, Receive};
use crate::sys::Srq;
use crate::{Error, ProtectionDomain};

/// Only verbs post to the queue ([`SharedReceiveQueue::post`]).
#[derive(Debug)]
pub struct ReceivePoster(());

/// A queue of receive requests for several queue pairs. `A` is the kind of access to its ring: by
/// verbs, or directly by a driver in this program ([`dv::SharedReceiveQueue`]).
#[must_use = "dropping it destroys the queue"]
pub struct SharedReceiveQueue<A = ReceivePoster> {
    queue: Arc<Srq>,
    requests: u32,
    elements: u32,
    access: A,
}

/// A handle by which queue pairs refer to a shared receive queue. It keeps the queue alive.
#[derive(Clone)]
pub struct SharedReceiveQueueRef(Arc<Srq>);

/// The identity of a shared receive queue in events. It is unique in the process while the queue
/// exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedReceiveQueueId(pub(crate) usize);

impl SharedReceiveQueue {
    /// Creates a queue with room for at least `requests` requests of `elements` scatter elements
    /// each.
    ///
    /// # Errors
    /// If the device does not support this size.
    pub fn new(domain: &ProtectionDomain, requests: u32, elements: u32) -> Result<Self, Error> {
        let (mut requests, mut elements) = (requests, elements);
        let queue =
            Srq::create(domain.handle(), &mut requests, &mut elements).map_err(|source| {
                let action = format!(
                    "create a shared receive queue of {requests} ({elements} elements each)"
                );
                Error::new(domain.device(), action, source)
            })?;
        Ok(Self { queue: Arc::new(queue), requests, elements, access: ReceivePoster(()) })
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// [`PostError::Full`] if the queue has no room for another request.
    #[inline]
    pub fn post(&self, id: u64, elements: &[Element]) -> Result<(), PostError> {
        if elements.len() > self.elements as usize {
            return Err(PostError::TooManyElements { count: elements.len(), most: self.elements });
        }
        self.queue.receive(id, Element::as_verbs(elements)).map_err(PostError::from_errno)
    }

    /// Posts receive requests, up to 16 per call of the provider.
    ///
    /// # Errors
    /// The number of requests that were posted, counted from the first, and the reason why the next
    /// one was not.
    pub fn post_all(&self, receives: &[Receive]) -> Result<(), (usize, PostError)> {
        let posted = self.queue.receive_all(receives, Receive::as_verbs);
        posted.map_err(|(posted, errno)| (posted, PostError::from_errno(errno)))
    }

    /// Hands the queue's ring over to a driver in this program.
    ///
    /// # Errors
    /// If the device's driver is not libmlx5, or libmlx5 is not installed.
    pub fn open_direct(self) -> Result<dv::SharedReceiveQueue, Error> {
        let context = self.queue.parents().context();
        let info = dv::open(context, "a shared receive queue", &*self.queue)?;
        let access = SharedReceiveInfo::try_from(info)
            .map_err(|source| Error::new(context.name(), "open a shared receive queue", source))?;
        Ok(SharedReceiveQueue {
            queue: self.queue,
            requests: self.requests,
            elements: self.elements,
            access,
        })
    }
}

impl SharedReceiveQueue<SharedReceiveInfo> {
    /// The addresses of the queue's ring and doorbell record.
    pub fn info(&self) -> &SharedReceiveInfo {
        &self.access
    }
}

impl<A> SharedReceiveQueue<A> {
    /// The number of requests that the queue has room for.
    pub fn requests(&self) -> u32 {
        self.requests
    }

    /// The maximum number of scatter elements of a request.
    pub fn elements(&self) -> u32 {
        self.elements
    }

    /// Requests the event [`crate::EventKind::SharedReceiveLimit`] for the time when fewer than
    /// `limit` requests are left; 0 cancels the request.
    ///
    /// # Errors
    /// If the limit exceeds the size of the queue.
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        self.queue.limit(limit).map_err(|source| {
            let device = self.queue.parents().context().name();
            Error::new(
                device,
                format!("set the limit of a shared receive queue to {limit}"),
                source,
            )
        })
    }

    /// The identity of the queue in events.
    pub fn id(&self) -> SharedReceiveQueueId {
        SharedReceiveQueueId(self.queue.identity())
    }

    /// The handle by which queue pairs refer to the queue.
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
