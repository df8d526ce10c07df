//! Completions that wait until bytes are sent and requests are finished.

use std::collections::VecDeque;

use crate::base::completion::Counted;

/// Bytes of messages and requests to the peer's memory, counted from the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) bytes: u64,
    pub(super) requests: u64,
}

#[derive(Debug)]
struct Flush {
    until: Position,
    completion: Counted,
    /// It waits for a cancellation, which succeeds.
    cancels: bool,
}

/// What an endpoint's messages and flushes wait for, in the order in which they were posted.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// Messages that are sent from their memory: how many bytes are sent once they are.
    sends: VecDeque<(u64, Option<Counted>)>,
    flushes: VecDeque<Flush>,
}

impl Waiters {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.sends.is_empty() && self.flushes.is_empty()
    }

    /// Messages that are being sent from their memory.
    pub(super) fn sends(&self) -> usize {
        self.sends.len()
    }

    pub(super) fn flushes(&self) -> usize {
        self.flushes.len()
    }

    pub(super) fn add_send(&mut self, end: u64, completion: Option<Counted>) {
        self.sends.push_back((end, completion));
    }

    pub(super) fn add_flush(&mut self, until: Position, completion: Counted, cancels: bool) {
        self.flushes.push_back(Flush { until, completion, cancels });
    }

    /// Takes the completion of a message, or else of a flush, that waits no longer.
    pub(super) fn pop_done(&mut self, done: Position) -> Option<Counted> {
        while let Some((_, completion)) = self.sends.pop_front_if(|(end, _)| *end <= done.bytes) {
            if completion.is_some() {
                return completion;
            }
        }
        let is_done = |flush: &mut Flush| {
            !flush.cancels
                && flush.until.bytes <= done.bytes
                && flush.until.requests <= done.requests
        };
        self.flushes.pop_front_if(is_done).map(|flush| flush.completion)
    }

    /// Takes the first completion of all, of an endpoint that ends. Returns also whether it waited
    /// for that.
    pub(super) fn pop(&mut self) -> Option<(Counted, bool)> {
        while let Some((_, completion)) = self.sends.pop_front() {
            if let Some(completion) = completion {
                return Some((completion, false));
            }
        }
        self.flushes.pop_front().map(|flush| (flush.completion, flush.cancels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::completion::Completion;

    #[test]
    fn flushes_wait_for_bytes_and_requests() {
        let mut waiters = Waiters::default();
        let done = |bytes, requests| Position { bytes, requests };
        let completion = Completion::counter();
        waiters.add_send(5, None);
        waiters.add_send(10, Some(completion.begin()));
        waiters.add_flush(done(10, 2), completion.begin(), false);
        waiters.add_flush(done(0, 0), completion.begin(), true);
        assert!(waiters.pop_done(done(9, 9)).is_none());
        assert!(waiters.sends() == 1 && waiters.pop_done(done(10, 1)).is_some());
        assert!(waiters.pop_done(done(10, 1)).is_none());
        assert!(waiters.pop_done(done(10, 2)).is_some());
        assert!(waiters.pop_done(done(99, 99)).is_none(), "only the end finishes a cancellation");
        assert!(waiters.pop().is_some_and(|(_, cancels)| cancels));
        assert!(waiters.is_empty());
    }
}
