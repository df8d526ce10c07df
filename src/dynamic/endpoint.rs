//! Endpoints: the dynamic API. Each operation selects the transport with one predictable branch.

use crate::base::address::{PeerAddress, TransportId};
use crate::base::atomic::{AtomicOp, AtomicWord, Change, ChangeWord, Fetch};
use crate::base::capability::{
    AmBcopy, AmInvalidate, AmShort, AmShortIov, AmZcopy, Check, Flush, GetBcopy, GetZcopy, Lists,
    Pending, PutBcopy, PutShort, PutZcopy,
};
use crate::base::completion::{Completion, FetchResult, Unpack};
use crate::base::counters::Counters;
use crate::base::error::{Busy, ConnectError, EndpointError, OpenError, PostError};
use crate::base::memory::Slice;
use crate::base::pending;
use crate::base::status::{FlushMode, PendingResult, Post};
use crate::dynamic::interface::{Interface, Kind as InterfaceKind};
use crate::dynamic::memory::{KeyKind, RemoteKey, Transfer, transfers_of};
use crate::dynamic::table::transports;
use crate::dynamic::transport::Transport;
use crate::transport::Endpoint as _;
use crate::transport::common::pending::{HasPending, Request};
#[cfg(feature = "shm")]
use crate::transport::shm::RemotePointer;

/// One end of a connection. Cloning gives another handle to the same endpoint; dropping the last
/// one closes it, and outstanding operations complete as cancelled.
///
/// Every post returns at once. An operation that copies its payload (short, buffered) needs nothing
/// more from the caller; one that uses the caller's memory, or fetches, returns
/// [`Posted`](crate::Posted). While requests are pending on an endpoint, a post returns
/// [`PostError::NoResource`], so that nothing overtakes them.
#[derive(Debug, Clone)]
#[must_use = "dropping the last handle closes the endpoint"]
pub struct Endpoint(pub(crate) Kind);

transports!(one_of!
    #[derive(Debug, Clone)]
    pub(crate) enum Kind of Endpoint
);

/// A request that waits on an endpoint until resources are freed.
pub type PendingRequest<E = Endpoint> = pending::PendingRequest<E>;

/// The operations that some transports lack.
///
/// The arms of [`each!`](crate::transport::table::each) call an operation as a method of a
/// reference to the transport's endpoint. Method resolution finds the endpoint's own operation if
/// there is one, and otherwise the one below, which needs one more reference.
#[allow(dead_code, reason = "without the feature verbs every transport has some of them")]
trait Lacking {
    fn put_short_selected<K>(&self, _: &[u8], _: u64, _: &K) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    fn put_bcopy<K>(
        &self,
        _: impl FnOnce(&mut [u8]) -> usize,
        _: u64,
        _: &K,
    ) -> Result<usize, PostError> {
        Err(PostError::Unsupported)
    }

    fn put_zcopy<K>(&self, _: &[Slice<'_>], _: u64, _: &K, _: Option<&Completion>) -> Post {
        Err(PostError::Unsupported)
    }

    fn put_list<K>(&self, _: &[Transfer<'_, K>], _: Option<&Completion>) -> Post {
        Err(PostError::Unsupported)
    }

    fn get_list<K>(&self, _: &[Transfer<'_, K>], _: Option<&Completion>) -> Post {
        Err(PostError::Unsupported)
    }

    fn get_bcopy<K>(&self, _: &Unpack, _: usize, _: u64, _: &K, _: Option<&Completion>) -> Post {
        Err(PostError::Unsupported)
    }

    fn get_zcopy<K>(&self, _: &[Slice<'_>], _: u64, _: &K, _: Option<&Completion>) -> Post {
        Err(PostError::Unsupported)
    }

    fn am_short_selected(&self, _: u8, _: u64, _: &[u8]) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    fn am_short_iov(&self, _: u8, _: u64, _: &[&[u8]]) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    fn am_bcopy(&self, _: u8, _: impl FnOnce(&mut [u8]) -> usize) -> Result<usize, PostError> {
        Err(PostError::Unsupported)
    }

    fn am_zcopy(&self, _: u8, _: &[u8], _: &[Slice<'_>], _: Option<&Completion>) -> Post {
        Err(PostError::Unsupported)
    }

    #[cfg(feature = "shm")]
    fn rkey_ptr<K>(&self, _: &K) -> Result<RemotePointer, PostError> {
        Err(PostError::Unsupported)
    }

    fn change<K>(&self, _: Change, _: u64, _: &K, _: Fetch<'_>) -> Post {
        Err(PostError::Unsupported)
    }
}

impl<E> Lacking for &E {}

impl Endpoint {
    /// Makes an endpoint to be connected to a peer's endpoint; transports with
    /// [`Flags::CONNECT_TO_EP`](crate::Flags::CONNECT_TO_EP).
    ///
    /// Both ends open one, send each other its address by any means, and connect:
    ///
    /// ```
    /// # use barewire::*;
    /// let mut worker = Worker::new();
    /// let domain = Domain::open(&"rc_mlx5/soft0:1".parse()?)?;
    /// let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
    /// let (here, there) = (Endpoint::new(&interface)?, Endpoint::new(&interface)?);
    /// here.connect(&there.address())?;
    /// there.connect(&here.address())?;
    ///
    /// let memory = domain.allocate(4096, Access::REMOTE_WRITE)?;
    /// let key = domain.unpack_key(&memory.pack_key())?;
    /// here.put_short(b"hello", memory.address(), &key)?;
    /// worker.flush(&here, FlushMode::Remote)?;
    /// assert_eq!(memory.load_u8(0)?, b'h');
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`OpenError::Unsupported`], [`OpenError::TooManyEndpoints`], [`OpenError::Device`],
    /// [`OpenError::Closed`]
    pub fn new(interface: &Interface) -> Result<Self, OpenError> {
        transports!(each_of! InterfaceKind, &interface.0, interface => {
            T::open_endpoint(interface).map(Self::from_static::<T>)
        })
    }

    /// Wraps an endpoint of a transport's own type.
    pub fn from_static<T: Transport>(endpoint: T::Endpoint) -> Self {
        T::into_endpoint(endpoint)
    }

    /// Returns the endpoint as the transport's own type; `None` if it is of another transport.
    pub fn as_static<T: Transport>(&self) -> Option<&T::Endpoint> {
        T::from_endpoint(self)
    }

    /// Returns the transport.
    pub fn transport(&self) -> TransportId {
        transports!(each! &self.0, _endpoint => T::ID)
    }

    /// Returns the address that the peer passes to [`connect`](Self::connect).
    pub fn address(&self) -> PeerAddress {
        transports!(each! &self.0, endpoint => endpoint.address())
    }

    /// Connects to the peer's endpoint. Both ends connect to each other; after that, both can post.
    ///
    /// # Errors
    /// [`ConnectError::NoEndpoint`] if `peer` is the address of an interface only,
    /// [`ConnectError::Unsupported`] if the transport connects to interfaces, [`ConnectError`]
    pub fn connect(&self, peer: &PeerAddress) -> Result<(), ConnectError> {
        transports!(each! &self.0, endpoint => T::connect(endpoint, peer))
    }

    /// Returns the counters of this endpoint.
    pub fn counters(&self) -> Counters {
        transports!(each! &self.0, endpoint => endpoint.counters())
    }

    /// Returns whether the endpoint was connected, but the peer has not responded yet. Until then
    /// posts return [`PostError::NoResource`], except those of `tcp`, which wait unless the interface
    /// is [unattended](crate::InterfaceConfig::unattended). The response needs progress of both
    /// sides.
    pub fn is_connecting(&self) -> bool {
        transports!(each! &self.0, endpoint => endpoint.is_connecting())
    }

    /// Returns why the endpoint failed, if it did.
    pub fn error(&self) -> Option<EndpointError> {
        transports!(each! &self.0, endpoint => endpoint.error())
    }

    /// Writes `payload`, which is copied, to `remote`.
    #[inline(always)]
    pub fn put_short(&self, payload: &[u8], remote: u64, key: &RemoteKey) -> Result<(), PostError> {
        match (&self.0, &key.0) {
            #[cfg(feature = "mlx5")]
            (Kind::RcMlx5(endpoint), KeyKind::RcMlx5(key)) => {
                endpoint.put_short(payload, remote, key)
            }
            // Out of line: inlining the other transports would cost the first one stack and
            // registers. A word is passed by value: by reference, the caller would have to keep it
            // in memory.
            _ => match payload.try_into() {
                Ok(word) => {
                    let mut result = Ok(());
                    self.put_word(u64::from_ne_bytes(word), remote, key, &mut result);
                    result
                }
                Err(_) => self.put_short_other(payload, remote, key),
            },
        }
    }

    /// Stores an error at the last parameter. A result of this type is returned through a pointer
    /// that is the first parameter: the caller would move the others by one register, before it
    /// even tests for the first transport.
    #[inline(never)]
    fn put_word(
        &self,
        word: u64,
        remote: u64,
        key: &RemoteKey,
        result: &mut Result<(), PostError>,
    ) {
        if let Err(error) = self.put_word_here(word, remote, key) {
            *result = Err(error);
        }
    }

    /// As [`put_short`](Self::put_short) of a word, for callers that have a function for it which is
    /// not inlined.
    #[doc(hidden)]
    #[inline(always)]
    pub fn put_word_here(&self, word: u64, remote: u64, key: &RemoteKey) -> Result<(), PostError> {
        transports!(each! (&self.0, &key.0), (endpoint, key) => endpoint.put_short_selected(&word.to_ne_bytes(), remote, key))
    }

    /// Returns whether [`put_short`](Self::put_short) and [`am_short`](Self::am_short) of this
    /// endpoint are inlined.
    #[doc(hidden)]
    #[inline(always)]
    pub fn is_inlined(&self) -> bool {
        match &self.0 {
            #[cfg(feature = "mlx5")]
            Kind::RcMlx5(_) => true,
            _ => false,
        }
    }

    #[inline(never)]
    fn put_short_other(
        &self,
        payload: &[u8],
        remote: u64,
        key: &RemoteKey,
    ) -> Result<(), PostError> {
        transports!(each! (&self.0, &key.0), (endpoint, key) => endpoint.put_short_selected(payload, remote, key))
    }

    /// Lets `pack` fill a buffer of the interface and writes as many bytes as it says to `remote`.
    /// Returns the number of bytes; the caller has nothing to wait for.
    #[inline]
    pub fn put_bcopy(
        &self,
        pack: impl FnOnce(&mut [u8]) -> usize,
        remote: u64,
        key: &RemoteKey,
    ) -> Result<usize, PostError> {
        transports!(each! (&self.0, &key.0), (endpoint, key) => endpoint.put_bcopy(pack, remote, key))
    }

    /// Writes the slices, one after the other, to `remote`, straight from their memory.
    #[inline]
    pub fn put_zcopy(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        transports!(each! (&self.0, &key.0), (endpoint, key) => endpoint.put_zcopy(slices, remote, key, completion))
    }

    /// Writes every transfer's slice to its remote address, with one doorbell for all of them. All
    /// are posted, or none (`self` stops at the first that cannot be done). The completion counts
    /// all of them as one operation.
    ///
    /// # Errors
    /// [`PostError`]; [`PostError::TooManyTransfers`] for a list longer than the send queue.
    pub fn put_list(&self, transfers: &[Transfer<'_>], completion: Option<&Completion>) -> Post {
        transports!(each! &self.0, endpoint => endpoint.put_list(&transfers_of::<T>(transfers)?, completion))
    }

    /// Reads into every transfer's slice from its remote address, as [`Self::put_list`] writes.
    ///
    /// # Errors
    /// As there.
    pub fn get_list(&self, transfers: &[Transfer<'_>], completion: Option<&Completion>) -> Post {
        transports!(each! &self.0, endpoint => endpoint.get_list(&transfers_of::<T>(transfers)?, completion))
    }

    /// Reads `length` bytes at `remote` and gives them to `unpack`.
    #[inline]
    pub fn get_bcopy(
        &self,
        unpack: &Unpack,
        length: usize,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        transports!(each! (&self.0, &key.0), (endpoint, key) => endpoint.get_bcopy(unpack, length, remote, key, completion))
    }

    /// Reads from `remote` into the slices, one after the other, straight into their memory.
    #[inline]
    pub fn get_zcopy(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        transports!(each! (&self.0, &key.0), (endpoint, key) => endpoint.get_zcopy(slices, remote, key, completion))
    }

    /// Sends `header` and `payload`, which are copied, to the peer's handler `id`.
    #[inline(always)]
    pub fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Result<(), PostError> {
        match &self.0 {
            #[cfg(feature = "mlx5")]
            Kind::RcMlx5(endpoint) => endpoint.am_short(id, header, payload),
            // As in `put_short`.
            _ => match payload.try_into() {
                Ok(word) => {
                    let mut result = Ok(());
                    self.am_word(id, header, u64::from_ne_bytes(word), &mut result);
                    result
                }
                Err(_) => self.am_short_other(id, header, payload),
            },
        }
    }

    /// As [`put_word`](Self::put_word).
    #[inline(never)]
    fn am_word(&self, id: u8, header: u64, word: u64, result: &mut Result<(), PostError>) {
        if let Err(error) = self.am_word_here(id, header, word) {
            *result = Err(error);
        }
    }

    /// As [`put_word_here`](Self::put_word_here), for [`am_short`](Self::am_short).
    #[doc(hidden)]
    #[inline(always)]
    pub fn am_word_here(&self, id: u8, header: u64, word: u64) -> Result<(), PostError> {
        transports!(each! &self.0, endpoint => endpoint.am_short_selected(id, header, &word.to_ne_bytes()))
    }

    #[inline(never)]
    fn am_short_other(&self, id: u8, header: u64, payload: &[u8]) -> Result<(), PostError> {
        transports!(each! &self.0, endpoint => endpoint.am_short_selected(id, header, payload))
    }

    /// As [`Self::am_short`], and ends the access by `key`, the key of a [`Window`](crate::Window)
    /// that the peer's endpoint bound: a peer that has what it wanted returns the right with the
    /// message that says so. When the handler runs, the window is free. Transports with
    /// [`Flags::SEND_INVALIDATE`](crate::Flags::SEND_INVALIDATE).
    ///
    /// A key that is not of such a window, or whose window was invalidated before, fails the
    /// endpoint, or over `self` the post.
    ///
    /// # Errors
    /// [`PostError`]; [`PostError::Unsupported`] over the other transports
    pub fn am_short_invalidate(
        &self,
        id: u8,
        header: u64,
        payload: &[u8],
        key: &RemoteKey,
    ) -> Result<(), PostError> {
        match (&self.0, &key.0) {
            (Kind::Self_(endpoint), KeyKind::Self_(key)) => {
                endpoint.am_short_invalidate(id, header, payload, key)
            }
            #[cfg(feature = "mlx5")]
            (Kind::RcMlx5(endpoint), KeyKind::RcMlx5(key)) => {
                endpoint.am_short_invalidate(id, header, payload, key)
            }
            #[allow(unreachable_patterns, reason = "a build may have these transports only")]
            _ => Err(PostError::Unsupported),
        }
    }

    /// Sends `header` and the pieces, which are copied, one after the other, to the peer's handler
    /// `id`, as one payload of [`Self::am_short`].
    pub fn am_short_iov(&self, id: u8, header: u64, pieces: &[&[u8]]) -> Result<(), PostError> {
        transports!(each! &self.0, endpoint => endpoint.am_short_iov(id, header, pieces))
    }

    /// Lets `pack` fill a buffer of the interface and sends as many bytes as it says to the peer's
    /// handler `id`. Returns the number of bytes; the caller has nothing to wait for.
    #[inline]
    pub fn am_bcopy(
        &self,
        id: u8,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize, PostError> {
        transports!(each! &self.0, endpoint => endpoint.am_bcopy(id, pack))
    }

    /// Sends `header` followed by the slices, straight from their memory, to the peer's handler
    /// `id`.
    #[inline]
    pub fn am_zcopy(
        &self,
        id: u8,
        header: &[u8],
        slices: &[Slice<'_>],
        completion: Option<&Completion>,
    ) -> Post {
        transports!(each! &self.0, endpoint => endpoint.am_zcopy(id, header, slices, completion))
    }

    /// Changes the word of 4 or 8 bytes at `remote`, which is a multiple of its size. Swaps exist
    /// with a result only. What a transport can do is in its [`Attributes`](crate::Attributes):
    /// `atomic32` and `atomic64`.
    #[inline]
    pub fn atomic_post<W: AtomicWord>(
        &self,
        op: AtomicOp<W>,
        remote: u64,
        key: &RemoteKey,
    ) -> Result<(), PostError> {
        self.change(op.change(), remote, key, None).map(drop)
    }

    /// As [`Self::atomic_post`], and fetches the value before.
    #[inline]
    pub fn atomic_fetch<W: AtomicWord>(
        &self,
        op: AtomicOp<W>,
        remote: u64,
        key: &RemoteKey,
        result: &FetchResult,
        completion: Option<&Completion>,
    ) -> Post {
        self.change(op.change(), remote, key, Some((result, completion)))
    }

    #[inline]
    fn change(&self, change: Change, remote: u64, key: &RemoteKey, fetch: Fetch<'_>) -> Post {
        transports!(each! (&self.0, &key.0), (endpoint, key) => endpoint.change(change, remote, key, fetch))
    }

    /// Returns the peer's memory as it is mapped into this process; for transports with
    /// [`Flags::RKEY_PTR`](crate::Flags::RKEY_PTR).
    ///
    /// # Errors
    /// [`PostError::Unsupported`] if the transport maps nothing, [`PostError::NoResource`] until
    /// the peer's progress passes the region on, where the kernel does not let this process map it
    /// directly, [`PostError`]
    #[cfg(feature = "shm")]
    pub fn rkey_ptr(&self, key: &RemoteKey) -> Result<RemotePointer, PostError> {
        transports!(each! (&self.0, &key.0), (endpoint, key) => endpoint.rkey_ptr(key))
    }

    /// Posts a flush, which is finished once everything that was posted so far is; see
    /// [`FlushMode`]. [`Worker::flush`](crate::Worker::flush) waits for it.
    pub fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        transports!(each! &self.0, endpoint => endpoint.flush(mode, completion))
    }

    /// Operations posted later take effect after those posted before.
    pub fn fence(&self) -> Result<(), PostError> {
        transports!(each! &self.0, endpoint => endpoint.fence())
    }

    /// Queues a request that progress runs, in order, when resources are freed. It posts and
    /// returns [`PendingResult::Done`], or [`PendingResult::Again`] to stay at the head.
    ///
    /// # Errors
    /// [`Busy`] if a post would not return [`PostError::NoResource`] now.
    pub fn pending_add(
        &self,
        request: impl FnMut(&Self) -> PendingResult + 'static,
    ) -> Result<(), Busy> {
        if !transports!(each! &self.0, endpoint => endpoint.may_wait()) {
            return Err(Busy);
        }
        self.pending_add_request(PendingRequest::new(request)).map_err(|_| Busy)
    }

    /// As [`Self::pending_add`], for a request that was taken from an endpoint, or that the caller
    /// keeps.
    ///
    /// # Errors
    /// The request, if a post would not return [`PostError::NoResource`] now: run it instead.
    pub fn pending_add_request(&self, request: PendingRequest) -> Result<(), PendingRequest> {
        transports!(each! &self.0, endpoint => {
            if !endpoint.may_wait() {
                return Err(request);
            }
            endpoint.wait(Request::Dynamic(request));
            Ok(())
        })
    }

    /// As [`Self::pending_add_request`], whether or not a post would return
    /// [`PostError::NoResource`]: progress runs the request, which may return
    /// [`PendingResult::Again`] as often as it wants. Each progress runs such a request once.
    /// [`Worker::wait`](crate::Worker::wait) does not wake for it: it sleeps until something else
    /// happens.
    ///
    /// # Errors
    /// The request, if the endpoint is not connected, has failed or is closed.
    pub fn pending_defer(&self, request: PendingRequest) -> Result<(), PendingRequest> {
        transports!(each! &self.0, endpoint => {
            if !endpoint.post_state().is_usable() {
                return Err(request);
            }
            endpoint.wait(Request::Dynamic(request));
            Ok(())
        })
    }

    /// Takes the waiting requests, in order, to add them to another endpoint of any transport. The
    /// one that is running, if any, stays, and so do requests that were added through the static
    /// API.
    ///
    /// ```
    /// # use barewire::*;
    /// # let mut worker = Worker::new();
    /// # let domain = Domain::open(&"self/memory".parse()?)?;
    /// # let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
    /// # let from = interface.connect(&interface.address())?;
    /// # let to = interface.connect(&interface.address())?;
    /// for request in from.pending_take() {
    ///     to.pending_defer(request).expect("a working endpoint");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "the requests are dropped without having run"]
    pub fn pending_take(&self) -> Vec<PendingRequest> {
        transports!(each! &self.0, endpoint => endpoint.take_dynamic())
    }

    /// Drops every waiting request, calling `purged` once for each, in order.
    pub fn pending_purge(&self, purged: impl FnMut()) {
        transports!(each! &self.0, endpoint => endpoint.pending_purge(purged));
    }

    /// Checks whether the peer is alive, without waiting for the result. If the peer has exited,
    /// the endpoint fails, as after any other operation, and the [error
    /// handler](crate::Interface::set_error_handler) is called. Nothing is sent if an outstanding
    /// operation already serves as a check.
    ///
    /// | transport | how |
    /// |---|---|
    /// | `self` | the peer is this process |
    /// | `shm` | the kernel reports the peer's exit by itself; this returns what is known |
    /// | `cma` | asks the kernel, which replies at once |
    /// | `rc_mlx5`, `rc_verbs`, `xrc_mlx5`, `dc_mlx5` | a write of no bytes, which the peer's device acknowledges |
    /// | `ud_mlx5`, `ud_verbs` | a message without contents, which the peer's progress acknowledges; after `peer_timeout` without an acknowledgement the endpoint fails |
    /// | `tcp` | eight bytes, which the peer's kernel acknowledges; after `peer_timeout` without an acknowledgement, or if the peer has closed the connection, the endpoint fails |
    ///
    /// # Errors
    /// As posts, except [`PostError::NoResource`].
    pub fn check(&self) -> Result<(), PostError> {
        match transports!(each! &self.0, endpoint => endpoint.check()) {
            // An outstanding operation already checks the peer.
            Err(PostError::NoResource) => Ok(()),
            other => other,
        }
    }
}
