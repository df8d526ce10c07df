//! The requester: turns send WQEs into request packets, and responses into completions (IBTA 9.7.3,
//! 9.7.5, 9.7.6).
//!
//! Requests are queued from the oldest unacknowledged one (`requests[0]`) to the newest fetched. A
//! cursor moves over them as packets are sent; a retransmission moves it back to the oldest
//! unacknowledged packet (go-back-N). Three PSNs describe the rest: `unacknowledged <= cursor <=
//! sent`, where `sent` is one past the newest ever sent.

mod fault;
mod initiator;
mod receive;
mod rendezvous;
mod streams;
mod transmit;

use std::collections::VecDeque;

use barewire_layouts::command::qp::{QpState, ServiceType};
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::roce::ack_timeout_ns;
use barewire_layouts::wqe::Opcode;

pub(super) use fault::resume;
pub(super) use initiator::{answered, decline, hang_up};
pub(super) use receive::receive;
use rendezvous::Own;
pub(super) use rendezvous::{Step, drop_reads, rendezvous};
pub(super) use transmit::transmit;

use super::failure::Failure;
use super::fetch::{Fence, Wqe};
use super::paging::Fault;
use super::psn::Psn;
use super::{Port, completer};
use crate::engine::Qp;
use crate::object::{Attributes, Inline, StreamLimits};
use initiator::Initiator;
use streams::Streams;

/// Largest number of unacknowledged packets. With 4096 bytes each they fit a UDP socket buffer of
/// default size.
const WINDOW: u32 = 32;
/// Largest number of response packets of one READ request. A longer read is sent as several
/// requests, so that its unacknowledged responses stay within the window. Each piece ends at a
/// multiple of this, so that the opcode of a response can be checked.
const READ_PIECE: u32 = WINDOW / 2;
/// Largest number of packets without an acknowledge request.
const ACK_INTERVAL: u32 = WINDOW / 4;
/// Number of requests to fetch ahead.
const FETCH_AHEAD: usize = 64;
/// Number of requests whose allocations are kept.
const SPARES: usize = 8;
/// The RNR retry count that means 'infinite' (IBTA 9.7.5.2.8).
const RNR_RETRY_INFINITE: u8 = 7;
/// The timeout doubles with each retry up to four times its value, as IBTA 9.7.6.1.3 allows.
const MAX_BACKOFF: u8 = 2;

/// A WQE on its way.
#[derive(Debug, Default)]
pub(super) struct Request {
    pub(super) wqe: Wqe,
    first: Psn,
    /// PSNs that it takes: packets sent, or response packets of a read; 0 if it sends nothing.
    packets: u32,
    /// Responses taken.
    responses: u32,
    /// The response data, if it is scattered to the CQE.
    pub(super) result: Option<Inline>,
    /// Set if it fails as soon as everything before it is complete.
    fault: Option<Failure>,
    /// For a request of the device itself.
    pub(super) step: Option<Box<Step>>,
}

impl Request {
    fn is_atomic(&self) -> bool {
        use Opcode::{AtomicCompareSwap, AtomicFetchAdd, MaskedCompareSwap, MaskedFetchAdd};
        let opcode = self.wqe.opcode;
        matches!(
            opcode,
            Some(AtomicCompareSwap | AtomicFetchAdd | MaskedCompareSwap | MaskedFetchAdd)
        )
    }

    fn is_read(&self) -> bool {
        self.wqe.opcode == Some(Opcode::RdmaRead)
    }

    /// Returns whether the response carries data, so that an acknowledgment alone does not complete
    /// it.
    fn is_answered(&self) -> bool {
        self.is_read() || self.is_atomic()
    }

    fn contains(&self, psn: Psn) -> bool {
        u32::try_from(psn.since(self.first)).is_ok_and(|distance| distance < self.packets)
    }

    /// Returns the payload bytes of packet `number` of a message with path MTU `mtu`.
    fn payload(&self, number: u32, mtu: usize) -> usize {
        let start = u64::from(number) * mtu as u64;
        self.wqe.local.length().saturating_sub(start).min(mtu as u64) as usize
    }
}

/// A queue pair's requester.
#[derive(Debug, Default)]
pub(super) struct Requester {
    requests: VecDeque<Request>,
    spare: Vec<Request>,
    /// Requests of the device itself that are not in `requests` yet.
    own: Option<Box<Own>>,
    /// Send counter of the doorbell record, as last read.
    posted: u16,
    /// WQEBB index of the next WQE to fetch.
    fetched: u16,
    /// An invalid WQE was found: nothing after it is executed.
    stopped: bool,
    /// PSN of the next request to be fetched.
    next: Psn,
    unacknowledged: Psn,
    sent: Psn,
    /// Request, and packet within it, to send next.
    cursor: usize,
    packet: u32,
    /// Packets sent since the last acknowledge request.
    unasked: u32,
    /// Outstanding READ requests and atomics.
    reads: u32,
    /// Retries since the last progress.
    retries: u8,
    rnr_retries: u8,
    /// The cursor was moved back for a gap already; until there is progress, repeating that would
    /// only multiply packets.
    went_back: bool,
    /// The time since which an acknowledgment is outstanding.
    awaited: Option<u64>,
    /// RNR: nothing is sent before this time.
    pause: Option<u64>,
    /// A page fault, until whose end nothing is sent.
    fault: Option<Box<Fault>>,
    /// State of a DC initiator.
    initiator: Option<Box<Initiator>>,
    pub(super) streams: Streams,
}

impl Requester {
    /// Ready to send.
    pub(super) fn start(
        &mut self,
        service: ServiceType,
        streams: StreamLimits,
        attributes: &Attributes,
    ) {
        self.streams = Streams::new(streams);
        self.initiator = (service == ServiceType::Dci).then(Box::default);
        let first = Psn::new(attributes.next_send_psn);
        (self.next, self.unacknowledged, self.sent) = (first, first, first);
    }

    /// Returns the send counter as last read from the doorbell record.
    pub(super) fn posted(&self) -> u16 {
        self.posted
    }

    /// Returns the PSNs of the next packet and of the last acknowledged one.
    pub(super) fn sequence(&self) -> (Psn, Psn) {
        (self.sent, self.unacknowledged.previous())
    }

    /// Records a new send counter.
    pub(super) fn post(&mut self, posted: u16) {
        self.posted = posted;
    }

    /// Returns the index of the oldest WQEBB that is not completed.
    pub(super) fn oldest(&self) -> u16 {
        self.requests.front().map_or(self.fetched, |request| request.wqe.index)
    }

    /// Returns the index of the next WQEBB to fetch.
    pub(super) fn fetched(&self) -> u16 {
        self.fetched
    }

    /// Skips WQEBBs up to `index`.
    pub(super) fn skip_to(&mut self, index: u16) {
        (self.fetched, self.posted) = (index, index);
    }

    /// Removes the oldest request, to be flushed.
    pub(super) fn abandon(&mut self) -> Option<Request> {
        (self.cursor, self.packet, self.awaited, self.pause) = (0, 0, None, None);
        self.fault = None;
        self.requests.pop_front().or_else(|| self.own.as_mut()?.pop())
    }

    /// Keeps a request's allocations for reuse.
    pub(super) fn recycle(&mut self, request: Request) {
        if self.spare.len() < SPARES {
            self.spare.push(request);
        }
    }

    /// Returns the PSN of the packet at the cursor.
    fn cursor_psn(&self) -> Psn {
        self.requests.get(self.cursor).map_or(self.next, |request| request.first.plus(self.packet))
    }

    /// Returns whether another WQE is worth fetching. WQEs after a UMR may use the key that it
    /// changes.
    fn has_room(&self) -> bool {
        let last = self.requests.back();
        self.requests.len() < FETCH_AHEAD
            && !self.stopped
            && last.is_none_or(|last| last.wqe.change.is_none())
    }

    /// Returns whether there is such a WQE.
    fn may_fetch(&self) -> bool {
        self.posted != self.fetched && self.has_room()
    }

    /// Returns the number of PSNs that the packet at the cursor takes, or `None` if it must wait or
    /// there is none.
    fn sendable(&self, attributes: &Attributes) -> Option<u32> {
        let request = self.requests.get(self.cursor)?;
        let elsewhere =
            self.initiator.as_ref().is_some_and(|initiator| !initiator.reaches(&request.wqe));
        if self.is_paused()
            || request.fault.is_some()
            || request.wqe.change.is_some()
            || elsewhere
            || self.is_refused(self.cursor)
        {
            return None;
        }
        let numbers = if request.is_read() {
            (READ_PIECE - self.packet % READ_PIECE).min(request.packets - self.packet)
        } else {
            1
        };
        let in_flight = self.cursor_psn().since(self.unacknowledged) as u32;
        let fenced = self.packet == 0 && self.is_fenced(self.cursor);
        let too_deep = request.is_answered() && self.reads >= attributes.max_initiator_depth;
        (in_flight + numbers <= WINDOW && !fenced && !too_deep).then_some(numbers)
    }

    /// Returns whether the receiver asked for a pause, or pages are absent.
    fn is_paused(&self) -> bool {
        self.pause.is_some() || self.fault.is_some()
    }

    /// Returns whether the request will be flushed, because its stream is in error.
    fn is_refused(&self, at: usize) -> bool {
        self.requests.get(at).is_some_and(|request| self.streams.has_failed(request.wqe.channel))
    }

    /// Returns whether nothing after `request` is executed if it fails: what follows a malformed WQE
    /// cannot be delimited, and only initiators have streams that go on.
    fn ends_with(&self, request: &Request) -> bool {
        self.initiator.is_none() || request.wqe.opcode.is_none()
    }

    /// Begins anew with the oldest request, none of which is in flight.
    fn restart(&mut self) {
        let first = self.requests.front().map_or(self.next, |front| front.first);
        (self.unacknowledged, self.sent) = (first, first);
        (self.retries, self.rnr_retries, self.went_back) = (0, 0, false);
        (self.awaited, self.pause, self.fault) = (None, None, None);
        self.go_back();
    }

    /// Returns whether the request waits for earlier ones.
    fn is_fenced(&self, at: usize) -> bool {
        self.requests.get(at).is_some_and(|request| match request.wqe.fence {
            Fence::None => false,
            Fence::Reads => self.requests.range(..at).any(Request::is_answered),
            Fence::All => at > 0,
        })
    }

    /// Advances the cursor by `numbers` PSNs, and over requests that send nothing.
    fn advance_cursor(&mut self, numbers: u32) {
        self.packet += numbers;
        while let Some(request) = self.requests.get(self.cursor)
            && self.packet >= request.packets
            && request.fault.is_none()
            && request.wqe.change.is_none()
        {
            self.cursor += 1;
            self.packet = 0;
        }
    }

    /// Moves the cursor back to the oldest unacknowledged packet.
    fn go_back(&mut self) {
        let distance =
            self.requests.front().map_or(0, |front| self.unacknowledged.since(front.first));
        (self.cursor, self.packet) = (0, distance as u32);
        self.reads = 0;
        self.unasked = 0;
        self.advance_cursor(0);
    }

    /// Handles a response whose predecessor was lost (IBTA 9.7.5.2.6, implied NAK).
    fn gap(&mut self, port: &mut Port<'_>) {
        if !self.went_back {
            self.went_back = true;
            port.counters.implied_naks += 1;
            self.go_back();
        }
    }
}

/// Completes finished and failed requests at the front.
fn complete(qp: &mut Qp, port: &mut Port<'_>) {
    while qp.state == QpState::Rts
        && let Some(front) = qp.engine.requester.requests.front()
    {
        if qp.engine.requester.is_refused(0) {
            flush(qp, port);
            continue;
        }
        if let Some(failure) = front.fault {
            fail(qp, port, failure);
            continue;
        }
        if front.wqe.change.is_some() {
            return;
        }
        if qp.engine.requester.unacknowledged.since(front.first) < front.packets as i32 {
            return;
        }
        let Some(mut request) = pop(&mut qp.engine.requester) else { return };
        match request.step.take().as_deref() {
            Some(Step::Read(receive)) => {
                completer::read(qp, port, receive, request.wqe.local.length());
            }
            Some(Step::Finish) => {}
            None => completer::sent(qp, port, &request.wqe, request.result.as_ref()),
        }
        qp.engine.requester.recycle(request);
    }
}

/// Removes the oldest request, keeping the cursor on its packet.
fn pop(requester: &mut Requester) -> Option<Request> {
    let request = requester.requests.pop_front()?;
    if requester.cursor == 0 {
        requester.packet = 0;
    } else {
        requester.cursor -= 1;
    }
    Some(request)
}

/// Fails the oldest request with `failure`, and with it its stream or the queue pair.
fn fail(qp: &mut Qp, port: &mut Port<'_>, failure: Failure) {
    let requester = &mut qp.engine.requester;
    let survives = requester.requests.front().is_some_and(|front| !requester.ends_with(front));
    if let Some(request) = pop(requester) {
        let survives = survives && requester.streams.fail(request.wqe.channel);
        completer::request_failed(qp, port, request, failure);
        if survives && qp.state == QpState::Rts {
            return flush(qp, port);
        }
    }
    completer::fail(qp, port);
}

/// Completes the oldest requests that belong to streams in error, and ends the connection: the
/// target expects those of them that were sent.
fn flush(qp: &mut Qp, port: &mut Port<'_>) {
    initiator::hang_up(qp, port);
    while qp.state == QpState::Rts
        && qp.engine.requester.is_refused(0)
        && let Some(request) = pop(&mut qp.engine.requester)
    {
        completer::request_failed(qp, port, request, Syndrome::WorkRequestFlushed.into());
    }
    qp.engine.requester.restart();
}

/// Returns the next deadline: the end of a pause, the acknowledgment timeout, or the end of an idle
/// connection.
pub(super) fn deadline(qp: &Qp) -> Option<u64> {
    let requester = &qp.engine.requester;
    let timeout = ack_timeout_ns(qp.attributes.ack_timeout)
        .zip(requester.awaited)
        .filter(|_| requester.fault.is_none())
        .map(|(timeout, since)| since + (timeout << requester.retries.min(MAX_BACKOFF)));
    let idle = requester.initiator.as_ref().and_then(|initiator| initiator.idle_until());
    requester.pause.or(timeout).or(idle).filter(|_| qp.state == QpState::Rts)
}

/// Handles an expired deadline. Returns `false` if none has expired.
pub(super) fn expire(qp: &mut Qp, port: &mut Port<'_>) -> bool {
    if deadline(qp).is_none_or(|deadline| deadline > port.now) {
        return false;
    }
    let requester = &mut qp.engine.requester;
    if requester.pause.take().is_some() {
        return true;
    }
    if requester.awaited.is_none() {
        initiator::close(qp, port);
        return true;
    }
    port.counters.timeouts += 1;
    if initiator::give_up(requester, qp.attributes.retry_count) {
        return true;
    }
    if requester.retries >= qp.attributes.retry_count {
        fail(qp, port, Syndrome::TransportRetryExceeded.into());
    } else {
        requester.retries += 1;
        requester.awaited = Some(port.now);
        requester.went_back = false;
        if !initiator::repeat(qp, port) {
            qp.engine.requester.go_back();
        }
    }
    true
}
