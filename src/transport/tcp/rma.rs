//! Puts and gets.

use std::collections::VecDeque;

use barewire_tcp::request::{Action, REQUEST_BYTES, Request};

use super::Endpoint;
use super::address::RemoteKey;
use super::remote_memory::{Range, RemoteMemoryClient, Then};
use super::state::State;
use super::{COPIED, MAX_ZCOPY, SEGMENT};
use crate::base::capability::{GetBcopy, PutBcopy, PutShort};
use crate::base::completion::{Completion, Unpack};
use crate::base::error::{Operation, PostError};
use crate::base::memory::{Slice, Transfer};
use crate::base::status::{Post, Posted};
use crate::transport::common::rma::{self, Rma};

impl PutShort for Endpoint {
    // As `am_short`.
    #[inline(never)]
    fn put_short(&self, payload: &[u8], remote: u64, key: &RemoteKey) -> Result<(), PostError> {
        self.0.posting.check()?;
        if payload.len() > SEGMENT {
            return Err(PostError::too_long(payload.len(), SEGMENT));
        }
        self.0.put_copied(payload.len(), remote, key, |place| {
            place.copy_from_slice(payload);
            Ok(payload.len())
        })?;
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
        let state = &*self.0;
        state.posting.check()?;
        let posted = state.put_copied(SEGMENT, remote, key, |place| {
            let length = pack(place);
            state.packed(length)
        });
        if posted.is_err() {
            state.after_failed_pack();
        }
        posted
    }
}

impl Rma for Endpoint {
    fn transfer<const PUT: bool>(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        let state = &*self.0;
        state.posting.check()?;
        let length = state.limited(slices)?;
        state.with_memory(key, 1, rma::operation(PUT), |state, memory| {
            state.transfer::<PUT>(memory, slices, length, remote, key, completion)
        })
    }

    fn transfer_list<const PUT: bool>(
        &self,
        transfers: &[Transfer<'_, RemoteKey>],
        completion: Option<&Completion>,
    ) -> Post {
        let state = &*self.0;
        state.posting.check()?;
        let Some((last, others)) = transfers.split_last() else { return Ok(Posted::Done) };
        for transfer in transfers {
            state.limited(&[transfer.local])?;
            if transfer.key.port == 0 {
                return Err(PostError::AccessDenied);
            }
            if (transfer.key.port, transfer.key.domain) != (last.key.port, last.key.domain) {
                return Err(PostError::ForeignKey);
            }
        }
        let limit = state.shared.config.send_ring;
        if transfers.len() > limit as usize {
            return Err(PostError::TooManyTransfers { limit });
        }
        state.with_memory(last.key, transfers.len(), rma::operation(PUT), |state, memory| {
            // Either all are posted or none: every slice is checked, and there is room for all of
            // them.
            let local: Vec<Slice<'_>> = transfers.iter().map(|transfer| transfer.local).collect();
            state.ranges(&local)?;
            if memory.is_crowded(transfers.len() * (REQUEST_BYTES + COPIED))
                || PUT && memory.is_fenced()
            {
                return Err(PostError::NoResource);
            }
            let mut run = |transfer: &Transfer<'_, RemoteKey>, completion| {
                let &Transfer { local, remote, key } = transfer;
                state.transfer::<PUT>(memory, &[local], local.length, remote, key, completion)
            };
            for transfer in others {
                let _ = run(transfer, None)?;
            }
            run(last, completion)
        })
    }
}

impl GetBcopy for Endpoint {
    fn get_bcopy(
        &self,
        unpack: &Unpack,
        length: usize,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        let state = &*self.0;
        state.posting.check()?;
        if length > SEGMENT {
            return Err(PostError::too_long(length, SEGMENT));
        }
        state.with_memory(key, 1, Operation::Get, |state, memory| {
            let action = Action::Get { length: length as u64 };
            let request = Request { token: key.token, address: remote, action };
            state.request(memory, request, Then::Unpack(unpack.clone(), length), completion)?;
            Ok(Posted::InProgress)
        })
    }
}

impl State {
    fn limited(&self, slices: &[Slice<'_>]) -> Result<usize, PostError> {
        match self.total(slices)? {
            length if length <= MAX_ZCOPY => Ok(length),
            length => Err(PostError::too_long(length, MAX_ZCOPY)),
        }
    }

    /// Returns the parts of regions that the slices cover. A slice borrows its memory, so it is
    /// alive.
    pub(super) fn ranges(&self, slices: &[Slice<'_>]) -> Result<VecDeque<Range>, PostError> {
        let filled = slices.iter().filter(|slice| slice.length > 0);
        let range = |slice: &Slice<'_>| {
            let region = self.shared.domain.region(slice.key).ok_or(PostError::ForeignMemory)?;
            let offset = (slice.address - slice.memory.address()) as usize;
            Ok(Range { region, offset, length: slice.length })
        };
        filled.map(range).collect()
    }

    /// Connects to the memory that `key` is for unless it is connected, runs `post` if so many
    /// requests may be posted, and sends them.
    pub(super) fn with_memory<T>(
        &self,
        key: &RemoteKey,
        requests: usize,
        operation: Operation,
        post: impl FnOnce(&Self, &mut RemoteMemoryClient) -> Result<T, PostError>,
    ) -> Result<T, PostError> {
        if key.port == 0 {
            // The peer's domain could not serve any memory.
            return Err(PostError::AccessDenied);
        }
        // Borrowed if the function that packs for another post calls this.
        let Ok(mut memory) = self.memory.try_borrow_mut() else { return Err(self.refuse()) };
        let memory = match &mut *memory {
            Some(memory) => memory,
            none => none.insert(self.connect_memory(key, operation)?),
        };
        if !memory.serves(key) {
            return Err(PostError::ForeignKey);
        }
        if memory.room() < requests as u64 || self.is_fenced_by_messages() {
            return Err(self.refuse());
        }
        match post(self, memory) {
            Err(PostError::NoResource) => Err(self.refuse()),
            Err(error) => Err(error),
            Ok(value) => {
                self.push(memory.connection(), operation);
                Ok(value)
            }
        }
    }

    /// Posts a request without data.
    pub(super) fn request(
        &self,
        memory: &mut RemoteMemoryClient,
        request: Request,
        then: Then,
        completion: Option<&Completion>,
    ) -> Result<(), PostError> {
        memory.request(&self.shared.spare, request, then, completion)?;
        self.posting.tally.posted(match request.action {
            Action::Put { length } | Action::Get { length } => length as usize,
            Action::Atomic { width, .. } => width.into(),
        });
        Ok(())
    }

    fn put_copied(
        &self,
        most: usize,
        remote: u64,
        key: &RemoteKey,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, PostError>,
    ) -> Result<usize, PostError> {
        self.with_memory(key, 1, Operation::Put, |state, memory| {
            let length = memory.put(&state.shared.spare, (key, remote), most, fill, None)?;
            state.posting.tally.posted(length);
            Ok(length)
        })
    }

    fn transfer<const PUT: bool>(
        &self,
        memory: &mut RemoteMemoryClient,
        slices: &[Slice<'_>],
        length: usize,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        let spare = &self.shared.spare;
        if !PUT {
            let action = Action::Get { length: length as u64 };
            let request = Request { token: key.token, address: remote, action };
            let then = Then::Scatter(self.ranges(slices)?, length);
            self.request(memory, request, then, completion)?;
            return Ok(Posted::InProgress);
        }
        if memory.is_fenced() {
            return Err(PostError::NoResource);
        }
        if length <= COPIED && !slices.iter().any(Slice::is_of_view) {
            let fill = |data: &mut [u8]| {
                rma::gather(slices, data);
                Ok(length)
            };
            memory.put(spare, (key, remote), length, fill, completion)?;
        } else {
            memory.put_ranges(spare, (key, remote), length, self.ranges(slices)?, completion)?;
        }
        self.posting.tally.posted(length);
        Ok(Posted::InProgress)
    }
}
