//! What an endpoint is behind its handles: a window of messages each way, and what becomes of them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use super::address::PeerName;
use super::endpoint::Endpoint;
use super::interface::Shared;
use super::socket::Destination;
use super::{NAME, PACKET};
use crate::completion::Completion;
use crate::counters::Counters;
use crate::error::{Cause, EndpointError, Operation, OperationError};
use crate::panics::Panics;
use crate::transport::common::gate::{Block, Gate};
use crate::transport::common::pending::PendingQueue;
use crate::transport::common::pool::Lease;
use crate::transport::rdma;
use crate::transport::reliable::{
    ACK_NOW, Acknowledged, HEADER, Header, Kind, Overdue, Receiver, Requesting, Sender, Sequence, Time,
};

/// A message that is not acknowledged yet.
pub(super) struct Sent {
    pub(super) buffer: Lease,
    /// Of the packet.
    pub(super) length: usize,
    /// The request that the device reads the buffer by, if it does.
    pub(super) last: Option<u16>,
    pub(super) completion: Option<Completion>,
}

/// A message that came and is not delivered yet.
pub(super) struct Held {
    pub(super) buffer: u32,
    pub(super) id: u8,
    /// Of its data.
    pub(super) length: usize,
}

/// The other end.
pub(super) struct Peer {
    pub(super) to: Destination,
    /// The endpoint's name there, once it is known.
    pub(super) endpoint: Option<u32>,
    pub(super) who: PeerName,
}

pub(super) struct State {
    pub(super) gate: Gate,
    pub(super) peer: RefCell<Option<Peer>>,
    pub(super) sender: RefCell<Sender<Sent>>,
    pub(super) receiver: RefCell<Receiver<Held>>,
    /// Flushes, each with the first message that it does not wait for.
    flushes: RefCell<VecDeque<(Sequence, Completion)>>,
    pub(super) pending: PendingQueue<Endpoint>,
    /// `Endpoint`s that name this state. The last one to go closes it.
    pub(super) handles: Cell<u32>,
    /// How the peer's packets name it: its place in the lower half, a number of its own in the upper.
    pub(super) name: u32,
    /// Of the connection between two interfaces, where it is not one between endpoints.
    pub(super) number: Cell<u32>,
    pub(super) requesting: Cell<Option<Requesting>>,
    /// It is in the list of those who owe an acknowledgement.
    pub(super) owing: Cell<bool>,
    /// To be dropped by progress.
    pub(super) closing: Cell<bool>,
    /// The peer closed its end: the next message fails.
    peer_left: Cell<bool>,
    /// Errors from now on are our own doing.
    canceled: Cell<bool>,
    error: RefCell<Option<EndpointError>>,
    pub(super) shared: Rc<Shared>,
}

/// Flushes that wait at once.
const MAX_FLUSHES: usize = 1024;

impl State {
    /// What was done so far.
    pub(super) fn counters(&self) -> Counters {
        self.gate.tally.read()
    }

    /// An endpoint that is not connected.
    pub(super) fn new(shared: Rc<Shared>, name: u32) -> Rc<Self> {
        let state = Self {
            gate: Gate::new(&shared.past),
            peer: RefCell::new(None),
            sender: RefCell::new(Sender::new(shared.patience)),
            receiver: RefCell::new(Receiver::new()),
            flushes: RefCell::default(),
            pending: PendingQueue::new(),
            handles: Cell::new(0),
            name,
            number: Cell::new(0),
            requesting: Cell::new(None),
            owing: Cell::new(false),
            closing: Cell::new(false),
            peer_left: Cell::new(false),
            canceled: Cell::new(false),
            error: RefCell::new(None),
            shared,
        };
        state.gate.set(Block::Unconnected, true);
        Rc::new(state)
    }

    pub(super) fn place(&self) -> u32 {
        self.name & u32::from(u16::MAX)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.sender.borrow().is_idle()
    }

    pub(super) fn error(&self) -> Option<EndpointError> {
        self.error.borrow().clone()
    }

    /// A message would be taken now, but for the gate.
    pub(super) fn has_room(&self) -> bool {
        self.shared.socket.can_send() && self.sender.borrow().has_room()
    }

    /// A request may wait: some post would be refused for want of resources, and nothing else.
    pub(super) fn may_wait(&self) -> bool {
        let short = !self.has_room() || self.gate.has(Block::Connecting) || !self.can_flush();
        self.gate.is_usable() && (short || !self.pending.is_idle())
    }

    // Sending.

    /// Sends the message that lies in `sent`'s buffer, for the first time. There is room.
    pub(super) fn transmit(&self, id: u8, mut sent: Sent) -> Result<(), Lease> {
        let mut sender = self.sender.borrow_mut();
        match self.transmit_once(sender.next(), Some(id), &mut sent) {
            Ok(()) => {
                sender.push(sent, self.shared.now());
                self.shared.timed.set(true);
                Ok(())
            }
            Err(()) => Err(sent.buffer),
        }
    }

    /// `id` if it is the first time; else it is in the buffer already.
    fn transmit_once(&self, sequence: Sequence, id: Option<u8>, sent: &mut Sent) -> Result<(), ()> {
        let peer = self.peer.borrow();
        let (Some(peer), mut receiver) = (peer.as_ref(), self.receiver.borrow_mut()) else { return Err(()) };
        let socket = &self.shared.socket;
        let mut buffer = socket.adopt(std::mem::replace(&mut sent.buffer, Lease::numbered(u32::MAX)));
        let place = buffer.bytes()[PACKET..].first_chunk_mut::<HEADER>();
        if let Some(place) = place {
            let header = Header {
                kind: Kind::Message,
                id: id.unwrap_or(place[1]),
                flags: if id.is_some() { 0 } else { ACK_NOW },
                to: peer.endpoint.unwrap_or_default(),
                sequence,
                expected: receiver.expected(),
            };
            *place = header.to_bytes();
        }
        let posted = socket.send(&peer.to, &mut buffer, sent.length);
        sent.buffer = buffer.into_lease();
        let last = posted.map_err(drop)?;
        sent.last = last.or(sent.last);
        receiver.told();
        Ok(())
    }

    /// Sends again what was lost, as far as there is room.
    pub(super) fn resend(&self) {
        let mut sender = self.sender.borrow_mut();
        while self.shared.socket.has_room()
            && let Some((sequence, sent)) = sender.next_lost()
            && self.transmit_once(sequence, None, sent).is_ok()
        {
            sender.resent();
            self.gate.tally.retried();
        }
    }

    /// Sends a packet without a message to the peer.
    pub(super) fn send_control(&self, packet: impl FnOnce(u32) -> Vec<u8>) -> bool {
        let peer = self.peer.borrow();
        let Some(peer) = peer.as_ref() else { return true };
        self.shared.socket.send_bytes(&peer.to, &packet(peer.endpoint.unwrap_or_default())).is_ok()
    }

    /// Tells the peer what came, if it is owed that. False if there was no room for it.
    pub(super) fn acknowledge(&self) -> bool {
        let peer = self.peer.borrow();
        let mut receiver = self.receiver.borrow_mut();
        let Some(Peer { to, endpoint: Some(endpoint), .. }) = peer.as_ref() else { return true };
        if !receiver.owes() || !self.gate.is_alive() {
            return true;
        }
        if !self.shared.socket.has_room() {
            return false;
        }
        self.shared.socket.send_bytes(to, &receiver.acknowledge().to_packet(*endpoint)).is_ok()
    }

    // What progress does.

    /// The peer has this: finishes what is done, and sends again what is lost.
    pub(super) fn acknowledged(&self, told: Acknowledged) {
        if !self.is_idle() {
            self.sender.borrow_mut().acknowledged(told, self.shared.now());
            self.finish();
            self.resend();
        }
    }

    /// Finishes what is acknowledged, also what a callback that panicked left behind.
    pub(super) fn finish(&self) {
        let catch_up = CatchUp(self);
        loop {
            let done = self.sender.borrow_mut().take_done();
            let Some(sent) = done else { break };
            self.finish_one(sent, Ok(()));
        }
        self.finish_flushes();
        std::mem::forget(catch_up);
    }

    fn finish_flushes(&self) {
        let first = self.sender.borrow().first();
        loop {
            let mut flushes = self.flushes.borrow_mut();
            if flushes.front().is_none_or(|(until, _)| first.is_before(*until)) {
                return;
            }
            let flush = flushes.pop_front();
            drop(flushes);
            if let Some((_, completion)) = flush {
                completion.count_down(Ok(()));
            }
        }
    }

    fn finish_one(&self, sent: Sent, result: Result<(), OperationError>) {
        self.shared.socket.retire_buffer(sent.buffer, sent.last);
        if let Some(completion) = sent.completion {
            completion.count_down(result);
        }
    }

    /// Looks at the timers. Answers whether something is still to be timed.
    pub(super) fn look(&self, now: Time) -> bool {
        if let Some(mut requesting) = self.requesting.get() {
            let overdue = requesting.look(now);
            self.requesting.set(Some(requesting));
            match overdue {
                Overdue::No => {}
                Overdue::Lost => self.request(),
                Overdue::GivenUp { tries } => {
                    self.fail(Operation::Connect, Cause::PeerUnreachable, Some(tries));
                }
            }
        }
        let overdue = self.sender.borrow_mut().look(now);
        match overdue {
            Overdue::No => {}
            Overdue::Lost => self.resend(),
            Overdue::GivenUp { tries } => {
                self.fail(Operation::ActiveMessage, Cause::PeerUnreachable, Some(tries));
            }
        }
        self.gate.is_alive() && (self.requesting.get().is_some() || !self.is_idle())
    }

    /// When it wants to be looked at.
    pub(super) fn due(&self) -> Option<Time> {
        let requesting = self.requesting.get().map(|requesting| requesting.due());
        [requesting, self.sender.borrow().due()].into_iter().flatten().min()
    }

    /// The peer closed its end. What it did not acknowledge it will not.
    pub(super) fn peer_closed(&self) {
        if self.requesting.get().is_some() {
            return self.fail(Operation::Connect, Cause::Disconnected, None);
        }
        self.peer_left.set(true);
        if !self.is_idle() {
            self.fail(Operation::ActiveMessage, Cause::Disconnected, None);
        }
    }

    /// The peer is not there any more: a message fails at once.
    pub(super) fn has_peer_left(&self) -> bool {
        self.peer_left.get()
    }

    // Failing and closing.

    /// The first failure shuts the gate and is reported; what is outstanding fails with it.
    #[cold]
    pub(super) fn fail(&self, operation: Operation, cause: Cause, tries: Option<u32>) {
        if !self.gate.is_alive() {
            return;
        }
        self.gate.set(Block::Failed, true);
        let who =
            self.peer.borrow().as_ref().map_or_else(|| "nobody".to_owned(), |peer| peer.who.to_string());
        let shared = &self.shared;
        let detail = tries.map(|tries| {
            let (setting, time) = match operation {
                Operation::Connect => ("connect_timeout", shared.config.connect_timeout),
                _ => ("peer_timeout", shared.config.peer_timeout),
            };
            rdma::unanswered(&shared.domain, &format!("tried {tries} times in {time:?} ({setting})"))
        });
        let report = EndpointError { transport: NAME, peer: who, operation, cause, syndrome: None, detail };
        self.error.replace(Some(report.clone()));
        let mut panics = Panics::default();
        panics.catch(|| self.give_up(OperationError { cause, syndrome: None }));
        panics.catch(|| self.shared.handlers.dispatch_error(&report));
    }

    /// Everything outstanding ends with `error`.
    pub(super) fn give_up(&self, error: OperationError) {
        let mut panics = Panics::default();
        self.requesting.set(None);
        loop {
            let sent = self.sender.borrow_mut().take_first();
            let Some(sent) = sent else { break };
            panics.catch(|| self.finish_one(sent, Err(error)));
        }
        loop {
            let flush = self.flushes.borrow_mut().pop_front();
            let Some((_, completion)) = flush else { break };
            panics.catch(|| completion.count_down(Err(error)));
        }
        self.drop_held();
    }

    /// Gives the buffers of messages that came too early back to the device.
    pub(super) fn drop_held(&self) {
        for held in self.receiver.borrow_mut().drain() {
            self.shared.socket.give_back(held.buffer);
        }
    }

    /// What a callback that panicked left behind.
    #[cold]
    pub(super) fn catch_up(&self) {
        if self.gate.is_alive() {
            self.finish();
        } else {
            let cause = self.error.borrow().as_ref().map_or(Cause::Canceled, |error| error.cause);
            self.give_up(OperationError { cause, syndrome: None });
        }
    }

    /// From here on nothing is sent or taken. What is outstanding is finished by `abandon`, in progress.
    pub(super) fn stop(&self, reason: Block) {
        let tell = self.gate.is_alive() && !self.gate.has(Block::Unconnected);
        self.gate.set(reason, true);
        self.canceled.set(true);
        if tell {
            // If it gets lost, the peer finds out by itself.
            self.shared.socket.request_completion();
            self.send_control(|to| Header::control(Kind::Bye, to, Sequence(0)).to_bytes().to_vec());
        }
    }

    /// It was given up on this side.
    pub(super) fn is_canceled(&self) -> bool {
        self.canceled.get()
    }

    /// Completes whatever is left as cancelled.
    pub(super) fn abandon(&self) {
        self.give_up(OperationError::CANCELED);
    }

    // Flushing.

    /// Another flush can wait.
    pub(super) fn can_flush(&self) -> bool {
        self.flushes.borrow().len() < MAX_FLUSHES
    }

    /// Counts `completion` down when everything sent so far is acknowledged.
    pub(super) fn flush_later(&self, completion: Completion) {
        let until = self.sender.borrow().next();
        self.flushes.borrow_mut().push_back((until, completion));
    }
}

/// A callback panicked: progress finishes what it left behind.
pub(super) struct CatchUp<'a>(pub(super) &'a State);

impl Drop for CatchUp<'_> {
    #[cold]
    fn drop(&mut self) {
        self.0.shared.catch_up_later();
    }
}
