//! Transmission of responses.

use barewire_layouts::command::qp::QpState;
use barewire_layouts::roce::{
    Aeth, AethSyndrome, AtomicAckEth, Bth, BthOpcode, Headers, INVALID_CREDITS, NakCode, Transport,
};

use super::execute::packets;
use super::{Read, Response, fail_behind_nak};
use crate::engine::paging::{self, Operation};
use crate::engine::psn::Psn;
use crate::engine::transport;
use crate::engine::{Port, Qp};
use crate::memory::{Access, TranslationError, User};
use crate::object::Attributes;
use crate::wire::packet;

/// Sends up to `budget` response packets. Returns whether more wait.
pub(in crate::engine) fn respond(qp: &mut Qp, port: &mut Port<'_>, budget: u32) -> bool {
    let alive = matches!(qp.state, QpState::Rtr | QpState::Rts);
    if !alive && (qp.state != QpState::Err || qp.engine.responder.fatal.is_none()) {
        qp.engine.responder.responses.clear();
        return false;
    }
    let user = qp.user();
    for _ in 0..budget {
        let Some(response) = qp.engine.responder.responses.front_mut() else { return false };
        let attributes = &qp.attributes;
        let transport = transport(qp.service);
        let done = match *response {
            Response::Ack { psn, msn } => {
                port.counters.acks_sent += 1;
                acknowledgment(
                    attributes,
                    transport,
                    port,
                    psn,
                    Aeth::new(AethSyndrome::Ack(INVALID_CREDITS), msn),
                );
                true
            }
            Response::Nak { psn, msn, syndrome } => {
                match syndrome {
                    AethSyndrome::RnrNak(_) => port.counters.rnr_naks_sent += 1,
                    _ => port.counters.naks_sent += 1,
                }
                acknowledgment(attributes, transport, port, psn, Aeth::new(syndrome, msn));
                true
            }
            Response::Atomic { psn, msn, original, .. } => {
                let aeth = Aeth::new(AethSyndrome::Ack(INVALID_CREDITS), msn);
                let bth = Bth::new(BthOpcode::AtomicAcknowledge, attributes.remote_qpn, psn.get());
                packet::start(
                    port.frame,
                    bth.with_transport(transport).with_pkey(attributes.pkey),
                    0,
                );
                packet::header(port.frame, &aeth);
                packet::header(port.frame, &AtomicAckEth { original: original.into() });
                dispatch(attributes, port);
                true
            }
            Response::Read(ref mut read) => {
                let user = User { pd: read.pd, ..user };
                match read_response(attributes, (transport, user), port, read) {
                    Ok(()) => {
                        read.sent += 1;
                        read.sent == packets(read.length, attributes.mtu)
                    }
                    Err(error) => {
                        let psn = read.psn.plus(read.sent);
                        let operation = operation(read, user, attributes.mtu);
                        let is_absent = matches!(error, TranslationError::Absent { .. });
                        if is_absent && paging::at_remote(qp, port, operation, psn) {
                            return false;
                        }
                        // The key became invalid in the middle of the read.
                        refuse_rest(qp, port, psn);
                        continue;
                    }
                }
            }
        };
        if done {
            qp.engine.responder.responses.pop_front();
        }
    }
    !qp.engine.responder.responses.is_empty()
}

/// Refuses the rest of the read that is being answered, from packet `psn` on.
pub(super) fn refuse_rest(qp: &mut Qp, port: &mut Port<'_>, psn: Psn) {
    qp.engine.responder.responses.clear();
    qp.engine.responder.refuse(psn, AethSyndrome::Nak(NakCode::RemoteAccess));
    qp.engine.responder.fatal = Some((psn, NakCode::RemoteAccess));
    fail_behind_nak(qp, port);
}

/// Describes the access of the next packet of a read.
fn operation(read: &Read, user: User, mtu: usize) -> Operation {
    let (length, done) = (u64::from(read.length), read.done(mtu));
    let packet = (length - done).min(mtu as u64) as usize;
    let (need, rkey, address) = (Access::REMOTE_READ, read.rkey, read.address);
    Operation { user, need, rkey, address, length, done, packet }
}

/// Sends queued acknowledgments when a command ends the connection. The requests were completed, so
/// the driver may be finished; without the acknowledgments the peer would retry to a queue pair
/// that no longer exists.
pub(in crate::engine) fn acknowledge_owed(qp: &mut Qp, port: &mut Port<'_>) {
    while let Some(&Response::Ack { psn, msn }) = qp.engine.responder.responses.front() {
        port.counters.acks_sent += 1;
        let aeth = Aeth::new(AethSyndrome::Ack(INVALID_CREDITS), msn);
        acknowledgment(&qp.attributes, transport(qp.service), port, psn, aeth);
        qp.engine.responder.responses.pop_front();
    }
}

fn acknowledgment(
    attributes: &Attributes,
    transport: Transport,
    port: &mut Port<'_>,
    psn: Psn,
    aeth: Aeth,
) {
    let bth = Bth::new(BthOpcode::Acknowledge, attributes.remote_qpn, psn.get());
    packet::start(port.frame, bth.with_transport(transport).with_pkey(attributes.pkey), 0);
    packet::header(port.frame, &aeth);
    dispatch(attributes, port);
}

/// Sends the next packet of a read, unless the key does not allow it any more, or pages are absent.
fn read_response(
    attributes: &Attributes,
    (transport, user): (Transport, User),
    port: &mut Port<'_>,
    read: &Read,
) -> Result<(), TranslationError> {
    let done = read.done(attributes.mtu);
    let left = u64::from(read.length) - done;
    let payload = left.min(attributes.mtu as u64);
    let opcode = match (read.sent == 0, payload == left) {
        (true, true) => BthOpcode::ReadResponseOnly,
        (true, false) => BthOpcode::ReadResponseFirst,
        (false, false) => BthOpcode::ReadResponseMiddle,
        (false, true) => BthOpcode::ReadResponseLast,
    };
    let address = read.address.wrapping_add(done);
    let span = port.memory.translate(read.rkey, user, address, payload, Access::REMOTE_READ)?;
    let bth = Bth::new(opcode, attributes.remote_qpn, read.psn.plus(read.sent).get())
        .with_transport(transport)
        .with_pkey(attributes.pkey);
    packet::start(port.frame, bth, payload as usize);
    if opcode.headers().contains(Headers::AETH) {
        packet::header(port.frame, &Aeth::new(AethSyndrome::Ack(INVALID_CREDITS), read.msn));
    }
    let room = packet::payload(port.frame, payload as usize);
    match read.kept.as_deref() {
        Some(kept) => {
            let at = kept.len() - left as usize;
            room.copy_from_slice(&kept[at..][..room.len()]);
        }
        None => span.copy_to(room),
    }
    dispatch(attributes, port);
    Ok(())
}

/// Completes the port's frame with its ICRC and sends it.
fn dispatch(attributes: &Attributes, port: &mut Port<'_>) {
    packet::finish(port.frame, port.address, attributes.remote_address);
    port.counters.packets_sent += 1;
    port.wire.send(attributes.remote_address, port.frame);
}
