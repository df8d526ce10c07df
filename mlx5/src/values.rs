//! Plain values: capabilities of a device, its port, access rights, and the path of a connection.
//! They depend on no other module of the driver.

use core::fmt;
use core::net::Ipv6Addr;

use barewire_layouts::command::capability::PortType;
use barewire_layouts::command::qp::{Enhancements, Mtu, TimestampFormat};
use bitflags::bitflags;

use crate::address::RcAddress;
use crate::error::Error;

/// The capabilities of a device, as far as this driver queries them (QUERY_HCA_CAP, general page).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Most WQEBBs of a send ring, and most receive WQEs of a receive ring.
    pub max_queue_entries: u32,
    /// Most WQEs of a shared receive queue, of any kind.
    pub max_shared_entries: u32,
    /// Most CQEs of a completion queue.
    pub max_cq_entries: u32,
    /// Longest message in bytes.
    pub max_message: u64,
    /// Most RDMA reads and atomics that a queue pair may have outstanding, as log2.
    pub log_max_reads_requester: u8,
    /// Most RDMA reads and atomics that a queue pair may be the target of at a time, as log2.
    pub log_max_reads_responder: u8,
    /// 8-byte compare-and-swap and fetch-and-add, with results in host byte order.
    pub atomics: bool,
    /// Masked compare-and-swap and fetch-and-add of 4 and 8 bytes, on numbers in host byte order.
    /// Results of 4 bytes are big-endian. A queue pair may post only those that the peer's device
    /// supports as well.
    pub masked_atomics: bool,
    /// As [`Self::log_max_reads_requester`], of an initiator of DC.
    pub log_max_dc_reads: u8,
    /// As [`Self::masked_atomics`], between initiators and targets of DC.
    pub masked_dc_atomics: bool,
    /// Every memory key must let writes be reordered on the bus, so the last byte of a message may
    /// arrive before the first. Only a completion tells that all of it has arrived.
    pub relaxed_keys: bool,
    /// BlueFlame registers accept whole WQEs.
    pub blueflame: bool,
    /// UAR pages are mapped so that a burst of stores reaches the device as one write, as reported
    /// by the mapping code.
    pub write_combining: bool,
    /// RoCE (Ethernet) or InfiniBand.
    pub port_type: PortType,
    /// The UDP source ports that RoCE queue pairs may use, the lowest and the highest.
    pub udp_source_ports: (u16, u16),
    /// Dynamically connected transport: initiators and targets ([`crate::dc`]).
    pub dynamic_connections: bool,
    /// log2 of the most streams of an initiator, and of the most that may be in error; 0 for no
    /// streams.
    pub log_max_streams: (u8, u8),
    /// Extended reliable connections ([`crate::xrc`]).
    pub xrc: bool,
    /// log2 of the most entries of a list that the device matches tags with ([`crate::tags`]); 0
    /// for no tag matching.
    pub log_max_tags: u8,
    /// The device reads the data of rendezvous messages that match over reliable connections.
    pub tag_rendezvous: bool,
    /// Shared receive queues whose WQEs have 8 or 16 strides
    /// ([`crate::queue::shared_receive::StridingReceiveQueue`]).
    pub striding: bool,
    /// Connections may use enhancements (ECE): see
    /// [`RcQueuePair::enhancements`](crate::RcQueuePair::enhancements).
    pub enhancements: bool,
    /// Queue pairs name the format of time stamps in which the device runs. Devices that run in
    /// real time refuse others.
    pub timestamp_formats: bool,
    /// Memory may be registered [on demand](crate::memory::MemoryConfig::on_demand).
    pub on_demand: bool,
    /// One key may cover the whole address space
    /// ([`MemoryRegion::register_address_space`](crate::MemoryRegion::register_address_space)).
    pub implicit_paging: bool,
    /// The most bytes of memory on the device that a program can allocate
    /// ([`DeviceMemory`](crate::memory::DeviceMemory)); 0 if there is none.
    pub device_memory: u64,
}

/// The address of a port.
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

/// The port through which the queue pairs of a context send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Number of the port, from 1.
    pub number: u8,
    /// Index in the GID table of the port.
    pub gid_index: u8,
    /// The address of that entry, for peers.
    pub address: PortAddress,
    /// Whether every packet must have a global route. On InfiniBand, only some ports require it,
    /// such as those of virtual functions, which share the LID of their device.
    pub global_route: bool,
    /// Packets of the GID are datagrams of UDP (RoCE v2). Their class is the DSCP; that of others is
    /// the traffic class of the global route.
    pub uses_udp: bool,
    /// The largest path MTU that the port carries now.
    pub mtu: Mtu,
    /// Index in the partition table of the port.
    pub partition_index: u16,
    /// Whether the port is a limited member of that partition. Then packets from it to itself do
    /// not arrive.
    pub limited_member: bool,
    /// The set of counters in which the kernel counts events of the port's queue pairs; 0 if it
    /// does not, or does so by itself.
    pub counter_set: u8,
    /// The ports of a bonded card over which queue pairs are spread; 0 if it is not bonded, or the
    /// kernel spreads them.
    pub lag_ports: u8,
}

/// What a user may choose of a port; `None` for the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortOptions {
    /// Index in the GID table.
    pub gid_index: Option<u8>,
    /// A partition, by its key; the bit for full membership does not matter.
    pub partition_key: Option<u16>,
}

/// Fails if a user index does not fit its field.
pub(crate) fn check_user_index(index: u32) -> Result<(), Error> {
    if index >> 24 == 0 {
        return Ok(());
    }
    Err(Error::parameter("user index", index, "at most 24 bits"))
}

impl Capabilities {
    /// The format of time stamps that queue pairs name.
    pub(crate) fn timestamps(&self) -> TimestampFormat {
        if self.timestamp_formats { TimestampFormat::Default } else { TimestampFormat::FreeRunning }
    }
}

bitflags! {
    /// The rights of a key. Local reading is always allowed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u8 {
        /// Local receives, reads and atomics may write.
        const LOCAL_WRITE = 1 << 0;
        /// Peers may write; requires [`Self::LOCAL_WRITE`].
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may execute atomics; requires [`Self::LOCAL_WRITE`].
        const REMOTE_ATOMIC = 1 << 3;
    }
}

barewire_layouts::with_setters! {
    /// The peer of a connection, and the parameters of the connection.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RcPath {
        /// The peer's queue pair number (24 bits).
        pub remote_qpn: u32,
        /// The peer's port.
        pub remote: PortAddress,
        /// Packet sequence number at which the peer starts (24 bits).
        pub receive_psn: u32,
        /// Packet sequence number at which this side starts (24 bits). `None` is that of
        /// [`RcQueuePair::address`](crate::RcQueuePair::address). Set one only if the peer expects
        /// another, as after a connection by librdmacm.
        pub send_psn: Option<u32>,
        /// Payload bytes per packet, limited by the port. Both sides must use the same:
        /// [`Self::to`] takes the limit of the peer's port.
        pub mtu: Mtu,
        /// Local acknowledge timeout as an exponent (5 bits): 4.096 us * 2^n; 0 waits forever.
        pub ack_timeout: u8,
        /// Retries before the connection fails (3 bits).
        pub retry_count: u8,
        /// Retries while the peer has no receive WQE (3 bits); 7 retries forever.
        pub rnr_retry: u8,
        /// How long the peer waits if this side has no receive WQE: an index to the table of the
        /// IBTA (5 bits).
        pub min_rnr_nak: u8,
        /// RDMA reads and atomics outstanding, as log2, limited by the device.
        pub log_max_reads: u8,
        /// The same for the reads and atomics of the peer. `None` is [`Self::log_max_reads`].
        pub log_peer_reads: Option<u8>,
        /// Traffic class of the packets: on RoCE, the six upper bits are the DSCP.
        pub traffic_class: u8,
        /// Service level (4 bits): on RoCE, the three lower bits are the Ethernet priority.
        pub service_level: u8,
        /// The enhancements (ECE) that both ends use. The end that connects first sets those that
        /// the other end [supports](crate::RcQueuePair::enhancements), and sends back those that
        /// its device [accepted](crate::RcQueuePair::accepted_enhancements), for the other end to
        /// set.
        pub enhancements: Enhancements,
    }
}

impl RcPath {
    /// A path to a peer's queue pair with the usual values: the MTU of the peer's port, which the
    /// port of this side limits further, so that both ends have the smaller one; seven retries
    /// after 2^16 * 4.096 us (268 ms), RNR retries forever with 0.64 ms between, 16 reads, no
    /// enhancements.
    ///
    /// The address is of the current connection: a reset at the peer makes another.
    pub fn to(peer: &RcAddress) -> Self {
        Self {
            remote_qpn: peer.number,
            remote: peer.port,
            receive_psn: peer.psn,
            send_psn: None,
            mtu: peer.mtu,
            ack_timeout: 16,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_nak: 12,
            log_max_reads: 4,
            log_peer_reads: None,
            traffic_class: 0,
            service_level: 0,
            enhancements: Enhancements::NONE,
        }
    }

    /// Fails if a value does not fit its field.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let fits = |what, value: u32, bits: u32| {
            if value >> bits == 0 {
                Ok(())
            } else {
                Err(Error::parameter(what, value, format!("0 to {}", (1 << bits) - 1)))
            }
        };
        fits("remote queue pair number", self.remote_qpn, 24)?;
        fits("receive PSN", self.receive_psn, 24)?;
        fits("send PSN", self.send_psn.unwrap_or(0), 24)?;
        fits("acknowledge timeout", self.ack_timeout.into(), 5)?;
        fits("retry count", self.retry_count.into(), 3)?;
        fits("RNR retry count", self.rnr_retry.into(), 3)?;
        fits("minimum RNR timer", self.min_rnr_nak.into(), 5)?;
        fits("log2 of outstanding reads", self.log_max_reads.into(), 3)?;
        fits("log2 of the peer's reads", self.log_peer_reads.unwrap_or(0).into(), 3)?;
        fits("service level", self.service_level.into(), 4)
    }
}
