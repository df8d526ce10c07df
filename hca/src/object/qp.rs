//! Queue pairs: what commands set and the engine works by.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{Ordering, fence};

use barewire_layouts::command::qp::{QpState, ServiceType};

use super::Scatter;
use crate::memory::{User, Window};

/// A queue pair. `E` is the state that the engine keeps with it.
#[derive(Debug)]
pub(crate) struct Qp<E> {
    /// Its number.
    pub(crate) number: u32,
    /// State; changed by commands, and by the engine to [`QpState::Err`] only.
    pub(crate) state: QpState,
    /// Transport service.
    pub(crate) service: ServiceType,
    /// Protection domain.
    pub(crate) pd: u32,
    /// The user's own number, for CQEs.
    pub(crate) user_index: u32,
    /// The send queue's completion queue.
    pub(crate) send_cq: u32,
    /// The receive queue's completion queue.
    pub(crate) receive_cq: u32,
    /// The XRC domain to whose shared receive queues it delivers.
    pub(crate) xrcd: Option<u32>,
    /// Of a responder context: the target of dynamic connections.
    pub(crate) dct: Option<u32>,
    /// The shared receive queue that it takes from, if it does.
    pub(crate) srq: Option<u32>,
    /// Which results go into the completion itself.
    pub(crate) scatter: Scatter,
    /// The UAR page that rings the send queue.
    pub(crate) uar: u32,
    /// Send ring: entries are WQEBBs.
    pub(crate) sq: Ring,
    /// Receive ring: entries are WQEs.
    pub(crate) rq: Ring,
    /// Software's producer counters.
    pub(crate) doorbell: DoorbellRecord,
    /// What the state moves set.
    pub(crate) attributes: Attributes,
    /// The umem of the rings, and where they start there.
    pub(crate) ring_umem: (u32, u64),
    /// The umem of the doorbell record, and where it is there.
    pub(crate) doorbell_umem: (u32, u64),
    /// The engine's state.
    pub(crate) engine: E,
}

impl<E> Qp<E> {
    /// The number that its user knows it by.
    pub(crate) fn known_as(&self) -> u32 {
        self.dct.unwrap_or(self.number)
    }

    /// As whom it uses memory keys.
    pub(crate) fn user(&self) -> User {
        User { pd: self.pd, qpn: self.known_as() }
    }

    /// As whom it uses the buffers of a receive WQE, which are in protection domain `pd`.
    pub(crate) fn receiver(&self, pd: u32) -> User {
        User { pd, ..self.user() }
    }
}

/// What the commands that move a queue pair's state set. Zeros until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// The index of the port.
    pub(crate) port: usize,
    /// Payload bytes of a full packet.
    pub(crate) mtu: usize,
    /// log2 of the most bytes of a message.
    pub(crate) log_message_max: u8,
    /// The peer's queue pair.
    pub(crate) remote_qpn: u32,
    /// The peer's device.
    pub(crate) remote_address: IpAddr,
    /// The PSN of the first packet that is sent.
    pub(crate) next_send_psn: u32,
    /// The PSN of the first packet that is expected.
    pub(crate) next_receive_psn: u32,
    /// Local acknowledgment timeout, 4.096 us * 2^n; 0 for never.
    pub(crate) ack_timeout: u8,
    /// Retransmissions before giving up.
    pub(crate) retry_count: u8,
    /// Retransmissions after RNR NAKs before giving up; 7 for no limit.
    pub(crate) rnr_retry: u8,
    /// RNR timer code that is sent when there is no receive WQE.
    pub(crate) min_rnr_nak: u8,
    /// Reads and atomics that may be outstanding.
    pub(crate) max_initiator_depth: u32,
    /// Reads and atomics that are answered at a time.
    pub(crate) max_responder_depth: u32,
    /// Queue key of datagrams.
    pub(crate) qkey: u32,
    /// The counter set that counts what happens here; 0 for none.
    pub(crate) counter_set: u8,
    /// Peers may read.
    pub(crate) remote_read: bool,
    /// Peers may write.
    pub(crate) remote_write: bool,
    /// Peers may run atomics.
    pub(crate) remote_atomic: bool,
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            port: 0,
            mtu: 0,
            log_message_max: 0,
            remote_qpn: 0,
            remote_address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            next_send_psn: 0,
            next_receive_psn: 0,
            ack_timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            min_rnr_nak: 0,
            max_initiator_depth: 0,
            max_responder_depth: 0,
            qkey: 0,
            counter_set: 0,
            remote_read: false,
            remote_write: false,
            remote_atomic: false,
        }
    }
}

/// A ring of work queue entries in user memory. The umem stays registered while the queue pair exists.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: Window,
    log_entries: Option<u8>,
    log_stride: u8,
}

impl Ring {
    /// No queue.
    pub(crate) const NONE: Self = Self { memory: Window::EMPTY, log_entries: None, log_stride: 0 };

    /// A ring of `1 << log_entries` entries of `1 << log_stride` bytes, which is the length of `memory`.
    pub(crate) fn new(memory: Window, log_entries: u8, log_stride: u8) -> Self {
        debug_assert_eq!(memory.len(), 1 << (log_entries + log_stride));
        Self { memory, log_entries: Some(log_entries), log_stride }
    }

    /// Number of entries; 0 if there is no queue.
    pub(crate) fn entries(&self) -> u32 {
        self.log_entries.map_or(0, |log_entries| 1 << log_entries)
    }

    /// log2 of the number of entries, if there is a queue.
    pub(crate) fn log_entries(&self) -> Option<u8> {
        self.log_entries
    }

    /// Bytes of an entry.
    pub(crate) fn stride(&self) -> usize {
        1 << self.log_stride
    }

    /// Copies what starts `offset` bytes into entry `index` (modulo the ring's entries), and goes on at the ring's start where
    /// it ends.
    ///
    /// Sees what software stored before it stored the doorbell record that was read last.
    pub(crate) fn read(&self, index: u16, offset: usize, mut bytes: &mut [u8]) {
        fence(Ordering::Acquire);
        let length = self.memory.len();
        if length == 0 {
            return;
        }
        let mut at = (usize::from(index) << self.log_stride).wrapping_add(offset) % length;
        while !bytes.is_empty() {
            let chunk = bytes.len().min(length - at);
            let (now, later) = bytes.split_at_mut(chunk);
            if let Some(memory) = self.memory.slice(at, chunk) {
                memory.read(now);
            }
            (bytes, at) = (later, 0);
        }
    }
}

/// The doorbell record of a queue pair.
#[derive(Debug)]
pub(crate) struct DoorbellRecord(Window);

impl DoorbellRecord {
    /// Bytes of a record; it is aligned to as many.
    pub(crate) const BYTES: usize = size_of::<barewire_layouts::doorbell::DoorbellRecord>();

    /// The record in `memory`, which is [`DoorbellRecord::BYTES`] long and aligned.
    pub(crate) fn new(memory: Window) -> Self {
        Self(memory)
    }

    /// Receive WQEs posted, modulo 2^16, and what was stored before.
    pub(crate) fn receive(&self) -> u16 {
        self.0.load_be32(0) as u16
    }

    /// Send WQEBBs posted, modulo 2^16, and what was stored before.
    pub(crate) fn send(&self) -> u16 {
        self.0.load_be32(4) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::leaked;

    #[test]
    fn a_read_wraps_at_the_end() {
        let memory = leaked(256);
        memory.write(&(0..=255).collect::<Vec<u8>>());
        let ring = Ring::new(memory, 2, 6);
        let mut bytes = [0; 80];
        ring.read(3, 48, &mut bytes);
        let want: Vec<u8> = (240..=255).chain(0..64).collect();
        assert_eq!(bytes[..], want);
        ring.read(7, 0, &mut bytes[..1]);
        assert_eq!(bytes[0], 192);
    }

    #[test]
    fn more_than_the_ring_goes_round() {
        let memory = leaked(64);
        memory.write(&(0..64).collect::<Vec<u8>>());
        let ring = Ring::new(memory, 0, 6);
        let mut bytes = [0; 200];
        ring.read(u16::MAX, 1000, &mut bytes);
        assert!(bytes.iter().enumerate().all(|(at, &byte)| usize::from(byte) == (1000 + at) % 64));
    }

    #[test]
    fn no_ring_gives_nothing() {
        let mut bytes = [7; 4];
        Ring::NONE.read(5, 5, &mut bytes);
        assert_eq!((bytes, Ring::NONE.entries()), ([7; 4], 0));
    }

    #[test]
    fn a_record_holds_receive_before_send() {
        let memory = leaked(8);
        memory.write(&[0, 1, 0, 2, 0, 3, 0, 4]);
        let record = DoorbellRecord::new(memory);
        assert_eq!((record.receive(), record.send()), (2, 4));
    }
}
