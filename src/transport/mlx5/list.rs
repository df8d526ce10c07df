//! Lists: many puts or gets in one call, with one doorbell.

use barewire_mlx5::{ControlFlags, RemoteAddressSegment, WqeIndex};

use super::RemoteKey;
use super::post::{NO_FLAGS, data_segment};
use super::requests::Requests;
use crate::base::completion::Completion;
use crate::base::error::PostError;
use crate::base::memory::Transfer;
use crate::base::status::{Post, Posted};
use crate::transport::common::operation::Done;
use crate::transport::rc::{Driver, Endpoint, Queue as _};

impl<D: Driver<Queue: Requests>> Endpoint<D> {
    #[inline(always)]
    pub(in crate::transport) fn list<const PUT: bool>(
        &self,
        transfers: &[Transfer<'_, RemoteKey>],
        completion: Option<&Completion>,
    ) -> Post {
        self.0.posting.check()?;
        if transfers.is_empty() {
            return Ok(Posted::Done);
        }
        for transfer in transfers {
            self.segment(&transfer.local, self.limit::<PUT>())?;
        }
        let last_flags = if completion.is_some() { ControlFlags::COMPLETION } else { NO_FLAGS };
        let (blocks, room) = self.0.with_queue(|pair| (pair.blocks(), pair.room()));
        // Each transfer takes one block.
        if transfers.len() > room as usize {
            if transfers.len() > blocks as usize {
                return Err(PostError::TooManyTransfers { limit: blocks });
            }
            // Completions free room, but the outstanding posts may have requested none, since other
            // posts need less room than this list.
            self.0.signal_last()?;
            return Err(self.0.refuse_full(transfers.len() as u32));
        }
        let segments = transfers.iter().map(|transfer| {
            let remote = RemoteAddressSegment::new(transfer.remote, transfer.key.rkey());
            (data_segment(&transfer.local), remote)
        });
        let posted = self.0.with_queue(|queue| queue.post_list::<PUT>(segments, last_flags));
        let WqeIndex(index) = posted.map_err(|_| self.0.posting.refuse())?;
        let bytes = transfers.iter().map(|transfer| transfer.local.length).sum();
        self.0.posting.tally.add_bytes(bytes);
        if let Some(completion) = completion {
            self.await_done(index, Done::Notify(completion.begin()));
        }
        Ok(Posted::InProgress)
    }
}
