//! The responder: executes requests in order, once, and responds to them (IBTA 9.7.4, 9.7.5.1,
//! 9.7.7).
//!
//! All responses are in one queue, in the order of the requests, so that no acknowledgment
//! overtakes the response of an earlier read, which the requester would consider lost.

mod execute;
mod fault;
mod respond;
mod send;
mod unreliable;

use std::collections::VecDeque;

use barewire_layouts::command::qp::QpState;
use barewire_layouts::roce::{AethSyndrome, BthOpcode, Headers, MASK_24, NakCode};

pub(super) use execute::take_receive;
pub(super) use fault::resume;
pub(super) use respond::{acknowledge_owed, respond};
pub(super) use unreliable::receive_unreliable;

use super::failure::Failure;
use super::fetch::Receive;
use super::gather::allow_absent;
use super::paging::Fault;
use super::psn::Psn;
use super::{Port, completer, tag};
use crate::engine::Qp;
use crate::memory::{Access, User};
use crate::object::Attributes;
use crate::wire::packet::Packet;
use execute::{execute, requester};

/// Largest number of queued repeated reads, in multiples of the queue pair's depth; a further one
/// is dropped and will be repeated.
const REPEATED_DEPTH: usize = 2;

/// Bytes of reads that a queue pair keeps at most.
const KEPT: usize = 16 << 20;

/// A partly received message.
#[derive(Debug, Default)]
enum Message {
    /// None.
    #[default]
    None,
    /// A send, `done` bytes of which are in the receive WQE's buffers.
    Send { receive: Receive, done: u64 },
    /// A send to a striding shared receive queue, whose packets have completed one by one. The
    /// next one takes a stride.
    Strided { queue: u32, arrived: tag::Arrived },
    /// An RDMA write of `length` bytes to `address`, `done` of which are written.
    Write { address: u64, rkey: u32, length: u64, done: u64 },
}

/// A receive WQE for the next message, or for a packet that waits for pages.
#[derive(Debug)]
struct Taken {
    receive: Receive,
    /// Of a packet that waits: its bytes that are not for the WQE.
    skipped: Option<usize>,
}

/// A response to the requester.
#[derive(Debug)]
enum Response {
    /// Everything up to a PSN is complete.
    Ack { psn: Psn, msn: u32 },
    /// A request was refused or must be repeated.
    Nak { psn: Psn, msn: u32, syndrome: AethSyndrome },
    /// An atomic was executed, now or, for a `repeat`, before.
    Atomic { psn: Psn, msn: u32, original: u64, repeat: bool },
    /// A read.
    Read(Read),
}

/// A read of `length` bytes, of which `sent` packets were sent.
#[derive(Debug)]
struct Read {
    psn: Psn,
    msn: u32,
    pd: u32,
    address: u64,
    rkey: u32,
    length: u32,
    sent: u32,
    repeat: bool,
    /// The last bytes, if a later request may have changed the memory since the read was executed.
    kept: Option<Box<[u8]>>,
}

impl Read {
    /// Returns the number of bytes that were sent.
    fn done(&self, mtu: usize) -> u64 {
        u64::from(self.sent) * mtu as u64
    }

    /// Returns the number of bytes that are kept, or `None` if they have to be before a request
    /// changes memory.
    // Not inlined: the compiler would load the fields of every response, before it tests which are
    // reads, and valgrind reports branches on the uninitialised bytes of the others.
    #[inline(never)]
    fn kept(&self) -> Option<usize> {
        match &self.kept {
            Some(kept) => Some(kept.len()),
            None => self.repeat.then_some(0),
        }
    }
}

/// The result of an atomic, kept in case the response is lost.
#[derive(Clone, Copy, Debug)]
struct Executed {
    psn: Psn,
    original: u64,
}

/// Why a request was not executed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refusal {
    /// No receive WQE: the requester must wait.
    NotReady,
    /// Pages are absent: the requester must wait.
    Absent,
    /// The connection ends with this NAK. If there is a failure, the receive WQE in use completes
    /// with it.
    Fatal(NakCode, Option<Failure>),
    /// The connection ends without a NAK, and the receive WQE in use completes with the failure.
    Silent(Failure),
}

const INVALID: Refusal = Refusal::Fatal(NakCode::InvalidRequest, None);
const ACCESS: Refusal = Refusal::Fatal(NakCode::RemoteAccess, None);

/// A queue pair's responder.
#[derive(Debug, Default)]
pub(super) struct Responder {
    expected: Psn,
    /// Messages completed, 24 bits.
    msn: u32,
    /// The gap, or the missing receive WQE, was already reported by a NAK.
    nak_sent: bool,
    message: Message,
    responses: VecDeque<Response>,
    executed: VecDeque<Executed>,
    /// Receive WQEs taken, modulo 2^16.
    consumer: u16,
    /// A receive WQE that was taken for an incomplete message; the next message uses it.
    taken: Option<Box<Taken>>,
    /// The page fault that a packet or a response waits for.
    fault: Option<Box<Fault>>,
    /// The event that a queue pair in error holds no more WQEs of its shared receive queue was
    /// sent.
    last_wqe_told: bool,
    /// Buffers of the last receive WQE.
    spare: Receive,
    /// The NAK that ended the connection, repeated if it gets lost.
    fatal: Option<(Psn, NakCode)>,
}

impl Responder {
    /// Ready to receive.
    pub(super) fn start(&mut self, attributes: &Attributes) {
        self.expected = Psn::new(attributes.next_receive_psn);
    }

    /// Returns the expected PSN and the number of messages received.
    pub(super) fn sequence(&self) -> (Psn, u32) {
        (self.expected, self.msn)
    }

    /// Returns the index of the next receive WQE.
    pub(super) fn consumer(&self) -> u16 {
        self.consumer
    }

    /// Takes a receive WQE and returns its index.
    pub(super) fn consume(&mut self) -> u16 {
        let index = self.consumer;
        self.consumer = index.wrapping_add(1);
        index
    }

    /// Returns whether the last-WQE event was sent before, and records that it is sent now.
    pub(super) fn tell_last_wqe(&mut self) -> bool {
        std::mem::replace(&mut self.last_wqe_told, true)
    }

    /// Skips receive WQEs up to `index`.
    pub(super) fn skip_to(&mut self, index: u16) {
        self.consumer = index;
    }

    /// Ends the current message and returns its receive WQE, if it took one.
    pub(super) fn abandon(&mut self) -> Option<Receive> {
        match std::mem::take(&mut self.message) {
            Message::Send { receive, .. } => Some(receive),
            Message::None | Message::Write { .. } | Message::Strided { .. } => {
                self.taken.take().map(|taken| taken.receive)
            }
        }
    }

    /// Keeps a receive WQE's allocations for reuse.
    pub(super) fn keep(&mut self, receive: Receive) {
        self.spare = receive;
    }

    /// Returns a receive WQE that is not in use.
    pub(super) fn spare(&mut self) -> Receive {
        std::mem::take(&mut self.spare)
    }

    /// Returns the number of reads and atomics without a response. Repeated ones do not count: the
    /// network may have duplicated them.
    fn depth(&self) -> usize {
        let answers = |response: &&Response| {
            matches!(
                response,
                Response::Read(Read { repeat: false, .. }) | Response::Atomic { repeat: false, .. }
            )
        };
        self.responses.iter().filter(answers).count()
    }

    /// Acknowledges everything executed so far, merging with a queued acknowledgment.
    fn acknowledge(&mut self) {
        let ack = Response::Ack { psn: self.expected.previous(), msn: self.msn };
        match self.responses.back_mut() {
            Some(last @ Response::Ack { .. }) => *last = ack,
            _ => self.responses.push_back(ack),
        }
    }

    fn refuse(&mut self, psn: Psn, syndrome: AethSyndrome) {
        self.responses.push_back(Response::Nak { psn, msn: self.msn, syndrome });
    }

    /// Refuses packet `psn` for now.
    fn postpone(&mut self, psn: Psn, timer: u8) {
        self.nak_sent = true;
        let told = |response: &Response| {
            matches!(response, Response::Nak { psn: last, syndrome: AethSyndrome::RnrNak(_), .. }
                if *last == psn)
        };
        // Responses before it may wait for pages, while the peer repeats the packet.
        if !self.responses.back().is_some_and(told) {
            self.refuse(psn, AethSyndrome::RnrNak(timer));
        }
    }

    fn message_done(&mut self) {
        self.msn = (self.msn + 1) & MASK_24;
    }
}

/// Ends the current message. Only one that matched a tag has a completion.
pub(super) fn drop_receive(qp: &mut Qp, port: &mut Port<'_>) {
    if let Some(receive) = qp.engine.responder.abandon() {
        tag::withdraw(port, &receive);
        completer::cancelled(qp, port, &receive);
    }
}

/// Handles a request packet.
pub(super) fn receive(qp: &mut Qp, port: &mut Port<'_>, packet: &Packet<'_>) {
    let psn = Psn::new(packet.bth.psn());
    let responder = &mut qp.engine.responder;
    if qp.state == QpState::Err || responder.fatal.is_some() {
        // Repeat the NAK that ended the connection: without it the peer only sees a timeout.
        match responder.fatal {
            Some((last, code)) if psn.since(last) <= 0 && responder.responses.is_empty() => {
                responder.refuse(last, AethSyndrome::Nak(code));
            }
            _ => port.counters.wrong_state += 1,
        }
        return;
    }
    let ahead = psn.since(responder.expected);
    if ahead < 0 {
        port.counters.duplicates += 1;
        return repeat(qp, port, packet, psn);
    }
    if ahead > 0 {
        port.counters.out_of_sequence += 1;
        if !responder.nak_sent {
            responder.nak_sent = true;
            responder.refuse(responder.expected, AethSyndrome::Nak(NakCode::PsnSequence));
        }
        return;
    }
    if responder.fault.as_ref().is_some_and(|fault| fault.psn == psn) {
        return responder.postpone(psn, qp.attributes.min_rnr_nak);
    }
    // An atomic never overtakes a read (IBTA 9.5).
    let may_change =
        packet.opcode.is_atomic() || packet.opcode != BthOpcode::ReadRequest && !port.late_reads;
    if may_change && !keep_reads(qp, port) {
        port.counters.postponed_behind_reads += 1;
        return;
    }
    match execute(qp, port, packet) {
        Ok(()) => {
            let responder = &mut qp.engine.responder;
            responder.nak_sent = false;
            let answered = Headers::ATOMIC_ETH.union(Headers::MASKED_ATOMIC_ETH);
            if packet.headers.intersects(answered) || packet.opcode == BthOpcode::ReadRequest {
                return;
            }
            responder.expected = psn.plus(1);
            if packet.bth.ack_request() {
                responder.acknowledge();
            }
        }
        Err(Refusal::NotReady) => {
            port.counters.out_of_buffer += 1;
            qp.engine.responder.postpone(psn, qp.attributes.min_rnr_nak);
        }
        Err(Refusal::Absent) => qp.engine.responder.postpone(psn, qp.attributes.min_rnr_nak),
        Err(Refusal::Fatal(code, failure)) => end(qp, port, psn, code, failure),
        Err(Refusal::Silent(failure)) => fail_receive(qp, port, failure),
    }
}

/// Completes the receive WQE in use with `failure`, and fails the queue pair.
fn fail_receive(qp: &mut Qp, port: &mut Port<'_>, failure: Failure) {
    if let Some(receive) = qp.engine.responder.abandon() {
        completer::receive_failed(qp, port, &receive, failure);
    }
    completer::fail(qp, port);
}

/// Ends the connection with a NAK of packet `psn`. The receive WQE in use completes with
/// `failure`, if there is one.
fn end(qp: &mut Qp, port: &mut Port<'_>, psn: Psn, code: NakCode, failure: Option<Failure>) {
    qp.engine.responder.refuse(psn, AethSyndrome::Nak(code));
    qp.engine.responder.fatal = Some((psn, code));
    port.tell_refusal(qp, code);
    if let Some(failure) = failure
        && let Some(receive) = qp.engine.responder.abandon()
    {
        completer::receive_failed(qp, port, &receive, failure);
    }
    fail_behind_nak(qp, port);
}

/// Fails a queue pair that sends a NAK. The requester of one that is connected to itself does so
/// when it receives the NAK, whose request it reports first.
fn fail_behind_nak(qp: &mut Qp, port: &mut Port<'_>) {
    if (qp.attributes.remote_address, qp.attributes.remote_qpn) != (port.address, qp.number) {
        completer::fail(qp, port);
    }
}

/// Copies the bytes of earlier reads that are not sent yet, before a request changes memory. Returns
/// `false` if they are too many or not accessible: the request is dropped, and the peer repeats it.
fn keep_reads(qp: &mut Qp, port: &mut Port<'_>) -> bool {
    let (user, mtu) = (qp.user(), qp.attributes.mtu);
    let responses = &mut qp.engine.responder.responses;
    let kept = |response: &Response| match response {
        Response::Read(read) => read.kept().unwrap_or(0),
        _ => 0,
    };
    let mut room = KEPT.saturating_sub(responses.iter().map(kept).sum());
    for response in responses {
        let Response::Read(read) = response else { continue };
        if read.kept().is_some() {
            continue;
        }
        let done = read.done(mtu);
        let length = u64::from(read.length) - done;
        let user = User { pd: read.pd, ..user };
        let address = read.address.wrapping_add(done);
        let range = port.memory.translate(read.rkey, user, address, length, Access::REMOTE_READ);
        let (Ok(range), true) = (range, length <= room as u64) else { return false };
        let mut bytes = vec![0; length as usize].into_boxed_slice();
        range.copy_to(&mut bytes);
        room -= bytes.len();
        read.kept = Some(bytes);
    }
    true
}

/// Handles a duplicate request: its response was lost, or the network duplicated it (IBTA
/// 9.7.5.1.3, 9.7.5.1.5).
fn repeat(qp: &mut Qp, port: &mut Port<'_>, packet: &Packet<'_>, psn: Psn) {
    let depth = qp.attributes.max_responder_depth.max(1) as usize;
    let user = requester(qp, port, packet);
    let responder = &mut qp.engine.responder;
    match packet.opcode {
        BthOpcode::ReadRequest => {
            let (address, rkey, length) =
                (packet.reth.address.get(), packet.reth.rkey.get(), packet.reth.length.get());
            let allowed = qp.attributes.remote_read
                && allow_absent(port.memory.translate(
                    rkey,
                    user,
                    address,
                    u64::from(length),
                    Access::REMOTE_READ,
                ))
                .is_ok();
            if allowed && responder.responses.len() < REPEATED_DEPTH * depth {
                let msn = responder.msn;
                responder.responses.push_back(Response::Read(Read {
                    psn,
                    msn,
                    pd: user.pd,
                    address,
                    rkey,
                    length,
                    sent: 0,
                    repeat: true,
                    kept: None,
                }));
            }
        }
        BthOpcode::CompareSwap | BthOpcode::FetchAdd => {
            // Never execute it again: without a stored result, the response is still on its way.
            let stored =
                responder.executed.iter().rev().find(|executed| executed.psn == psn).copied();
            if let Some(Executed { original, .. }) = stored
                && responder.responses.len() < REPEATED_DEPTH * depth
            {
                port.counters.atomics_replayed += 1;
                let msn = responder.msn;
                responder.responses.push_back(Response::Atomic {
                    psn,
                    msn,
                    original,
                    repeat: true,
                });
            }
        }
        _ => responder.acknowledge(),
    }
}
