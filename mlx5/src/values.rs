//! Plain values: what a device can do, its port, access rights, and the path of a connection. Set-up and
//! everything above it use them; they use nothing.

use core::fmt;
use core::net::Ipv6Addr;

use barewire_layouts::command::capability::PortType;
use barewire_layouts::command::qp::Mtu;
use bitflags::bitflags;

use crate::error::Error;

/// What the device can do, as far as this driver asks (QUERY_HCA_CAP, general page).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Most WQEBBs of a send ring, and receive WQEs of a receive ring.
    pub max_queue_entries: u32,
    /// Most CQEs of a completion queue.
    pub max_cq_entries: u32,
    /// Longest message in bytes.
    pub max_message: u64,
    /// Most RDMA reads and atomics that a queue pair may have outstanding, as log2.
    pub log_max_reads_requester: u8,
    /// Most RDMA reads and atomics that a queue pair may be the target of at a time, as log2.
    pub log_max_reads_responder: u8,
    /// 8-byte compare-and-swap and fetch-and-add.
    pub atomics: bool,
    /// Masked compare-and-swap and fetch-and-add of 4 and 8 bytes, on numbers in host byte order. What a queue pair with such a peer may
    /// post is what the peer's device has, too.
    pub masked_atomics: bool,
    /// BlueFlame registers take whole WQEs.
    pub blueflame: bool,
    /// The UAR pages are mapped so that a burst of stores reaches the device in one piece; known from who maps them.
    pub write_combining: bool,
    /// RoCE (Ethernet) or InfiniBand.
    pub port_type: PortType,
}

/// Where peers find the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortAddress {
    /// Global identifier: for RoCEv2 the IP address, IPv4 mapped into IPv6.
    pub gid: [u8; 16],
    /// Ethernet address; 0 on InfiniBand.
    pub mac: [u8; 6],
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
}

/// The GID as an IP address.
impl fmt::Display for PortAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.gid).to_canonical().fmt(f)
    }
}

/// The port that a context's queue pairs send through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// From 1.
    pub number: u8,
    /// The entry of its GID table that queue pairs send from.
    pub gid_index: u8,
    /// What that entry says, for peers.
    pub address: PortAddress,
}

bitflags! {
    /// What a key allows. Local reading is always allowed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u8 {
        /// This side's receives, reads and atomics may write here.
        const LOCAL_WRITE = 1 << 0;
        /// Peers may write here; needs [`Self::LOCAL_WRITE`].
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read here.
        const REMOTE_READ = 1 << 2;
        /// Peers may operate atomically here; needs [`Self::LOCAL_WRITE`].
        const REMOTE_ATOMIC = 1 << 3;
    }
}

/// The other end of a connection, and how to behave towards it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RcPath {
    /// The peer's queue pair number (24 bits).
    pub remote_qpn: u32,
    /// The peer's port.
    pub remote: PortAddress,
    /// Packet sequence number that the peer starts with (24 bits).
    pub receive_psn: u32,
    /// Packet sequence number that this side starts with (24 bits).
    pub send_psn: u32,
    /// Payload bytes of a packet.
    pub mtu: Mtu,
    /// Local acknowledge timeout as an exponent (5 bits): 4.096 us * 2^n, 0 waits for ever.
    pub ack_timeout: u8,
    /// Retries before the peer is given up (3 bits).
    pub retry_count: u8,
    /// Retries while the peer has no receive WQE (3 bits); 7 retries for ever.
    pub rnr_retry: u8,
    /// How long the peer shall wait when this side has no receive WQE: an index into IBTA's table (5 bits).
    pub min_rnr_nak: u8,
    /// RDMA reads and atomics outstanding, as log2, as far as the device can.
    pub log_max_reads: u8,
}

impl RcPath {
    /// A path with the field's usual values: MTU 4096, timeout 2^16 * 4.096 us (268 ms) seven times, RNR retried for ever after
    /// 0.64 ms, 16 reads, packet sequence numbers from 0.
    pub fn new(remote: PortAddress, remote_qpn: u32) -> Self {
        Self {
            remote_qpn,
            remote,
            receive_psn: 0,
            send_psn: 0,
            mtu: Mtu::Bytes4096,
            ack_timeout: 16,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_nak: 12,
            log_max_reads: 4,
        }
    }

    /// Refuses values that do not fit their fields.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let fits = |what, value: u32, bits: u32| {
            if value >> bits == 0 {
                Ok(())
            } else {
                Err(Error::parameter(what, value, format!("at most {bits} bits")))
            }
        };
        fits("remote queue pair number", self.remote_qpn, 24)?;
        fits("receive PSN", self.receive_psn, 24)?;
        fits("send PSN", self.send_psn, 24)?;
        fits("acknowledge timeout", self.ack_timeout.into(), 5)?;
        fits("retry count", self.retry_count.into(), 3)?;
        fits("RNR retry count", self.rnr_retry.into(), 3)?;
        fits("minimum RNR timer", self.min_rnr_nak.into(), 5)?;
        fits("log2 of outstanding reads", self.log_max_reads.into(), 3)
    }
}
