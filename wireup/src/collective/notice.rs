//! What ranks tell each other about an operation that has failed, so that all name the same rank: a
//! message with the number of that rank, 4 bytes, least significant byte first, and one byte that
//! is 1 if the rank is late and may live.

use std::time::{Duration, Instant};

use barewire::{Cause, FlushMode, PostError, Posted};

use super::{CollectiveError, Collectives, NOTICE};
use crate::link::{Link, LinkError, LinkWaitError};
use crate::node::{Idle, Node};
use crate::tag::{Buffer, FULL_MASK, Mode, Request, TagError};

/// How long a rank tries to tell others.
const NOTIFY: Duration = Duration::from_millis(200);
/// Bytes of a notice.
const NOTICE_BYTES: usize = 5;

/// What a rank did outside of an operation, for [`Collectives::report`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// Its link has failed or is closed.
    Died(Cause),
    /// It has not responded within this time, or within
    /// [`Rules::deadline`](crate::Rules::deadline), and may live.
    Late(Option<Duration>),
}

impl From<LinkWaitError> for Failure {
    fn from(error: LinkWaitError) -> Self {
        match error {
            LinkWaitError::TimedOut { waited, .. } => Self::Late(Some(waited)),
            LinkWaitError::Failed(error) if error.is_late() => Self::Late(None),
            LinkWaitError::Failed(LinkError::Lane { error, .. }) => Self::Died(error.cause),
            LinkWaitError::Failed(_) | LinkWaitError::Closed { .. } => {
                Self::Died(Cause::Disconnected)
            }
        }
    }
}

impl Collectives<'_> {
    /// Ends all operations because `rank` has failed outside of them, for example in
    /// [`Link::until`], whose error says how. Tells the other ranks, as an operation that fails
    /// does, and returns its error, which names the rank that has failed first: `rank`, or the one
    /// on whose account `rank` has ended.
    ///
    /// A rank that was too slow ends the operations, too, but no rank says that it has died:
    /// [`CollectiveError::TimedOut`] here, and [`CollectiveError::Ended`] with `late` on the
    /// others.
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
    ///     received.map_err(|error| all.report(node, rank, error))
    /// }
    /// ```
    #[must_use = "the error names the rank that has failed"]
    pub fn report(
        &self,
        node: &mut Node,
        rank: u32,
        failure: impl Into<Failure>,
    ) -> CollectiveError {
        let error = match failure.into() {
            Failure::Died(cause) => {
                CollectiveError::Message { rank, source: TagError::LinkFailed(cause) }
            }
            Failure::Late(waited) => {
                let waited = waited.unwrap_or_else(|| node.deadline());
                CollectiveError::TimedOut { rank, waited }
            }
        };
        self.explain(node, error)
    }

    /// Explains the error of an operation.
    pub(super) fn conclude(
        &self,
        node: &mut Node,
        result: Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        result.map_err(|error| self.explain(node, error))
    }

    /// As [`Self::conclude`], for an operation that succeeds only if all ranks take part in it.
    /// `now` is how many links of the node had ended when it began.
    pub(super) fn conclude_of_all(
        &mut self,
        node: &mut Node,
        now: u64,
        result: Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        if result.is_ok() {
            // A rank that takes part in this operation has lived after this rank began the one
            // before. It may have sent what belongs to this operation, and ended,
            // before this rank began it. So links that had failed before the earlier
            // operation explain no later failure.
            self.peers.tolerate(self.before);
        }
        self.before = now;
        self.conclude(node, result)
    }

    /// Finds out which rank has failed first, and tells the ranks with links to this one.
    fn explain(&self, node: &mut Node, mut error: CollectiveError) -> CollectiveError {
        use CollectiveError::{Ended, Link, Message, TimedOut};
        use TagError::{Closed, Late, LinkFailed};
        if matches!(error, Link { .. } | Message { .. } | TimedOut { .. })
            && let Some(notice) = self.notice()
        {
            // What a rank said before it ended has arrived before the end of its link was noticed.
            error = notice;
        } else if let Message { rank: by, source: Closed | LinkFailed(_) } = error
            && let Some(rank) = self.peers.failed().filter(|rank| *rank != by)
        {
            // A rank that ends may do so because of another, whose link has failed before.
            error = Ended { rank, by, late: false };
        }
        match error {
            // A rank to which this one has no link may live.
            Link { rank, .. } | Message { rank, source: Late } | TimedOut { rank, .. } => {
                self.notify(node, rank, true);
            }
            Message { rank, .. } => self.notify(node, rank, false),
            Ended { rank, late, .. } => self.notify(node, rank, late),
            _ => {}
        }
        error
    }

    /// Tells the ranks with links to this one that a rank has failed, or is late.
    fn notify(&self, node: &mut Node, failed: u32, late: bool) {
        let tag = self.tag(NOTICE, 0);
        let mut notice = [u8::from(late); NOTICE_BYTES];
        notice[..4].copy_from_slice(&failed.to_le_bytes());
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
                let request = self.tags.send(&link, tag, &notice, Mode::Auto);
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
            let buffer = Buffer::new(NOTICE_BYTES).ok()?;
            // It is as short as a message that has arrived whole, or is none.
            let received = found.receive(&buffer).poll();
            if let (Some((by, _)), Some(Ok(_))) = (by, received)
                && let [a, b, c, d, late] = buffer.to_vec()[..]
                && let rank = u32::from_le_bytes([a, b, c, d])
                && rank < self.peers.size()
            {
                return Some(CollectiveError::Ended { rank, by, late: late != 0 });
            }
        }
    }
}
