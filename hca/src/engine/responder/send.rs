//! Execution of sends.

use barewire_layouts::cqe::{CqeOpcode, Syndrome};
use barewire_layouts::roce::{Headers, NakCode};

use super::execute::{requester, shared_queue, take_receive};
use super::{INVALID, Message, Refusal, Taken};
use crate::engine::completer::{self, Arrival};
use crate::engine::failure::Failure;
use crate::engine::fetch::{Receive, Stride};
use crate::engine::tag::{self, Arrived, Matched, Start};
use crate::engine::{Port, Qp, paging};
use crate::memory::TranslationError;
use crate::object::Inline;
use crate::wire::packet::Packet;

/// Where a packet goes.
struct Target {
    receive: Receive,
    /// Bytes of earlier packets.
    done: u64,
    /// Bytes of the packet that are not for it.
    skipped: usize,
}

/// Returns the receive WQE of a packet, which it continues or begins. `None` if the message needs
/// none.
fn target(
    qp: &mut Qp,
    port: &mut Port<'_>,
    packet: &Packet<'_>,
    shared: Option<u32>,
) -> Result<Option<Target>, Refusal> {
    let message = std::mem::take(&mut qp.engine.responder.message);
    if qp.engine.responder.holds()
        && let Some(taken) = qp.engine.responder.taken.take()
    {
        let Taken { receive, skipped } = *taken;
        let skipped = skipped.unwrap_or(0);
        return Ok(Some(Target { receive, done: 0, skipped }));
    }
    let (receive, done, skipped) = match message {
        Message::Send { receive, done } if receive.queue == shared => (receive, done, 0),
        Message::Strided { queue, arrived } if Some(queue) == shared => {
            match take_receive(qp, port, shared) {
                Ok(receive) => (Receive { arrived, ..receive }, 0, 0),
                Err(refusal) => {
                    if matches!(refusal, Refusal::NotReady) {
                        qp.engine.responder.message = Message::Strided { queue, arrived };
                    }
                    return Err(refusal);
                }
            }
        }
        // Earlier packets had another destination.
        message @ (Message::Send { .. } | Message::Strided { .. }) => {
            qp.engine.responder.message = message;
            return Err(INVALID);
        }
        _ => match tag::start(qp, port, shared, packet)? {
            Start::Receive(receive, skipped) => (receive, 0, skipped),
            Start::Reading => return Ok(None),
            Start::Failed(receive, code, failure) => {
                qp.engine.responder.message = Message::Send { receive, done: 0 };
                return Err(Refusal::Fatal(code, Some(failure)));
            }
        },
    };
    Ok(Some(Target { receive, done, skipped }))
}

/// Executes a packet of a send.
pub(super) fn send(qp: &mut Qp, port: &mut Port<'_>, packet: &Packet<'_>) -> Result<(), Refusal> {
    let shared = shared_queue(qp, port, packet)?;
    let (begun, strided) = match qp.engine.responder.message {
        Message::Strided { queue, arrived } => (false, Some((queue, arrived))),
        Message::Send { .. } => (true, None),
        Message::None | Message::Write { .. } => (false, None),
    };
    let Some(Target { mut receive, done, skipped }) = target(qp, port, packet, shared)? else {
        qp.engine.responder.message_done();
        return Ok(());
    };
    let (first, last) = (packet.opcode.is_first(), packet.opcode.is_last());
    receive.stride = receive.stride.map(|stride| Stride { first, last, ..stride });
    let payload = packet.payload.get(skipped..).unwrap_or_default();
    let after = done + payload.len() as u64;
    let data =
        if first && last { completer::inline_received(qp, port, &receive, payload) } else { None };
    let user = qp.receiver(receive.pd);
    let scattered = if data.is_some() || after > receive.local.length() {
        Ok(())
    } else {
        receive.local.copy_from(port.memory, user, done, payload)
    };
    if let Err(TranslationError::Absent { .. }) = scattered
        && paging::at_receive(qp, port, &receive, (done, payload.len()))
    {
        // The peer repeats the packet.
        let responder = &mut qp.engine.responder;
        if begun {
            responder.message = Message::Send { receive, done };
        } else {
            responder.taken = Some(Box::new(Taken { receive, skipped: Some(skipped) }));
            responder.message = strided
                .map_or(Message::None, |(queue, arrived)| Message::Strided { queue, arrived });
        }
        return Err(Refusal::Absent);
    }
    let refusal = if after > receive.local.length() {
        Some(Refusal::Fatal(NakCode::InvalidRequest, Some(Syndrome::LocalLength.into())))
    } else if let Err(error) = scattered {
        Some(Refusal::Fatal(NakCode::RemoteOperational, Some(Failure::scattering(error))))
    } else if packet.headers.contains(Headers::IETH)
        && !port.memory.invalidate(requester(qp, port, packet), packet.invalidated)
    {
        // The data has been written. An error of class J: the requester gets no NAK (IBTA 9.9.6.3).
        Some(Refusal::Silent(Syndrome::LocalAccess.into()))
    } else {
        None
    };
    if let Some(refusal) = refusal {
        qp.engine.responder.message = Message::Send { receive, done };
        return Err(refusal);
    }
    if let (Some(_), Some(queue), false) = (receive.stride, receive.queue, last) {
        qp.engine.responder.message = Message::Strided { queue, arrived: receive.arrived };
        let solicited = packet.bth.solicited();
        completer::received(qp, port, &receive, Arrival::plain(after as u32, solicited));
        qp.engine.responder.keep(receive);
        return Ok(());
    }
    if !last {
        if let Arrived::Matched(matched @ Matched { announced: false, .. }) = receive.arrived {
            completer::matched(qp, port, &receive);
            receive.arrived = Arrived::Matched(Matched { announced: true, ..matched });
        }
        qp.engine.responder.message = Message::Send { receive, done: after };
        return Ok(());
    }
    let opcode = if packet.headers.contains(Headers::IETH) {
        CqeOpcode::ResponderSendInvalidate
    } else if packet.headers.contains(Headers::IMM_DT) {
        CqeOpcode::ResponderSendImmediate
    } else {
        CqeOpcode::ResponderSend
    };
    finish(qp, port, receive, (opcode, after), packet, data);
    Ok(())
}

/// Completes a message that uses a receive WQE.
pub(super) fn finish(
    qp: &mut Qp,
    port: &mut Port<'_>,
    receive: Receive,
    (opcode, length): (CqeOpcode, u64),
    packet: &Packet<'_>,
    data: Option<Inline>,
) {
    qp.engine.responder.message_done();
    let arrival = Arrival {
        opcode,
        length: length as u32,
        // A packet has at most one of the two.
        immediate: packet.immediate | packet.invalidated,
        solicited: packet.bth.solicited(),
        data,
        datagram: None,
    };
    completer::received(qp, port, &receive, arrival);
    qp.engine.responder.keep(receive);
}
