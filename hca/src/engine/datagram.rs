//! Reception of unreliable datagrams (IBTA 9.8.3): one packet each, from any sender that has the
//! Q_Key.

use barewire_layouts::command::capability::PortType;
use barewire_layouts::command::qp::QpState;
use barewire_layouts::cqe::{CqeOpcode, Syndrome};
use barewire_layouts::roce::{Headers, MASK_24};

use super::address::address_lid;
use super::completer::{self, Arrival, Datagram};
use super::failure::Failure;
use super::fetch::Receive;
use super::responder::{Refusal, take_receive};
use super::{Port, Qp, paging};
use crate::memory::TranslationError;
use crate::wire::headers::{GRH, global_route, network};
use crate::wire::packet::Packet;

/// Receives a datagram from the wire. Dropping one is not reported.
pub(super) fn receive(qp: &mut Qp, port: &mut Port<'_>, packet: &Packet<'_>) {
    if qp.state == QpState::Err {
        port.counters.wrong_state += 1;
        return;
    }
    if packet.deth.qkey.get() != qp.attributes.qkey {
        port.counters.wrong_qkey += 1;
        return;
    }
    if packet.payload.len() > qp.attributes.mtu {
        port.counters.malformed += 1;
        return;
    }
    let receive = match take_receive(qp, port, qp.srq) {
        Ok(receive) => receive,
        Err(Refusal::NotReady | Refusal::Absent) => {
            port.counters.out_of_buffer += 1;
            port.counters.messages_dropped += 1;
            return;
        }
        Err(Refusal::Silent(failure)) => return fail(qp, port, None, Some(failure)),
        Err(Refusal::Fatal(_, failure)) => return fail(qp, port, None, failure),
    };
    let length = (GRH + packet.payload.len()) as u64;
    if length > receive.local.length() {
        return fail(qp, port, Some(receive), Some(Syndrome::LocalLength.into()));
    }
    let to = packet.group.unwrap_or(port.address);
    let header = match port.kind {
        PortType::InfiniBand => global_route((packet.source, to), packet.class, packet.length),
        PortType::Ethernet => network((packet.source, to), packet.class, packet.length),
    };
    let user = qp.receiver(receive.pd);
    // Header and data are scattered to the CQE together or not at all.
    let data = if length as usize <= qp.scatter.responder {
        completer::inline_received(qp, port, &receive, &[&header, packet.payload].concat())
    } else {
        None
    };
    let scattered = if data.is_some() {
        Ok(())
    } else {
        receive
            .local
            .copy_from(port.memory, user, 0, &header)
            .and_then(|()| receive.local.copy_from(port.memory, user, GRH as u64, packet.payload))
    };
    match scattered {
        Ok(()) => {}
        Err(TranslationError::Absent { .. })
            if paging::at_receive(qp, port, &receive, (0, length as usize)) =>
        {
            // A later datagram uses the WQE.
            qp.engine.responder.put_back(receive);
            port.counters.messages_dropped += 1;
            return;
        }
        Err(error) => return fail(qp, port, Some(receive), Some(Failure::scattering(error))),
    }
    let with_immediate = packet.headers.contains(Headers::IMM_DT);
    let arrival = Arrival {
        data,
        opcode: if with_immediate {
            CqeOpcode::ResponderSendImmediate
        } else {
            CqeOpcode::ResponderSend
        },
        length: length as u32,
        immediate: packet.immediate,
        solicited: packet.bth.solicited(),
        datagram: Some(Datagram {
            source_qpn: packet.deth.source_qpn.get() & MASK_24,
            source_lid: address_lid(packet.source),
            ipv4: packet.source.is_ipv4(),
            multicast: packet.group.is_some(),
        }),
    };
    completer::received(qp, port, &receive, arrival);
    qp.engine.responder.keep(receive);
}

/// Fails the receive queue, with the given WQE or the one that could not be fetched.
fn fail(qp: &mut Qp, port: &mut Port<'_>, receive: Option<Receive>, failure: Option<Failure>) {
    let receive = receive.or_else(|| qp.engine.responder.abandon());
    if let Some((receive, failure)) = receive.zip(failure) {
        completer::receive_failed(qp, port, &receive, failure);
    }
    completer::fail(qp, port);
}
