//! Page faults of the requester: at memory that it sends from, and at memory that responses are
//! written to.

use super::{Request, Requester};
use crate::engine::failure::Failure;
use crate::engine::paging::Fault;
use crate::engine::psn::Psn;
use crate::engine::{Port, Qp};
use crate::memory::{AbsentPages, Access, User};

/// Waits for the memory from which packet `number` of request `at` is sent. Returns false if the
/// access fails.
pub(super) fn at_packet(qp: &mut Qp, port: &mut Port<'_>, at: usize, number: u32) -> bool {
    let (mtu, user) = (qp.attributes.mtu, qp.user());
    let request = &qp.engine.requester.requests[at];
    let done = u64::from(number) * mtu as u64;
    let pages = request.wqe.local.absent(port.memory, user, done, Access::LOCAL_READ);
    let (index, psn) = (request.wqe.index, request.first.plus(number));
    let packet = request.payload(number, mtu);
    let fault = port.requester_fault(qp, (index, pages, psn), false, (done, packet));
    let requester = &mut qp.engine.requester;
    requester.fault = fault;
    if requester.fault.is_some() {
        // The packet was not sent.
        (requester.cursor, requester.packet) = (at, number);
        requester.unasked = requester.unasked.saturating_sub(1);
    }
    requester.fault.is_some()
}

/// Waits for the memory to which `bytes` of response `psn` to the oldest request are written from
/// `offset` on. The request is then sent again. Returns false if the access fails.
pub(super) fn at_response(
    qp: &mut Qp,
    port: &mut Port<'_>,
    user: User,
    psn: Psn,
    (offset, bytes): (u64, usize),
) -> bool {
    let Some(request) = qp.engine.requester.requests.front() else { return false };
    let pages = request.wqe.local.absent(port.memory, user, offset, Access::LOCAL_WRITE);
    let index = request.wqe.index;
    let fault = port.requester_fault(qp, (index, pages, psn), true, (offset, bytes));
    let requester = &mut qp.engine.requester;
    requester.fault = fault;
    requester.went_back = true;
    requester.go_back();
    requester.fault.is_some()
}

/// Waits for the list of a change at the cursor. Returns false if the access fails.
pub(super) fn at_list(qp: &mut Qp, port: &mut Port<'_>, pages: Vec<AbsentPages>) -> bool {
    let requester = &qp.engine.requester;
    let Some(request) = requester.requests.get(requester.cursor) else { return false };
    let (index, psn) = (request.wqe.index, request.first);
    let fault = port.requester_fault(qp, (index, pages, psn), false, (0, 0));
    qp.engine.requester.fault = fault;
    qp.engine.requester.fault.is_some()
}

/// Ends the wait: the packet is sent, or its request fails.
pub(in crate::engine) fn resume(qp: &mut Qp, now: u64, failed: bool) {
    let requester = &mut qp.engine.requester;
    let Some(fault) = requester.fault.take() else { return };
    requester.awaited = (requester.sent != requester.unacknowledged).then_some(now);
    requester.went_back = false;
    let waits = |request: &Request| request.contains(fault.psn) || request.wqe.change.is_some();
    if failed && let Some(at) = requester.requests.iter().position(waits) {
        let is_answered = requester.requests[at].is_answered();
        requester.spoil(at, if is_answered { Failure::UNWRITABLE } else { Failure::UNREADABLE });
    }
}

impl Requester {
    /// Returns the page fault that it waits for.
    pub(in crate::engine) fn fault(&self) -> Option<&Fault> {
        self.fault.as_deref()
    }

    /// Lets request `at` fail once everything before it is complete. Packets that were sent before
    /// must be acknowledged first.
    pub(super) fn spoil(&mut self, at: usize, failure: Failure) {
        self.requests[at].fault = Some(failure);
        self.requests[at].wqe.change = None;
        self.stopped = self.ends_with(&self.requests[at]);
        self.go_back();
    }
}
