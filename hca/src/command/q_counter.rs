//! ALLOC_Q_COUNTER, DEALLOC_Q_COUNTER, QUERY_Q_COUNTER.
//!
//! A set counts for all queues of the device, from when it was allocated or cleared, whichever queue pairs name it.

use barewire_layouts::command::q_counter::{
    AllocQCounterOut, DeallocQCounterIn, QueryQCounterIn, QueryQCounterOut,
};
use barewire_layouts::prm::{Field, View, ViewMut};

use super::{CommandSyndrome, Outcome};
use crate::engine::Counters;
use crate::object::Objects;

/// A counter of the answer, and where the device keeps it.
type Counter = (Field<QueryQCounterOut>, fn(&Counters) -> u64);

const COUNTERS: [Counter; 9] = [
    (QueryQCounterOut::RX_ATOMIC_REQUESTS, |counters| counters.atomics),
    (QueryQCounterOut::RX_DCT_CONNECT, |counters| counters.dc_connects),
    (QueryQCounterOut::OUT_OF_BUFFER, |counters| counters.rnr_naks_sent),
    (QueryQCounterOut::OUT_OF_SEQUENCE, |counters| counters.out_of_sequence),
    (QueryQCounterOut::DUPLICATE_REQUEST, |counters| counters.duplicates),
    (QueryQCounterOut::RNR_NAK_RETRY_ERR, |counters| counters.rnr_naks_received),
    (QueryQCounterOut::IMPLIED_NAK_SEQ_ERR, |counters| counters.implied_naks),
    (QueryQCounterOut::LOCAL_ACK_TIMEOUT_ERR, |counters| counters.timeouts),
    (QueryQCounterOut::CQ_OVERFLOW, |counters| counters.cq_overruns),
];

/// PRM: ALLOC_Q_COUNTER.
pub(super) fn alloc(
    objects: &mut Objects,
    counters: &Counters,
    mut output: ViewMut<'_, AllocQCounterOut>,
) -> Outcome {
    let (set, _) = objects.counter_sets.insert_with(|_| *counters).ok_or(CommandSyndrome::NoCounterSets)?;
    // Eight bits: the table gives out no more.
    output.set(AllocQCounterOut::COUNTER_SET_ID, set as u8);
    Ok(())
}

/// PRM: DEALLOC_Q_COUNTER.
pub(super) fn dealloc(objects: &mut Objects, input: View<'_, DeallocQCounterIn>) -> Outcome {
    let set = input.get(DeallocQCounterIn::COUNTER_SET_ID);
    objects.counter_sets.remove(set.into()).map(|_| ()).ok_or(CommandSyndrome::UnknownCounterSet)
}

/// PRM: QUERY_Q_COUNTER. Counts wrap at 32 bits.
pub(super) fn query(
    objects: &mut Objects,
    counters: &Counters,
    input: View<'_, QueryQCounterIn>,
    mut output: ViewMut<'_, QueryQCounterOut>,
) -> Outcome {
    let set = input.get(QueryQCounterIn::COUNTER_SET_ID);
    let start = objects.counter_sets.get_mut(set.into()).ok_or(CommandSyndrome::UnknownCounterSet)?;
    for (field, of) in COUNTERS {
        output.set(field, of(counters).wrapping_sub(of(start)) as u32);
    }
    if input.get(QueryQCounterIn::CLEAR) {
        *start = *counters;
    }
    Ok(())
}
