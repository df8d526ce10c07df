//! Progress: taking packets from the queue and processing them, and timers.

use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use super::delivered::Delivered;
use super::interface::{Shared, slot_of};
use super::state::{CatchUp, Held, State};
use super::{Driver, PACKET, ROUTE, Received, Taken};
use crate::base::panics::{self, Panics};
use crate::transport::common::handlers::DispatchGuard;
use crate::transport::common::message::Message;
use crate::transport::common::post_state::PostBlock;
use crate::transport::common::registered::Domain as _;
use crate::transport::handle::{EndpointList as _, InterfaceState as _};
use crate::transport::reliable::{
    ACK_NOW, Accepted, Acknowledged, HEADER, Header, Kind, Request, TICK, Time,
};

/// Endpoints that received messages, after which the backlog is checked.
const MANY: usize = 32;

/// The only owner of an interface's progress. Dropping it closes the interface: outstanding
/// operations complete as cancelled, handlers are dropped and posts return
/// [`PostError::Closed`](crate::PostError::Closed).
#[must_use = "without its progress an interface completes nothing"]
pub struct Progress<D: Driver> {
    shared: Rc<Shared<D>>,
    /// When to check the timers next.
    look: Time,
}

impl<D: Driver> Progress<D> {
    /// Returns whether there is nothing to do.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        let shared = &*self.shared;
        let socket = &*shared.socket;
        let waits =
            shared.needs_attention() || shared.is_timed() || !shared.owing.borrow().is_empty();
        !waits && !socket.is_ready() && !socket.is_broken() && !socket.is_starved()
    }

    pub(super) fn new(shared: Rc<Shared<D>>) -> Self {
        Self { shared, look: 0 }
    }

    /// Takes one packet and processes it: delivers messages, or finishes operations. Before that,
    /// it runs pending requests, installs new handlers and closes endpoints; if there is no packet,
    /// it sends acknowledgements and checks timers. Never blocks. Returns the number of events;
    /// zero means that there was nothing to do.
    pub fn progress(&mut self) -> usize {
        if self.shared.needs_attention() { self.settle() } else { self.take() }
    }

    /// Takes one packet.
    #[inline(always)]
    fn take(&mut self) -> usize {
        let (owned, shared) = (&self.shared, &*self.shared);
        if let Some(received) = shared.socket.next_datagram() {
            shared.arrived(owned, received);
            return 1;
        }
        self.take_other()
    }

    /// As [`Self::take`], for any completion.
    #[inline(never)]
    fn take_other(&mut self) -> usize {
        let socket = &self.shared.socket;
        match socket.next() {
            None => {
                self.rest();
                return 0;
            }
            Some(Taken::Received(Received { start, number, length, from, .. })) => {
                self.shared.arrived_other(start, number, length, from);
            }
            Some(Taken::NotReceived(buffer)) => {
                socket.fail();
                socket.free_entry();
                socket.give_back(buffer);
            }
            Some(Taken::NotSent(index)) => {
                socket.complete(index);
                socket.fail();
            }
            Some(Taken::Sent(index)) => socket.complete(index),
        }
        1
    }

    /// Without a packet: sends the acknowledgements that are due and checks the timers.
    fn rest(&mut self) {
        let shared = &*self.shared;
        if !shared.socket.has_spare() {
            shared.grow();
        }
        if shared.socket.is_starved() {
            // Handlers kept the other buffers. Dropping messages that came too early frees buffers
            // for those that must come first.
            for state in shared.core.endpoints.all() {
                state.drop_held();
            }
        }
        if !shared.owing.borrow().is_empty() {
            shared.acknowledge();
        }
        if shared.is_timed() || shared.socket.is_broken() {
            let now = shared.now();
            if now >= self.look {
                self.look = now + TICK;
                if shared.socket.is_broken() {
                    shared.socket.heal();
                }
                let mut panics = Panics::default();
                panics.catch(|| shared.core.keep_alive());
                shared.check_timers(now, &mut panics);
            }
        }
    }

    /// Does everything besides packets, then takes a packet.
    #[cold]
    #[inline(never)]
    fn settle(&mut self) -> usize {
        if self.shared.core.closed.get() {
            // The interface belongs to the parent. `attention` stays set, so that every progress
            // returns here.
            return 0;
        }
        let shared = Rc::clone(&self.shared);
        let events = panics::or_else(|| shared.settle(), || shared.call_attention());
        events + self.take()
    }
}

impl<D: Driver> Drop for Progress<D> {
    fn drop(&mut self) {
        if self.shared.core.closed.get() {
            // Closed by a fork: the device and all objects that would be destroyed belong to the
            // parent.
            return std::mem::forget(Rc::clone(&self.shared));
        }
        self.shared.close();
    }
}

impl<D: Driver> Shared<D> {
    /// Checks the timers of the endpoints that may have one. Callbacks may start others.
    fn check_timers(&self, now: Time, panics: &mut Panics) {
        // Those that run on, or are started by a callback, are added behind the others.
        let count = self.timed.borrow().len();
        for at in 0..count {
            let name = self.timed.borrow()[at];
            let Some(state) = self.named(name) else { continue };
            state.timed.set(false);
            let mut runs = true;
            panics.catch(|| runs = state.look(now));
            if runs {
                state.watch_timers();
            }
        }
        self.timed.borrow_mut().drain(..count);
    }

    /// See `Progress::settle`.
    fn settle(&self) -> usize {
        let shared = self;
        shared.running().install_pending();
        shared.attention.answer();
        shared.fail_with_device();
        shared.fail_now();
        if shared.unwound.replace(false) {
            let mut panics = Panics::default();
            for state in shared.core.endpoints.all() {
                panics.catch(|| {
                    state.catch_up();
                    let catch_up = CatchUp(&state);
                    shared.deliver_held(&state);
                    std::mem::forget(catch_up);
                    state.open();
                });
            }
        }
        let mut events = 0;
        if shared.closing.replace(false) {
            events += shared.bury();
        }
        events += shared.core.arbiter.dispatch();
        if !shared.core.arbiter.is_empty() {
            shared.call_attention();
        }
        events
    }

    #[inline(always)]
    fn running(&self) -> DispatchGuard<'_, false> {
        // SAFETY: only `Progress` calls this, with `&mut self`, and drops the result before the
        // next call. A handler cannot access `Progress`, so no second right exists.
        unsafe { self.core.handlers.enter_unchecked() }
    }

    /// Handles a datagram.
    #[inline(always)]
    fn arrived(&self, owned: &Rc<Self>, received: Received) {
        // Most packets are messages that are next in order and acknowledge nothing new.
        let data = received.length.wrapping_sub((ROUTE + HEADER) as u32);
        if data <= self.most
            && let Some(start) = received.start
        {
            // SAFETY: the header lies in the buffer, aligned to 8, and is initialised. The receive
            // is complete, so the device does not write the buffer until it is posted again.
            let header = unsafe { start.add(PACKET).cast::<[u64; 2]>().read() };
            let header = header.map(u64::from_le);
            let slot = slot_of(Header::to_in(header[0]));
            // SAFETY: only `bury` and `close` remove endpoints. `Progress` calls both with
            // `&mut self`, and it is borrowed here.
            if let Some(state) = unsafe { self.core.endpoints.peek(slot) }
                && state.is_peer(received.from)
                && let Some(owes) = state.accept(header)
            {
                let entry = received.entry;
                let delivered = Delivered::new(&self.socket, received.number, true);
                // SAFETY: the buffer has room for the data of a packet of the port, which `data` is
                // at most. The other conditions are as in `deliver`.
                let message = unsafe { Message::new(delivered.data(start), data as usize) };
                self.running().dispatch(Header::id_in(header[0]), message);
                delivered.finish(entry);
                if owes {
                    self.owe(state);
                }
                return;
            }
        }
        let Received { start, number, length, from, .. } = received;
        owned.arrived_other(start, number, length, from);
    }

    /// As [`Self::arrived`], for any packet.
    #[inline(never)]
    fn arrived_other(
        self: &Rc<Self>,
        start: Option<NonNull<u8>>,
        number: u32,
        length: u32,
        from: u32,
    ) {
        let Some(start) = start else { return self.socket.free_entry() };
        // Owns the buffer until the message is delivered or held.
        let delivered = Delivered::new(&self.socket, number, true);
        let most = ROUTE + HEADER + self.most as usize;
        let length = (length as usize).min(most).saturating_sub(ROUTE);
        // SAFETY: the receive is complete, so the device does not write the buffer until it is
        // posted again, which `delivered` does. `length` was checked: that many bytes lie in the
        // buffer from `PACKET` on, and they are initialised.
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
        // Packets for an endpoint that was closed are dropped.
        let Some(state) = self.named(header.to).filter(|state| state.is_peer(from)) else { return };
        // If a callback panics, the next packet opens the short path again.
        state.shut();
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
                    state.stop(PostBlock::Failed);
                    self.close_later(&state);
                }
            }
            Kind::Request => {}
        }
        state.open();
    }

    /// Handles a message with `length` bytes of data.
    fn message(
        &self,
        state: &State<D>,
        header: &Header,
        delivered: Delivered<'_, D>,
        length: usize,
    ) {
        state.acknowledged(Acknowledged::of(header));
        if !state.posting.is_alive() {
            return;
        }
        let held = Held { buffer: delivered.into_number(), id: header.id, length };
        let (ask, room) = (header.flags & ACK_NOW != 0, || self.socket.has_spare());
        let accepted = state.receiver.accept(header.sequence, held, ask, room);
        if ask && !matches!(accepted, Accepted::Refused(_)) {
            // It was sent again because it was lost, perhaps for lack of buffers.
            self.grow();
        }
        match accepted {
            Accepted::Next(held) => {
                // After a panic of a handler, the next progress delivers the messages behind it.
                let catch_up = CatchUp(state);
                self.deliver(state, &held);
                self.deliver_held(state);
                std::mem::forget(catch_up);
            }
            // Another buffer takes its place.
            Accepted::Held => self.socket.refill(),
            Accepted::Refused(held) => self.socket.give_back(held.buffer),
        }
        self.owe(state);
    }

    /// Delivers held messages that are next in order.
    fn deliver_held(&self, state: &State<D>) {
        loop {
            let held = state.receiver.next_held();
            let Some(held) = held else { return };
            self.deliver(state, &held);
        }
    }

    /// Passes a message to its handler.
    fn deliver(&self, state: &State<D>, held: &Held) {
        let Some(buffer) = self.socket.buffer(held.buffer) else { return };
        let delivered = Delivered::new(&self.socket, held.buffer, false);
        if state.is_canceled() || self.core.closed.get() {
            return;
        }
        // SAFETY: the packet has that many bytes behind its header. The device writes the buffer
        // only after it is posted again: by `delivered`, which is dropped after the message has
        // ended, or, if the handler kept the message, by the kept message. `data` wrote the
        // headroom.
        let message = unsafe { Message::new(delivered.data(buffer.start), held.length) };
        self.running().dispatch(held.id, message);
    }

    /// Sends an acknowledgement now, or when progress has nothing else to do.
    fn owe(&self, state: &State<D>) {
        let (owes, now) = (state.receiver.owes(), state.receiver.owes_now());
        if (now && state.acknowledge()) || !owes || state.owing.replace(true) {
            return;
        }
        let mut owing = self.owing.borrow_mut();
        owing.push(state.place());
        // So many endpoints send at the same time that buffers may run out.
        let checks = owing.len().is_multiple_of(MANY);
        drop(owing);
        if checks && self.socket.has_backlog() {
            self.grow();
        }
    }

    fn acknowledge(&self) {
        // Nothing of this calls the user, so the list does not change meanwhile.
        self.owing.borrow_mut().retain(|&place| {
            let Some(state) = self.at(place) else { return false };
            let has_waited = !state.acknowledge();
            state.owing.set(has_waited);
            has_waited
        });
    }

    /// Finishes and drops closed endpoints; returns their number.
    fn bury(&self) -> usize {
        let closing: Vec<_> =
            self.core.endpoints.all().into_iter().filter(|state| state.closing.get()).collect();
        let mut panics = Panics::default();
        for state in &closing {
            let place = state.place();
            self.core.endpoints.remove(place);
            self.directory.borrow_mut().leave(place);
            panics.catch(|| state.abandon());
            if let Some(peer) = state.peer.take() {
                self.socket.retire_destination(peer.to);
            }
        }
        closing.len()
    }

    fn close(&self) {
        self.core.closed.set(true);
        let states = self.core.endpoints.take();
        for state in &states {
            state.stop(PostBlock::Closed);
        }
        self.socket.drain();
        self.socket.stop();
        let mut panics = Panics::default();
        for state in &states {
            panics.catch(|| state.abandon());
        }
        self.core.clear(&mut panics);
    }
}

impl<D: Driver> fmt::Debug for Progress<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress")
            .field("transport", &D::ID)
            .field("device", &self.shared.domain.device())
            .finish_non_exhaustive()
    }
}
