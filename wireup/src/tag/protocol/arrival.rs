//! Messages of peers.

use thiserror::Error;

use super::super::message::{Credit, Header, KeyList, Kind, Message, MessageError, Outcome};
use super::super::slab::Key;
use super::{Announced, Kept, MAX_ANNOUNCED, Machine, Payload, TagError, wire_number};

/// A message that the protocol does not allow. The link fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Violation {
    /// The bytes are no message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A message is missing or repeated.
    #[error("message {got} arrived in place of message {expected}")]
    Number {
        /// The number in the header.
        got: u32,
        /// The number of the next message.
        expected: u32,
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

impl<B: Payload> Machine<B> {
    /// Takes a message.
    ///
    /// # Errors
    /// [`Violation`]: the link of the message has failed with [`TagError::Protocol`]. Bytes without
    /// a valid header fail no link.
    pub fn arrived(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let (header, body) = Header::parse(bytes)?;
        let Some(link) = self.find_link(header.link) else {
            self.counters.stray += 1;
            return Ok(());
        };
        let result = self.dispatch(link, &header, body);
        if result.is_err() {
            self.fail(link, TagError::Protocol);
        }
        result
    }

    /// A link that has not failed.
    #[inline]
    fn find_link(&self, number: u32) -> Option<Key> {
        let (link, entry) = self.links.at(number & super::SLOT_MASK)?;
        (wire_number(link) == Some(number) && entry.failure.is_none()).then_some(link)
    }

    #[inline]
    fn dispatch(&mut self, link: Key, header: &Header, body: &[u8]) -> Result<(), Violation> {
        if header.kind == Kind::Eager {
            // The most frequent kind, whose body is the payload.
            self.note_header(link, header)?;
            return self.eager_arrived(link, header.word, body, None);
        }
        self.dispatch_other(link, header, body)
    }

    #[inline(never)]
    fn dispatch_other(&mut self, link: Key, header: &Header, body: &[u8]) -> Result<(), Violation> {
        let message = Message::parse(header.kind, body)?;
        self.note_header(link, header)?;
        let request = Key::from_u64(header.word);
        match message {
            Message::Eager { payload } => self.eager_arrived(link, header.word, payload, None),
            Message::Synchronous { request, payload } => {
                self.eager_arrived(link, header.word, payload, Some(request))
            }
            Message::Announce { request, length, place } => {
                let length = usize::try_from(length).map_err(|_| Violation::Length)?;
                let keys = KeyList::from(place);
                let announced = Announced { link, request, length, address: place.address, keys };
                self.announcement_arrived(header.word, announced)
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
            Message::Credit => Ok(()),
        }
    }

    /// Number and credit of a header.
    #[inline]
    fn note_header(&mut self, link: Key, header: &Header) -> Result<(), Violation> {
        let Some(entry) = self.links.get_mut(link) else { return Ok(()) };
        if header.number != entry.next_number {
            return Err(Violation::Number { got: header.number, expected: entry.next_number });
        }
        entry.next_number = entry.next_number.wrapping_add(1);
        if entry.granted != header.credit {
            entry.granted = header.credit;
            self.make_ready(link);
        }
        Ok(())
    }

    #[inline]
    fn eager_arrived(
        &mut self,
        link: Key,
        tag: u64,
        payload: &[u8],
        acknowledge: Option<u64>,
    ) -> Result<(), Violation> {
        let Some(entry) = self.links.get_mut(link) else { return Ok(()) };
        let allowed: Credit = entry.allowed;
        if !entry.received.has_room(allowed, payload.len()) {
            return Err(Violation::Window(payload.len()));
        }
        entry.received.add(payload.len());
        if let Some(request) = self.matcher.arrive(tag) {
            if entry.release(payload.len()) {
                self.make_ready(link);
            }
            if let Some(sender) = acknowledge {
                self.finish_sender(link, sender, Outcome::Done);
            }
            self.deliver(request, tag, link, payload);
        } else {
            self.keep_eager(Kept::Eager { link, payload: payload.into(), acknowledge }, tag);
        }
        Ok(())
    }

    #[inline(never)]
    fn keep_eager(&mut self, message: Kept, tag: u64) {
        self.counters.unexpected_messages += 1;
        self.counters.unexpected_bytes += message.length();
        self.matcher.keep(tag, message);
    }

    fn announcement_arrived(&mut self, tag: u64, announced: Announced) -> Result<(), Violation> {
        let (link, sender) = (announced.link, announced.request);
        let Some(entry) = self.links.get(link) else { return Ok(()) };
        let kept = &entry.kept_announcements;
        if kept.contains_key(&sender) {
            return Err(Violation::Announcements);
        }
        if let Some(request) = self.matcher.arrive(tag) {
            self.begin(request, tag, announced);
            return Ok(());
        }
        if kept.len() >= usize::from(MAX_ANNOUNCED) {
            return Err(Violation::Announcements);
        }
        let key = self.matcher.keep(tag, Kept::Announced(announced));
        self.counters.announced += 1;
        if let Some(entry) = self.links.get_mut(link) {
            entry.kept_announcements.insert(sender, key);
        }
        Ok(())
    }
}
