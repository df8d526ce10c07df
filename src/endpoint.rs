//! Endpoints: the dynamic API. One predictable branch per operation picks the transport.

use crate::address::{DeviceAddress, EndpointAddress, InterfaceAddress};
use crate::atomic::{AtomicOp, AtomicWord, Change, ChangeWord, Fetch};
use crate::capability::{
    AmBcopy, AmShort, AmShortIov, AmZcopy, Atomic64, AtomicFetch64, Check, Flush, GetBcopy, GetZcopy, Lists,
    Pending, PutBcopy, PutShort, PutZcopy,
};
use crate::completion::{Completion, FetchResult, Unpack};
use crate::counters::Counters;
use crate::error::{Busy, ConnectError, EndpointError, OpenError, PostError};
use crate::interface::{Interface, Kind as InterfaceKind};
use crate::memory::{KeyKind, RemoteKey, Slice, Transfer};
use crate::status::{FlushMode, PendingResult, Post};
use crate::transport::shm::RemotePointer;
use crate::transport::table::transports;
use crate::transport::{Transport, transfers_of};

/// One end of a connection. Cloning gives another handle to the same endpoint; dropping the last one closes it,
/// and what was outstanding completes as cancelled.
///
/// Every operation answers at once: see [`Posted`](crate::Posted) and [`PostError`]. While requests are pending
/// on an endpoint, a post answers [`PostError::NoResource`], so nothing overtakes them.
#[derive(Debug, Clone)]
#[must_use = "dropping the last handle closes the endpoint"]
pub struct Endpoint(pub(crate) Kind);

transports!(one_of!
    #[derive(Debug, Clone)]
    pub(crate) enum Kind of Endpoint
);

/// The operations that some transport lacks.
///
/// The arms of [`each!`](crate::transport::table::each) call an operation as a method of a reference to
/// the transport's endpoint. Method resolution takes the endpoint's own operation if there is one, and
/// otherwise the one below, which needs one more reference.
#[allow(dead_code, reason = "without the feature verbs every transport has some of them")]
trait Lacking {
    fn put_short<K>(&self, _: &[u8], _: u64, _: &K) -> Post {
        Err(PostError::Unsupported)
    }

    fn put_bcopy<K>(&self, _: impl FnOnce(&mut [u8]) -> usize, _: u64, _: &K) -> Result<usize, PostError> {
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

    fn am_short(&self, _: u8, _: u64, _: &[u8]) -> Post {
        Err(PostError::Unsupported)
    }

    fn am_short_iov(&self, _: u8, _: u64, _: &[&[u8]]) -> Post {
        Err(PostError::Unsupported)
    }

    fn am_bcopy(&self, _: u8, _: impl FnOnce(&mut [u8]) -> usize) -> Result<usize, PostError> {
        Err(PostError::Unsupported)
    }

    fn am_zcopy(&self, _: u8, _: &[u8], _: &[Slice<'_>], _: Option<&Completion>) -> Post {
        Err(PostError::Unsupported)
    }

    fn atomic_add64<K>(&self, _: u64, _: u64, _: &K) -> Post {
        Err(PostError::Unsupported)
    }

    fn atomic_fetch_add64<K>(&self, _: u64, _: u64, _: &K, _: &FetchResult, _: Option<&Completion>) -> Post {
        Err(PostError::Unsupported)
    }

    fn atomic_compare_swap64<K>(
        &self,
        _: u64,
        _: u64,
        _: u64,
        _: &K,
        _: &FetchResult,
        _: Option<&Completion>,
    ) -> Post {
        Err(PostError::Unsupported)
    }

    fn rkey_ptr<K>(&self, _: &K) -> Result<RemotePointer, PostError> {
        Err(PostError::Unsupported)
    }

    fn change<K>(&self, _: Change, _: u64, _: &K, _: Fetch<'_>) -> Post {
        Err(PostError::Unsupported)
    }

    fn check(&self) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }
}

impl<E> Lacking for &E {}

impl Endpoint {
    /// Makes an endpoint to be connected to a peer's endpoint; transports with
    /// [`Flags::CONNECT_TO_EP`](crate::Flags::CONNECT_TO_EP).
    ///
    /// Both ends make one, tell each other their device's and their endpoint's address by any means, and connect:
    ///
    /// ```
    /// # use barewire::*;
    /// let mut worker = Worker::new();
    /// let domain = Domain::open("rc_mlx5", "soft0:1")?;
    /// let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
    /// let (here, there) = (Endpoint::new(&interface)?, Endpoint::new(&interface)?);
    /// here.connect(&interface.device_address(), &there.address())?;
    /// there.connect(&interface.device_address(), &here.address())?;
    ///
    /// let memory = domain.allocate(4096, Access::REMOTE_WRITE)?;
    /// let key = domain.unpack_key(&memory.pack_key())?;
    /// let _ = here.put_short(b"hello", memory.address(), &key)?;
    /// while here.flush(FlushMode::Remote, None)? == Posted::InProgress {
    ///     worker.progress();
    /// }
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

    /// Makes an endpoint to an interface; transports with
    /// [`Flags::CONNECT_TO_INTERFACE`](crate::Flags::CONNECT_TO_INTERFACE).
    ///
    /// # Errors
    /// [`ConnectError::Unsupported`], [`ConnectError::ForeignTransport`], [`ConnectError::Unreachable`]
    pub fn connect_to_interface(
        interface: &Interface,
        device: &DeviceAddress,
        address: &InterfaceAddress,
    ) -> Result<Self, ConnectError> {
        transports!(each_of! InterfaceKind, &interface.0, interface => {
            T::connect_to_interface(interface, device, address).map(Self::from_static::<T>)
        })
    }

    /// The endpoint of a transport's own type.
    pub fn from_static<T: Transport>(endpoint: T::Endpoint) -> Self {
        T::into_endpoint(endpoint)
    }

    /// The endpoint as the transport's own type; `None` if it is another transport's.
    pub fn as_static<T: Transport>(&self) -> Option<&T::Endpoint> {
        T::from_endpoint(self)
    }

    /// What the peer passes to [`connect`](Self::connect).
    pub fn address(&self) -> EndpointAddress {
        transports!(each! &self.0, endpoint => endpoint.address())
    }

    /// Connects to the peer's endpoint. Both ends connect to each other; once both did, both can post.
    ///
    /// # Errors
    /// [`ConnectError`]
    pub fn connect(&self, device: &DeviceAddress, address: &EndpointAddress) -> Result<(), ConnectError> {
        transports!(each! &self.0, endpoint => T::connect(endpoint, device, address))
    }

    /// What this endpoint did so far: what its transport's `counters` says.
    pub fn counters(&self) -> Counters {
        transports!(each! &self.0, endpoint => endpoint.counters())
    }

    /// Why the endpoint failed, if it did.
    pub fn error(&self) -> Option<EndpointError> {
        transports!(each! &self.0, endpoint => endpoint.error())
    }

    /// Writes `payload` to `remote`. Done at once: the payload is copied.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline(always)]
    pub fn put_short(&self, payload: &[u8], remote: u64, key: &RemoteKey) -> Post {
        match (&self.0, &key.0) {
            (Kind::RcMlx5(endpoint), KeyKind::RcMlx5(key)) => endpoint.put_short(payload, remote, key),
            // Behind a call, so that the stack and the registers that the others need cost the first
            // nothing. A word by value: if its address were taken, the caller would have to keep it in
            // memory.
            _ => match payload.try_into() {
                Ok(word) => self.put_word(u64::from_ne_bytes(word), remote, key),
                Err(_) => self.put_short_other(payload, remote, key),
            },
        }
    }

    #[inline(never)]
    fn put_word(&self, word: u64, remote: u64, key: &RemoteKey) -> Post {
        transports!(each! (&self.0, &key.0), (endpoint, key) => endpoint.put_short(&word.to_ne_bytes(), remote, key))
    }

    #[inline(never)]
    fn put_short_other(&self, payload: &[u8], remote: u64, key: &RemoteKey) -> Post {
        transports!(each! (&self.0, &key.0), (endpoint, key) => endpoint.put_short(payload, remote, key))
    }

    /// Lets `pack` fill a buffer of the interface and writes as many bytes as it says to `remote`. Answers the
    /// number of bytes; the caller has nothing to wait for.
    ///
    /// # Errors
    /// [`PostError`]
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
    ///
    /// # Errors
    /// [`PostError`]
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

    /// Writes every transfer's slice to its remote address, with one doorbell for all of them. All are posted, or none (`self` stops at
    /// the first that cannot be done). The completion is counted down once, when all are finished.
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
    ///
    /// # Errors
    /// [`PostError`]
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
    ///
    /// # Errors
    /// [`PostError`]
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

    /// Sends `header` and `payload` to the peer's handler `id`. Done at once: the payload is copied.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline(always)]
    pub fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Post {
        match &self.0 {
            Kind::RcMlx5(endpoint) => endpoint.am_short(id, header, payload),
            // As in `put_short`.
            _ => match payload.try_into() {
                Ok(word) => self.am_word(id, header, u64::from_ne_bytes(word)),
                Err(_) => self.am_short_other(id, header, payload),
            },
        }
    }

    #[inline(never)]
    fn am_word(&self, id: u8, header: u64, word: u64) -> Post {
        transports!(each! &self.0, endpoint => endpoint.am_short(id, header, &word.to_ne_bytes()))
    }

    #[inline(never)]
    fn am_short_other(&self, id: u8, header: u64, payload: &[u8]) -> Post {
        transports!(each! &self.0, endpoint => endpoint.am_short(id, header, payload))
    }

    /// Sends `header` and the pieces, one after the other, to the peer's handler `id`, as one payload of [`Self::am_short`]. Done at
    /// once: they are copied.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn am_short_iov(&self, id: u8, header: u64, pieces: &[&[u8]]) -> Post {
        transports!(each! &self.0, endpoint => endpoint.am_short_iov(id, header, pieces))
    }

    /// Lets `pack` fill a buffer of the interface and sends as many bytes as it says to the peer's handler `id`.
    /// Answers the number of bytes; the caller has nothing to wait for.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline]
    pub fn am_bcopy(&self, id: u8, pack: impl FnOnce(&mut [u8]) -> usize) -> Result<usize, PostError> {
        transports!(each! &self.0, endpoint => endpoint.am_bcopy(id, pack))
    }

    /// Sends `header` followed by the slices, straight from their memory, to the peer's handler `id`.
    ///
    /// # Errors
    /// [`PostError`]
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

    /// Adds `operand` to the 64-bit word at `remote`.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline]
    pub fn atomic_add64(&self, operand: u64, remote: u64, key: &RemoteKey) -> Post {
        transports!(each! (&self.0, &key.0), (endpoint, key) => endpoint.atomic_add64(operand, remote, key))
    }

    /// Adds `operand` to the 64-bit word at `remote` and fetches what was there.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline]
    pub fn atomic_fetch_add64(
        &self,
        operand: u64,
        remote: u64,
        key: &RemoteKey,
        result: &FetchResult,
        completion: Option<&Completion>,
    ) -> Post {
        transports!(each! (&self.0, &key.0), (endpoint, key) => endpoint.atomic_fetch_add64(operand, remote, key, result, completion))
    }

    /// Stores `swap` in the 64-bit word at `remote` if `compare` is there, and fetches what was there.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline]
    pub fn atomic_compare_swap64(
        &self,
        compare: u64,
        swap: u64,
        remote: u64,
        key: &RemoteKey,
        result: &FetchResult,
        completion: Option<&Completion>,
    ) -> Post {
        transports!(each! (&self.0, &key.0), (endpoint, key) => endpoint.atomic_compare_swap64(compare, swap, remote, key, result, completion))
    }

    /// Changes the word of 4 or 8 bytes at `remote`, which is a multiple of its size. Swaps exist with a
    /// result only. What a transport can do is in its [`Attributes`](crate::Attributes): `atomic32` and
    /// `atomic64`.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline]
    pub fn atomic_post<W: AtomicWord>(&self, op: AtomicOp<W>, remote: u64, key: &RemoteKey) -> Post {
        self.change(op.change(), remote, key, None)
    }

    /// As [`Self::atomic_post`], and fetches the value before.
    ///
    /// # Errors
    /// [`PostError`]
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

    fn change(&self, change: Change, remote: u64, key: &RemoteKey, fetch: Fetch<'_>) -> Post {
        transports!(each! (&self.0, &key.0), (endpoint, key) => endpoint.change(change, remote, key, fetch))
    }

    /// The peer's memory as it is mapped into this process; transports with [`Flags::RKEY_PTR`](crate::Flags::RKEY_PTR).
    ///
    /// # Errors
    /// [`PostError::Unsupported`] where nothing is mapped, [`PostError::NoResource`] until the
    /// peer's progress hands the region over, [`PostError`]
    pub fn rkey_ptr(&self, key: &RemoteKey) -> Result<RemotePointer, PostError> {
        transports!(each! (&self.0, &key.0), (endpoint, key) => endpoint.rkey_ptr(key))
    }

    /// Waits for what was posted so far; see [`FlushMode`].
    ///
    /// # Errors
    /// [`PostError`]
    pub fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        transports!(each! &self.0, endpoint => endpoint.flush(mode, completion))
    }

    /// Operations posted later take effect after those posted before.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn fence(&self) -> Result<(), PostError> {
        transports!(each! &self.0, endpoint => endpoint.fence())
    }

    /// Queues a request that progress runs, in order, when resources come back. It posts and answers
    /// [`PendingResult::Done`], or [`PendingResult::Again`] to stay at the head.
    ///
    /// # Errors
    /// [`Busy`] if a post would not answer [`PostError::NoResource`] now.
    pub fn pending_add(&self, mut request: impl FnMut(&Self) -> PendingResult + 'static) -> Result<(), Busy> {
        transports!(each! &self.0, endpoint => {
            endpoint.pending_add(move |endpoint| request(&Self::from_static::<T>(endpoint.clone())))
        })
    }

    /// Drops every waiting request, calling `purged` once for each, in order.
    pub fn pending_purge(&self, purged: impl FnMut()) {
        transports!(each! &self.0, endpoint => endpoint.pending_purge(purged));
    }

    /// Checks whether the peer is alive, without waiting for the result. If the peer has ended, the
    /// endpoint fails, as any other operation would make it, and the
    /// [error handler](crate::Interface::set_error_handler) is called. Nothing is sent if an
    /// outstanding operation checks already.
    ///
    /// | transport | how |
    /// |---|---|
    /// | `self` | the peer is this process |
    /// | `shm` | the kernel reports the peer's end unasked; this reports what is known |
    /// | `cma` | the kernel is asked, and replies at once |
    /// | `rc_mlx5`, `rc_verbs` | a write of no bytes, which the peer's device acknowledges |
    /// | `tcp` | eight bytes, which the peer's kernel acknowledges; after `peer_timeout` without an acknowledgement the endpoint fails |
    ///
    /// # Errors
    /// [`PostError::Unsupported`] for the other transports. Else as posts, but for
    /// [`PostError::NoResource`].
    pub fn check(&self) -> Result<(), PostError> {
        match transports!(each! &self.0, endpoint => endpoint.check()) {
            // Something is outstanding, which checks the peer.
            Err(PostError::NoResource) => Ok(()),
            other => other,
        }
    }
}
