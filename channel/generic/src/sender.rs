//! The sending end of a channel.

use std::collections::VecDeque;

use barewire::{Completion, PostError, RemoteKey};

use crate::error::{Error, Failure};
use crate::message::{Done, Line, Message};
use crate::port::{Connection, Region};
use crate::request::{MAX_GROUP, MAX_GROUPS, Request};

/// The sending end of a channel: writes into the buffers that the receiver announces.
///
/// Dropping it closes the channel: test all requests first.
#[derive(Debug)]
#[must_use = "dropping it closes the channel"]
pub struct Sender {
    connection: Connection,
    /// The group that the next send belongs to, from 0.
    group: u64,
    /// Its buffers that have a send, as bits.
    taken: u8,
    /// Lines of groups from the current one on, by group and member.
    lines: Vec<[Option<Line>; MAX_GROUP]>,
    slots: Vec<Option<Slot>>,
    /// Messages that are not written completely, in their order.
    outgoing: VecDeque<Outgoing>,
    failure: Option<Failure>,
}

/// A send request.
#[derive(Debug)]
struct Slot {
    request: Request,
    length: usize,
    /// Whether everything is posted.
    posted: bool,
    /// Counts the writes.
    written: Completion,
    /// Keeps the memory registered.
    _region: Region,
}

/// A message that has to be written.
#[derive(Debug)]
struct Outgoing {
    /// The request; `None` for a send that was too long.
    slot: Option<usize>,
    source: Option<(Region, usize)>,
    key: Option<RemoteKey>,
    address: u64,
    length: usize,
    posted: usize,
    done: Done,
}

impl Sender {
    pub(crate) fn new(connection: Connection) -> Self {
        Self {
            connection,
            group: 0,
            taken: 0,
            lines: vec![[const { None }; MAX_GROUP]; MAX_GROUPS],
            slots: std::iter::repeat_with(|| None).take(MAX_GROUP * MAX_GROUPS).collect(),
            outgoing: VecDeque::new(),
            failure: None,
        }
    }

    /// Sends `length` bytes at `offset` of `region` to the next buffer with `tag` of the group that
    /// the receiver announced first. Returns `None` if there is no such buffer yet, or 32 groups
    /// are outstanding: call again later with the same arguments. The region stays registered until
    /// the request is complete; writing to it before changes what arrives.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] and [`Error::Foreign`], without effect; [`Error::Overlong`], which uses
    /// up the buffer; [`Error::Failed`].
    pub fn send(
        &mut self,
        region: &Region,
        offset: usize,
        length: usize,
        tag: u32,
    ) -> Result<Option<Request>, Error> {
        if self.find(tag).is_none() {
            self.progress();
        }
        let Some((member, count)) = self.find(tag) else {
            return match &self.failure {
                Some(failure) => Err(Error::Failed(failure.clone())),
                None => Ok(None),
            };
        };
        region.admit(self.connection.port(), offset, length)?;
        let request = Request::new(self.group, member);
        let slot = request.slot();
        if self.slots[slot].is_some() {
            return Ok(None);
        }
        let Some(line) = self.lines[request.group()][usize::from(member)].take() else {
            return Ok(None);
        };
        let (size, group) = (length as u64, self.group);
        self.take(member, count);
        let refused = size > line.length;
        let done = Done { group, size: if refused { 0 } else { size }, member, refused };
        let mut outgoing = Outgoing {
            slot: None,
            source: None,
            key: None,
            address: line.address,
            length: 0,
            posted: 0,
            done,
        };
        if refused {
            self.outgoing.push_back(outgoing);
            self.progress();
            return Err(Error::Overlong { length: size, room: line.length });
        }
        if length > 0 {
            match self.connection.port().unpack(&line.key) {
                Ok(key) => outgoing.key = Some(key),
                Err(failure) => return Err(self.fail(failure)),
            }
        }
        outgoing.slot = Some(slot);
        outgoing.length = length;
        outgoing.source = Some((region.clone(), offset));
        let written = Completion::counter();
        self.slots[slot] =
            Some(Slot { request, length, posted: false, written, _region: region.clone() });
        self.outgoing.push_back(outgoing);
        if let Err(failure) = self.post() {
            return Err(self.fail(failure));
        }
        Ok(Some(request))
    }

    /// Returns the length of the message once `request` is complete: the region may be changed.
    /// Returns `None` before.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::Failed`].
    pub fn test(&mut self, request: Request) -> Result<Option<usize>, Error> {
        for round in 0..2 {
            let place = &mut self.slots[request.slot()];
            let Some(slot) = place.as_ref().filter(|slot| slot.request == request) else {
                return Err(Error::UnknownRequest);
            };
            if slot.posted && slot.written.pending() == 0 {
                let (status, length) = (slot.written.status(), slot.length);
                *place = None;
                return match status {
                    Ok(()) => Ok(Some(length)),
                    Err(error) => Err(self.fail(error.into())),
                };
            }
            if round == 0 {
                self.progress();
            }
        }
        match &self.failure {
            Some(failure) => Err(Error::Failed(failure.clone())),
            None => Ok(None),
        }
    }

    /// Delivers messages and writes what waits. The other calls do so when they find nothing.
    pub fn progress(&mut self) {
        self.connection.port().progress();
        if self.failure.is_none()
            && let Err(failure) = self.advance()
        {
            self.fail(failure);
        }
    }

    fn advance(&mut self) -> Result<(), Failure> {
        while let Some(message) = self.connection.receive()? {
            match message {
                Message::Line(line) => self.announced(line)?,
                Message::Close => return Err(Failure::Closed),
                Message::Done(_) => return Err(Failure::Protocol("a DONE to the sender")),
            }
        }
        self.post()?;
        self.connection.check()
    }

    /// Stores a line of the receiver.
    fn announced(&mut self, line: Line) -> Result<(), Failure> {
        let ahead = line.group.wrapping_sub(self.group);
        let count = usize::from(line.count);
        if ahead >= MAX_GROUPS as u64 || !(1..=MAX_GROUP).contains(&count) {
            return Err(Failure::Protocol("a line that is out of turn or malformed"));
        }
        let lines = &mut self.lines[line.group as usize % MAX_GROUPS];
        let contradicts = lines.iter().flatten().any(|other| other.count != line.count);
        let is_taken = ahead == 0 && self.taken >> (line.member & 7) & 1 != 0;
        match lines.get_mut(usize::from(line.member)) {
            Some(place @ None) if line.member < line.count && !contradicts && !is_taken => {
                *place = Some(line);
                Ok(())
            }
            _ => Err(Failure::Protocol("lines of one group that contradict each other")),
        }
    }

    /// The first buffer of the group with `tag` and without a send, and the size of the group.
    /// Buffers with equal tags are used in their order, so the search ends at one that is not
    /// announced yet.
    fn find(&self, tag: u32) -> Option<(u8, u8)> {
        let lines = &self.lines[self.group as usize % MAX_GROUPS];
        let untaken = (0..).zip(lines).filter(|(member, _)| self.taken >> member & 1 == 0);
        for (member, line) in untaken {
            let line = line.as_ref()?;
            if line.tag == tag {
                return Some((member, line.count));
            }
        }
        None
    }

    /// Notes that a buffer of the group has its send.
    fn take(&mut self, member: u8, count: u8) {
        self.taken |= 1 << member;
        if self.taken.count_ones() == u32::from(count) {
            self.taken = 0;
            self.group = self.group.wrapping_add(1);
        }
    }

    /// Writes what waits, as far as there is room.
    fn post(&mut self) -> Result<(), Failure> {
        let most = self.connection.port().most_at_once().max(1);
        while let Some(front) = self.outgoing.front_mut() {
            let slot = front.slot.and_then(|slot| self.slots[slot].as_mut());
            while front.posted < front.length
                && let (Some(slot), Some((region, offset)), Some(key)) =
                    (&slot, &front.source, &front.key)
            {
                let bytes = (front.length - front.posted).min(most);
                let slice = region.memory().slice(offset + front.posted, bytes);
                let slice = slice.map_err(|error| Failure::Lost(error.to_string()))?;
                let remote = front.address.wrapping_add(front.posted as u64);
                let endpoint = &self.connection.endpoint;
                match endpoint.put_zcopy(&[slice], remote, key, Some(&slot.written)) {
                    Ok(_) => front.posted += bytes,
                    Err(PostError::NoResource) => return Ok(()),
                    Err(error) => return Err(self.connection.failure(error)),
                }
            }
            if !self.connection.flush()? {
                return Ok(());
            }
            // The fence makes DONE arrive after the data.
            self.connection.endpoint.fence().map_err(Failure::from)?;
            if let Some(slot) = slot {
                slot.posted = true;
            }
            let done = Message::Done(front.done);
            self.outgoing.pop_front();
            self.connection.send(done)?;
        }
        self.connection.flush().map(drop)
    }

    /// Records a failure, unless there is one already. Returns the first.
    fn fail(&mut self, failure: Failure) -> Error {
        Error::Failed(self.failure.get_or_insert(failure).clone())
    }
}
