//! ALLOC_Q_COUNTER, DEALLOC_Q_COUNTER, QUERY_Q_COUNTER.

use barewire_layouts::command::q_counter::{
    AllocQCounterOut, DeallocQCounterIn, QueryQCounterIn, QueryQCounterOut,
};
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::prm::{Field, View, ViewMut};

use super::{CommandSyndrome, Outcome};
use crate::engine::Counters;
use crate::object::Objects;

/// A counter of the answer, and where the device keeps it.
type Counter = (Field<QueryQCounterOut>, fn(&Counters) -> u64);

const COUNTERS: [Counter; 31] = [
    (QueryQCounterOut::RX_WRITE_REQUESTS, |counters| counters.writes),
    (QueryQCounterOut::RX_READ_REQUESTS, |counters| counters.reads),
    (QueryQCounterOut::RX_ATOMIC_REQUESTS, |counters| counters.atomics),
    (QueryQCounterOut::RX_DCT_CONNECT, |counters| counters.dc_connects),
    (QueryQCounterOut::OUT_OF_BUFFER, |counters| counters.out_of_buffer),
    (QueryQCounterOut::OUT_OF_SEQUENCE, |counters| counters.out_of_sequence),
    (QueryQCounterOut::DUPLICATE_REQUEST, |counters| counters.duplicates),
    (QueryQCounterOut::RNR_NAK_RETRY_ERR, |counters| counters.rnr_naks_received),
    (QueryQCounterOut::PACKET_SEQ_ERR, |counters| counters.sequence_naks_received),
    (QueryQCounterOut::IMPLIED_NAK_SEQ_ERR, |counters| counters.implied_naks),
    (QueryQCounterOut::LOCAL_ACK_TIMEOUT_ERR, |counters| counters.timeouts),
    (QueryQCounterOut::REQ_RNR_RETRIES_EXCEEDED, |counters| {
        counters.send_errors.of(Syndrome::RnrRetryExceeded)
    }),
    (QueryQCounterOut::RESP_LOCAL_LENGTH_ERROR, |counters| counters.receive_errors.of(Syndrome::LocalLength)),
    (QueryQCounterOut::REQ_LOCAL_LENGTH_ERROR, |counters| counters.send_errors.of(Syndrome::LocalLength)),
    (QueryQCounterOut::RESP_LOCAL_QP_ERROR, |counters| {
        counters.receive_errors.of(Syndrome::LocalQpOperation)
    }),
    (QueryQCounterOut::LOCAL_OPERATION_ERROR, |counters| counters.send_errors.of(Syndrome::LocalQpOperation)),
    (QueryQCounterOut::RESP_LOCAL_PROTECTION, |counters| {
        counters.receive_errors.of(Syndrome::LocalProtection)
    }),
    (QueryQCounterOut::REQ_LOCAL_PROTECTION, |counters| counters.send_errors.of(Syndrome::LocalProtection)),
    (QueryQCounterOut::RESP_CQE_ERROR, |counters| counters.receive_errors.all()),
    (QueryQCounterOut::REQ_CQE_ERROR, |counters| counters.send_errors.all()),
    (QueryQCounterOut::REQ_MW_BINDING, |counters| counters.send_errors.of(Syndrome::MemoryWindowBind)),
    (QueryQCounterOut::REQ_BAD_RESPONSE, |counters| counters.send_errors.of(Syndrome::BadResponse)),
    (QueryQCounterOut::REQ_REMOTE_INVALID_REQUEST, |counters| {
        counters.send_errors.of(Syndrome::RemoteInvalidRequest)
    }),
    (QueryQCounterOut::RESP_REMOTE_INVALID_REQUEST, |counters| counters.invalid_requests),
    (QueryQCounterOut::REQ_REMOTE_ACCESS_ERRORS, |counters| counters.send_errors.of(Syndrome::RemoteAccess)),
    (QueryQCounterOut::RESP_REMOTE_ACCESS_ERRORS, |counters| counters.access_errors),
    (QueryQCounterOut::REQ_REMOTE_OPERATION_ERRORS, |counters| {
        counters.send_errors.of(Syndrome::RemoteOperation)
    }),
    (QueryQCounterOut::REQ_TRANSPORT_RETRIES_EXCEEDED, |counters| {
        counters.send_errors.of(Syndrome::TransportRetryExceeded)
    }),
    (QueryQCounterOut::CQ_OVERFLOW, |counters| counters.cq_overruns),
    (QueryQCounterOut::RESP_CQE_FLUSH_ERROR, |counters| {
        counters.receive_errors.of(Syndrome::WorkRequestFlushed)
    }),
    (QueryQCounterOut::REQ_CQE_FLUSH_ERROR, |counters| counters.send_errors.of(Syndrome::WorkRequestFlushed)),
];

/// What happened on the queue pairs that name a set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CounterSet([u64; COUNTERS.len()]);

impl CounterSet {
    /// Adds what the device counted between two moments.
    pub(crate) fn charge(&mut self, before: &Counters, after: &Counters) {
        for (sum, (_, of)) in self.0.iter_mut().zip(COUNTERS) {
            *sum += of(after) - of(before);
        }
    }
}

/// The counter set `number`, which a queue pair or a target names; 0 for none.
pub(super) fn counter_set(objects: &Objects, number: u8) -> Result<u8, CommandSyndrome> {
    if number == 0 || objects.counter_sets.get(number.into()).is_some() {
        Ok(number)
    } else {
        Err(CommandSyndrome::UnknownCounterSet)
    }
}

/// PRM: ALLOC_Q_COUNTER.
pub(super) fn alloc(objects: &mut Objects, mut output: ViewMut<'_, AllocQCounterOut>) -> Outcome {
    let set = objects.counter_sets.insert_with(|_| CounterSet::default());
    let (set, _) = set.ok_or(CommandSyndrome::NoCounterSets)?;
    // Eight bits: the table gives out no more.
    output.set(AllocQCounterOut::COUNTER_SET_ID, set as u8);
    Ok(())
}

/// PRM: DEALLOC_Q_COUNTER. Queue pairs that name it are counted nowhere from here on.
pub(super) fn dealloc(objects: &mut Objects, input: View<'_, DeallocQCounterIn>) -> Outcome {
    let set = input.get(DeallocQCounterIn::COUNTER_SET_ID);
    objects.counter_sets.remove(set.into()).map(|_| ()).ok_or(CommandSyndrome::UnknownCounterSet)
}

/// PRM: QUERY_Q_COUNTER. Counts wrap at 32 bits.
pub(super) fn query(
    objects: &mut Objects,
    input: View<'_, QueryQCounterIn>,
    mut output: ViewMut<'_, QueryQCounterOut>,
) -> Outcome {
    let number = input.get(QueryQCounterIn::COUNTER_SET_ID);
    let set = objects.counter_sets.get_mut(number.into()).ok_or(CommandSyndrome::UnknownCounterSet)?;
    for ((field, _), count) in COUNTERS.into_iter().zip(set.0) {
        output.set(field, count as u32);
    }
    if input.get(QueryQCounterIn::CLEAR) {
        *set = CounterSet::default();
    }
    Ok(())
}
