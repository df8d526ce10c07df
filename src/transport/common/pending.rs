//! Requests that wait on an endpoint for resources, and the round-robin order of endpoints.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use crate::base::capability::Pending;
use crate::base::error::Busy;
use crate::base::panics::Panics;
use crate::base::pending::PendingRequest;
use crate::base::status::PendingResult;
use crate::transport::common::post_state::{PostBlock, PostState};

/// A request as it was added.
pub(crate) enum Request<E: HasPending> {
    /// Through the transport's own API.
    Static(PendingRequest<E>),
    /// Through the dynamic API.
    Dynamic(PendingRequest<E::Dynamic>),
}

impl<E: HasPending> Request<E> {
    fn run(&mut self, endpoint: &E) -> PendingResult {
        match self {
            Self::Static(request) => request.run(endpoint),
            Self::Dynamic(request) => request.run(&endpoint.to_dynamic()),
        }
    }

    fn into_static(self) -> PendingRequest<E>
    where
        E: 'static,
    {
        match self {
            Self::Static(request) => request,
            Self::Dynamic(mut request) => {
                PendingRequest::new(move |endpoint: &E| request.run(&endpoint.to_dynamic()))
            }
        }
    }
}

/// A request in a queue.
struct Waiting<E: HasPending> {
    request: Request<E>,
    /// Position among all requests of the interface, by the time at which they were added.
    number: u64,
}

/// The pending requests of one endpoint, first in, first out.
pub(crate) struct PendingQueue<E: HasPending> {
    queue: RefCell<VecDeque<Waiting<E>>>,
    /// A request of this queue is running. It is the head, so its posts are in order.
    running: Cell<bool>,
    /// The arbiter serves the endpoint, or has it in its queue.
    is_queued: Cell<bool>,
}

impl<E: HasPending> PendingQueue<E> {
    pub(crate) fn new() -> Self {
        Self {
            queue: RefCell::new(VecDeque::new()),
            running: Cell::new(false),
            is_queued: Cell::new(false),
        }
    }

    /// Returns whether no request waits or runs.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.borrow().is_empty() && !self.running.get()
    }

    fn pop(&self) -> Option<Waiting<E>> {
        self.queue.borrow_mut().pop_front()
    }
}

/// An endpoint with a pending queue. While requests wait and none runs, it refuses posts.
pub(crate) trait HasPending: Sized {
    /// A reference that does not keep the endpoint open.
    type Weak;
    /// The endpoint of the dynamic API.
    type Dynamic: 'static;

    fn to_dynamic(&self) -> Self::Dynamic;
    fn downgrade(&self) -> Self::Weak;
    /// Returns a handle, unless the last one was dropped.
    fn upgrade(endpoint: &Self::Weak) -> Option<Self>;
    fn pending(&self) -> &PendingQueue<Self>;
    fn post_state(&self) -> &PostState;
    /// Returns whether a request may be queued: a post would return
    /// [`PostError::NoResource`](crate::PostError::NoResource).
    fn may_wait(&self) -> bool;
    /// Queues a request with the interface's arbiter; progress runs it.
    fn wait(&self, request: Request<Self>);

    /// Drops every waiting request and calls `purged` for each, in order, also after a panic of
    /// one.
    fn purge(&self, mut purged: impl FnMut()) {
        let mut panics = Panics::default();
        while let Some(request) = self.pending().pop() {
            panics.catch(|| drop(request));
            panics.catch(&mut purged);
        }
        self.update_gate();
    }

    /// Takes the waiting requests that were added through the dynamic API, in order.
    fn take_dynamic(&self) -> Vec<PendingRequest<Self::Dynamic>> {
        let mut queue = self.pending().queue.borrow_mut();
        let mut taken = Vec::with_capacity(queue.len());
        for Waiting { request, number } in std::mem::take(&mut *queue) {
            match request {
                Request::Dynamic(request) => taken.push(request),
                request @ Request::Static(_) => queue.push_back(Waiting { request, number }),
            }
        }
        drop(queue);
        self.update_gate();
        taken
    }

    fn update_gate(&self) {
        let pending = self.pending();
        let blocked = !pending.running.get() && !pending.queue.borrow().is_empty();
        self.post_state().set(PostBlock::Pending, blocked);
    }

    /// Runs the first request, if its number is less than `end`; otherwise it waits as if it had
    /// returned `Again`. `None` if there is no request, or one is running further up the stack.
    ///
    /// The queue is not borrowed while a request runs or is dropped: it may add, purge and drop
    /// endpoints.
    fn run_first(&self, end: u64) -> Option<PendingResult> {
        let pending = self.pending();
        if pending.running.get() {
            return None;
        }
        if pending.queue.borrow().front()?.number >= end {
            return Some(PendingResult::Again);
        }
        let first = pending.pop()?;
        let turn = Turn::start(self);
        // Declared after the turn, so the request is dropped before the turn ends, also in a panic.
        let mut first = first;
        let result = first.request.run(self);
        if result == PendingResult::Again {
            pending.queue.borrow_mut().push_front(first);
        } else {
            drop(first);
        }
        drop(turn);
        Some(result)
    }
}

impl<E: HasPending + 'static> Pending for E {
    fn pending_add(
        &self,
        request: impl FnMut(&Self) -> PendingResult + 'static,
    ) -> Result<(), Busy> {
        if !self.may_wait() {
            return Err(Busy);
        }
        self.wait(Request::Static(PendingRequest::new(request)));
        Ok(())
    }

    fn pending_add_request(
        &self,
        request: PendingRequest<Self>,
    ) -> Result<(), PendingRequest<Self>> {
        if !self.may_wait() {
            return Err(request);
        }
        self.wait(Request::Static(request));
        Ok(())
    }

    fn pending_take(&self) -> Vec<PendingRequest<Self>> {
        let taken = std::mem::take(&mut *self.pending().queue.borrow_mut());
        self.update_gate();
        taken.into_iter().map(|waiting| waiting.request.into_static()).collect()
    }

    fn pending_purge(&self, purged: impl FnMut()) {
        self.purge(purged);
    }
}

/// The time in which a request of this endpoint runs: posts are accepted, because it is the head.
/// The drop ends it, also after a panic.
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

/// Clears the flag on drop, also after a panic.
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

/// The endpoints of an interface that have waiting requests. Each runs one request per round, so
/// none starves. A waiting request does not keep its endpoint open.
pub(crate) struct Arbiter<E: HasPending> {
    /// Each endpoint once. Those that were closed meanwhile are skipped.
    waiting: RefCell<VecDeque<E::Weak>>,
    running: Cell<bool>,
    /// A request was added since requests last ran.
    has_new: Cell<bool>,
    /// Requests added so far.
    added: Cell<u64>,
}

impl<E: HasPending> Arbiter<E> {
    pub(crate) fn new() -> Self {
        Self {
            waiting: RefCell::new(VecDeque::new()),
            running: Cell::new(false),
            has_new: Cell::new(false),
            added: Cell::new(0),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.try_borrow().is_ok_and(|waiting| waiting.is_empty())
    }

    /// Returns whether a request was added since requests last ran. It may succeed at once, so that
    /// a sleep could last for ever. A request that has run waits for a completion.
    pub(crate) fn has_new(&self) -> bool {
        self.has_new.get() && !self.is_empty()
    }

    /// Queues a request on `endpoint`.
    pub(crate) fn add(&self, endpoint: &E, request: Request<E>) {
        let pending = endpoint.pending();
        let number = self.added.get();
        self.added.set(number + 1);
        pending.queue.borrow_mut().push_back(Waiting { request, number });
        endpoint.post_state().tally.waited();
        endpoint.update_gate();
        self.has_new.set(true);
        if !pending.is_queued.replace(true) {
            self.waiting.borrow_mut().push_back(endpoint.downgrade());
        }
    }

    /// Runs the requests that wait now, in rounds, until each endpoint that still waits has returned
    /// `Again`. Requests that are added meanwhile wait for the next call. Returns how many requests
    /// are done. A request that panics is dropped; its endpoint keeps its other requests and its
    /// turn.
    pub(crate) fn dispatch(&self) -> usize {
        self.dispatch_while(|| true)
    }

    /// Returns how many endpoints wait.
    #[cfg(feature = "mlx5")]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.try_borrow().map_or(0, |waiting| waiting.len())
    }

    /// As [`Self::dispatch`], and ends when `may_serve` returns `false`, before the next endpoint.
    pub(crate) fn dispatch_while(&self, may_serve: impl Fn() -> bool) -> usize {
        if self.is_empty() || self.running.get() {
            return 0;
        }
        let _running = Running::start(&self.running);
        self.has_new.set(false);
        let end = self.added.get();
        let mut done = 0;
        let mut refused = 0;
        while may_serve() {
            let (endpoint, left) = {
                let mut waiting = self.waiting.borrow_mut();
                let Some(endpoint) = waiting.pop_front() else { return done };
                (endpoint, waiting.len())
            };
            let Some(endpoint) = E::upgrade(&endpoint) else { continue };
            let endpoint = Served { arbiter: self, endpoint };
            match endpoint.endpoint.run_first(end) {
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
        done
    }

    /// Removes every endpoint and drops their requests.
    pub(crate) fn clear(&self) {
        let mut panics = Panics::default();
        loop {
            let endpoint = self.waiting.borrow_mut().pop_front();
            let Some(endpoint) = endpoint else { return };
            let Some(endpoint) = E::upgrade(&endpoint) else { continue };
            endpoint.pending().is_queued.set(false);
            panics.catch(|| endpoint.purge(|| {}));
            // The last other handle may have been dropped by a request.
            panics.catch(|| drop(endpoint));
        }
    }
}

/// The endpoint that is being served. The drop queues it again if it has requests, also after a
/// panic.
struct Served<'a, E: HasPending> {
    arbiter: &'a Arbiter<E>,
    endpoint: E,
}

impl<E: HasPending> Drop for Served<'_, E> {
    fn drop(&mut self) {
        let pending = self.endpoint.pending();
        let waits = !pending.is_idle();
        pending.is_queued.set(waits);
        if waits {
            self.arbiter.waiting.borrow_mut().push_back(self.endpoint.downgrade());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::{Rc, Weak};

    use super::*;

    fn boxed(run: impl FnMut(&Endpoint) -> PendingResult + 'static) -> Request<Endpoint> {
        Request::Static(PendingRequest::new(run))
    }

    #[derive(Clone)]
    struct Endpoint(Rc<(u32, PendingQueue<Endpoint>, PostState)>);

    impl HasPending for Endpoint {
        type Weak = Weak<(u32, PendingQueue<Endpoint>, PostState)>;
        type Dynamic = Endpoint;

        fn to_dynamic(&self) -> Endpoint {
            self.clone()
        }

        fn downgrade(&self) -> Self::Weak {
            Rc::downgrade(&self.0)
        }

        fn upgrade(endpoint: &Self::Weak) -> Option<Self> {
            endpoint.upgrade().map(Self)
        }

        fn pending(&self) -> &PendingQueue<Self> {
            &self.0.1
        }

        fn post_state(&self) -> &PostState {
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
        let endpoints: Vec<_> = (0..3)
            .map(|i| Endpoint(Rc::new((i, PendingQueue::new(), PostState::default()))))
            .collect();
        let arbiter = Arbiter::new();
        let seen: Rc<RefCell<Vec<(u32, u32)>>> = Rc::default();
        let budget = Rc::new(Cell::new(4));
        for i in 0..5 {
            for endpoint in &endpoints {
                let (seen, budget) = (Rc::clone(&seen), Rc::clone(&budget));
                arbiter.add(
                    endpoint,
                    boxed(move |endpoint: &Endpoint| {
                        let Some(left) = u32::checked_sub(budget.get(), 1) else {
                            return PendingResult::Again;
                        };
                        budget.set(left);
                        assert!(endpoint.post_state().check().is_ok());
                        seen.borrow_mut().push((endpoint.0.0, i));
                        PendingResult::Done
                    }),
                );
            }
        }
        assert!(endpoints[0].post_state().has(PostBlock::Pending));
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
        assert!(endpoints.iter().all(|endpoint| endpoint.post_state().check().is_ok()));
    }

    fn endpoint() -> Endpoint {
        Endpoint(Rc::new((0, PendingQueue::new(), PostState::default())))
    }

    #[test]
    fn a_waiting_request_does_not_keep_its_endpoint_open() {
        let arbiter = Arbiter::new();
        let [dropped, kept] = [endpoint(), endpoint()];
        let state = Rc::downgrade(&dropped.0);
        let owned = Rc::new(());
        for endpoint in [&dropped, &kept] {
            let owned = Rc::clone(&owned);
            arbiter.add(
                endpoint,
                boxed(move |_| {
                    let _ = &owned;
                    PendingResult::Done
                }),
            );
        }
        drop(dropped);
        assert!(state.upgrade().is_none(), "the arbiter has a handle");
        assert_eq!(Rc::strong_count(&owned), 2, "the request of the other endpoint");
        assert_eq!(arbiter.dispatch(), 1);
        assert!(arbiter.is_empty());
        assert_eq!(Rc::strong_count(&owned), 1);
    }

    #[test]
    fn a_request_that_drops_the_last_handle_runs_to_its_end() {
        let arbiter = Rc::new(Arbiter::new());
        let endpoint = endpoint();
        let state = Rc::downgrade(&endpoint.0);
        let handle = Rc::new(RefCell::new(None));
        let (taken, adds) = (Rc::clone(&handle), Rc::clone(&arbiter));
        arbiter.add(
            &endpoint,
            boxed(move |endpoint: &Endpoint| {
                drop(taken.take());
                assert_eq!(endpoint.0.0, 0);
                adds.add(endpoint, boxed(|_| panic!("the endpoint is closed")));
                PendingResult::Done
            }),
        );
        handle.replace(Some(endpoint));
        assert_eq!((arbiter.dispatch(), arbiter.dispatch()), (1, 0));
        assert!(state.upgrade().is_none() && arbiter.is_empty());
    }

    /// Otherwise requests that add others would keep a dispatch from ending.
    #[test]
    fn requests_that_are_added_meanwhile_wait_for_the_next_dispatch() {
        fn again(arbiter: &Rc<Arbiter<Endpoint>>, on: &Endpoint, ran: &Rc<Cell<u32>>) {
            let (adds, ran) = (Rc::clone(arbiter), Rc::clone(ran));
            arbiter.add(
                on,
                boxed(move |endpoint: &Endpoint| {
                    ran.set(ran.get() + 1);
                    // The second is on an endpoint that had no requests.
                    again(&adds, endpoint, &ran);
                    PendingResult::Done
                }),
            );
        }
        let arbiter = Rc::new(Arbiter::new());
        let [first, second] = [endpoint(), endpoint()];
        let ran: Rc<Cell<u32>> = Rc::default();
        again(&arbiter, &first, &ran);
        for expected in 1..4 {
            assert_eq!((arbiter.dispatch(), ran.get()), (1, expected));
            assert!(arbiter.has_new(), "a request that has not run yet");
        }
        let (adds, other, runs) = (Rc::clone(&arbiter), second.clone(), Rc::clone(&ran));
        arbiter.add(
            &first,
            boxed(move |_| {
                again(&adds, &other, &runs);
                PendingResult::Done
            }),
        );
        // Two wait; then one on each endpoint.
        assert_eq!((arbiter.dispatch(), ran.get()), (2, 4));
        assert_eq!((arbiter.dispatch(), ran.get()), (2, 6));
        arbiter.clear();
        assert!(arbiter.is_empty() && first.pending().is_idle() && second.pending().is_idle());
    }

    /// An endpoint has one place, however often its requests are purged and added.
    #[test]
    fn an_endpoint_waits_in_one_place() {
        let arbiter = Arbiter::new();
        let endpoint = endpoint();
        for _ in 0..3 {
            arbiter.add(&endpoint, boxed(|_| PendingResult::Done));
            endpoint.purge(|| {});
        }
        assert_eq!(arbiter.waiting.borrow().len(), 1);
        assert_eq!(arbiter.dispatch(), 0);
        assert!(arbiter.is_empty());
        arbiter.add(&endpoint, boxed(|_| PendingResult::Done));
        assert_eq!(arbiter.dispatch(), 1);
    }

    #[test]
    fn taken_requests_run_on_another_endpoint_in_order() {
        let [from, to] =
            [0, 1].map(|i| Endpoint(Rc::new((i, PendingQueue::new(), PostState::default()))));
        let arbiter = Arbiter::new();
        let seen: Rc<RefCell<Vec<(u32, u32)>>> = Rc::default();
        let ran = Rc::clone(&seen);
        let last = Rc::new(move |endpoint: &Endpoint| {
            ran.borrow_mut().push((endpoint.0.0, 9));
            PendingResult::Done
        });
        for i in 0..3 {
            let seen = Rc::clone(&seen);
            let request = move |endpoint: &Endpoint| {
                seen.borrow_mut().push((endpoint.0.0, i));
                PendingResult::Done
            };
            arbiter.add(&from, boxed(request));
        }
        arbiter.add(&from, Request::Static(PendingRequest::shared(last.clone())));
        assert!(from.take_dynamic().is_empty(), "none was added as dynamic");
        let taken = from.pending_take();
        assert_eq!((taken.len(), from.post_state().check()), (4, Ok(())));
        for request in taken {
            arbiter.add(&to, Request::Static(request));
        }
        assert_eq!(arbiter.dispatch(), 4);
        assert_eq!(*seen.borrow(), [(1, 0), (1, 1), (1, 2), (1, 9)]);
        assert_eq!(Rc::strong_count(&last), 1, "the caller has it alone");
    }

    #[test]
    fn a_request_that_panics_is_dropped_and_the_others_run() {
        let endpoint = Endpoint(Rc::new((0, PendingQueue::new(), PostState::default())));
        let arbiter = Arbiter::new();
        let ran = Rc::new(Cell::new(0));
        arbiter.add(&endpoint, boxed(|_| panic!("expected by the test")));
        for _ in 0..2 {
            let ran = Rc::clone(&ran);
            let request = move |_: &Endpoint| {
                ran.set(ran.get() + 1);
                PendingResult::Done
            };
            arbiter.add(&endpoint, boxed(request));
        }
        let dispatch = std::panic::AssertUnwindSafe(|| arbiter.dispatch());
        assert!(std::panic::catch_unwind(dispatch).is_err());
        assert_eq!((ran.get(), arbiter.is_empty()), (0, false));
        assert_eq!((arbiter.dispatch(), ran.get()), (2, 2));
        assert!(arbiter.is_empty());
        assert_eq!(endpoint.post_state().check(), Ok(()));
    }

    #[test]
    fn a_purge_that_panics_purges_everything() {
        let endpoint = Endpoint(Rc::new((0, PendingQueue::new(), PostState::default())));
        let arbiter = Arbiter::new();
        for _ in 0..3 {
            arbiter.add(&endpoint, boxed(|_: &Endpoint| PendingResult::Done));
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
        assert_eq!(endpoint.post_state().check(), Ok(()));
        assert_eq!(arbiter.dispatch(), 0);
    }
}
