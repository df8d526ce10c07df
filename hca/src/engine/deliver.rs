//! Delivery of packets to queue pairs.

use std::net::IpAddr;

use barewire_layouts::command::qp::{QpState, ServiceType};
use barewire_layouts::eqe::EventType;
use barewire_layouts::roce::{MASK_24, MULTICAST_QPN, Transport};

use super::service::{is_reliable, transport};
use super::tally::Tally;
use super::{Context, Engine, datagram, management, mark_ready, requester, responder, split};
use crate::object::FIRST_DCT;
use crate::wire::packet::Packet;

impl Engine {
    /// Delivers a packet to its queue pair, DC target or responder context.
    pub(super) fn deliver(&mut self, context: &mut Context<'_>, packet: &Packet<'_>) {
        let number = packet.bth.destination();
        if packet.transport == Transport::Congestion {
            // There is no rate control: the software wire is slower than any limit.
            context.counters.cnps_received += 1;
            return;
        }
        if context.objects.deaf.contains(&number) {
            context.counters.messages_dropped += 1;
            return;
        }
        if let Some(group) = packet.group {
            return self.deliver_to_group(context, group, packet);
        }
        if packet.bth.met_congestion() {
            self.notify_congestion(context, packet);
        }
        let tally = Tally::begin(context, number);
        match (packet.opcode.is_connection(), number < FIRST_DCT) {
            (false, _) => self.transport(context, number, packet),
            (true, false) => self.asked(context, packet),
            (true, true) => self.answered(context, packet),
        }
        tally.end(context);
    }

    /// Handles a DC target's response to a connection request.
    fn answered(&mut self, context: &mut Context<'_>, packet: &Packet<'_>) {
        let qpn = packet.bth.destination();
        if let Some((qp, mut port)) = split(context, &mut self.built, qpn) {
            requester::answered(qp, &mut port, packet);
            mark_ready(&mut self.ready, qp);
            self.note_failure(context, qpn);
        } else {
            context.counters.unknown_qp += 1;
            if let Some(mut port) = super::port::port(context, &mut self.built, packet.port) {
                requester::decline(&mut port, packet);
            }
        }
    }

    /// Delivers a datagram to the queue pairs that are attached to a multicast group (IBTA 10.5.2).
    /// One of them may have sent it.
    fn deliver_to_group(&mut self, context: &mut Context<'_>, group: IpAddr, packet: &Packet<'_>) {
        if packet.transport != Transport::Ud || packet.bth.destination() != MULTICAST_QPN {
            context.counters.unknown_qp += 1;
            return;
        }
        let sender = packet.deth.source_qpn.get() & MASK_24;
        let is_own =
            context.ports.get(packet.port).is_some_and(|port| port.address == packet.source);
        let mut at = 0;
        while let Some(qpn) = context.objects.groups.member(group, at) {
            at += 1;
            let Some(qp) = context.objects.qps.get(qpn) else { continue };
            let is_blocked = is_own && qp.blocks_own && sender == qpn;
            let is_deaf = context.objects.deaf.contains(&qpn);
            if qp.attributes.port == packet.port && !is_blocked && !is_deaf {
                let tally = Tally::begin(context, qpn);
                self.transport(context, qpn, packet);
                tally.end(context);
            }
        }
    }

    /// Handles a request or response packet to queue pair `qpn`.
    fn transport(&mut self, context: &mut Context<'_>, qpn: u32, packet: &Packet<'_>) {
        if let Some(open) = context.objects.contexts.get_mut(qpn) {
            (open.heard, open.asked) = (context.now, 0);
        }
        let Some((qp, mut port)) = split(context, &mut self.built, qpn) else {
            // Queue pairs of programs have higher numbers.
            return management::receive(context, packet);
        };
        if !matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Err) {
            port.counters.wrong_state += 1;
            return;
        }
        if qp.attributes.port != packet.port {
            port.counters.wrong_source += 1;
            return;
        }
        if !packet.bth.is_in_partition(qp.attributes.pkey) {
            port.counters.wrong_partition += 1;
            return;
        }
        let response = packet.opcode.is_response();
        let fits = match qp.service {
            ServiceType::Dci => response,
            ServiceType::Dct => !response,
            _ => true,
        };
        let spoken = packet.transport == transport(qp.service)
            || is_reliable(qp.service) && packet.transport == Transport::Vendor;
        if !fits || !spoken {
            port.counters.wrong_service += 1;
            return;
        }
        if qp.service != ServiceType::Ud && packet.source != qp.attributes.remote_address {
            port.counters.wrong_source += 1;
            return;
        }
        let told = matches!(qp.service, ServiceType::Ud | ServiceType::Dct);
        if !told && qp.state == QpState::Rtr && !std::mem::replace(&mut qp.engine.established, true)
        {
            port.tell(EventType::CommunicationEstablished, qpn);
        }
        match qp.service {
            ServiceType::Ud => datagram::receive(qp, &mut port, packet),
            ServiceType::Uc => responder::receive_unreliable(qp, &mut port, packet),
            _ if response => requester::receive(qp, &mut port, packet),
            _ => responder::receive(qp, &mut port, packet),
        }
        mark_ready(&mut self.ready, qp);
        self.note_failure(context, qpn);
    }
}
