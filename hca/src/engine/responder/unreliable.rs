//! The responder of unreliable connections (IBTA 9.8.2.2): a message arrives completely or is
//! dropped silently.

use barewire_layouts::command::qp::QpState;
use barewire_layouts::roce::NakCode;

use super::execute::execute;
use super::{Message, Psn, Refusal, Responder, Taken, fail_receive};
use crate::engine::{Port, Qp};
use crate::wire::packet::Packet;

/// Handles a request packet. An unexpected packet ends the current message; the next message starts
/// at its first packet.
pub(in crate::engine) fn receive_unreliable(qp: &mut Qp, port: &mut Port<'_>, packet: &Packet<'_>) {
    if qp.state == QpState::Err {
        port.counters.wrong_state += 1;
        return;
    }
    let psn = Psn::new(packet.bth.psn());
    let responder = &mut qp.engine.responder;
    let expected = psn == responder.expected;
    port.counters.out_of_sequence += u64::from(!expected);
    if (!expected || packet.opcode.is_first()) && responder.drop_message() {
        port.counters.messages_dropped += 1;
    }
    responder.expected = psn.plus(1);
    if !packet.opcode.is_first() && matches!(responder.message, Message::None) {
        // The rest of a message whose beginning was lost.
        return;
    }
    match execute(qp, port, packet) {
        Ok(()) => {}
        // A request for memory that is not accessible is dropped as well, with its receive WQE
        // kept for the next message.
        Err(
            refusal @ (Refusal::NotReady
            | Refusal::Absent
            | Refusal::Fatal(NakCode::RemoteAccess, _)
            | Refusal::Fatal(_, None)),
        ) => {
            port.counters.out_of_buffer += u64::from(matches!(refusal, Refusal::NotReady));
            qp.engine.responder.drop_message();
            port.counters.messages_dropped += 1;
        }
        Err(Refusal::Silent(failure) | Refusal::Fatal(_, Some(failure))) => {
            fail_receive(qp, port, failure);
        }
    }
}

impl Responder {
    /// Drops the current message; the next message uses its receive WQE. Returns `false` if there
    /// was none.
    fn drop_message(&mut self) -> bool {
        match std::mem::take(&mut self.message) {
            Message::None => {
                self.taken.as_mut().is_some_and(|taken| taken.skipped.take().is_some())
            }
            Message::Write { .. } | Message::Strided { .. } => true,
            Message::Send { receive, .. } => {
                self.taken = Some(Box::new(Taken { receive, skipped: None }));
                true
            }
        }
    }
}
