//! The posts that other transports of mlx5 devices lack.

use barewire_mlx5::RemoteAddressSegment;
use barewire_mlx5::queue::send::{MAX_SEND_INLINE, PREFIX};
use barewire_mlx5::request::{Inline, SendInvalidate};

use super::{Endpoint, RcMlx5, RemoteKey};
use crate::base::capability::AmInvalidate;
use crate::base::completion::Completion;
use crate::base::error::PostError;
use crate::base::memory::Slice;
use crate::base::status::Post;
use crate::transport::common::message::{SHORT_HEADER, check_id};
use crate::transport::mlx5::message::max_am_short;
use crate::transport::rc::am_prefix;

impl Endpoint {
    /// As `put_zcopy` of one slice, with the post inlined: for UCT's C interface, whose function is
    /// the call already. In `put_zcopy` itself it costs programs seven instructions.
    #[doc(hidden)]
    #[inline(always)]
    pub fn put_zcopy_here(
        &self,
        slice: &Slice<'_>,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        self.0.posting.check()?;
        let local = self.segment(slice, self.limit::<true>())?;
        let remote = RemoteAddressSegment::new(remote, key.rkey());
        self.put_one(slice.length, local, remote, completion)
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
        self.0.posting.check()?;
        if self.0.shared.driver.tags.is_some() {
            // It would arrive at another queue pair than the one that binds windows.
            return Err(PostError::Unsupported);
        }
        check_id(id)?;
        let length = PREFIX + payload.len();
        let mut message = [0; MAX_SEND_INLINE];
        let Some(message) = message.get_mut(..length) else {
            return Err(PostError::too_long(payload.len(), max_am_short::<RcMlx5>()));
        };
        let (prefix, data) = message.split_at_mut(PREFIX);
        prefix.copy_from_slice(&am_prefix(id, header));
        data.copy_from_slice(payload);
        let message = SendInvalidate { local: Inline(message), rkey: key.rkey() };
        self.post_short(SHORT_HEADER + payload.len(), message)
    }
}
