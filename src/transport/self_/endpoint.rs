//! The endpoint: the CPU carries out every operation before the call returns.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use super::domain::RemoteKey;
use super::interface::Shared;
use super::{Endpoint, ID, Interface, MAX_IOV, SEGMENT, Self_};
use crate::base::address::{EndpointAddress, Kind, Packed, PeerAddress};
use crate::base::atomic::{Change, ChangeWord, Fetch};
use crate::base::capability::{
    AmBcopy, AmInvalidate, AmShort, AmShortIov, AmZcopy, Check, GetBcopy, PutBcopy, PutShort,
};
use crate::base::completion::{Completion, Unpack};
use crate::base::error::{ConnectError, EndpointError, PostError};
use crate::base::memory::{Access, Slice};
use crate::base::status::{FlushMode, Post, Posted};
use crate::transport::Interface as _;
use crate::transport::common::message::{SHORT_HEADER, check_id};
use crate::transport::common::pending::PendingQueue;
use crate::transport::common::pieces;
use crate::transport::common::post_state::{PostBlock, PostState};
use crate::transport::common::rma::{self, Rma};
use crate::transport::handle::{EndpointState, endpoint_fields};

pub(crate) struct State {
    pub(super) shared: Rc<Shared>,
    pending: PendingQueue<Endpoint>,
    pub(super) posting: PostState,
}

impl EndpointState for State {
    endpoint_fields!(Self_);

    fn address(&self) -> EndpointAddress {
        EndpointAddress(Packed::new(Kind::Endpoint, ID, &self.shared.id().to_be_bytes()))
    }

    /// An endpoint to its own process never fails.
    fn error(&self) -> Option<EndpointError> {
        None
    }

    fn may_wait(&self) -> bool {
        let short = !self.pending.is_idle() || self.shared.segments.0.is_empty();
        self.posting.is_usable() && short
    }

    fn flush(&self, mode: FlushMode, _completion: Option<&Completion>) -> Post {
        if mode != FlushMode::Cancel || self.posting.has(PostBlock::Closed) {
            self.posting.check()?;
        }
        if mode == FlushMode::Cancel {
            self.posting.set(PostBlock::Failed, true);
        }
        Ok(Posted::Done)
    }

    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

impl Endpoint {
    pub(super) fn connect(interface: &Interface, peer: &PeerAddress) -> Result<Self, ConnectError> {
        interface.reaches(peer)?;
        let core = &interface.0.core;
        core.check_opening()?;
        let state = Rc::new(State {
            shared: Rc::clone(&interface.0),
            pending: PendingQueue::new(),
            posting: PostState::new(&core.past),
        });
        core.endpoints.add(&state);
        Ok(Self::handle(state))
    }

    #[inline]
    pub(super) fn tag(&self) -> u32 {
        self.0.shared.domain.tag()
    }

    /// Implements `am_short`. `first` runs before the handler, if the message is not refused.
    #[inline(always)]
    fn send_short(
        &self,
        id: u8,
        header: u64,
        payload: &[u8],
        first: impl FnOnce() -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        check_id(id)?;
        if payload.len() > SEGMENT - SHORT_HEADER {
            return Err(PostError::too_long(payload.len(), SEGMENT - SHORT_HEADER));
        }
        self.0.posting.check()?;
        self.send(id, |segment| {
            first()?;
            let length = SHORT_HEADER + payload.len();
            segment[..SHORT_HEADER].copy_from_slice(&header.to_le_bytes());
            segment[SHORT_HEADER..length].copy_from_slice(payload);
            Ok(length)
        })?;
        Ok(())
    }

    /// Sends a segment that `fill` writes to handler `id`.
    #[inline]
    fn send(
        &self,
        id: u8,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, PostError>,
    ) -> Result<usize, PostError> {
        let segment = self.0.shared.segments.0.take().ok_or_else(|| self.0.posting.refuse())?;
        self.0.shared.send(id, segment, |segment| {
            let length = fill(segment)?;
            self.0.posting.tally.posted(length);
            Ok(length)
        })
    }
}

impl ChangeWord for Endpoint {
    fn change(&self, change: Change, remote: u64, key: &RemoteKey, fetch: Fetch<'_>) -> Post {
        self.0.posting.check()?;
        change.need(fetch.is_some()).ok_or(PostError::Unsupported)?;
        let old = match key.resolve(self.tag(), remote, change.width, Access::REMOTE_ATOMIC) {
            Ok((bytes, at, _hold)) => {
                // SAFETY: `_hold` keeps the region's memory alive until the end of this arm.
                unsafe { bytes.update(at, change.width, |old| change.apply(old)) }
                    .ok_or(PostError::Unaligned)?
            }
            Err(refused) => self.change_in_list(change, remote, key, refused)?,
        };
        self.0.posting.tally.posted(change.width);
        if let Some((result, _)) = fetch {
            result.set(old);
        }
        Ok(Posted::Done)
    }
}

impl PutShort for Endpoint {
    #[inline(never)]
    fn put_short(&self, payload: &[u8], remote: u64, key: &RemoteKey) -> Result<(), PostError> {
        self.0.posting.check()?;
        let (bytes, at, _hold) =
            match key.resolve(self.tag(), remote, payload.len(), Access::REMOTE_WRITE) {
                Ok(found) => found,
                Err(refused) => return self.put_to_list(payload, remote, key, refused),
            };
        // SAFETY: `_hold` keeps the region's memory alive, and `resolve` checked that the range
        // lies in it.
        unsafe { bytes.write(at, payload) };
        self.0.posting.tally.posted(payload.len());
        Ok(())
    }
}

impl PutBcopy for Endpoint {
    fn put_bcopy(
        &self,
        pack: impl FnOnce(&mut [u8]) -> usize,
        remote: u64,
        key: &RemoteKey,
    ) -> Result<usize, PostError> {
        self.0.posting.check()?;
        let mut segment = self.0.shared.segments.0.take().ok_or_else(|| self.0.posting.refuse())?;
        let buffer = super::data(segment.bytes());
        let length = pack(buffer);
        let packed = buffer.get(..length).ok_or_else(|| PostError::too_long(length, SEGMENT))?;
        let (bytes, at, _hold) = match key.resolve(self.tag(), remote, length, Access::REMOTE_WRITE)
        {
            Ok(found) => found,
            Err(refused) => {
                self.put_to_list(packed, remote, key, refused)?;
                return Ok(length);
            }
        };
        // SAFETY: `_hold` keeps the region's memory alive, and `resolve` checked that the range
        // lies in it.
        unsafe { bytes.write(at, packed) };
        self.0.posting.tally.posted(length);
        Ok(length)
    }
}

impl Rma for Endpoint {
    fn transfer<const PUT: bool>(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &RemoteKey,
        _completion: Option<&Completion>,
    ) -> Post {
        self.0.posting.check()?;
        let total = rma::total(slices, self.tag(), MAX_IOV, PUT)?;
        let by_lists = || self.transfer_by_lists::<PUT>(slices, total, remote, key);
        let Ok((bytes, mut at, _hold)) = key.resolve(self.tag(), remote, total, rma::right(PUT))
        else {
            return by_lists().map(|()| Posted::Done);
        };
        for slice in slices {
            if slice.is_of_view() {
                return by_lists().map(|()| Posted::Done);
            }
            let (memory, start) = (slice.memory, slice.address - slice.memory.address());
            // SAFETY: `_hold` keeps the remote memory alive and `slice` borrows its memory.
            // `resolve` checked the remote range, and a slice's range is checked on creation.
            unsafe {
                if PUT {
                    bytes.copy(at, memory, start as usize, slice.length);
                } else {
                    memory.copy(start as usize, bytes, at, slice.length);
                }
            }
            at += slice.length;
        }
        self.0.posting.tally.posted(total);
        Ok(Posted::Done)
    }
}

impl GetBcopy for Endpoint {
    fn get_bcopy(
        &self,
        unpack: &Unpack,
        length: usize,
        remote: u64,
        key: &RemoteKey,
        _completion: Option<&Completion>,
    ) -> Post {
        self.0.posting.check()?;
        let mut segment = self.0.shared.segments.0.take().ok_or_else(|| self.0.posting.refuse())?;
        let target = super::data(segment.bytes())
            .get_mut(..length)
            .ok_or_else(|| PostError::too_long(length, SEGMENT))?;
        match key.resolve(self.tag(), remote, length, Access::REMOTE_READ) {
            // SAFETY: `_hold` keeps the region's memory alive, and `resolve` checked that the range
            // lies in it.
            Ok((bytes, at, _hold)) => unsafe { bytes.read(at, target) },
            Err(refused) => self.get_from_list(target, remote, key, refused)?,
        }
        self.0.posting.tally.posted(length);
        unpack.call(target);
        Ok(Posted::Done)
    }
}

impl AmShort for Endpoint {
    #[inline(never)]
    fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Result<(), PostError> {
        self.send_short(id, header, payload, || Ok(()))
    }
}

impl AmInvalidate for Endpoint {
    fn am_short_invalidate(
        &self,
        id: u8,
        header: u64,
        payload: &[u8],
        key: &RemoteKey,
    ) -> Result<(), PostError> {
        self.send_short(id, header, payload, || key.end_window(self.tag()))
    }
}

impl AmShortIov for Endpoint {
    fn am_short_iov(&self, id: u8, header: u64, pieces: &[&[u8]]) -> Result<(), PostError> {
        check_id(id)?;
        self.0.posting.check()?;
        self.send(id, |segment| {
            let (front, payload) = segment.split_at_mut(SHORT_HEADER);
            front.copy_from_slice(&header.to_le_bytes());
            Ok(SHORT_HEADER + pieces::gather(payload, pieces)?.len())
        })?;
        Ok(())
    }
}

impl AmBcopy for Endpoint {
    fn am_bcopy(&self, id: u8, pack: impl FnOnce(&mut [u8]) -> usize) -> Result<usize, PostError> {
        check_id(id)?;
        self.0.posting.check()?;
        self.send(id, |segment| {
            let length = pack(segment);
            if length > segment.len() {
                Err(PostError::too_long(length, SEGMENT))
            } else {
                Ok(length)
            }
        })
    }
}

impl AmZcopy for Endpoint {
    fn am_zcopy(
        &self,
        id: u8,
        header: &[u8],
        slices: &[Slice<'_>],
        _completion: Option<&Completion>,
    ) -> Post {
        check_id(id)?;
        let max_header = self.0.shared.core.attributes.am.max_header;
        if header.len() > max_header {
            return Err(PostError::too_long(header.len(), max_header));
        }
        let length = rma::total(slices, self.tag(), MAX_IOV, true)?.saturating_add(header.len());
        if length > SEGMENT {
            return Err(PostError::too_long(length, SEGMENT));
        }
        self.0.posting.check()?;
        self.send(id, |segment| {
            let (head, rest) = segment.split_at_mut(header.len());
            head.copy_from_slice(header);
            if slices.iter().any(Slice::is_of_view) {
                self.gather_lists(slices, &mut rest[..length - header.len()])?;
            } else {
                rma::gather(slices, rest);
            }
            Ok(length)
        })?;
        Ok(Posted::Done)
    }
}

impl Check for Endpoint {
    fn check(&self) -> Result<(), PostError> {
        self.0.posting.check()
    }
}
