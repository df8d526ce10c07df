//! Lists: many puts or gets in one call, with one doorbell.

use barewire_mlx5::{ControlFlags, RemoteAddressSegment, WqeIndex};

use super::post::{NO_FLAGS, data_segment};
use super::{Endpoint, RemoteKey};
use crate::completion::Completion;
use crate::error::PostError;
use crate::memory::Transfer;
use crate::status::{Post, Posted};
use crate::transport::common::operation::Done;

impl Endpoint {
    #[inline(always)]
    pub(super) fn list<const PUT: bool>(
        &self,
        transfers: &[Transfer<'_, RemoteKey>],
        completion: Option<&Completion>,
    ) -> Post {
        self.0.posting.check()?;
        let Some((last, others)) = transfers.split_last() else { return Ok(Posted::Done) };
        for transfer in transfers {
            self.segment(&transfer.local, self.limit::<PUT>())?;
        }
        let last_flags = if completion.is_some() { ControlFlags::COMPLETION } else { NO_FLAGS };
        let (blocks, room) = self.0.with_queue(|pair| (pair.send.blocks(), pair.send.room()));
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
        let WqeIndex(index) = self.0.with_queue(|pair| {
            let mut batch = pair.send.batch();
            let mut post = |transfer: &Transfer<'_, RemoteKey>, flags| {
                let remote = RemoteAddressSegment::new(transfer.remote, transfer.key.0);
                let local = data_segment(&transfer.local);
                let posted = if PUT {
                    batch.write(local, remote, flags)
                } else {
                    batch.read(local, remote, flags)
                };
                posted.map_err(|_| self.0.posting.refuse())
            };
            for transfer in others {
                post(transfer, NO_FLAGS)?;
            }
            post(last, last_flags)
        })?;
        let bytes = transfers.iter().map(|transfer| transfer.local.length).sum();
        self.0.posting.tally.add_bytes(bytes);
        if let Some(completion) = completion {
            self.await_done(index, Done::Notify(completion.begin()));
        }
        Ok(Posted::InProgress)
    }
}
