//! Page faults of the responder: at the buffers of receives, and at memory that requests name.

use barewire_layouts::command::qp::{QpState, ServiceType};
use barewire_layouts::roce::NakCode;

use super::respond::refuse_rest;
use super::{Responder, Taken, end, fail_receive};
use crate::engine::failure::Failure;
use crate::engine::fetch::Receive;
use crate::engine::paging::Fault;
use crate::engine::{Port, Qp};

impl Responder {
    /// Returns whether the next packet has waited for pages and has its receive WQE.
    pub(super) fn holds(&self) -> bool {
        self.taken.as_ref().is_some_and(|taken| taken.skipped.is_some())
    }

    /// Returns whether it waits for pages.
    pub(in crate::engine) fn waits(&self) -> bool {
        self.fault.is_some()
    }

    /// Gives a receive WQE to the next message.
    pub(in crate::engine) fn put_back(&mut self, receive: Receive) {
        self.taken = Some(Box::new(Taken { receive, skipped: None }));
    }

    /// Returns the page fault that it waits for.
    pub(in crate::engine) fn fault(&self) -> Option<&Fault> {
        self.fault.as_deref()
    }

    /// Waits for a page fault. Returns false if there is none.
    pub(in crate::engine) fn wait_for(&mut self, fault: Option<Box<Fault>>) -> bool {
        self.fault = fault;
        self.fault.is_some()
    }
}

/// Ends the wait. The peer repeats its packet, and responses go on; or the connection ends.
pub(in crate::engine) fn resume(qp: &mut Qp, port: &mut Port<'_>, failed: bool) {
    let responder = &mut qp.engine.responder;
    let Some(fault) = responder.fault.take() else { return };
    if !failed || !matches!(qp.state, QpState::Rtr | QpState::Rts) {
        return;
    }
    if matches!(qp.service, ServiceType::Ud | ServiceType::Uc) {
        // The message was dropped.
        if !fault.is_remote() {
            fail_receive(qp, port, Failure::UNWRITABLE);
        }
    } else if fault.psn != responder.expected {
        refuse_rest(qp, port, fault.psn);
    } else if fault.is_remote() {
        end(qp, port, fault.psn, NakCode::RemoteAccess, None);
    } else {
        let failure = Some(Failure::UNWRITABLE);
        end(qp, port, fault.psn, NakCode::RemoteOperational, failure);
    }
}
