//! Endpoints: the dynamic door. One predictable branch per operation picks the transport.

use crate::address::{DeviceAddress, EndpointAddress, InterfaceAddress};
use crate::atomic::{Change, Fetch, Kind};
use crate::completion::{Completion, FetchResult, Unpack};
use crate::counters::Counters;
use crate::error::{Busy, ConnectError, EndpointError, OpenError, PostError};
use crate::interface::Interface;
use crate::memory::{RemoteKey, Slice, Transfer};
use crate::status::{FlushMode, PendingResult, Post};
use crate::transport::shm::RemotePointer;
use crate::transport::{cma, rc_mlx5, self_, shm, tcp};
#[cfg(feature = "verbs")]
use crate::transport::{rc_verbs, ud_verbs};

/// One end of a connection. Cloning gives another handle to the same endpoint; dropping the last one closes it,
/// and what was outstanding completes as cancelled.
///
/// Every operation answers at once: see [`Posted`](crate::Posted) and [`PostError`]. While requests are pending
/// on an endpoint, a post answers [`PostError::NoResource`], so nothing overtakes them.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Endpoint {
    /// Of `self`.
    Self_(self_::Endpoint),
    /// Of `rc_mlx5`.
    RcMlx5(rc_mlx5::Endpoint),
    /// Of `shm`.
    Shm(shm::Endpoint),
    /// Of `cma`.
    Cma(cma::Endpoint),
    /// Of `rc_verbs`.
    #[cfg(feature = "verbs")]
    RcVerbs(rc_verbs::Endpoint),
    /// Of `ud_verbs`.
    #[cfg(feature = "verbs")]
    UdVerbs(ud_verbs::Endpoint),
    /// Of `tcp`.
    Tcp(tcp::Endpoint),
}

macro_rules! each {
    ($value:expr, $inner:ident => $body:expr) => {
        match $value {
            Self::Self_($inner) => $body,
            Self::RcMlx5($inner) => $body,
            Self::Shm($inner) => $body,
            Self::Cma($inner) => $body,
            Self::Tcp($inner) => $body,
            #[cfg(feature = "verbs")]
            Self::RcVerbs($inner) => $body,
            #[cfg(feature = "verbs")]
            Self::UdVerbs($inner) => $body,
        }
    };
}

/// As `each`, for operations that `cma` lacks.
macro_rules! each_but_cma {
    ($value:expr, $inner:ident => $body:expr) => {
        match $value {
            Self::Self_($inner) => $body,
            Self::RcMlx5($inner) => $body,
            Self::Shm($inner) => $body,
            #[cfg(feature = "verbs")]
            Self::RcVerbs($inner) => $body,
            #[cfg(feature = "verbs")]
            Self::UdVerbs($inner) => $body,
            Self::Tcp($inner) => $body,
            Self::Cma(_) => Err(PostError::Unsupported),
        }
    };
}

/// As `each_with_key`, for operations that `cma` lacks.
macro_rules! each_but_cma_with_key {
    ($value:expr, $key:expr, ($inner:ident, $inner_key:ident) => $body:expr) => {
        match ($value, $key) {
            (Self::Self_($inner), RemoteKey::Self_($inner_key)) => $body,
            (Self::RcMlx5($inner), RemoteKey::RcMlx5($inner_key)) => $body,
            (Self::Shm($inner), RemoteKey::Shm($inner_key)) => $body,
            #[cfg(feature = "verbs")]
            (Self::RcVerbs($inner), RemoteKey::RcVerbs($inner_key)) => $body,
            #[cfg(feature = "verbs")]
            (Self::UdVerbs(_), _) => Err(PostError::Unsupported),
            (Self::Tcp($inner), RemoteKey::Tcp($inner_key)) => $body,
            (Self::Cma(_), _) => Err(PostError::Unsupported),
            _ => Err(PostError::ForeignKey),
        }
    };
}

/// As `each`, for operations that take a key of the same transport.
macro_rules! each_with_key {
    ($value:expr, $key:expr, ($inner:ident, $inner_key:ident) => $body:expr) => {
        match ($value, $key) {
            (Self::Self_($inner), RemoteKey::Self_($inner_key)) => $body,
            (Self::RcMlx5($inner), RemoteKey::RcMlx5($inner_key)) => $body,
            (Self::Shm($inner), RemoteKey::Shm($inner_key)) => $body,
            (Self::Cma($inner), RemoteKey::Cma($inner_key)) => $body,
            #[cfg(feature = "verbs")]
            (Self::RcVerbs($inner), RemoteKey::RcVerbs($inner_key)) => $body,
            #[cfg(feature = "verbs")]
            (Self::UdVerbs(_), _) => Err(PostError::Unsupported),
            (Self::Tcp($inner), RemoteKey::Tcp($inner_key)) => $body,
            _ => Err(PostError::ForeignKey),
        }
    };
}

/// The transfers of a list with the keys of one transport; a list is not the place to save an allocation per call.
macro_rules! of_transport {
    ($name:ident, $transport:ident, $variant:ident) => {
        fn $name<'a>(
            transfers: &[Transfer<'a>],
        ) -> Result<Vec<Transfer<'a, $transport::RemoteKey>>, PostError> {
            let of = |&Transfer { local, remote, key }: &Transfer<'a>| match key {
                RemoteKey::$variant(key) => Ok(Transfer { local, remote, key }),
                _ => Err(PostError::ForeignKey),
            };
            transfers.iter().map(of).collect()
        }
    };
}

of_transport!(of_self, self_, Self_);
of_transport!(of_rc_mlx5, rc_mlx5, RcMlx5);
of_transport!(of_shm, shm, Shm);
of_transport!(of_cma, cma, Cma);
#[cfg(feature = "verbs")]
of_transport!(of_rc_verbs, rc_verbs, RcVerbs);
of_transport!(of_tcp, tcp, Tcp);

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
        match interface {
            Interface::Self_(_) => Err(OpenError::Unsupported {
                transport: self_::NAME,
                instead: "to interfaces: use Endpoint::connect_to_interface",
            }),
            Interface::RcMlx5(interface) => rc_mlx5::Endpoint::new(interface).map(Self::RcMlx5),
            Interface::Shm(interface) => shm::Endpoint::new(interface).map(Self::Shm),
            Interface::Cma(interface) => cma::Endpoint::new(interface).map(Self::Cma),
            #[cfg(feature = "verbs")]
            Interface::RcVerbs(interface) => rc_verbs::Endpoint::new(interface).map(Self::RcVerbs),
            #[cfg(feature = "verbs")]
            Interface::UdVerbs(interface) => ud_verbs::Endpoint::new(interface).map(Self::UdVerbs),
            Interface::Tcp(interface) => tcp::Endpoint::new(interface).map(Self::Tcp),
        }
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
        match interface {
            Interface::Self_(interface) => {
                self_::Endpoint::connect_to_interface(interface, device, address).map(Self::Self_)
            }
            Interface::RcMlx5(_) | Interface::Tcp(_) => Err(ConnectError::Unsupported {
                transport: interface.transport(),
                instead: "endpoint to endpoint: use Endpoint::new and connect",
            }),
            Interface::Shm(interface) => {
                shm::Endpoint::connect_to_interface(interface, device, address).map(Self::Shm)
            }
            Interface::Cma(interface) => {
                cma::Endpoint::connect_to_interface(interface, device, address).map(Self::Cma)
            }
            #[cfg(feature = "verbs")]
            Interface::UdVerbs(interface) => {
                ud_verbs::Endpoint::connect_to_interface(interface, device, address).map(Self::UdVerbs)
            }
            #[cfg(feature = "verbs")]
            Interface::RcVerbs(_) => Err(ConnectError::Unsupported {
                transport: rc_verbs::NAME,
                instead: "endpoint to endpoint: use Endpoint::new and connect",
            }),
        }
    }

    /// What the peer passes to [`connect`](Self::connect).
    pub fn address(&self) -> EndpointAddress {
        each!(self, endpoint => endpoint.address())
    }

    /// Connects to the peer's endpoint. Both ends connect to each other; once both did, both can post.
    ///
    /// # Errors
    /// [`ConnectError`]
    pub fn connect(&self, device: &DeviceAddress, address: &EndpointAddress) -> Result<(), ConnectError> {
        match self {
            Self::Self_(_) => Err(ConnectError::Unsupported {
                transport: self_::NAME,
                instead: "to interfaces: use Endpoint::connect_to_interface",
            }),
            Self::RcMlx5(endpoint) => endpoint.connect(device, address),
            Self::Shm(endpoint) => endpoint.connect(device, address),
            Self::Cma(endpoint) => endpoint.connect(device, address),
            #[cfg(feature = "verbs")]
            Self::RcVerbs(endpoint) => endpoint.connect(device, address),
            #[cfg(feature = "verbs")]
            Self::UdVerbs(endpoint) => endpoint.connect(device, address),
            Self::Tcp(endpoint) => endpoint.connect(device, address),
        }
    }

    /// What this endpoint did so far: what its transport's `counters` says.
    pub fn counters(&self) -> Counters {
        each!(self, endpoint => endpoint.counters())
    }

    /// Why the endpoint failed, if it did.
    pub fn error(&self) -> Option<EndpointError> {
        match self {
            Self::Self_(_) => None,
            Self::RcMlx5(endpoint) => endpoint.error(),
            Self::Shm(endpoint) => endpoint.error(),
            Self::Cma(endpoint) => endpoint.error(),
            #[cfg(feature = "verbs")]
            Self::RcVerbs(endpoint) => endpoint.error(),
            #[cfg(feature = "verbs")]
            Self::UdVerbs(endpoint) => endpoint.error(),
            Self::Tcp(endpoint) => endpoint.error(),
        }
    }

    /// Writes `payload` to `remote`. Done at once: the payload is copied.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline(always)]
    pub fn put_short(&self, payload: &[u8], remote: u64, key: &RemoteKey) -> Post {
        match (self, key) {
            (Self::RcMlx5(endpoint), RemoteKey::RcMlx5(key)) => endpoint.put_short(payload, remote, key),
            // Behind a call, so that what the others need of the stack and of registers costs the first nothing. A word by value: if its address were taken, it would have to be in memory above, too.
            _ => match payload.try_into() {
                Ok(word) => self.put_word(u64::from_ne_bytes(word), remote, key),
                Err(_) => self.put_short_other(payload, remote, key),
            },
        }
    }

    #[inline(never)]
    fn put_word(&self, word: u64, remote: u64, key: &RemoteKey) -> Post {
        each_but_cma_with_key!(self, key, (endpoint, key) => endpoint.put_short(&word.to_ne_bytes(), remote, key))
    }

    #[inline(never)]
    fn put_short_other(&self, payload: &[u8], remote: u64, key: &RemoteKey) -> Post {
        each_but_cma_with_key!(self, key, (endpoint, key) => endpoint.put_short(payload, remote, key))
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
        each_but_cma_with_key!(self, key, (endpoint, key) => endpoint.put_bcopy(pack, remote, key))
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
        each_with_key!(self, key, (endpoint, key) => endpoint.put_zcopy(slices, remote, key, completion))
    }

    /// Writes every transfer's slice to its remote address, with one doorbell for all of them. All are posted, or none (`self` stops at
    /// the first that cannot be done). The completion is counted down once, when all are finished.
    ///
    /// # Errors
    /// [`PostError`]; [`PostError::TooManyTransfers`] for a list longer than the send queue.
    pub fn put_list(&self, transfers: &[Transfer<'_>], completion: Option<&Completion>) -> Post {
        match self {
            Self::Self_(endpoint) => endpoint.put_list(&of_self(transfers)?, completion),
            Self::RcMlx5(endpoint) => endpoint.put_list(&of_rc_mlx5(transfers)?, completion),
            Self::Shm(endpoint) => endpoint.put_list(&of_shm(transfers)?, completion),
            Self::Cma(endpoint) => endpoint.put_list(&of_cma(transfers)?, completion),
            #[cfg(feature = "verbs")]
            Self::RcVerbs(endpoint) => endpoint.put_list(&of_rc_verbs(transfers)?, completion),
            #[cfg(feature = "verbs")]
            Self::UdVerbs(_) => Err(PostError::Unsupported),
            Self::Tcp(endpoint) => endpoint.put_list(&of_tcp(transfers)?, completion),
        }
    }

    /// Reads into every transfer's slice from its remote address, as [`Self::put_list`] writes.
    ///
    /// # Errors
    /// As there.
    pub fn get_list(&self, transfers: &[Transfer<'_>], completion: Option<&Completion>) -> Post {
        match self {
            Self::Self_(endpoint) => endpoint.get_list(&of_self(transfers)?, completion),
            Self::RcMlx5(endpoint) => endpoint.get_list(&of_rc_mlx5(transfers)?, completion),
            Self::Shm(endpoint) => endpoint.get_list(&of_shm(transfers)?, completion),
            Self::Cma(endpoint) => endpoint.get_list(&of_cma(transfers)?, completion),
            #[cfg(feature = "verbs")]
            Self::RcVerbs(endpoint) => endpoint.get_list(&of_rc_verbs(transfers)?, completion),
            #[cfg(feature = "verbs")]
            Self::UdVerbs(_) => Err(PostError::Unsupported),
            Self::Tcp(endpoint) => endpoint.get_list(&of_tcp(transfers)?, completion),
        }
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
        each_but_cma_with_key!(
            self, key, (endpoint, key) => endpoint.get_bcopy(unpack, length, remote, key, completion)
        )
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
        each_with_key!(self, key, (endpoint, key) => endpoint.get_zcopy(slices, remote, key, completion))
    }

    /// Sends `header` and `payload` to the peer's handler `id`. Done at once: the payload is copied.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline(always)]
    pub fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Post {
        match self {
            Self::RcMlx5(endpoint) => endpoint.am_short(id, header, payload),
            // As in `put_short`.
            _ => match payload.try_into() {
                Ok(word) => self.am_word(id, header, u64::from_ne_bytes(word)),
                Err(_) => self.am_short_other(id, header, payload),
            },
        }
    }

    #[inline(never)]
    fn am_word(&self, id: u8, header: u64, word: u64) -> Post {
        each_but_cma!(self, endpoint => endpoint.am_short(id, header, &word.to_ne_bytes()))
    }

    #[inline(never)]
    fn am_short_other(&self, id: u8, header: u64, payload: &[u8]) -> Post {
        each_but_cma!(self, endpoint => endpoint.am_short(id, header, payload))
    }

    /// Sends `header` and the pieces, one after the other, to the peer's handler `id`, as one payload of [`Self::am_short`]. Done at
    /// once: they are copied.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn am_short_iov(&self, id: u8, header: u64, pieces: &[&[u8]]) -> Post {
        each_but_cma!(self, endpoint => endpoint.am_short_iov(id, header, pieces))
    }

    /// Lets `pack` fill a buffer of the interface and sends as many bytes as it says to the peer's handler `id`.
    /// Answers the number of bytes; the caller has nothing to wait for.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline]
    pub fn am_bcopy(&self, id: u8, pack: impl FnOnce(&mut [u8]) -> usize) -> Result<usize, PostError> {
        each_but_cma!(self, endpoint => endpoint.am_bcopy(id, pack))
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
        each_but_cma!(self, endpoint => endpoint.am_zcopy(id, header, slices, completion))
    }

    /// Adds `operand` to the 64-bit word at `remote`.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline]
    pub fn atomic_add64(&self, operand: u64, remote: u64, key: &RemoteKey) -> Post {
        each_but_cma_with_key!(self, key, (endpoint, key) => endpoint.atomic_add64(operand, remote, key))
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
        each_but_cma_with_key!(
            self, key, (endpoint, key) => endpoint.atomic_fetch_add64(operand, remote, key, result, completion)
        )
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
        each_but_cma_with_key!(
            self, key,
            (endpoint, key) => endpoint.atomic_compare_swap64(compare, swap, remote, key, result, completion)
        )
    }

    crate::atomic::atomic_methods!(RemoteKey);

    fn change(&self, change: Change, remote: u64, key: &RemoteKey, fetch: Fetch<'_>) -> Post {
        if let (Self::Self_(endpoint), RemoteKey::Self_(key)) = (self, key) {
            return endpoint.change(change, remote, key, fetch);
        }
        if let (Self::Shm(endpoint), RemoteKey::Shm(key)) = (self, key) {
            return endpoint.change(change, remote, key, fetch);
        }
        if let (Self::RcMlx5(endpoint), RemoteKey::RcMlx5(key)) = (self, key) {
            return endpoint.change(change, remote, key, fetch);
        }
        if let (Self::Tcp(endpoint), RemoteKey::Tcp(key)) = (self, key) {
            return endpoint.change(change, remote, key, fetch);
        }
        // What InfiniBand has.
        match (change, fetch) {
            (Change { kind: Kind::Add, width: 8, operand, .. }, None) => {
                self.atomic_add64(operand, remote, key)
            }
            (Change { kind: Kind::Add, width: 8, operand, .. }, Some((result, completion))) => {
                self.atomic_fetch_add64(operand, remote, key, result, completion)
            }
            (Change { kind: Kind::CompareSwap, width: 8, operand, compare }, Some((result, completion))) => {
                self.atomic_compare_swap64(compare, operand, remote, key, result, completion)
            }
            _ => Err(PostError::Unsupported),
        }
    }

    /// The peer's memory as it is mapped into this process; transports with [`Flags::RKEY_PTR`](crate::Flags::RKEY_PTR).
    ///
    /// # Errors
    /// [`PostError::Unsupported`] where nothing is mapped, [`PostError::NoResource`] until the
    /// peer's progress hands the region over, [`PostError`]
    pub fn rkey_ptr(&self, key: &RemoteKey) -> Result<RemotePointer, PostError> {
        match (self, key) {
            (Self::Shm(endpoint), RemoteKey::Shm(key)) => endpoint.rkey_ptr(key),
            (Self::Shm(_), _) => Err(PostError::ForeignKey),
            _ => Err(PostError::Unsupported),
        }
    }

    /// Waits for what was posted so far; see [`FlushMode`].
    ///
    /// # Errors
    /// [`PostError`]
    pub fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        each!(self, endpoint => endpoint.flush(mode, completion))
    }

    /// Operations posted later take effect after those posted before.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn fence(&self) -> Result<(), PostError> {
        each!(self, endpoint => endpoint.fence())
    }

    /// Queues a request that progress runs, in order, when resources come back. It posts and answers
    /// [`PendingResult::Done`], or [`PendingResult::Again`] to stay at the head.
    ///
    /// # Errors
    /// [`Busy`] if a post would not answer [`PostError::NoResource`] now.
    pub fn pending_add(&self, mut request: impl FnMut(&Self) -> PendingResult + 'static) -> Result<(), Busy> {
        match self {
            Self::Self_(endpoint) => {
                endpoint.pending_add(move |endpoint| request(&Self::Self_(endpoint.clone())))
            }
            Self::RcMlx5(endpoint) => {
                endpoint.pending_add(move |endpoint| request(&Self::RcMlx5(endpoint.clone())))
            }
            Self::Shm(endpoint) => {
                endpoint.pending_add(move |endpoint| request(&Self::Shm(endpoint.clone())))
            }
            Self::Cma(endpoint) => {
                endpoint.pending_add(move |endpoint| request(&Self::Cma(endpoint.clone())))
            }
            #[cfg(feature = "verbs")]
            Self::RcVerbs(endpoint) => {
                endpoint.pending_add(move |endpoint| request(&Self::RcVerbs(endpoint.clone())))
            }
            #[cfg(feature = "verbs")]
            Self::UdVerbs(endpoint) => {
                endpoint.pending_add(move |endpoint| request(&Self::UdVerbs(endpoint.clone())))
            }
            Self::Tcp(endpoint) => {
                endpoint.pending_add(move |endpoint| request(&Self::Tcp(endpoint.clone())))
            }
        }
    }

    /// Drops every waiting request, calling `purged` once for each, in order.
    pub fn pending_purge(&self, purged: impl FnMut()) {
        each!(self, endpoint => endpoint.pending_purge(purged));
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
        match self {
            Self::Self_(endpoint) => endpoint.fence(),
            Self::RcMlx5(endpoint) => asked(endpoint.check()),
            Self::Shm(endpoint) => endpoint.fence(),
            Self::Cma(endpoint) => endpoint.check(),
            #[cfg(feature = "verbs")]
            Self::RcVerbs(endpoint) => asked(endpoint.check()),
            Self::Tcp(endpoint) => endpoint.check(),
            #[allow(unreachable_patterns, reason = "for transports that cannot ask")]
            _ => Err(PostError::Unsupported),
        }
    }
}

/// A queue without room has something outstanding, which checks the peer.
fn asked(posted: Result<(), PostError>) -> Result<(), PostError> {
    match posted {
        Err(PostError::NoResource) => Ok(()),
        other => other,
    }
}
