//! Hands packets to the queue pairs that they are for.

use barewire_layouts::command::qp::{QpState, ServiceType};
use barewire_layouts::roce::Transport;

use super::service::transport;
use super::{Context, Engine, datagram, mark_ready, requester, responder, split};
use crate::wire::packet::Packet;

impl Engine {
    /// Hands a packet to the queue pair that it is for.
    pub(super) fn deliver(&mut self, context: &mut Context<'_>, packet: &Packet<'_>) {
        let qpn = packet.bth.destination();
        if packet.transport == Transport::Congestion {
            // Nothing is sent fast enough here to be slowed down.
            context.counters.cnps_received += 1;
            return;
        }
        if packet.bth.met_congestion() {
            self.notify_congestion(context, packet);
        }
        let Some((qp, mut port)) = split(context, &mut self.built, self.address, qpn) else {
            context.counters.unknown_qp += 1;
            return;
        };
        if !matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Err) {
            port.counters.wrong_state += 1;
            return;
        }
        let fits = packet.transport == transport(qp.service)
            || qp.service == ServiceType::Rc && packet.transport == Transport::Vendor;
        if !fits {
            port.counters.wrong_service += 1;
            return;
        }
        if qp.service != ServiceType::Ud && packet.source != qp.attributes.remote_address {
            port.counters.wrong_source += 1;
            return;
        }
        match qp.service {
            ServiceType::Ud => datagram::receive(qp, &mut port, packet),
            ServiceType::Uc => responder::receive_unreliable(qp, &mut port, packet),
            _ if packet.opcode.is_response() => requester::receive(qp, &mut port, packet),
            _ => responder::receive(qp, &mut port, packet),
        }
        mark_ready(&mut self.ready, qp);
        self.note_failure(context, qpn);
    }
}
