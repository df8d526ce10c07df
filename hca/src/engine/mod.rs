//! The engine: detects doorbells, fetches and checks WQEs, and runs requester, responder and
//! completer of every queue pair.
//!
//! A pass checks every doorbell once, receives a bounded number of packets, runs expired timers and
//! then gives every queue pair with work one bounded turn, so that none starves. It never blocks,
//! and its only clock is the time passed to it.

mod address;
mod atomic;
mod completer;
mod congestion;
mod datagram;
mod deliver;
mod doorbell;
mod events;
mod failure;
mod fetch;
mod gather;
mod injected;
mod management;
mod paging;
mod port;
mod psn;
mod registration;
mod report;
mod requester;
mod responder;
mod segments;
mod service;
mod shared;
mod tag;
mod tally;
mod target;
mod timer;

use std::collections::VecDeque;
use std::sync::Arc;

use barewire_layouts::command::qp::{QpState, ServiceType};

pub(crate) use address::lid_address;
pub(crate) use completer::NO_USER_INDEX;
pub(crate) use events::{fatal, link_changed};
pub(crate) use report::Reports;
pub use report::{Finding, Report, ReservedBits, Strict};
pub(crate) use timer::StepClock;

use port::{Port, split};
use service::{is_reliable, transport};
use tally::Tally;

use crate::counters::Counters;
use crate::object::{self, UarPage};
use crate::wire::packet::{self, Packet};
use crate::wire::{MAX_FRAME, PhysicalPort};

/// Packets that one pass receives.
const RECEIVE_BUDGET: u32 = 128;
/// Passes in a row whose packets may postpone the timers: a flood of packets must not stop them.
const POSTPONED: u32 = 16;
/// Queue pairs that one pass serves.
const TURNS: u32 = 8;
/// Packets that one queue pair sends per turn, as requester and as responder each.
const TURN_PACKETS: u32 = 32;

/// Packets that a queue pair sends at most in a command that ends it.
const LAST_PACKETS: u32 = 256;

/// Queue pairs in error that one pass flushes.
const FLUSHES: usize = 64;

/// The device state that a pass or a command works on.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) objects: &'a mut Objects,
    /// Never none.
    pub(crate) ports: &'a mut [PhysicalPort],
    pub(crate) counters: &'a mut Counters,
    pub(crate) reports: &'a mut Reports,
    /// Nanoseconds on the device's clock.
    pub(crate) now: u64,
}

impl Context<'_> {
    /// Returns the index of port `number`; 0 means the first port.
    pub(crate) fn port_index(&self, number: u8) -> Option<usize> {
        let index = usize::from(number.max(1)) - 1;
        (index < self.ports.len()).then_some(index)
    }

    /// Sends packets that were held back for batching.
    fn flush(&mut self) {
        for port in &mut *self.ports {
            port.wire.flush();
        }
    }
}

/// A queue pair with the engine's state.
pub(crate) type Qp = object::Qp<QpEngine>;
/// A responder context with the engine's state.
pub(crate) type ResponderContext = object::ResponderContext<QpEngine>;
/// The objects of a device whose queue pairs the engine works on.
pub(crate) type Objects = object::Objects<QpEngine>;

/// The engine's state of one queue pair.
#[derive(Debug, Default)]
pub(crate) struct QpEngine {
    requester: requester::Requester,
    responder: responder::Responder,
    /// Whether it is queued for a turn.
    queued: bool,
    /// Whether it is in the list of queue pairs to flush.
    failed: bool,
    /// Whether a packet has arrived since it became ready to receive.
    established: bool,
    /// The hardware syndrome of the WQE that failed, which those flushed behind it repeat.
    stopped_by: u8,
    /// A command moved it to the error state, and no send WQE was flushed since.
    commanded: bool,
    /// Its earliest timer.
    timer: Option<u64>,
}

/// Progress of a queue pair, for QUERY_QP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// PSN of the next request packet.
    pub(crate) next_send_psn: u32,
    /// The last PSN that the peer acknowledged.
    pub(crate) acknowledged_psn: u32,
    /// PSN of the expected request packet.
    pub(crate) next_receive_psn: u32,
    /// Messages received, 24 bits.
    pub(crate) messages_received: u32,
    /// Send WQEBBs completed, modulo 2^16.
    pub(crate) send_wqebbs: u16,
    /// Receive WQEs taken from its own ring, modulo 2^16.
    pub(crate) receive_wqes: u16,
}

impl QpEngine {
    /// Ends the error state of a DC initiator's stream. Returns `false` if it is not in error.
    pub(crate) fn reset_stream(&mut self, stream: u16) -> bool {
        self.requester.streams.reset(stream)
    }

    /// Returns a receive WQE that is not in use, with its allocations.
    fn spare_receive(&mut self) -> fetch::Receive {
        self.responder.spare()
    }

    /// Returns the progress of the queue pair. The responder's part is valid from RTR on, the
    /// requester's from RTS on.
    pub(crate) fn standing(&self) -> Standing {
        let (sent, acknowledged) = self.requester.sequence();
        let (expected, messages_received) = self.responder.sequence();
        Standing {
            next_send_psn: sent.get(),
            acknowledged_psn: acknowledged.get(),
            next_receive_psn: expected.get(),
            messages_received,
            send_wqebbs: self.requester.oldest(),
            receive_wqes: self.responder.consumer(),
        }
    }
}

/// All queue pairs' doorbells, turns and timers.
#[derive(Debug)]
pub(crate) struct Engine {
    uars: doorbell::Watches,
    ready: VecDeque<u32>,
    timers: timer::Timers,
    /// Queue pairs in error. WQEs posted to them later are flushed without a doorbell.
    failed: VecDeque<u32>,
    stopped: bool,
    /// Injected memory delay per packet, and the time until which the last packets take, in
    /// nanoseconds.
    slow_dma: u64,
    memory_busy: Option<u64>,
    /// Passes in which timers waited for packets that have arrived.
    postponed: u32,
    received: Vec<u8>,
    built: Vec<u8>,
}

impl Engine {
    /// Creates the engine of a device. `stepped`: the driver stands still during a pass.
    pub(crate) fn new(stepped: bool) -> Self {
        Self {
            uars: doorbell::Watches::new(stepped),
            ready: VecDeque::new(),
            timers: timer::Timers::default(),
            failed: VecDeque::new(),
            stopped: false,
            slow_dma: 0,
            memory_busy: None,
            postponed: 0,
            received: Vec::with_capacity(MAX_FRAME),
            built: Vec::with_capacity(MAX_FRAME),
        }
    }

    /// Does a bounded amount of work. Returns whether there was any.
    pub(crate) fn pass(&mut self, context: &mut Context<'_>) -> bool {
        for port in &mut *context.ports {
            port.wire.tick(context.now);
        }
        let mut busy = self.ring(context);
        let memory_is_free = self.memory_is_free(context.now);
        let before = context.counters.packets_received + context.counters.packets_sent;
        // Before the timers: if the thread was not run for some time, the responses that have
        // arrived meanwhile are not late.
        let taken = if memory_is_free { self.receive(context) } else { 0 };
        busy |= taken > 0;
        let may_have_more = taken >= self.budget(RECEIVE_BUDGET);
        self.postponed = if may_have_more { self.postponed.wrapping_add(1) } else { 0 };
        if self.postponed.is_multiple_of(POSTPONED) {
            busy |= self.expire(context);
        }
        if memory_is_free {
            busy |= self.serve(context);
            let moved = context.counters.packets_received + context.counters.packets_sent - before;
            self.memory_busy =
                (moved > 0 && self.slow_dma > 0).then(|| context.now + moved * self.slow_dma);
        }
        busy |= self.flush_failed(context);
        close_blocks(context);
        busy |= events::look(context);
        context.flush();
        busy | context.ports.iter().any(|port| port.wire.is_holding())
    }

    /// Returns when the next pass is due without an external event, in nanoseconds on the device's
    /// clock. May be early.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        [self.timers.next(), self.memory_busy].into_iter().flatten().min()
    }

    /// Returns whether no doorbell is pending. Does not store to UAR pages.
    pub(crate) fn is_quiet(&self, objects: &Objects) -> bool {
        self.ready.is_empty() && self.uars.is_quiet() && events::is_quiet(objects)
    }

    /// Returns whether there are queue pairs in error.
    pub(crate) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Returns all UAR pages, and a version that changes with them.
    pub(crate) fn uar_pages(&self) -> (u64, impl Iterator<Item = &Arc<UarPage>>) {
        self.uars.pages()
    }

    /// Watches the doorbells of a new UAR page.
    pub(crate) fn uar_added(&mut self, index: u32, page: Arc<UarPage>) {
        self.uars.add(index, page);
    }

    /// Stops watching a UAR page.
    pub(crate) fn uar_removed(&mut self, index: u32) {
        self.uars.remove(index);
    }

    /// Handles a state transition of queue pair `qpn` from `from`; its attributes are already those
    /// of the new state.
    pub(crate) fn qp_modified(&mut self, context: &mut Context<'_>, qpn: u32, from: QpState) {
        let tally = Tally::begin(context, qpn);
        let late_flush = context.objects.requirements.late_flush;
        let Some((qp, mut port)) = split(context, &mut self.built, qpn) else { return };
        let uar = qp.uar;
        if matches!((from, qp.state), (QpState::Rtr | QpState::Rts, QpState::Rst | QpState::Err)) {
            responder::acknowledge_owed(qp, &mut port);
        }
        match (from, qp.state) {
            (_, QpState::Rst) => {
                requester::hang_up(qp, &mut port);
                responder::drop_receive(qp, &mut port);
                requester::drop_reads(qp, &mut port);
                let QpEngine { queued, failed, timer, .. } = qp.engine;
                qp.engine = QpEngine { queued, failed, timer, ..QpEngine::default() };
                qp.doorbell.reset();
                self.uars.detach(uar, qpn, context);
            }
            (QpState::Rst, QpState::Init) => self.uars.attach(uar, qpn),
            (_, QpState::Err) => {
                qp.engine.commanded |= from != QpState::Err;
                // Otherwise the next pass flushes it.
                if !late_flush {
                    completer::flush(qp, &mut port);
                }
            }
            (QpState::Init, QpState::Rtr) => qp.engine.responder.start(&qp.attributes),
            (QpState::Rtr, QpState::Rts) => {
                qp.engine.requester.start(qp.service, qp.streams, &qp.attributes);
                // The driver may have posted before this state, which is the first to execute WQEs.
                // It waits for this command, so everything found now was posted before, and nothing
                // that it posts later is found ahead of its doorbell.
                self.uars.scan(uar);
                self.ring(context);
            }
            _ => {}
        }
        tally.end(context);
        self.note_failure(context, qpn);
        close_blocks(context);
        context.flush();
    }

    /// The device broke down: it sends nothing any more.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Handles the destruction of queue pair `qpn`.
    pub(crate) fn qp_destroyed(&mut self, context: &mut Context<'_>, qpn: u32) {
        if context.objects.qps.get(qpn).is_some_and(|qp| qp.service == ServiceType::Ud) {
            self.send_rest(context, qpn);
        }
        if let Some((qp, mut port)) = split(context, &mut self.built, qpn) {
            if matches!(qp.state, QpState::Rtr | QpState::Rts) {
                responder::acknowledge_owed(qp, &mut port);
            }
            requester::hang_up(qp, &mut port);
            responder::drop_receive(qp, &mut port);
            requester::drop_reads(qp, &mut port);
            let uar = qp.uar;
            self.uars.detach(uar, qpn, context);
        }
        self.failed.retain(|&failed| failed != qpn);
        context.flush();
    }

    /// Sends what was posted to queue pair `qpn` before the command that moves it out of RTS or
    /// destroys it. An adapter has sent that by then, and programs such as mckey do not wait for
    /// completions; this device's thread may have had no CPU since.
    pub(crate) fn send_rest(&mut self, context: &mut Context<'_>, qpn: u32) {
        if self.stopped {
            return;
        }
        let Some(qp) = context.objects.qps.get(qpn).filter(|qp| qp.state == QpState::Rts) else {
            return;
        };
        self.uars.scan(qp.uar);
        self.ring(context);
        let tally = Tally::begin(context, qpn);
        if let Some((qp, mut port)) = split(context, &mut self.built, qpn) {
            requester::transmit(qp, &mut port, LAST_PACKETS);
        }
        tally.end(context);
    }

    /// Checks the doorbells and queues every queue pair that posted for a turn.
    fn ring(&mut self, context: &mut Context<'_>) -> bool {
        let Self { uars, ready, .. } = self;
        uars.look(context, &mut |qp| mark_ready(ready, qp))
    }

    /// Receives packets from the ports in turn. Returns their number.
    fn receive(&mut self, context: &mut Context<'_>) -> u32 {
        let mut frame = std::mem::take(&mut self.received);
        let mut taken = 0;
        let budget = self.budget(RECEIVE_BUDGET);
        for at in 0..context.ports.len() {
            while taken < budget {
                let Some(PhysicalPort { address, wire }) = context.ports.get_mut(at) else { break };
                let Some(source) = wire.receive(&mut frame) else { break };
                taken += 1;
                context.counters.packets_received += 1;
                let class = wire.class();
                match packet::parse(&frame, source, wire.group().unwrap_or(*address)) {
                    Ok(packet) => self.deliver(context, &Packet { port: at, class, ..packet }),
                    Err(packet::Malformed::Icrc) => context.counters.bad_icrc += 1,
                    Err(packet::Malformed::Header) => context.counters.malformed += 1,
                }
            }
        }
        self.received = frame;
        taken
    }

    /// Runs expired timers.
    fn expire(&mut self, context: &mut Context<'_>) -> bool {
        let mut busy = false;
        while let Some((deadline, qpn)) = self.timers.expired(context.now) {
            if self.expire_drain(context, qpn) {
                busy = true;
                continue;
            }
            let tally = Tally::begin(context, qpn);
            if self.expire_context(context, deadline, qpn) {
                tally.end(context);
                busy = true;
                continue;
            }
            let Some((qp, mut port)) = split(context, &mut self.built, qpn) else { continue };
            if qp.engine.timer != Some(deadline) {
                continue;
            }
            qp.engine.timer = None;
            if requester::expire(qp, &mut port) {
                busy = true;
                mark_ready(&mut self.ready, qp);
            } else if let Some(later) = requester::deadline(qp) {
                self.timers.arm(qpn, later, &mut qp.engine.timer);
            }
            tally.end(context);
            self.note_failure(context, qpn);
        }
        busy
    }

    /// Gives each queue pair with work a turn, unless a port is full.
    fn serve(&mut self, context: &mut Context<'_>) -> bool {
        if context.ports.iter().any(|port| port.wire.is_full()) {
            return !self.ready.is_empty();
        }
        let mut busy = false;
        let (turns, packets) = (self.budget(TURNS) as usize, self.budget(TURN_PACKETS));
        for _ in 0..self.ready.len().min(turns) {
            let Some(qpn) = self.ready.pop_front() else { break };
            let tally = Tally::begin(context, qpn);
            let Some((qp, mut port)) = split(context, &mut self.built, qpn) else { continue };
            qp.engine.queued = false;
            busy = true;
            let mut more = responder::respond(qp, &mut port, packets);
            more |= requester::transmit(qp, &mut port, packets);
            if more {
                mark_ready(&mut self.ready, qp);
            }
            if let Some(deadline) = requester::deadline(qp) {
                self.timers.arm(qpn, deadline, &mut qp.engine.timer);
            }
            tally.end(context);
            self.note_failure(context, qpn);
        }
        busy
    }

    /// Flushes WQEs posted to queue pairs in error since the last pass.
    fn flush_failed(&mut self, context: &mut Context<'_>) -> bool {
        let mut busy = false;
        for _ in 0..self.failed.len().min(FLUSHES) {
            let Some(qpn) = self.failed.pop_front() else { break };
            let tally = Tally::begin(context, qpn);
            let Some((qp, mut port)) = split(context, &mut self.built, qpn) else { continue };
            qp.engine.failed = qp.state == QpState::Err;
            if qp.engine.failed {
                busy |= completer::flush(qp, &mut port);
                self.failed.push_back(qpn);
                tally.end(context);
            }
        }
        busy
    }

    /// Adds a queue pair in error to the list, so that later posts to it are flushed.
    fn note_failure(&mut self, context: &mut Context<'_>, qpn: u32) {
        // A responder context has nothing more to flush.
        let Some((qp, mut port)) =
            split(context, &mut self.built, qpn).filter(|(qp, _)| qp.dct.is_none())
        else {
            return;
        };
        if qp.state == QpState::Err && !std::mem::replace(&mut qp.engine.failed, true) {
            requester::hang_up(qp, &mut port);
            self.failed.push_back(qpn);
        }
    }
}

/// Makes completion queues write incomplete compressed blocks.
fn close_blocks(context: &mut Context<'_>) {
    let Objects { events, cqs, .. } = &mut *context.objects;
    events.close_blocks(cqs, context.now);
}

/// Queues `qp` for a turn, once.
fn mark_ready(ready: &mut VecDeque<u32>, qp: &mut Qp) {
    if !std::mem::replace(&mut qp.engine.queued, true) {
        ready.push_back(qp.number);
    }
}
