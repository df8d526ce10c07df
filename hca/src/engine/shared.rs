//! Fetching of receive WQEs from shared receive queues.

use barewire_layouts::cqe::Syndrome;
use barewire_layouts::eqe::EventType;
use barewire_layouts::roce::NakCode;

use super::fetch::{self, Receive, Stride};
use super::report::Finding;
use super::responder::Refusal;
use super::tag::Arrived;
use super::{Port, Qp};
use crate::object::Taken;

/// Takes the next WQE of shared receive queue `number`, or the next stride of a striding one, into
/// `receive`. An invalid one is taken too; then `receive` has only its index.
pub(super) fn take(
    qp: &Qp,
    port: &mut Port<'_>,
    number: u32,
    receive: &mut Receive,
) -> Result<(), Refusal> {
    // A shared receive queue cannot be destroyed while a queue pair uses it.
    let Some(srq) = port.srqs.get_mut(number) else { return Err(Refusal::NotReady) };
    // An open WQE was checked when it was taken.
    let available = if srq.is_open() { 1 } else { u32::from(srq.available()) };
    if available == 0 || srq.failed {
        return Err(Refusal::NotReady);
    }
    let entries = srq.ring.entries();
    let Taken { index, stride } = srq.take();
    receive.index = index;
    // A message of several packets corrects it.
    receive.stride = stride.map(|index| Stride { index, first: true, last: true });
    receive.queue = Some(number);
    receive.arrived = Arrived::Plain;
    receive.pd = srq.pd;
    receive.local.clear();
    let checked = if available > entries {
        Err(Finding::Overflow { queue: "shared receive", got: available, wanted: entries })
    } else {
        let start = srq.order.header_bytes();
        match stride.zip(srq.striding) {
            Some((stride, striding)) => {
                let bytes = striding.strides.bytes();
                fetch::stride(&srq.ring, (index, stride), start, bytes, receive)
            }
            None => fetch::receive(&srq.ring, index, start, receive),
        }
    };
    if srq.passed_limit() {
        port.tell(EventType::SrqLimit, number);
    }
    checked.map_err(|finding| {
        port.report(qp.known_as(), index, finding);
        Refusal::Fatal(NakCode::RemoteOperational, Some(Syndrome::LocalQpOperation.into()))
    })
}
