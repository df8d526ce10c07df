//! The engine: notices doorbells, fetches WQEs, checks them and runs requester, responder and completer of every queue pair.
//!
//! A pass looks at every doorbell once, takes a bounded number of packets, serves what timers woke and then gives every queue
//! pair that has work one bounded turn, so that none starves. It never blocks and knows no clock but the time it is given.

mod completer;
mod counters;
mod doorbell;
mod fetch;
mod gather;
mod psn;
mod report;
mod requester;
mod responder;
mod timer;

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;

use barewire_layouts::command::qp::QpState;

pub use counters::Counters;
pub(crate) use report::Reports;
pub use report::{Finding, Report, Strict};
pub(crate) use timer::StepClock;

use crate::memory::Memory;
use crate::object::{Cq, Objects, Qp, Table, UarPage};
use crate::wire::packet::{self, Packet};
use crate::wire::{MAX_FRAME, Wire};

/// Packets that one pass takes from the wire.
const RECEIVE_BUDGET: u32 = 128;
/// Queue pairs that one pass serves.
const TURNS: usize = 8;
/// Packets that one queue pair sends in its turn, as requester and as responder each.
const TURN_PACKETS: u32 = 32;

/// What a pass or a command works on: the rest of the device's state.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) objects: &'a mut Objects,
    pub(crate) wire: &'a mut dyn Wire,
    pub(crate) counters: &'a mut Counters,
    pub(crate) reports: &'a mut Reports,
    /// Nanoseconds on the device's clock.
    pub(crate) now: u64,
}

/// The engine's own state of one queue pair.
#[derive(Debug, Default)]
pub(crate) struct QpEngine {
    requester: requester::Requester,
    responder: responder::Responder,
    /// Whether it waits for a turn already.
    queued: bool,
    /// Its earliest entry among the timers.
    timer: Option<u64>,
}

/// What the work on one queue pair needs beside the queue pair itself.
#[derive(Debug)]
struct Port<'a> {
    memory: &'a Memory,
    cqs: &'a mut Table<Cq>,
    wire: &'a mut dyn Wire,
    counters: &'a mut Counters,
    reports: &'a mut Reports,
    /// The packet being built.
    frame: &'a mut Vec<u8>,
    address: Ipv4Addr,
    now: u64,
}

/// All queue pairs' doorbells, turns and timers.
#[derive(Debug)]
pub(crate) struct Engine {
    address: Ipv4Addr,
    uars: doorbell::Watches,
    ready: VecDeque<u32>,
    timers: timer::Timers,
    /// Queue pairs in error: what is still posted to them is flushed, without a doorbell to tell of it.
    failed: Vec<u32>,
    received: Vec<u8>,
    built: Vec<u8>,
}

impl Engine {
    /// The engine of the device at `address`. `stepped`: the driver stands still during a pass.
    pub(crate) fn new(address: Ipv4Addr, stepped: bool) -> Self {
        Self {
            address,
            uars: doorbell::Watches::new(stepped),
            ready: VecDeque::new(),
            timers: timer::Timers::default(),
            failed: Vec::new(),
            received: Vec::with_capacity(MAX_FRAME),
            built: Vec::with_capacity(MAX_FRAME),
        }
    }

    /// Does a bounded amount of work; false if there was none.
    pub(crate) fn pass(&mut self, context: &mut Context<'_>) -> bool {
        let mut busy = self.ring(context);
        busy |= self.receive(context);
        busy |= self.expire(context);
        busy |= self.serve(context);
        busy |= self.flush_failed(context);
        context.wire.flush();
        busy
    }

    /// When a pass is due although nothing happened, in nanoseconds on the device's clock. May be early.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.timers.next()
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
        let Some((qp, mut port)) = split(context, &mut self.built, self.address, qpn) else { return };
        let uar = qp.uar;
        match (from, qp.state) {
            (_, QpState::Rst) => {
                qp.engine =
                    QpEngine { queued: qp.engine.queued, timer: qp.engine.timer, ..QpEngine::default() };
                self.uars.detach(uar, qpn, context);
            }
            (QpState::Rst, QpState::Init) => self.uars.attach(uar, qpn),
            (_, QpState::Err) => {
                completer::flush(qp, &mut port);
            }
            (QpState::Init, QpState::Rtr) => qp.engine.responder.start(&qp.attributes),
            (QpState::Rtr, QpState::Rts) => {
                qp.engine.requester.start(&qp.attributes);
                // The driver may have posted before; only states from here on execute it.
                self.uars.scan(uar);
            }
            _ => {}
        }
        self.note_failure(context, qpn);
    }

    /// Queue pair `qpn` is about to be destroyed.
    pub(crate) fn qp_destroyed(&mut self, context: &mut Context<'_>, qpn: u32) {
        if let Some(uar) = context.objects.qps.get(qpn).map(|qp| qp.uar) {
            self.uars.detach(uar, qpn, context);
        }
        self.failed.retain(|&failed| failed != qpn);
    }

    /// Looks at the doorbells and gives a turn to every queue pair that posted.
    fn ring(&mut self, context: &mut Context<'_>) -> bool {
        let Self { uars, ready, .. } = self;
        uars.look(context, &mut |qp| mark_ready(ready, qp))
    }

    /// Takes packets from the wire.
    fn receive(&mut self, context: &mut Context<'_>) -> bool {
        let mut frame = std::mem::take(&mut self.received);
        let mut taken = 0;
        while taken < RECEIVE_BUDGET {
            let Some(source) = context.wire.receive(&mut frame) else { break };
            taken += 1;
            context.counters.packets_received += 1;
            match packet::parse(&frame, source, self.address) {
                Ok(packet) => self.deliver(context, &packet),
                Err(packet::Malformed::Icrc) => context.counters.bad_icrc += 1,
                Err(packet::Malformed::Header) => context.counters.malformed += 1,
            }
        }
        self.received = frame;
        taken > 0
    }

    /// Hands a packet to the queue pair that it is for.
    fn deliver(&mut self, context: &mut Context<'_>, packet: &Packet<'_>) {
        let qpn = packet.bth.destination();
        let Some((qp, mut port)) = split(context, &mut self.built, self.address, qpn) else {
            context.counters.unknown_qp += 1;
            return;
        };
        if !matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Err) {
            port.counters.wrong_state += 1;
            return;
        }
        if packet.source != qp.attributes.remote_address {
            port.counters.wrong_source += 1;
            return;
        }
        if packet.opcode.is_response() {
            requester::receive(qp, &mut port, packet);
        } else {
            responder::receive(qp, &mut port, packet);
        }
        mark_ready(&mut self.ready, qp);
        self.note_failure(context, qpn);
    }

    /// Lets timers that passed do their work.
    fn expire(&mut self, context: &mut Context<'_>) -> bool {
        let mut busy = false;
        while let Some((deadline, qpn)) = self.timers.expired(context.now) {
            let Some((qp, mut port)) = split(context, &mut self.built, self.address, qpn) else { continue };
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
            self.note_failure(context, qpn);
        }
        busy
    }

    /// Gives queue pairs that have work a turn each.
    fn serve(&mut self, context: &mut Context<'_>) -> bool {
        let mut busy = false;
        for _ in 0..self.ready.len().min(TURNS) {
            let Some(qpn) = self.ready.pop_front() else { break };
            let Some((qp, mut port)) = split(context, &mut self.built, self.address, qpn) else { continue };
            qp.engine.queued = false;
            busy = true;
            let mut more = responder::respond(qp, &mut port, TURN_PACKETS);
            more |= requester::transmit(qp, &mut port, TURN_PACKETS);
            if more {
                mark_ready(&mut self.ready, qp);
            }
            if let Some(deadline) = requester::deadline(qp) {
                self.timers.arm(qpn, deadline, &mut qp.engine.timer);
            }
            self.note_failure(context, qpn);
        }
        busy
    }

    /// Completes what was posted to queue pairs in error since the last pass.
    fn flush_failed(&mut self, context: &mut Context<'_>) -> bool {
        let mut busy = false;
        let Self { failed, built, address, .. } = self;
        failed.retain(|&qpn| match split(context, built, *address, qpn) {
            Some((qp, mut port)) if qp.state == QpState::Err => {
                busy |= completer::flush(qp, &mut port);
                true
            }
            _ => false,
        });
        busy
    }

    /// Remembers a queue pair that is in error, so that later posts to it are flushed.
    fn note_failure(&mut self, context: &Context<'_>, qpn: u32) {
        let failed = context.objects.qps.get(qpn).is_some_and(|qp| qp.state == QpState::Err);
        if failed && !self.failed.contains(&qpn) {
            self.failed.push(qpn);
        }
    }
}

/// Borrows queue pair `qpn` and, apart from it, what the work on it needs.
fn split<'a>(
    context: &'a mut Context<'_>,
    frame: &'a mut Vec<u8>,
    address: Ipv4Addr,
    qpn: u32,
) -> Option<(&'a mut Qp, Port<'a>)> {
    let Objects { qps, cqs, memory, .. } = &mut *context.objects;
    let port = Port {
        memory,
        cqs,
        wire: &mut *context.wire,
        counters: &mut *context.counters,
        reports: &mut *context.reports,
        frame,
        address,
        now: context.now,
    };
    Some((qps.get_mut(qpn)?, port))
}

/// Queues `qp` for a turn, once.
fn mark_ready(ready: &mut VecDeque<u32>, qp: &mut Qp) {
    if !std::mem::replace(&mut qp.engine.queued, true) {
        ready.push_back(qp.number);
    }
}

impl Port<'_> {
    /// Notes a strict finding.
    fn report(&mut self, qpn: u32, index: u16, finding: Finding) {
        self.counters.findings += 1;
        self.reports.add(Report { qpn, index, finding });
    }
}
