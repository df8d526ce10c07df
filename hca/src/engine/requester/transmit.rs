//! Fetching of WQEs and transmission of request packets.

use std::net::IpAddr;

use barewire_layouts::command::qp::{QpState, ServiceType};
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::roce::{Bth, BthOpcode, Deth, Headers, Ieth, ImmDt, Reth, Transport, XrcEth};
use barewire_layouts::wqe::Opcode;

use super::{ACK_INTERVAL, Request, complete, fault, initiator};
use crate::engine::failure::Failure;
use crate::engine::fetch::Change;
use crate::engine::report::Finding;
use crate::engine::{Port, Qp, fetch, is_reliable, tag, transport};
use crate::memory::{Access, TranslationError, UpdateRefusal};
use crate::wire::packet;

/// Fetches posted WQEs, as far ahead as is useful.
fn fetch(qp: &mut Qp, port: &mut Port<'_>) {
    while qp.engine.requester.has_room() {
        let requester = &mut qp.engine.requester;
        if requester.take_own(&qp.attributes) {
            continue;
        }
        let posted = requester.posted.wrapping_sub(requester.fetched);
        if posted == 0 {
            break;
        }
        let index = requester.fetched;
        let mut request = requester.spare.pop().unwrap_or_default();
        let outstanding = u32::from(requester.posted.wrapping_sub(requester.oldest()));
        (request.responses, request.fault, request.result) = (0, None, None);
        let checked = if outstanding > qp.sq.entries() {
            request.wqe.refuse(index, &fetch::control(&qp.sq, index));
            Err(Finding::Overflow { queue: "send", got: outstanding, wanted: qp.sq.entries() })
        } else {
            fetch::send(
                &qp.sq,
                (qp.number, qp.service, qp.streams),
                index,
                posted,
                port.reports.reserved(),
                &mut request.wqe,
            )
        };
        port.counters.wqes += 1;
        if let Err(finding) = checked {
            port.report(qp.number, index, finding);
            let registers = request.wqe.opcode_bits == Opcode::Umr as u8;
            request.fault = Some(if registers { Failure::BAD_UMR } else { Failure::BAD_WQE });
        } else {
            request.fault = refuse(qp, &request, port);
        }
        let requester = &mut qp.engine.requester;
        request.first = requester.next;
        request.packets = match request.wqe.opcode {
            _ if request.fault.is_some() => 0,
            None | Some(Opcode::Nop | Opcode::Umr | Opcode::TagMatching) => 0,
            Some(_) if request.is_atomic() => 1,
            Some(_) => {
                (request.wqe.local.length().div_ceil(qp.attributes.mtu as u64) as u32).max(1)
            }
        };
        requester.stopped = request.fault.is_some() && requester.ends_with(&request);
        requester.next = requester.next.plus(request.packets);
        // A WQE that claims more blocks than are posted is refused, and ends with them.
        requester.fetched = index.wrapping_add(request.wqe.blocks.min(posted));
        requester.requests.push_back(request);
    }
    qp.engine.requester.advance_cursor(0);
}

/// Checks what is known only at execution: message length and the local keys of what is sent.
fn refuse(qp: &Qp, request: &Request, port: &Port<'_>) -> Option<Failure> {
    if request.wqe.local.length() > 1 << qp.attributes.log_message_max.min(30) {
        return Some(Syndrome::LocalLength.into());
    }
    if qp.service == ServiceType::Ud && request.wqe.local.length() > qp.attributes.mtu as u64 {
        return Some(Syndrome::LocalLength.into());
    }
    // The entry is empty, or its address does not belong to the wire.
    let source = request.wqe.destination.and_then(|destination| destination.source);
    if source.is_some_and(|source| port.gids.address(source) != Some(port.address)) {
        return Some(Syndrome::LocalQpOperation.into());
    }
    // Whether its bytes are in the range of a key is checked for each packet, and where a response
    // goes when it arrives: adapters send the packets before.
    let keys = request.wqe.local.admit(port.memory, qp.user(), Access::LOCAL_READ);
    keys.err().filter(|_| !request.is_answered()).map(Failure::gathering)
}

/// Executes the UMR or list operation at the cursor. Returns `false` if the request is neither, or
/// must wait.
fn change(qp: &mut Qp, port: &mut Port<'_>) -> bool {
    let requester = &mut qp.engine.requester;
    let at = requester.cursor;
    if requester.is_paused() || requester.is_fenced(at) || requester.is_refused(at) {
        return false;
    }
    let Some(request) = requester.requests.get_mut(at) else { return false };
    let index = request.wqe.index;
    let fault = match request.wqe.change.take() {
        None => return false,
        Some(Change::Key(change)) => {
            let changed = port.memory.change(qp.user(), &change);
            if let Err(UpdateRefusal::List(TranslationError::Absent { .. })) = changed
                && let pages = port.memory.absent_list(qp.user(), &change)
                && fault::at_list(qp, port, pages)
            {
                qp.engine.requester.requests[at].wqe.change = Some(Change::Key(change));
                return false;
            }
            port.counters.key_changes += 1;
            changed.err().map(|refusal| match refusal {
                UpdateRefusal::List(error) => Failure::gathering(error),
                UpdateRefusal::Room => Failure::LONG_LIST,
                UpdateRefusal::Free => Failure::FREE_KEY,
                UpdateRefusal::Key => Syndrome::MemoryWindowBind.into(),
            })
        }
        Some(Change::List(change)) => tag::execute(qp, port, &change, index),
    };
    let requester = &mut qp.engine.requester;
    if fault.is_some()
        && let Some(request) = requester.requests.get_mut(at)
    {
        request.fault = fault;
        requester.stopped = requester.ends_with(&requester.requests[at]);
    }
    requester.advance_cursor(0);
    // A full completion queue fails the queue pair.
    qp.state == QpState::Rts
}

/// Sends up to `budget` packets. Returns whether more could be sent at once.
pub(in crate::engine) fn transmit(qp: &mut Qp, port: &mut Port<'_>, budget: u32) -> bool {
    if qp.state != QpState::Rts {
        return false;
    }
    for _ in 0..budget {
        fetch(qp, port);
        while change(qp, port) {
            fetch(qp, port);
        }
        complete(qp, port);
        if qp.state != QpState::Rts {
            return false;
        }
        initiator::steer(qp, port);
        match qp.engine.requester.sendable(&qp.attributes) {
            Some(numbers) => send(qp, port, numbers),
            // Requests that send nothing are complete at once. More may have been posted than are
            // fetched ahead, and nothing else would call this again.
            None if qp.engine.requester.may_fetch() => {}
            None => return false,
        }
    }
    true
}

/// Sends the packet at the cursor, which takes `numbers` PSNs.
fn send(qp: &mut Qp, port: &mut Port<'_>, numbers: u32) {
    let requester = &mut qp.engine.requester;
    let (at, number, psn) = (requester.cursor, requester.packet, requester.cursor_psn());
    let again = psn.since(requester.sent) < 0;

    // Advance first: whether the requester stalls after this packet decides whether the packet
    // requests an acknowledgment.
    let request = &requester.requests[at];
    let (answered, last) = (request.is_answered(), number + numbers == request.packets);
    let signalled = request.wqe.signalled;
    let class = request.wqe.destination.map_or(0, |destination| destination.class);
    requester.reads += u32::from(answered);
    requester.advance_cursor(numbers);
    requester.unasked += 1;
    let stalls = requester.sendable(&qp.attributes).is_none();
    let reliable = is_reliable(qp.service);
    let ask =
        reliable && (answered || stalls || last && signalled || requester.unasked >= ACK_INTERVAL);

    let part = Part { number, numbers, ask };
    let destination = match build(qp, &qp.engine.requester.requests[at], part, port) {
        Ok(destination) => destination,
        Err(TranslationError::Absent { .. }) if fault::at_packet(qp, port, at, number) => return,
        // The key became invalid after the WQE was fetched.
        Err(error) => return qp.engine.requester.spoil(at, Failure::gathering(error)),
    };
    let requester = &mut qp.engine.requester;
    if ask {
        requester.unasked = 0;
    }
    let next = psn.plus(numbers);
    if next.since(requester.sent) > 0 {
        requester.sent = next;
    }
    if reliable {
        requester.awaited.get_or_insert(port.now);
    } else {
        // Unreliable: complete once sent.
        requester.unacknowledged = next;
        requester.unasked = 0;
    }
    let Some(destination) = destination else {
        port.counters.send_failures += 1;
        return;
    };
    port.counters.packets_sent += 1;
    port.counters.retransmitted += u64::from(again);
    // Packets of a connection have none.
    port.wire.set_class(class);
    port.wire.send(destination, port.frame);
    port.wire.set_class(0);
}

/// A packet of a request: its number, the PSNs it stands for, and whether it requests an
/// acknowledgment.
#[derive(Clone, Copy)]
struct Part {
    number: u32,
    numbers: u32,
    ask: bool,
}

/// Builds a packet of `request` in the port's frame. Returns its destination, or `None` if there is
/// no such address.
fn build(
    qp: &Qp,
    request: &Request,
    Part { number, numbers, ask }: Part,
    port: &mut Port<'_>,
) -> Result<Option<IpAddr>, TranslationError> {
    let (wqe, attributes) = (&request.wqe, &qp.attributes);
    let (address, remote_qpn) = match wqe.destination.filter(|_| qp.service == ServiceType::Ud) {
        None => (Some(attributes.remote_address), attributes.remote_qpn),
        Some(destination) => (destination.receiver(port.kind, port.address), destination.qpn),
    };
    let Some(address) = address else { return Ok(None) };
    let (first, last) = (number == 0, number + numbers == request.packets);
    let service = transport(qp.service);
    let (transport, opcode) = if request.is_atomic() {
        let (transport, opcode) = wqe.atomic.packet();
        (if transport == Transport::Rc { service } else { transport }, opcode)
    } else {
        let Some(opcode) = wqe.opcode.and_then(|opcode| packet_opcode(opcode, first, last)) else {
            return Ok(None);
        };
        (service, opcode)
    };
    let carries = opcode.headers();
    let offset = u64::from(number) * attributes.mtu as u64;
    let payload = if request.is_answered() { 0 } else { request.payload(number, attributes.mtu) };
    let bth = Bth::new(opcode, remote_qpn, request.first.plus(number).get())
        .with_transport(transport)
        .with_pkey(attributes.pkey)
        .with_ack_request(ask)
        .with_solicited(wqe.solicited && last);
    let frame = &mut *port.frame;
    packet::start(frame, bth, payload);
    if transport == Transport::Xrc {
        packet::header(frame, &XrcEth { srqn: wqe.xrc_srqn.into() });
    }
    if let Some(destination) = wqe.destination.filter(|_| transport == Transport::Ud) {
        let qkey = destination.qkey(attributes.qkey);
        packet::header(frame, &Deth { qkey: qkey.into(), source_qpn: qp.number.into() });
    }
    if carries.contains(Headers::RETH) {
        let length = if request.is_read() {
            (wqe.local.length() - offset).min(u64::from(numbers) * attributes.mtu as u64)
        } else {
            wqe.local.length()
        };
        let address = if request.is_read() { wqe.remote.wrapping_add(offset) } else { wqe.remote };
        packet::header(
            frame,
            &Reth {
                address: address.into(),
                rkey: wqe.rkey.into(),
                length: (length as u32).into(),
            },
        );
    }
    if request.is_atomic() {
        wqe.atomic.append_to(frame, wqe.remote, wqe.rkey);
    }
    if carries.contains(Headers::IMM_DT) {
        packet::header(frame, &ImmDt { data: wqe.immediate.into() });
    }
    if carries.contains(Headers::IETH) {
        packet::header(frame, &Ieth { rkey: wqe.immediate.into() });
    }
    wqe.local.copy_to(port.memory, qp.user(), offset, packet::payload(frame, payload))?;
    packet::finish(frame, port.address, address);
    Ok(Some(address))
}

/// Returns the packet opcode of a part of a message; not for atomics.
fn packet_opcode(opcode: Opcode, first: bool, last: bool) -> Option<BthOpcode> {
    use BthOpcode as Bth;
    Some(match (opcode, first, last) {
        (
            Opcode::Nop
            | Opcode::AtomicCompareSwap
            | Opcode::AtomicFetchAdd
            | Opcode::MaskedCompareSwap
            | Opcode::MaskedFetchAdd
            | Opcode::LocalInvalidate
            | Opcode::Umr
            | Opcode::TagMatching,
            ..,
        ) => return None,
        (Opcode::RdmaRead, ..) => Bth::ReadRequest,
        (Opcode::Send | Opcode::SendImmediate | Opcode::SendInvalidate, true, false) => {
            Bth::SendFirst
        }
        (Opcode::Send | Opcode::SendImmediate | Opcode::SendInvalidate, false, false) => {
            Bth::SendMiddle
        }
        (Opcode::Send, false, true) => Bth::SendLast,
        (Opcode::Send, true, true) => Bth::SendOnly,
        (Opcode::SendInvalidate, false, true) => Bth::SendLastInvalidate,
        (Opcode::SendInvalidate, true, true) => Bth::SendOnlyInvalidate,
        (Opcode::SendImmediate, false, true) => Bth::SendLastImmediate,
        (Opcode::SendImmediate, true, true) => Bth::SendOnlyImmediate,
        (Opcode::RdmaWrite | Opcode::RdmaWriteImmediate, true, false) => Bth::WriteFirst,
        (Opcode::RdmaWrite | Opcode::RdmaWriteImmediate, false, false) => Bth::WriteMiddle,
        (Opcode::RdmaWrite, false, true) => Bth::WriteLast,
        (Opcode::RdmaWrite, true, true) => Bth::WriteOnly,
        (Opcode::RdmaWriteImmediate, false, true) => Bth::WriteLastImmediate,
        (Opcode::RdmaWriteImmediate, true, true) => Bth::WriteOnlyImmediate,
    })
}
