//! Counter sets (Q counters): counts of some queue pairs, separate from the device's.

use barewire_layouts::command::q_counter::QueryQCounterOut;
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::prm::Field;

use crate::counters::Counters;

/// A field of QUERY_Q_COUNTER's output, and the device counter behind it.
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
    (QueryQCounterOut::RESP_LOCAL_LENGTH_ERROR, |counters| {
        counters.receive_errors.of(Syndrome::LocalLength)
    }),
    (QueryQCounterOut::REQ_LOCAL_LENGTH_ERROR, |counters| {
        counters.send_errors.of(Syndrome::LocalLength)
    }),
    (QueryQCounterOut::RESP_LOCAL_QP_ERROR, |counters| {
        counters.receive_errors.of(Syndrome::LocalQpOperation)
    }),
    (QueryQCounterOut::LOCAL_OPERATION_ERROR, |counters| {
        counters.send_errors.of(Syndrome::LocalQpOperation)
    }),
    (QueryQCounterOut::RESP_LOCAL_PROTECTION, |counters| {
        counters.receive_errors.of(Syndrome::LocalProtection)
    }),
    (QueryQCounterOut::REQ_LOCAL_PROTECTION, |counters| {
        counters.send_errors.of(Syndrome::LocalProtection)
    }),
    (QueryQCounterOut::RESP_CQE_ERROR, |counters| counters.receive_errors.all()),
    (QueryQCounterOut::REQ_CQE_ERROR, |counters| counters.send_errors.all()),
    (QueryQCounterOut::REQ_MW_BINDING, |counters| {
        counters.send_errors.of(Syndrome::MemoryWindowBind)
    }),
    (QueryQCounterOut::REQ_BAD_RESPONSE, |counters| counters.send_errors.of(Syndrome::BadResponse)),
    (QueryQCounterOut::REQ_REMOTE_INVALID_REQUEST, |counters| {
        counters.send_errors.of(Syndrome::RemoteInvalidRequest)
    }),
    (QueryQCounterOut::RESP_REMOTE_INVALID_REQUEST, |counters| counters.invalid_requests),
    (QueryQCounterOut::REQ_REMOTE_ACCESS_ERRORS, |counters| {
        counters.send_errors.of(Syndrome::RemoteAccess)
    }),
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
    (QueryQCounterOut::REQ_CQE_FLUSH_ERROR, |counters| {
        counters.send_errors.of(Syndrome::WorkRequestFlushed) - counters.flushes_by_command
    }),
];

/// Counts of the queue pairs and targets that name the set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CounterSet([u64; COUNTERS.len()]);

impl CounterSet {
    /// Adds what the device counted between `before` and `after`.
    pub(crate) fn charge(&mut self, before: &Counters, after: &Counters) {
        for (sum, (_, of)) in self.0.iter_mut().zip(COUNTERS) {
            *sum += of(after) - of(before);
        }
    }

    /// Returns each field of QUERY_Q_COUNTER's output with its count.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (Field<QueryQCounterOut>, u64)> {
        COUNTERS.into_iter().map(|(field, _)| field).zip(self.0)
    }
}
