//! Progress: what came, what can be sent, and what follows from it.

use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire_tcp::door::Admitted;

use super::NAME;
use super::interface::Shared;
use super::poller::{EVENTS, Event, Interest, Token};
use super::reader::Scratch;
use super::state::{PendingFailure, State};
use crate::error::{Cause, Operation, OperationError};
use crate::panics::Panics;
use crate::transport::common::gate::Block;
use crate::transport::common::handlers::Running;

/// Rounds in which one connection alone is polled directly, before all are polled again.
const DIRECT_POLLS: u32 = 32;
/// How often deadlines are checked.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// The one owner of an interface's progress. Dropping it closes the interface: outstanding operations complete as
/// cancelled, handlers are dropped and posts answer [`PostError::Closed`](crate::PostError::Closed).
pub struct Progress {
    shared: Rc<Shared>,
    scratch: Scratch,
    events: Vec<Event>,
    admitted: Vec<Admitted>,
    /// Rounds since all connections were polled.
    rounds: u32,
    next_tick: Instant,
}

impl Progress {
    pub(super) fn new(shared: Rc<Shared>, scratch: Scratch) -> Self {
        Self {
            shared,
            scratch,
            events: Vec::with_capacity(EVENTS),
            admitted: Vec::new(),
            rounds: 0,
            next_tick: Instant::now(),
        }
    }

    /// Delivers what arrived, finishes what is done, sends what waits and gives pending requests their turn. Never blocks. Answers how
    /// many events there were.
    pub fn progress(&mut self) -> usize {
        let shared = Rc::clone(&self.shared);
        if shared.closed.get() {
            // By a fork: what comes is the parent's.
            return 0;
        }
        shared.round.set(shared.round.get() + 1);
        let mut events = self.poll(&shared);
        if !shared.is_quiet() {
            events += self.attend(&shared);
        }
        shared.send_dirty();
        if !shared.arbiter.is_empty() {
            events += shared.arbiter.dispatch();
        }
        events
    }

    /// Nothing is there to be done: only the system knows.
    #[inline(always)]
    #[expect(clippy::unused_self, reason = "as in every transport")]
    pub(crate) fn is_idle(&self) -> bool {
        false
    }

    /// Hears what came.
    fn poll(&mut self, shared: &Rc<Shared>) -> usize {
        // One of them handles messages here already, and it made progress: there is nothing to be done for it.
        let Some(mut running) = shared.handlers.run() else { return 0 };
        if shared.renewed.replace(false) {
            running.renew();
        }
        self.rounds += 1;
        if shared.poller.disarm() {
            // Any connection may have woken the thread.
            self.rounds = DIRECT_POLLS;
        }
        let mut events = 0;
        if let Some(state) = shared.poller.direct() {
            events = state.receive(&mut self.scratch, &mut running);
            if self.rounds < DIRECT_POLLS {
                return events;
            }
        }
        self.rounds = 0;
        events + self.poll_all(shared, &mut running)
    }

    fn poll_all(&mut self, shared: &Rc<Shared>, running: &mut Running<'_, true>) -> usize {
        let mut found = std::mem::take(&mut self.events);
        shared.poller.poll(&mut found);
        let mut events = 0;
        for event in &found {
            let token = Token::of(event);
            let slot = match token {
                Token::Door => {
                    shared.door.borrow_mut().work(Instant::now(), &mut self.admitted);
                    for newcomer in self.admitted.drain(..) {
                        events += 1;
                        shared.admit(newcomer);
                    }
                    continue;
                }
                Token::Wakeup => {
                    shared.poller.clear_wakeup();
                    continue;
                }
                Token::Messages(slot) | Token::Memory(slot) => slot,
            };
            let Some(state) = shared.endpoint(slot) else { continue };
            // A copy: the kernel packs the fields of an event.
            let flags = event.flags;
            if state.is_packing() {
                // Epoll reports it again.
                continue;
            }
            if flags.contains(Interest::OUT) {
                events += 1;
                state.make_room(token);
                state.send_all();
                state.short.set(false);
                state.settle();
            }
            if flags.intersects(Interest::IN | Interest::HUP | Interest::ERR) {
                shared.poller.note(token, &state, State::poll_directly);
                events += match token {
                    Token::Memory(_) => state.receive_answers(&mut self.scratch),
                    _ => state.receive(&mut self.scratch, running),
                };
            }
        }
        self.events = found;
        events
    }

    /// What happens seldom.
    #[cold]
    #[inline(never)]
    fn attend(&mut self, shared: &Rc<Shared>) -> usize {
        let mut events = 0;
        let mut panics = Panics::default();
        let connecting = shared.connecting.take();
        for index in connecting {
            if let Some(state) = shared.endpoint(index)
                && state.gate.is_alive()
            {
                if state.advance() {
                    shared.connecting.borrow_mut().push(index);
                } else {
                    events += 1;
                    panics.catch(|| state.settle());
                }
            }
        }
        for index in shared.resuming.take() {
            let Some(state) = shared.endpoint(index) else { continue };
            match shared.handlers.run() {
                Some(mut running) if !state.is_packing() => {
                    panics.catch(|| events += state.resume(&mut self.scratch, &mut running));
                }
                _ => shared.resuming.borrow_mut().push(index),
            }
        }
        for index in shared.failed.take() {
            let Some(state) = shared.endpoint(index) else { continue };
            if state.is_packing() {
                shared.failed.borrow_mut().push(index);
                continue;
            }
            events += 1;
            panics.catch(|| state.report_end());
        }
        if !shared.closing.borrow().is_empty() {
            if shared.poller.direct().is_some_and(|state| state.handles.get() == 0) {
                shared.poller.forget_direct();
            }
            panics.catch(|| events += shared.reap_closed());
        }
        let now = Instant::now();
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            shared.tick(now, &mut self.admitted);
            for newcomer in self.admitted.drain(..) {
                shared.admit(newcomer);
            }
        }
        events
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl State {
    /// Tells everybody that the endpoint failed or was cancelled.
    fn report_end(&self) {
        if self.canceled.get() {
            self.close_connections(self.is_idle());
            self.finish_outstanding(OperationError::CANCELED);
        } else {
            self.report_failure();
        }
    }
}

impl Shared {
    /// Nothing of what happens seldom is to be done.
    #[inline]
    fn is_quiet(&self) -> bool {
        let none = |list: &std::cell::RefCell<Vec<u32>>| list.borrow().is_empty();
        none(&self.connecting)
            && none(&self.resuming)
            && none(&self.failed)
            && none(&self.closing)
            && none(&self.expecting)
            && self.draining.borrow().is_empty()
            && self.door.borrow().is_idle()
    }

    /// Sends what was posted since the last round, and was not sent then.
    #[inline]
    fn send_dirty(&self) {
        if self.dirty.borrow().is_empty() {
            return;
        }
        let mut panics = Panics::default();
        let dirty = self.dirty.take();
        for index in dirty {
            let Some(state) = self.endpoint(index) else { continue };
            if state.is_packing() {
                self.dirty.borrow_mut().push(index);
                continue;
            }
            state.dirty.set(false);
            state.send_all();
            panics.catch(|| state.settle());
        }
    }

    /// Looks at deadlines.
    fn tick(&self, now: Instant, admitted: &mut Vec<Admitted>) {
        self.door.borrow_mut().work(now, admitted);
        self.draining.borrow_mut().retain(|connection| !connection.is_drained(now));
        let expecting = self.expecting.take();
        for index in expecting {
            if let Some(state) = self.endpoint(index)
                && state.is_expecting_peer(now)
            {
                self.expecting.borrow_mut().push(index);
            }
        }
    }

    fn close(&self) {
        if self.closed.replace(true) {
            // Closed by a fork: the connections are the parent's.
            return;
        }
        self.poller.forget_direct();
        let endpoints: Vec<_> = self.endpoints.take().into_iter().flatten().collect();
        for state in &endpoints {
            state.shut_down(Block::Closed);
        }
        let mut panics = Panics::default();
        // An endpoint whose `pack` function drops the worker is abandoned when that returns.
        for state in endpoints.iter().filter(|state| !state.is_packing()) {
            panics.catch(|| state.finish_closed());
        }
        panics.catch(|| self.arbiter.clear());
        panics.catch(|| self.handlers.close());
        if let Some(mut running) = self.handlers.run() {
            panics.catch(|| running.renew());
        }
        self.draining.take();
    }
}

impl State {
    /// Something waits for the peer to connect.
    pub(super) fn is_waiting_for_peer(&self) -> bool {
        let Ok(connection) = self.messages.try_borrow() else { return self.gate.is_alive() };
        self.gate.is_alive() && connection.is_expected() && !connection.outbox().is_empty()
    }

    /// Returns true if the peer is expected to connect. Once something waits for it, it has as long as a
    /// connection may take.
    fn is_expecting_peer(&self, now: Instant) -> bool {
        let Ok(mut connection) = self.messages.try_borrow_mut() else { return true };
        if !self.gate.is_alive() || !connection.is_expected() {
            return false;
        }
        if !connection.is_overdue(now, self.shared.config.connect_timeout) {
            return true;
        }
        drop(connection);
        let detail = "it never connected to this endpoint";
        self.fail(PendingFailure::new(Operation::Connect, Cause::PeerUnreachable, detail));
        false
    }

    /// Polls the connection for messages directly, or by epoll. Returns false if it is in use.
    pub(super) fn poll_directly(&self, on: bool) -> bool {
        let Ok(mut connection) = self.messages.try_borrow_mut() else { return false };
        if let Err(error) = connection.poll_directly(&self.shared.poller, on) {
            self.fail(PendingFailure::of_sending(Operation::Receive, &error.into()));
        }
        true
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress")
            .field("transport", &NAME)
            .field("address", &self.shared.address)
            .finish_non_exhaustive()
    }
}
