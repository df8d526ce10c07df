//! Management datagrams: those to queue pair 1, and those that a manager sends from it.

use std::net::IpAddr;

use barewire_layouts::management::{GENERAL_SERVICES_QKEY, GENERAL_SERVICES_QPN, MAD_BYTES};
use barewire_layouts::roce::{Bth, BthOpcode, DEFAULT_PKEY, Deth, Transport};

use super::{Context, Engine};
use crate::object::ManagementDatagram;
use crate::wire::PhysicalPort;
use crate::wire::packet::{self, Packet};

/// Handles a packet to a number below those of queue pairs. Without a manager, the port has no
/// queue pair 1.
pub(super) fn receive(context: &mut Context<'_>, packet: &Packet<'_>) {
    let counters = &mut *context.counters;
    let management = context.objects.management.as_ref();
    let Some(management) = management.filter(|_| packet.bth.destination() == GENERAL_SERVICES_QPN)
    else {
        counters.unknown_qp += 1;
        return;
    };
    if packet.transport != Transport::Ud {
        counters.wrong_service += 1;
    } else if !packet.bth.is_in_partition(DEFAULT_PKEY) {
        counters.wrong_partition += 1;
    } else if packet.deth.qkey.get() != GENERAL_SERVICES_QKEY {
        counters.wrong_qkey += 1;
    } else if let Ok(bytes) = packet.payload.try_into() {
        let port = packet.port as u8 + 1;
        if !management.push(ManagementDatagram { port, source: packet.source, bytes }) {
            counters.messages_dropped += 1;
        }
    } else {
        counters.malformed += 1;
    }
}

impl Engine {
    /// Sends a management datagram from queue pair 1 of `port` (from 1) to that of the port with
    /// address `to`. Returns false if there is no such port.
    pub(crate) fn send_management(
        &mut self,
        context: &mut Context<'_>,
        port: u8,
        to: IpAddr,
        bytes: &[u8; MAD_BYTES],
    ) -> bool {
        let Some(PhysicalPort { address, wire }) =
            context.port_index(port).and_then(|index| context.ports.get_mut(index))
        else {
            return false;
        };
        let frame = &mut self.built;
        let bth = Bth::new(BthOpcode::SendOnly, GENERAL_SERVICES_QPN, 0);
        packet::start(frame, bth.with_transport(Transport::Ud), bytes.len());
        packet::header(
            frame,
            &Deth { qkey: GENERAL_SERVICES_QKEY.into(), source_qpn: GENERAL_SERVICES_QPN.into() },
        );
        packet::payload(frame, bytes.len()).copy_from_slice(bytes);
        packet::finish(frame, *address, to);
        wire.send(to, frame);
        context.counters.packets_sent += 1;
        context.flush();
        true
    }
}
