//! The state of an endpoint behind its handles: a window of messages in each direction.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use super::Endpoint;
use super::address::PeerName;
use super::fast_path::NO_HEADER;
use super::interface::{Shared, slot_of};
use super::{Driver, PACKET, Queue};
use crate::base::completion::{Completion, Counted};
use crate::base::error::{Cause, EndpointError, Operation, OperationError};
use crate::base::panics::Panics;
use crate::transport::common::pending::PendingQueue;
use crate::transport::common::pool::Lease;
use crate::transport::common::post_state::{PostBlock, PostState};
use crate::transport::handle::EndpointState as _;
use crate::transport::reliable::{
    ACK_NOW, Acknowledged, HEADER, Header, Kind, Overdue, Receiver, Requesting, Sender, Sequence,
    Time,
};

/// A message that is not acknowledged yet.
pub(super) struct Sent {
    pub(super) buffer: Lease,
    /// Length of the packet.
    pub(super) length: u16,
    /// The request with which the device reads the buffer, if it does.
    pub(super) last: Option<u16>,
    pub(super) completion: Option<Counted>,
}

/// A received message that is not delivered yet.
pub(super) struct Held {
    pub(super) buffer: u32,
    pub(super) id: u8,
    /// Length of its data.
    pub(super) length: usize,
}

/// The other end.
pub(super) struct Peer<D: Driver> {
    pub(super) to: <D::Queue as Queue>::Destination,
    /// The name of the peer's endpoint, once it is known.
    pub(super) endpoint: Option<u32>,
    pub(super) who: PeerName<D::Port>,
}

pub(super) struct Flush {
    /// The first message that it does not wait for.
    until: Sequence,
    completion: Counted,
    /// It waits for a cancellation, which succeeds.
    cancels: bool,
}

pub(crate) struct State<D: Driver> {
    pub(super) posting: PostState,
    pub(super) peer: RefCell<Option<Peer<D>>>,
    /// The peer's queue pair number; no number before there is one.
    peer_qpn: Cell<u32>,
    /// The first word of a message's header with the id 0, if the endpoint accepts a message that
    /// is next in order and acknowledges nothing new without further checks; else [`NO_HEADER`].
    pub(super) accepts: Cell<u64>,
    /// What such a message acknowledges.
    pub(super) acknowledged: Cell<Sequence>,
    pub(super) sender: RefCell<Sender<Sent>>,
    pub(super) receiver: Receiver<Held>,
    pub(super) flushes: RefCell<VecDeque<Flush>>,
    pub(super) pending: PendingQueue<Endpoint<D>>,
    /// Number of `Endpoint`s that refer to this state. The drop of the last one closes it.
    pub(super) handles: Cell<u32>,
    /// The name by which the peer's packets address it: its slot in the lower half, a number of its
    /// own in the upper.
    pub(super) name: u32,
    /// Number of the connection between two interfaces, if it is not one between endpoints.
    pub(super) number: Cell<u32>,
    pub(super) requesting: Cell<Option<Requesting>>,
    /// The interface's list of endpoints that must send an acknowledgement has it.
    pub(super) owing: Cell<bool>,
    /// The interface's list of endpoints that may have a timer has it.
    pub(super) timed: Cell<bool>,
    /// Progress must drop it.
    pub(super) closing: Cell<bool>,
    /// The peer closed its end: the next message fails.
    peer_left: Cell<bool>,
    /// Set once this side ended the connection: later errors are reported as cancelled.
    canceled: Cell<bool>,
    pub(super) error: RefCell<Option<EndpointError>>,
    pub(super) shared: Rc<Shared<D>>,
}

/// Most flushes that can wait.
pub(super) const MAX_FLUSHES: usize = 1024;

impl<D: Driver> State<D> {
    /// Creates an unconnected endpoint.
    pub(super) fn new(shared: Rc<Shared<D>>, name: u32) -> Rc<Self> {
        let state = Self {
            posting: PostState::new(&shared.core.past),
            peer: RefCell::new(None),
            peer_qpn: Cell::new(u32::MAX),
            accepts: Cell::new(NO_HEADER),
            acknowledged: Cell::default(),
            sender: RefCell::new(Sender::new(shared.patience)),
            receiver: Receiver::new(),
            flushes: RefCell::default(),
            pending: PendingQueue::new(),
            handles: Cell::new(0),
            name,
            number: Cell::new(0),
            requesting: Cell::new(None),
            owing: Cell::new(false),
            timed: Cell::new(false),
            closing: Cell::new(false),
            peer_left: Cell::new(false),
            canceled: Cell::new(false),
            error: RefCell::new(None),
            shared,
        };
        state.posting.set(PostBlock::Unconnected, true);
        Rc::new(state)
    }

    /// Sets the other end.
    pub(super) fn set_peer(&self, peer: Peer<D>) {
        self.peer_qpn.set(peer.who.qpn);
        self.peer.replace(Some(peer));
    }

    /// Returns whether this is the queue pair of the endpoint's peer.
    #[inline(always)]
    pub(super) fn is_peer(&self, qpn: u32) -> bool {
        self.peer_qpn.get() == qpn
    }

    pub(super) fn place(&self) -> u32 {
        slot_of(self.name)
    }

    /// Returns whether a message could be sent now, apart from the post state.
    pub(super) fn has_room(&self) -> bool {
        self.shared.socket.can_send() && self.sender.borrow().has_room()
    }

    // Sending.

    /// Sends the message in `sent`'s buffer for the first time. It must have room.
    pub(super) fn transmit(
        &self,
        id: u8,
        mut sent: Sent,
        completion: Option<&Completion>,
    ) -> Result<(), Lease> {
        let mut sender = self.sender.borrow_mut();
        match self.transmit_once(sender.next(), Some(id), &mut sent) {
            Ok(()) => {
                sent.completion = completion.map(Completion::begin);
                sender.push(sent, || self.shared.now());
                self.watch_timers();
                Ok(())
            }
            Err(()) => Err(sent.buffer),
        }
    }

    /// Sends the message once. `id` is `Some` for the first time; later the header is in the buffer
    /// already.
    fn transmit_once(&self, sequence: Sequence, id: Option<u8>, sent: &mut Sent) -> Result<(), ()> {
        let peer = self.peer.borrow();
        let Some(peer) = peer.as_ref() else { return Err(()) };
        let socket = &self.shared.socket;
        let mut buffer =
            socket.adopt(std::mem::replace(&mut sent.buffer, Lease::numbered(u32::MAX)));
        let place = buffer.bytes()[PACKET..].first_chunk_mut::<HEADER>();
        if let Some(place) = place {
            let header = Header {
                kind: Kind::Message,
                id: id.unwrap_or(place[1]),
                flags: if id.is_some() { 0 } else { ACK_NOW },
                to: peer.endpoint.unwrap_or_default(),
                sequence,
                expected: self.receiver.expected(),
            };
            *place = header.to_bytes();
        }
        let posted = socket.send(&peer.to, &mut buffer, sent.length.into());
        sent.buffer = buffer.into_lease();
        let last = posted.map_err(drop)?;
        sent.last = last.or(sent.last);
        self.receiver.told();
        Ok(())
    }

    /// Sends lost messages again, as far as there is room.
    pub(super) fn resend(&self) {
        let mut sender = self.sender.borrow_mut();
        while self.shared.socket.has_room()
            && let Some((sequence, sent)) = sender.next_lost()
            && self.transmit_once(sequence, None, sent).is_ok()
        {
            sender.resent();
            self.posting.tally.retried();
        }
    }

    /// Sends a packet without a message to the peer.
    pub(super) fn send_control(&self, packet: impl FnOnce(u32) -> Vec<u8>) -> bool {
        let peer = self.peer.borrow();
        let Some(peer) = peer.as_ref() else { return true };
        self.shared.socket.send_bytes(&peer.to, &packet(peer.endpoint.unwrap_or_default())).is_ok()
    }

    /// Sends an acknowledgement, if one is due. Returns false if there was no room.
    pub(super) fn acknowledge(&self) -> bool {
        let peer = self.peer.borrow();
        let Some(Peer { to, endpoint: Some(endpoint), .. }) = peer.as_ref() else { return true };
        if !self.receiver.owes() || !self.posting.is_alive() {
            return true;
        }
        if !self.shared.socket.has_room() {
            return false;
        }
        let (socket, acknowledged) = (&self.shared.socket, self.receiver.acknowledge());
        if socket.takes_words() {
            socket.send_words(to, acknowledged.to_words(*endpoint)).is_ok()
        } else {
            socket.send_bytes(to, &acknowledged.to_packet(*endpoint)).is_ok()
        }
    }

    // What progress does.

    /// Processes the peer's acknowledgement: finishes messages, and sends lost ones again.
    pub(super) fn acknowledged(&self, told: Acknowledged) {
        if !self.is_idle() {
            self.sender.borrow_mut().acknowledged(told, || self.shared.now());
            self.finish();
            self.resend();
        }
    }

    /// Finishes acknowledged messages, including those left behind by a callback that panicked.
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
            if flushes.front().is_none_or(|flush| first.is_before(flush.until)) {
                return;
            }
            let flush = flushes.pop_front();
            drop(flushes);
            if let Some(flush) = flush {
                flush.completion.finish(Ok(()));
            }
        }
    }

    fn finish_one(&self, sent: Sent, result: Result<(), OperationError>) {
        self.shared.socket.retire_buffer(sent.buffer, sent.last);
        if let Some(completion) = sent.completion {
            completion.finish(result);
        }
    }

    /// Lets progress check the timers.
    #[inline(always)]
    pub(super) fn watch_timers(&self) {
        if !self.timed.get() {
            self.enter_timed();
        }
    }

    #[cold]
    fn enter_timed(&self) {
        self.timed.set(true);
        self.shared.timed.borrow_mut().push(self.name);
    }

    /// Checks the timers. Returns whether one is still running.
    pub(super) fn look(&self, now: Time) -> bool {
        if let Some(mut requesting) = self.requesting.get() {
            let overdue = requesting.look(now);
            self.requesting.set(Some(requesting));
            match overdue {
                Overdue::No => {}
                Overdue::Lost => self.request(),
                Overdue::GivenUp { tries } => {
                    self.fail_unanswered(Operation::Connect, tries);
                }
            }
        }
        self.shut();
        let overdue = self.sender.borrow_mut().look(now);
        match overdue {
            Overdue::No => {}
            Overdue::Lost => self.resend(),
            Overdue::GivenUp { tries } => {
                self.fail_unanswered(Operation::ActiveMessage, tries);
            }
        }
        self.open();
        self.posting.is_alive() && (self.requesting.get().is_some() || !self.is_idle())
    }

    /// Returns the next deadline.
    pub(super) fn due(&self, now: Time) -> Option<Time> {
        let requesting = self.requesting.get().map(|requesting| requesting.due());
        [requesting, self.sender.borrow_mut().due(now)].into_iter().flatten().min()
    }

    /// Handles the closing of the peer's end. It acknowledges nothing more.
    pub(super) fn peer_closed(&self) {
        if self.requesting.get().is_some() {
            return self.fail(Operation::Connect, Cause::Disconnected, None);
        }
        self.peer_left.set(true);
        if !self.is_idle() {
            self.fail(Operation::ActiveMessage, Cause::Disconnected, None);
        }
    }

    /// Returns whether the peer closed its end, so that a message fails at once.
    pub(super) fn has_peer_left(&self) -> bool {
        self.peer_left.get()
    }

    // Failing and closing.

    /// Handles the first failure: refuses further posts, reports it and fails the outstanding
    /// messages.
    #[cold]
    pub(super) fn fail(&self, operation: Operation, cause: Cause, detail: Option<String>) {
        if !self.posting.is_alive() {
            return;
        }
        self.posting.set(PostBlock::Failed, true);
        self.shut();
        let who = self
            .peer
            .borrow()
            .as_ref()
            .map_or_else(|| "an unconnected peer".to_owned(), |peer| peer.who.to_string());
        let report =
            EndpointError { transport: D::ID, peer: who, operation, cause, syndrome: None, detail };
        self.error.replace(Some(report.clone()));
        let mut panics = Panics::default();
        panics.catch(|| self.give_up(OperationError { cause, syndrome: None }));
        panics.catch(|| self.shared.core.handlers.dispatch_error(&report));
    }

    /// Fails after `tries` attempts without a reply.
    #[cold]
    fn fail_unanswered(&self, operation: Operation, tries: u32) {
        let config = &self.shared.config;
        let (setting, time) = match operation {
            Operation::Connect => ("connect_timeout", config.connect_timeout),
            _ => ("peer_timeout", config.peer_timeout),
        };
        let tried = format!("tried {tries} times in {time:?} ({setting})");
        let detail = D::unanswered(&self.shared.domain, &tried);
        self.fail(operation, Cause::PeerUnreachable, Some(detail));
    }

    /// Ends all outstanding messages with `error`.
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
            let Some(flush) = flush else { break };
            panics.catch(|| {
                if flush.cancels {
                    flush.completion.finish_canceled();
                } else {
                    flush.completion.finish(Err(error));
                }
            });
        }
        self.drop_held();
    }

    /// Returns the buffers of messages that came too early to the device.
    pub(super) fn drop_held(&self) {
        for held in self.receiver.drain() {
            self.shared.socket.give_back(held.buffer);
        }
    }

    /// Finishes the operations that were left behind by a callback that panicked.
    #[cold]
    pub(super) fn catch_up(&self) {
        if self.posting.is_alive() {
            self.finish();
        } else {
            let cause = self.error.borrow().as_ref().map_or(Cause::Canceled, |error| error.cause);
            self.give_up(OperationError { cause, syndrome: None });
        }
    }

    /// Stops sending and receiving. `abandon`, in progress, finishes the outstanding messages.
    pub(super) fn stop(&self, reason: PostBlock) {
        let tell = self.posting.is_alive() && !self.posting.has(PostBlock::Unconnected);
        self.posting.set(reason, true);
        self.shut();
        self.canceled.set(true);
        if tell {
            // If this packet is lost, the peer's timer finds out.
            self.shared.socket.request_completion();
            self.send_control(|to| Header::control(Kind::Bye, to, Sequence(0)).to_bytes().to_vec());
        }
    }

    /// Returns whether this side ended the connection.
    pub(super) fn is_canceled(&self) -> bool {
        self.canceled.get()
    }

    /// Completes all outstanding messages as cancelled.
    pub(super) fn abandon(&self) {
        self.give_up(OperationError::CANCELED);
    }

    // Flushing.

    /// Lets `completion` wait until everything sent so far is acknowledged, or, if it `cancels`,
    /// has ended.
    pub(super) fn flush_later(&self, completion: &Completion, cancels: bool) {
        let until = self.sender.borrow().next();
        let completion = completion.begin();
        self.flushes.borrow_mut().push_back(Flush { until, completion, cancels });
    }
}

/// After a panic of a callback, makes progress finish the remaining operations.
pub(super) struct CatchUp<'a, D: Driver>(pub(super) &'a State<D>);

impl<D: Driver> Drop for CatchUp<'_, D> {
    #[cold]
    fn drop(&mut self) {
        self.0.shared.catch_up_later();
    }
}
