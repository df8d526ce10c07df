//! Targets of dynamic connections: responder contexts, made and taken away as initiators ask.
//!
//! A responder context is a queue pair that receives for its target. An initiator has one connection at a time, and its device numbers
//! them upwards: so a repeated request for a connection finds the one that was made, a newer one takes the place of what its initiator
//! has forgotten, and an older one, which the network held back, does nothing.

use std::net::IpAddr;

use barewire_layouts::command::dct::DctState;
use barewire_layouts::command::qp::{Mtu, QpState, ServiceType};
use barewire_layouts::eqe::{Eqe, EventType};
use barewire_layouts::roce::{Bth, BthOpcode, DcEth, DcRefusal, MASK_24, ack_timeout_ns};

use super::counters::Tally;
use super::{Context, Engine, QpEngine, close_blocks, completer, split};
use crate::memory::Window;
use crate::object::{Attributes, DoorbellRecord, Qp, ResponderContext, Ring};
use crate::wire::PhysicalPort;
use crate::wire::packet::{self, Packet};

/// Nanoseconds that a draining target waits for its initiators to end their connections.
const DRAIN: u64 = 1_000_000_000;
/// An initiator that was silent for its acknowledgment timeout is asked whether it still wants its connection; for so many nanoseconds
/// if it waits for acknowledgments for ever, and not less than so many. If it answers none of so many questions, it is gone.
const QUESTION: u64 = 67_000_000;
const SHORTEST_QUESTION: u64 = 100_000;
const QUESTIONS: u8 = 64;
/// Timer code of the pause before an initiator tries again after a refusal: 0.64 ms.
const PAUSE: u8 = 12;

impl Engine {
    /// Takes what an initiator asks of a target.
    pub(super) fn asked(&mut self, context: &mut Context<'_>, packet: &Packet<'_>) {
        let connection = packet.dc.connection;
        let (opcode, header) = match packet.opcode {
            BthOpcode::Connect => match self.admit(context, packet) {
                Ok(number) => {
                    (BthOpcode::Accept, DcEth { connection, qpn: number.into(), ..DcEth::default() })
                }
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
                // One that has ended already is told to have ended once more: the last answer may be lost.
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
        let bth = Bth::new(opcode, packet.dc.qpn.get(), packet.bth.psn());
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

    /// Finds or makes the responder context of a connection. `Err(None)` for a request that came too late.
    fn admit(&mut self, context: &mut Context<'_>, packet: &Packet<'_>) -> Result<u32, Option<DcRefusal>> {
        let dctn = packet.bth.destination();
        let initiator = (packet.source, packet.dc.qpn.get() & MASK_24);
        let connection = packet.dc.connection.get();
        let dct = context.objects.dcts.get_mut(dctn).ok_or(DcRefusal::Unknown)?;
        if dct.attributes.port != packet.port {
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
            let last = context.objects.contexts.get(held).map_or(connection, |open| open.connection);
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

    /// A connection's initiator was silent for some time. It is asked by another acceptance: it ends a connection that it does not want,
    /// or has forgotten. False if `number` is no responder context's.
    pub(super) fn expire_context(&mut self, context: &mut Context<'_>, deadline: u64, number: u32) -> bool {
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
        let header = DcEth { connection: open.connection.into(), qpn: number.into(), ..DcEth::default() };
        let attributes = &open.qp.attributes;
        let bth = Bth::new(BthOpcode::Accept, attributes.remote_qpn, attributes.next_receive_psn);
        let to = (attributes.port, attributes.remote_address);
        self.tell_initiator(context, to, bth, &header);
        true
    }

    /// Takes a responder context away. A receive WQE that a message has begun to fill is flushed.
    fn end(&mut self, context: &mut Context<'_>, number: u32) {
        if let Some((qp, mut port)) = split(context, &mut self.built, number) {
            completer::fail(qp, &mut port);
        }
        let Some(ResponderContext { qp, .. }) = context.objects.contexts.remove(number) else { return };
        let Some(dctn) = qp.dct else { return };
        if let Some(dct) = context.objects.dcts.get_mut(dctn) {
            dct.connections.remove(&(qp.attributes.remote_address, qp.attributes.remote_qpn));
        }
        look_whether_drained(context, dctn);
    }

    /// Target `dctn` takes no connections any more. Those that it has may end by themselves, for some time.
    pub(crate) fn dct_drained(&mut self, context: &mut Context<'_>, dctn: u32) {
        self.timers.arm(dctn, context.now + DRAIN, &mut None);
        look_whether_drained(context, dctn);
    }

    /// Ends all connections of target `dctn`, and tells their initiators.
    pub(crate) fn dct_closed(&mut self, context: &mut Context<'_>, dctn: u32) {
        let Some(dct) = context.objects.dcts.get(dctn) else { return };
        let mut numbers: Vec<u32> = dct.connections.values().copied().collect();
        let tally = Tally::begin(context, dctn);
        // A map's order is another in every run.
        numbers.sort_unstable();
        for number in numbers {
            let Some(open) = context.objects.contexts.get(number) else { continue };
            let attributes = &open.qp.attributes;
            let detail = DcEth::detail(DcRefusal::Closed as u8, PAUSE);
            let header = DcEth { connection: open.connection.into(), detail, ..DcEth::default() };
            let bth = Bth::new(BthOpcode::Refuse, attributes.remote_qpn, 0);
            let to = (attributes.port, attributes.remote_address);
            context.counters.dc_refusals_sent += 1;
            self.tell_initiator(context, to, bth, &header);
            self.end(context, number);
        }
        tally.end(context);
        close_blocks(context);
    }

    /// A draining target has waited long enough. False if `number` is no target's.
    pub(super) fn expire_drain(&mut self, context: &mut Context<'_>, number: u32) -> bool {
        let Some(dct) = context.objects.dcts.get(number) else { return false };
        if dct.state == DctState::Draining {
            self.dct_closed(context, number);
        }
        true
    }
}

/// A draining target that has no connections is drained.
fn look_whether_drained(context: &mut Context<'_>, dctn: u32) {
    let Some(dct) = context.objects.dcts.get_mut(dctn) else { return };
    if dct.state == DctState::Draining && dct.connections.is_empty() {
        dct.state = DctState::Drained;
        context.objects.events.tell(EventType::DctDrained, Eqe::queue(EventType::DctDrained, dctn));
    }
}
