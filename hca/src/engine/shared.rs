//! Fetching of receive WQEs from shared receive queues.

use barewire_layouts::eqe::EventType;
use barewire_layouts::roce::NakCode;

use super::fetch::{self, Receive};
use super::report::Finding;
use super::responder::Refusal;
use super::tag::Arrived;
use super::{Port, Qp};

/// Takes the next WQE of shared receive queue `number` into `receive`. An invalid one is taken too;
/// then `receive` has only its index.
pub(super) fn take(
    qp: &Qp,
    port: &mut Port<'_>,
    number: u32,
    receive: &mut Receive,
) -> Result<(), Refusal> {
    // A shared receive queue cannot be destroyed while a queue pair uses it.
    let Some(srq) = port.srqs.get_mut(number) else { return Err(Refusal::NotReady) };
    let available = u32::from(srq.available());
    if available == 0 || srq.failed {
        return Err(Refusal::NotReady);
    }
    let entries = srq.ring.entries();
    let index = srq.take();
    receive.index = index;
    receive.queue = Some(number);
    receive.arrived = Arrived::Plain;
    receive.pd = srq.pd;
    receive.local.clear();
    let checked = if available > entries {
        Err(Finding::Overflow { queue: "shared receive", got: available, wanted: entries })
    } else {
        fetch::receive(&srq.ring, index, srq.header_bytes(), receive)
    };
    if srq.passed_limit() {
        port.tell(EventType::SrqLimit, number);
    }
    checked.map_err(|finding| {
        port.report(qp.known_as(), index, finding);
        Refusal::Fatal(NakCode::RemoteOperational, Some(fetch::BAD_WQE))
    })
}
