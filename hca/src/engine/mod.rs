//! The engine: notices doorbells, fetches WQEs, checks them and runs requester, responder and completer of every queue pair.
//!
//! A pass looks at every doorbell once, takes a bounded number of packets, serves what timers woke and then gives every queue
//! pair that has work one bounded turn, so that none starves. It never blocks and knows no clock but the time it is given.

mod address;
mod atomic;
mod completer;
mod congestion;
mod counters;
mod datagram;
mod deliver;
mod doorbell;
mod events;
mod fetch;
mod gather;
mod injected;
mod port;
mod psn;
mod registration;
mod report;
mod requester;
mod responder;
mod service;
mod shared;
mod target;
mod timer;

use std::collections::VecDeque;
use std::sync::Arc;

use barewire_layouts::command::qp::QpState;

pub(crate) use address::lid_address;
pub(crate) use completer::NO_USER_INDEX;
pub use counters::{Counters, SyndromeCounts};
pub(crate) use events::{fatal, link_changed};
pub(crate) use report::Reports;
pub use report::{Finding, Report, Strict};
pub(crate) use timer::StepClock;

use counters::Tally;
use port::{Port, split};
use service::{is_reliable, transport};

use crate::object::{Objects, Qp, UarPage};
use crate::wire::packet::{self, Packet};
use crate::wire::{MAX_FRAME, PhysicalPort};

/// Packets that one pass takes from the wire.
const RECEIVE_BUDGET: u32 = 128;
/// Queue pairs that one pass serves.
const TURNS: u32 = 8;
/// Packets that one queue pair sends in its turn, as requester and as responder each.
const TURN_PACKETS: u32 = 32;

/// Queue pairs in error that one pass looks at.
const FLUSHES: usize = 64;

/// What a pass or a command works on: the rest of the device's state.
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
    /// The index of port `number`, where 0 means the first.
    pub(crate) fn port_index(&self, number: u8) -> Option<usize> {
        let index = usize::from(number.max(1)) - 1;
        (index < self.ports.len()).then_some(index)
    }

    /// Lets go what was held back for batching.
    fn flush(&mut self) {
        for port in &mut *self.ports {
            port.wire.flush();
        }
    }
}

/// The engine's own state of one queue pair.
#[derive(Debug, Default)]
pub(crate) struct QpEngine {
    requester: requester::Requester,
    responder: responder::Responder,
    /// Whether it waits for a turn already.
    queued: bool,
    /// Whether it is among those that are flushed.
    failed: bool,
    /// Whether a packet has come since it is ready to receive.
    established: bool,
    /// Its earliest entry among the timers.
    timer: Option<u64>,
}

/// Where a queue pair stands, as QUERY_QP tells it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// Sequence number of the next request packet.
    pub(crate) next_send_psn: u32,
    /// The last sequence number that the peer acknowledged.
    pub(crate) acknowledged_psn: u32,
    /// Sequence number of the request packet that is expected.
    pub(crate) next_receive_psn: u32,
    /// Messages received, 24 bits.
    pub(crate) messages_received: u32,
    /// Send WQEBBs done, modulo 2^16.
    pub(crate) send_wqebbs: u16,
    /// Receive WQEs taken from its own ring, modulo 2^16.
    pub(crate) receive_wqes: u16,
}

impl QpEngine {
    /// Where the queue pair stands. Means something from RTR on for the responder's part, from RTS on for the requester's.
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
    /// Queue pairs in error: what is still posted to them is flushed, without a doorbell to tell of it.
    failed: VecDeque<u32>,
    /// Nanoseconds that each packet takes because memory is slow, and until when the last ones do.
    slow_dma: u64,
    memory_busy: Option<u64>,
    received: Vec<u8>,
    built: Vec<u8>,
}

impl Engine {
    /// The engine of a device. `stepped`: the driver stands still during a pass.
    pub(crate) fn new(stepped: bool) -> Self {
        Self {
            uars: doorbell::Watches::new(stepped),
            ready: VecDeque::new(),
            timers: timer::Timers::default(),
            failed: VecDeque::new(),
            slow_dma: 0,
            memory_busy: None,
            received: Vec::with_capacity(MAX_FRAME),
            built: Vec::with_capacity(MAX_FRAME),
        }
    }

    /// Does a bounded amount of work; false if there was none.
    pub(crate) fn pass(&mut self, context: &mut Context<'_>) -> bool {
        for port in &mut *context.ports {
            port.wire.tick(context.now);
        }
        let mut busy = self.ring(context);
        busy |= self.expire(context);
        if self.memory_is_free(context.now) {
            let before = context.counters.packets_received + context.counters.packets_sent;
            busy |= self.receive(context);
            busy |= self.serve(context);
            let moved = context.counters.packets_received + context.counters.packets_sent - before;
            self.memory_busy = (moved > 0 && self.slow_dma > 0).then(|| context.now + moved * self.slow_dma);
        }
        busy |= self.flush_failed(context);
        close_blocks(context);
        busy |= events::look(context);
        context.flush();
        busy | context.ports.iter().any(|port| port.wire.is_holding())
    }

    /// When a pass is due although nothing happened, in nanoseconds on the device's clock. May be early.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        [self.timers.next(), self.memory_busy].into_iter().flatten().min()
    }

    /// Whether no doorbell waits to be served. Stores nothing to a UAR page.
    pub(crate) fn is_quiet(&self, objects: &Objects) -> bool {
        self.ready.is_empty() && self.uars.is_quiet() && events::is_quiet(objects)
    }

    /// Whether there are queue pairs in error.
    pub(crate) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// All UAR pages, and a number that changes with them.
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

    /// A command moved queue pair `qpn` from state `from` to the one it is in now; its attributes are those of the new state.
    pub(crate) fn qp_modified(&mut self, context: &mut Context<'_>, qpn: u32, from: QpState) {
        let tally = Tally::begin(context, qpn);
        let Some((qp, mut port)) = split(context, &mut self.built, qpn) else { return };
        let uar = qp.uar;
        if matches!((from, qp.state), (QpState::Rtr | QpState::Rts, QpState::Rst | QpState::Err)) {
            responder::acknowledge_owed(qp, &mut port);
        }
        match (from, qp.state) {
            (_, QpState::Rst) => {
                requester::hang_up(qp, &mut port);
                let QpEngine { queued, failed, timer, .. } = qp.engine;
                qp.engine = QpEngine { queued, failed, timer, ..QpEngine::default() };
                self.uars.detach(uar, qpn, context);
            }
            (QpState::Rst, QpState::Init) => self.uars.attach(uar, qpn),
            (_, QpState::Err) => {
                completer::flush(qp, &mut port);
            }
            (QpState::Init, QpState::Rtr) => qp.engine.responder.start(&qp.attributes),
            (QpState::Rtr, QpState::Rts) => {
                qp.engine.requester.start(qp.service, &qp.attributes);
                // The driver may have posted before; only states from here on execute it. The driver waits for this command, so what is
                // found now was posted before, and nothing that it posts later is found ahead of its doorbell.
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

    /// Queue pair `qpn` is about to be destroyed.
    pub(crate) fn qp_destroyed(&mut self, context: &mut Context<'_>, qpn: u32) {
        if let Some((qp, mut port)) = split(context, &mut self.built, qpn) {
            if matches!(qp.state, QpState::Rtr | QpState::Rts) {
                responder::acknowledge_owed(qp, &mut port);
            }
            requester::hang_up(qp, &mut port);
            let uar = qp.uar;
            self.uars.detach(uar, qpn, context);
        }
        self.failed.retain(|&failed| failed != qpn);
        context.flush();
    }

    /// Looks at the doorbells and gives a turn to every queue pair that posted.
    fn ring(&mut self, context: &mut Context<'_>) -> bool {
        let Self { uars, ready, .. } = self;
        uars.look(context, &mut |qp| mark_ready(ready, qp))
    }

    /// Takes packets from the ports, each in its turn.
    fn receive(&mut self, context: &mut Context<'_>) -> bool {
        let mut frame = std::mem::take(&mut self.received);
        let mut taken = 0;
        let budget = self.budget(RECEIVE_BUDGET);
        for at in 0..context.ports.len() {
            while taken < budget {
                let Some(PhysicalPort { address, wire }) = context.ports.get_mut(at) else { break };
                let Some(source) = wire.receive(&mut frame) else { break };
                taken += 1;
                context.counters.packets_received += 1;
                match packet::parse(&frame, source, *address) {
                    Ok(packet) => self.deliver(context, &Packet { port: at, ..packet }),
                    Err(packet::Malformed::Icrc) => context.counters.bad_icrc += 1,
                    Err(packet::Malformed::Header) => context.counters.malformed += 1,
                }
            }
        }
        self.received = frame;
        taken > 0
    }

    /// Lets timers that passed do their work.
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

    /// Gives queue pairs that have work a turn each.
    fn serve(&mut self, context: &mut Context<'_>) -> bool {
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

    /// Completes what was posted to queue pairs in error since the last pass.
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

    /// Remembers a queue pair that is in error, so that later posts to it are flushed.
    fn note_failure(&mut self, context: &mut Context<'_>, qpn: u32) {
        // A responder context has nothing to flush but what it flushed at once.
        let Some((qp, mut port)) = split(context, &mut self.built, qpn).filter(|(qp, _)| qp.dct.is_none())
        else {
            return;
        };
        if qp.state == QpState::Err && !std::mem::replace(&mut qp.engine.failed, true) {
            requester::hang_up(qp, &mut port);
            self.failed.push_back(qpn);
        }
    }
}

/// Lets completion queues write what waited for more like it.
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
