//! Structures and constants of the uverbs ABI that this library implements (ib_user_verbs.h,
//! ib_user_ioctl_verbs.h, mlx5-abi.h). Names are those of the headers. Structures omit the response
//! address where the extended form of the command has none.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident: $bytes:literal { $($field:ident: $type:ty),+ $(,)? })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        #[allow(clippy::struct_field_names, reason = "the headers' own names")]
        pub(crate) struct $name { $(pub(crate) $field: $type),+ }
        const _: () = assert!(size_of::<$name>() == $bytes);
    )+};
}

pub(crate) use structures;

structures! {
    /// `mlx5_ib_alloc_ucontext_req_v2`.
    GetContext: 32 {
        total_num_bfregs: u32, num_low_latency_bfregs: u32, flags: u32, comp_mask: u32, max_cqe_version: u8, reserved: [u8; 7],
        lib_caps: u64,
    }
    /// `mlx5_ib_alloc_ucontext_resp`.
    GetContextResponse: 72 {
        qp_tab_size: u32, bf_reg_size: u32, tot_bfregs: u32, cache_line_size: u32, max_sq_desc_sz: u16, max_rq_desc_sz: u16,
        max_send_wqebb: u32, max_recv_wr: u32, max_srq_recv_wr: u32, num_ports: u16, flow_action_flags: u16, comp_mask: u32,
        response_length: u32, cqe_version: u8, cmds_supp_uhw: u8, eth_min_inline: u8, clock_info_versions: u8,
        hca_core_clock_offset: u64, log_uar_size: u32, num_uars_per_page: u32, num_dyn_bfregs: u32, dump_fill_mkey: u32,
    }
    /// `ib_uverbs_query_device_resp`.
    QueryDevice: 176 {
        fw_ver: u64, node_guid: [u8; 8], sys_image_guid: [u8; 8], max_mr_size: u64, page_size_cap: u64, vendor_id: u32,
        vendor_part_id: u32, hw_ver: u32, max_qp: u32, max_qp_wr: u32, device_cap_flags: u32, max_sge: u32, max_sge_rd: u32,
        max_cq: u32, max_cqe: u32, max_mr: u32, max_pd: u32, max_qp_rd_atom: u32, max_ee_rd_atom: u32, max_res_rd_atom: u32,
        max_qp_init_rd_atom: u32, max_ee_init_rd_atom: u32, atomic_cap: u32, max_ee: u32, max_rdd: u32, max_mw: u32,
        max_raw_ipv6_qp: u32, max_raw_ethy_qp: u32, max_mcast_grp: u32, max_mcast_qp_attach: u32,
        max_total_mcast_qp_attach: u32, max_ah: u32, max_fmr: u32, max_map_per_fmr: u32, max_srq: u32, max_srq_wr: u32,
        max_srq_sge: u32, max_pkeys: u16, local_ca_ack_delay: u8, phys_port_cnt: u8, reserved: [u8; 4],
    }
    /// `ib_uverbs_ex_query_device_resp`.
    QueryDeviceEx: 304 {
        base: QueryDevice, comp_mask: u32, response_length: u32, odp_general: u64, odp_services: [u32; 4], timestamp_mask: u64, hca_core_clock: u64,
        device_cap_flags_ex: u64, rss_caps: [u32; 4], max_wq_type_rq: u32, raw_packet_caps: u32, tm_caps: [u32; 6],
        max_cq_moderation_count: u16, max_cq_moderation_period: u16, reserved: u32, max_dm_size: u64, xrc_odp_caps: u32,
        reserved_2: u32,
    }
    /// `ib_uverbs_query_port_resp_ex`.
    QueryPort: 48 {
        port_cap_flags: u32, max_msg_sz: u32, bad_pkey_cntr: u32, qkey_viol_cntr: u32, gid_tbl_len: u32, pkey_tbl_len: u16,
        lid: u16, sm_lid: u16, state: u8, max_mtu: u8, active_mtu: u8, lmc: u8, max_vl_num: u8, sm_sl: u8,
        subnet_timeout: u8, init_type_reply: u8, active_width: u8, active_speed: u8, phys_state: u8, link_layer: u8,
        flags: u8, reserved: u8, port_cap_flags2: u16, reserved_2: [u8; 6],
    }
    /// `ib_uverbs_gid_entry`.
    GidEntry: 32 { gid: [u8; 16], gid_index: u32, port_num: u32, gid_type: u32, netdev_ifindex: u32 }
    /// `ib_uverbs_reg_mr`.
    RegMr: 40 { response: u64, start: u64, length: u64, hca_va: u64, pd_handle: u32, access_flags: u32 }
    /// `ib_uverbs_reg_mr_resp`.
    RegMrResponse: 12 { mr_handle: u32, lkey: u32, rkey: u32 }
    /// `ib_uverbs_sge`.
    Segment: 16 { addr: u64, length: u32, lkey: u32 }
    /// `ib_uverbs_rereg_mr`.
    ReregMr: 48 {
        response: u64, mr_handle: u32, flags: u32, start: u64, length: u64, hca_va: u64, pd_handle: u32, access_flags: u32,
    }
    /// `ib_uverbs_resize_cq`.
    ResizeCq: 16 { response: u64, cq_handle: u32, cqe: u32 }
    /// `mlx5_ib_resize_cq`.
    ResizeCqDriver: 16 { buf_addr: u64, cqe_size: u16, reserved: [u8; 6] }
    /// `ib_uverbs_ex_modify_cq`.
    ModifyCq: 16 { cq_handle: u32, attr_mask: u32, cq_count: u16, cq_period: u16, reserved: u32 }
    /// `mlx5_ib_create_cq`.
    CreateCqDriver: 32 {
        buf_addr: u64, db_addr: u64, cqe_size: u32, cqe_comp_en: u8, cqe_comp_res_format: u8, flags: u16, uar_page_index: u16,
        reserved: [u8; 6],
    }
    /// `ib_uverbs_open_xrcd`.
    OpenXrcd: 16 { response: u64, fd: i32, oflags: u32 }
    /// `ib_uverbs_alloc_mw`.
    AllocMw: 16 { response: u64, pd_handle: u32, mw_type: u8, reserved: [u8; 3] }
    /// `mlx5_ib_alloc_mw`.
    AllocMwDriver: 8 { comp_mask: u32, num_klms: u8, reserved1: u8, reserved2: u16 }
    /// `ib_uverbs_alloc_mw_resp`.
    AllocMwResponse: 8 { mw_handle: u32, rkey: u32 }
    /// `ib_uverbs_open_qp`.
    OpenQp: 32 { response: u64, user_handle: u64, pd_handle: u32, qpn: u32, qp_type: u8, reserved: [u8; 7] }
    /// `ib_uverbs_create_qp_resp`.
    OpenQpResponse: 32 { qp_handle: u32, qpn: u32, cap: QpCap, reserved: u32 }
    /// `mlx5_ib_modify_qp`.
    ModifyQpDriver: 16 { comp_mask: u32, burst: [u32; 2], ece_options: u32 }
    /// `mlx5_ib_modify_qp_resp`.
    ModifyQpDriverResponse: 16 { response_length: u32, dctn: u32, ece_options: u32, reserved: u32 }
    /// `mlx5_ib_query_device_resp`.
    QueryDeviceDriver: 104 {
        comp_mask: u32, response_length: u32, tso_caps: [u32; 2], rss_caps: [u64; 2], cqe_comp_max_num: u32,
        cqe_comp_supported_format: u32, packet_pacing_caps: [u32; 4], mpw: u32, flags: u32, sw_parsing_caps: [u32; 2],
        striding_rq_caps: [u32; 6], tunnel_offloads_caps: u32, dci_streams_caps: [u8; 2], reserved: u16,
    }
    /// `ib_uverbs_qp_cap`.
    QpCap: 20 { max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32, max_inline_data: u32 }
    /// `mlx5_ib_create_qp`.
    CreateQpDriver: 56 {
        buf_addr: u64, db_addr: u64, sq_wqe_count: u32, rq_wqe_count: u32, rq_wqe_shift: u32, flags: u32, uidx: u32,
        bfreg_index: u32, access_key: u64, ece_options: u32, dci_streams: [u8; 2], reserved: [u8; 2],
    }
    /// `mlx5_ib_create_qp_resp`.
    CreateQpDriverResponse: 40 {
        bfreg_index: u32, ece_options: u32, comp_mask: u32, raw_packets: [u32; 5], icm_address: u64,
    }
    /// `mlx5_ib_create_srq`.
    CreateSrqDriver: 32 { buf_addr: u64, db_addr: u64, flags: u32, reserved: u32, uidx: u32, reserved_1: u32 }
    /// `ib_uverbs_modify_srq`.
    ModifySrq: 16 { srq_handle: u32, attr_mask: u32, max_wr: u32, srq_limit: u32 }
    /// `ib_uverbs_query_srq`.
    QuerySrq: 16 { response: u64, srq_handle: u32, reserved: u32 }
    /// `ib_uverbs_query_srq_resp`.
    QuerySrqResponse: 16 { max_wr: u32, max_sge: u32, srq_limit: u32, reserved: u32 }
    /// `ib_uverbs_qp_dest`.
    QpDestination: 32 {
        dgid: [u8; 16], flow_label: u32, dlid: u16, reserved: u16, sgid_index: u8, hop_limit: u8, traffic_class: u8, sl: u8,
        src_path_bits: u8, static_rate: u8, is_global: u8, port_num: u8,
    }
    /// `ib_uverbs_modify_qp`.
    ModifyQp: 112 {
        dest: QpDestination, alt_dest: QpDestination, qp_handle: u32, attr_mask: u32, qkey: u32, rq_psn: u32, sq_psn: u32,
        dest_qp_num: u32, qp_access_flags: u32, pkey_index: u16, alt_pkey_index: u16, qp_state: u8, cur_qp_state: u8,
        path_mtu: u8, path_mig_state: u8, en_sqd_async_notify: u8, max_rd_atomic: u8, max_dest_rd_atomic: u8,
        min_rnr_timer: u8, port_num: u8, timeout: u8, retry_cnt: u8, rnr_retry: u8, alt_port_num: u8, alt_timeout: u8,
        reserved: [u8; 2],
    }
    /// `ib_uverbs_query_qp`.
    QueryQp: 16 { response: u64, qp_handle: u32, attr_mask: u32 }
    /// `ib_uverbs_query_qp_resp`.
    QueryQpResponse: 128 {
        dest: QpDestination, alt_dest: QpDestination, cap: QpCap, qkey: u32, rq_psn: u32, sq_psn: u32, dest_qp_num: u32,
        qp_access_flags: u32, pkey_index: u16, alt_pkey_index: u16, qp_state: u8, cur_qp_state: u8, path_mtu: u8,
        path_mig_state: u8, sq_draining: u8, max_rd_atomic: u8, max_dest_rd_atomic: u8, min_rnr_timer: u8, port_num: u8,
        timeout: u8, retry_cnt: u8, rnr_retry: u8, alt_port_num: u8, alt_timeout: u8, sq_sig_all: u8, reserved: [u8; 5],
    }
    /// `ib_uverbs_ah_attr`.
    AhAttribute: 32 {
        dgid: [u8; 16], flow_label: u32, sgid_index: u8, hop_limit: u8, traffic_class: u8, reserved: u8, dlid: u16, sl: u8,
        src_path_bits: u8, static_rate: u8, is_global: u8, port_num: u8, reserved_1: u8,
    }
    /// `ib_uverbs_create_ah`.
    CreateAh: 56 { response: u64, user_handle: u64, pd_handle: u32, reserved: u32, attr: AhAttribute }
    /// `mlx5_ib_create_ah_resp`.
    CreateAhDriver: 16 { response_length: u32, dmac: [u8; 6], reserved: [u8; 6] }
    /// `ib_uverbs_attach_mcast`, `ib_uverbs_detach_mcast`.
    Multicast: 24 { gid: [u8; 16], qp_handle: u32, mlid: u16, reserved: u16 }
    /// `ib_uverbs_destroy_cq_resp`.
    DestroyCqResponse: 8 { comp_events_reported: u32, async_events_reported: u32 }
    /// `ib_uverbs_async_event_desc`.
    AsyncEvent: 16 { element: u64, event_type: u32, reserved: u32 }
}

/// `ib_uverbs_write_cmds`.
pub(crate) mod command {
    pub(crate) const QUERY_DEVICE: u32 = 1;
    pub(crate) const ALLOC_PD: u32 = 3;
    pub(crate) const CREATE_AH: u32 = 5;
    pub(crate) const REG_MR: u32 = 9;
    pub(crate) const REREG_MR: u32 = 11;
    pub(crate) const ALLOC_MW: u32 = 14;
    pub(crate) const CREATE_COMP_CHANNEL: u32 = 17;
    pub(crate) const RESIZE_CQ: u32 = 19;
    pub(crate) const QUERY_QP: u32 = 25;
    pub(crate) const MODIFY_QP: u32 = 26;
    pub(crate) const ATTACH_MCAST: u32 = 30;
    pub(crate) const DETACH_MCAST: u32 = 31;
    pub(crate) const MODIFY_SRQ: u32 = 33;
    pub(crate) const QUERY_SRQ: u32 = 34;
    pub(crate) const OPEN_XRCD: u32 = 37;
    pub(crate) const OPEN_QP: u32 = 40;
    /// Marks the extended form of a command.
    pub(crate) const EXTENDED: u32 = 1 << 31;
    pub(crate) const QUERY_DEVICE_EX: u32 = EXTENDED | QUERY_DEVICE;
    pub(crate) const MODIFY_QP_EX: u32 = EXTENDED | MODIFY_QP;
    pub(crate) const CREATE_FLOW_EX: u32 = EXTENDED | 0x32;
    pub(crate) const DESTROY_FLOW_EX: u32 = EXTENDED | 0x33;
    pub(crate) const CREATE_WQ_EX: u32 = EXTENDED | 0x34;
    pub(crate) const MODIFY_WQ_EX: u32 = EXTENDED | 0x35;
    pub(crate) const DESTROY_WQ_EX: u32 = EXTENDED | 0x36;
    pub(crate) const CREATE_RWQ_IND_TBL_EX: u32 = EXTENDED | 0x37;
    pub(crate) const DESTROY_RWQ_IND_TBL_EX: u32 = EXTENDED | 0x38;
    pub(crate) const MODIFY_CQ_EX: u32 = EXTENDED | 0x39;
}

/// Attributes of every method that takes driver-specific data.
pub(crate) mod driver {
    pub(crate) const IN: u16 = 0x1000;
    pub(crate) const OUT: u16 = 0x1001;
}

/// `MLX5_QP_FLAG_...`.
pub(crate) mod qp_flag {
    pub(crate) const SCATTER_CQE: u32 = 1 << 1;
    pub(crate) const TYPE_DCT: u32 = 1 << 4;
    pub(crate) const TYPE_DCI: u32 = 1 << 5;
    pub(crate) const ALLOW_SCATTER_CQE: u32 = 1 << 8;
    pub(crate) const UAR_PAGE_INDEX: u32 = 1 << 10;
    pub(crate) const DCI_STREAM: u32 = 1 << 11;
}

/// `ib_uverbs_access_flags`.
pub(crate) mod access {
    pub(crate) const LOCAL_WRITE: u32 = 1 << 0;
    pub(crate) const REMOTE_WRITE: u32 = 1 << 1;
    pub(crate) const REMOTE_READ: u32 = 1 << 2;
    pub(crate) const REMOTE_ATOMIC: u32 = 1 << 3;
    pub(crate) const MW_BIND: u32 = 1 << 4;
    pub(crate) const ZERO_BASED: u32 = 1 << 5;
    pub(crate) const ON_DEMAND: u32 = 1 << 6;
    pub(crate) const HUGETLB: u32 = 1 << 7;
    pub(crate) const RELAXED_ORDERING: u32 = 1 << 20;
    /// Rights that a device may ignore.
    pub(crate) const OPTIONAL: u32 = 0x3ff0_0000;
}
