//! Messages: which entry of the list they match, and what becomes of them.

use barewire_layouts::command::qp::{QpState, ServiceType};
use barewire_layouts::roce::{Headers, NakCode};
use barewire_layouts::tag::{MAX_RENDEZVOUS_HEADER, RendezvousHeader, TagHeader, TagOpcode};
use zerocopy::FromBytes;

use super::{Arrived, Matched};
use crate::engine::failure::Failure;
use crate::engine::fetch::{MAX_MESSAGE, Receive};
use crate::engine::responder::{Refusal, take_receive};
use crate::engine::{Port, Qp, completer, requester};
use crate::memory::Access;
use crate::object::TagBuffer;
use crate::wire::packet::Packet;

/// How a message begins.
#[derive(Debug)]
pub(in crate::engine) enum Start {
    /// It is received; its payload begins after so many bytes of the first packet.
    Receive(Receive, usize),
    /// The requester reads the data: the message itself is complete.
    Reading,
    /// It matched, but the buffer cannot be written.
    Failed(Receive, NakCode, Failure),
}

/// Begins a message to queue `number`, which may have tag matching.
pub(in crate::engine) fn start(
    qp: &mut Qp,
    port: &mut Port<'_>,
    number: Option<u32>,
    packet: &Packet<'_>,
) -> Result<Start, Refusal> {
    let list = number.and_then(|number| port.srqs.get_mut(number));
    let Some((number, pd, tags, (header, kind))) = number
        .zip(list)
        .and_then(|(number, srq)| Some((number, srq.pd, srq.tags.as_mut()?, tagged(packet)?)))
    else {
        return Ok(Start::Receive(take_receive(qp, port, number)?, 0));
    };
    let found = if kind == Kind::Malformed { None } else { tags.take(header.tag.get()) };
    let Some((index, buffer)) = found else {
        let mut receive = take_receive(qp, port, Some(number))?;
        receive.arrived = Arrived::Unexpected;
        if let Some(tags) = port.srqs.get_mut(number).and_then(|srq| srq.tags.as_mut()) {
            tags.unexpected();
        }
        return Ok(Start::Receive(receive, 0));
    };
    let offloads = tags.rendezvous;
    let data = match kind {
        Kind::Rendezvous(data) => Some(data).filter(|data| offloads && reads(qp, data, buffer)),
        Kind::Eager | Kind::Malformed => None,
    };
    let by_software = kind != Kind::Eager && data.is_none();
    let mut matched =
        Matched { index, header, announced: false, by_software, solicited: packet.bth.solicited() };
    let mut receive = qp.engine.spare_receive();
    receive.index = 0;
    receive.stride = None;
    receive.queue = Some(number);
    receive.pd = pd;
    receive.local.clear();
    if buffer.length > 0 {
        receive.local.push(buffer.address, buffer.length, buffer.lkey);
    }
    receive.arrived = Arrived::Matched(matched);
    let Some(data) = data else {
        return Ok(Start::Receive(receive, size_of::<TagHeader>()));
    };
    if let Err(error) = receive.local.check(port.memory, qp.receiver(pd), Access::LOCAL_WRITE) {
        let failure = Failure::scattering(error);
        return Ok(Start::Failed(receive, NakCode::RemoteOperational, failure));
    }
    completer::matched(qp, port, &receive);
    matched.announced = true;
    receive.arrived = Arrived::Matched(matched);
    requester::rendezvous(qp, receive, data);
    Ok(Start::Reading)
}

/// Takes back the count of the message in `receive`, which fails, if it is unexpected. Software has
/// counted a message whose first packet has completed.
pub(in crate::engine) fn withdraw(port: &mut Port<'_>, receive: &Receive) {
    let queue = receive.queue.and_then(|number| port.srqs.get_mut(number));
    if receive.arrived == Arrived::Unexpected
        && receive.stride.is_none_or(|stride| stride.first)
        && let Some(tags) = queue.and_then(|srq| srq.tags.as_mut())
    {
        tags.withdraw();
    }
}

/// What a message with a tag is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Its data follows the header.
    Eager,
    /// Its data is at the sender.
    Rendezvous(RendezvousHeader),
    /// It claims to be a rendezvous message, but is too long or too short. It matches nothing.
    Malformed,
}

/// Returns the tag matching header and the kind of a message that has a tag.
fn tagged(packet: &Packet<'_>) -> Option<(TagHeader, Kind)> {
    let (header, rest) = TagHeader::read_from_prefix(packet.payload).ok()?;
    let kind = match TagOpcode::from_bits(header.opcode)? {
        TagOpcode::Eager => Kind::Eager,
        TagOpcode::Rendezvous => {
            let sound = packet.payload.len() <= MAX_RENDEZVOUS_HEADER
                && packet.opcode.is_last()
                && !packet.headers.contains(Headers::IMM_DT);
            match RendezvousHeader::read_from_prefix(rest) {
                Ok((data, _)) if sound => Kind::Rendezvous(data),
                _ => Kind::Malformed,
            }
        }
        TagOpcode::NoTag | TagOpcode::Finished => return None,
    };
    Some((header, kind))
}

/// Returns whether the queue pair can read the data into the buffer now.
fn reads(qp: &Qp, data: &RendezvousHeader, buffer: TagBuffer) -> bool {
    let length = data.length.get();
    qp.rendezvous
        && qp.service == ServiceType::Rc
        && qp.state == QpState::Rts
        && qp.attributes.max_initiator_depth > 0
        && qp.engine.requester.offers_rendezvous()
        && length <= buffer.length
        && u64::from(length) <= MAX_MESSAGE
}
