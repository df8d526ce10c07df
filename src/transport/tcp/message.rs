//! Posting active messages.

use barewire_tcp::message::{HEADER_BYTES, Header, Kind, padded};

use super::Endpoint;
use super::connection::{Connection, Refusal};
use super::failure::PendingFailure;
use super::state::State;
use super::{COPIED, MAX_AM, MAX_AM_HEADER, SEGMENT};
use crate::base::capability::{AmBcopy, AmShort, AmShortIov, AmZcopy};
use crate::base::completion::Completion;
use crate::base::error::{Cause, Operation, PostError};
use crate::base::memory::Slice;
use crate::base::status::{Post, Posted};
use crate::transport::common::message::{MAX_HANDLERS, SHORT_HEADER};
use crate::transport::common::rma;

#[inline]
fn check_id(id: u8) -> Result<(), PostError> {
    if id < MAX_HANDLERS { Ok(()) } else { Err(PostError::UnknownHandlerId(id)) }
}

impl AmShort for Endpoint {
    // Inlined into the posts of `crate::Endpoint`, it would cost the other transports registers.
    #[inline(never)]
    fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Result<(), PostError> {
        let state = &*self.0;
        state.posting.check()?;
        check_id(id)?;
        if payload.len() > SEGMENT - SHORT_HEADER {
            return Err(PostError::too_long(payload.len(), SEGMENT - SHORT_HEADER));
        }
        let length = SHORT_HEADER + payload.len();
        state.post_message(id, length, |body| {
            let (head, body) = body.split_at_mut(SHORT_HEADER);
            head.copy_from_slice(&header.to_le_bytes());
            body.copy_from_slice(payload);
            Ok(length)
        })?;
        Ok(())
    }
}

impl AmShortIov for Endpoint {
    fn am_short_iov(&self, id: u8, header: u64, pieces: &[&[u8]]) -> Result<(), PostError> {
        let state = &*self.0;
        state.posting.check()?;
        check_id(id)?;
        let payload = pieces.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len()));
        if payload > SEGMENT - SHORT_HEADER {
            return Err(PostError::too_long(payload, SEGMENT - SHORT_HEADER));
        }
        let length = SHORT_HEADER + payload;
        state.post_message(id, length, |body| {
            let (head, mut body) = body.split_at_mut(SHORT_HEADER);
            head.copy_from_slice(&header.to_le_bytes());
            for piece in pieces {
                let (place, behind) = body.split_at_mut(piece.len());
                place.copy_from_slice(piece);
                body = behind;
            }
            Ok(length)
        })?;
        Ok(())
    }
}

impl AmBcopy for Endpoint {
    #[inline]
    fn am_bcopy(&self, id: u8, pack: impl FnOnce(&mut [u8]) -> usize) -> Result<usize, PostError> {
        let state = &*self.0;
        state.posting.check()?;
        check_id(id)?;
        let posted = state.post_message(id, SEGMENT, |body| {
            let length = pack(body);
            state.packed(length)
        });
        if posted.is_err() {
            state.after_failed_pack();
        }
        posted
    }
}

impl AmZcopy for Endpoint {
    fn am_zcopy(
        &self,
        id: u8,
        header: &[u8],
        slices: &[Slice<'_>],
        completion: Option<&Completion>,
    ) -> Post {
        let state = &*self.0;
        state.posting.check()?;
        check_id(id)?;
        if header.len() > MAX_AM_HEADER {
            return Err(PostError::too_long(header.len(), MAX_AM_HEADER));
        }
        let length = state.total(slices)?.saturating_add(header.len());
        if length > MAX_AM {
            return Err(PostError::too_long(length, MAX_AM));
        }
        if length <= COPIED && !slices.iter().any(Slice::is_of_view) {
            state.post_message(id, length, |body| {
                let (head, body) = body.split_at_mut(header.len());
                head.copy_from_slice(header);
                rma::gather(slices, body);
                Ok(length)
            })?;
            return Ok(Posted::Done);
        }
        state.send_from_memory(id, header, slices, length, completion)
    }
}

impl State {
    /// Returns the bytes of all slices, if each is of this domain.
    pub(super) fn total(&self, slices: &[Slice<'_>]) -> Result<usize, PostError> {
        if slices.len() > super::MAX_IOV {
            return Err(PostError::TooManySlices { limit: super::MAX_IOV as u32 });
        }
        let mut total = 0usize;
        for slice in slices {
            if slice.domain != self.shared.domain.tag() {
                return Err(PostError::ForeignMemory);
            }
            total = total.saturating_add(slice.length);
        }
        Ok(total)
    }

    /// Checks that the connection takes messages, and that no fence holds them back.
    #[inline]
    fn may_send(&self, connection: &Connection) -> Result<(), PostError> {
        if let Some(refusal) = connection.refusal() {
            return Err(self.refused(refusal));
        }
        if self.is_fenced() {
            return Err(self.refuse());
        }
        Ok(())
    }

    #[cold]
    fn refused(&self, refusal: Refusal) -> PostError {
        match refusal {
            Refusal::Full => self.refuse(),
            Refusal::Closed => self.find_closed(Operation::ActiveMessage),
        }
    }

    /// The endpoint is used after the peer closed the connection in order.
    #[cold]
    fn find_closed(&self, operation: Operation) -> PostError {
        self.fail(PendingFailure::new(
            operation,
            Cause::Disconnected,
            "it had closed the connection",
        ));
        PostError::EndpointFailed
    }

    /// Posts a message of the bytes that `fill` writes, at most `most`. `fill` returns how many.
    #[inline]
    fn post_message(
        &self,
        id: u8,
        most: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, PostError>,
    ) -> Result<usize, PostError> {
        // Borrowed if this is called by the `fill` of another post.
        let Ok(mut connection) = self.messages.try_borrow_mut() else { return Err(self.refuse()) };
        let connection = &mut *connection;
        self.may_send(connection)?;
        let Some(room) =
            connection.outbox_mut().room(&self.shared.spare, HEADER_BYTES + padded(most))
        else {
            return Err(self.refuse());
        };
        let (head, body) = room.split_at_mut(HEADER_BYTES);
        let length = fill(&mut body[..most])?;
        body[length..padded(length)].fill(0);
        head.copy_from_slice(&Header::message(id, length as u32).to_bytes());
        connection.outbox_mut().commit(HEADER_BYTES + padded(length));
        self.posting.tally.posted(length);
        self.push(connection, Operation::ActiveMessage);
        Ok(length)
    }

    /// Sends an empty message, so that the kernel finds out whether the peer is alive. Bytes that
    /// wait do that as well.
    pub(super) fn send_keepalive(&self) -> Result<(), PostError> {
        let Ok(mut connection) = self.messages.try_borrow_mut() else { return Ok(()) };
        let connection = &mut *connection;
        if connection.is_closed() {
            return Err(self.find_closed(Operation::Unnamed));
        }
        if connection.socket().is_some_and(|socket| socket.has_ended()) {
            self.has_left.set(true);
            return Ok(());
        }
        let nothing = Header { kind: Kind::Nothing, length: 0 }.to_bytes();
        if connection.outbox().is_empty()
            && connection.outbox_mut().push(&self.shared.spare, &nothing)
        {
            self.push(connection, Operation::Unnamed);
        }
        Ok(())
    }

    fn send_from_memory(
        &self,
        id: u8,
        header: &[u8],
        slices: &[Slice<'_>],
        length: usize,
        completion: Option<&Completion>,
    ) -> Post {
        let Ok(mut connection) = self.messages.try_borrow_mut() else { return Err(self.refuse()) };
        let connection = &mut *connection;
        self.may_send(connection)?;
        let spare = &self.shared.spare;
        if self.waiters.borrow().sends() >= self.shared.config.send_ring as usize
            || connection.outbox().is_crowded(HEADER_BYTES + header.len() + HEADER_BYTES)
        {
            return Err(self.refuse());
        }
        let ranges = self.ranges(slices)?;
        connection.outbox_mut().push(spare, &Header::message(id, length as u32).to_bytes());
        connection.outbox_mut().push(spare, header);
        for range in ranges {
            connection.outbox_mut().push_range(range.region, range.offset, range.length);
        }
        connection.outbox_mut().push(spare, &[0; HEADER_BYTES][..padded(length) - length]);
        let end = connection.outbox().posted();
        self.posting.tally.posted(length);
        let sent = connection.send(&self.shared.poller, spare, self.shared.round.get());
        if let Err(error) = sent {
            self.fail(PendingFailure::of_sending(Operation::ActiveMessage, &error));
        } else if connection.outbox().sent() >= end {
            return Ok(Posted::Done);
        }
        self.waiters.borrow_mut().add_send(end, completion.map(Completion::begin));
        self.schedule();
        Ok(Posted::InProgress)
    }
}
