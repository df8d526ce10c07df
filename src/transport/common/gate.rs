//! Why an endpoint takes no posts: one byte, tested once per post; and how many it took.

use std::cell::Cell;

use crate::counters::{Past, Tally};
use crate::error::PostError;

/// A reason. Several can hold at once; the one that lasts longest is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Block {
    /// Requests wait; a post would overtake them.
    Pending = 1 << 0,
    /// Not connected yet.
    Unconnected = 1 << 1,
    /// Failed or cancelled.
    Failed = 1 << 2,
    /// The interface is closed.
    Closed = 1 << 3,
    /// Connected, and the peer did not answer yet.
    Connecting = 1 << 4,
    /// Inherited by fork.
    Forked = 1 << 5,
}

/// Open when no reason holds.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    blocks: Cell<u8>,
    pub(crate) tally: Tally,
}

impl Gate {
    /// Open; what passed it is added to `past` when it is dropped.
    pub(crate) fn new(past: &Past) -> Self {
        Self { blocks: Cell::new(0), tally: Tally::new(past) }
    }

    /// # Errors
    /// The reason that lasts longest.
    #[inline(always)]
    pub(crate) fn check(&self) -> Result<(), PostError> {
        if self.is_open() { Ok(()) } else { Err(self.reason()) }
    }

    /// [`Self::check`] would let a post pass. Not counted.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        self.blocks.get() == 0
    }

    /// There is no room for a post until resources come back.
    #[inline(always)]
    pub(crate) fn refuse(&self) -> PostError {
        self.tally.refused();
        PostError::NoResource
    }

    #[cold]
    fn reason(&self) -> PostError {
        if self.has(Block::Forked) {
            PostError::Forked
        } else if self.has(Block::Closed) {
            PostError::Closed
        } else if self.has(Block::Failed) {
            PostError::EndpointFailed
        } else if self.has(Block::Unconnected) {
            PostError::NotConnected
        } else {
            PostError::NoResource
        }
    }

    pub(crate) fn has(&self, block: Block) -> bool {
        self.blocks.get() & block as u8 != 0
    }

    pub(crate) fn set(&self, block: Block, on: bool) {
        let others = self.blocks.get() & !(block as u8);
        self.blocks.set(others | if on { block as u8 } else { 0 });
    }

    /// This process is a child by fork of the one that made the endpoint: it stays closed here.
    pub(crate) fn close_in_child(&self) {
        self.set(Block::Closed, true);
        self.set(Block::Forked, true);
    }

    /// Neither failed nor closed.
    pub(crate) fn is_alive(&self) -> bool {
        self.blocks.get() & (Block::Failed as u8 | Block::Closed as u8) == 0
    }

    /// Only waiting requests or a peer that is about to answer stand in the way, or nothing.
    pub(crate) fn is_usable(&self) -> bool {
        self.blocks.get() & !(Block::Pending as u8 | Block::Connecting as u8) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lasting_reason_is_told() {
        let gate = Gate::default();
        assert_eq!(gate.check(), Ok(()));
        let order = [
            (Block::Pending, PostError::NoResource),
            (Block::Connecting, PostError::NoResource),
            (Block::Unconnected, PostError::NotConnected),
            (Block::Failed, PostError::EndpointFailed),
            (Block::Closed, PostError::Closed),
            (Block::Forked, PostError::Forked),
        ];
        for (block, reason) in order {
            gate.set(block, true);
            assert_eq!(gate.check(), Err(reason));
            assert_eq!(gate.is_usable(), matches!(block, Block::Pending | Block::Connecting));
            let ended = matches!(block, Block::Failed | Block::Closed | Block::Forked);
            assert_eq!(gate.is_alive(), !ended);
        }
        for (block, _) in order {
            gate.set(block, false);
        }
        assert_eq!(gate.check(), Ok(()));
    }
}
