//! Waiting for, ordering and giving up what is outstanding.

use super::poller::Token;
use super::state::{PendingFailure, State, Waiter};
use crate::completion::Completion;
use crate::error::{Operation, PostError};
use crate::panics;
use crate::status::{FlushMode, Post, Posted};
use crate::transport::common::gate::Block;

impl State {
    /// See `Endpoint::flush`. Messages are finished once the system has them; operations on memory once the peer's target has
    /// carried them out, so that local and remote are the same.
    pub(super) fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        if mode == FlushMode::Cancel {
            return self.cancel(completion);
        }
        self.gate.check()?;
        self.send_all();
        if self.is_idle() {
            return Ok(Posted::Done);
        }
        if let Some(completion) = completion {
            self.wait_for_all(completion, false)?;
        }
        Ok(Posted::InProgress)
    }

    fn cancel(&self, completion: Option<&Completion>) -> Post {
        if self.gate.has(Block::Closed) {
            return Err(PostError::Closed);
        }
        if !self.gate.has(Block::Failed) {
            self.gate.set(Block::Failed, true);
            self.canceled.set(true);
            self.shared.failed.borrow_mut().push(self.index);
            self.shared.poller.wake();
        }
        if self.is_idle() {
            return Ok(Posted::Done);
        }
        if let Some(completion) = completion {
            self.wait_for_all(completion, true)?;
        }
        Ok(Posted::InProgress)
    }

    /// Counts `completion` down when everything outstanding is finished.
    pub(super) fn wait_for_all(&self, completion: &Completion, cancels: bool) -> Result<(), PostError> {
        let sent = self.messages.try_borrow().map(|connection| connection.outbox().posted());
        let (Ok(sent), Some((finished, _))) = (sent, self.requests()) else { return Err(self.refuse()) };
        let mut flushes = self.flushes.borrow_mut();
        if flushes.len() >= self.shared.config.send_ring as usize {
            return Err(self.refuse());
        }
        flushes.push_back(Waiter { sent, finished, completion: completion.clone(), cancels });
        Ok(())
    }

    /// [`Self::wait_for_all`] would do.
    pub(super) fn can_wait(&self) -> bool {
        (self.gate.is_open() || self.gate.has(Block::Failed))
            && self.messages.try_borrow().is_ok()
            && self.requests().is_some()
            && self.flushes.borrow().len() < self.shared.config.send_ring as usize
    }

    /// The system says that one of the connections has room.
    pub(super) fn make_room(&self, token: Token) {
        if let Token::Messages(_) = token {
            if let Ok(mut connection) = self.messages.try_borrow_mut() {
                connection.has_room();
            }
        } else if let Ok(mut memory) = self.memory.try_borrow_mut()
            && let Some(memory) = memory.as_mut()
        {
            memory.connection.has_room();
        }
    }

    /// Sends what waits on both connections, as far as they take it.
    pub(super) fn send_all(&self) {
        let (poller, spare, round) = (&self.shared.poller, &self.shared.spare, self.shared.round.get());
        if let Ok(mut connection) = self.messages.try_borrow_mut()
            && let Err(error) = connection.send(poller, spare, round)
        {
            self.fail(PendingFailure::of_sending(Operation::ActiveMessage, &error));
        }
        if let Ok(mut memory) = self.memory.try_borrow_mut()
            && let Some(memory) = memory.as_mut()
            && let Err(error) = memory.connection.send(poller, spare, round)
        {
            self.fail(PendingFailure::of_sending(Operation::Unnamed, &error));
        }
        if self.has_waiters() {
            self.progress_later();
        }
    }

    /// Completes what has been sent or finished since; if a callback panics, the rest with the next
    /// progress.
    pub(super) fn settle(&self) {
        panics::or_else(|| self.settle_all(), || self.progress_later());
    }

    fn settle_all(&self) {
        let Ok(connection) = self.messages.try_borrow() else { return };
        let sent = connection.outbox().sent();
        drop(connection);
        loop {
            let done = self.sending.borrow_mut().pop_front_if(|(end, _)| *end <= sent);
            let Some((_, completion)) = done else { break };
            if let Some(completion) = completion {
                completion.count_down(Ok(()));
            }
        }
        loop {
            let (_, finished) = self.requests().unwrap_or_default();
            let done = self
                .flushes
                .borrow_mut()
                .pop_front_if(|waiter| !waiter.cancels && waiter.sent <= sent && waiter.finished <= finished);
            let Some(waiter) = done else { break };
            waiter.completion.count_down(Ok(()));
        }
    }

    /// What is posted next takes effect after what is outstanding. Operations on memory do so anyway; messages wait.
    pub(super) fn fence(&self) {
        if let Some((posted, finished)) = self.requests()
            && posted > finished
        {
            self.fence.set(posted);
        }
    }
}
