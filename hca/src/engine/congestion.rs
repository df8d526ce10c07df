//! Congestion notification packets for peers whose packets were marked.

use barewire_layouts::command::qp::ServiceType;
use barewire_layouts::roce::{
    Bth, BthOpcode, CONGESTION_NOTIFICATION, CONGESTION_RESERVED, Transport,
};

use super::{Context, Engine};
use crate::wire::PhysicalPort;
use crate::wire::packet::{self, Packet};

impl Engine {
    /// Sends a congestion notification to the sender of `packet` (IBTA annex A17.9.3), if it is a
    /// queue pair's peer.
    pub(super) fn notify_congestion(&mut self, context: &mut Context<'_>, packet: &Packet<'_>) {
        let Some(qp) = context.objects.queue_pair(packet.bth.destination()) else { return };
        let peer = qp.attributes.remote_address;
        if qp.service == ServiceType::Ud || packet.source != peer {
            return;
        }
        let bth = Bth::new(BthOpcode::SendMiddle, qp.attributes.remote_qpn, 0)
            .with_transport(Transport::Congestion)
            .with_pkey(qp.attributes.pkey)
            .with_congestion_notice();
        debug_assert_eq!(BthOpcode::SendMiddle as u8, CONGESTION_NOTIFICATION);
        packet::start(&mut self.built, bth, 0);
        packet::payload(&mut self.built, CONGESTION_RESERVED);
        let Some(PhysicalPort { address, wire }) = context.ports.get_mut(packet.port) else {
            return;
        };
        packet::finish(&mut self.built, *address, peer);
        context.counters.cnps_sent += 1;
        context.counters.packets_sent += 1;
        wire.send(peer, &self.built);
    }
}
