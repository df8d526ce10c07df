//! Puts and gets.

use std::collections::VecDeque;

use barewire_tcp::connector::ConnectFailure;
use barewire_tcp::handshake::{Claim, Purpose};
use barewire_tcp::request::{Action, REQUEST_BYTES, Request};

use super::connection::Connection;
use super::domain::RemoteKey;
use super::endpoint::Endpoint;
use super::memory::{Done, Range, RemoteMemoryClient};
use super::message::gather;
use super::poller::Token;
use super::state::{PendingFailure, State};
use super::{COPIED, MAX_ZCOPY, SEGMENT};
use crate::capability::{GetBcopy, GetZcopy, Lists, PutBcopy, PutShort, PutZcopy};
use crate::completion::{Completion, Unpack};
use crate::error::{Operation, PostError};
use crate::memory::{Slice, Transfer};
use crate::status::{Post, Posted};

/// Numbers of interface and endpoint that a connection to memory has no use for.
const NOBODY: u64 = 0;

impl Endpoint {
    fn list(
        &self,
        transfers: &[Transfer<'_, RemoteKey>],
        completion: Option<&Completion>,
        operation: Operation,
        mut run: impl FnMut(
            &State,
            &mut RemoteMemoryClient,
            &Transfer<'_, RemoteKey>,
            usize,
            Option<&Completion>,
        ) -> Post,
    ) -> Post {
        let state = &*self.0;
        state.gate.check()?;
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
        state.with_memory(last.key, transfers.len(), operation, |state, memory| {
            let local: Vec<Slice<'_>> = transfers.iter().map(|transfer| transfer.local).collect();
            // Every slice is alive before the first is posted.
            state.ranges(&local)?;
            // Each is copied if it is short, and else takes a request's bytes.
            if memory.connection.outbox().is_crowded(transfers.len() * (REQUEST_BYTES + COPIED)) {
                return Err(state.refuse());
            }
            for transfer in others {
                let _ = run(state, memory, transfer, transfer.local.length, None)?;
            }
            run(state, memory, last, last.local.length, completion)
        })
    }
}

impl PutShort for Endpoint {
    fn put_short(&self, payload: &[u8], remote: u64, key: &RemoteKey) -> Post {
        self.0.gate.check()?;
        if payload.len() > SEGMENT {
            return Err(PostError::too_long(payload.len(), SEGMENT));
        }
        self.0.put_copied(payload.len(), remote, key, |place| {
            place.copy_from_slice(payload);
            Ok(payload.len())
        })?;
        Ok(Posted::Done)
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
        state.gate.check()?;
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

impl PutZcopy for Endpoint {
    fn put_zcopy(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        let state = &*self.0;
        state.gate.check()?;
        let length = state.limited(slices)?;
        state.with_memory(key, 1, Operation::Put, |state, memory| {
            state.put(memory, slices, length, remote, key, completion)
        })
    }
}

impl Lists for Endpoint {
    fn put_list(&self, transfers: &[Transfer<'_, RemoteKey>], completion: Option<&Completion>) -> Post {
        self.list(transfers, completion, Operation::Put, |state, memory, transfer, length, completion| {
            let local = [transfer.local];
            state.put(memory, &local, length, transfer.remote, transfer.key, completion)
        })
    }

    fn get_list(&self, transfers: &[Transfer<'_, RemoteKey>], completion: Option<&Completion>) -> Post {
        self.list(transfers, completion, Operation::Get, |state, memory, transfer, length, completion| {
            let local = [transfer.local];
            state.get(memory, &local, length, transfer.remote, transfer.key, completion)
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
        state.gate.check()?;
        if length > SEGMENT {
            return Err(PostError::too_long(length, SEGMENT));
        }
        state.with_memory(key, 1, Operation::Get, |state, memory| {
            let action = Action::Get { length: length as u64 };
            let done = Done::Unpack { unpack: unpack.clone(), length, completion: completion.cloned() };
            state.request(memory, Request { token: key.token, address: remote, action }, Some(done))?;
            Ok(Posted::InProgress)
        })
    }
}

impl GetZcopy for Endpoint {
    fn get_zcopy(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        let state = &*self.0;
        state.gate.check()?;
        let length = state.limited(slices)?;
        state.with_memory(key, 1, Operation::Get, |state, memory| {
            state.get(memory, slices, length, remote, key, completion)
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

    /// The places of slices. A slice borrows its memory, so it is there.
    pub(super) fn ranges(&self, slices: &[Slice<'_>]) -> Result<VecDeque<Range>, PostError> {
        let filled = slices.iter().filter(|slice| slice.length > 0);
        let range = |slice: &Slice<'_>| {
            let region = self.shared.domain.region(slice.key).ok_or(PostError::ForeignMemory)?;
            let offset = (slice.address - slice.memory.address()) as usize;
            Ok(Range { region, offset, length: slice.length })
        };
        filled.map(range).collect()
    }

    /// Runs `run` with the connection to the memory that `key` is for, which is made if there is none yet, if so many requests may be
    /// posted; then sends what it posted.
    pub(super) fn with_memory<T>(
        &self,
        key: &RemoteKey,
        requests: usize,
        operation: Operation,
        run: impl FnOnce(&Self, &mut RemoteMemoryClient) -> Result<T, PostError>,
    ) -> Result<T, PostError> {
        if key.port == 0 {
            // Its domain could not open any memory to peers.
            return Err(PostError::AccessDenied);
        }
        // Borrowed if this is called by a function that packs for another post.
        let Ok(mut guard) = self.memory.try_borrow_mut() else { return Err(self.refuse()) };
        let memory = match &mut *guard {
            Some(memory) => memory,
            none => none.insert(self.reach_memory(key, operation)?),
        };
        if !memory.serves(key) {
            return Err(PostError::ForeignKey);
        }
        if memory.room() < requests as u64 {
            return Err(self.refuse());
        }
        let value = run(self, memory)?;
        self.push(&mut memory.connection, operation);
        Ok(value)
    }

    #[cold]
    fn reach_memory(
        &self,
        key: &RemoteKey,
        operation: Operation,
    ) -> Result<Box<RemoteMemoryClient>, PostError> {
        let peer = self.peer.get().ok_or(PostError::NotConnected)?;
        let claim = Claim {
            purpose: Purpose::Memory,
            service: key.domain,
            endpoint: NOBODY,
            from_service: self.own.interface,
            from_endpoint: self.own.endpoint,
        };
        let mut address = peer.address;
        address.set_port(key.port);
        let mut connection = Connection::new(Token::Memory(self.index));
        match self.shared.connector(address, claim) {
            Ok(connector) => connection.connect(connector),
            Err(error) => {
                self.fail(PendingFailure {
                    operation,
                    ..PendingFailure::of_connecting(&ConnectFailure::Io(error))
                });
                return Err(PostError::EndpointFailed);
            }
        }
        self.shared.connecting.borrow_mut().push(self.index);
        self.shared.poller.wake();
        Ok(Box::new(RemoteMemoryClient::new(connection, key, self.shared.config.send_ring.into())))
    }

    /// Posts a request without data. `done` says what to do when it is finished, if anything.
    pub(super) fn request(
        &self,
        memory: &mut RemoteMemoryClient,
        request: Request,
        done: Option<Done>,
    ) -> Result<(), PostError> {
        if !memory.connection.outbox_mut().push(&self.shared.spare, &request.to_bytes()) {
            return Err(self.refuse());
        }
        self.gate.tally.posted(match request.action {
            Action::Put { length } | Action::Get { length } => length as usize,
            Action::Atomic { width, .. } => width.into(),
        });
        memory.note(done);
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
            let length = state.append_put(memory, most, remote, key, fill)?;
            state.gate.tally.posted(length);
            memory.note(None);
            Ok(length)
        })
    }

    fn append_put(
        &self,
        memory: &mut RemoteMemoryClient,
        most: usize,
        remote: u64,
        key: &RemoteKey,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, PostError>,
    ) -> Result<usize, PostError> {
        let outbox = memory.connection.outbox_mut();
        let Some(room) = outbox.room(&self.shared.spare, REQUEST_BYTES + most) else {
            return Err(self.refuse());
        };
        let (head, place) = room.split_at_mut(REQUEST_BYTES);
        let length = fill(&mut place[..most])?;
        let action = Action::Put { length: length as u64 };
        head.copy_from_slice(&Request { token: key.token, address: remote, action }.to_bytes());
        outbox.commit(REQUEST_BYTES + length);
        Ok(length)
    }

    fn put(
        &self,
        memory: &mut RemoteMemoryClient,
        slices: &[Slice<'_>],
        length: usize,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        if length <= COPIED {
            self.append_put(memory, length, remote, key, |place| {
                gather(slices, place);
                Ok(length)
            })?;
        } else {
            let ranges = self.ranges(slices)?;
            let action = Action::Put { length: length as u64 };
            let request = Request { token: key.token, address: remote, action };
            if !memory.connection.outbox_mut().push(&self.shared.spare, &request.to_bytes()) {
                return Err(self.refuse());
            }
            for range in ranges {
                memory.connection.outbox_mut().push_range(range.region, range.offset, range.length);
            }
        }
        self.gate.tally.posted(length);
        memory.note(completion.map(|completion| Done::Notify(Some(completion.clone()))));
        Ok(Posted::InProgress)
    }

    fn get(
        &self,
        memory: &mut RemoteMemoryClient,
        slices: &[Slice<'_>],
        length: usize,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        let action = Action::Get { length: length as u64 };
        let done = Done::Scatter { ranges: self.ranges(slices)?, length, completion: completion.cloned() };
        self.request(memory, Request { token: key.token, address: remote, action }, Some(done))?;
        Ok(Posted::InProgress)
    }
}
