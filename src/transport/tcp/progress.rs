//! Progress: receives, sends, and completes what follows from that.

use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire_tcp::inbox::Arrival;

use super::ID;
use super::agenda::{Task, WATCH_ROUNDS};
use super::failure::PendingFailure;
use super::interface::Shared;
use super::poller::{EVENTS, Event, Interest, Token};
use super::reader::Scratch;
use super::state::State;
use crate::base::error::Operation;
use crate::base::event::after;
use crate::base::panics::Panics;
use crate::report::warn;
use crate::transport::common::handlers::DispatchGuard;
use crate::transport::common::post_state::PostBlock;

/// Rounds in which one connection alone is polled directly, before all are polled again.
const DIRECT_POLLS: u32 = 32;
/// How often deadlines are checked.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// The one owner of an interface's progress. Dropping it closes the interface: outstanding
/// operations complete as canceled, handlers are dropped, and posts return
/// [`PostError::Closed`](crate::PostError::Closed).
#[must_use = "without its progress an interface completes nothing"]
pub struct Progress {
    shared: Rc<Shared>,
    receiver: Receiver,
}

/// What rounds of progress use again.
struct Receiver {
    scratch: Scratch,
    events: Vec<Event>,
    arrivals: Vec<Arrival>,
    /// Rounds since all connections were polled.
    rounds: u32,
    next_tick: Instant,
}

impl Progress {
    pub(super) fn new(shared: Rc<Shared>, scratch: Scratch) -> Self {
        let receiver = Receiver {
            scratch,
            events: Vec::with_capacity(EVENTS),
            arrivals: Vec::new(),
            rounds: 0,
            next_tick: Instant::now(),
        };
        Self { shared, receiver }
    }

    /// Delivers what arrived, completes what is done, sends what waits and runs pending requests.
    /// Never blocks. Returns the number of events.
    pub fn progress(&mut self) -> usize {
        let Self { shared, receiver } = self;
        if shared.core.closed.get() {
            // This process is a child by fork: what arrives is the parent's.
            return 0;
        }
        shared.round.set(shared.round.get() + 1);
        let mut events = receiver.poll(shared);
        if shared.agenda.is_due(shared.round.get()) {
            events += receiver.attend(shared);
        }
        if shared.agenda.has(Task::Send) {
            shared.send_scheduled();
        }
        if !shared.core.arbiter.is_empty() {
            events += shared.core.arbiter.dispatch();
        }
        events
    }

    /// Only the kernel knows whether there is something to do.
    #[inline(always)]
    #[expect(clippy::unused_self, reason = "as in every transport")]
    pub(crate) fn is_idle(&self) -> bool {
        false
    }
}

impl Receiver {
    /// Receives.
    fn poll(&mut self, shared: &Rc<Shared>) -> usize {
        // A handler that makes progress receives nothing: its message may lie in the scratch
        // memory.
        let Some(mut running) = shared.core.handlers.enter() else { return 0 };
        shared.take_news(&mut running);
        self.rounds += 1;
        if shared.poller.disarm() {
            // Any connection may have woken the thread, or a deadline; or the caller has asked.
            self.rounds = DIRECT_POLLS;
            shared.round.set(shared.round.get().next_multiple_of(WATCH_ROUNDS));
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

    fn poll_all(&mut self, shared: &Rc<Shared>, running: &mut DispatchGuard<'_, true>) -> usize {
        let mut found = std::mem::take(&mut self.events);
        shared.poller.poll(&mut found);
        let mut events = 0;
        for event in &found {
            let token = Token::of(event);
            let slot = match token {
                Token::Listener => {
                    events += self.admit(shared, Instant::now());
                    continue;
                }
                Token::Wakeup => {
                    shared.poller.clear_wakeup();
                    continue;
                }
                Token::Messages(slot) | Token::Memory(slot) => slot,
            };
            let Some(state) = shared.endpoint(slot) else { continue };
            if state.is_packing() {
                // Epoll reports it again.
                continue;
            }
            // A copy: the kernel packs the fields of an event.
            let flags = event.flags;
            if flags.contains(Interest::OUT) {
                events += 1;
                state.make_room(token);
            }
            if flags.intersects(Interest::IN | Interest::HUP | Interest::ERR) {
                shared.poller.note(token, &state, State::poll_directly);
                events += match token {
                    Token::Memory(_) => state.receive_responses(&mut self.scratch),
                    _ => state.receive(&mut self.scratch, running),
                };
            }
        }
        self.events = found;
        events
    }

    fn admit(&mut self, shared: &Rc<Shared>, now: Instant) -> usize {
        shared.accepting.borrow_mut().work(now, &mut self.arrivals);
        let count = self.arrivals.drain(..).map(|arrival| shared.admit(arrival)).count();
        if !shared.accepting.borrow().is_paused()
            && let Err(error) = shared.poller.listen(&*shared.accepting.borrow())
        {
            warn(&format!("peers cannot connect to {}: {error}", shared.address));
        }
        shared.update_watch();
        count
    }

    /// Visits endpoints that epoll does not report, and checks deadlines.
    #[cold]
    #[inline(never)]
    fn attend(&mut self, shared: &Rc<Shared>) -> usize {
        let mut events = 0;
        let mut panics = Panics::default();
        for slot in shared.agenda.take(Task::Connect) {
            let Some(state) = shared.endpoint(slot).filter(|state| state.posting.is_alive()) else {
                continue;
            };
            if state.advance() {
                shared.agenda.push(Task::Connect, slot);
            } else {
                events += 1;
                panics.catch(|| state.settle());
            }
        }
        for slot in shared.agenda.take(Task::Resume) {
            let Some(state) = shared.endpoint(slot) else { continue };
            match shared.core.handlers.enter() {
                Some(mut running) if !state.is_packing() => {
                    panics.catch(|| events += state.resume(&mut self.scratch, &mut running));
                }
                _ => shared.agenda.push(Task::Resume, slot),
            }
        }
        for slot in shared.agenda.take(Task::End) {
            let Some(state) = shared.endpoint(slot) else { continue };
            if state.is_packing() {
                shared.agenda.push(Task::End, slot);
                continue;
            }
            // Progress inside a handler receives nothing, and the handler may wait for this end.
            if state.has_failed()
                && let Some(mut running) = shared.core.handlers.enter()
            {
                let scratch = &mut self.scratch;
                panics.catch(|| events += state.receive_last(scratch, &mut running));
            }
            events += 1;
            shared.poller.forget(&state);
            panics.catch(|| state.finish());
            if !state.has_handles() {
                shared.core.endpoints.remove(slot);
            }
        }
        let now = Instant::now();
        // A sleeping thread wakes for the deadline.
        let is_late = || shared.accepting.borrow().deadline().is_some_and(|due| due <= now);
        if now >= self.next_tick || is_late() {
            self.next_tick = after(now, TICK);
            shared.draining.borrow_mut().retain(|connection| !connection.is_drained(now));
            self.admit(shared, now);
            for slot in shared.agenda.take(Task::AwaitPeer) {
                if shared.endpoint(slot).is_some_and(|state| state.is_expecting_peer(now)) {
                    shared.agenda.push(Task::AwaitPeer, slot);
                }
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

impl Shared {
    /// Installs handlers that were set. Returns whether a handler has called
    /// [`hold_sender`](crate::Interface::hold_sender).
    #[inline]
    pub(super) fn take_news(&self, running: &mut DispatchGuard<'_, true>) -> bool {
        if !self.has_news.replace(false) {
            return false;
        }
        running.install_pending();
        self.holds.replace(false)
    }

    /// Has progress check deadlines while connections are being accepted or closed.
    fn update_watch(&self) {
        let watch = !self.draining.borrow().is_empty() || !self.accepting.borrow().is_idle();
        self.agenda.watch(watch);
    }

    /// Sends what was posted since the last round, and was not sent then.
    fn send_scheduled(&self) {
        let mut panics = Panics::default();
        for slot in self.agenda.take(Task::Send) {
            let Some(state) = self.endpoint(slot) else { continue };
            if state.is_packing() {
                self.agenda.push(Task::Send, slot);
                continue;
            }
            state.unschedule();
            state.send_all();
            panics.catch(|| state.settle());
        }
    }

    fn close(&self) {
        if self.core.closed.replace(true) {
            // Closed by a fork: the connections are the parent's.
            return;
        }
        self.poller.forget_direct();
        let endpoints = self.core.endpoints.take();
        for state in &endpoints {
            state.shut_down(PostBlock::Closed);
        }
        let mut panics = Panics::default();
        // An endpoint whose `pack` function drops the worker is finished when that returns.
        for state in endpoints.iter().filter(|state| !state.is_packing()) {
            panics.catch(|| state.finish());
        }
        self.core.clear(&mut panics);
        self.draining.take();
    }
}

impl State {
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
            .field("transport", &ID)
            .field("address", &self.shared.address)
            .finish_non_exhaustive()
    }
}
