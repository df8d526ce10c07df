//! The sending side of requests.

use super::super::message::{Credit, Header, KeyList, Kind, Outcome};
use super::super::slab::Key;
use super::matching::Expected;
use super::offload::List;
use super::{
    Action, Body, Cause, Control, Envelope, Link, MAX_ANNOUNCED, Machine, Mode, Moved, Outgoing,
    Payload, Request, State, TagError, Transfer, Violation,
};

/// An eager message, and what takes it back.
#[derive(Debug, Clone, Copy)]
pub struct Eager {
    /// Its header.
    pub header: Header,
    /// What the peer knew of its credit before.
    reported: Credit,
}

/// A send that is not complete.
#[derive(Debug, Clone, Copy)]
pub(super) struct Send {
    envelope: Envelope,
    mode: Mode,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// In the link's queue.
    Waiting,
    /// Left eagerly; its acknowledgement is due.
    Matching,
    /// Announced, and perhaps withdrawn since.
    Announced { withdrawn: bool },
    /// Being put to the peer's request.
    Putting { receiver: u64 },
    /// Leaving in fragments to the peer's request.
    Fragments { receiver: u64, sent: usize, length: usize },
    /// The link failed during the put.
    Failing(TagError),
}

impl Send {
    pub(super) fn link(&self) -> Key {
        self.envelope.link
    }
}

impl Link {
    /// Longest eager payload.
    #[inline]
    fn eager_limit(&self, mode: Mode) -> usize {
        if self.tagged {
            return self.tagged_limit(mode);
        }
        match mode {
            Mode::Eager => self.limits.payload(Kind::Eager),
            Mode::Auto => self.limits.payload(Kind::Eager).min(self.limits.threshold),
            Mode::Synchronous => self.limits.payload(Kind::Synchronous).min(self.limits.threshold),
        }
    }

    /// Longest payload of a tagged message.
    fn tagged_limit(&self, mode: Mode) -> usize {
        match mode {
            Mode::Eager => self.limits.tagged,
            Mode::Auto => self.limits.tagged.min(self.limits.threshold),
            Mode::Synchronous => 0,
        }
    }

    /// Returns whether a send of `length` bytes leaves eagerly, if the peer's window has room.
    fn is_eager(&self, length: usize, mode: Mode) -> bool {
        length <= self.eager_limit(mode) && !(self.tagged && mode == Mode::Synchronous)
    }
}

impl<B: Payload, L: List<Expected<B>>> Machine<B, L> {
    /// A message that may leave now, eagerly and without a request. It counts as sent; if it cannot
    /// be posted, [`eager_refused`](Self::eager_refused) follows. `None`: use [`send`](Self::send).
    #[inline]
    pub fn eager(&mut self, link: Key, tag: u64, length: usize, mode: Mode) -> Option<Eager> {
        let entry = self.links.get_mut(link)?;
        let fits = mode != Mode::Synchronous
            && length <= entry.eager_limit(mode)
            && entry.waiting.is_empty()
            && entry.failure.is_none()
            && entry.sent.has_room(entry.granted, length);
        if !fits {
            return None;
        }
        let header = entry.header(entry.peer?, Kind::Eager, tag);
        // Before it is posted: its receiver may run inside of the post, and send.
        let reported = entry.reported;
        entry.note_sent(&header);
        entry.add_sent(length);
        Some(Eager { header, reported })
    }

    /// The message of [`eager`](Self::eager) was not posted. Nothing was sent on the link since.
    pub fn eager_refused(&mut self, link: Key, message: &Eager, length: usize) {
        if let Some(entry) = self.links.get_mut(link) {
            entry.number = message.header.number;
            entry.reported = message.reported;
            entry.sent.remove(length);
            entry.held = false;
        }
    }

    /// Queues a send.
    pub fn send(&mut self, link: Key, tag: u64, buffer: B, mode: Mode) -> Key {
        let envelope = Envelope { tag, length: buffer.len(), link };
        let send = Send { envelope, mode, stage: Stage::Waiting };
        let request = self.insert(State::Send(send), buffer);
        if let Some(error) = self.failure(link) {
            self.complete(request, Err(error));
        } else if let Some(entry) = self.links.get_mut(link) {
            let is_first = entry.waiting.is_empty();
            entry.waiting.push_back(request);
            if is_first {
                self.make_ready(link);
            }
        }
        request
    }

    fn sending(&self, request: Key) -> Option<&Send> {
        match &self.matching.requests.get(request)?.state {
            State::Send(send) => Some(send),
            _ => None,
        }
    }

    fn sending_mut(&mut self, request: Key) -> Option<&mut Send> {
        match &mut self.matching.requests.get_mut(request)?.state {
            State::Send(send) => Some(send),
            _ => None,
        }
    }

    /// The peer may no longer read the memory of an announced send.
    fn unshare(&self, request: Key, revoke: bool) {
        if let Some(buffer) = self.buffer(request) {
            buffer.unshare(revoke);
        }
    }

    fn set_stage(&mut self, request: Key, stage: Stage) {
        if let Some(send) = self.sending_mut(request) {
            send.stage = stage;
        }
    }

    /// The next message of a link. It stays the next until [`sent`](Self::sent), so that a post
    /// without resources can be repeated.
    pub fn next(&mut self, link: Key) -> Option<Outgoing<B>> {
        self.drop_cancelled(link);
        let entry = self.links.get(link)?;
        let peer = entry.peer?;
        if entry.failure.is_some() {
            return None;
        }
        if let Some(control) = entry.control.front() {
            let (kind, word) = control.kind_and_word();
            return Some(Outgoing {
                header: entry.header(peer, kind, word),
                body: Body::Control(control.clone()),
            });
        }
        let send = || self.next_send(entry, peer);
        let fragment =
            || entry.fragments.front().and_then(|&key| self.next_fragment(entry, peer, key));
        if entry.fragment_was_last { send().or_else(fragment) } else { fragment().or_else(send) }
    }

    /// Cancelled sends leave their keys in the queue.
    fn drop_cancelled(&mut self, link: Key) {
        while let Some(&first) = self.links.get(link).and_then(|entry| entry.waiting.front()) {
            if self.sending(first).is_some_and(|send| send.stage == Stage::Waiting) {
                return;
            }
            if let Some(entry) = self.links.get_mut(link) {
                entry.waiting.pop_front();
            }
        }
    }

    fn next_send(&self, entry: &Link, peer: u64) -> Option<Outgoing<B>> {
        let request = *entry.waiting.front()?;
        let send = self.sending(request)?;
        let Envelope { tag, length, .. } = send.envelope;
        let buffer = self.buffer(request)?.clone();
        let is_eager = entry.is_eager(length, send.mode);
        if is_eager && entry.sent.has_room(entry.granted, length) {
            let (kind, number) = match send.mode {
                Mode::Synchronous => (Kind::Synchronous, Some(request.to_u64())),
                Mode::Auto | Mode::Eager => (Kind::Eager, None),
            };
            let body = Body::Payload { request, number, buffer, offset: 0, length };
            return Some(Outgoing { header: entry.header(peer, kind, tag), body });
        }
        // A device that matches takes messages without a header, and does not report.
        let waits_for_room = is_eager && entry.held && !entry.tagged && length <= entry.longest;
        let waits = waits_for_room || entry.announced >= MAX_ANNOUNCED;
        (!waits).then(|| Outgoing {
            header: entry.header(peer, Kind::Announce, tag),
            body: Body::Announce { request, buffer },
        })
    }

    fn next_fragment(&self, entry: &Link, peer: u64, request: Key) -> Option<Outgoing<B>> {
        let send = self.sending(request)?;
        let Stage::Fragments { receiver, sent, length } = send.stage else { return None };
        let part = (length - sent).min(entry.limits.payload(Kind::Fragment));
        let body = Body::Payload {
            request,
            number: Some(sent as u64),
            buffer: self.buffer(request)?.clone(),
            offset: sent,
            length: part,
        };
        Some(Outgoing { header: entry.header(peer, Kind::Fragment, receiver), body })
    }

    /// A message of [`next`](Self::next) was posted.
    pub fn sent(&mut self, link: Key, message: &Outgoing<B>) {
        let Some(entry) = self.links.get_mut(link) else { return };
        if entry.failure.is_some() {
            return;
        }
        entry.note_sent(&message.header);
        entry.fragment_was_last = message.header.kind == Kind::Fragment;
        match message.body {
            Body::Control(_) => {
                entry.control.pop_front();
            }
            Body::Announce { request, ref buffer } => {
                entry.waiting.pop_front();
                entry.announced += 1;
                if let Some(Request { state: State::Send(send), .. }) =
                    self.matching.requests.get_mut(request)
                {
                    // A device reports nothing about announcements.
                    entry.held |= !entry.tagged && entry.is_eager(send.envelope.length, send.mode);
                    buffer.share();
                    send.stage = Stage::Announced { withdrawn: false };
                }
            }
            Body::Payload { request, length, .. } => match message.header.kind {
                Kind::Fragment => self.fragment_sent(link, request, length),
                kind => {
                    entry.waiting.pop_front();
                    entry.add_sent(length);
                    match kind {
                        Kind::Synchronous => self.set_stage(request, Stage::Matching),
                        _ => self.send_done(request),
                    }
                }
            },
        }
    }

    fn fragment_sent(&mut self, link: Key, request: Key, part: usize) {
        let mut done = true;
        if let Some(send) = self.sending_mut(request)
            && let Stage::Fragments { sent, length, .. } = &mut send.stage
        {
            *sent += part;
            done = sent == length;
        }
        if let Some(entry) = self.links.get_mut(link) {
            entry.fragments.pop_front();
            if !done {
                entry.fragments.push_back(request);
            }
        }
        if done {
            self.send_done(request);
        }
    }

    fn send_done(&mut self, request: Key) {
        if let Some(send) = self.sending(request) {
            let envelope = send.envelope;
            self.complete(request, Ok(envelope));
        }
    }

    pub(super) fn cancel_send(&mut self, request: Key) -> bool {
        let Some(send) = self.sending_mut(request) else { return false };
        let link = send.envelope.link;
        match send.stage {
            Stage::Waiting => {
                self.complete(request, Err(TagError::Canceled));
                // The next one may have room.
                self.make_ready(link);
            }
            Stage::Announced { withdrawn: true } => {}
            Stage::Announced { withdrawn: false } => {
                send.stage = Stage::Announced { withdrawn: true };
                self.control(link, Control::Withdraw { request: request.to_u64() });
            }
            _ => return false,
        }
        true
    }

    /// The link failed.
    pub(super) fn fail_send(&mut self, request: Key, error: TagError) {
        let Some(send) = self.sending_mut(request) else { return };
        match send.stage {
            Stage::Putting { .. } => {
                send.stage = Stage::Failing(error);
                return;
            }
            Stage::Failing(_) => return,
            Stage::Announced { .. } => self.unshare(request, true),
            Stage::Waiting | Stage::Matching | Stage::Fragments { .. } => {}
        }
        self.complete(request, Err(error));
    }

    /// The peer reported the end of a send.
    pub(super) fn send_finished(
        &mut self,
        link: Key,
        request: Key,
        outcome: Outcome,
    ) -> Result<(), Violation> {
        let send = self.sending(request).filter(|send| send.envelope.link == link);
        let send = send.ok_or(Violation::Request)?;
        let envelope = send.envelope;
        match send.stage {
            Stage::Matching if outcome == Outcome::Done => {}
            Stage::Announced { withdrawn } => {
                if outcome == Outcome::Withdrawn && !withdrawn {
                    return Err(Violation::Request);
                }
                self.unshare(request, outcome != Outcome::Done);
                self.answered(link);
            }
            _ => return Err(Violation::Request),
        }
        let result = match outcome {
            Outcome::Done => Ok(envelope),
            Outcome::Withdrawn => Err(TagError::Canceled),
            Outcome::Failed => Err(TagError::PeerTransfer),
        };
        self.complete(request, result);
        Ok(())
    }

    /// The peer wants the payload of an announced send.
    pub(super) fn send_requested(
        &mut self,
        link: Key,
        request: Key,
        receiver: u64,
        length: u64,
        address: u64,
        keys: KeyList,
    ) -> Result<(), Violation> {
        let send = self.sending_mut(request).filter(|send| send.envelope.link == link);
        let send = send.ok_or(Violation::Request)?;
        let Stage::Announced { .. } = send.stage else { return Err(Violation::Request) };
        let length = usize::try_from(length)
            .ok()
            .filter(|&length| length == send.envelope.length && length > 0);
        let length = length.ok_or(Violation::Length)?;
        let fragments = keys.is_empty();
        send.stage = if fragments {
            Stage::Fragments { receiver, sent: 0, length }
        } else {
            Stage::Putting { receiver }
        };
        self.unshare(request, false);
        if !fragments && let Some(buffer) = self.buffer(request).cloned() {
            self.actions.push_back(Action::Put(Transfer {
                request,
                link,
                buffer,
                length,
                address,
                keys,
            }));
        }
        self.answered(link);
        if fragments && let Some(entry) = self.links.get_mut(link) {
            entry.fragments.push_back(request);
            self.make_ready(link);
        }
        Ok(())
    }

    /// An announcement was answered: another one may leave.
    fn answered(&mut self, link: Key) {
        if let Some(entry) = self.links.get_mut(link) {
            entry.announced = entry.announced.saturating_sub(1);
            entry.held = false;
        }
        self.make_ready(link);
    }

    pub(super) fn put_ended(&mut self, request: Key, moved: Moved) {
        let Some(send) = self.sending(request) else { return };
        let envelope = send.envelope;
        match send.stage {
            Stage::Failing(error) => self.complete(request, Err(error)),
            Stage::Putting { receiver } => {
                let (outcome, result) = match moved {
                    Moved::Done => (Outcome::Done, Ok(envelope)),
                    Moved::Failed(cause) => (Outcome::Failed, Err(TagError::Transfer(cause))),
                    // The peer offered no lane that this end has.
                    Moved::Unsupported => {
                        (Outcome::Failed, Err(TagError::Transfer(Cause::LocalOperation)))
                    }
                };
                self.control(envelope.link, Control::Put { to: receiver, outcome });
                self.complete(request, result);
            }
            _ => {}
        }
    }
}
