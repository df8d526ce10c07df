//! Calls that make progress until something has happened, for programs without a loop of their own.

use std::time::{Duration, Instant};

use barewire::{Completion, Post, PostError, WaitError};

use super::Node;

/// How long a call polls without an event before it yields the CPU after each poll, and before it
/// sleeps.
const SPIN: Duration = Duration::from_micros(50);
const YIELD: Duration = Duration::from_millis(1);
/// A thread that yields for longer has waited for one that does not yield. A sleep costs less then:
/// the kernel runs a thread that wakes up before those that have used up their time.
const CROWDED: Duration = Duration::from_micros(200);
/// So many rests later, a call yields again.
const RESTS: u32 = 1000;
/// The longest sleep. Messages end it; what peers write to memory does not.
const SLEEP: Duration = Duration::from_millis(100);

/// Since when a call has seen no event.
#[derive(Debug, Default)]
pub(crate) struct Idle(Option<Instant>);

impl Node {
    /// Makes progress. After a while without an event, yields the CPU, and after a longer one sleeps
    /// for an eighth of the time that has passed: a host may have more ranks than CPUs.
    pub(crate) fn progress_or_rest(&mut self, idle: &mut Idle) -> usize {
        let mut events = self.progress();
        if events == 0 {
            let now = Instant::now();
            let passed = now.saturating_duration_since(*idle.0.get_or_insert(now));
            let sleeps = passed >= SPIN && self.crowded > 0;
            if sleeps || passed >= YIELD {
                self.crowded = self.crowded.saturating_sub(1);
                let time = (passed / 8).clamp(SPIN, SLEEP);
                events = self.wait(Some(time)).unwrap_or_else(|_| {
                    std::thread::sleep(time);
                    0
                });
            } else if passed >= SPIN {
                std::thread::yield_now();
                if now.elapsed() > CROWDED {
                    self.crowded = RESTS;
                }
            }
        }
        if events > 0 {
            idle.0 = None;
        }
        events
    }

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
        let mut idle = Idle::default();
        loop {
            match post() {
                Err(PostError::NoResource) => self.progress_or_rest(&mut idle),
                result => return result,
            };
        }
    }

    /// Makes progress until `done` returns true. Returns false if `timeout` passes first.
    ///
    /// While nothing happens, `until`, `post` and `complete` poll for 50 us, then yield the CPU after each
    /// poll, and after 1 ms sleep until a message arrives, or for an eighth of the time that has passed
    /// (what peers put into memory ends no sleep). While other threads occupy the CPUs, they sleep
    /// instead of yielding. A loop that calls [`progress`](Self::progress) never sleeps.
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
        let (start, mut idle) = (Instant::now(), Idle::default());
        while !done() {
            if self.progress_or_rest(&mut idle) == 0 && start.elapsed() >= timeout {
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
        let mut idle = Idle::default();
        // A forked child never gets here: its posts are refused.
        while completion.pending() > 0 {
            self.progress_or_rest(&mut idle);
        }
        Ok(completion.status()?)
    }
}
