//! Writes completions, and flushes queue pairs in error.

use barewire_layouts::be::{Be16, Be32, Be64};
use barewire_layouts::command::qp::{QpState, ServiceType};
use barewire_layouts::cqe::{
    Application, Cqe64, CqeOpcode, ErrorCqe, PacketFields, SOLICITED, StrideCount, TagEvent,
    TagListResult,
};
use barewire_layouts::eqe::EventType;
use barewire_layouts::tag::TagHeader;
use zerocopy::{FromZeros, IntoBytes, transmute};

use super::failure::Failure;
use super::fetch::{self, Receive, Wqe};
use super::report::Finding;
use super::requester::{Request, Step};
use super::tag::{self, Arrived};
use super::{Port, Qp};
use crate::object::Inline;

/// Facts about a received message for its completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) opcode: CqeOpcode,
    pub(super) length: u32,
    pub(super) immediate: u32,
    pub(super) solicited: bool,
    /// The message itself, if it is scattered to the CQE.
    pub(super) data: Option<Inline>,
    /// The sender of a datagram.
    pub(super) datagram: Option<Datagram>,
}

impl Arrival {
    /// A send of `length` bytes and nothing else: a packet that does not end its message, or data
    /// that was read.
    pub(super) fn plain(length: u32, solicited: bool) -> Self {
        Self {
            opcode: CqeOpcode::ResponderSend,
            length,
            immediate: 0,
            solicited,
            data: None,
            datagram: None,
        }
    }
}

/// The sender of a datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram {
    pub(super) source_qpn: u32,
    pub(super) source_lid: u16,
    /// Whether it arrived over IPv4 instead of IPv6.
    pub(super) ipv4: bool,
    /// Whether it was sent to a multicast group.
    pub(super) multicast: bool,
}

impl Datagram {
    /// The packet has a GRH: bits 28-29 of the flags.
    const GLOBAL_ROUTE: u32 = 1 << 28;
    /// Type of the network header (linux device.h: `CQE_ROCE_L3_HEADER_TYPE_*`).
    const IPV6: u32 = 1 << 24;
    const IPV4: u32 = 2 << 24;

    fn fields(self) -> PacketFields {
        let kind = if self.ipv4 { Self::IPV4 } else { Self::IPV6 };
        PacketFields {
            path_bits: if self.multicast { PacketFields::MULTICAST } else { 0 },
            source_lid: Be16::new(self.source_lid),
            flags_source_qpn: Be32::new(Self::GLOBAL_ROUTE | kind | self.source_qpn),
            ..PacketFields::new_zeroed()
        }
    }
}

/// Writes `cqe` to queue `cqn`. If the queue is full, the queue pair fails, because its completions
/// cannot be reported.
fn push(port: &mut Port<'_>, qp: &mut Qp, cqn: u32, mut cqe: Cqe64, data: Option<&Inline>) {
    // A CQ cannot be destroyed while a queue pair uses it.
    let Some(cq) = port.cqs.get_mut(cqn) else { return };
    port.counters.cqes += 1;
    // Error CQEs have the syndrome in place of the time stamp.
    if !matches!(
        CqeOpcode::from_bits(cqe.op_own >> 4),
        Some(CqeOpcode::RequesterError | CqeOpcode::ResponderError)
    ) {
        cqe.timestamp = Be64::new(port.now);
    }
    if cq.push_with(cqe, data).is_ok() {
        match cq.open_block() {
            0 => port.events.check(cqn, cq, port.now),
            1 => port.events.opened(cqn),
            _ => {}
        }
    } else {
        port.counters.cq_overruns += 1;
        port.report(qp.known_as(), cqe.wqe_counter.get(), Finding::CompletionOverrun { cqn });
        port.tell_overrun(cqn);
        port.tell(EventType::WqCatastrophic, qp.known_as());
        fail(qp, port);
    }
}

/// Returns `bytes` for the CQE if they fit into `most` bytes and into the entries of queue `cqn`.
pub(super) fn inline(port: &Port<'_>, cqn: u32, most: usize, bytes: &[u8]) -> Option<Inline> {
    let room = port.cqs.get(cqn).filter(|_| most > 0)?.inline_room();
    Inline::new(bytes, most.min(room))
}

/// The user index of contexts with CQE version 0: its place in CQEs holds the SRQ number, or 0
/// (linux `create_user_qp`).
pub(crate) const NO_USER_INDEX: u32 = 0x00ff_ffff;

/// Returns what CQEs of a queue pair have in the place of the user index, without an SRQ.
fn user_index(qp: &Qp) -> u32 {
    if qp.user_index == NO_USER_INDEX { 0 } else { qp.user_index }
}

/// Returns the completion queue and user index of a receive WQE, or `None` if its XRC shared
/// receive queue was destroyed.
fn receiver(qp: &Qp, port: &Port<'_>, queue: Option<u32>) -> Option<(u32, u32)> {
    let tags = queue.and_then(|queue| port.srqs.get(queue)).and_then(|srq| srq.tags.as_ref());
    if let Some(tags) = tags {
        return Some((tags.cqn, tags.user_index));
    }
    match queue.filter(|_| qp.service == ServiceType::Xrc) {
        Some(queue) => {
            port.srqs.get(queue).and_then(|srq| srq.xrc).map(|xrc| (xrc.cqn, xrc.user_index))
        }
        None if qp.user_index == NO_USER_INDEX => Some((qp.receive_cq, queue.unwrap_or(0))),
        None => Some((qp.receive_cq, qp.user_index)),
    }
}

/// Returns the message `bytes` for the CQE of `receive`, if the queue pair scatters to CQEs and
/// they fit.
pub(super) fn inline_received(
    qp: &Qp,
    port: &Port<'_>,
    receive: &Receive,
    bytes: &[u8],
) -> Option<Inline> {
    let (cqn, _) = receiver(qp, port, receive.queue)?;
    let data = inline(port, cqn, qp.scatter.responder, bytes)?;
    match receive.arrived {
        Arrived::Plain | Arrived::Unexpected => Some(data),
        // The header is in the second half of the entry.
        Arrived::Matched(_) => {
            let room = port.cqs.get(cqn)?.inline_room();
            (qp.scatter.responder.min(room) == Inline::LARGE).then(|| data.widened())
        }
    }
}

fn done(qp: &Qp, opcode: CqeOpcode, user_index: u32, wqe_opcode: u8, index: u16) -> Cqe64 {
    Cqe64 {
        srqn_user_index: Be32::new(user_index),
        opcode_qpn: Be32::new(u32::from(wqe_opcode) << 24 | qp.known_as()),
        wqe_counter: Be16::new(index),
        op_own: (opcode as u8) << 4,
        ..Cqe64::INITIAL
    }
}

fn failed(
    qp: &Qp,
    opcode: CqeOpcode,
    user_index: u32,
    wqe_opcode: u8,
    index: u16,
    failure: Failure,
) -> Cqe64 {
    let error = ErrorCqe {
        reserved_0: [0; 32],
        srqn_user_index: Be32::new(user_index),
        reserved_36: [0; 16],
        hardware_syndrome: failure.hardware,
        hardware_syndrome_type: 0,
        vendor_syndrome: failure.vendor,
        syndrome: failure.syndrome as u8,
        opcode_qpn: Be32::new(u32::from(wqe_opcode) << 24 | qp.known_as()),
        wqe_counter: Be16::new(index),
        signature: 0,
        op_own: (opcode as u8) << 4 | SOLICITED,
    };
    transmute!(error)
}

/// Completes a send WQE.
/// `result`: the response data, if it is scattered to the CQE.
pub(super) fn sent(qp: &mut Qp, port: &mut Port<'_>, wqe: &Wqe, result: Option<&Inline>) {
    if wqe.signalled {
        let mut cqe = done(qp, CqeOpcode::Requester, user_index(qp), wqe.opcode_bits, wqe.index);
        cqe.byte_count = Be32::new(wqe.local.length() as u32);
        push(port, qp, qp.send_cq, cqe, result);
    }
}

/// Completes a send WQE with an error, signalled or not.
pub(super) fn send_failed(
    qp: &mut Qp,
    port: &mut Port<'_>,
    opcode: u8,
    index: u16,
    failure: Failure,
) {
    port.counters.send_errors.count(failure.syndrome);
    port.counters.flushes_by_command += u64::from(failure == Failure::FLUSHED_BY_COMMAND);
    if !failure.is_flush() {
        qp.engine.stopped_by = failure.hardware;
    }
    let cqe = failed(qp, CqeOpcode::RequesterError, user_index(qp), opcode, index, failure);
    push(port, qp, qp.send_cq, cqe, None);
}

/// Completes a request of the requester with an error.
pub(super) fn request_failed(
    qp: &mut Qp,
    port: &mut Port<'_>,
    mut request: Request,
    failure: Failure,
) {
    match request.step.take().as_deref() {
        Some(Step::Read(receive)) => receive_failed(qp, port, receive, failure),
        Some(Step::Finish) => {}
        None => send_failed(qp, port, request.wqe.opcode_bits, request.wqe.index, failure),
    }
    qp.engine.requester.recycle(request);
}

/// Completes receive WQE `receive`.
pub(super) fn received(qp: &mut Qp, port: &mut Port<'_>, receive: &Receive, arrival: Arrival) {
    let Some((cqn, user_index)) = receiver(qp, port, receive.queue) else { return };
    let mut cqe = done(qp, arrival.opcode, user_index, 0, receive.index);
    cqe.byte_count = Be32::new(arrival.length);
    cqe.immediate = Be32::new(arrival.immediate);
    cqe.op_own |= if arrival.solicited { SOLICITED } else { 0 };
    let mut packet = arrival.datagram.map_or_else(PacketFields::new_zeroed, Datagram::fields);
    if let Some(stride) = receive.stride {
        packet.checksum = Be16::new(stride.index);
        // The length of a write, which is not in the stride, needs all bits.
        if arrival.opcode != CqeOpcode::ResponderWriteImmediate {
            let count = StrideCount::new(arrival.length as u16, stride.first, stride.last);
            cqe.byte_count = Be32::new(count.0);
        }
    }
    cqe.metadata = transmute!(packet);
    let matches = receive.queue.is_some_and(|queue| matches_tags(port, queue));
    match receive.arrived {
        Arrived::Plain if matches => set_tag(&mut cqe, TagEvent::NoTag, 0),
        Arrived::Plain => {}
        Arrived::Unexpected => set_tag(&mut cqe, TagEvent::Unexpected, 0),
        Arrived::Matched(matched) if matched.announced => {
            set_tag(&mut cqe, TagEvent::Expected, matched.index);
        }
        Arrived::Matched(matched) => {
            let event = if matched.by_software {
                TagEvent::ConsumedMessageSoftware
            } else {
                TagEvent::ConsumedMessage
            };
            set_header(&mut cqe, &matched.header);
            set_tag(&mut cqe, event, matched.index);
        }
    }
    push(port, qp, cqn, cqe, arrival.data.as_ref());
}

/// Returns whether shared receive queue `queue` has tag matching.
fn matches_tags(port: &Port<'_>, queue: u32) -> bool {
    port.srqs.get(queue).is_some_and(|srq| srq.tags.is_some())
}

fn set_tag(cqe: &mut Cqe64, event: TagEvent, index: u16) {
    cqe.application = transmute!(Application::tag(event, index));
}

fn set_header(cqe: &mut Cqe64, header: &TagHeader) {
    cqe.metadata[..size_of::<TagHeader>()].copy_from_slice(header.as_bytes());
}

/// Reports that `receive` matched, before its data is complete.
pub(super) fn matched(qp: &mut Qp, port: &mut Port<'_>, receive: &Receive) {
    let Arrived::Matched(matched) = receive.arrived else { return };
    let Some((cqn, user_index)) = receiver(qp, port, receive.queue) else { return };
    let mut cqe = done(qp, CqeOpcode::NoPacket, user_index, 0, 0);
    cqe.op_own |= if matched.solicited { SOLICITED } else { 0 };
    set_header(&mut cqe, &matched.header);
    set_tag(&mut cqe, TagEvent::Consumed, matched.index);
    push(port, qp, cqn, cqe, None);
}

/// Completes a matched rendezvous message, whose `length` bytes were read.
pub(super) fn read(qp: &mut Qp, port: &mut Port<'_>, receive: &Receive, length: u64) {
    let Arrived::Matched(matched) = receive.arrived else { return };
    received(qp, port, receive, Arrival::plain(length as u32, matched.solicited));
}

/// Completes an operation on the list of the queue pair's shared receive queue.
pub(super) fn list_changed(
    qp: &mut Qp,
    port: &mut Port<'_>,
    (event, index): (TagEvent, u16),
    success: bool,
) {
    let queue = qp.srq.and_then(|queue| port.srqs.get(queue));
    let Some(tags) = queue.and_then(|srq| srq.tags.as_ref()) else { return };
    let (cqn, (_, hardware)) = (tags.cqn, tags.counters());
    let mut cqe = done(qp, CqeOpcode::NoPacket, tags.user_index, 0, 0);
    let result = TagListResult {
        success: Be32::new(if success { TagListResult::SUCCESS } else { 0 }),
        hardware_count: Be16::new(hardware),
        ..TagListResult::default()
    };
    cqe.metadata[..size_of::<TagListResult>()].copy_from_slice(result.as_bytes());
    set_tag(&mut cqe, event, index);
    push(port, qp, cqn, cqe, None);
}

/// Completes a receive WQE with an error.
pub(super) fn receive_failed(
    qp: &mut Qp,
    port: &mut Port<'_>,
    receive: &Receive,
    failure: Failure,
) {
    port.counters.receive_errors.count(failure.syndrome);
    if !failure.is_flush() {
        qp.engine.stopped_by = failure.hardware;
    }
    tag::withdraw(port, receive);
    let Some((cqn, user_index)) = receiver(qp, port, receive.queue) else { return };
    if matches!(receive.arrived, Arrived::Matched(_)) {
        return cancelled(qp, port, receive);
    }
    let cqe = failed(qp, CqeOpcode::ResponderError, user_index, 0, receive.index, failure);
    push(port, qp, cqn, cqe, None);
}

/// Completes a message that matched a tag, if `receive` is one, and whose data does not arrive.
pub(super) fn cancelled(qp: &mut Qp, port: &mut Port<'_>, receive: &Receive) {
    let Arrived::Matched(matched) = receive.arrived else { return };
    let Some((cqn, user_index)) = receiver(qp, port, receive.queue) else { return };
    // No receive WQE failed: an error completion would give one back. Like one, it is solicited.
    let mut cqe = done(qp, CqeOpcode::ResponderSend, user_index, 0, 0);
    cqe.op_own |= SOLICITED;
    set_header(&mut cqe, &matched.header);
    set_tag(&mut cqe, TagEvent::Cancelled, matched.index);
    push(port, qp, cqn, cqe, None);
}

/// Moves a queue pair to the error state and flushes it. Has no effect on a queue pair that is being
/// reset.
pub(super) fn fail(qp: &mut Qp, port: &mut Port<'_>) {
    if !matches!(qp.state, QpState::Err | QpState::Rst) {
        qp.state = QpState::Err;
        flush(qp, port);
    }
}

/// Completes each WQE posted to a queue pair in error, once (IBTA 10.3.1). Returns whether there
/// was any.
///
/// Called on entering the error state and on every later pass, to flush what the driver posts
/// later.
pub(super) fn flush(qp: &mut Qp, port: &mut Port<'_>) -> bool {
    let sent = flush_send(qp, port);
    flush_receive(qp, port) || sent
}

/// Returns the failure of the next send WQE that is flushed.
fn flushed(qp: &mut Qp) -> Failure {
    if std::mem::take(&mut qp.engine.commanded) {
        Failure::FLUSHED_BY_COMMAND
    } else {
        Failure::flushed(qp.engine.stopped_by)
    }
}

fn flush_send(qp: &mut Qp, port: &mut Port<'_>) -> bool {
    let mut any = false;
    while let Some(request) = qp.engine.requester.abandon() {
        any = true;
        let failure = flushed(qp);
        request_failed(qp, port, request, failure);
    }
    if qp.sq.entries() == 0 {
        return any;
    }
    let posted = qp.doorbell.follow();
    let mut index = qp.engine.requester.fetched();
    while index != posted {
        any = true;
        let left = posted.wrapping_sub(index);
        let control = fetch::control(&qp.sq, index);
        let blocks = fetch::blocks(control.ds()).max(1);
        // Only the length of a WQE is used, as by adapters; index and queue pair may be wrong.
        let sound = blocks <= left;
        let failure = flushed(qp);
        send_failed(qp, port, control.opcode(), index, failure);
        index = if sound { index.wrapping_add(blocks) } else { posted };
        qp.engine.requester.skip_to(index);
    }
    any
}

fn flush_receive(qp: &mut Qp, port: &mut Port<'_>) -> bool {
    let mut any = false;
    if let Some(receive) = qp.engine.responder.abandon() {
        any = true;
        let failure = Failure::flushed(qp.engine.stopped_by);
        receive_failed(qp, port, &receive, failure);
    }
    // WQEs of a shared receive queue are not flushed; once the queue pair holds none, it may be
    // destroyed.
    if qp.srq.is_some() && qp.dct.is_none() && !qp.engine.responder.tell_last_wqe() {
        port.tell(EventType::LastWqeReached, qp.number);
    }
    if qp.rq.entries() == 0 {
        return any;
    }
    let posted = qp.doorbell.receive();
    let mut left =
        u32::from(posted.wrapping_sub(qp.engine.responder.consumer())).min(qp.rq.entries());
    while left > 0 {
        any = true;
        left -= 1;
        let receive = Receive { index: qp.engine.responder.consume(), ..Receive::default() };
        let failure = Failure::flushed(qp.engine.stopped_by);
        receive_failed(qp, port, &receive, failure);
    }
    qp.engine.responder.skip_to(posted);
    any
}
