//! Requests that wait on an endpoint for resources, and the order in which endpoints get their turn.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use crate::capability::Pending;
use crate::error::Busy;
use crate::panics::Panics;
use crate::status::PendingResult;
use crate::transport::common::gate::{Block, Gate};

pub(crate) type Request<E> = Box<dyn FnMut(&E) -> PendingResult>;

/// The queue of one endpoint, first in first out.
pub(crate) struct PendingQueue<E> {
    queue: RefCell<VecDeque<Request<E>>>,
    /// A request of this queue is running: it is the head, so its posts are in order.
    running: Cell<bool>,
}

impl<E> PendingQueue<E> {
    pub(crate) fn new() -> Self {
        Self { queue: RefCell::new(VecDeque::new()), running: Cell::new(false) }
    }

    /// No request waits or runs.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.borrow().is_empty() && !self.running.get()
    }

    fn pop(&self) -> Option<Request<E>> {
        self.queue.borrow_mut().pop_front()
    }
}

/// An endpoint that has a pending queue. While requests wait, and none of them runs, its gate is shut.
pub(crate) trait HasPending: Sized {
    fn pending(&self) -> &PendingQueue<Self>;
    fn gate(&self) -> &Gate;
    /// A request may wait: a post would return [`PostError::NoResource`](crate::PostError::NoResource).
    fn may_wait(&self) -> bool;
    /// Queues a request with the arbiter of the interface, and has progress run it.
    fn wait(&self, request: Request<Self>);

    /// Drops every waiting request, calling `purged` for each in order, also if some of it panics.
    fn purge(&self, mut purged: impl FnMut()) {
        let mut panics = Panics::default();
        while let Some(request) = self.pending().pop() {
            panics.catch(|| drop(request));
            panics.catch(&mut purged);
        }
        self.update_gate();
    }

    fn update_gate(&self) {
        let pending = self.pending();
        let blocked = !pending.running.get() && !pending.queue.borrow().is_empty();
        self.gate().set(Block::Pending, blocked);
    }

    /// Runs the first request. `None` if there is none, or one is running further up the stack.
    ///
    /// Requests run, and are dropped, while the queue is not borrowed: they may add, purge and drop
    /// endpoints.
    fn run_first(&self) -> Option<PendingResult> {
        let pending = self.pending();
        if pending.running.get() {
            return None;
        }
        let first = pending.pop()?;
        let turn = Turn::start(self);
        // Dropped before the turn ends, also if it panics.
        let mut request = first;
        let result = request(self);
        if result == PendingResult::Again {
            pending.queue.borrow_mut().push_front(request);
        } else {
            drop(request);
        }
        drop(turn);
        Some(result)
    }
}

impl<E: HasPending + 'static> Pending for E {
    fn pending_add(&self, request: impl FnMut(&Self) -> PendingResult + 'static) -> Result<(), Busy> {
        if !self.may_wait() {
            return Err(Busy);
        }
        self.wait(Box::new(request));
        Ok(())
    }

    fn pending_purge(&self, purged: impl FnMut()) {
        self.purge(purged);
    }
}

/// A request of this endpoint is running: it is the head, so its posts overtake nobody and the gate is open. Ends also
/// when the request panics.
struct Turn<'a, E: HasPending>(&'a E);

impl<'a, E: HasPending> Turn<'a, E> {
    fn start(endpoint: &'a E) -> Self {
        endpoint.pending().running.set(true);
        endpoint.update_gate();
        Self(endpoint)
    }
}

impl<E: HasPending> Drop for Turn<'_, E> {
    fn drop(&mut self) {
        self.0.pending().running.set(false);
        self.0.update_gate();
    }
}

/// Resets the flag also when a request panics.
struct Running<'a>(&'a Cell<bool>);

impl<'a> Running<'a> {
    fn start(flag: &'a Cell<bool>) -> Self {
        flag.set(true);
        Self(flag)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// The endpoints of an interface that have waiting requests. Each gets one request per round, so none starves.
pub(crate) struct Arbiter<E> {
    waiting: RefCell<VecDeque<E>>,
    running: Cell<bool>,
}

impl<E: HasPending + Clone> Arbiter<E> {
    pub(crate) fn new() -> Self {
        Self { waiting: RefCell::new(VecDeque::new()), running: Cell::new(false) }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.try_borrow().is_ok_and(|waiting| waiting.is_empty())
    }

    /// Queues a request on `endpoint`.
    pub(crate) fn add(&self, endpoint: E, request: Request<E>) {
        let first = endpoint.pending().is_idle();
        endpoint.pending().queue.borrow_mut().push_back(request);
        endpoint.gate().tally.waited();
        endpoint.update_gate();
        if first {
            self.waiting.borrow_mut().push_back(endpoint);
        }
    }

    /// Runs requests round by round until each endpoint that still waits has returned `Again`.
    /// Returns how many requests were done. A request that panics is dropped; its endpoint keeps its
    /// other requests and its turn.
    pub(crate) fn dispatch(&self) -> usize {
        if self.is_empty() || self.running.get() {
            return 0;
        }
        let _running = Running::start(&self.running);
        let mut done = 0;
        let mut refused = 0;
        loop {
            let (endpoint, left) = {
                let mut waiting = self.waiting.borrow_mut();
                let Some(endpoint) = waiting.pop_front() else { return done };
                (endpoint, waiting.len())
            };
            let endpoint = Served { arbiter: self, endpoint };
            match endpoint.endpoint.run_first() {
                Some(PendingResult::Done) => {
                    done += 1;
                    refused = 0;
                }
                Some(PendingResult::Again) => refused += 1,
                None => {}
            }
            drop(endpoint);
            if refused > left {
                return done;
            }
        }
    }

    /// Forgets every endpoint and drops their requests.
    pub(crate) fn clear(&self) {
        let mut panics = Panics::default();
        loop {
            let endpoint = self.waiting.borrow_mut().pop_front();
            let Some(endpoint) = endpoint else { return };
            panics.catch(|| endpoint.purge(|| {}));
        }
    }
}

/// An endpoint whose turn it is. It goes back if requests wait on it, also after one that panics.
struct Served<'a, E: HasPending + Clone> {
    arbiter: &'a Arbiter<E>,
    endpoint: E,
}

impl<E: HasPending + Clone> Drop for Served<'_, E> {
    fn drop(&mut self) {
        if !self.endpoint.pending().is_idle() {
            self.arbiter.waiting.borrow_mut().push_back(self.endpoint.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[derive(Clone)]
    struct Endpoint(Rc<(u32, PendingQueue<Endpoint>, Gate)>);

    impl HasPending for Endpoint {
        fn pending(&self) -> &PendingQueue<Self> {
            &self.0.1
        }

        fn gate(&self) -> &Gate {
            &self.0.2
        }

        fn may_wait(&self) -> bool {
            true
        }

        fn wait(&self, _: Request<Self>) {
            unreachable!("the tests call the arbiter themselves")
        }
    }

    #[test]
    fn keeps_order_over_again_takes_turns_and_purges_once() {
        let endpoints: Vec<_> =
            (0..3).map(|i| Endpoint(Rc::new((i, PendingQueue::new(), Gate::default())))).collect();
        let arbiter = Arbiter::new();
        let seen: Rc<RefCell<Vec<(u32, u32)>>> = Rc::default();
        let budget = Rc::new(Cell::new(4));
        for i in 0..5 {
            for endpoint in &endpoints {
                let (seen, budget) = (Rc::clone(&seen), Rc::clone(&budget));
                arbiter.add(
                    endpoint.clone(),
                    Box::new(move |endpoint: &Endpoint| {
                        let Some(left) = u32::checked_sub(budget.get(), 1) else {
                            return PendingResult::Again;
                        };
                        budget.set(left);
                        assert!(endpoint.gate().check().is_ok());
                        seen.borrow_mut().push((endpoint.0.0, i));
                        PendingResult::Done
                    }),
                );
            }
        }
        assert!(endpoints[0].gate().has(Block::Pending));
        assert_eq!(arbiter.dispatch(), 4);
        assert_eq!(*seen.borrow(), [(0, 0), (1, 0), (2, 0), (0, 1)]);
        assert_eq!(arbiter.dispatch(), 0);
        let mut purged = 0;
        endpoints[1].purge(|| purged += 1);
        assert_eq!(purged, 4);
        budget.set(100);
        assert_eq!(arbiter.dispatch(), 7);
        assert!(arbiter.is_empty());
        for endpoint in [0, 2] {
            let order: Vec<_> =
                seen.borrow().iter().filter(|(e, _)| *e == endpoint).map(|(_, i)| *i).collect();
            assert_eq!(order, [0, 1, 2, 3, 4]);
        }
        assert!(endpoints.iter().all(|endpoint| endpoint.pending().is_idle()));
        assert!(endpoints.iter().all(|endpoint| endpoint.gate().check().is_ok()));
    }

    #[test]
    fn a_request_that_panics_is_dropped_and_the_others_run() {
        let endpoint = Endpoint(Rc::new((0, PendingQueue::new(), Gate::default())));
        let arbiter = Arbiter::new();
        let ran = Rc::new(Cell::new(0));
        arbiter.add(endpoint.clone(), Box::new(|_| panic!("expected by the test")));
        for _ in 0..2 {
            let ran = Rc::clone(&ran);
            let request = move |_: &Endpoint| {
                ran.set(ran.get() + 1);
                PendingResult::Done
            };
            arbiter.add(endpoint.clone(), Box::new(request));
        }
        let dispatch = std::panic::AssertUnwindSafe(|| arbiter.dispatch());
        assert!(std::panic::catch_unwind(dispatch).is_err());
        assert_eq!((ran.get(), arbiter.is_empty()), (0, false));
        assert_eq!((arbiter.dispatch(), ran.get()), (2, 2));
        assert!(arbiter.is_empty());
        assert_eq!(endpoint.gate().check(), Ok(()));
    }

    #[test]
    fn a_purge_that_panics_purges_everything() {
        let endpoint = Endpoint(Rc::new((0, PendingQueue::new(), Gate::default())));
        let arbiter = Arbiter::new();
        for _ in 0..3 {
            arbiter.add(endpoint.clone(), Box::new(|_: &Endpoint| PendingResult::Done));
        }
        let mut purged = 0;
        let purge = std::panic::AssertUnwindSafe(|| {
            endpoint.purge(|| {
                purged += 1;
                panic!("expected by the test");
            });
        });
        assert!(std::panic::catch_unwind(purge).is_err());
        assert_eq!(purged, 3);
        assert_eq!(endpoint.gate().check(), Ok(()));
        assert_eq!(arbiter.dispatch(), 0);
    }
}
