//! Progress: packets taken from the queue, what follows from them, and timers.

use std::fmt;
use std::rc::Rc;

use super::interface::Shared;
use super::socket::Delivered;
use super::state::{CatchUp, Held, State};
use super::{NAME, PACKET, ROUTE};
use crate::message::Message;
use crate::panics::{self, Panics};
use crate::transport::common::gate::Block;
use crate::transport::common::handlers::Running;
use crate::transport::rdma::WrKind;
use crate::transport::reliable::{ACK_NOW, Accepted, Acknowledged, Header, Kind, Request, TICK, Time};

/// The one owner of an interface's progress. Dropping it closes the interface: outstanding operations complete as
/// cancelled, handlers are dropped and posts answer [`PostError::Closed`](crate::PostError::Closed).
pub struct Progress {
    shared: Rc<Shared>,
    /// When the timers are looked at next.
    look: Time,
}

impl Progress {
    /// Whether a call of progress would do nothing: only libibverbs knows.
    #[inline]
    #[expect(clippy::unused_self, reason = "as in the other transports")]
    pub(crate) fn is_idle(&self) -> bool {
        false
    }

    pub(super) fn new(shared: Rc<Shared>) -> Self {
        Self { shared, look: 0 }
    }

    /// Takes one packet and does what follows: delivers messages, or finishes operations. Before it, what waits gets its turn: pending
    /// requests, handlers that were set, endpoints to be closed; and when there is no packet, acknowledgements and timers. Never blocks.
    /// Answers how many events there were; zero says that there was nothing to do.
    pub fn progress(&mut self) -> usize {
        if self.shared.attention.get() { self.settle() } else { self.take() }
    }

    /// Takes one packet.
    fn take(&mut self) -> usize {
        let Some(taken) = self.shared.completions.take() else {
            self.rest();
            return 0;
        };
        match (taken.kind, taken.outcome) {
            (WrKind::Receive(buffer), Ok(())) => {
                self.shared.arrived(buffer, taken.length as usize, taken.from);
            }
            (WrKind::Receive(buffer), Err(_)) => {
                self.shared.socket.fail();
                let _ = self.shared.socket.arrived(buffer);
                self.shared.socket.give_back(buffer);
            }
            (WrKind::Send(index), Err(_)) => {
                self.shared.socket.complete(index);
                self.shared.socket.fail();
            }
            (WrKind::Send(index), Ok(())) => self.shared.socket.complete(index),
        }
        1
    }

    /// Nothing came: those who sent are told what arrived, and those who do not answer are asked again.
    fn rest(&mut self) {
        let shared = &*self.shared;
        if shared.socket.is_starved() {
            // Handlers kept the rest: the next messages find no buffer while later ones are held.
            for state in shared.states() {
                state.drop_held();
            }
        }
        if !shared.owing.borrow().is_empty() {
            shared.acknowledge();
        }
        if shared.timed.get() || shared.socket.is_broken() {
            let now = shared.now();
            if now >= self.look {
                self.look = now + TICK;
                if shared.socket.is_broken() {
                    shared.socket.heal(shared.domain.port().number);
                }
                shared.timed.set(false);
                let mut panics = Panics::default();
                for state in shared.states() {
                    panics.catch(|| {
                        if state.look(now) {
                            shared.timed.set(true);
                        }
                    });
                }
            }
        }
    }

    /// WrKind progress does besides packets, and then takes one.
    #[cold]
    #[inline(never)]
    fn settle(&mut self) -> usize {
        if self.shared.closed.get() {
            // The parent's. The call for attention stays, so that every progress ends here.
            return 0;
        }
        let shared = Rc::clone(&self.shared);
        let events = panics::or_else(|| shared.settle(), || shared.call_attention());
        events + self.take()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shared.closed.get() {
            // By a fork: the device is the parent's, and so is everything that would be destroyed.
            return std::mem::forget(Rc::clone(&self.shared));
        }
        self.shared.close();
    }
}

impl Shared {
    /// See `Progress::settle`.
    fn settle(&self) -> usize {
        let shared = self;
        shared.running().renew();
        shared.attention.set(false);
        shared.fail_now();
        if shared.unwound.replace(false) {
            let mut panics = Panics::default();
            for state in shared.states() {
                panics.catch(|| {
                    state.catch_up();
                    let catch_up = CatchUp(&state);
                    shared.deliver_held(&state);
                    std::mem::forget(catch_up);
                });
            }
        }
        let mut events = 0;
        if shared.closing.replace(false) {
            events += shared.bury();
        }
        events += shared.arbiter.dispatch();
        if !shared.arbiter.is_empty() {
            shared.call_attention();
        }
        events
    }

    fn running(&self) -> Running<'_, false> {
        // SAFETY: called by `Progress` only, with `&mut self`, and dropped before the next call.
        unsafe { self.handlers.run_alone() }
    }

    /// A datagram of `length` bytes, its route included, came into a buffer, from the queue pair `from`.
    fn arrived(self: &Rc<Self>, buffer: u32, length: usize, from: u32) {
        let Some(start) = self.socket.arrived(buffer) else { return };
        // Until the message is handed on, or held.
        let delivered = Delivered::new(&self.socket, buffer);
        let most = ROUTE + (1 << self.own.log_mtu);
        let length = length.min(most).saturating_sub(ROUTE);
        // SAFETY: the device wrote the buffer and is done with it; behind `PACKET` there are as many bytes as the longest packet has.
        let packet = unsafe { std::slice::from_raw_parts(start.add(PACKET).as_ptr(), length) };
        let Some((header, body)) = Header::parse(packet) else {
            return self.running().count_unhandled();
        };
        if header.kind == Kind::Request {
            if let Some(request) = Request::parse(body) {
                self.requested(&request, from);
            }
            return;
        }
        // Endpoints go and come; what is for one that is gone is nobody's.
        let Some(state) = self.named(header.to).filter(|state| state.is_peer(from)) else { return };
        match header.kind {
            Kind::Message => {
                let length = body.len();
                self.message(&state, &header, delivered, length);
            }
            Kind::Acknowledge => {
                if let Some(told) = Acknowledged::parse(&header, body) {
                    state.acknowledged(told);
                }
            }
            Kind::Reply => {
                if let Some(reply) = Request::parse(body) {
                    state.introduced(reply.from);
                }
            }
            Kind::Bye => {
                state.peer_closed();
                if self.directory.borrow().is_unclaimed(state.place()) {
                    state.stop(Block::Failed);
                    self.close_later(&state);
                }
            }
            Kind::Request => {}
        }
    }

    /// A message, its data `length` bytes.
    fn message(&self, state: &State, header: &Header, delivered: Delivered<'_>, length: usize) {
        state.acknowledged(Acknowledged::of(header));
        if !state.gate.is_alive() {
            return;
        }
        let held = Held { buffer: delivered.into_number(), id: header.id, length };
        let (ask, room) = (header.flags & ACK_NOW != 0, self.socket.has_spare());
        let accepted = state.receiver.borrow_mut().accept(header.sequence, held, ask, room);
        match accepted {
            Accepted::Next(held) => {
                // Also when a handler panics, what is behind is delivered, in the next turn.
                let catch_up = CatchUp(state);
                self.deliver(state, &held);
                self.deliver_held(state);
                std::mem::forget(catch_up);
            }
            Accepted::Held => {}
            Accepted::Refused(held) => self.socket.give_back(held.buffer),
        }
        self.owe(state);
    }

    /// Delivers what came too early, and does not any more.
    fn deliver_held(&self, state: &State) {
        loop {
            let held = state.receiver.borrow_mut().next_held();
            let Some(held) = held else { return };
            self.deliver(state, &held);
        }
    }

    /// Hands a message to its handler.
    fn deliver(&self, state: &State, held: &Held) {
        let delivered = Delivered::new(&self.socket, held.buffer);
        if state.is_canceled() || self.closed.get() {
            return;
        }
        if let Some(data) = delivered.data() {
            // SAFETY: the packet has that many bytes behind its header. The device writes the buffer
            // only after it is posted again: by `delivered`, which is dropped after the message has
            // ended, or, if the handler kept the message, by the kept message. `data` wrote the home.
            let message = unsafe { Message::new(data, held.length) };
            self.running().dispatch(held.id, message);
        }
    }

    /// The peer is to be told, now or when nothing else is to be done.
    fn owe(&self, state: &State) {
        let (owes, now) = {
            let receiver = state.receiver.borrow();
            (receiver.owes(), receiver.owes_now())
        };
        if (now && state.acknowledge()) || !owes || state.owing.replace(true) {
            return;
        }
        self.owing.borrow_mut().push(state.place());
    }

    fn acknowledge(&self) {
        for place in self.owing.take() {
            let Some(state) = self.at(place) else { continue };
            state.owing.set(false);
            if !state.acknowledge() {
                state.owing.set(true);
                self.owing.borrow_mut().push(place);
            }
        }
    }

    /// Finishes and drops the endpoints that were closed; their number.
    fn bury(&self) -> usize {
        let closing: Vec<_> = self.states().into_iter().filter(|state| state.closing.get()).collect();
        let mut panics = Panics::default();
        for state in &closing {
            let place = state.place();
            if let Some(place) = self.endpoints.borrow_mut().get_mut(place as usize) {
                *place = None;
            }
            self.directory.borrow_mut().leave(place);
            panics.catch(|| state.abandon());
            if let Some(peer) = state.peer.take() {
                self.socket.retire_destination(peer.to);
            }
        }
        closing.len()
    }

    fn close(&self) {
        self.closed.set(true);
        let states = self.states();
        self.endpoints.take();
        for state in &states {
            state.stop(Block::Closed);
        }
        self.socket.drain(&self.completions);
        self.socket.stop();
        let mut panics = Panics::default();
        for state in &states {
            panics.catch(|| state.abandon());
        }
        panics.catch(|| self.arbiter.clear());
        panics.catch(|| self.handlers.close());
        panics.catch(|| self.running().renew());
    }
}

impl State {
    /// This is the queue pair of its peer.
    fn is_peer(&self, qpn: u32) -> bool {
        self.peer.borrow().as_ref().is_some_and(|peer| peer.to.qpn == qpn)
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress")
            .field("transport", &NAME)
            .field("device", &self.shared.domain.device())
            .finish_non_exhaustive()
    }
}
