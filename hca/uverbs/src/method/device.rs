//! Methods of the device: context, ports and GIDs.

use std::net::IpAddr;
use std::sync::Arc;

use barewire_layouts::command::capability::{
    CapabilityMode, CapabilityPage, HcaCap, OdpCap, QueryHcaCapIn, QueryHcaCapOut, op_mod,
};
use barewire_layouts::command::port::{
    HcaVportContext, NicVportContext, PortState, QueryHcaVportContextIn, QueryHcaVportContextOut,
    QueryNicVportContextIn, QueryNicVportContextOut,
};
use barewire_layouts::command::qp::Mtu;
use barewire_layouts::prm::{Field, View};
use barewire_layouts::tag::MAX_RENDEZVOUS_HEADER;
use zerocopy::{FromZeros, IntoBytes};

use crate::abi::{
    GetContext, GetContextResponse, GidEntry, QueryDevice, QueryDeviceDriver, QueryDeviceEx,
    QueryPort, driver,
};
use crate::adapter::{Adapter, Answer};
use crate::attributes::Attributes;
use crate::clock;
use crate::config::Link;
use crate::context::Context;
use crate::errno::Errno;
use crate::event::Channel;
use crate::object::{Object, Pd};

/// Interrupt vectors that a program may choose. All of them belong to one event queue.
pub(super) const VECTORS: u32 = 4;
/// `IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS`.
const CORE_SUPPORT: u64 = 1;
/// `enum ib_uverbs_gid_type`: InfiniBand, and RoCE version 2.
const GID_TYPES: [u32; 2] = [0, 2];
/// Index of the loopback interface, which carries the wire.
const INTERFACE: u32 = 1;

/// Largest number of receive and send WQEs.
const SEND_WQE_BYTES: u16 = 1024;
const RECEIVE_WQE_BYTES: u16 = 512;
/// Largest number of data segments of a WQE, as on a ConnectX.
const SEGMENTS: u32 = 30;
const RDMA_READ_SEGMENTS: u32 = 30;

/// `MLX5_IB_ALLOC_UCTX_DEVX`.
const DEVX: u32 = 1;

/// `UVERBS_METHOD_GET_CONTEXT`.
pub(super) fn get_context(context: &Context, call: &Attributes) -> Result<(), Errno> {
    call.only(&[0, 1, driver::IN, driver::OUT])?;
    let request: GetContext = call.structure(driver::IN)?;
    if request.total_num_bfregs == 0 {
        return Err(Errno::INVALID);
    }
    let devx = request.flags & DEVX != 0;
    if devx && !context.adapter.devx {
        return Err(Errno(libc::EPERM));
    }
    context.state().devx = devx;
    answer_context(context, call)
}

/// `UVERBS_METHOD_QUERY_CONTEXT`.
pub(super) fn query_context(context: &Context, call: &Attributes) -> Result<(), Errno> {
    call.only(&[0, 1, 0x1000])?;
    call.put_word(0, VECTORS)?;
    call.put(1, &CORE_SUPPORT.to_ne_bytes())?;
    call.put(0x1000, response(&context.adapter)?.as_bytes())
}

fn answer_context(context: &Context, call: &Attributes) -> Result<(), Errno> {
    call.put_word(0, VECTORS)?;
    call.put(1, &CORE_SUPPORT.to_ne_bytes())?;
    call.put(driver::OUT, response(&context.adapter)?.as_bytes())
}

/// Device facts for libmlx5. A context has no UAR pages (`tot_bfregs` 0); each is a separate
/// object.
/// `MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_ECE`: programs may set enhancements of connections.
const ENHANCEMENTS: u32 = 1 << 2;

fn response(adapter: &Adapter) -> Result<GetContextResponse, Errno> {
    let answer = capabilities(adapter)?;
    let general = general(&answer)?;
    let entries = 1 << general.get(HcaCap::LOG_MAX_QP_SZ);
    // Otherwise libmlx5 uses no BlueFlame (linux main.c: `mlx5_ib_alloc_ucontext`).
    let combines = !adapter.device.requirements().no_write_combining;
    Ok(GetContextResponse {
        qp_tab_size: 1 << general.get(HcaCap::LOG_MAX_QP),
        bf_reg_size: if combines { 1 << general.get(HcaCap::LOG_BF_REG_SIZE) } else { 0 },
        tot_bfregs: 0,
        cache_line_size: 64,
        max_sq_desc_sz: SEND_WQE_BYTES,
        max_rq_desc_sz: RECEIVE_WQE_BYTES,
        max_send_wqebb: entries,
        max_recv_wr: entries,
        max_srq_recv_wr: (1 << general.get(HcaCap::LOG_MAX_SRQ_SZ)) - 1,
        num_ports: adapter.ports.into(),
        flow_action_flags: 0,
        comp_mask: if general.get(HcaCap::ECE) { ENHANCEMENTS } else { 0 },
        response_length: size_of::<GetContextResponse>() as u32,
        cqe_version: 1,
        // QUERY_DEVICE and CREATE_AH take driver data.
        cmds_supp_uhw: 3,
        // `MLX5_USER_INLINE_MODE_NONE`: no header needs to be in the WQE.
        eth_min_inline: 1,
        // Version 1 of `mlx5_ib_clock_info` can be mapped.
        clock_info_versions: 1,
        hca_core_clock_offset: 0,
        log_uar_size: 12,
        num_uars_per_page: 1,
        num_dyn_bfregs: 512,
        dump_fill_mkey: 0,
    })
}

fn capabilities(adapter: &Adapter) -> Result<Answer, Errno> {
    // Current values of the general capabilities.
    adapter.command::<QueryHcaCapIn>(|input| {
        input.set(QueryHcaCapIn::OP_MOD, 1);
    })
}

fn general(answer: &Answer) -> Result<View<'_, HcaCap>, Errno> {
    Ok(answer.view::<QueryHcaCapIn>()?.nested(QueryHcaCapOut::GENERAL))
}

/// `ib_uverbs_query_device_resp`.
pub(super) fn attributes(adapter: &Adapter) -> Result<QueryDevice, Errno> {
    /// Bits of `device_cap_flags`: bad P_Key counter, port active event, RNR NAK generation, memory
    /// windows (type 1 and 2B) and XRC.
    const FLAGS: u32 = 1 << 1 | 1 << 10 | 1 << 12 | 1 << 17 | 1 << 24 | 1 << 20;
    /// `IB_ATOMIC_HCA`.
    const ATOMIC_HCA: u32 = 1;
    let facts = adapter.device.requirements().adapter.facts();
    let [major, minor, patch] = facts.firmware;
    let answer = capabilities(adapter)?;
    let general = general(&answer)?;
    let guid = adapter.guid()?;
    let reads = 1 << general.get(HcaCap::LOG_MAX_RA_RES_QP);
    let queue_pairs = 1 << general.get(HcaCap::LOG_MAX_QP);
    let (groups, members) =
        (1_u32 << general.get(HcaCap::LOG_MAX_MCG), general.get(HcaCap::MAX_QP_MCG));
    let receive_entries = 1_u32 << general.get(HcaCap::LOG_MAX_SRQ_SZ);
    Ok(QueryDevice {
        fw_ver: u64::from(major) << 32 | u64::from(minor) << 16 | u64::from(patch),
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_ffff_ffff_f000,
        vendor_id: 0x02c9,
        vendor_part_id: facts.part,
        hw_ver: 0,
        max_qp: queue_pairs,
        max_qp_wr: 1 << general.get(HcaCap::LOG_MAX_QP_SZ),
        device_cap_flags: FLAGS,
        max_sge: SEGMENTS,
        max_sge_rd: RDMA_READ_SEGMENTS,
        max_cq: 1 << general.get(HcaCap::LOG_MAX_CQ),
        max_cqe: (1 << general.get(HcaCap::LOG_MAX_CQ_SZ)) - 1,
        max_mr: 1 << general.get(HcaCap::LOG_MAX_MKEY),
        max_pd: 1 << general.get(HcaCap::LOG_MAX_PD),
        max_qp_rd_atom: reads,
        max_ee_rd_atom: 0,
        max_res_rd_atom: reads * queue_pairs,
        max_qp_init_rd_atom: 1 << general.get(HcaCap::LOG_MAX_RA_REQ_QP),
        max_ee_init_rd_atom: 0,
        atomic_cap: ATOMIC_HCA,
        max_ee: 0,
        max_rdd: 0,
        max_mw: 1 << general.get(HcaCap::LOG_MAX_MKEY),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: groups,
        max_mcast_qp_attach: members,
        max_total_mcast_qp_attach: groups.saturating_mul(members),
        max_ah: i32::MAX as u32,
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: 1 << general.get(HcaCap::LOG_MAX_SRQ),
        max_srq_wr: receive_entries - 1,
        max_srq_sge: u32::from(RECEIVE_WQE_BYTES) / 16 - 1,
        max_pkeys: adapter.device.requirements().partitions(),
        local_ca_ack_delay: 16,
        phys_port_cnt: adapter.ports,
        reserved: [0; 4],
    })
}

/// `ib_uverbs_ex_query_device_resp`.
pub(super) fn attributes_ex(adapter: &Adapter) -> Result<QueryDeviceEx, Errno> {
    /// `IB_ODP_SUPPORT`, `IB_ODP_SUPPORT_IMPLICIT`.
    const ODP: u64 = 1 << 0 | 1 << 1;
    let base = attributes(adapter)?;
    let answer = adapter.command::<QueryHcaCapIn>(|input| {
        input.set(QueryHcaCapIn::OP_MOD, op_mod(CapabilityPage::Odp, CapabilityMode::Current));
    })?;
    let page = answer.view::<QueryHcaCapIn>()?.nested(QueryHcaCapOut::ODP);
    // Verbs and the device list the same services in opposite bit order (`enum
    // ib_odp_transport_cap_bits`).
    let services = |field: Field<OdpCap>| page.get(field).reverse_bits();
    Ok(QueryDeviceEx {
        base,
        comp_mask: 0,
        response_length: size_of::<QueryDeviceEx>() as u32,
        odp_general: ODP,
        odp_services: [services(OdpCap::RC_ODP_CAPS), 0, services(OdpCap::UD_ODP_CAPS), 0],
        // 63 bits, as in every listing of an adapter.
        timestamp_mask: u64::MAX >> 1,
        hca_core_clock: clock::KILOHERTZ,
        device_cap_flags_ex: base.device_cap_flags.into(),
        rss_caps: [0; 4],
        max_wq_type_rq: 0,
        raw_packet_caps: 0,
        tm_caps: tag_matching(adapter)?,
        max_cq_moderation_count: u16::MAX,
        max_cq_moderation_period: 0xfff,
        reserved: 0,
        max_dm_size: super::device_memory::BYTES,
        xrc_odp_caps: services(OdpCap::XRC_ODP_CAPS),
        reserved_2: 0,
    })
}

/// `ib_uverbs_tm_caps`, as mlx5_ib computes them.
pub(super) fn tag_matching(adapter: &Adapter) -> Result<[u32; 6], Errno> {
    /// `IB_TM_CAP_RNDV_RC`.
    const RC: u32 = 1 << 0;
    let answer = capabilities(adapter)?;
    let general = general(&answer)?;
    if !general.get(HcaCap::TAG_MATCHING) || !general.get(HcaCap::RNDV_OFFLOAD_RC) {
        return Ok([0; 6]);
    }
    let tags = (1 << general.get(HcaCap::LOG_TAG_MATCHING_LIST_SZ)) - 1;
    let operations = 1 << general.get(HcaCap::LOG_MAX_QP_SZ);
    Ok([MAX_RENDEZVOUS_HEADER as u32, tags, RC, operations, 1, 0])
}

/// `mlx5_ib_query_device_resp`, limited to `room` bytes.
pub(super) fn own_attributes(adapter: &Adapter, room: usize) -> Result<QueryDeviceDriver, Errno> {
    /// `enum mlx5_ib_cqe_comp_res_format`: all three.
    const FORMATS: u32 = 0b111;
    /// `enum mlx5_ib_query_dev_resp_flags`: 128-byte CQE compression and padding, and inline
    /// receive of DC targets.
    const FLAGS: u32 = 1 << 0 | 1 << 1 | 1 << 3;
    const COMPRESSED: u32 = 64;
    let answer = capabilities(adapter)?;
    let general = general(&answer)?;
    Ok(QueryDeviceDriver {
        response_length: size_of::<QueryDeviceDriver>().min(room) as u32,
        cqe_comp_max_num: COMPRESSED,
        cqe_comp_supported_format: FORMATS,
        flags: FLAGS,
        dci_streams_caps: [
            general.get(HcaCap::LOG_MAX_DCI_STREAM_CHANNELS),
            general.get(HcaCap::LOG_MAX_DCI_ERRORED_STREAMS),
        ],
        ..QueryDeviceDriver::new_zeroed()
    })
}

/// `UVERBS_METHOD_QUERY_PORT`.
pub(super) fn query_port(context: &Context, call: &Attributes) -> Result<(), Errno> {
    call.only(&[0, 1])?;
    let number = call.number(0)?;
    let number = check_port(&context.adapter, number).map_err(|error| {
        error.because(format_args!("port_num: the device has no port {number}"))
    })?;
    call.put(1, port(&context.adapter, number)?.as_bytes())
}

/// Returns the LID of a port.
pub(crate) fn lid(adapter: &Adapter, number: u8) -> Result<u16, Errno> {
    Ok(port(adapter, check_port(adapter, number)?)?.lid)
}

/// Returns the port with this number.
pub(super) fn check_port(adapter: &Adapter, number: impl Into<u64>) -> Result<u8, Errno> {
    let known = 1..=u64::from(adapter.ports);
    Some(number.into())
        .filter(|number| known.contains(number))
        .map(|number| number as u8)
        .ok_or(Errno::INVALID)
}

/// Returns whether the link of a port is up.
pub(crate) fn is_up(adapter: &Adapter, number: u8) -> Result<bool, Errno> {
    let answer = adapter.command::<QueryHcaVportContextIn>(|input| {
        input.set(QueryHcaVportContextIn::PORT_NUM, number);
    })?;
    let view = answer.view::<QueryHcaVportContextIn>()?;
    let vport = view.nested(QueryHcaVportContextOut::HCA_VPORT_CONTEXT);
    Ok(vport.get(HcaVportContext::PORT_STATE) == Ok(PortState::Active))
}

fn port(adapter: &Adapter, number: u8) -> Result<QueryPort, Errno> {
    /// `enum ib_port_state`: down and active; physical state: disabled and link up.
    const STATES: [(u8, u8); 2] = [(1, 3), (4, 5)];
    /// 4 lanes; NDR.
    const WIDTH: u8 = 2;
    const SPEED: u8 = 128;
    /// Capability flags: IP-based GIDs, connection manager.
    const IP_BASED_GIDS: u32 = 1 << 26;
    const CONNECTION_MANAGER: u32 = 1 << 16;
    let answer = adapter.command::<QueryHcaVportContextIn>(|input| {
        input.set(QueryHcaVportContextIn::PORT_NUM, number);
    })?;
    let view = answer.view::<QueryHcaVportContextIn>()?;
    let vport = view.nested(QueryHcaVportContextOut::HCA_VPORT_CONTEXT);
    let (state, physical) = STATES[usize::from(is_up(adapter, number)?)];
    let general_answer = capabilities(adapter)?;
    let longest = 1 << general(&general_answer)?.get(HcaCap::LOG_MAX_MSG);
    let roce = adapter.link == Link::Roce;
    let active_mtu = active_mtu(adapter)?;
    Ok(QueryPort {
        port_cap_flags: if roce { IP_BASED_GIDS | CONNECTION_MANAGER } else { CONNECTION_MANAGER },
        max_msg_sz: longest,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        gid_tbl_len: adapter.gids()?.into(),
        pkey_tbl_len: adapter.device.requirements().partitions(),
        lid: vport.get(HcaVportContext::LID),
        sm_lid: u16::from(!roce),
        state,
        max_mtu: Mtu::Bytes4096 as u8,
        active_mtu: active_mtu as u8,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 18,
        init_type_reply: 0,
        active_width: WIDTH,
        active_speed: SPEED,
        phys_state: physical,
        link_layer: if roce { 2 } else { 1 },
        // `IB_UVERBS_QPF_GRH_REQUIRED`.
        flags: u8::from(vport.get(HcaVportContext::GRH_REQUIRED)),
        reserved: 0,
        port_cap_flags2: 0,
        reserved_2: [0; 6],
    })
}

/// Returns the largest path MTU of the ports.
pub(crate) fn active_mtu(adapter: &Adapter) -> Result<Mtu, Errno> {
    let answer = adapter.command::<QueryNicVportContextIn>(|_| {})?;
    let view = answer.view::<QueryNicVportContextIn>()?;
    let ethernet =
        view.nested(QueryNicVportContextOut::NIC_VPORT_CONTEXT).get(NicVportContext::MTU);
    Mtu::within(ethernet).ok_or(Errno::IO)
}

/// Returns an error if the index exceeds the GID table.
pub(super) fn check_gid(adapter: &Adapter, index: impl Into<u64>) -> Result<u16, Errno> {
    let gids = adapter.gids()?;
    u16::try_from(index.into()).ok().filter(|&index| index < gids).ok_or(Errno::INVALID)
}

/// Returns an error if the port has no such GID, or if it and that of the `peer` have addresses of
/// different IP versions, between which the kernel finds no route (linux addr.c:
/// `rdma_resolve_ip`).
pub(super) fn check_route(
    adapter: &Adapter,
    (port, index): (u8, u8),
    peer: Option<[u8; 16]>,
) -> Result<(), Errno> {
    let index = check_gid(adapter, index).map_err(|error| {
        error.because("ah_attr.grh.sgid_index: the port's table has no such entry")
    })?;
    let address = |gid: [u8; 16]| IpAddr::from(gid).to_canonical();
    let peer = peer.map(address).filter(|peer| !peer.is_multicast());
    let Some(peer) = peer.filter(|_| adapter.link == Link::Roce) else { return Ok(()) };
    match adapter.gid(port, index)?.map(|own| address(own.gid)) {
        Some(own) if own.is_ipv4() != peer.is_ipv4() => Err(Errno::INVALID.because(format_args!(
            "grh: sgid_index {index} and dgid {peer} are of different IP versions"
        ))),
        _ => Ok(()),
    }
}

fn gid(adapter: &Adapter, port: u8, index: u16) -> Result<Option<GidEntry>, Errno> {
    let roce = adapter.link == Link::Roce;
    Ok(adapter.gid(port, index)?.map(|entry| GidEntry {
        gid: entry.gid,
        gid_index: index.into(),
        port_num: port.into(),
        gid_type: GID_TYPES[usize::from(roce)],
        netdev_ifindex: if roce { INTERFACE } else { 0 },
    }))
}

/// `UVERBS_METHOD_QUERY_GID_ENTRY`.
pub(super) fn gid_entry(context: &Context, call: &Attributes) -> Result<(), Errno> {
    call.only(&[0, 1, 2, 3])?;
    let port = check_port(&context.adapter, call.number(0)?)?;
    if call.optional_number(2)?.unwrap_or(0) != 0 {
        return Err(Errno::INVALID);
    }
    let index = check_gid(&context.adapter, call.number(1)?)?;
    call.put(3, gid(&context.adapter, port, index)?.ok_or(Errno(libc::ENODATA))?.as_bytes())
}

/// `UVERBS_METHOD_QUERY_GID_TABLE`: all entries in use, of every port.
pub(super) fn gid_table(context: &Context, call: &Attributes) -> Result<(), Errno> {
    call.only(&[0, 1, 2, 3])?;
    let size = usize::try_from(call.number(0)?).map_err(|_| Errno::INVALID)?;
    if size == 0 || call.optional_number(1)?.unwrap_or(0) != 0 {
        return Err(Errno::INVALID);
    }
    let room = call.room(2) / size;
    let (mut bytes, mut count) = (Vec::new(), 0_usize);
    let gids = context.adapter.gids()?;
    let places =
        (1..=context.adapter.ports).flat_map(|port| (0..gids).map(move |index| (port, index)));
    for (port, index) in places {
        let Some(entry) = gid(&context.adapter, port, index)? else { continue };
        count += 1;
        if count > room {
            return Err(Errno::INVALID);
        }
        bytes.extend(entry.as_bytes().iter().take(size));
        bytes.resize(count * size, 0);
    }
    call.put(2, &bytes)?;
    call.put(3, &(count as u64).to_ne_bytes())
}

/// `UVERBS_METHOD_INFO_HANDLES`.
pub(super) fn handles(context: &Context, call: &Attributes) -> Result<(), Errno> {
    call.only(&[0, 1, 2])?;
    let is: fn(&Object) -> bool = match call.number(0)? {
        1 => |object| matches!(object, Object::Pd(_)),
        3 => |object| matches!(object, Object::Cq(_)),
        4 => |object| matches!(object, Object::Qp(_)),
        5 => |object| matches!(object, Object::Srq(_)),
        6 => |object| matches!(object, Object::Ah { .. }),
        7 => |object| matches!(object, Object::Mr(_)),
        8 => |object| matches!(object, Object::Mw { .. }),
        10 => |object| matches!(object, Object::Xrcd(_)),
        _ => return Err(Errno::INVALID),
    };
    let handles = context.state().objects.handles(is);
    let room = call.room(2) / size_of::<u32>();
    let bytes: Vec<u8> =
        handles.iter().take(room).flat_map(|handle| handle.to_ne_bytes()).collect();
    call.put(2, &bytes)?;
    call.put_word(1, handles.len() as u32)
}

/// `MLX5_IB_METHOD_PD_QUERY`: returns a protection domain's number in the device.
pub(super) fn query_pd(context: &Context, call: &Attributes) -> Result<(), Errno> {
    call.only(&[0x1000, 0x1001])?;
    let number = context.state().objects.get::<Pd>(call.handle(0x1000)?)?.number;
    call.put_word(0x1001, number)
}

/// `UVERBS_METHOD_ASYNC_EVENT_ALLOC`.
pub(super) fn asynchronous(context: &Context, call: &Attributes) -> Result<(), Errno> {
    call.only(&[0])?;
    let channel = Arc::new(Channel::new(false)?);
    channel.hand_over(|descriptor| call.put_handle(0, descriptor))?;
    context.adapter.events().on_device(&channel);
    context.state().asynchronous = Some(channel);
    Ok(())
}
