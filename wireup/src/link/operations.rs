//! The operations of a link: those of its lanes.

use barewire::{
    AtomicOp, AtomicWord, Completion, Endpoint, FetchResult, FlushMode, Post, PostError, Posted,
    RemoteKey, Slice, Unpack,
};

use super::memory::post_later;
use super::{Inner, Link};
use crate::plan::Kind;

impl Inner {
    #[inline(always)]
    fn of_kind(&self, kind: Kind) -> Result<&Endpoint, PostError> {
        match self.lanes.endpoint(kind) {
            Some(endpoint) => Ok(endpoint),
            // Constants, so that no test of the result is left on the way of a post that succeeds.
            None => match self.obstacle() {
                Obstacle::Connecting => Err(PostError::NoResource),
                Obstacle::NoLane => Err(PostError::Unsupported),
                Obstacle::Failed => Err(PostError::EndpointFailed),
            },
        }
    }

    /// Stores an error at the last parameter, as the function of [`Endpoint`] does.
    #[inline(never)]
    fn am_word(&self, id: u8, header: u64, word: u64, result: &mut Result<(), PostError>) {
        let endpoint = self.of_kind(Kind::Messages);
        let posted = endpoint.and_then(|endpoint| endpoint.am_word_here(id, header, word));
        if let Err(error) = posted {
            *result = Err(error);
        }
    }

    /// As [`am_word`](Self::am_word).
    #[inline(never)]
    fn put_word(
        &self,
        word: u64,
        remote: u64,
        key: &RemoteKey,
        result: &mut Result<(), PostError>,
    ) {
        let endpoint = self.of_kind(Kind::Memory);
        let posted = endpoint.and_then(|endpoint| endpoint.put_word_here(word, remote, key));
        if let Err(error) = posted {
            *result = Err(error);
        }
    }
}

impl Link {
    #[inline(always)]
    pub(super) fn of_kind(&self, kind: Kind) -> Result<&Endpoint, PostError> {
        self.0.of_kind(kind)
    }

    /// Sends `header` and `payload` to the peer's handler `id`, 0 to 29, on the messages lane. As
    /// [`Endpoint::am_short`].
    ///
    /// # Errors
    /// [`PostError`]; [`PostError::NoResource`] until the link is connected.
    #[inline(always)]
    pub fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Result<(), PostError> {
        match self.0.lanes.endpoint(Kind::Messages) {
            Some(endpoint) if endpoint.is_inlined() => endpoint.am_short(id, header, payload),
            // As in `Endpoint::am_short`, out of line, together with the test for a lane.
            _ => match payload.try_into() {
                Ok(word) => {
                    let mut result = Ok(());
                    self.0.am_word(id, header, u64::from_ne_bytes(word), &mut result);
                    result
                }
                Err(_) => self.of_kind(Kind::Messages)?.am_short(id, header, payload),
            },
        }
    }

    /// As [`Endpoint::am_short_iov`], on the messages lane.
    ///
    /// # Errors
    /// As [`am_short`](Self::am_short).
    pub fn am_short_iov(&self, id: u8, header: u64, pieces: &[&[u8]]) -> Result<(), PostError> {
        self.of_kind(Kind::Messages)?.am_short_iov(id, header, pieces)
    }

    /// As [`Endpoint::am_bcopy`], on the messages lane.
    ///
    /// # Errors
    /// As [`am_short`](Self::am_short).
    #[inline]
    pub fn am_bcopy(
        &self,
        id: u8,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize, PostError> {
        self.of_kind(Kind::Messages)?.am_bcopy(id, pack)
    }

    /// As [`Endpoint::am_zcopy`], on the messages lane.
    ///
    /// # Errors
    /// As [`am_short`](Self::am_short).
    #[inline]
    pub fn am_zcopy(
        &self,
        id: u8,
        header: &[u8],
        slices: &[Slice<'_>],
        completion: Option<&Completion>,
    ) -> Post {
        self.of_kind(Kind::Messages)?.am_zcopy(id, header, slices, completion)
    }

    /// As [`Endpoint::put_short`], on the memory lane.
    ///
    /// # Errors
    /// [`PostError`]; [`PostError::NoResource`] until the link is connected,
    /// [`PostError::Unsupported`] without a memory lane.
    #[inline(always)]
    pub fn put_short(&self, payload: &[u8], remote: u64, key: &RemoteKey) -> Result<(), PostError> {
        match self.0.lanes.endpoint(Kind::Memory) {
            Some(endpoint) if endpoint.is_inlined() => endpoint.put_short(payload, remote, key),
            // As in `am_short`.
            _ => match payload.try_into() {
                Ok(word) => {
                    let mut result = Ok(());
                    self.0.put_word(u64::from_ne_bytes(word), remote, key, &mut result);
                    result
                }
                Err(_) => self.of_kind(Kind::Memory)?.put_short(payload, remote, key),
            },
        }
    }

    /// As [`Endpoint::put_bcopy`], on the memory lane.
    ///
    /// # Errors
    /// As [`put_short`](Self::put_short).
    #[inline]
    pub fn put_bcopy(
        &self,
        pack: impl FnOnce(&mut [u8]) -> usize,
        remote: u64,
        key: &RemoteKey,
    ) -> Result<usize, PostError> {
        self.of_kind(Kind::Memory)?.put_bcopy(pack, remote, key)
    }

    /// As [`Endpoint::get_bcopy`], on the memory lane.
    ///
    /// # Errors
    /// As [`put_short`](Self::put_short).
    #[inline]
    pub fn get_bcopy(
        &self,
        unpack: &Unpack,
        length: usize,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        self.of_kind(Kind::Memory)?.get_bcopy(unpack, length, remote, key, completion)
    }

    /// As [`Endpoint::atomic_post`], on the atomics lane.
    ///
    /// # Errors
    /// As [`put_short`](Self::put_short), for the atomics lane.
    #[inline]
    pub fn atomic_post<W: AtomicWord>(
        &self,
        op: AtomicOp<W>,
        remote: u64,
        key: &RemoteKey,
    ) -> Result<(), PostError> {
        self.of_kind(Kind::Atomics)?.atomic_post(op, remote, key)
    }

    /// As [`Endpoint::atomic_fetch`], on the atomics lane.
    ///
    /// # Errors
    /// As [`put_short`](Self::put_short), for the atomics lane.
    #[inline]
    pub fn atomic_fetch<W: AtomicWord>(
        &self,
        op: AtomicOp<W>,
        remote: u64,
        key: &RemoteKey,
        result: &FetchResult,
        completion: Option<&Completion>,
    ) -> Post {
        self.of_kind(Kind::Atomics)?.atomic_fetch(op, remote, key, result, completion)
    }

    /// Waits for what was posted so far on every lane; see [`FlushMode`]. The completion counts
    /// each lane that has something outstanding.
    ///
    /// # Errors
    /// [`PostError`] of the first lane that refuses, if the completion counts none before it.
    pub fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        let lanes = self.lanes();
        if lanes.is_empty() {
            self.of_kind(Kind::Messages)?;
        }
        let mut result = Posted::Done;
        for info in lanes {
            match info.endpoint.flush(mode, completion) {
                Ok(Posted::InProgress) => result = Posted::InProgress,
                // If the completion counts no lane, the caller can have the error.
                Err(error) if result == Posted::Done => return Err(error),
                // Parts of a bulk transfer wait there; the flush waits behind them.
                Err(PostError::NoResource) => {
                    post_later(&info.endpoint, completion, move |endpoint, completion| {
                        endpoint.flush(mode, completion)
                    });
                    result = Posted::InProgress;
                }
                // Nothing is outstanding, or the lane failed, and its operations have reported it.
                Ok(Posted::Done) | Err(_) => {}
            }
        }
        Ok(result)
    }

    /// Operations posted later take effect after those posted before, on whichever lane. Between
    /// lanes there is no order, so with several lanes this succeeds once what was posted before has
    /// taken effect.
    ///
    /// # Errors
    /// [`PostError::NoResource`] while operations of other lanes are outstanding: progress, and try
    /// again. [`PostError`]
    pub fn fence(&self) -> Result<(), PostError> {
        match self.lanes() {
            [] => self.of_kind(Kind::Messages).map(drop),
            [only] => only.endpoint.fence(),
            _ => match self.flush(FlushMode::Remote, None)? {
                Posted::Done => Ok(()),
                Posted::InProgress => Err(PostError::NoResource),
            },
        }
    }
}

/// Why a link has no lane for a post.
enum Obstacle {
    Connecting,
    NoLane,
    Failed,
}

impl Inner {
    #[cold]
    #[inline(never)]
    fn obstacle(&self) -> Obstacle {
        match self.may_connect() {
            true => Obstacle::Connecting,
            false if self.lanes.are_set() => Obstacle::NoLane,
            false => Obstacle::Failed,
        }
    }
}
