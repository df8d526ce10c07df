//! Execution of request packets.

use barewire_layouts::command::qp::ServiceType;
use barewire_layouts::cqe::{CqeOpcode, Syndrome};
use barewire_layouts::roce::{BthOpcode, Headers, MASK_24, NakCode, Transport};

use super::send::{finish, send};
use super::{ACCESS, Executed, INVALID, Message, Read, Refusal, Response, Taken};
use crate::engine::atomic::Atomic;
use crate::engine::fetch::{self, Receive};
use crate::engine::gather::allow_absent;
use crate::engine::paging::{self, Operation};
use crate::engine::report::Finding;
use crate::engine::tag::Arrived;
use crate::engine::{Port, Qp, shared};
use crate::memory::{Access, TranslationError, User};
use crate::wire::packet::Packet;

/// Executes the expected request packet.
pub(super) fn execute(
    qp: &mut Qp,
    port: &mut Port<'_>,
    packet: &Packet<'_>,
) -> Result<(), Refusal> {
    use BthOpcode as Bth;
    // A packet continues the current message, or begins one if there is none (IBTA 9.7.4.1.2).
    let fits = match (&qp.engine.responder.message, packet.opcode) {
        (Message::None, opcode) => {
            // A packet that waited for pages is repeated.
            let sends = matches!(
                opcode,
                Bth::SendFirst | Bth::SendOnly | Bth::SendOnlyImmediate | Bth::SendOnlyInvalidate
            );
            opcode.is_first() && (sends || !qp.engine.responder.holds())
        }
        (Message::Send { .. } | Message::Strided { .. }, opcode) => {
            matches!(
                opcode,
                Bth::SendMiddle | Bth::SendLast | Bth::SendLastImmediate | Bth::SendLastInvalidate
            )
        }
        (Message::Write { .. }, opcode) => {
            matches!(opcode, Bth::WriteMiddle | Bth::WriteLast | Bth::WriteLastImmediate)
        }
    };
    let mtu = qp.attributes.mtu;
    let length = packet.payload.len();
    let sized = match (packet.opcode.is_first(), packet.opcode.is_last()) {
        (_, false) => length == mtu,
        (false, true) => (1..=mtu).contains(&length),
        (true, true) => length <= mtu,
    };
    if !fits || !sized {
        return Err(INVALID);
    }
    match packet.opcode {
        Bth::SendFirst
        | Bth::SendMiddle
        | Bth::SendLast
        | Bth::SendLastImmediate
        | Bth::SendOnly
        | Bth::SendOnlyImmediate
        | Bth::SendLastInvalidate
        | Bth::SendOnlyInvalidate => send(qp, port, packet),
        Bth::WriteFirst
        | Bth::WriteMiddle
        | Bth::WriteLast
        | Bth::WriteLastImmediate
        | Bth::WriteOnly
        | Bth::WriteOnlyImmediate => write(qp, port, packet),
        Bth::ReadRequest => read(qp, port, packet),
        Bth::CompareSwap | Bth::FetchAdd => atomic(qp, port, packet),
        _ => Err(INVALID),
    }
}

/// Returns the shared receive queue of a message, if any. An XRC request names it, and it must
/// belong to the domain of the queue pair.
pub(super) fn shared_queue(
    qp: &Qp,
    port: &Port<'_>,
    packet: &Packet<'_>,
) -> Result<Option<u32>, Refusal> {
    if qp.service != ServiceType::Xrc {
        return Ok(qp.srq);
    }
    let number = packet.xrc.srqn.get() & MASK_24;
    let domain = port.srqs.get(number).and_then(|srq| srq.xrc).map(|xrc| xrc.domain);
    if domain.is_some() && domain == qp.xrcd { Ok(Some(number)) } else { Err(INVALID) }
}

/// Returns the user that a request's memory keys are checked for. For XRC it is the named shared
/// receive queue, since the queue pair has no protection domain (IBTA annex A14).
pub(super) fn requester(qp: &Qp, port: &Port<'_>, packet: &Packet<'_>) -> User {
    let named =
        if qp.service == ServiceType::Xrc { shared_queue(qp, port, packet) } else { Ok(None) };
    let queue = named.ok().flatten().and_then(|number| port.srqs.get(number));
    queue.map_or(qp.user(), |srq| qp.receiver(srq.pd))
}

/// Takes the next receive WQE, from the shared receive queue if one is given. An invalid one stays
/// with the message and is flushed with it.
pub(in crate::engine) fn take_receive(
    qp: &mut Qp,
    port: &mut Port<'_>,
    shared: Option<u32>,
) -> Result<Receive, Refusal> {
    let responder = &mut qp.engine.responder;
    if let Some(taken) = responder.taken.take() {
        return Ok(taken.receive);
    }
    if let Some(number) = shared {
        let mut receive = std::mem::take(&mut responder.spare);
        let taken = shared::take(qp, port, number, &mut receive);
        return match taken {
            Ok(()) => Ok(receive),
            Err(refusal) => {
                let responder = &mut qp.engine.responder;
                match refusal {
                    Refusal::NotReady | Refusal::Absent => responder.spare = receive,
                    Refusal::Fatal(..) | Refusal::Silent(_) => {
                        responder.message = Message::Send { receive, done: 0 };
                    }
                }
                Err(refusal)
            }
        };
    }
    let available = u32::from(qp.doorbell.receive().wrapping_sub(responder.consumer));
    if available == 0 || qp.rq.entries() == 0 {
        return Err(Refusal::NotReady);
    }
    let index = responder.consumer;
    let mut receive = std::mem::take(&mut responder.spare);
    receive.queue = None;
    receive.stride = None;
    receive.arrived = Arrived::Plain;
    let checked = if available > qp.rq.entries() {
        receive.index = index;
        Err(Finding::Overflow { queue: "receive", got: available, wanted: qp.rq.entries() })
    } else {
        receive.pd = qp.pd;
        fetch::receive(&qp.rq, index, 0, &mut receive)
    };
    responder.consume();
    if let Err(finding) = checked {
        port.report(qp.known_as(), index, finding);
        qp.engine.responder.message = Message::Send { receive, done: 0 };
        return Err(Refusal::Fatal(
            NakCode::RemoteOperational,
            Some(Syndrome::LocalQpOperation.into()),
        ));
    }
    Ok(receive)
}

fn write(qp: &mut Qp, port: &mut Port<'_>, packet: &Packet<'_>) -> Result<(), Refusal> {
    let user = requester(qp, port, packet);
    let reth = &packet.reth;
    let (first, (address, rkey, length, done)) = match qp.engine.responder.message {
        Message::Write { address, rkey, length, done } => (false, (address, rkey, length, done)),
        _ if !qp.attributes.remote_write => return Err(INVALID),
        _ => (true, (reth.address.get(), reth.rkey.get(), u64::from(reth.length.get()), 0)),
    };
    let last = packet.opcode.is_last();
    let (to, bytes) = (address.wrapping_add(done), packet.payload.len() as u64);
    let after = done + bytes;
    if after > length || last != (after == length) {
        return Err(INVALID);
    }
    let need = Access::REMOTE_WRITE;
    // As on adapters, each packet is checked by itself: those within the key's range are written.
    let allowed = allow_absent(port.memory.translate(rkey, user, to, bytes, need)).is_ok();
    // Take it before writing, so that a repetition after an RNR NAK writes the bytes once.
    let receive = if packet.headers.contains(Headers::IMM_DT) {
        let shared = shared_queue(qp, port, packet)?;
        match take_receive(qp, port, shared) {
            Ok(receive) => Some(receive),
            Err(Refusal::NotReady) if !allowed => None,
            Err(refusal) => return Err(refusal),
        }
    } else {
        None
    };
    let written = port.memory.translate(rkey, user, to, bytes, need);
    let written = written.map(|span| span.copy_from(packet.payload));
    if let Err(error @ TranslationError::Absent { .. }) = written {
        let packet = packet.payload.len();
        let operation = Operation { user, need, rkey, address, length, done, packet };
        if let Refusal::Absent = refused(qp, port, error, operation) {
            qp.engine.responder.taken =
                receive.map(|receive| Box::new(Taken { receive, skipped: None }));
            return Err(Refusal::Absent);
        }
    }
    port.counters.writes += u64::from(first);
    let responder = &mut qp.engine.responder;
    if written.is_err() {
        responder.message = Message::None;
        let Some(receive) = receive else { return Err(ACCESS) };
        responder.message = Message::Send { receive, done: 0 };
        return Err(Refusal::Fatal(NakCode::RemoteAccess, Some(Syndrome::LocalAccess.into())));
    }
    responder.message =
        if last { Message::None } else { Message::Write { address, rkey, length, done: after } };
    match receive {
        Some(receive) => {
            finish(qp, port, receive, (CqeOpcode::ResponderWriteImmediate, length), packet, None);
        }
        None if last => responder.message_done(),
        None => {}
    }
    Ok(())
}

/// Refuses a read or atomic that exceeds the queue pair's responder depth (IBTA 9.7.4.1.6).
fn check_depth(qp: &Qp) -> Result<(), Refusal> {
    let depth = qp.attributes.max_responder_depth.max(1) as usize;
    if qp.engine.responder.depth() < depth { Ok(()) } else { Err(INVALID) }
}

/// Returns how a request whose memory is not accessible is refused: for now, if pages are absent.
fn refused(
    qp: &mut Qp,
    port: &mut Port<'_>,
    error: TranslationError,
    operation: Operation,
) -> Refusal {
    let absent = matches!(error, TranslationError::Absent { .. });
    let psn = qp.engine.responder.expected;
    if absent && paging::at_remote(qp, port, operation, psn) { Refusal::Absent } else { ACCESS }
}

fn read(qp: &mut Qp, port: &mut Port<'_>, packet: &Packet<'_>) -> Result<(), Refusal> {
    let (address, rkey, length) =
        (packet.reth.address.get(), packet.reth.rkey.get(), packet.reth.length.get());
    if !qp.attributes.remote_read
        || u64::from(length) > fetch::MAX_MESSAGE
        || !packet.payload.is_empty()
    {
        return Err(INVALID);
    }
    check_depth(qp)?;
    let user = requester(qp, port, packet);
    let need = Access::REMOTE_READ;
    let range = port.memory.translate(rkey, user, address, u64::from(length), need).map(drop);
    if let Err(error) = range {
        let packet = (length as usize).min(qp.attributes.mtu);
        let length = u64::from(length);
        let operation = Operation { user, need, rkey, address, length, done: 0, packet };
        return Err(refused(qp, port, error, operation));
    }
    port.counters.reads += 1;
    let responder = &mut qp.engine.responder;
    let psn = responder.expected;
    responder.message_done();
    responder.expected = psn.plus(packets(length, qp.attributes.mtu));
    responder.responses.push_back(Response::Read(Read {
        psn,
        msn: responder.msn,
        pd: user.pd,
        address,
        rkey,
        length,
        sent: 0,
        repeat: false,
        kept: None,
    }));
    Ok(())
}

/// Returns the number of response packets of a read of `length` bytes.
pub(super) fn packets(length: u32, mtu: usize) -> u32 {
    length.div_ceil(mtu as u32).max(1)
}

fn atomic(qp: &mut Qp, port: &mut Port<'_>, packet: &Packet<'_>) -> Result<(), Refusal> {
    let (header, masked) = (&packet.atomic, &packet.masked);
    let (address, rkey, atomic) = if packet.transport == Transport::Vendor {
        let atomic = Atomic::requested(packet.opcode, masked).ok_or(INVALID)?;
        (masked.address.get(), masked.rkey.get(), atomic)
    } else {
        let atomic = if packet.opcode == BthOpcode::FetchAdd {
            Atomic::fetch_add(header.swap_or_add.get())
        } else {
            Atomic::compare_swap(header.compare.get(), header.swap_or_add.get())
        };
        (header.address.get(), header.rkey.get(), atomic)
    };
    let aligned = address.is_multiple_of(atomic.bytes);
    if !qp.attributes.remote_atomic || !aligned || !packet.payload.is_empty() {
        return Err(INVALID);
    }
    check_depth(qp)?;
    let need = Access::REMOTE_ATOMIC;
    let user = requester(qp, port, packet);
    let executed = port
        .memory
        .translate(rkey, user, address, atomic.bytes, need)
        .map(|span| atomic.execute(&span));
    let original = match executed {
        Ok(original) => original,
        Err(error) => {
            let length = atomic.bytes;
            let operation = Operation { user, need, rkey, address, length, done: 0, packet: 0 };
            return Err(refused(qp, port, error, operation));
        }
    };
    // `None`: the key's address is aligned, but the memory it maps to is not.
    let original = original.ok_or(Refusal::Fatal(NakCode::RemoteOperational, None))?;
    port.counters.atomics += 1;
    let depth = qp.attributes.max_responder_depth.max(1) as usize;
    let responder = &mut qp.engine.responder;
    let psn = responder.expected;
    responder.message_done();
    responder.expected = psn.plus(1);
    while responder.executed.len() >= depth {
        responder.executed.pop_front();
    }
    responder.executed.push_back(Executed { psn, original });
    responder.responses.push_back(Response::Atomic {
        psn,
        msn: responder.msn,
        original,
        repeat: false,
    });
    Ok(())
}
