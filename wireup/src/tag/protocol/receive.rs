//! The receiving side of requests.

use super::super::message::{KeyList, Outcome};
use super::super::slab::Key;
use super::matching::Expected;
use super::offload::List;
use super::{
    Action, Announced, Control, Envelope, Kept, Machine, Moved, Payload, State, TagError, Transfer,
    Violation,
};

/// A receive that is not complete.
#[derive(Debug)]
pub(super) struct Receive<B: Payload> {
    buffer: B,
    stage: Stage<B>,
}

#[derive(Debug)]
enum Stage<B: Payload> {
    /// Waits in the matcher, under this key.
    Posted(Option<Key>),
    /// Matched by the device, which writes to the buffer.
    Arriving,
    /// Matched; the payload is being fetched, for the peer's request.
    Fetching { envelope: Envelope, sender: u64 },
    /// Matched; the peer gets the right to write the buffer.
    Exposing { envelope: Envelope, sender: u64 },
    /// Matched; the peer puts.
    AwaitingPut { envelope: Envelope, _grant: Box<B::Grant> },
    /// Matched; the peer sends fragments.
    AwaitingFragments { envelope: Envelope, received: usize },
    /// The link failed while the binding had the buffer.
    Failing { link: Key, error: TagError },
}

impl<B: Payload> Receive<B> {
    /// The link, if it is matched.
    pub(super) fn link(&self) -> Option<Key> {
        match &self.stage {
            Stage::Posted(_) | Stage::Arriving => None,
            Stage::Failing { link, .. } => Some(*link),
            Stage::Fetching { envelope, .. }
            | Stage::Exposing { envelope, .. }
            | Stage::AwaitingPut { envelope, .. }
            | Stage::AwaitingFragments { envelope, .. } => Some(envelope.link),
        }
    }
}

impl<B: Payload, L: List<Expected<B>>> Machine<B, L> {
    /// Receives a message whose tag equals `tag` in the bits of `mask`.
    pub fn receive(&mut self, tag: u64, mask: u64, buffer: B) -> Key {
        let found = self.matching.find(tag, mask).and_then(|key| self.matching.take(key));
        let expected = if found.is_none() {
            self.matching.expect(tag, mask, self.requests.next_key(), &buffer)
        } else {
            None
        };
        let stage = Stage::Posted(expected);
        // The key that the matcher has.
        let request = self.insert(State::Receive(Receive { buffer, stage }));
        match found {
            Some((tag, kept)) => self.accept(request, tag, kept),
            None => self.ask_for_more(),
        }
        request
    }

    /// The message that a [`receive`](Self::receive) would get now.
    pub fn peek(&mut self, tag: u64, mask: u64) -> Option<Envelope> {
        let found = self.find(tag, mask)?;
        let (tag, kept) = self.matching.message(found)?;
        Some(Envelope { tag, length: kept.length(), link: kept.link() })
    }

    /// The kept message that a receive would get now.
    fn find(&mut self, tag: u64, mask: u64) -> Option<Key> {
        let found = self.matching.find(tag, mask);
        if found.is_none() {
            self.ask_for_more();
        }
        found
    }

    /// Takes the message that a receive would get now, for
    /// [`receive_claimed`](Self::receive_claimed). No other receive gets it.
    pub fn claim(&mut self, tag: u64, mask: u64) -> Option<(Key, Envelope)> {
        let found = self.find(tag, mask)?;
        let (tag, kept) = self.matching.take(found)?;
        self.forget_announcement(&kept);
        let envelope = Envelope { tag, length: kept.length(), link: kept.link() };
        Some((self.claimed.insert((tag, kept)), envelope))
    }

    /// Receives a message that was [claimed](Self::claim). `None` if there is no such claim.
    pub fn receive_claimed(&mut self, claim: Key, buffer: B) -> Option<Key> {
        let (tag, kept) = self.claimed.remove(claim)?;
        let request = self.insert(State::Receive(Receive { buffer, stage: Stage::Posted(None) }));
        self.accept(request, tag, kept);
        Some(request)
    }

    /// Drops a message that was [claimed](Self::claim). Its sender completes as if it had been
    /// received.
    pub fn discard(&mut self, claim: Key) {
        if let Some((_, kept)) = self.claimed.remove(claim) {
            self.discard_kept(kept);
        }
    }

    pub(super) fn discard_kept(&mut self, kept: Kept) {
        match kept {
            Kept::Eager { link, payload, acknowledge } => {
                self.no_longer_kept(payload.len());
                self.consumed(link, payload.len(), acknowledge);
            }
            Kept::Announced(announced) => {
                self.counters.announced -= 1;
                self.finish_sender(announced.link, announced.request, Outcome::Done);
            }
        }
    }

    fn forget_announcement(&mut self, kept: &Kept) {
        if let Kept::Announced(Announced { link, request, .. }) = kept
            && let Some(entry) = self.links.get_mut(*link)
        {
            entry.kept_announcements.remove(request);
        }
    }

    fn no_longer_kept(&mut self, length: usize) {
        self.counters.unexpected_messages -= 1;
        self.counters.unexpected_bytes -= length;
    }

    pub(super) fn finish_sender(&mut self, link: Key, to: u64, outcome: Outcome) {
        self.control(link, Control::Finished { to, outcome });
    }

    /// An eager message was matched: its room in the window goes back.
    pub(super) fn consumed(&mut self, link: Key, length: usize, acknowledge: Option<u64>) {
        if self.links.get_mut(link).is_some_and(|entry| entry.release(length)) {
            self.make_ready(link);
        }
        if let Some(sender) = acknowledge {
            self.finish_sender(link, sender, Outcome::Done);
        }
    }

    /// A receive has got its message.
    pub(super) fn accept(&mut self, request: Key, tag: u64, kept: Kept) {
        match kept {
            Kept::Eager { link, payload, acknowledge } => {
                self.no_longer_kept(payload.len());
                self.consumed(link, payload.len(), acknowledge);
                self.deliver(request, tag, link, &payload);
            }
            Kept::Announced(announced) => {
                self.counters.announced -= 1;
                if let Some(entry) = self.links.get_mut(announced.link) {
                    entry.kept_announcements.remove(&announced.request);
                }
                self.begin(request, tag, announced);
            }
        }
    }

    /// Copies an eager message to the receive that matched it.
    #[inline]
    pub(super) fn deliver(&mut self, request: Key, tag: u64, link: Key, payload: &[u8]) {
        let length = payload.len();
        let Some(entry) = self.requests.get_mut(request) else { return };
        let State::Receive(receive) = &entry.state else { return };
        let room = receive.buffer.len();
        receive.buffer.write(0, payload.get(..room).unwrap_or(payload));
        let result = if length <= room {
            Ok(Envelope { tag, length, link })
        } else {
            Err(TagError::Truncated { length })
        };
        if entry.complete(result, &mut self.wakers) {
            self.requests.discard(request);
        }
    }

    /// Begins the rendezvous of an announced message with the receive that matched it.
    pub(super) fn begin(&mut self, request: Key, tag: u64, announced: Announced) {
        let Announced { link, request: sender, length, address, keys } = announced;
        let envelope = Envelope { tag, length, link };
        if let Some(error) = self.failure(link) {
            return self.complete(request, Err(error));
        }
        let Some(receive) = self.receiving(request) else { return };
        let room = receive.buffer.len();
        if length == 0 || length > room {
            self.finish_sender(link, sender, Outcome::Done);
            let result =
                if length == 0 { Ok(envelope) } else { Err(TagError::Truncated { length }) };
            return self.complete(request, result);
        }
        let buffer = receive.buffer.clone();
        if keys.is_empty() {
            return self.expose(request, envelope, sender);
        }
        self.set_receive_stage(request, Stage::Fetching { envelope, sender });
        self.actions.push_back(Action::Fetch(Transfer {
            request,
            link,
            buffer,
            length,
            address,
            keys,
        }));
    }

    fn expose(&mut self, request: Key, envelope: Envelope, sender: u64) {
        let Some(receive) = self.receiving(request) else { return };
        let buffer = receive.buffer.clone();
        self.set_receive_stage(request, Stage::Exposing { envelope, sender });
        let Envelope { link, length, .. } = envelope;
        self.actions.push_back(Action::Expose { request, link, buffer, length });
    }

    fn receiving(&self, request: Key) -> Option<&Receive<B>> {
        match &self.requests.get(request)?.state {
            State::Receive(receive) => Some(receive),
            _ => None,
        }
    }

    fn receiving_mut(&mut self, request: Key) -> Option<&mut Receive<B>> {
        match &mut self.requests.get_mut(request)?.state {
            State::Receive(receive) => Some(receive),
            _ => None,
        }
    }

    fn set_receive_stage(&mut self, request: Key, stage: Stage<B>) {
        if let Some(receive) = self.receiving_mut(request) {
            receive.stage = stage;
        }
    }

    /// The device writes to the buffer.
    pub(super) fn set_arriving(&mut self, request: Key) {
        self.set_receive_stage(request, Stage::Arriving);
    }

    /// Reads the start of the buffer of a receive.
    pub(super) fn read_buffer(&self, request: Key, target: &mut [u8]) {
        if let Some(receive) = self.receiving(request) {
            receive.buffer.read(0, target);
        }
    }

    pub(super) fn fetch_ended(&mut self, request: Key, moved: Moved) {
        let Some(receive) = self.receiving(request) else { return };
        match receive.stage {
            Stage::Failing { error, .. } => self.complete(request, Err(error)),
            Stage::Fetching { envelope, sender } => match moved {
                Moved::Done => {
                    self.counters.fetched += 1;
                    self.finish_sender(envelope.link, sender, Outcome::Done);
                    self.complete(request, Ok(envelope));
                }
                Moved::Failed(cause) => {
                    self.finish_sender(envelope.link, sender, Outcome::Failed);
                    self.complete(request, Err(TagError::Transfer(cause)));
                }
                Moved::Unsupported => self.expose(request, envelope, sender),
            },
            _ => {}
        }
    }

    /// The result of [`Action::Expose`]: the right, the address and the keys. `None` if no lane can
    /// give the right; the payload then comes in fragments.
    pub fn exposed(&mut self, request: Key, granted: Option<(B::Grant, u64, KeyList)>) {
        let Some(receive) = self.receiving_mut(request) else { return };
        let (envelope, sender) = match receive.stage {
            Stage::Exposing { envelope, sender } => (envelope, sender),
            Stage::Failing { error, .. } => {
                // The right ends before the request does.
                drop(granted);
                return self.complete(request, Err(error));
            }
            _ => return,
        };
        let (stage, address, keys) = match granted {
            Some((grant, address, keys)) if !keys.is_empty() => {
                (Stage::AwaitingPut { envelope, _grant: Box::new(grant) }, address, keys)
            }
            _ => (Stage::AwaitingFragments { envelope, received: 0 }, 0, KeyList::default()),
        };
        receive.stage = stage;
        let length = envelope.length as u64;
        let request = request.to_u64();
        self.control(
            envelope.link,
            Control::Request { to: sender, request, length, address, keys },
        );
    }

    /// A fragment of the payload arrived.
    pub(super) fn fragment_arrived(
        &mut self,
        link: Key,
        request: Key,
        offset: u64,
        payload: &[u8],
    ) -> Result<(), Violation> {
        let receive = self.receiving_mut(request).ok_or(Violation::Request)?;
        let Stage::AwaitingFragments { envelope, received } = &mut receive.stage else {
            return Err(Violation::Request);
        };
        let envelope = *envelope;
        if envelope.link != link || *received as u64 != offset {
            return Err(Violation::Request);
        }
        if payload.is_empty() || payload.len() > envelope.length - *received {
            return Err(Violation::Length);
        }
        receive.buffer.write(*received, payload);
        *received += payload.len();
        if *received == envelope.length {
            self.counters.fragmented += 1;
            self.complete(request, Ok(envelope));
        }
        Ok(())
    }

    /// The peer has put the payload, or failed to.
    pub(super) fn put_arrived(
        &mut self,
        link: Key,
        request: Key,
        outcome: Outcome,
    ) -> Result<(), Violation> {
        let receive = self.receiving(request).ok_or(Violation::Request)?;
        let Stage::AwaitingPut { envelope, .. } = receive.stage else {
            return Err(Violation::Request);
        };
        if envelope.link != link {
            return Err(Violation::Request);
        }
        let result = match outcome {
            Outcome::Done => {
                self.counters.put += 1;
                Ok(envelope)
            }
            Outcome::Failed => Err(TagError::PeerTransfer),
            Outcome::Withdrawn => return Err(Violation::Request),
        };
        // Drops the grant.
        self.complete(request, result);
        Ok(())
    }

    /// The sender withdraws an announced message. One that is matched already goes on.
    pub(super) fn withdrawn(&mut self, link: Key, sender: u64) {
        let Some(entry) = self.links.get_mut(link) else { return };
        if let Some(&Some(key)) = entry.kept_announcements.get(&sender) {
            entry.kept_announcements.remove(&sender);
            self.matching.take(key);
            self.counters.announced -= 1;
            self.finish_sender(link, sender, Outcome::Withdrawn);
        }
    }

    pub(super) fn cancel_receive(&mut self, request: Key) -> bool {
        let Some(Receive { stage: Stage::Posted(key), .. }) = self.receiving(request) else {
            return false;
        };
        match key.map_or(Some(true), |key| self.matching.cancel(key)) {
            Some(true) => self.complete(request, Err(TagError::Canceled)),
            // The device decides.
            Some(false) => {}
            None => return false,
        }
        true
    }

    /// The link of a matched receive failed.
    pub(super) fn fail_receive(&mut self, request: Key, error: TagError) {
        let Some(receive) = self.receiving_mut(request) else { return };
        match receive.stage {
            Stage::Posted(_) | Stage::Arriving | Stage::Failing { .. } => {}
            Stage::Fetching { envelope, .. } | Stage::Exposing { envelope, .. } => {
                receive.stage = Stage::Failing { link: envelope.link, error };
            }
            // Drops the grant.
            Stage::AwaitingPut { .. } | Stage::AwaitingFragments { .. } => {
                self.complete(request, Err(error));
            }
        }
    }
}
