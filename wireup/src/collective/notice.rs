//! What ranks tell each other about an operation that has failed, so that all name the same rank: a
//! message with the number of that rank, 4 bytes, least significant byte first.

use std::time::{Duration, Instant};

use barewire::{Cause, FlushMode, PostError, Posted};

use super::{CollectiveError, Collectives, NOTICE};
use crate::link::Link;
use crate::node::{Idle, Node};
use crate::tag::{Buffer, FULL_MASK, Mode, Request, TagError};

/// How long a rank tries to tell others.
const NOTIFY: Duration = Duration::from_millis(200);

impl Collectives<'_> {
    /// Ends all operations because `rank` has failed outside of them, for example in
    /// [`Link::until`]. Tells the other ranks, as an operation that fails does, and returns its
    /// error, which names the rank that has failed first: `rank`, or the one on whose account
    /// `rank` has ended.
    ///
    /// A rank that has not responded in time counts as one that has failed.
    ///
    /// This reaches the ranks with which this one has exchanged messages of operations: call
    /// [`barrier`](Self::barrier) once at the start.
    ///
    /// ```
    /// # use barewire_wireup::collective::{CollectiveError, Collectives};
    /// # use barewire_wireup::{Node, Window};
    /// use std::{sync::atomic::Ordering::Acquire, time::Duration};
    ///
    /// fn receive(
    ///     node: &mut Node,
    ///     all: &Collectives<'_>,
    ///     (from, rank): (&Window, u32),
    /// ) -> Result<(), CollectiveError> {
    ///     let flag = from.memory.word(0)?;
    ///     let received = from.link.until(node, Duration::from_secs(30), || flag.load(Acquire) == 1);
    ///     received.map_err(|_| all.report(node, rank))
    /// }
    /// ```
    #[must_use = "the error names the rank that has failed"]
    pub fn report(&self, node: &mut Node, rank: u32) -> CollectiveError {
        let source = TagError::LinkFailed(Cause::Disconnected);
        self.explain(node, CollectiveError::Message { rank, source })
    }

    /// Explains the error of an operation.
    pub(super) fn conclude(
        &self,
        node: &mut Node,
        result: Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        result.map_err(|error| self.explain(node, error))
    }

    /// Finds out which rank has failed first, and tells the ranks with links to this one.
    fn explain(&self, node: &mut Node, mut error: CollectiveError) -> CollectiveError {
        use CollectiveError::{Ended, Link, Message, TimedOut};
        use TagError::{Closed, LinkFailed};
        if matches!(error, Link { .. } | Message { .. } | TimedOut { .. })
            && let Some(notice) = self.notice()
        {
            // What a rank said before it ended has arrived before the end of its link was noticed.
            error = notice;
        } else if let Message { rank: by, source: Closed | LinkFailed(_) } = error
            && let Some(rank) = self.peers.failed().filter(|rank| *rank != by)
        {
            // A rank that ends may do so because of another, whose link has failed before.
            error = Ended { rank, by };
        }
        if let Link { rank, .. }
        | Message { rank, .. }
        | TimedOut { rank, .. }
        | Ended { rank, .. } = error
        {
            self.notify(node, rank);
        }
        error
    }

    /// Tells the ranks with links to this one that a rank has failed.
    fn notify(&self, node: &mut Node, failed: u32) {
        let tag = self.tag(NOTICE, 0);
        // Also those that only the other rank has opened so far.
        for rank in self.peers.linked() {
            let _ = self.link(node, rank);
        }
        // Also the rank itself, which may only be late.
        let links =
            self.peers.tag_links().into_iter().filter(|(rank, link)| {
                *rank != self.peers.rank() && self.tags.failure(link).is_none()
            });
        let sent: Vec<_> = links
            .filter_map(|(rank, link)| {
                let request = self.tags.send(&link, tag, &failed.to_le_bytes(), Mode::Auto);
                Some((request, self.peers.link(node, rank).ok()?))
            })
            .collect();
        let has_left = |(request, link): &(Request, Link)| {
            let flush = || link.flush(FlushMode::Remote, None);
            request.poll().is_some_and(|sent| {
                sent.is_err()
                    || !matches!(flush(), Ok(Posted::InProgress) | Err(PostError::NoResource))
            })
        };
        let (start, mut idle) = (Instant::now(), Idle::default());
        while start.elapsed() < NOTIFY && !sent.iter().all(has_left) {
            if self.tags.progress(node) == 0 {
                node.progress_or_rest(&mut idle);
            }
        }
    }

    /// Takes what another rank says about the end of the operation.
    pub(super) fn notice(&self) -> Option<CollectiveError> {
        loop {
            let found = self.tags.probe(self.tag(NOTICE, 0), FULL_MASK)?;
            let from = found.envelope().link;
            let by = self.peers.tag_links().into_iter().find(|(_, link)| link.key() == from);
            let buffer = Buffer::new(size_of::<u32>()).ok()?;
            // It is as short as a message that has arrived whole, or is none.
            let received = found.receive(&buffer).poll();
            let rank = buffer.to_vec().try_into().map(u32::from_le_bytes);
            if let (Some((by, _)), Some(Ok(_)), Ok(rank)) = (by, received, rank)
                && rank < self.peers.size()
            {
                return Some(CollectiveError::Ended { rank, by });
            }
        }
    }
}
