//! Puts and gets.

use barewire_verbs::Data;

use super::Endpoint;
use super::post::no_elements;
use crate::base::attributes::Attributes;
use crate::base::capability::{Check, GetBcopy, PutBcopy, PutShort};
use crate::base::completion::{Completion, Unpack};
use crate::base::error::{Operation, PostError};
use crate::base::memory::{Slice, Transfer};
use crate::base::status::{Post, Posted};
use crate::transport::common::operation::Done;
use crate::transport::common::rma::{self, Rma};
use crate::transport::rc::{DATA, SEGMENT};
use crate::transport::rdma::{RemoteKey, read, write};

impl PutShort for Endpoint {
    #[inline]
    fn put_short(&self, payload: &[u8], remote: u64, key: &RemoteKey) -> Result<(), PostError> {
        self.0.posting.check()?;
        let limit = self.0.shared.core.attributes.put.max_short;
        if payload.len() > limit {
            return Err(PostError::too_long(payload.len(), limit));
        }
        self.post(Operation::Put, write(remote, key.rkey()), Data::Inline(payload), false)?;
        Ok(())
    }
}

impl PutBcopy for Endpoint {
    #[inline]
    fn put_bcopy(
        &self,
        pack: impl FnOnce(&mut [u8]) -> usize,
        remote: u64,
        key: &RemoteKey,
    ) -> Result<usize, PostError> {
        let (buffer, length) = self.pack(SEGMENT, pack)?;
        let local = [self.in_buffer(&buffer, DATA, length)];
        let local = if length == 0 { &[] } else { &local[..] };
        let index =
            self.post(Operation::Put, write(remote, key.rkey()), Data::Elements(local), false)?;
        self.await_done(index, Done::Release { buffer: buffer.into_lease() });
        Ok(length)
    }
}

impl GetBcopy for Endpoint {
    #[inline]
    fn get_bcopy(
        &self,
        unpack: &Unpack,
        length: usize,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        let buffer = self.get_buffer(length)?;
        let local = [self.in_buffer(&buffer, DATA, length)];
        let local = if length == 0 { &[] } else { &local[..] };
        let index =
            self.post(Operation::Get, read(remote, key.rkey()), Data::Elements(local), true)?;
        self.await_data(index, buffer, length, unpack, completion);
        Ok(Posted::InProgress)
    }
}

impl Check for Endpoint {
    /// Posts a write of no bytes, which needs no rights (IBTA 9.4.3) and fails if the peer does not
    /// respond.
    fn check(&self) -> Result<(), PostError> {
        self.put_short(&[], 0, &RemoteKey::new(0)).map(drop)
    }
}

impl Rma for Endpoint {
    #[inline]
    fn transfer<const PUT: bool>(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        let Attributes { put, get, .. } = &self.0.shared.core.attributes;
        let (operation, limits) =
            if PUT { (write(remote, key.rkey()), put) } else { (read(remote, key.rkey()), get) };
        self.zcopy(rma::operation(PUT), operation, slices, limits, completion)
    }

    fn transfer_list<const PUT: bool>(
        &self,
        transfers: &[Transfer<'_, RemoteKey>],
        completion: Option<&Completion>,
    ) -> Post {
        self.0.posting.check()?;
        if transfers.is_empty() {
            return Ok(Posted::Done);
        }
        let Attributes { put, get, .. } = &self.0.shared.core.attributes;
        let (operation, limits): (fn(u64, u32) -> _, _) =
            if PUT { (write, put) } else { (read, get) };
        let mut all = vec![no_elements()[0]; transfers.len()];
        let elements = all.chunks_exact_mut(1).zip(transfers);
        let elements = elements
            .map(|(place, transfer)| self.elements(place, &[transfer.local], 1, limits.max_zcopy));
        let elements = elements.collect::<Result<Vec<_>, _>>()?;
        let room = self.0.with_queue(|pair| pair.room());
        if transfers.len() > room as usize {
            let most = self.0.shared.config.send_ring;
            if transfers.len() > most as usize {
                return Err(PostError::TooManyTransfers { limit: most });
            }
            // Completions free room, but the outstanding posts may have requested none.
            self.0.signal_last()?;
            return Err(self.0.refuse_full(transfers.len() as u32));
        }
        let list: Vec<_> = transfers
            .iter()
            .zip(elements)
            .map(|(transfer, elements)| (operation(transfer.remote, transfer.key.rkey()), elements))
            .collect();
        let posted = self
            .0
            .with_queue(|pair| pair.post_all(rma::operation(PUT), &list, completion.is_some()));
        let index = posted.map_err(|_| self.0.posting.refuse())?;
        let bytes = transfers.iter().map(|transfer| transfer.local.length).sum();
        self.0.posting.tally.posted_many(transfers.len(), bytes);
        if let Some(completion) = completion {
            self.await_done(index, Done::Notify(completion.begin()));
        }
        Ok(Posted::InProgress)
    }
}
