//! Reception of responses: acknowledgments, NAKs, and data of reads and atomics.

use barewire_layouts::command::qp::QpState;
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::roce::{AethSyndrome, BthOpcode, NakCode, rnr_delay_ns};

use super::rendezvous::Step;
use super::{READ_PIECE, RNR_RETRY_INFINITE, complete, fail, fault};
use crate::engine::failure::Failure;
use crate::engine::psn::Psn;
use crate::engine::{Port, Qp, completer};
use crate::memory::{TranslationError, User};
use crate::wire::packet::Packet;

/// Acknowledges everything before `to`, as far as responses with data have arrived. Returns `false`
/// if one of those is missing.
fn acknowledge(qp: &mut Qp, port: &mut Port<'_>, to: Psn) -> bool {
    let requester = &mut qp.engine.requester;
    let before = requester.unacknowledged;
    let mut reached = to;
    for request in &requester.requests {
        if to.since(request.first) <= 0 {
            break;
        }
        let answered = request.first.plus(request.responses);
        if request.is_answered() && request.responses < request.packets && to.since(answered) > 0 {
            reached = answered;
            break;
        }
    }
    if reached.since(before) > 0 {
        requester.unacknowledged = reached;
        (requester.retries, requester.rnr_retries, requester.went_back) = (0, 0, false);
        requester.awaited = (requester.sent != reached).then_some(port.now);
        complete(qp, port);
        // A late acknowledgment may overtake a cursor that was moved back.
        let requester = &mut qp.engine.requester;
        if requester.cursor_psn().since(requester.unacknowledged) < 0 {
            requester.go_back();
        }
    }
    reached == to
}

/// Handles a response packet.
pub(in crate::engine) fn receive(qp: &mut Qp, port: &mut Port<'_>, packet: &Packet<'_>) {
    let psn = Psn::new(packet.bth.psn());
    let requester = &qp.engine.requester;
    let (age, limit) =
        (psn.since(requester.unacknowledged), requester.sent.since(requester.unacknowledged));
    if qp.state != QpState::Rts || age < 0 || age >= limit {
        port.counters.stale_responses += 1;
        return;
    }
    match (packet.opcode, packet.syndrome) {
        (BthOpcode::Acknowledge, Some(AethSyndrome::Ack(_))) => {
            if !acknowledge(qp, port, psn.plus(1)) {
                qp.engine.requester.gap(port);
            }
        }
        (BthOpcode::Acknowledge, Some(AethSyndrome::RnrNak(timer))) => {
            port.counters.rnr_naks_received += 1;
            if acknowledge(qp, port, psn) {
                receiver_not_ready(qp, port, timer);
            } else {
                qp.engine.requester.gap(port);
            }
        }
        (BthOpcode::Acknowledge, Some(AethSyndrome::Nak(code))) => {
            port.counters.naks_received += 1;
            if !acknowledge(qp, port, psn) {
                return qp.engine.requester.gap(port);
            }
            match code {
                NakCode::PsnSequence => {
                    port.counters.sequence_naks_received += 1;
                    sequence_error(qp, port);
                }
                NakCode::InvalidRequest => refused(qp, port, Syndrome::RemoteInvalidRequest),
                NakCode::RemoteAccess => refused(qp, port, Syndrome::RemoteAccess),
                NakCode::RemoteOperational => refused(qp, port, Syndrome::RemoteOperation),
            }
        }
        (_, None | Some(AethSyndrome::Ack(_))) => answer(qp, port, packet, psn),
        // A NAK cannot carry data.
        (_, Some(_)) => port.counters.malformed += 1,
    }
}

/// Fails the oldest request, which the responder refused. The next PSN to send goes back to that of
/// the refused packet, so that it tells how much of a write was executed.
fn refused(qp: &mut Qp, port: &mut Port<'_>, syndrome: Syndrome) {
    let requester = &mut qp.engine.requester;
    requester.sent = requester.unacknowledged;
    fail(qp, port, syndrome.into());
}

/// Handles a PSN sequence error: the responder misses the oldest unacknowledged packet.
fn sequence_error(qp: &mut Qp, port: &mut Port<'_>) {
    let requester = &mut qp.engine.requester;
    if requester.went_back {
        return;
    }
    requester.went_back = true;
    requester.awaited = Some(port.now);
    requester.go_back();
}

/// Handles an RNR NAK: the responder has no receive WQE for the oldest unacknowledged packet.
fn receiver_not_ready(qp: &mut Qp, port: &mut Port<'_>, timer: u8) {
    let requester = &mut qp.engine.requester;
    if requester.pause.is_some() {
        return;
    }
    if qp.attributes.rnr_retry != RNR_RETRY_INFINITE {
        if requester.rnr_retries >= qp.attributes.rnr_retry {
            return fail(qp, port, Syndrome::RnrRetryExceeded.into());
        }
        requester.rnr_retries += 1;
    }
    requester.pause = Some(port.now + rnr_delay_ns(timer));
    requester.awaited = None;
    requester.go_back();
}

/// Handles a read response or an atomic response.
fn answer(qp: &mut Qp, port: &mut Port<'_>, packet: &Packet<'_>, psn: Psn) {
    let requester = &mut qp.engine.requester;
    let Some(at) = requester.requests.iter().position(|request| request.contains(psn)) else {
        port.counters.stale_responses += 1;
        return;
    };
    let request = &requester.requests[at];
    let number = psn.since(request.first) as u32;
    // While pages are absent, the request will be sent again.
    if number < request.responses || requester.fault.is_some() {
        port.counters.stale_responses += 1;
        return;
    }
    // It acknowledges earlier packets, except those that need a separate response.
    if number > request.responses || !acknowledge(qp, port, psn) {
        return qp.engine.requester.gap(port);
    }
    // The request is the oldest now, unless a full completion queue failed the queue pair.
    let (mtu, user) = (qp.attributes.mtu, qp.user());
    let Some(request) =
        qp.engine.requester.requests.front_mut().filter(|_| qp.state == QpState::Rts)
    else {
        return;
    };
    let number_after = number + 1;
    let ends = number_after == request.packets
        || request.is_read() && number_after.is_multiple_of(READ_PIECE);
    let fits = if request.is_atomic() {
        packet.opcode == BthOpcode::AtomicAcknowledge && packet.payload.is_empty()
    } else {
        request.is_read()
            && packet.payload.len() == request.payload(number, mtu)
            && match packet.opcode {
                BthOpcode::ReadResponseFirst | BthOpcode::ReadResponseMiddle => !ends,
                BthOpcode::ReadResponseLast | BthOpcode::ReadResponseOnly => ends,
                _ => false,
            }
    };
    if !fits {
        return fail(qp, port, Syndrome::BadResponse.into());
    }
    let user = match request.step.as_deref() {
        Some(Step::Read(receive)) => User { pd: receive.pd, ..user },
        _ => user,
    };
    // The endianness mode concerns results of 8 bytes in memory: others are big-endian, as on
    // adapters (UCX: `uct_ib_mlx5_devx_check_atomic`).
    let (long, short) = (packet.original.to_ne_bytes(), (packet.original as u32).to_be_bytes());
    let inline = packet.original.to_be_bytes();
    let (offset, bytes) = if request.is_atomic() {
        debug_assert_eq!(request.wqe.local.length(), request.wqe.atomic.bytes);
        (0, if request.wqe.atomic.bytes == 4 { &short[..] } else { &long[..] })
    } else {
        (u64::from(number) * mtu as u64, packet.payload)
    };
    if request.packets == 1 && request.wqe.signalled {
        let bytes = if bytes.len() == 8 && request.is_atomic() { &inline[..] } else { bytes };
        request.result = completer::inline(port, qp.send_cq, qp.scatter.requester, bytes);
    }
    if request.result.is_none() {
        match request.wqe.local.copy_from(port.memory, user, offset, bytes) {
            Ok(()) => {}
            Err(TranslationError::Absent { .. })
                if fault::at_response(qp, port, user, psn, (offset, bytes.len())) =>
            {
                return;
            }
            Err(error) => return fail(qp, port, Failure::scattering(error)),
        }
    }
    request.responses = number_after;
    let requester = &mut qp.engine.requester;
    requester.reads = requester.reads.saturating_sub(u32::from(ends));
    acknowledge(qp, port, psn.plus(1));
}
