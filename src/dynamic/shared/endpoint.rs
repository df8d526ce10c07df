//! Endpoints of a shared worker.

use std::fmt;
use std::sync::Arc;

use super::completion::{SharedCompletion, SharedFetchResult, SharedUnpack};
use super::interface::SharedInterface;
use super::lock::{Guard, Handle, Shared};
use super::ticket::{Target, Ticket};
use crate::base::address::{PeerAddress, TransportId};
use crate::base::atomic::{AtomicOp, AtomicWord};
use crate::base::counters::Counters;
use crate::base::error::{Busy, ConnectError, EndpointError, OpenError, PostError};
use crate::base::memory::Slice;
use crate::base::status::{FlushMode, PendingResult, Post};
use crate::dynamic::endpoint::Endpoint;
use crate::dynamic::memory::{RemoteKey, Transfer};
#[cfg(feature = "shm")]
use crate::transport::shm::RemotePointer;

/// An [`Endpoint`] of a [`SharedWorker`](super::SharedWorker). Cloning gives another handle to the
/// same endpoint. Dropping the last one, on any thread, closes it.
#[derive(Clone)]
#[must_use = "dropping the last handle closes the endpoint"]
pub struct SharedEndpoint(Arc<Inner>);

struct Inner {
    endpoint: Handle<Endpoint>,
    transport: TransportId,
}

/// Posts an operation with a ticket for what `target` has.
#[inline]
pub(super) fn post<T>(
    object: &Handle<T>,
    target: Target,
    post: impl FnOnce(&T, Option<&Ticket>) -> Post,
) -> Post {
    let posted = object.with(|guard, object| {
        if target.is_empty() {
            return post(object, None);
        }
        guard.tickets.post(target, |ticket| post(object, Some(ticket)))
    });
    posted.unwrap_or(Err(PostError::Forked))
}

/// The error of a connection in a forked child.
#[cold]
pub(super) fn forked(transport: TransportId) -> ConnectError {
    let (peer, reason) = ("a peer of the parent process", "open an interface after the fork");
    ConnectError::Unreachable { transport, peer: peer.to_owned(), reason: reason.to_owned() }
}

/// Defines operations that need no ticket, by those of [`Endpoint`].
macro_rules! forward {
    ($($(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            #[doc = concat!("As [`Endpoint::", stringify!($name), "`].")]
            ///
            /// # Errors
            /// As there. [`PostError::Forked`] in a forked child.
            $(#[$attribute])*
            #[inline(always)]
            pub fn $name(&self, $($argument: $type),*) -> Result<$result, PostError> {
                let Some(guard) = self.0.endpoint.lock() else {
                    return Err(PostError::Forked);
                };
                // SAFETY: the guard is of this handle.
                let endpoint = unsafe { self.0.endpoint.locked(&guard) };
                endpoint.$name($($argument),*)
            }
        )*
    };
}

/// Defines operations that may be in progress when the post returns.
macro_rules! complete {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            #[doc = concat!("As [`Endpoint::", stringify!($name), "`].")]
            ///
            /// # Errors
            /// As there. [`PostError::Forked`] in a forked child.
            #[inline]
            pub fn $name(
                &self,
                $($argument: $type,)*
                completion: Option<&SharedCompletion>,
            ) -> Post {
                let target = Target { completion: completion.cloned(), ..Target::default() };
                post(&self.0.endpoint, target, |endpoint, ticket| {
                    endpoint.$name($($argument,)* ticket.map(|ticket| &ticket.completion))
                })
            }
        )*
    };
}

impl SharedEndpoint {
    /// Makes an endpoint to be connected to a peer's endpoint, as [`Endpoint::new`].
    ///
    /// # Errors
    /// As [`Endpoint::new`]; [`OpenError::Closed`] in a forked child.
    pub fn new(interface: &SharedInterface) -> Result<Self, OpenError> {
        let handle = interface.handle();
        let opened = handle.with(|guard, interface| {
            Ok(Self::adopt(&handle.shared, guard, Endpoint::new(interface)?))
        });
        opened.unwrap_or(Err(OpenError::Closed { transport: interface.transport() }))
    }

    pub(super) fn adopt(shared: &Arc<Shared>, guard: &Guard<'_>, endpoint: Endpoint) -> Self {
        let transport = endpoint.transport();
        Self(Arc::new(Inner { endpoint: Handle::new(shared, guard, endpoint), transport }))
    }

    /// Returns the transport.
    pub fn transport(&self) -> TransportId {
        self.0.transport
    }

    /// Returns the address that the peer passes to [`connect`](Self::connect); `None` in a forked
    /// child.
    pub fn address(&self) -> Option<PeerAddress> {
        self.0.endpoint.with(|_, endpoint| endpoint.address())
    }

    /// Connects to the peer's endpoint, as [`Endpoint::connect`].
    ///
    /// # Errors
    /// As [`Endpoint::connect`].
    pub fn connect(&self, peer: &PeerAddress) -> Result<(), ConnectError> {
        let connected = self.0.endpoint.with(|_, endpoint| endpoint.connect(peer));
        connected.unwrap_or_else(|| Err(forked(self.0.transport)))
    }

    /// Returns the counters of this endpoint.
    pub fn counters(&self) -> Counters {
        self.0.endpoint.with(|_, endpoint| endpoint.counters()).unwrap_or_default()
    }

    /// Returns why the endpoint failed, if it did.
    pub fn error(&self) -> Option<EndpointError> {
        self.0.endpoint.with(|_, endpoint| endpoint.error())?
    }

    forward! {
        fn put_short(payload: &[u8], remote: u64, key: &RemoteKey) -> ();
        fn put_bcopy(pack: impl FnOnce(&mut [u8]) -> usize, remote: u64, key: &RemoteKey) -> usize;
        fn am_short(id: u8, header: u64, payload: &[u8]) -> ();
        fn am_short_iov(id: u8, header: u64, pieces: &[&[u8]]) -> ();
        fn am_bcopy(id: u8, pack: impl FnOnce(&mut [u8]) -> usize) -> usize;
        fn atomic_post(op: AtomicOp<impl AtomicWord>, remote: u64, key: &RemoteKey) -> ();
        #[cfg(feature = "shm")]
        fn rkey_ptr(key: &RemoteKey) -> RemotePointer;
        fn fence() -> ();
        fn check() -> ();
    }

    complete! {
        fn put_zcopy(slices: &[Slice<'_>], remote: u64, key: &RemoteKey);
        fn put_list(transfers: &[Transfer<'_>]);
        fn get_list(transfers: &[Transfer<'_>]);
        fn get_zcopy(slices: &[Slice<'_>], remote: u64, key: &RemoteKey);
        fn am_zcopy(id: u8, header: &[u8], slices: &[Slice<'_>]);
        fn flush(mode: FlushMode);
    }

    /// As [`Endpoint::get_bcopy`].
    ///
    /// # Errors
    /// As there. [`PostError::Forked`] in a forked child.
    pub fn get_bcopy(
        &self,
        unpack: &SharedUnpack,
        length: usize,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&SharedCompletion>,
    ) -> Post {
        let (unpack, completion) = (Some(unpack.clone()), completion.cloned());
        let target = Target { unpack, completion, fetch: None };
        post(&self.0.endpoint, target, |endpoint, ticket| match ticket {
            Some(Ticket { unpack, completion, .. }) => {
                endpoint.get_bcopy(unpack, length, remote, key, Some(completion))
            }
            None => Err(PostError::Unsupported),
        })
    }

    /// As [`Endpoint::atomic_fetch`].
    ///
    /// # Errors
    /// As there. [`PostError::Forked`] in a forked child.
    pub fn atomic_fetch<W: AtomicWord>(
        &self,
        op: AtomicOp<W>,
        remote: u64,
        key: &RemoteKey,
        result: &SharedFetchResult,
        completion: Option<&SharedCompletion>,
    ) -> Post {
        let (fetch, completion) = (Some(result.clone()), completion.cloned());
        let target = Target { fetch, completion, unpack: None };
        post(&self.0.endpoint, target, |endpoint, ticket| match ticket {
            Some(Ticket { result, completion, .. }) => {
                endpoint.atomic_fetch(op, remote, key, result, Some(completion))
            }
            None => Err(PostError::Unsupported),
        })
    }

    /// Queues a request that progress runs, in order, when resources are freed. It runs with the
    /// worker's lock held, on any thread, and gets this endpoint.
    ///
    /// # Errors
    /// [`Busy`] if a post would not return [`PostError::NoResource`] now.
    pub fn pending_add(
        &self,
        mut request: impl FnMut(&Self) -> PendingResult + Send + 'static,
    ) -> Result<(), Busy> {
        let this = self.clone();
        let added =
            self.0.endpoint.with(|_, endpoint| endpoint.pending_add(move |_| request(&this)));
        added.unwrap_or(Err(Busy))
    }

    /// Drops every waiting request, calling `purged` once for each, in order.
    pub fn pending_purge(&self, purged: impl FnMut()) {
        self.0.endpoint.with(|_, endpoint| endpoint.pending_purge(purged));
    }
}

impl fmt::Debug for SharedEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedEndpoint")
            .field("transport", &self.0.transport)
            .finish_non_exhaustive()
    }
}
