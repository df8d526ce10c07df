//! The post state of an endpoint: one byte that each post tests, and the count of posts.

use std::cell::Cell;

use crate::base::counters::{Past, Tally};
#[cfg(any(feature = "mlx5", feature = "verbs"))]
use crate::base::error::Operation;
use crate::base::error::PostError;

/// How far the probes of an endpoint are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Probed {
    /// It was connected after the last round. The peer may not have connected its end yet, so the
    /// next round does not probe it.
    #[default]
    Never,
    /// The next round probes it.
    Next,
    /// It was probed.
    Yes,
}

/// A reason to refuse posts. Several can hold at once; the most persistent one is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PostBlock {
    /// Pending requests wait; a post would overtake them.
    Pending = 1 << 0,
    /// Not connected yet.
    Unconnected = 1 << 1,
    /// Failed or cancelled.
    Failed = 1 << 2,
    /// The interface is closed.
    Closed = 1 << 3,
    /// Connected, but the peer has not responded yet.
    Connecting = 1 << 4,
    /// Created before a fork, used in the child.
    Forked = 1 << 5,
    /// Others wait for what the endpoint holds, until its outstanding operations are complete.
    #[cfg(feature = "mlx5")]
    Yielding = 1 << 6,
}

/// Whether an endpoint accepts posts: it does while no reason holds.
#[derive(Debug, Default)]
pub(crate) struct PostState {
    blocks: Cell<u8>,
    /// Whether a keepalive has probed the peer.
    pub(crate) probed: Cell<Probed>,
    pub(crate) tally: Tally,
}

impl PostState {
    /// Accepts posts. On drop, its counts are added to `past`.
    pub(crate) fn new(past: &Past) -> Self {
        Self { blocks: Cell::new(0), probed: Cell::default(), tally: Tally::new(past) }
    }

    /// # Errors
    /// The most persistent reason.
    #[inline(always)]
    pub(crate) fn check(&self) -> Result<(), PostError> {
        if self.is_open() { Ok(()) } else { Err(self.reason()) }
    }

    /// Returns whether [`Self::check`] would accept a post.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        self.blocks.get() == 0
    }

    /// Counts a post that was refused for lack of resources and returns its error.
    #[inline(always)]
    pub(crate) fn refuse(&self) -> PostError {
        self.tally.refused();
        PostError::NoResource
    }

    #[cold]
    fn reason(&self) -> PostError {
        if self.has(PostBlock::Forked) {
            PostError::Forked
        } else if self.has(PostBlock::Closed) {
            PostError::Closed
        } else if self.has(PostBlock::Failed) {
            PostError::EndpointFailed
        } else if self.has(PostBlock::Unconnected) {
            PostError::NotConnected
        } else {
            PostError::NoResource
        }
    }

    pub(crate) fn has(&self, block: PostBlock) -> bool {
        self.blocks.get() & block as u8 != 0
    }

    pub(crate) fn set(&self, block: PostBlock, on: bool) {
        let others = self.blocks.get() & !(block as u8);
        self.blocks.set(others | if on { block as u8 } else { 0 });
    }

    /// Returns the operation to report as failed: a read of an endpoint that has `nothing` of the
    /// user outstanding is a probe.
    #[cfg(any(feature = "mlx5", feature = "verbs"))]
    pub(crate) fn failed_operation(&self, operation: Operation, nothing: bool) -> Operation {
        let reads = matches!(operation, Operation::Get | Operation::Flush);
        if reads && nothing && self.probed.get() == Probed::Yes {
            Operation::Check
        } else {
            operation
        }
    }

    /// Closes the endpoint in a child process: it belongs to the parent.
    pub(crate) fn close_in_child(&self) {
        self.set(PostBlock::Closed, true);
        self.set(PostBlock::Forked, true);
    }

    /// Returns whether the endpoint has neither failed nor been closed.
    pub(crate) fn is_alive(&self) -> bool {
        self.blocks.get() & (PostBlock::Failed as u8 | PostBlock::Closed as u8) == 0
    }

    /// Returns whether posts are accepted, or only wait for pending requests or for the peer's
    /// response.
    pub(crate) fn is_usable(&self) -> bool {
        let passing = PostBlock::Pending as u8 | PostBlock::Connecting as u8;
        #[cfg(feature = "mlx5")]
        let passing = passing | PostBlock::Yielding as u8;
        self.blocks.get() & !passing == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lasting_reason_is_told() {
        let posting = PostState::default();
        assert_eq!(posting.check(), Ok(()));
        let order = [
            (PostBlock::Pending, PostError::NoResource),
            (PostBlock::Connecting, PostError::NoResource),
            (PostBlock::Unconnected, PostError::NotConnected),
            (PostBlock::Failed, PostError::EndpointFailed),
            (PostBlock::Closed, PostError::Closed),
            (PostBlock::Forked, PostError::Forked),
        ];
        for (block, reason) in order {
            posting.set(block, true);
            assert_eq!(posting.check(), Err(reason));
            assert_eq!(
                posting.is_usable(),
                matches!(block, PostBlock::Pending | PostBlock::Connecting)
            );
            let ended = matches!(block, PostBlock::Failed | PostBlock::Closed | PostBlock::Forked);
            assert_eq!(posting.is_alive(), !ended);
        }
        for (block, _) in order {
            posting.set(block, false);
        }
        assert_eq!(posting.check(), Ok(()));
    }
}
