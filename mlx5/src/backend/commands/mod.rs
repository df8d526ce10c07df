//! Objects created by PRM commands.

mod cq;
mod device_memory;
mod memory;
mod pair;
mod shared;
mod target;

use barewire_layouts::command::capability::{
    ATOMIC_MASKED_COMPARE_SWAP, ATOMIC_MASKED_FETCH_ADD, AtomicCap, CapabilityMode, CapabilityPage,
    HcaCap, OdpCap, PortType, QueryHcaCapIn, QueryHcaCapOut, RoceCap, op_mod,
};
use barewire_layouts::command::gid::{
    QueryRoceAddressIn, QueryRoceAddressOut, RoceAddress, RoceVersion,
};
use barewire_layouts::command::pd::{AllocPdIn, AllocPdOut};
use barewire_layouts::command::port::{
    NicVportContext, QueryHcaVportPkeyIn, QueryHcaVportPkeyOut, QueryNicVportContextIn,
    QueryNicVportContextOut, is_limited, partition_index,
};
use barewire_layouts::command::qp::Mtu;
use barewire_layouts::doorbell::BLUEFLAME_HALF;
use barewire_layouts::prm::View;
use barewire_layouts::roce::UDP_SOURCE_PORTS;

use crate::channel::{Answer, Command, CommandChannel, Object};
use crate::error::Error;
use crate::values::{Capabilities, Port, PortAddress, PortOptions};

pub(crate) use cq::create_cq;
pub(crate) use device_memory::{allocate_device_memory, create_device_key};
pub(crate) use memory::{Key, Wanted, create_address_space_key, create_key, create_list_key};
pub(crate) use pair::create_pair;
#[cfg(feature = "verbs")]
pub(crate) use pair::query_pair;
pub(crate) use shared::{SharedObject, SharedOwner, SharedShape, allocate_xrcd, create_shared};
pub(crate) use target::{TargetWanted, create_target};

/// Queries the general capability page, and the atomic page if the device has one (QUERY_HCA_CAP).
pub(crate) fn capabilities(channel: &dyn CommandChannel) -> Result<Capabilities, Error> {
    let answer = capability_page(channel, CapabilityPage::General)?;
    let general = answer.fields().nested(QueryHcaCapOut::GENERAL);
    require(&general)?;
    let entries = |log: u8| 1 << log.min(31);
    let [atomics, masked_atomics, masked_dc_atomics] =
        if general.get(HcaCap::ATOMIC) { atomics(channel)? } else { [false; 3] };
    // The kernel refuses targets on bonded ports without it (linux qp.c: `mlx5_ib_modify_dct`).
    let is_bonded = channel.spreads_queue_pairs() && general.get(HcaCap::NUM_LAG_PORTS) > 1;
    let dynamic_connections =
        general.get(HcaCap::DCT) && (general.get(HcaCap::LAG_DCT) > 0 || !is_bonded);
    let port_type = general.get(HcaCap::PORT_TYPE)?;
    let (udp_source_ports, timestamps) = if port_type == PortType::Ethernet {
        roce(channel)?
    } else {
        (UDP_SOURCE_PORTS, general.get(HcaCap::SQ_TS_FORMAT))
    };
    // The kernel resumes page faults of WQEs only for queues of its own (linux odp.c:
    // `odp_get_rsc`), so those of queues that commands create would stop for ever.
    let on_demand =
        channel.resumes_page_faults() || general.get(HcaCap::PG) && faults_name_memory(channel)?;
    let device_memory =
        if general.get(HcaCap::DEVICE_MEMORY) { device_memory::device_memory(channel)? } else { 0 };
    Ok(Capabilities {
        // Doorbell records count modulo 2^16; a ring of more than half of that would be ambiguous.
        max_queue_entries: entries(general.get(HcaCap::LOG_MAX_QP_SZ)).min(1 << 15),
        max_shared_entries: shared_entries(&general),
        max_cq_entries: entries(general.get(HcaCap::LOG_MAX_CQ_SZ)).min(1 << 22),
        max_message: 1 << general.get(HcaCap::LOG_MAX_MSG),
        log_max_reads_requester: general.get(HcaCap::LOG_MAX_RA_REQ_QP).min(7),
        log_max_reads_responder: general.get(HcaCap::LOG_MAX_RA_RES_QP).min(7),
        atomics,
        masked_atomics,
        log_max_dc_reads: general.get(HcaCap::LOG_MAX_RA_REQ_DC).min(7),
        masked_dc_atomics,
        relaxed_keys: general.get(HcaCap::MKC_ORDER_WRITE_AFTER_WRITE_RO_ONLY),
        blueflame: general.get(HcaCap::BF),
        write_combining: channel.maps_write_combining(),
        port_type,
        udp_source_ports,
        dynamic_connections,
        enhancements: general.get(HcaCap::ECE),
        log_max_streams: (
            general.get(HcaCap::LOG_MAX_DCI_STREAM_CHANNELS),
            general.get(HcaCap::LOG_MAX_DCI_ERRORED_STREAMS),
        ),
        xrc: general.get(HcaCap::XRC),
        log_max_tags: if general.get(HcaCap::TAG_MATCHING) {
            general.get(HcaCap::LOG_TAG_MATCHING_LIST_SZ).min(15)
        } else {
            0
        },
        tag_rendezvous: general.get(HcaCap::RNDV_OFFLOAD_RC),
        striding: general.get(HcaCap::IB_STRIDING_WQ)
            && general.get(HcaCap::IB_STRIDING_WQ_CQ_FIRST_INDICATION)
            && general.get(HcaCap::EXT_STRIDE_NUM_RANGE),
        timestamp_formats: timestamps != 0,
        on_demand,
        implicit_paging: on_demand && channel.pages_address_space(),
        device_memory,
    })
}

/// The most WQEs of a shared receive queue: the smallest limit of SRQs, and of the rings of RMPs and
/// XRQs.
fn shared_entries(general: &View<'_, HcaCap>) -> u32 {
    let log = general.get(HcaCap::LOG_MAX_SRQ_SZ).min(general.get(HcaCap::LOG_MAX_WQ_SZ));
    1 << log.min(15)
}

/// Fails if the device lacks what queues of this driver rely on. Every adapter from ConnectX-4 on
/// has it; firmware of virtual functions may restrict it.
fn require(general: &View<'_, HcaCap>) -> Result<(), Error> {
    let lacks = |what, reason| Err(Error::Unsupported { what, reason });
    if general.get(HcaCap::CQE_VERSION) != 1 {
        return lacks("user index in completions", "cqe_version is not 1; use generic verbs");
    }
    if !general.get(HcaCap::CQ_OI) {
        return lacks("completion queues without overrun checks", "cq_oi is 0; use generic verbs");
    }
    if general.get(HcaCap::BF) && 1 << general.get(HcaCap::LOG_BF_REG_SIZE) < 2 * BLUEFLAME_HALF {
        return lacks("BlueFlame registers of 512 bytes", "log_bf_reg_size is below 9");
    }
    Ok(())
}

/// Returns whether results of 8 bytes are in host byte order, and whether the device has every
/// masked operation, of both sizes, as well: for queue pairs, and for DC.
fn atomics(channel: &dyn CommandChannel) -> Result<[bool; 3], Error> {
    const OPERATIONS: u16 = ATOMIC_MASKED_COMPARE_SWAP | ATOMIC_MASKED_FETCH_ADD;
    const SIZES: u16 = (size_of::<u32>() | size_of::<u64>()) as u16;
    let answer = capability_page(channel, CapabilityPage::Atomic)?;
    let page = answer.fields().nested(QueryHcaCapOut::ATOMIC);
    let host_order = page.get(AtomicCap::REQ_8B_ENDIANNESS_MODE) == 1;
    let masked = host_order && page.get(AtomicCap::ATOMIC_OPERATIONS) & OPERATIONS == OPERATIONS;
    let has_sizes = |sizes| masked && sizes & SIZES == SIZES;
    let (pairs, dc) = (page.get(AtomicCap::ATOMIC_SIZE_QP), page.get(AtomicCap::ATOMIC_SIZE_DC));
    Ok([host_order, has_sizes(pairs), has_sizes(dc)])
}

/// Returns whether page faults name memory instead of a WQE.
fn faults_name_memory(channel: &dyn CommandChannel) -> Result<bool, Error> {
    let answer = capability_page(channel, CapabilityPage::Odp)?;
    Ok(answer.fields().nested(QueryHcaCapOut::ODP).get(OdpCap::MEM_PAGE_FAULT))
}

/// The device's UDP source ports, the usual ones if it reports none, and its formats of time stamps
/// ([`RoceCap::QP_TS_FORMAT`]).
fn roce(channel: &dyn CommandChannel) -> Result<((u16, u16), u8), Error> {
    let answer = capability_page(channel, CapabilityPage::Roce)?;
    let page = answer.fields().nested(QueryHcaCapOut::ROCE);
    let (first, last) =
        (page.get(RoceCap::R_ROCE_MIN_SRC_UDP_PORT), page.get(RoceCap::R_ROCE_MAX_SRC_UDP_PORT));
    let ports = if first == 0 || first > last { UDP_SOURCE_PORTS } else { (first, last) };
    Ok((ports, page.get(RoceCap::QP_TS_FORMAT)))
}

fn capability_page(
    channel: &dyn CommandChannel,
    page: CapabilityPage,
) -> Result<Answer<QueryHcaCapIn>, Error> {
    let mut query = Command::<QueryHcaCapIn>::new();
    query.fields().set(QueryHcaCapIn::OP_MOD, op_mod(page, CapabilityMode::Current));
    query.send(channel)
}

/// The port that the channel selects, or else port 1 (QUERY_ROCE_ADDRESS, QUERY_HCA_VPORT_PKEY).
pub(crate) fn port(channel: &dyn CommandChannel, options: PortOptions) -> Result<Port, Error> {
    let lag_ports = if channel.spreads_queue_pairs() { lag_ports(channel)? } else { 0 };
    if let Some(port) = channel.port(options)? {
        return Ok(Port { lag_ports, ..port });
    }
    let gid_index = options.gid_index.unwrap_or(0);
    let mut query = Command::<QueryRoceAddressIn>::new();
    query
        .fields()
        .set(QueryRoceAddressIn::ROCE_ADDRESS_INDEX, gid_index.into())
        .set(QueryRoceAddressIn::VHCA_PORT_NUM, 1);
    let answer = query.send(channel)?;
    let entry = answer.fields().nested(QueryRoceAddressOut::ROCE_ADDRESS);
    let address = PortAddress {
        gid: entry.array(RoceAddress::SOURCE_L3_ADDRESS),
        mac: entry.array(RoceAddress::SOURCE_MAC),
        lid: 0,
    };
    if address.gid == [0; 16] {
        return Err(Error::parameter("GID index", gid_index, "that of an entry in use"));
    }
    let (partition_index, limited_member) = partition(channel, options.partition_key)?;
    Ok(Port {
        number: 1,
        gid_index,
        address,
        global_route: true,
        uses_udp: entry.get(RoceAddress::ROCE_VERSION)? == RoceVersion::V2,
        mtu: active_mtu(channel)?,
        partition_index,
        limited_member,
        counter_set: 0,
        lag_ports,
    })
}

/// The ports among which a queue pair of a bonded card may choose; 0 if there is no choice.
fn lag_ports(channel: &dyn CommandChannel) -> Result<u8, Error> {
    let answer = capability_page(channel, CapabilityPage::General)?;
    let general = answer.fields().nested(QueryHcaCapOut::GENERAL);
    let ports = general.get(HcaCap::NUM_LAG_PORTS);
    Ok(if general.get(HcaCap::LAG_TX_PORT_AFFINITY) && ports > 1 { ports } else { 0 })
}

/// The index of a partition in the port's table, and whether the port is a limited member.
fn partition(channel: &dyn CommandChannel, wanted: Option<u16>) -> Result<(u16, bool), Error> {
    let mut keys = Vec::new();
    // The device refuses the index after the last.
    while let Ok(key) = partition_key(channel, keys.len() as u16) {
        keys.push(key);
    }
    let index = partition_index(&keys, wanted).ok_or_else(|| {
        let keys: Vec<_> = keys.iter().map(|key| format!("{key:#06x}")).collect();
        let known = format!("a partition of the port, which are {}", keys.join(", "));
        Error::parameter("partition key", wanted.unwrap_or(0), known)
    })?;
    Ok((index, is_limited(keys[usize::from(index)])))
}

fn partition_key(channel: &dyn CommandChannel, index: u16) -> Result<u16, Error> {
    let mut query = Command::<QueryHcaVportPkeyIn>::new();
    query.fields().set(QueryHcaVportPkeyIn::PKEY_INDEX, index);
    Ok(query.send(channel)?.fields().get(QueryHcaVportPkeyOut::PKEY))
}

/// The largest path MTU of the function's Ethernet port (QUERY_NIC_VPORT_CONTEXT).
fn active_mtu(channel: &dyn CommandChannel) -> Result<Mtu, Error> {
    let answer = Command::<QueryNicVportContextIn>::new().send(channel)?;
    let context = answer.fields().nested(QueryNicVportContextOut::NIC_VPORT_CONTEXT);
    let ethernet = context.get(NicVportContext::MTU);
    Mtu::within(ethernet)
        .ok_or_else(|| Error::parameter("MTU of the port", ethernet, "at least 352 bytes"))
}

/// Allocates a protection domain (ALLOC_PD). Returns the object and its number.
pub(crate) fn allocate_pd(channel: &dyn CommandChannel) -> Result<(Box<dyn Object>, u32), Error> {
    let (object, answer) = Command::<AllocPdIn>::new().create(channel)?;
    let number = answer.fields().get(AllocPdOut::PD);
    Ok((object, number))
}
