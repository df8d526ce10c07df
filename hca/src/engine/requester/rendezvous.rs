//! Requests of the device itself: the read of a rendezvous message, and the end of the rendezvous.

use std::collections::VecDeque;

use barewire_layouts::tag::{RendezvousHeader, TagHeader, TagOpcode};
use barewire_layouts::wqe::Opcode;
use zerocopy::IntoBytes;

use super::{Request, Requester};
use crate::engine::fetch::{Fence, Receive, Wqe};
use crate::engine::tag::Arrived;
use crate::engine::{Port, Qp, completer};
use crate::object::Attributes;

/// Largest number of requests of the device itself that wait to be queued. While it is reached,
/// software reads the data of further messages.
const MAX_OWN: usize = 64;

/// The part of a rendezvous that a request is.
#[derive(Debug)]
pub(in crate::engine) enum Step {
    /// The read, whose result completes the matched message.
    Read(Receive),
    /// The message to the sender that its data was read.
    Finish,
}

/// Reads the data of the matched message `receive`, and then sends the end of the rendezvous.
pub(in crate::engine) fn rendezvous(qp: &mut Qp, mut receive: Receive, data: RendezvousHeader) {
    let Arrived::Matched(matched) = receive.arrived else { return };
    let length = data.length.get();
    let mut read = Wqe {
        opcode: Some(Opcode::RdmaRead),
        opcode_bits: Opcode::RdmaRead as u8,
        remote: data.address.get(),
        rkey: data.rkey.get(),
        ..Wqe::default()
    };
    receive.local.cut(u64::from(length));
    std::mem::swap(&mut read.local, &mut receive.local);
    let mut finish = Wqe {
        opcode: Some(Opcode::Send),
        opcode_bits: Opcode::Send as u8,
        fence: Fence::Reads,
        ..Wqe::default()
    };
    let header = TagHeader { opcode: TagOpcode::Finished as u8, ..matched.header };
    finish.local.push_inline(header.as_bytes());
    qp.engine.requester.own.get_or_insert_default().0.extend([
        Request { wqe: read, step: Some(Box::new(Step::Read(receive))), ..Request::default() },
        Request { wqe: finish, step: Some(Box::new(Step::Finish)), ..Request::default() },
    ]);
}

/// Ends the requests. Only reads of matched messages have a completion.
pub(in crate::engine) fn drop_reads(qp: &mut Qp, port: &mut Port<'_>) {
    while let Some(mut request) = qp.engine.requester.abandon() {
        if let Some(Step::Read(receive)) = request.step.take().as_deref() {
            completer::cancelled(qp, port, receive);
        }
    }
}

/// Requests of the device itself, in order.
#[derive(Debug, Default)]
pub(super) struct Own(VecDeque<Request>);

impl Own {
    pub(super) fn pop(&mut self) -> Option<Request> {
        self.0.pop_front()
    }
}

impl Requester {
    /// Returns whether the device can begin another rendezvous.
    pub(in crate::engine) fn offers_rendezvous(&self) -> bool {
        self.own.as_ref().is_none_or(|own| own.0.len() < MAX_OWN)
    }

    /// Takes the next request of the device itself into the queue. Returns `false` if there is
    /// none.
    pub(super) fn take_own(&mut self, attributes: &Attributes) -> bool {
        let Some(mut request) = self.own.as_mut().and_then(|own| own.pop()) else { return false };
        request.wqe.index = self.fetched;
        request.first = self.next;
        request.packets =
            (request.wqe.local.length().div_ceil(attributes.mtu as u64) as u32).max(1);
        self.next = self.next.plus(request.packets);
        self.requests.push_back(request);
        true
    }
}
