//! The receiving side of requests.

use std::collections::VecDeque;
use std::task::Waker;

use super::super::message::{KeyList, Outcome};
use super::super::slab::Key;
use super::matching::Expected;
use super::offload::List;
use super::{
    Action, Announced, Control, Envelope, Kept, Machine, Moved, Payload, Request, State, TagError,
    Transfer, Violation,
};

/// How far a receive that is not complete has got.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stage {
    /// Waits; among the receives of a device under this key.
    Posted(Option<Key>),
    /// Matched by the device, which writes to the buffer.
    Arriving,
    /// Matched; the payload is being fetched, for the peer's request.
    Fetching { envelope: Envelope, sender: u64 },
    /// Matched; the peer gets the right to write the buffer.
    Exposing { envelope: Envelope, sender: u64 },
    /// Matched; the peer puts.
    AwaitingPut(Envelope),
    /// Matched; the peer sends fragments.
    AwaitingFragments { envelope: Envelope, received: usize },
    /// The link failed while the binding had the buffer.
    Failing { link: Key, error: TagError },
}

impl Stage {
    /// The link, if the receive is matched.
    pub(super) fn link(self) -> Option<Key> {
        match self {
            Self::Posted(_) | Self::Arriving => None,
            Self::Failing { link, .. } => Some(link),
            Self::Fetching { envelope, .. }
            | Self::Exposing { envelope, .. }
            | Self::AwaitingPut(envelope)
            | Self::AwaitingFragments { envelope, .. } => Some(envelope.link),
        }
    }
}

impl<B: Payload> Request<B> {
    /// Copies an eager message to the receive that matched it. Returns true if the request is to be
    /// dropped.
    #[inline(always)]
    pub(super) fn deliver(
        &mut self,
        tag: u64,
        link: Key,
        payload: &[u8],
        wakers: &mut VecDeque<Waker>,
    ) -> bool {
        let length = payload.len();
        let Some(buffer) = &self.buffer else { return false };
        let room = buffer.len();
        buffer.write(0, payload.get(..room).unwrap_or(payload));
        let envelope = Envelope { tag, length, link };
        let fits = length <= room;
        self.complete(if fits { Ok(envelope) } else { Err(TagError::Truncated { length }) }, wakers)
    }
}

impl<B: Payload, L: List<Expected<B>>> Machine<B, L> {
    /// Receives a message whose tag equals `tag` in the bits of `mask`.
    #[inline]
    pub fn receive(&mut self, tag: u64, mask: u64, buffer: B) -> Key {
        let found = self.matching.find(tag, mask).and_then(|key| self.matching.take(key));
        let request = self.insert(State::Receive(Stage::Posted(None)), buffer);
        if let Some((tag, kept)) = found {
            self.accept(request, tag, kept);
        } else {
            self.expect(request, tag, mask);
            self.ask_for_more();
        }
        request
    }

    /// Lets a receive wait for a message.
    #[inline]
    fn expect(&mut self, request: Key, tag: u64, mask: u64) {
        if self.matching.device.is_none() {
            return self.matching.requests.expect(request, tag, mask);
        }
        if let Some(buffer) = self.buffer(request).cloned() {
            let key = self.matching.expect(request, tag, mask, buffer);
            self.set_receive_stage(request, Stage::Posted(key));
        }
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
        let request = self.insert(State::Receive(Stage::Posted(None)), buffer);
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
                if let Some(receive) = self.matching.requests.get_mut(request)
                    && receive.deliver(tag, link, &payload, &mut self.wakers)
                {
                    self.matching.requests.discard(request);
                }
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

    /// Begins the rendezvous of an announced message with the receive that matched it.
    pub(super) fn begin(&mut self, request: Key, tag: u64, announced: Announced) {
        let Announced { link, request: sender, length, address, keys } = announced;
        let envelope = Envelope { tag, length, link };
        if let Some(error) = self.failure(link) {
            return self.complete(request, Err(error));
        }
        let Some(buffer) = self.buffer(request) else { return };
        let room = buffer.len();
        if length == 0 || length > room {
            self.finish_sender(link, sender, Outcome::Done);
            let result =
                if length == 0 { Ok(envelope) } else { Err(TagError::Truncated { length }) };
            return self.complete(request, result);
        }
        let buffer = buffer.clone();
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
        let Some(buffer) = self.buffer(request).cloned() else { return };
        self.set_receive_stage(request, Stage::Exposing { envelope, sender });
        let Envelope { link, length, .. } = envelope;
        self.actions.push_back(Action::Expose { request, link, buffer, length });
    }

    fn receiving(&self, request: Key) -> Option<Stage> {
        match self.matching.requests.get(request)?.state {
            State::Receive(stage) => Some(stage),
            _ => None,
        }
    }

    fn set_receive_stage(&mut self, request: Key, stage: Stage) {
        if let Some(entry) = self.matching.requests.get_mut(request) {
            entry.state = State::Receive(stage);
        }
    }

    /// The device writes to the buffer.
    pub(super) fn set_arriving(&mut self, request: Key) {
        if self.receiving(request).is_some() {
            self.set_receive_stage(request, Stage::Arriving);
        }
    }

    /// Reads the start of the buffer of a receive.
    pub(super) fn read_buffer(&self, request: Key, target: &mut [u8]) {
        if let Some(buffer) = self.buffer(request) {
            buffer.read(0, target);
        }
    }

    pub(super) fn fetch_ended(&mut self, request: Key, moved: Moved) {
        let Some(stage) = self.receiving(request) else { return };
        match stage {
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
        let (envelope, sender) = match self.receiving(request) {
            Some(Stage::Exposing { envelope, sender }) => (envelope, sender),
            Some(Stage::Failing { error, .. }) => {
                // The right ends before the request does.
                drop(granted);
                return self.complete(request, Err(error));
            }
            _ => return,
        };
        let (stage, address, keys) = match granted {
            Some((grant, address, keys)) if !keys.is_empty() => {
                self.grants.insert(request, grant);
                (Stage::AwaitingPut(envelope), address, keys)
            }
            _ => (Stage::AwaitingFragments { envelope, received: 0 }, 0, KeyList::default()),
        };
        self.set_receive_stage(request, stage);
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
        let Some(Stage::AwaitingFragments { envelope, received }) = self.receiving(request) else {
            return Err(Violation::Request);
        };
        if envelope.link != link || received as u64 != offset {
            return Err(Violation::Request);
        }
        if payload.is_empty() || payload.len() > envelope.length - received {
            return Err(Violation::Length);
        }
        if let Some(buffer) = self.buffer(request) {
            buffer.write(received, payload);
        }
        let received = received + payload.len();
        self.set_receive_stage(request, Stage::AwaitingFragments { envelope, received });
        if received == envelope.length {
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
        let Some(Stage::AwaitingPut(envelope)) = self.receiving(request) else {
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
        self.grants.remove(&request);
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
        let Some(Stage::Posted(key)) = self.receiving(request) else { return false };
        match self.matching.cancel(request, key) {
            Some(true) => self.complete(request, Err(TagError::Canceled)),
            // The device decides.
            Some(false) => {}
            None => return false,
        }
        true
    }

    /// The link of a matched receive failed.
    pub(super) fn fail_receive(&mut self, request: Key, error: TagError) {
        let Some(stage) = self.receiving(request) else { return };
        match stage {
            Stage::Posted(_) | Stage::Arriving | Stage::Failing { .. } => {}
            Stage::Fetching { envelope, .. } | Stage::Exposing { envelope, .. } => {
                let link = envelope.link;
                self.set_receive_stage(request, Stage::Failing { link, error });
            }
            Stage::AwaitingPut(_) | Stage::AwaitingFragments { .. } => {
                self.grants.remove(&request);
                self.complete(request, Err(error));
            }
        }
    }
}
