//! Messages of peers.

use thiserror::Error;

use super::super::message::{
    Header, KeyList, Kind, MAX_ANNOUNCEMENT, Message, MessageError, Outcome, Place,
};
use super::super::slab::Key;
use super::matching::Expected;
use super::offload::{self, List};
use super::{
    ANNOUNCED, Announced, Envelope, Kept, Link, MAX_ANNOUNCED, Machine, Payload, Stored, TagError,
};

/// A message that the protocol does not allow. The link fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Violation {
    /// The bytes are no message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A message of a link that does not exist. It fails no link.
    #[error("a message of a link that does not exist")]
    Stray,
    /// A message is missing or repeated.
    #[error("message {got} arrived in place of message {expected}")]
    Number {
        /// The number in the header.
        got: u8,
        /// The number of the next message.
        expected: u8,
    },
    /// More eager messages or bytes than the window has room for.
    #[error("an eager message of {0} bytes exceeds the window")]
    Window(usize),
    /// More announcements than allowed, or one twice.
    #[error("more than {MAX_ANNOUNCED} announcements without an answer, or the same one twice")]
    Announcements,
    /// A message about a request that does not exist on this link, or does not wait for it.
    #[error("a message about a request that does not wait for it")]
    Request,
    /// A length that does not fit the request.
    #[error("a length that does not fit the request")]
    Length,
}

impl<B: Payload, L: List<Expected<B>>> Machine<B, L> {
    /// Takes a message.
    ///
    /// # Errors
    /// [`Violation`]: the link of the message has failed with [`TagError::Protocol`]. Bytes without
    /// a valid header fail no link, and neither does [`Violation::Stray`].
    pub fn arrived(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        self.next_arrived(bytes).unwrap_or_else(|| self.other_arrived(bytes))
    }

    /// As [`arrived`](Self::arrived), if the message is the next of its link, eager and without
    /// credit, as most are. Otherwise nothing happens.
    #[inline(always)]
    pub fn next_arrived(&mut self, bytes: &[u8]) -> Option<Result<(), Violation>> {
        let (tag, rest) = bytes.split_first_chunk()?;
        let (front, payload) = rest.split_first_chunk()?;
        let front = u64::from_le_bytes(*front);
        let (link, entry) = self.links.at_mut(self.numbers.slot(Header::link(front))?)?;
        if entry.next != front || entry.failure.is_some() {
            return None;
        }
        entry.next = Header::next(front);
        let taken = self.take_eager(link, u64::from_le_bytes(*tag), payload, None, false, false);
        Some(taken.inspect_err(|_| self.fail(link, TagError::Protocol)))
    }

    fn other_arrived(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let (header, body) = Header::parse(bytes)?;
        let link = self.numbers.find(&self.links, header.link);
        let Some((link, _)) = link.filter(|(_, entry)| entry.failure.is_none()) else {
            self.counters.stray += 1;
            return Err(Violation::Stray);
        };
        let result = self.dispatch(link, &header, body);
        result.inspect_err(|_| self.fail(link, TagError::Protocol))
    }

    /// The link of a tagged message, which arrived on its queue pair.
    fn find_tagged(&self, immediate: u32, queue_pair: u32) -> Option<Key> {
        let (link, entry) = self.numbers.find_short(&self.links, immediate & !ANNOUNCED)?;
        (entry.source == Some(queue_pair) && entry.failure.is_none()).then_some(link)
    }

    fn dispatch(&mut self, link: Key, header: &Header, body: &[u8]) -> Result<(), Violation> {
        let message = Message::parse(header.kind, body)?;
        let Some(entry) = self.links.get_mut(link) else { return Ok(()) };
        let may_send = entry.note(header)?;
        let (tag, request) = (header.word, Key::from_u64(header.word));
        match message {
            Message::Eager { payload } => {
                return self.eager_arrived(link, tag, payload, None, may_send, false);
            }
            Message::Synchronous { request, payload } => {
                return self.eager_arrived(link, tag, payload, Some(request), may_send, false);
            }
            _ if may_send => self.make_ready(link),
            _ => {}
        }
        match message {
            Message::Announce { request, length, place } => {
                let announced = Announced::new(link, request, length, place)?;
                self.announcement_arrived(header.word, announced, false)
            }
            Message::Request { request: receiver, length, place } => {
                self.send_requested(link, request, receiver, length, place.address, place.into())
            }
            Message::Fragment { offset, payload } => {
                self.fragment_arrived(link, request, offset, payload)
            }
            Message::Put { outcome } => self.put_arrived(link, request, outcome),
            Message::Finished { outcome } => self.send_finished(link, request, outcome),
            Message::Withdraw => {
                self.withdrawn(link, header.word);
                Ok(())
            }
            // The first two were handled before.
            Message::Eager { .. } | Message::Synchronous { .. } | Message::Credit => Ok(()),
        }
    }

    #[inline(never)]
    fn eager_arrived(
        &mut self,
        link: Key,
        tag: u64,
        payload: &[u8],
        acknowledge: Option<u64>,
        may_send: bool,
        of_device: bool,
    ) -> Result<(), Violation> {
        self.take_eager(link, tag, payload, acknowledge, may_send, of_device)
    }

    /// `may_send` if the message has brought credit, `of_device` if it came as a tagged message,
    /// which the device has not matched.
    #[inline(always)]
    fn take_eager(
        &mut self,
        link: Key,
        tag: u64,
        payload: &[u8],
        acknowledge: Option<u64>,
        may_send: bool,
        of_device: bool,
    ) -> Result<(), Violation> {
        let Some(entry) = self.links.get_mut(link) else { return Ok(()) };
        entry.admit(payload.len())?;
        let used_up = entry.is_used_up();
        // With a device, no receive waits here.
        if let Some((request, receive)) = self.matching.requests.arrive(tag) {
            let may_send = entry.release(payload.len()) || may_send;
            if receive.deliver(tag, link, payload, &mut self.wakers) {
                self.matching.requests.discard(request);
            }
            if let Some(sender) = acknowledge {
                self.finish_sender(link, sender, Outcome::Done);
            }
            if may_send {
                self.make_ready(link);
            }
        } else {
            if may_send {
                self.make_ready(link);
            }
            self.keep_eager(link, tag, payload, acknowledge, of_device);
        }
        if used_up {
            self.note_used_up(link);
        }
        Ok(())
    }

    #[inline(never)]
    fn keep_eager(
        &mut self,
        link: Key,
        tag: u64,
        payload: &[u8],
        acknowledge: Option<u64>,
        of_device: bool,
    ) {
        self.counters.unexpected_messages += 1;
        self.counters.unexpected_bytes += payload.len();
        let message = Kept::Eager { link, payload: Stored::from_slice(payload), acknowledge };
        let Some(shared) = &mut self.matching.device else {
            self.matching.requests.keep(tag, message);
            return;
        };
        shared.arrive(of_device, tag, message);
        self.settle();
    }

    fn announcement_arrived(
        &mut self,
        tag: u64,
        announced: Announced,
        of_device: bool,
    ) -> Result<(), Violation> {
        let (link, sender) = (announced.link, announced.request);
        let Some(entry) = self.links.get(link) else { return Ok(()) };
        let kept = &entry.kept_announcements;
        if kept.contains_key(&sender) {
            return Err(Violation::Announcements);
        }
        let is_one_too_many = kept.len() >= usize::from(MAX_ANNOUNCED);
        // With a device, no receive waits here.
        if let Some((request, _)) = self.matching.requests.arrive(tag) {
            self.begin(request, tag, announced);
            return Ok(());
        }
        if is_one_too_many {
            return Err(Violation::Announcements);
        }
        let message = Kept::Announced(announced);
        let key = match &mut self.matching.device {
            None => Some(self.matching.requests.keep(tag, message)),
            Some(shared) => shared.arrive(of_device, tag, message),
        };
        self.counters.announced += 1;
        if let Some(entry) = self.links.get_mut(link) {
            entry.kept_announcements.insert(sender, key);
        }
        self.note_used_up(link);
        self.settle();
        Ok(())
    }
}

impl Link {
    /// Takes number and credit of a header. Returns whether the credit has changed, so that there may
    /// be something to send.
    #[inline]
    fn note(&mut self, header: &Header) -> Result<bool, Violation> {
        let (got, expected) = (header.number, Header::number(self.next));
        if got != expected {
            return Err(Violation::Number { got, expected });
        }
        self.next = Header::next(self.next);
        let Some(credit) = header.credit else { return Ok(false) };
        // A message of this kind leaves when there is something to report.
        let changes = self.granted != credit || header.kind == Kind::Credit;
        self.granted = credit;
        self.held &= !changes;
        Ok(changes)
    }

    /// Counts an eager message of the peer against its window.
    #[inline]
    fn admit(&mut self, length: usize) -> Result<(), Violation> {
        if !self.received.has_room(self.allowed, length) {
            return Err(Violation::Window(length));
        }
        self.received.add(length);
        Ok(())
    }
}

impl Announced {
    fn new(link: Key, request: u64, length: u64, place: Place<'_>) -> Result<Self, Violation> {
        let length = usize::try_from(length).map_err(|_| Violation::Length)?;
        Ok(Self { link, request, length, address: place.address, keys: KeyList::from(place) })
    }
}

/// Tagged messages, and what the device reports about the receives in its list.
impl<B: Payload, L: List<Expected<B>>> Machine<B, L> {
    /// A tagged message has matched no receive in the list.
    ///
    /// # Errors
    /// As [`Self::arrived`].
    pub fn unexpected(
        &mut self,
        queue_pair: u32,
        tag: u64,
        immediate: u32,
        body: &[u8],
    ) -> Result<(), Violation> {
        let Some(link) = self.find_tagged(immediate, queue_pair) else {
            self.counters.stray += 1;
            return Ok(());
        };
        let result = if immediate & ANNOUNCED == 0 {
            self.eager_arrived(link, tag, body, None, false, true)
        } else {
            announced_by(link, body)
                .and_then(|announced| self.announcement_arrived(tag, announced, true))
        };
        if result.is_err() {
            self.fail(link, TagError::Protocol);
        }
        result
    }

    /// A tagged message has matched the receive of `entry`. Its data is on its way.
    pub fn entry_matched(&mut self, entry: u16) {
        if let Some(request) =
            self.matching.device.as_mut().and_then(|shared| shared.matched(entry))
        {
            self.set_arriving(request);
        }
        self.settle();
    }

    /// The data of a tagged message is in the buffer of the receive of `entry`, which has left the
    /// list.
    ///
    /// # Errors
    /// As [`Self::arrived`]. The receive has ended with an error.
    pub fn entry_received(
        &mut self,
        entry: u16,
        queue_pair: u32,
        tag: u64,
        immediate: u32,
        length: usize,
    ) -> Result<(), Violation> {
        let request = self.matching.device.as_mut().and_then(|shared| shared.end(entry));
        self.fill();
        let Some(request) = request else { return Ok(()) };
        self.counters.matched += 1;
        let Some(link) = self.find_tagged(immediate, queue_pair) else {
            // The link was closed, or has failed, while the message was under way; or it is a
            // stranger's.
            self.counters.stray += 1;
            self.complete(request, Err(TagError::Closed));
            return Ok(());
        };
        let result = self.take_from_buffer(request, link, tag, immediate, length);
        if result.is_err() {
            self.complete(request, Err(TagError::Protocol));
            self.fail(link, TagError::Protocol);
        }
        result
    }

    fn take_from_buffer(
        &mut self,
        request: Key,
        link: Key,
        tag: u64,
        immediate: u32,
        length: usize,
    ) -> Result<(), Violation> {
        if immediate & ANNOUNCED == 0 {
            if let Some(entry) = self.links.get_mut(link) {
                entry.admit(length)?;
            }
            self.consumed(link, length, None);
            self.complete(request, Ok(Envelope { tag, length, link }));
            return Ok(());
        }
        let mut body = vec![0; length.min(MAX_ANNOUNCEMENT)];
        self.read_buffer(request, &mut body);
        let announced = announced_by(link, &body)?;
        let is_kept = self
            .links
            .get(link)
            .is_some_and(|entry| entry.kept_announcements.contains_key(&announced.request));
        if is_kept {
            return Err(Violation::Announcements);
        }
        self.begin(request, tag, announced);
        Ok(())
    }

    /// The receive of `entry` has left the list without a message: because it was cancelled, if
    /// there is no `error`.
    pub fn entry_ended(&mut self, entry: u16, error: Option<TagError>) {
        let ended = self.matching.device.as_mut().and_then(|shared| match error {
            None => shared.removed(entry),
            Some(_) => shared.end(entry),
        });
        self.fill();
        if let Some(request) = ended {
            self.complete(request, Err(error.unwrap_or(TagError::Closed)));
        }
    }

    /// The list has room again.
    fn fill(&mut self) {
        if let Some(shared) = self.matching.device.as_mut() {
            shared.fill();
        }
        self.settle();
    }

    /// A message that waited for the removal of a receive waits for another one.
    fn keep_again(&mut self, key: Key) {
        let Some((_, Kept::Announced(announced))) = self.matching.message(key) else { return };
        let (link, sender) = (announced.link, announced.request);
        match self.links.get_mut(link) {
            Some(entry) if entry.failure.is_none() => {
                entry.kept_announcements.insert(sender, Some(key));
            }
            _ => {
                self.matching.take(key);
                self.counters.announced -= 1;
            }
        }
    }

    /// Passes messages to the receives that have got them, and ends cancelled receives.
    pub(super) fn settle(&mut self) {
        while let Some(outcome) = self.matching.outcome() {
            match outcome {
                offload::Outcome::Matched(expected, (tag, kept)) => {
                    self.accept(expected.request, tag, kept);
                }
                offload::Outcome::Canceled(expected) => {
                    self.complete(expected.request, Err(TagError::Canceled));
                }
                offload::Outcome::Kept(key) => self.keep_again(key),
            }
        }
        if self.has_orphans {
            self.discard_orphans();
        }
    }
}

/// The announcement with these bytes.
fn announced_by(link: Key, body: &[u8]) -> Result<Announced, Violation> {
    match Message::parse(Kind::Announce, body)? {
        Message::Announce { request, length, place } => {
            Announced::new(link, request, length, place)
        }
        _ => Err(Violation::Length),
    }
}
