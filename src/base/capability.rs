//! The operations of endpoints, as traits: [`capability`](crate::capability) explains them.

use crate::base::atomic::{AtomicOp, AtomicWord};
use crate::base::completion::{Completion, FetchResult, Unpack};
use crate::base::error::{Busy, PostError};
use crate::base::memory::{Slice, Transfer};
use crate::base::pending::PendingRequest;
use crate::base::status::{FlushMode, PendingResult, Post};

/// The key by which operations name remote memory.
pub trait RemoteMemory {
    /// The transport's remote key.
    type Key;
}

/// Put from the argument.
pub trait PutShort: RemoteMemory {
    /// Writes `payload`, which is copied, to `remote`.
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
    fn am_short_iov(&self, id: u8, header: u64, pieces: &[&[u8]]) -> Result<(), PostError>;
}

/// Active message through a buffer of the interface.
pub trait AmBcopy {
    /// Sends to the peer's handler `id` what `pack` puts into a buffer. `pack` returns the number
    /// of bytes, and so does the post; the caller has nothing to wait for.
    fn am_bcopy(&self, id: u8, pack: impl FnOnce(&mut [u8]) -> usize) -> Result<usize, PostError>;
}

/// Active message straight from registered memory.
pub trait AmZcopy {
    /// Sends `header`, which is copied, followed by the slices to the peer's handler `id`. Over
    /// `ud_mlx5` and `ud_verbs` the slices are copied, too, and the operation is finished when the
    /// peer has acknowledged the message.
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
    fn tag_short(&self, tag: u64, payload: &[u8]) -> Result<(), PostError>;

    /// Sends what `pack` puts into a buffer. `pack` returns the number of bytes, and so does the
    /// post; the caller has nothing to wait for.
    fn tag_bcopy(
        &self,
        tag: u64,
        immediate: u32,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize, PostError>;

    /// Sends the slices, one after the other.
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

/// Every atomic, on words of 4 and 8 bytes.
pub trait Atomics: RemoteMemory {
    /// Changes the word at `remote`, a multiple of the word's size. Swaps exist with a result only.
    fn atomic_post<W: AtomicWord>(
        &self,
        op: AtomicOp<W>,
        remote: u64,
        key: &Self::Key,
    ) -> Result<(), PostError>;

    /// As [`Self::atomic_post`], and fetches the value before.
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
    fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post;

    /// Operations posted later take effect after those posted before.
    fn fence(&self) -> Result<(), PostError>;
}

/// Checking that the peer is alive.
pub trait Check {
    /// Checks the peer as [`Endpoint::check`](crate::Endpoint::check) does, or returns why posts
    /// are refused.
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
