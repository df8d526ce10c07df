//! A completion queue, the completions polled from it, and notification of new ones.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use barewire_verbs::{
    CompletionChannel, CompletionKind, CompletionQueue, CompletionQueueRef, Failure, WorkCompletion,
};

use super::{Domain, WrId, WrKind};
use crate::base::error::OpenError;
use crate::base::event::{Armed, EventError};
use crate::transport::common::registered::Domain as _;

/// Completions that are polled at a time.
const BATCH: usize = 16;

/// The completion queue of an interface.
pub(crate) struct Completions {
    queue: CompletionQueue,
    /// The completions from `next` to `count` were polled and not returned yet.
    taken: RefCell<Box<[WorkCompletion; BATCH]>>,
    next: Cell<usize>,
    count: Cell<usize>,
    /// Messages since the queue was last empty.
    messages: Cell<u32>,
    channel: CompletionChannel,
}

/// One completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    /// The request's `wr_id`.
    pub(crate) id: u64,
    /// The endpoint's slot.
    pub(crate) slot: u32,
    pub(crate) kind: WrKind,
    pub(crate) outcome: Result<(), Failure>,
    /// Bytes of a message; 0 if it is of a kind that this crate never sends.
    pub(crate) length: u32,
    /// The local queue pair.
    pub(crate) qpn: u32,
    /// The sender's queue pair, for a datagram.
    pub(crate) from: u32,
}

impl Completions {
    /// Creates a completion queue with room for `entries` completions.
    pub(crate) fn new(domain: &Domain, entries: u32) -> Result<Self, OpenError> {
        let channel = CompletionChannel::new(domain.context())
            .map_err(|e| domain.refused("create a completion channel", e))?;
        let queue = CompletionQueue::with_channel(&channel, entries)
            .map_err(|e| domain.refused("create a completion queue", e))?;
        let taken = RefCell::new(Box::new(std::array::from_fn(|_| WorkCompletion::empty())));
        Ok(Self {
            queue,
            taken,
            next: Cell::new(0),
            count: Cell::new(0),
            messages: Cell::new(0),
            channel,
        })
    }

    pub(crate) fn reference(&self) -> CompletionQueueRef {
        self.queue.reference()
    }

    /// Takes the next completion.
    #[inline]
    pub(crate) fn take(&self) -> Option<Taken> {
        if self.is_empty() && self.fill() == 0 {
            return None;
        }
        let next = self.next.get();
        let taken = self.taken.borrow();
        let completion = taken.get(next)?;
        self.next.set(next + 1);
        let WrId { slot, kind } = WrId::of(completion.id());
        // This crate sends no immediate; still, the receive request is consumed.
        let is_message =
            completion.kind() == CompletionKind::Receive && completion.immediate().is_none();
        Some(Taken {
            id: completion.id(),
            slot,
            kind,
            outcome: completion.outcome(),
            length: if is_message { completion.length() } else { 0 },
            qpn: completion.queue_pair(),
            from: completion.source_queue_pair(),
        })
    }

    /// Counts a message. Returns the number of messages since the queue was last empty.
    #[inline(always)]
    pub(crate) fn count_message(&self) -> u32 {
        self.messages.set(self.messages.get().wrapping_add(1));
        self.messages.get()
    }

    /// Returns whether every polled completion was returned.
    pub(crate) fn is_empty(&self) -> bool {
        self.next.get() == self.count.get()
    }

    /// Polls the queue. The caller has checked [`Self::is_empty`]. Returns the number of
    /// completions.
    #[inline]
    pub(crate) fn fill(&self) -> usize {
        // A queue that failed has no completions; its device reports the failure by an event.
        let count = self.queue.poll(&mut self.taken.borrow_mut()[..]).map_or(0, <[_]>::len);
        self.count.set(count);
        self.next.set(0);
        if count == 0 {
            self.messages.set(0);
        }
        count
    }

    /// Returns the descriptor, which becomes readable on a completion once armed.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Arms the descriptor, unless there is a completion already.
    pub(crate) fn arm(&self) -> Result<Armed, EventError> {
        let failed = |step| move |source: io::Error| EventError::System { step, source };
        let event = || self.channel.next_event().map_err(io::Error::other);
        while let Some(event) = event().map_err(failed("read a completion channel"))? {
            drop(event);
        }
        if !self.is_empty() {
            return Ok(Armed::Ready);
        }
        self.queue.arm(false).map_err(failed("arm a completion queue"))?;
        // A completion from before the arming does not notify.
        Ok(if self.fill() > 0 { Armed::Ready } else { Armed::Indefinitely })
    }
}
