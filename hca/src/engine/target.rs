//! DC targets: responder contexts, created and destroyed at the initiators' requests.
//!
//! A responder context is a queue pair that receives for its target. An initiator has one
//! connection at a time, and its device numbers them in ascending order. So a repeated connection
//! request finds the existing context, a newer one replaces the context of a connection that its
//! initiator has dropped, and an older one, delayed by the network, is ignored.

use std::net::IpAddr;

use barewire_layouts::command::dct::DctState;
use barewire_layouts::command::qp::{Mtu, QpState, ServiceType, TimestampFormat};
use barewire_layouts::eqe::{Eqe, EventType};
use barewire_layouts::roce::{Bth, BthOpcode, DcEth, DcRefusal, MASK_24, ack_timeout_ns};

use super::tally::Tally;
use super::{Context, Engine, Qp, QpEngine, ResponderContext, close_blocks, completer, split};
use crate::memory::Window;
use crate::object::{Attributes, DoorbellRecord, Ring, StreamLimits};
use crate::wire::PhysicalPort;
use crate::wire::packet::{self, Packet};

/// Time that a draining target waits for initiators to end their connections, in nanoseconds.
const DRAIN: u64 = 1_000_000_000;
/// An initiator that was silent for its acknowledgment timeout, but at least (and with an infinite
/// timeout exactly) this many nanoseconds, is asked whether it still wants its connection. After
/// this many unanswered questions the connection is closed.
const QUESTION: u64 = 67_000_000;
const SHORTEST_QUESTION: u64 = 100_000;
const QUESTIONS: u8 = 64;
/// RNR timer code of the pause before an initiator retries after a refusal: 0.64 ms.
const PAUSE: u8 = 12;

impl Engine {
    /// Handles an initiator's request to a target.
    pub(super) fn asked(&mut self, context: &mut Context<'_>, packet: &Packet<'_>) {
        let connection = packet.dc.connection;
        let (opcode, header) = match packet.opcode {
            BthOpcode::Connect => match self.admit(context, packet) {
                Ok(number) => (
                    BthOpcode::Accept,
                    DcEth { connection, qpn: number.into(), ..DcEth::default() },
                ),
                Err(Some(refusal)) => {
                    context.counters.dc_refusals_sent += 1;
                    let detail = DcEth::detail(refusal as u8, PAUSE);
                    (BthOpcode::Refuse, DcEth { connection, detail, ..DcEth::default() })
                }
                Err(None) => {
                    context.counters.duplicates += 1;
                    return;
                }
            },
            BthOpcode::Disconnect => {
                let number = packet.bth.destination();
                let open = context.objects.contexts.get(number);
                // The end of a connection that has already ended is confirmed again: the last
                // response may be lost.
                if open.is_some_and(|open| open.is(connection.get(), packet.source)) {
                    self.end(context, number);
                }
                (BthOpcode::Disconnected, DcEth { connection, ..DcEth::default() })
            }
            BthOpcode::KeepAlive => {
                let open = context.objects.contexts.get_mut(packet.bth.destination());
                let ours = |open: &&mut ResponderContext| open.is(connection.get(), packet.source);
                if let Some(open) = open.filter(ours) {
                    (open.heard, open.asked) = (context.now, 0);
                }
                return;
            }
            _ => {
                context.counters.malformed += 1;
                return;
            }
        };
        let bth = Bth::new(opcode, packet.dc.qpn.get(), packet.bth.psn())
            .with_pkey(packet.bth.pkey.get());
        self.tell_initiator(context, (packet.port, packet.source), bth, &header);
    }

    fn tell_initiator(
        &mut self,
        context: &mut Context<'_>,
        (port, to): (usize, IpAddr),
        bth: Bth,
        header: &DcEth,
    ) {
        let Some(PhysicalPort { address, wire }) = context.ports.get_mut(port) else { return };
        packet::connection(&mut self.built, bth, header, (*address, to));
        context.counters.packets_sent += 1;
        wire.send(to, &self.built);
    }

    /// Finds or creates the responder context of a connection. Returns `Err(None)` for a request
    /// that is out of date.
    fn admit(
        &mut self,
        context: &mut Context<'_>,
        packet: &Packet<'_>,
    ) -> Result<u32, Option<DcRefusal>> {
        let dctn = packet.bth.destination();
        let initiator = (packet.source, packet.dc.qpn.get() & MASK_24);
        let connection = packet.dc.connection.get();
        let dct = context.objects.dcts.get_mut(dctn).ok_or(DcRefusal::Unknown)?;
        if dct.attributes.port != packet.port {
            return Err(Some(DcRefusal::Unknown));
        }
        if !packet.bth.is_in_partition(dct.attributes.pkey) {
            context.counters.wrong_partition += 1;
            return Err(Some(DcRefusal::Unknown));
        }
        if dct.access_key != packet.dc.access_key.get() {
            dct.violations = dct.violations.wrapping_add(1);
            if std::mem::take(&mut dct.violation_armed) {
                let event = Eqe::queue(EventType::DctKeyViolation, dctn);
                context.objects.events.tell(EventType::DctKeyViolation, event);
            }
            return Err(Some(DcRefusal::AccessKey));
        }
        if let Some(&held) = dct.connections.get(&initiator) {
            let last =
                context.objects.contexts.get(held).map_or(connection, |open| open.connection);
            match connection.wrapping_sub(last) as i64 {
                0 => return Ok(held),
                ..0 => return Err(None),
                _ => self.end(context, held),
            }
        }
        let dct = context.objects.dcts.get(dctn).ok_or(DcRefusal::Unknown)?;
        if dct.state != DctState::Active {
            return Err(Some(DcRefusal::Closed));
        }
        let mtu = Mtu::try_from(packet.dc.code()).map(Mtu::bytes).ok();
        let mtu = mtu.filter(|&mtu| mtu <= dct.attributes.mtu).ok_or(DcRefusal::PathMtu)?;
        let attributes = Attributes {
            mtu,
            remote_qpn: initiator.1,
            remote_address: initiator.0,
            next_receive_psn: packet.bth.psn(),
            ..dct.attributes
        };
        let dct = context.objects.dcts.get_mut(dctn).ok_or(DcRefusal::Unknown)?;
        let mut engine = QpEngine::default();
        engine.responder.start(&attributes);
        let made = context.objects.contexts.insert_with(|number| ResponderContext {
            qp: Qp {
                rendezvous: false,
                blocks_own: false,
                number,
                state: QpState::Rtr,
                service: ServiceType::Dct,
                pd: dct.pd,
                user_index: dct.user_index,
                send_cq: dct.cq,
                receive_cq: dct.cq,
                xrcd: None,
                dct: Some(dctn),
                srq: Some(dct.srq),
                scatter: dct.scatter,
                streams: StreamLimits::default(),
                timestamps: TimestampFormat::FreeRunning,
                uar: 0,
                sq: Ring::NONE,
                rq: Ring::NONE,
                doorbell: DoorbellRecord::new(Window::EMPTY),
                attributes,
                ring_umem: (0, 0),
                doorbell_umem: (0, 0),
                engine,
            },
            connection,
            period: ack_timeout_ns(packet.dc.timer()).unwrap_or(QUESTION).max(SHORTEST_QUESTION),
            heard: context.now,
            asked: 0,
        });
        let (number, open) = made.ok_or(DcRefusal::Busy)?;
        self.timers.arm(number, context.now + open.period, &mut open.qp.engine.timer);
        dct.connections.insert(initiator, number);
        context.counters.dc_connects += 1;
        Ok(number)
    }

    /// Handles an initiator's silence: repeats the acceptance, to which the initiator responds with
    /// a disconnect if it does not want the connection. Returns `false` if `number` is not a
    /// responder context.
    pub(super) fn expire_context(
        &mut self,
        context: &mut Context<'_>,
        deadline: u64,
        number: u32,
    ) -> bool {
        let Some(open) = context.objects.contexts.get_mut(number) else { return false };
        if open.qp.engine.timer.take_if(|armed| *armed == deadline).is_none() {
            return true;
        }
        let due = open.heard + open.period;
        if due > context.now {
            self.timers.arm(number, due, &mut open.qp.engine.timer);
            return true;
        }
        if open.asked == QUESTIONS {
            self.end(context, number);
            return true;
        }
        open.asked += 1;
        self.timers.arm(number, context.now + open.period, &mut open.qp.engine.timer);
        let header =
            DcEth { connection: open.connection.into(), qpn: number.into(), ..DcEth::default() };
        let attributes = &open.qp.attributes;
        let bth = Bth::new(BthOpcode::Accept, attributes.remote_qpn, attributes.next_receive_psn)
            .with_pkey(attributes.pkey);
        let to = (attributes.port, attributes.remote_address);
        self.tell_initiator(context, to, bth, &header);
        true
    }

    /// Destroys a responder context. A partly filled receive WQE is flushed.
    fn end(&mut self, context: &mut Context<'_>, number: u32) {
        if let Some((qp, mut port)) = split(context, &mut self.built, number) {
            completer::fail(qp, &mut port);
        }
        let Some(ResponderContext { qp, .. }) = context.objects.contexts.remove(number) else {
            return;
        };
        let Some(dctn) = qp.dct else { return };
        if let Some(dct) = context.objects.dcts.get_mut(dctn) {
            dct.connections.remove(&(qp.attributes.remote_address, qp.attributes.remote_qpn));
        }
        look_whether_drained(context, dctn);
    }

    /// Makes target `dctn` refuse new connections. Existing ones may end by themselves, for some
    /// time.
    pub(crate) fn dct_drained(&mut self, context: &mut Context<'_>, dctn: u32) {
        self.timers.arm(dctn, context.now + DRAIN, &mut None);
        look_whether_drained(context, dctn);
    }

    /// Ends all connections of target `dctn` and notifies their initiators.
    pub(crate) fn dct_closed(&mut self, context: &mut Context<'_>, dctn: u32) {
        let Some(dct) = context.objects.dcts.get(dctn) else { return };
        let mut numbers: Vec<u32> = dct.connections.values().copied().collect();
        let tally = Tally::begin(context, dctn);
        // The order of a hash map differs between runs.
        numbers.sort_unstable();
        for number in numbers {
            let Some(open) = context.objects.contexts.get(number) else { continue };
            let attributes = &open.qp.attributes;
            let detail = DcEth::detail(DcRefusal::Closed as u8, PAUSE);
            let header = DcEth { connection: open.connection.into(), detail, ..DcEth::default() };
            let bth =
                Bth::new(BthOpcode::Refuse, attributes.remote_qpn, 0).with_pkey(attributes.pkey);
            let to = (attributes.port, attributes.remote_address);
            context.counters.dc_refusals_sent += 1;
            self.tell_initiator(context, to, bth, &header);
            self.end(context, number);
        }
        tally.end(context);
        close_blocks(context);
    }

    /// Ends the draining of a target. Returns `false` if `number` is not a target.
    pub(super) fn expire_drain(&mut self, context: &mut Context<'_>, number: u32) -> bool {
        let Some(dct) = context.objects.dcts.get(number) else { return false };
        if dct.state == DctState::Draining {
            self.dct_closed(context, number);
        }
        true
    }
}

/// Completes draining if the target has no connections.
fn look_whether_drained(context: &mut Context<'_>, dctn: u32) {
    let Some(dct) = context.objects.dcts.get_mut(dctn) else { return };
    if dct.state == DctState::Draining && dct.connections.is_empty() {
        dct.state = DctState::Drained;
        context.objects.events.tell(EventType::DctDrained, Eqe::queue(EventType::DctDrained, dctn));
    }
}
