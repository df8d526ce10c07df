//! Waiting for what a peer does, which ends with the link.

use std::time::{Duration, Instant};

use thiserror::Error;

use super::{Link, LinkError, PeerName, State};
use crate::node::{Idle, Node};

/// Why what a caller waited for did not happen.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LinkWaitError {
    /// The link failed.
    #[error(transparent)]
    Failed(#[from] LinkError),
    /// The link is closed.
    #[error("link to {peer}: closed before what this side waited for")]
    Closed {
        /// The peer's node.
        peer: PeerName,
    },
    /// It did not happen in time.
    #[error(
        "link to {peer}: nothing within {:.1} s, and no failure of the peer was noticed by then; \
         whether and when a dead or stuck peer is noticed depends on Rules::keepalive and \
         Rules::liveness",
        .waited.as_secs_f64()
    )]
    TimedOut {
        /// The peer's node.
        peer: PeerName,
        /// The timeout.
        waited: Duration,
    },
}

impl Link {
    /// Makes progress until `done` returns true, as [`Node::until`], but not longer than the link
    /// lives.
    ///
    /// A dead peer is noticed as [the
    /// guide](barewire::guide::errors#keepalive-and-liveness-of-a-node) says.
    ///
    /// ```
    /// use barewire_wireup::link::{Options, State};
    /// use barewire_wireup::node::{Node, Rules};
    /// use std::{cell::Cell, rc::Rc, time::Duration};
    ///
    /// let mut node = Node::open(&Rules::default().only(["self"]))?;
    /// let greeted = Rc::new(Cell::new(false));
    /// let seen = Rc::clone(&greeted);
    /// node.set_handler(0, move |_| seen.set(true))?;
    /// let link = node.connect(&node.address(), Options::default())?;
    /// let _other = node.connect(&node.address(), Options::default())?;
    /// node.post(|| link.am_short(0, 0, b"hello"))?;
    /// link.until(&mut node, Duration::from_secs(10), || greeted.get())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// `done` is tested first: with a condition that the end of the link fulfils, such as
    /// `state() != Connected`, a link that has failed gives `Ok`.
    ///
    /// # Errors
    /// [`LinkWaitError`], if `done` returns false.
    pub fn until(
        &self,
        node: &mut Node,
        timeout: Duration,
        mut done: impl FnMut() -> bool,
    ) -> Result<(), LinkWaitError> {
        let peer = self.0.name();
        let (start, mut idle) = (Instant::now(), Idle::default());
        while !done() {
            // What arrived before the end of the link was delivered before its state changed.
            match (self.error(), self.state()) {
                (Some(error), _) => return Err(error.into()),
                (None, State::Closed(_)) => return Err(LinkWaitError::Closed { peer }),
                (None, _) => {}
            }
            if node.progress_or_rest(&mut idle) == 0 && start.elapsed() >= timeout && !done() {
                return Err(LinkWaitError::TimedOut { peer, waited: timeout });
            }
        }
        Ok(())
    }
}
