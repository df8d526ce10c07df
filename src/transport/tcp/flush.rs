//! Sending, and waiting for what is outstanding.

use super::connection::Connection;
use super::failure::PendingFailure;
use super::poller::Token;
use super::state::State;
use crate::base::completion::Completion;
use crate::base::error::{Operation, PostError};
use crate::base::panics;

impl State {
    /// Lets `completion` wait until everything outstanding is finished.
    pub(super) fn wait_for_all(
        &self,
        completion: &Completion,
        cancels: bool,
    ) -> Result<(), PostError> {
        let mut waiters = self.waiters.borrow_mut();
        match self.posted().filter(|_| waiters.flushes() < self.shared.config.send_ring as usize) {
            Some(posted) => waiters.add_flush(posted, completion.begin(), cancels),
            None => return Err(self.refuse()),
        }
        Ok(())
    }

    /// Sends what was posted on `connection`: at once the first time in a round of progress, or if
    /// much was copied; else in the next round.
    #[inline]
    pub(super) fn push(&self, connection: &mut Connection, operation: Operation) {
        let round = self.shared.round.get();
        if connection.has_sent_in(round) && connection.outbox().copied() < self.shared.eager {
            return self.schedule();
        }
        if let Err(error) = connection.send(&self.shared.poller, &self.shared.spare, round) {
            self.fail(PendingFailure::of_sending(operation, &error));
        }
        if !self.waiters.borrow().is_empty() {
            self.schedule();
        }
    }

    /// Epoll reported that one of the connections has room.
    pub(super) fn make_room(&self, token: Token) {
        if let Token::Messages(_) = token {
            if let Ok(mut connection) = self.messages.try_borrow_mut() {
                connection.has_room(&self.shared.spare);
            }
        } else if let Ok(mut memory) = self.memory.try_borrow_mut()
            && let Some(memory) = &mut *memory
        {
            memory.connection().has_room(&self.shared.spare);
        }
        self.send_all();
        self.replenish();
        self.settle();
    }

    /// Sends what waits on both connections, as far as the kernel takes it.
    pub(super) fn send_all(&self) {
        let send = |connection: &mut Connection, operation| {
            let sent =
                connection.send(&self.shared.poller, &self.shared.spare, self.shared.round.get());
            if let Err(error) = sent {
                self.fail(PendingFailure::of_sending(operation, &error));
            }
        };
        if let Ok(mut connection) = self.messages.try_borrow_mut() {
            send(&mut connection, Operation::ActiveMessage);
        }
        if let Ok(mut memory) = self.memory.try_borrow_mut()
            && let Some(memory) = &mut *memory
        {
            send(memory.connection(), Operation::Unnamed);
        }
        if !self.waiters.borrow().is_empty() {
            self.schedule();
        }
    }

    /// Completes what is done. If a callback panics, the next progress completes the rest.
    pub(super) fn settle(&self) {
        panics::or_else(|| self.settle_all(), || self.schedule());
    }

    fn settle_all(&self) {
        while let Some(done) = self.done() {
            let completion = self.waiters.borrow_mut().pop_done(done);
            let Some(completion) = completion else { break };
            completion.finish(Ok(()));
        }
    }
}
