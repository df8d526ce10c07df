//! Calls that make progress until something has happened, for programs without a loop of their own.

use std::time::{Duration, Instant};

use barewire::{Completion, Post, PostError, WaitError};

use super::Node;

impl Node {
    /// Posts, and makes progress and posts again for as long as there is no room.
    ///
    /// A link that is not connected yet has no room. It has failed at the latest when its deadline
    /// passes, and then refuses posts, so this returns.
    ///
    /// # Errors
    /// Those of `post`, except [`PostError::NoResource`].
    pub fn post<T>(
        &mut self,
        mut post: impl FnMut() -> Result<T, PostError>,
    ) -> Result<T, PostError> {
        loop {
            match post() {
                Err(PostError::NoResource) => self.progress(),
                result => return result,
            };
        }
    }

    /// Makes progress until `done` returns true. Returns false if `timeout` passes first.
    ///
    /// ```
    /// use barewire_wireup::link::{Options, State};
    /// use barewire_wireup::node::{Node, Rules};
    /// use std::time::Duration;
    ///
    /// let mut node = Node::open(&Rules::default().only(["self"]))?;
    /// let ends = [(); 2].map(|()| node.connect(&node.address(), Options::default()));
    /// let [Ok(here), Ok(_there)] = ends else { panic!("{ends:?}") };
    /// assert!(node.until(Duration::from_secs(10), || here.state() == State::Connected));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn until(&mut self, timeout: Duration, mut done: impl FnMut() -> bool) -> bool {
        let start = Instant::now();
        while !done() {
            if self.progress() == 0 && start.elapsed() >= timeout {
                return done();
            }
        }
        true
    }

    /// Posts one operation with a completion, and makes progress until it is finished. While there is
    /// no room, makes progress and posts again.
    ///
    /// ```
    /// # use barewire_wireup::link::{Options, State};
    /// # use barewire_wireup::node::{Node, Rules};
    /// # use std::time::Duration;
    /// use barewire::FlushMode;
    ///
    /// # let mut node = Node::open(&Rules::default().only(["self"]))?;
    /// # let ends = [(); 2].map(|()| node.connect(&node.address(), Options::default()));
    /// # let [Ok(link), Ok(_there)] = ends else { panic!("{ends:?}") };
    /// # assert!(node.until(Duration::from_secs(10), || link.state() == State::Connected));
    /// node.complete(|done| link.flush(FlushMode::Remote, Some(done)))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`WaitError::Post`] if the post is refused for another reason, [`WaitError::Operation`]
    pub fn complete(&mut self, mut post: impl FnMut(&Completion) -> Post) -> Result<(), WaitError> {
        let completion = Completion::counter();
        let _ = self.post(|| post(&completion))?;
        // A forked child never gets here: its posts are refused.
        while completion.pending() > 0 {
            if self.progress() == 0 {
                std::thread::yield_now();
            }
        }
        Ok(completion.status()?)
    }
}
