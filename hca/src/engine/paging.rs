//! Page faults: work at absent pages waits until the kernel, which gets an event, has brought them
//! in and answers by PAGE_FAULT_RESUME.
//!
//! A requester sends nothing meanwhile, and a responder refuses the request that needs the pages
//! by RNR NAKs. Responses of a read that has begun are withheld, so that the peer may time out. The
//! token of a fault is the number of its queue pair or responder context, each half of which waits
//! for one fault at most.

use barewire_layouts::eqe::Eqe;
use barewire_layouts::page_fault::{FaultKind, PageFault};

use super::fetch::Receive;
use super::psn::Psn;
use super::{
    Context, Engine, Port, Qp, Tally, close_blocks, mark_ready, requester, responder, split,
};
use crate::command::CommandSyndrome;
use crate::memory::{AbsentPages, Access, Part, User};

/// What a requester or responder waits for.
#[derive(Debug)]
pub(super) struct Fault {
    event: PageFault,
    pages: Vec<AbsentPages>,
    /// The packet that waits.
    pub(super) psn: Psn,
}

impl Fault {
    /// Returns whether the memory is that of a peer's request.
    pub(super) fn is_remote(&self) -> bool {
        matches!(self.event, PageFault::Rdma { .. })
    }
}

/// The memory that a request names, and what is to be done to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) user: User,
    pub(super) need: Access,
    pub(super) rkey: u32,
    pub(super) address: u64,
    pub(super) length: u64,
    /// Bytes of it that are done, and those of the packet that waits.
    pub(super) done: u64,
    pub(super) packet: usize,
}

impl Port<'_> {
    /// Reports a fault. `None` if no event queue has room for it: the access then fails.
    fn report_fault(
        &mut self,
        event: PageFault,
        pages: Vec<AbsentPages>,
        psn: Psn,
    ) -> Option<Box<Fault>> {
        self.counters.page_faults += 1;
        let fault = Fault { event, pages, psn };
        self.events.page_fault(Eqe::page_fault(event)).then(|| Box::new(fault))
    }

    /// Reports a fault of `qp`'s requester at WQE `index`.
    pub(super) fn requester_fault(
        &mut self,
        qp: &Qp,
        (index, pages, psn): (u16, Vec<AbsentPages>, Psn),
        write: bool,
        (done, packet): (u64, usize),
    ) -> Option<Box<Fault>> {
        let mut kind = FaultKind::REQUESTER;
        kind.set(FaultKind::WRITE, write);
        let (committed, packet) = (done as u32, packet as u16);
        let (token, queue) = (qp.number, qp.number);
        let event = PageFault::Wqe { kind, committed, index, packet, token, queue };
        self.report_fault(event, pages, psn)
    }
}

/// Reports a fault at the buffers of `receive`, `done` bytes of which are written, unless the
/// responder waits for one already. Returns false if the access fails.
pub(super) fn at_receive(
    qp: &mut Qp,
    port: &mut Port<'_>,
    receive: &Receive,
    (done, packet): (u64, usize),
) -> bool {
    if qp.engine.responder.waits() {
        return true;
    }
    let user = qp.receiver(receive.pd);
    let pages = receive.local.absent(port.memory, user, done, Access::LOCAL_WRITE);
    let (kind, queue) = match receive.queue {
        Some(number) => (FaultKind::empty(), number),
        None => (FaultKind::WRITE, qp.known_as()),
    };
    let (committed, packet) = (done as u32, packet as u16);
    let (index, token) = (receive.index, qp.number);
    let event = PageFault::Wqe { kind, committed, index, packet, token, queue };
    let psn = qp.engine.responder.sequence().0;
    let fault = port.report_fault(event, pages, psn);
    qp.engine.responder.wait_for(fault)
}

/// Reports a fault at memory that packet `psn` names or answers, unless the responder waits for
/// one already. Returns false if the access fails.
pub(super) fn at_remote(qp: &mut Qp, port: &mut Port<'_>, operation: Operation, psn: Psn) -> bool {
    if qp.engine.responder.waits() {
        return true;
    }
    let Operation { user, need, rkey, address, length, done, packet } = operation;
    let (from, left) = (address.wrapping_add(done), length.saturating_sub(done));
    let rest = Part { key: rkey, address: from, length: left };
    let pages = port.memory.absent(user, &[rest], need);
    let mut kind = FaultKind::RDMA;
    kind.set(FaultKind::WRITE, need.intersects(Access::WRITES));
    let (committed, packet, length) = (done as u32, packet as u16, length as u32);
    let token = qp.number;
    let event = PageFault::Rdma { kind, committed, rkey, packet, length, address, token };
    let fault = port.report_fault(event, pages, psn);
    qp.engine.responder.wait_for(fault)
}

impl Engine {
    /// Ends the wait of the work with this kind of fault, queue and token.
    pub(crate) fn resume(
        &mut self,
        context: &mut Context<'_>,
        (kind, queue, token): (FaultKind, u32, u32),
        failed: bool,
    ) -> Result<(), CommandSyndrome> {
        let tally = Tally::begin(context, token);
        let (qp, mut port) =
            split(context, &mut self.built, token).ok_or(CommandSyndrome::UnknownPageFault)?;
        let (known, expected, _) =
            fault(qp, kind).ok_or(CommandSyndrome::UnknownPageFault)?.event.resumed_by();
        if known != kind {
            return Err(CommandSyndrome::PageFaultType);
        }
        if expected != queue {
            return Err(CommandSyndrome::PageFaultQueue);
        }
        if kind.contains(FaultKind::REQUESTER) {
            requester::resume(qp, port.now, failed);
        } else {
            responder::resume(qp, &mut port, failed);
        }
        mark_ready(&mut self.ready, qp);
        tally.end(context);
        self.note_failure(context, token);
        close_blocks(context);
        context.flush();
        Ok(())
    }
}

/// Returns the fault that the requester or the responder of `qp` waits for.
fn fault(qp: &Qp, kind: FaultKind) -> Option<&Fault> {
    if kind.contains(FaultKind::REQUESTER) {
        qp.engine.requester.fault()
    } else {
        qp.engine.responder.fault()
    }
}

impl Context<'_> {
    /// Returns the absent pages of a fault; none if nothing waits for it.
    pub(crate) fn absent_pages(&self, event: &PageFault) -> Vec<AbsentPages> {
        let (kind, _, token) = event.resumed_by();
        let fault = self.objects.queue_pair(token).and_then(|qp| fault(qp, kind));
        fault.map(|fault| fault.pages.clone()).unwrap_or_default()
    }
}
