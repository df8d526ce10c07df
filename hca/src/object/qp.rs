//! Queue pairs: the attributes that commands set and the engine uses.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{Ordering, fence};

use barewire_layouts::command::port::DEFAULT_PKEY;
use barewire_layouts::command::qp::{
    AtomicMode, Enhancements, QpState, ServiceType, TimestampFormat,
};

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
    /// The user index, for CQEs.
    pub(crate) user_index: u32,
    /// The send queue's completion queue.
    pub(crate) send_cq: u32,
    /// The receive queue's completion queue.
    pub(crate) receive_cq: u32,
    /// The XRC domain to whose shared receive queues it delivers.
    pub(crate) xrcd: Option<u32>,
    /// For a responder context: its target of dynamic connections.
    pub(crate) dct: Option<u32>,
    /// The shared receive queue, if it uses one.
    pub(crate) srq: Option<u32>,
    /// The device executes the rendezvous protocol for messages to its queue with tag matching.
    pub(crate) rendezvous: bool,
    /// What it sends to a multicast group is not delivered to itself.
    pub(crate) blocks_own: bool,
    /// Which results are scattered to the CQE.
    pub(crate) scatter: Scatter,
    /// The streams of a DC initiator.
    pub(crate) streams: StreamLimits,
    /// The format of time stamps, which the context reports.
    pub(crate) timestamps: TimestampFormat,
    /// The UAR page of the send queue's doorbells.
    pub(crate) uar: u32,
    /// Send ring: entries are WQEBBs.
    pub(crate) sq: Ring,
    /// Receive ring: entries are WQEs.
    pub(crate) rq: Ring,
    /// Software's producer counters.
    pub(crate) doorbell: DoorbellRecord,
    /// The attributes that state transitions set.
    pub(crate) attributes: Attributes,
    /// The umem of the rings, and their offset there.
    pub(crate) ring_umem: (u32, u64),
    /// The umem of the doorbell record, and its offset there.
    pub(crate) doorbell_umem: (u32, u64),
    /// The engine's state.
    pub(crate) engine: E,
}

impl<E> Qp<E> {
    /// Returns the number that the user knows: that of the target, for a responder context.
    pub(crate) fn known_as(&self) -> u32 {
        self.dct.unwrap_or(self.number)
    }

    /// Returns the user of memory keys that it represents.
    pub(crate) fn user(&self) -> User {
        User { pd: self.pd, qpn: self.known_as() }
    }

    /// Returns the user of the buffers of a receive WQE, which are in protection domain `pd`.
    pub(crate) fn receiver(&self, pd: u32) -> User {
        User { pd, ..self.user() }
    }
}

/// The streams of a DC initiator; by default, none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamLimits {
    /// log2 of the channels.
    pub(crate) log_channels: u8,
    /// log2 of the channels in error that move the initiator to the error state.
    pub(crate) log_failed: u8,
}

impl StreamLimits {
    /// Returns whether the stream of a WQE means anything.
    pub(crate) fn any(self) -> bool {
        self.log_channels > 0
    }

    /// Returns the channel of a stream.
    pub(crate) fn channel(self, stream: u16) -> u16 {
        stream & ((1 << self.log_channels) - 1)
    }

    /// Returns the channels in error that move the initiator to the error state.
    pub(crate) fn most_failed(self) -> usize {
        1 << self.log_failed
    }
}

/// What a path reports and packets do not depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathService {
    pub(crate) dscp: u8,
    pub(crate) priority: u8,
    pub(crate) traffic_class: u8,
    pub(crate) level: u8,
    /// The index of the own GID.
    pub(crate) source_index: u8,
    pub(crate) hop_limit: u8,
}

/// The attributes that state transitions set; zero until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// The index of the port.
    pub(crate) port: usize,
    /// The partition key, and its index in the port's table.
    pub(crate) pkey: u16,
    pub(crate) pkey_index: u16,
    /// Payload bytes of a full packet.
    pub(crate) mtu: usize,
    /// log2 of the maximum message length.
    pub(crate) log_message_max: u8,
    /// The peer's queue pair number.
    pub(crate) remote_qpn: u32,
    /// The peer's address.
    pub(crate) remote_address: IpAddr,
    /// The UDP source port, which the path reports; packets have that of the device's socket.
    pub(crate) udp_source_port: u16,
    /// DSCP and Ethernet priority, or traffic class and service level, which the path reports;
    /// packets do not carry them.
    pub(crate) service: PathService,
    /// The PSN of the first packet sent.
    pub(crate) next_send_psn: u32,
    /// The PSN of the first packet expected.
    pub(crate) next_receive_psn: u32,
    /// Local acknowledgment timeout, 4.096 us * 2^n; 0 for never.
    pub(crate) ack_timeout: u8,
    /// log2 of the packets per acknowledgment, which the context reports; the engine requests one
    /// for each message.
    pub(crate) log_ack_frequency: u8,
    /// Retransmissions before giving up.
    pub(crate) retry_count: u8,
    /// Retransmissions after RNR NAKs before giving up; 7 for no limit.
    pub(crate) rnr_retry: u8,
    /// The code of the RNR timer sent if no receive WQE is posted.
    pub(crate) min_rnr_nak: u8,
    /// Maximum number of outstanding reads and atomics.
    pub(crate) max_initiator_depth: u32,
    /// Maximum number of the peer's outstanding reads and atomics.
    pub(crate) max_responder_depth: u32,
    /// Queue key of datagrams.
    pub(crate) qkey: u32,
    /// The counter set; 0 for none.
    pub(crate) counter_set: u8,
    /// The port of a bonded card, from 1; 0 if none is named. Packets have one way only.
    pub(crate) lag_port: u8,
    /// The enhancements of the connection, which queries report; they do not affect packets.
    pub(crate) enhancements: Enhancements,
    /// Peers may read.
    pub(crate) remote_read: bool,
    /// Peers may write.
    pub(crate) remote_write: bool,
    /// Peers may run atomics.
    pub(crate) remote_atomic: bool,
    /// The atomics that peers may run, which the context reports.
    pub(crate) atomic_mode: AtomicMode,
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            port: 0,
            pkey: DEFAULT_PKEY,
            pkey_index: 0,
            mtu: 0,
            log_message_max: 0,
            remote_qpn: 0,
            remote_address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            udp_source_port: 0,
            service: PathService::default(),
            next_send_psn: 0,
            next_receive_psn: 0,
            ack_timeout: 0,
            log_ack_frequency: 0,
            retry_count: 0,
            rnr_retry: 0,
            min_rnr_nak: 0,
            max_initiator_depth: 0,
            max_responder_depth: 0,
            qkey: 0,
            counter_set: 0,
            lag_port: 0,
            enhancements: Enhancements::NONE,
            remote_read: false,
            remote_write: false,
            remote_atomic: false,
            atomic_mode: AtomicMode::None,
        }
    }
}

/// A ring of work queue entries in user memory. The umem stays registered while the queue pair
/// exists.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: Window,
    log_entries: Option<u8>,
    log_stride: u8,
}

impl Ring {
    /// No ring.
    pub(crate) const NONE: Self = Self { memory: Window::EMPTY, log_entries: None, log_stride: 0 };

    /// Creates a ring of `1 << log_entries` entries of `1 << log_stride` bytes, which is the length
    /// of `memory`.
    pub(crate) fn new(memory: Window, log_entries: u8, log_stride: u8) -> Self {
        debug_assert_eq!(memory.len(), 1 << (log_entries + log_stride));
        Self { memory, log_entries: Some(log_entries), log_stride }
    }

    /// Returns the number of entries; 0 if there is no ring.
    pub(crate) fn entries(&self) -> u32 {
        self.log_entries.map_or(0, |log_entries| 1 << log_entries)
    }

    /// Returns log2 of the number of entries, if there is a ring.
    pub(crate) fn log_entries(&self) -> Option<u8> {
        self.log_entries
    }

    /// Returns the bytes of an entry.
    pub(crate) fn stride(&self) -> usize {
        1 << self.log_stride
    }

    /// Copies bytes from `offset` in entry `index` (modulo the number of entries) on, wrapping at
    /// the end of the ring.
    ///
    /// Includes everything that software stored before the doorbell record that was read last.
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
pub(crate) struct DoorbellRecord {
    memory: Window,
    /// The send counter at the last reset. A reset sets the device's counters to zero, but not the
    /// record: drivers that do not clear it overwrite it with their next post.
    stale: Option<u16>,
}

impl DoorbellRecord {
    /// Bytes of a record; it is aligned to as many.
    pub(crate) const BYTES: usize = size_of::<barewire_layouts::doorbell::DoorbellRecord>();

    /// Creates a record in `memory`, which is [`DoorbellRecord::BYTES`] long and aligned.
    pub(crate) fn new(memory: Window) -> Self {
        Self { memory, stale: None }
    }

    /// The queue pair is reset.
    pub(crate) fn reset(&mut self) {
        self.stale = Some(self.stored()).filter(|&stored| stored != 0);
    }

    /// A doorbell named the queue pair, so the record is not stale.
    pub(crate) fn rung(&mut self) {
        self.stale = None;
    }

    /// Returns [`Self::send`], and notices that the driver has stored another counter.
    pub(crate) fn follow(&mut self) -> u16 {
        let stored = self.stored();
        if self.stale != Some(stored) {
            self.stale = None;
        }
        self.send()
    }

    /// Returns the receive WQEs posted, modulo 2^16; acquires what was stored before.
    pub(crate) fn receive(&self) -> u16 {
        self.memory.load_be32(0) as u16
    }

    /// Returns the send WQEBBs posted, modulo 2^16; acquires what was stored before.
    pub(crate) fn send(&self) -> u16 {
        let stored = self.stored();
        if self.stale == Some(stored) { 0 } else { stored }
    }

    fn stored(&self) -> u16 {
        self.memory.load_be32(4) as u16
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

    #[test]
    fn a_counter_from_before_a_reset_posts_nothing() {
        let memory = leaked(8);
        let store = |counter: u8| memory.write(&[0, 0, 0, 0, 0, 0, 0, counter]);
        let mut record = DoorbellRecord::new(memory);
        store(4);
        assert_eq!(record.follow(), 4);
        record.reset();
        assert_eq!((record.follow(), record.send()), (0, 0));
        store(1);
        assert_eq!(record.follow(), 1);
        store(4);
        assert_eq!(record.follow(), 4);
        // As many as before: the doorbell tells.
        record.reset();
        record.rung();
        assert_eq!(record.follow(), 4);
    }
}
