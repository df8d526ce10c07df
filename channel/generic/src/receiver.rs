//! The receiving end of a channel.

use crate::error::{Error, Failure};
use crate::message::{Done, Line, Message};
use crate::port::{Connection, Region};
use crate::request::{MAX_GROUP, MAX_GROUPS, Request};

/// A buffer of a group.
#[derive(Clone, Copy, Debug)]
pub struct Target<'r> {
    /// The memory, of [`Usage::Receive`](crate::Usage::Receive).
    pub region: &'r Region,
    /// Offset of the first byte.
    pub offset: usize,
    /// Longest message in bytes that is accepted.
    pub length: usize,
    /// The tag that the send must have.
    pub tag: u32,
}

/// The receiving end of a channel: announces buffers, into which the sender writes.
///
/// Dropping it closes the channel.
#[derive(Debug)]
#[must_use = "dropping it closes the channel"]
pub struct Receiver {
    connection: Connection,
    /// The next group, from 0.
    group: u64,
    slots: Vec<Option<Slot>>,
    failure: Option<Failure>,
}

/// A group of buffers.
#[derive(Debug)]
struct Slot {
    request: Request,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    room: usize,
    /// The length of the message, once it is complete; an error if it was too long.
    size: Option<Result<usize, Error>>,
    /// Keeps the memory registered.
    _region: Region,
}

impl Receiver {
    pub(crate) fn new(connection: Connection) -> Self {
        let slots = std::iter::repeat_with(|| None).take(MAX_GROUPS).collect();
        Self { connection, group: 0, slots, failure: None }
    }

    /// Announces `length` bytes at `offset` of `region` for the next send with `tag`. Returns `None`
    /// if 32 requests are outstanding: test requests, then call again. The region stays registered
    /// until the request is complete.
    ///
    /// # Errors
    /// Those of [`Self::receive_group`].
    pub fn receive(
        &mut self,
        region: &Region,
        offset: usize,
        length: usize,
        tag: u32,
    ) -> Result<Option<Request>, Error> {
        self.receive_group(&[Target { region, offset, length, tag }])
    }

    /// Announces a group of 1 to 8 buffers as one request. Each gets one message: the first without
    /// one whose tag is that of the send. The next group is used when every buffer of this one has
    /// its send.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::Foreign`], [`Error::SendOnly`] and [`Error::Group`], without
    /// effect; [`Error::Failed`].
    pub fn receive_group(&mut self, buffers: &[Target<'_>]) -> Result<Option<Request>, Error> {
        if buffers.is_empty() || buffers.len() > MAX_GROUP {
            return Err(Error::Group(buffers.len()));
        }
        for buffer in buffers {
            buffer.region.admit(self.connection.port(), buffer.offset, buffer.length)?;
            if !buffer.region.receives() {
                return Err(Error::SendOnly);
            }
        }
        let request = Request::new(self.group, 0);
        if self.failure.is_some() || self.slots[request.group()].is_some() {
            self.progress();
            return match &self.failure {
                Some(failure) => Err(Error::Failed(failure.clone())),
                None => Ok(None),
            };
        }
        let member = |buffer: &Target<'_>| Member {
            room: buffer.length,
            size: None,
            _region: buffer.region.clone(),
        };
        let members = buffers.iter().map(member).collect();
        self.slots[request.group()] = Some(Slot { request, members });
        self.group = self.group.wrapping_add(1);
        for (member, buffer) in (0..).zip(buffers) {
            let line = Line {
                group: request.number(),
                address: buffer.region.memory().address().wrapping_add(buffer.offset as u64),
                length: buffer.length as u64,
                tag: buffer.tag,
                count: buffers.len() as u8,
                member,
                key: buffer.region.key().to_vec(),
            };
            if let Err(failure) = self.connection.send(Message::Line(line)) {
                return Err(self.fail(failure));
            }
        }
        Ok(Some(request))
    }

    /// Returns the lengths once `request` is complete, in the order of the buffers: all of its
    /// messages are in memory. Returns `None` before.
    ///
    /// # Errors
    /// [`Error::Refused`] if a send was longer than its buffer, which completes the request;
    /// [`Error::UnknownRequest`]; [`Error::Failed`].
    pub fn test(&mut self, request: Request) -> Result<Option<Vec<usize>>, Error> {
        for round in 0..2 {
            let place = &mut self.slots[request.group()];
            let Some(slot) = place.as_mut().filter(|slot| slot.request == request) else {
                return Err(Error::UnknownRequest);
            };
            if slot.members.iter().all(|member| member.size.is_some()) {
                let sizes = slot.members.drain(..).filter_map(|member| member.size).collect();
                *place = None;
                return Result::<Vec<usize>, Error>::map(sizes, Some);
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

    /// Delivers messages and announces what waits. The other calls do so when they find nothing.
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
                Message::Done(done) => self.arrived(done)?,
                Message::Close => return Err(Failure::Closed),
                Message::Line(_) => return Err(Failure::Protocol("a line to the receiver")),
            }
        }
        self.connection.flush()?;
        self.connection.check()
    }

    fn arrived(&mut self, done: Done) -> Result<(), Failure> {
        let request = Request::new(done.group, 0);
        let slot = self.slots[request.group()].as_mut();
        let member = slot
            .filter(|slot| slot.request == request)
            .and_then(|slot| slot.members.get_mut(usize::from(done.member)))
            .filter(|member| member.size.is_none())
            .ok_or(Failure::Protocol("a DONE of a buffer that was not announced"))?;
        let room = member.room as u64;
        if done.size > room {
            return Err(Failure::Protocol("a message that is longer than its buffer"));
        }
        member.size = Some(if done.refused {
            Err(Error::Refused { member: done.member, room })
        } else {
            Ok(done.size as usize)
        });
        Ok(())
    }

    /// Records a failure, unless there is one already. Returns the first.
    fn fail(&mut self, failure: Failure) -> Error {
        Error::Failed(self.failure.get_or_insert(failure).clone())
    }
}
