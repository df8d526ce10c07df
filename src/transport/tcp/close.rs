//! How connections end: in order, or not.

use std::time::{Duration, Instant};

use barewire_tcp::message::{Header, Kind};
use barewire_tcp::socket::Socket;

use super::lane::Link;
use super::state::{State, Trouble};
use crate::error::{Cause, Operation, OperationError};
use crate::transport::common::gate::Block;

/// How long a connection that was closed in order may wait for the peer to close it, too.
const LINGER: Duration = Duration::from_secs(1);

/// A connection that was closed in order: what the peer still sends is read and dropped, since bytes that nobody reads would turn the
/// close into a reset, which may overtake the last messages.
#[derive(Debug)]
pub(super) struct Lingering {
    socket: Socket,
    until: Instant,
}

impl Lingering {
    /// True once it may be dropped.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        // Drained in any case: it may have been here unseen for longer.
        self.socket.drain() || now >= self.until
    }
}

impl State {
    /// The peer closed the connection in order. Who has nothing outstanding is told when he uses it.
    #[cold]
    pub(super) fn part(&self) {
        if !self.is_idle() {
            let detail = "it closed the connection before everything had reached it";
            return self.fail_later(Trouble::new(Operation::Unnamed, Cause::Disconnected, detail));
        }
        let mut lane = self.messages.borrow_mut();
        lane.close(&self.shared.epoll, &self.shared.spare);
        lane.link = Link::Parted;
    }

    /// The last handle is gone, or the interface closes. What is outstanding is finished by [`Self::give_up`].
    pub(super) fn stop(&self, reason: Block) {
        let in_order = self.gate.is_alive();
        self.gate.set(reason, true);
        self.canceled.set(true);
        self.hang_up(in_order);
    }

    /// Ends both connections. `in_order`: if everything was sent, the peer is told that nothing follows.
    pub(super) fn hang_up(&self, in_order: bool) {
        let shared = &*self.shared;
        if let Ok(mut lane) = self.messages.try_borrow_mut() {
            let whole = in_order && matches!(lane.link, Link::Open(_)) && {
                let farewell = Header { kind: Kind::Farewell, length: 0 }.to_bytes();
                lane.outbox.push(&shared.spare, &farewell)
                    && lane.send(&shared.epoll, &shared.spare, shared.round.get()).unwrap_or(false)
            };
            if let Some(socket) = lane.close(&shared.epoll, &shared.spare)
                && whole
            {
                socket.finish();
                if !socket.drain() {
                    let until = Instant::now() + LINGER;
                    shared.lingering.borrow_mut().push(Lingering { socket, until });
                }
            }
        }
        if let Ok(mut memory) = self.memory.try_borrow_mut()
            && let Some(memory) = memory.as_mut()
        {
            memory.lane.close(&shared.epoll, &shared.spare);
        }
        if let Ok(mut rest) = self.rest.try_borrow_mut() {
            rest.clear();
        }
        self.early.take();
    }

    /// Finishes what is left of a closed endpoint.
    pub(super) fn abandon(&self) {
        // A function that packed for a post may have dropped the endpoint.
        self.hang_up(false);
        self.give_up(OperationError::CANCELED);
    }
}
