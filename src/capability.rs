//! The operations of endpoints, as traits.
//!
//! In the static API each operation is a trait. A transport's endpoint implements those that it
//! supports; a post of another operation does not compile. In the dynamic API the same facts are
//! data, [`Attributes`](crate::Attributes), and an unsupported operation returns
//! [`PostError::Unsupported`].
//!
//! A post of a short or buffered operation, or of an atomic without result, has copied what it
//! needs: it returns `()` or the number of bytes. The others return [`Posted`](crate::Posted):
//! after [`Done`](crate::Posted::Done) the caller may reuse the buffers, and the completion does
//! not count the operation. `self` and `shm` finish every operation in the post, since the CPU
//! carries it out. After [`InProgress`](crate::Posted::InProgress) progress finishes it.
//!
//! ```
//! use barewire::capability::PutShort;
//! use barewire::transport::{Domain as _, Interface as _, Memory as _, self_};
//! use barewire::{Access, InterfaceConfig, PostError};
//!
//! /// Sets a flag at the peer, over any transport that has `put_short`.
//! fn raise<E: PutShort>(endpoint: &E, flag: u64, key: &E::Key) -> Result<(), PostError> {
//!     endpoint.put_short(&[1], flag, key)
//! }
//!
//! let domain = self_::Domain::open("memory")?;
//! let (interface, _progress) = self_::Interface::open(&domain, &InterfaceConfig::default())?;
//! let endpoint = interface.connect(&interface.address())?;
//! let memory = domain.allocate(64, Access::REMOTE_WRITE)?;
//! raise(&endpoint, memory.address() + 8, &domain.unpack_key(&memory.pack_key())?)?;
//! let mut flag = [0];
//! memory.read(8, &mut flag)?;
//! assert_eq!(flag, [1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::atomic::{AtomicOp, AtomicWord};
use crate::completion::{Completion, FetchResult, Unpack};
use crate::error::{Busy, HandlerError, PostError};
use crate::memory::{Slice, Transfer};
use crate::pending::PendingRequest;
use crate::status::{FlushMode, PendingResult, Post};
use crate::tag::{TagEvent, TagReceive};

/// The key by which operations name remote memory.
pub trait RemoteMemory {
    /// The transport's remote key.
    type Key;
}

/// Put from the argument.
pub trait PutShort: RemoteMemory {
    /// Writes `payload`, which is copied, to `remote`.
    ///
    /// # Errors
    /// [`PostError`]
    fn put_short(&self, payload: &[u8], remote: u64, key: &Self::Key) -> Result<(), PostError>;

    /// [`Self::put_short`] where the transport is selected at run time. Transports whose function is
    /// large do not inline it there: it would cost the others saved registers.
    #[doc(hidden)]
    #[inline(always)]
    fn put_short_selected(
        &self,
        payload: &[u8],
        remote: u64,
        key: &Self::Key,
    ) -> Result<(), PostError> {
        self.put_short(payload, remote, key)
    }
}

/// Put through a buffer of the interface.
pub trait PutBcopy: RemoteMemory {
    /// Writes to `remote` what `pack` puts into a buffer. `pack` returns the number of bytes, and
    /// so does the post; the caller has nothing to wait for.
    ///
    /// # Errors
    /// [`PostError`]
    fn put_bcopy(
        &self,
        pack: impl FnOnce(&mut [u8]) -> usize,
        remote: u64,
        key: &Self::Key,
    ) -> Result<usize, PostError>;
}

/// Put straight from registered memory.
pub trait PutZcopy: RemoteMemory {
    /// Writes the slices, one after the other, to `remote`.
    ///
    /// # Errors
    /// [`PostError`]
    fn put_zcopy(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &Self::Key,
        completion: Option<&Completion>,
    ) -> Post;
}

/// Get through a buffer of the interface.
pub trait GetBcopy: RemoteMemory {
    /// Reads `length` bytes at `remote` and passes them to `unpack`: before the post returns, or in
    /// progress.
    ///
    /// # Errors
    /// [`PostError`]
    fn get_bcopy(
        &self,
        unpack: &Unpack,
        length: usize,
        remote: u64,
        key: &Self::Key,
        completion: Option<&Completion>,
    ) -> Post;
}

/// Get straight into registered memory.
pub trait GetZcopy: RemoteMemory {
    /// Reads from `remote` into the slices, one after the other.
    ///
    /// # Errors
    /// [`PostError`]
    fn get_zcopy(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &Self::Key,
        completion: Option<&Completion>,
    ) -> Post;
}

/// Lists of puts and gets.
pub trait Lists: RemoteMemory {
    /// Writes every transfer's slice to its remote address, with one doorbell for all of them. All
    /// are posted or none; `self`, `shm` and `cma` stop at the first that cannot be posted. The
    /// completion counts the list as one operation.
    ///
    /// # Errors
    /// [`PostError`]; [`PostError::TooManyTransfers`] for a list longer than the send queue.
    fn put_list(
        &self,
        transfers: &[Transfer<'_, Self::Key>],
        completion: Option<&Completion>,
    ) -> Post;

    /// Reads into every transfer's slice from its remote address, as [`Self::put_list`] writes.
    ///
    /// # Errors
    /// As there.
    fn get_list(
        &self,
        transfers: &[Transfer<'_, Self::Key>],
        completion: Option<&Completion>,
    ) -> Post;
}

/// Active message from the argument.
pub trait AmShort {
    /// Sends `header` and `payload`, which are copied, to the peer's handler `id`.
    ///
    /// # Errors
    /// [`PostError`]
    fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Result<(), PostError>;

    /// As [`PutShort::put_short_selected`].
    #[doc(hidden)]
    #[inline(always)]
    fn am_short_selected(&self, id: u8, header: u64, payload: &[u8]) -> Result<(), PostError> {
        self.am_short(id, header, payload)
    }
}

/// Active message that ends the access by a key.
pub trait AmInvalidate: RemoteMemory {
    /// As [`AmShort::am_short`]. When the handler runs, `key` gives no access any more: it is that
    /// of a window which the peer's endpoint bound, and the window is free.
    ///
    /// # Errors
    /// [`PostError`]
    fn am_short_invalidate(
        &self,
        id: u8,
        header: u64,
        payload: &[u8],
        key: &Self::Key,
    ) -> Result<(), PostError>;
}

/// Active message from arguments in pieces.
pub trait AmShortIov {
    /// Sends `header` and the pieces, one after the other, to the peer's handler `id`, as one
    /// payload of [`AmShort::am_short`].
    ///
    /// # Errors
    /// [`PostError`]
    fn am_short_iov(&self, id: u8, header: u64, pieces: &[&[u8]]) -> Result<(), PostError>;
}

/// Active message through a buffer of the interface.
pub trait AmBcopy {
    /// Sends to the peer's handler `id` what `pack` puts into a buffer. `pack` returns the number
    /// of bytes, and so does the post; the caller has nothing to wait for.
    ///
    /// # Errors
    /// [`PostError`]
    fn am_bcopy(&self, id: u8, pack: impl FnOnce(&mut [u8]) -> usize) -> Result<usize, PostError>;
}

/// Active message straight from registered memory.
pub trait AmZcopy {
    /// Sends `header`, which is copied, followed by the slices to the peer's handler `id`. Over
    /// `ud_mlx5` and `ud_verbs` the slices are copied, too, and the operation is finished when the
    /// peer has acknowledged the message.
    ///
    /// # Errors
    /// [`PostError`]
    fn am_zcopy(
        &self,
        id: u8,
        header: &[u8],
        slices: &[Slice<'_>],
        completion: Option<&Completion>,
    ) -> Post;
}

/// Tagged messages that carry their data, for peers whose device matches tags.
///
/// If the peer's interface was opened without tag matching, or this one, the posts return
/// [`PostError::Unsupported`]. A message that matches a receive whose buffer is too short fails the
/// endpoint and the receive.
pub trait TagEager {
    /// Sends `payload`, which is copied, with a tag, and with the immediate 0.
    ///
    /// # Errors
    /// [`PostError`]
    fn tag_short(&self, tag: u64, payload: &[u8]) -> Result<(), PostError>;

    /// Sends what `pack` puts into a buffer. `pack` returns the number of bytes, and so does the
    /// post; the caller has nothing to wait for.
    ///
    /// # Errors
    /// [`PostError`]
    fn tag_bcopy(
        &self,
        tag: u64,
        immediate: u32,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize, PostError>;

    /// Sends the slices, one after the other.
    ///
    /// # Errors
    /// [`PostError`]
    fn tag_zcopy(
        &self,
        tag: u64,
        immediate: u32,
        slices: &[Slice<'_>],
        completion: Option<&Completion>,
    ) -> Post;
}

/// Tagged messages whose data the peer reads.
pub trait TagRendezvous {
    /// Announces the data in `slice`, whose memory was registered with
    /// [`Access::REMOTE_READ`](crate::Access::REMOTE_READ), and `header`, which is copied. The
    /// completion counts the operation until the peer has read the data; a flush does not wait for
    /// that. If the endpoint fails or is closed before, it ends with an error.
    ///
    /// # Errors
    /// [`PostError`]; [`PostError::Unsupported`] as of [`TagEager`].
    fn tag_rendezvous(
        &self,
        tag: u64,
        header: &[u8],
        slice: &Slice<'_>,
        completion: &Completion,
    ) -> Result<(), PostError>;
}

/// Receives of an interface whose device matches tags: see [`tag`](crate::tag).
///
/// An interface that was opened without tag matching returns [`PostError::Unsupported`].
pub trait TagReceives {
    /// Sets the handler of [`TagEvent`]s, replacing an earlier one. It runs inside progress and may
    /// post. Without one, messages without a receive are dropped and counted as unhandled.
    ///
    /// # Errors
    /// [`HandlerError::Closed`]
    fn set_tag_handler(
        &self,
        handler: impl FnMut(TagEvent<'_>) + 'static,
    ) -> Result<(), HandlerError>;

    /// Appends a receive into `buffer` to the list: of messages whose tag is equal to `tag` in the
    /// bits of `mask`. The handler gets `context` when a message has matched, and when the receive
    /// has ended.
    ///
    /// The device writes the buffer until the receive has ended. Like that of a get, its memory may
    /// be freed before, which is safe but rarely intended: the device loses access first, and the
    /// connection of a message that matches fails.
    ///
    /// # Errors
    /// [`PostError::NoResource`] if the list is full, [`PostError`]
    fn tag_receive(
        &self,
        tag: u64,
        mask: u64,
        buffer: &Slice<'_>,
        context: u64,
    ) -> Result<TagReceive, PostError>;

    /// Requests the removal of a receive from the list. Returns whether it is under way: the
    /// receive then ends as cancelled, unless a message has matched it before. Otherwise it has
    /// ended, or its removal was requested before.
    ///
    /// With `force`, the handler gets no further event of the receive, not even if a message has
    /// matched it. Its buffer may be written until the interface has processed the device's
    /// response.
    ///
    /// # Errors
    /// [`PostError::NoResource`], [`PostError`]
    fn tag_cancel(&self, receive: TagReceive, force: bool) -> Result<bool, PostError>;
}

/// Every atomic, on words of 4 and 8 bytes.
pub trait Atomics: RemoteMemory {
    /// Changes the word at `remote`, a multiple of the word's size. Swaps exist with a result only.
    ///
    /// # Errors
    /// [`PostError`]
    fn atomic_post<W: AtomicWord>(
        &self,
        op: AtomicOp<W>,
        remote: u64,
        key: &Self::Key,
    ) -> Result<(), PostError>;

    /// As [`Self::atomic_post`], and fetches the value before.
    ///
    /// # Errors
    /// [`PostError`]
    fn atomic_fetch<W: AtomicWord>(
        &self,
        op: AtomicOp<W>,
        remote: u64,
        key: &Self::Key,
        result: &FetchResult,
        completion: Option<&Completion>,
    ) -> Post;
}

/// Waiting for, ordering and cancelling operations.
pub trait Flush {
    /// Waits for what was posted so far; see [`FlushMode`]. After [`FlushMode::Cancel`] the
    /// endpoint accepts no posts. Over `ud_mlx5` and `ud_verbs` a message is finished when the peer
    /// has acknowledged it.
    ///
    /// # Errors
    /// [`PostError`]
    fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post;

    /// Operations posted later take effect after those posted before.
    ///
    /// # Errors
    /// [`PostError`]
    fn fence(&self) -> Result<(), PostError>;
}

/// Checking that the peer is alive.
pub trait Check {
    /// Checks the peer as [`Endpoint::check`](crate::Endpoint::check) does, or returns why posts
    /// are refused.
    ///
    /// # Errors
    /// [`PostError`]
    fn check(&self) -> Result<(), PostError>;
}

/// Requests that wait for resources.
pub trait Pending: Sized {
    /// Queues a request that progress runs, in order, when resources are freed.
    ///
    /// # Errors
    /// [`Busy`] if a post would not return [`PostError::NoResource`] now.
    fn pending_add(
        &self,
        request: impl FnMut(&Self) -> PendingResult + 'static,
    ) -> Result<(), Busy>;

    /// As [`Self::pending_add`], for a request that was taken from an endpoint, or that the caller
    /// keeps.
    ///
    /// # Errors
    /// The request, if a post would not return [`PostError::NoResource`] now: run it instead.
    fn pending_add_request(
        &self,
        request: PendingRequest<Self>,
    ) -> Result<(), PendingRequest<Self>>;

    /// Takes the waiting requests, in order. The one that is running, if any, stays.
    #[must_use = "the requests are dropped without having run"]
    fn pending_take(&self) -> Vec<PendingRequest<Self>>;

    /// Drops every waiting request and calls `purged` once for each, in order.
    fn pending_purge(&self, purged: impl FnMut());
}
