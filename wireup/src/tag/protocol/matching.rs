//! Which receive gets which message: decided in software, or together with the list of a device.

use super::super::matcher::Matcher;
use super::super::offload::{Cancel, List, Offload, Outcome, Posted};
use super::super::slab::Key;
use super::{Kept, Payload, Request};

/// A receive that waits in a device's list or behind it.
#[derive(Debug)]
pub struct Expected<B> {
    pub(super) request: Key,
    /// Its memory.
    pub buffer: B,
}

/// The list of a device that does not exist.
#[derive(Debug)]
pub enum NoList {}

impl<R> List<R> for NoList {
    fn append(&mut self, _tag: u64, _mask: u64, _receive: &R) -> Option<u16> {
        match *self {}
    }

    fn remove(&mut self, _entry: u16) {
        match *self {}
    }

    fn release(&mut self, _entry: u16) {
        match *self {}
    }
}

/// A message with its tag.
type Tagged = (u64, Kept);

/// The requests, and the messages that wait for one.
#[derive(Debug)]
pub(super) struct Matching<B: Payload, L> {
    /// All requests. Without a device, the receives among them wait here, and the messages.
    pub(super) requests: Matcher<Request<B>, Kept>,
    pub(super) device: Option<Box<Shared<B, L>>>,
}

/// What a device and software match together.
#[derive(Debug)]
pub(super) struct Shared<B, L> {
    offload: Offload<Expected<B>, Tagged>,
    list: L,
}

impl<B: Payload, L: List<Expected<B>>> Matching<B, L> {
    pub(super) fn new(list: Option<L>) -> Self {
        let shared = |list| Box::new(Shared { offload: Offload::default(), list });
        Self { requests: Matcher::default(), device: list.map(shared) }
    }

    /// The first message that a receive of `tag` and `mask` gets.
    #[inline]
    pub(super) fn find(&self, tag: u64, mask: u64) -> Option<Key> {
        match &self.device {
            None => self.requests.find(tag, mask),
            Some(shared) => shared.offload.find(tag, mask),
        }
    }

    /// A kept message and its tag.
    pub(super) fn message(&self, key: Key) -> Option<(u64, &Kept)> {
        match &self.device {
            None => self.requests.message(key),
            Some(shared) => shared.offload.message(key).map(|(tag, (_, kept))| (tag, kept)),
        }
    }

    /// Removes a kept message.
    pub(super) fn take(&mut self, key: Key) -> Option<Tagged> {
        match &mut self.device {
            None => self.requests.take(key),
            Some(shared) => shared.offload.take(key).map(|(_, message)| message),
        }
    }

    /// The kept messages for which `wanted` returns true.
    pub(super) fn select(&self, wanted: impl Fn(&Kept) -> bool) -> Vec<Key> {
        match &self.device {
            None => {
                let wanted = self.requests.messages().filter(|(_, kept)| wanted(kept));
                wanted.map(|(key, _)| key).collect()
            }
            Some(shared) => {
                let wanted = shared.offload.messages().filter(|(_, (_, kept))| wanted(kept));
                wanted.map(|(key, _)| key).collect()
            }
        }
    }

    /// Lets a receive that no kept message matches wait together with those of a device. Returns
    /// its key there.
    pub(super) fn expect(&mut self, request: Key, tag: u64, mask: u64, buffer: B) -> Option<Key> {
        let shared = self.device.as_mut()?;
        let expected = Expected { request, buffer };
        match shared.offload.receive(&mut shared.list, tag, mask, expected) {
            Posted::Waiting(key) => Some(key),
            // No kept message matches.
            Posted::Matched(..) => None,
        }
    }

    /// Cancels a receive that waits. Returns whether it has ended; `None` if it goes on.
    pub(super) fn cancel(&mut self, request: Key, key: Option<Key>) -> Option<bool> {
        let (Some(shared), Some(key)) = (&mut self.device, key) else {
            return self.requests.withdraw(request).then_some(true);
        };
        match shared.offload.cancel(&mut shared.list, key) {
            Cancel::Done(_) => Some(true),
            Cancel::Asked => Some(false),
            Cancel::TooLate => None,
        }
    }

    /// Returns whether no message waits for the removal of a receive from the list.
    pub(super) fn is_settled(&self) -> bool {
        self.device.as_ref().is_none_or(|shared| shared.offload.is_settled())
    }

    /// What became of a receive or a message.
    pub(super) fn outcome(&mut self) -> Option<Outcome<Expected<B>, Tagged>> {
        self.device.as_mut()?.offload.outcome()
    }

    /// Returns whether receives wait.
    pub(super) fn has_receives(&self) -> bool {
        match &self.device {
            None => self.requests.waiting() > 0,
            Some(shared) => shared.offload.waiting() > 0,
        }
    }

    /// Receives and messages that wait.
    #[cfg(test)]
    pub(super) fn waiting_and_kept(&self) -> [usize; 2] {
        match &self.device {
            None => [self.requests.waiting(), self.requests.kept()],
            Some(shared) => [shared.offload.waiting(), shared.offload.kept()],
        }
    }
}

impl<B: Payload, L: List<Expected<B>>> Shared<B, L> {
    /// Takes a message of the device, or of another transport. Returns where it is kept if no
    /// receive matches it.
    pub(super) fn arrive(&mut self, of_device: bool, tag: u64, kept: Kept) -> Option<Key> {
        let message = (tag, kept);
        if of_device {
            self.offload.unexpected(&mut self.list, tag, message)
        } else {
            self.offload.arrive(&mut self.list, tag, message)
        }
    }

    /// The device has matched a message with the receive of `entry`.
    pub(super) fn matched(&mut self, entry: u16) -> Option<Key> {
        self.offload.matched(&mut self.list, entry).map(|expected| expected.request)
    }

    /// The receive of `entry` has left the list with the message that matched it.
    pub(super) fn end(&mut self, entry: u16) -> Option<Key> {
        self.offload.end(&mut self.list, entry).map(|expected| expected.request)
    }

    /// The receive of `entry` was removed from the list. Returns it if nothing had asked for that:
    /// the interface was closed.
    pub(super) fn removed(&mut self, entry: u16) -> Option<Key> {
        self.offload.removed(&mut self.list, entry).map(|expected| expected.request)
    }

    /// Moves receives to the list, which may have room.
    pub(super) fn fill(&mut self) {
        self.offload.fill(&mut self.list);
    }
}
