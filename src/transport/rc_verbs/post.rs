//! What the posts of every operation are made of.

use barewire_verbs::{self as verbs, Data, Element};

use super::endpoint::Endpoint;
use super::{AM_HEADER, BUFFER, DATA, MAX_ELEMENTS, SEGMENT};
use crate::attributes::RmaLimits;
use crate::completion::Completion;
use crate::error::{Operation, PostError};
use crate::memory::Slice;
use crate::status::{Post, Posted};
use crate::transport::common::operation::{Done, InFlight};
use crate::transport::common::pool::Buffer;
use crate::transport::rdma::Pair;
use crate::transport::rdma::Registered;

pub(super) type PooledBuffer<'a> = Buffer<'a, Registered, BUFFER>;

impl Endpoint {
    /// Lets `pack` fill a buffer; nothing is taken if nothing could be posted.
    #[inline(always)]
    pub(super) fn pack(
        &self,
        limit: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(PooledBuffer<'_>, usize), PostError> {
        let state = &*self.0;
        state.gate.check()?;
        if !state.has_room() {
            return Err(state.gate.refuse());
        }
        let mut buffer = state.shared.buffers.take().ok_or_else(|| state.gate.refuse())?;
        self.signal_if_last();
        let data = &mut buffer.bytes()[DATA..DATA + SEGMENT];
        let length = pack(data.get_mut(..limit).unwrap_or_default());
        if length > limit {
            return Err(PostError::too_long(length, limit));
        }
        // The user's function may have posted, failed or closed this endpoint.
        state.gate.check()?;
        Ok((buffer, length))
    }

    /// `length` bytes at `offset` of a buffer.
    #[inline(always)]
    pub(super) fn in_buffer(&self, buffer: &PooledBuffer<'_>, offset: usize, length: usize) -> Element {
        Element::new(buffer.address() + offset as u64, length as u32, self.0.shared.buffers_key)
    }

    /// Whoever took the last buffer asks for a completion, so that buffers come back.
    #[inline(always)]
    pub(super) fn signal_if_last(&self) {
        if self.0.shared.buffers.is_empty() {
            self.0.with_pair(Pair::request_completion);
        }
    }

    /// Posts what was found to be within the limits, so that a refusal means a full queue.
    #[inline(always)]
    pub(super) fn post(
        &self,
        name: Operation,
        operation: verbs::Operation<'_>,
        data: Data<'_>,
        completion: bool,
    ) -> Result<u16, PostError> {
        let header = if matches!(name, Operation::ActiveMessage) { AM_HEADER } else { 0 };
        let bytes = data.length() - header;
        let posted = self.0.with_pair(|pair| pair.post(name, operation, data, completion));
        let index = posted.map_err(|_| self.0.gate.refuse())?;
        self.0.gate.tally.posted(bytes);
        Ok(index)
    }

    /// Posts from, or into, the user's memory.
    #[inline(always)]
    pub(super) fn zcopy(
        &self,
        name: Operation,
        operation: verbs::Operation<'_>,
        slices: &[Slice<'_>],
        limits: &RmaLimits,
        completion: Option<&Completion>,
    ) -> Post {
        self.0.gate.check()?;
        // As a rule it is one, for which there need not be room for many.
        let (mut one, mut many);
        let local = if slices.len() == 1 {
            one = [Element::new(0, 0, 0)];
            self.elements(&mut one, slices, 1, limits.max_zcopy)?
        } else {
            many = no_elements();
            self.elements(&mut many, slices, limits.max_iov, limits.max_zcopy)?
        };
        let index = self.post(name, operation, Data::Elements(local), completion.is_some())?;
        if let Some(completion) = completion {
            self.await_done(index, Done::Notify(completion.clone()));
        }
        Ok(Posted::InProgress)
    }

    /// Remembers what is to be done once the request of this count is done.
    #[inline(always)]
    pub(super) fn await_done(&self, index: u16, done: Done) {
        self.0.in_flight.push(InFlight { index, done });
    }

    /// The elements of the slices, in `into`, if there are at most `most` and together they have at most `limit` bytes.
    #[inline(always)]
    pub(super) fn elements<'s>(
        &self,
        into: &'s mut [Element],
        slices: &[Slice<'_>],
        most: usize,
        limit: usize,
    ) -> Result<&'s [Element], PostError> {
        let most = most.min(into.len());
        if slices.len() > most {
            return Err(PostError::TooManySlices { limit: most as u32 });
        }
        let mut total = 0_usize;
        let mut count = 0;
        for slice in slices {
            if slice.domain != self.0.shared.tag {
                return Err(PostError::ForeignMemory);
            }
            total = total.saturating_add(slice.length);
            // An element of no bytes would be one of 2 GiB to some devices.
            if slice.length > 0
                && let Some(place) = into.get_mut(count)
            {
                *place = Element::new(slice.address, slice.length as u32, slice.key);
                count += 1;
            }
        }
        if total > limit {
            return Err(PostError::too_long(total, limit));
        }
        Ok(into.get(..count).unwrap_or_default())
    }
}

/// Room for elements on the stack.
pub(super) fn no_elements() -> [Element; MAX_ELEMENTS] {
    [Element::new(0, 0, 0); MAX_ELEMENTS]
}
