//! Progress: what came, what can be sent, and what follows from it.

use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire_tcp::door::Admitted;
use barewire_tcp::patience::Patience;
use rustix::event::{Timespec, epoll};

use super::NAME;
use super::event::BELL;
use super::interface::{DOOR, Shared};
use super::lane::Link;
pub(super) use super::receive::Scratch;
use super::state::{State, Trouble};
use crate::error::{Cause, Operation, OperationError};
use crate::panics::Panics;
use crate::transport::common::gate::Block;
use crate::transport::common::handlers::Running;

/// Events taken from the system at once.
const EVENTS: usize = 64;
/// Rounds in which only the favourite is listened to, before all are again.
const PATIENCE: u32 = 32;
/// How often deadlines are looked at.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// The one owner of an interface's progress. Dropping it closes the interface: outstanding operations complete as
/// cancelled, handlers are dropped and posts answer [`PostError::Closed`](crate::PostError::Closed).
pub struct Progress {
    shared: Rc<Shared>,
    scratch: Scratch,
    events: Vec<epoll::Event>,
    admitted: Vec<Admitted>,
    /// Rounds since the system was asked.
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
        let mut events = self.listen(&shared);
        if !shared.is_calm() {
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
    fn listen(&mut self, shared: &Rc<Shared>) -> usize {
        // One of them handles messages here already, and it made progress: there is nothing to be done for it.
        let Some(mut running) = shared.handlers.run() else { return 0 };
        if shared.renewed.replace(false) {
            running.renew();
        }
        self.rounds += 1;
        if shared.bell.disarm() {
            // Whoever woke it may be any of them.
            self.rounds = PATIENCE;
        }
        let mut events = 0;
        if let Some(state) = shared.favourite.get() {
            events = state.hear(&mut self.scratch, &mut running);
            if self.rounds < PATIENCE {
                return events;
            }
        }
        self.rounds = 0;
        events + self.listen_to_all(shared, &mut running)
    }

    fn listen_to_all(&mut self, shared: &Rc<Shared>, running: &mut Running<'_, true>) -> usize {
        let mut found = std::mem::take(&mut self.events);
        found.clear();
        // A handler that panicked took them with it.
        found.reserve(EVENTS);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interruption is as good as no event.
        let _ = epoll::wait(&shared.epoll, rustix::buffer::spare_capacity(&mut found), Some(&now));
        let mut events = 0;
        for event in &found {
            // Copies: the system packs them.
            let (flags, data) = (event.flags, event.data);
            let number = data.u64();
            if number == DOOR {
                shared.door.borrow_mut().work(Instant::now(), &mut self.admitted);
                for newcomer in self.admitted.drain(..) {
                    events += 1;
                    shared.admit(newcomer);
                }
                continue;
            }
            if number == BELL {
                shared.bell.still();
                continue;
            }
            let Some(state) = shared.endpoint((number >> 1) as u32) else { continue };
            if state.is_packing() {
                // The system reports it again.
                continue;
            }
            if flags.contains(epoll::EventFlags::OUT) {
                // There was room again, and it was used.
                events += 1;
                state.make_room(number & 1 == 1);
                state.send_all();
                state.short.set(false);
                state.settle();
            }
            if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                shared.favourite.note(number, &state);
                if number & 1 == 0 {
                    events += state.hear(&mut self.scratch, running);
                } else {
                    events += state.hear_memory(&mut self.scratch);
                }
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
                    panics.catch(|| events += state.hear_rest(&mut self.scratch, &mut running));
                }
                _ => shared.resuming.borrow_mut().push(index),
            }
        }
        for index in shared.ailing.take() {
            let Some(state) = shared.endpoint(index) else { continue };
            if state.is_packing() {
                shared.ailing.borrow_mut().push(index);
                continue;
            }
            events += 1;
            panics.catch(|| state.end());
        }
        if !shared.closing.borrow().is_empty() {
            if shared.favourite.get().is_some_and(|state| state.handles.get() == 0) {
                shared.favourite.forget();
            }
            panics.catch(|| events += shared.bury());
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
    fn end(&self) {
        if self.canceled.get() {
            self.hang_up(self.is_idle());
            self.give_up(OperationError::CANCELED);
        } else {
            self.fail();
        }
    }
}

impl Shared {
    /// Nothing of what happens seldom is to be done.
    #[inline]
    fn is_calm(&self) -> bool {
        let none = |list: &std::cell::RefCell<Vec<u32>>| list.borrow().is_empty();
        none(&self.connecting)
            && none(&self.resuming)
            && none(&self.ailing)
            && none(&self.closing)
            && none(&self.awaiting)
            && self.lingering.borrow().is_empty()
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
        self.lingering.borrow_mut().retain(|lingering| !lingering.is_over(now));
        let awaiting = self.awaiting.take();
        for index in awaiting {
            if let Some(state) = self.endpoint(index)
                && state.is_awaiting(now)
            {
                self.awaiting.borrow_mut().push(index);
            }
        }
    }

    fn close(&self) {
        if self.closed.replace(true) {
            // Closed by a fork: the connections are the parent's.
            return;
        }
        self.favourite.forget();
        let endpoints: Vec<_> = self.endpoints.take().into_iter().flatten().collect();
        for state in &endpoints {
            state.stop(Block::Closed);
        }
        let mut panics = Panics::default();
        // An endpoint whose `pack` function drops the worker is abandoned when that returns.
        for state in endpoints.iter().filter(|state| !state.is_packing()) {
            panics.catch(|| state.abandon());
        }
        panics.catch(|| self.arbiter.clear());
        panics.catch(|| self.handlers.close());
        if let Some(mut running) = self.handlers.run() {
            panics.catch(|| running.renew());
        }
        self.lingering.take();
    }
}

impl State {
    /// Something waits for the peer, which is to connect.
    pub(super) fn is_waited_for(&self) -> bool {
        let Ok(lane) = self.messages.try_borrow() else { return self.gate.is_alive() };
        self.gate.is_alive() && matches!(lane.link, Link::Awaiting) && !lane.outbox.is_empty()
    }

    /// The peer has not connected yet. Once something waits for it, it has as long as a connection may take.
    fn is_awaiting(&self, now: Instant) -> bool {
        let Ok(mut lane) = self.messages.try_borrow_mut() else { return true };
        if !self.gate.is_alive() || !matches!(lane.link, Link::Awaiting) {
            return false;
        }
        if lane.outbox.is_empty() {
            lane.awaited = None;
            return true;
        }
        let limit = self.shared.config.connect_timeout;
        if !lane.awaited.get_or_insert_with(|| Patience::new(limit, now)).is_over(now) {
            return true;
        }
        drop(lane);
        let trouble =
            Trouble::new(Operation::Connect, Cause::PeerUnreachable, "it never connected to this endpoint");
        self.fail_later(trouble);
        false
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
