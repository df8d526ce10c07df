//! Counters of a device.

use barewire_layouts::cqe::Syndrome;

/// Failed WQEs by syndrome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyndromeCounts([u64; SYNDROMES.len()]);

const SYNDROMES: [Syndrome; 13] = [
    Syndrome::LocalLength,
    Syndrome::LocalQpOperation,
    Syndrome::LocalProtection,
    Syndrome::WorkRequestFlushed,
    Syndrome::MemoryWindowBind,
    Syndrome::BadResponse,
    Syndrome::LocalAccess,
    Syndrome::RemoteInvalidRequest,
    Syndrome::RemoteAccess,
    Syndrome::RemoteOperation,
    Syndrome::TransportRetryExceeded,
    Syndrome::RnrRetryExceeded,
    Syndrome::RemoteAborted,
];

impl SyndromeCounts {
    /// Returns the WQEs that failed with `syndrome`.
    pub fn of(&self, syndrome: Syndrome) -> u64 {
        SYNDROMES
            .iter()
            .zip(self.0)
            .filter(|&(&counted, _)| counted == syndrome)
            .map(|(_, count)| count)
            .sum()
    }

    /// Returns all WQEs that failed.
    pub fn all(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(crate) fn count(&mut self, syndrome: Syndrome) {
        if let Some(at) = SYNDROMES.iter().position(|&counted| counted == syndrome) {
            self.0[at] += 1;
        }
    }
}

/// Returns a count.
pub type Count = fn(&Counters) -> u64;

/// The files of a port in sysfs whose values a device counts, by the names that the kernel and its
/// mlx5 driver give them (linux: `drivers/infiniband/core/sysfs.c`, `hw/mlx5/counters.c`).
pub const COUNTER_FILES: [(&str, Count); 21] = [
    ("counters/port_xmit_packets", |it| it.packets_sent),
    ("counters/port_rcv_packets", |it| it.packets_received),
    ("counters/port_rcv_errors", |it| it.bad_icrc + it.malformed),
    ("hw_counters/duplicate_request", |it| it.duplicates),
    ("hw_counters/implied_nak_seq_err", |it| it.implied_naks),
    ("hw_counters/local_ack_timeout_err", |it| it.timeouts),
    ("hw_counters/np_cnp_sent", |it| it.cnps_sent),
    ("hw_counters/out_of_buffer", |it| it.out_of_buffer),
    ("hw_counters/out_of_sequence", |it| it.out_of_sequence),
    ("hw_counters/packet_seq_err", |it| it.sequence_naks_received),
    ("hw_counters/req_cqe_error", |it| it.send_errors.all()),
    ("hw_counters/req_cqe_flush_error", |it| it.send_errors.of(Syndrome::WorkRequestFlushed)),
    ("hw_counters/req_remote_access_errors", |it| it.send_errors.of(Syndrome::RemoteAccess)),
    ("hw_counters/resp_cqe_error", |it| it.receive_errors.all()),
    ("hw_counters/resp_cqe_flush_error", |it| it.receive_errors.of(Syndrome::WorkRequestFlushed)),
    ("hw_counters/resp_remote_access_errors", |it| it.access_errors),
    ("hw_counters/rnr_nak_retry_err", |it| it.rnr_naks_received),
    ("hw_counters/rp_cnp_handled", |it| it.cnps_received),
    ("hw_counters/rx_atomic_requests", |it| it.atomics),
    ("hw_counters/rx_read_requests", |it| it.reads),
    ("hw_counters/rx_write_requests", |it| it.writes),
];

/// Event counts of one device since it was opened. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Packets handed to the wire.
    pub packets_sent: u64,
    /// Packets taken from the wire, good or bad.
    pub packets_received: u64,
    /// Packets that the wire could not send (a full socket buffer, no route).
    pub send_failures: u64,
    /// Packets dropped because they carried no valid tag: see [`crate::WireKind::Udp`].
    pub bad_tags: u64,
    /// Packets dropped for a wrong invariant CRC.
    pub bad_icrc: u64,
    /// Packets dropped because headers, lengths or opcode made no sense.
    pub malformed: u64,
    /// Packets dropped because no queue pair has the number.
    pub unknown_qp: u64,
    /// Packets dropped because their source is not the queue pair's peer.
    pub wrong_source: u64,
    /// Packets dropped because of the queue pair's state.
    pub wrong_state: u64,
    /// Packets dropped because they are of another transport service than their queue pair.
    pub wrong_service: u64,
    /// Packets dropped because they are of another partition than their queue pair.
    pub wrong_partition: u64,
    /// Datagrams dropped for a wrong queue key.
    pub wrong_qkey: u64,
    /// Messages of unreliable services dropped: incomplete, without a receive WQE, or not allowed.
    pub messages_dropped: u64,
    /// Dynamic connections that targets accepted.
    pub dc_connects: u64,
    /// Dynamic connections that targets refused.
    pub dc_refusals_sent: u64,
    /// Refusals of dynamic connections received.
    pub dc_refusals_received: u64,
    /// Congestion notifications received.
    pub cnps_received: u64,
    /// Congestion notifications sent.
    pub cnps_sent: u64,
    /// Requests that had been executed before.
    pub duplicates: u64,
    /// Requests ahead of the expected packet sequence number.
    pub out_of_sequence: u64,
    /// Responses that matched nothing outstanding.
    pub stale_responses: u64,
    /// Request packets sent again.
    pub retransmitted: u64,
    /// Acknowledgment timeouts.
    pub timeouts: u64,
    /// Responses found missing because a later one arrived.
    pub implied_naks: u64,
    /// Positive acknowledgements sent.
    pub acks_sent: u64,
    /// Negative acknowledgements sent, receiver-not-ready not counted.
    pub naks_sent: u64,
    /// Receiver-not-ready acknowledgements sent.
    pub rnr_naks_sent: u64,
    /// Negative acknowledgements received, receiver-not-ready not counted.
    pub naks_received: u64,
    /// Receiver-not-ready acknowledgements received.
    pub rnr_naks_received: u64,
    /// Negative acknowledgements received for a gap in the sequence numbers.
    pub sequence_naks_received: u64,
    /// Requests refused as invalid.
    pub invalid_requests: u64,
    /// Requests refused because of their keys.
    pub access_errors: u64,
    /// Messages that found no receive WQE.
    pub out_of_buffer: u64,
    /// Send WQEs that failed.
    pub send_errors: SyndromeCounts,
    /// Send WQEs that were flushed first after a command had moved their queue pair to the error
    /// state. They are part of `send_errors`.
    pub flushes_by_command: u64,
    /// Receive WQEs that failed.
    pub receive_errors: SyndromeCounts,
    /// RDMA writes begun, also those whose key is then refused.
    pub writes: u64,
    /// RDMA reads executed.
    pub reads: u64,
    /// Atomic operations executed.
    pub atomics: u64,
    /// Changes of memory keys by WQEs.
    pub key_changes: u64,
    /// Page faults reported by events.
    pub page_faults: u64,
    /// Requests dropped, to be retried, because earlier reads had too many bytes to send.
    pub postponed_behind_reads: u64,
    /// Atomic responses sent again from the responder's store, without executing.
    pub atomics_replayed: u64,
    /// Doorbells noticed.
    pub doorbells: u64,
    /// Doorbells that ended a sleep of the device's thread.
    pub doorbell_wakes: u64,
    /// Send WQEs fetched.
    pub wqes: u64,
    /// CQEs written.
    pub cqes: u64,
    /// CQEs that found their queue full.
    pub cq_overruns: u64,
    /// Events that found their event queue full.
    pub events_lost: u64,
    /// Findings of the strict checks.
    pub findings: u64,
    /// Packets that the capture file could not take.
    pub capture_lost: u64,
    /// Packets that the fault injector dropped.
    pub fault_dropped: u64,
    /// Packets that the fault injector sent twice.
    pub fault_duplicated: u64,
    /// Packets that the fault injector held back.
    pub fault_reordered: u64,
    /// Packets that the fault injector flipped a bit in.
    pub fault_corrupted: u64,
    /// Packets that the fault injector delayed.
    pub fault_delayed: u64,
    /// Times that the fault injector took the link down.
    pub fault_flaps: u64,
    /// Packets lost, in either direction, because the link was down.
    pub link_dropped: u64,
}
