//! Common parts of posts.

use barewire_verbs::{self as verbs, Data, Element};

use super::{Endpoint, MAX_ELEMENTS};
use crate::base::attributes::RmaLimits;
use crate::base::completion::Completion;
use crate::base::error::{Operation, PostError};
use crate::base::memory::Slice;
use crate::base::status::{Post, Posted};
use crate::transport::common::operation::Done;
use crate::transport::rc::AM_HEADER;

impl Endpoint {
    /// Posts an operation. Its limits were checked, so a refusal means a full queue.
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
        let posted = self.0.with_queue(|pair| pair.post(name, operation, data, completion));
        let index = posted.map_err(|_| self.0.refuse_full(1))?;
        self.0.posting.tally.posted(bytes);
        Ok(index)
    }

    /// Posts an operation from or to the user's memory.
    #[inline(always)]
    pub(super) fn zcopy(
        &self,
        name: Operation,
        operation: verbs::Operation<'_>,
        slices: &[Slice<'_>],
        limits: &RmaLimits,
        completion: Option<&Completion>,
    ) -> Post {
        self.0.posting.check()?;
        // Usually there is one slice, which needs no room for many.
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
            self.await_done(index, Done::Notify(completion.begin()));
        }
        Ok(Posted::InProgress)
    }

    /// Writes the elements of the slices to `into` and returns them. There are at most `most`, with
    /// at most `limit` bytes together.
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
            // Some devices read an element of 0 bytes as one of 2 GiB.
            if slice.length > 0
                && let Some(element) = into.get_mut(count)
            {
                *element = Element::new(slice.address, slice.length as u32, slice.key);
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
