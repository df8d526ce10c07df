//! The requests of one peer.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll;

use super::CONNECTIONS;
use crate::listener::Counted;
use crate::outbox::{Outbox, Spare};
use crate::region::{Region, Regions};
use crate::request::{
    Action, Operation, Outcome, REQUEST_BYTES, RESPONSE_BYTES, Request, Response,
};
use crate::seal::is_altered;
use crate::socket::Socket;

/// Bytes of a put that one system call receives into the region.
const DIRECT: usize = 1 << 20;
/// The data of a get of at most so many bytes are copied; others are sent from the region.
const COPIED: usize = 8 << 10;
/// No more requests are received from a peer that leaves so many bytes of responses unread.
const UNREAD: u64 = 1 << 20;
/// Reads from one peer before those from the next.
const TURNS: usize = 8;

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) socket: Socket,
    _connection: Counted,
    pub(super) outbox: Outbox,
    /// The beginning of a request, or requests that wait until the responses before them are sent.
    held: Vec<u8>,
    /// The held requests wait: there is no room for a response, or memory that the first of them
    /// may change has yet to be sent.
    is_waiting: bool,
    /// The rest of a put whose data arrived in part.
    putting: Option<Putting>,
    /// Requests finished.
    finished: u64,
    /// The last finished operation, if there is no response to it yet.
    unacknowledged: Option<Operation>,
    /// A request was refused; no other one is executed.
    pub(super) refused: bool,
    /// The events that epoll reports.
    pub(super) watched: epoll::EventFlags,
}

#[derive(Debug)]
struct Putting {
    region: Arc<Region>,
    offset: usize,
    left: usize,
}

/// The peer has no right to the access.
#[derive(Debug)]
struct Refused;

impl Peer {
    pub(super) fn new(socket: Socket) -> Self {
        Self {
            socket,
            _connection: Counted::among(&CONNECTIONS),
            outbox: Outbox::default(),
            held: Vec::new(),
            is_waiting: false,
            putting: None,
            finished: 0,
            unacknowledged: None,
            refused: false,
            watched: epoll::EventFlags::IN,
        }
    }

    pub(super) fn watch(&mut self, epoll: &OwnedFd, number: u64) -> io::Result<()> {
        let mut wanted = epoll::EventFlags::empty();
        wanted.set(epoll::EventFlags::IN, !self.is_waiting && self.outbox.waiting() <= UNREAD);
        wanted.set(epoll::EventFlags::OUT, self.is_waiting || !self.outbox.is_empty());
        if wanted != self.watched {
            epoll::modify(epoll, &self.socket, epoll::EventData::new_u64(number), wanted)?;
            self.watched = wanted;
        }
        Ok(())
    }

    /// Does what can be done without waiting. Returns false if the connection has ended.
    pub(super) fn serve(
        &mut self,
        scratch: &mut [u8],
        regions: &Regions,
        spare: &Spare,
    ) -> io::Result<bool> {
        for _ in 0..TURNS {
            self.send(spare)?;
            if self.refused {
                if self.outbox.is_empty() {
                    self.socket.finish();
                }
                return Ok(!self.socket.drain());
            }
            if self.outbox.waiting() > UNREAD || self.is_waiting && !self.outbox.is_empty() {
                return Ok(true);
            }
            let held = self.held.len();
            scratch[..held].copy_from_slice(&self.held);
            self.held.clear();
            let filled = if self.is_waiting {
                held
            } else if let (Some(putting), 0, false) =
                (&mut self.putting, held, self.socket.is_protected())
                && putting.left > 0
                && putting.region.is_contiguous()
            {
                match putting.receive(&mut self.socket) {
                    Ok(Some(0)) => return Ok(false),
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(None) => self.refuse(spare, Operation::Put, Outcome::Refused),
                    Err(Some(error)) => return Err(error),
                }
                0
            } else {
                match self.socket.receive(&mut scratch[held..]) {
                    Ok(Some(0)) => return Ok(false),
                    Ok(Some(count)) => held + count,
                    Ok(None) => {
                        self.held.extend_from_slice(&scratch[..held]);
                        break;
                    }
                    Err(error) if is_altered(&error) => {
                        self.refuse(spare, Operation::Put, Outcome::Altered);
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            };
            self.is_waiting = false;
            self.execute_all(&scratch[..filled], regions, spare);
            self.acknowledge(spare);
        }
        self.send(spare)?;
        Ok(true)
    }

    fn send(&mut self, spare: &Spare) -> io::Result<()> {
        // If memory is freed while it is sent, the response is incomplete: the connection ends.
        match self.outbox.flush(&mut self.socket, spare) {
            Ok(_) => Ok(()),
            Err(_) => Err(ErrorKind::ConnectionAborted.into()),
        }
    }

    /// Executes the requests in `bytes`, and holds those that cannot be executed yet.
    fn execute_all(&mut self, mut bytes: &[u8], regions: &Regions, spare: &Spare) {
        while !self.refused {
            if let Some(putting) = &mut self.putting {
                match putting.store(bytes) {
                    Ok(count) => bytes = &bytes[count..],
                    Err(Refused) => return self.refuse(spare, Operation::Put, Outcome::Refused),
                }
                if putting.left > 0 {
                    return;
                }
                self.putting = None;
                self.finish(Operation::Put);
            }
            let Some((request, behind)) = bytes.split_first_chunk::<REQUEST_BYTES>() else { break };
            // If its length is unknown, what follows cannot be parsed.
            let Ok(request) = Request::parse(request) else {
                return self.refuse(spare, Operation::Put, Outcome::Refused);
            };
            // The data of an earlier get are those from before this request.
            let must_wait = request.operation() != Operation::Get && self.outbox.has_ranges();
            // The longest response, and one for the puts before it.
            if must_wait || self.outbox.room(spare, 2 * RESPONSE_BYTES + COPIED).is_none() {
                self.is_waiting = true;
                break;
            }
            if let Err(Refused) = self.execute(&request, regions, spare) {
                return self.refuse(spare, request.operation(), Outcome::Refused);
            }
            bytes = behind;
        }
        self.held.extend_from_slice(bytes);
    }

    fn finish(&mut self, operation: Operation) {
        self.finished += 1;
        self.unacknowledged = Some(operation);
    }

    fn respond(&mut self, spare: &Spare, operation: Operation, outcome: Outcome, value: u64) {
        self.unacknowledged = None;
        let response = Response { finished: self.finished, outcome, operation, value };
        // There is room: it was checked before the request was executed.
        self.outbox.push(spare, &response.to_bytes());
    }

    /// Responds to the last finished operation, and with it to those before.
    fn acknowledge(&mut self, spare: &Spare) {
        if let Some(operation) = self.unacknowledged {
            self.respond(spare, operation, Outcome::Done, 0);
        }
    }

    fn refuse(&mut self, spare: &Spare, operation: Operation, outcome: Outcome) {
        self.acknowledge(spare);
        self.finished += 1;
        self.respond(spare, operation, outcome, 0);
        self.refused = true;
        self.putting = None;
    }

    fn execute(
        &mut self,
        request: &Request,
        regions: &Regions,
        spare: &Spare,
    ) -> Result<(), Refused> {
        let region = regions.get(request.token).ok_or(Refused)?;
        let rights = region.rights();
        match request.action {
            Action::Put { length } => {
                let offset = region.offset_of(request.address, length).ok_or(Refused)?;
                if !rights.write {
                    return Err(Refused);
                }
                self.putting = Some(Putting { region, offset, left: length as usize });
            }
            Action::Get { length } => {
                let offset = region.offset_of(request.address, length).ok_or(Refused)?;
                if !rights.read {
                    return Err(Refused);
                }
                self.get(spare, region, offset, length as usize)?;
            }
            Action::Atomic { change, width, fetch, operand, compare } => {
                let offset = region.offset_of(request.address, width.into()).ok_or(Refused)?;
                if !rights.atomic {
                    return Err(Refused);
                }
                let old = region
                    .update(offset, width.into(), |old| change.apply(old, operand, compare))
                    .ok_or(Refused)?;
                self.finish(Operation::Atomic);
                if fetch {
                    self.respond(spare, Operation::Atomic, Outcome::Done, old);
                }
            }
        }
        Ok(())
    }

    fn get(
        &mut self,
        spare: &Spare,
        region: Arc<Region>,
        offset: usize,
        length: usize,
    ) -> Result<(), Refused> {
        if length <= COPIED && !region.is_contiguous() {
            return self.get_listed(spare, &region, offset, length);
        }
        let entered = region.enter().ok_or(Refused)?;
        self.finish(Operation::Get);
        self.respond(spare, Operation::Get, Outcome::Done, length as u64);
        if length > COPIED {
            drop(entered);
            self.outbox.push_range(region, offset, length);
            return Ok(());
        }
        let room = self.outbox.room(spare, length).ok_or(Refused)?;
        entered.read(offset, room).map_err(|_| Refused)?;
        self.outbox.commit(length);
        Ok(())
    }

    /// As [`Self::get`] of a few bytes that are not contiguous. Ranges of the list may be revoked
    /// one by one, so the data are read before the response is written.
    fn get_listed(
        &mut self,
        spare: &Spare,
        region: &Region,
        offset: usize,
        length: usize,
    ) -> Result<(), Refused> {
        let mut data = vec![0; length];
        region.read(offset, &mut data).map_err(|_| Refused)?;
        self.finish(Operation::Get);
        self.respond(spare, Operation::Get, Outcome::Done, length as u64);
        // There is room, as for the response.
        self.outbox.push(spare, &data);
        Ok(())
    }
}

impl Putting {
    /// Stores data from the front of `bytes`. Returns how many bytes.
    fn store(&mut self, bytes: &[u8]) -> Result<usize, Refused> {
        let count = self.left.min(bytes.len());
        self.region.write(self.offset, &bytes[..count]).map_err(|_| Refused)?;
        self.offset += count;
        self.left -= count;
        Ok(count)
    }

    /// Receives data into the region. An error of `None` means that the region is revoked.
    fn receive(&mut self, socket: &mut Socket) -> Result<Option<usize>, Option<io::Error>> {
        let count = self.region.receive(self.offset, self.left.min(DIRECT), socket)?;
        self.offset += count.unwrap_or(0);
        self.left -= count.unwrap_or(0);
        Ok(count)
    }
}
