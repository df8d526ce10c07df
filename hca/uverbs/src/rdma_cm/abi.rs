//! Structures and constants of the ABI of rdma_cm, version 4 (rdma_user_cm.h). Names are those of
//! the header.

use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::abi::{AhAttribute, structures};

/// Bytes of a `sockaddr_in6` and of a `sockaddr_storage`.
pub(super) const SOCKADDR: usize = 28;
pub(super) const STORAGE: usize = 128;
/// `RDMA_MAX_PRIVATE_DATA`.
pub(super) const PRIVATE: usize = 256;

structures! {
    /// `rdma_ucm_cmd_hdr`.
    CommandHeader: 8 { cmd: u32, size_in: u16, size_out: u16 }
    /// `rdma_ucm_create_id`.
    CreateId: 24 { uid: u64, response: u64, ps: u16, qp_type: u8, reserved: [u8; 5] }
    /// `rdma_ucm_destroy_id`.
    DestroyId: 16 { response: u64, id: u32, reserved: u32 }
    /// `rdma_ucm_bind_ip`.
    BindIp: 40 { response: u64, addr: [u8; SOCKADDR], id: u32 }
    /// `rdma_ucm_bind`.
    Bind: 136 { id: u32, addr_size: u16, reserved: u16, addr: [u8; STORAGE] }
    /// `rdma_ucm_resolve_ip`.
    ResolveIp: 64 { src_addr: [u8; SOCKADDR], dst_addr: [u8; SOCKADDR], id: u32, timeout_ms: u32 }
    /// `rdma_ucm_resolve_addr`.
    ResolveAddr: 272 {
        id: u32, timeout_ms: u32, src_size: u16, dst_size: u16, reserved: u32, src_addr: [u8; STORAGE],
        dst_addr: [u8; STORAGE],
    }
    /// `rdma_ucm_resolve_route`.
    ResolveRoute: 8 { id: u32, timeout_ms: u32 }
    /// `rdma_ucm_query`.
    Query: 16 { response: u64, id: u32, option: u32 }
    /// `ib_user_path_rec`.
    PathRecord: 64 {
        dgid: [u8; 16], sgid: [u8; 16], dlid: u16, slid: u16, raw_traffic: u32, flow_label: u32, reversible: u32, mtu: u32,
        pkey: u16, hop_limit: u8, traffic_class: u8, numb_path: u8, sl: u8, mtu_selector: u8, rate_selector: u8, rate: u8,
        packet_life_time_selector: u8, packet_life_time: u8, preference: u8,
    }
    /// `rdma_ucm_query_route_resp`.
    QueryRouteResponse: 208 {
        node_guid: [u8; 8], ib_route: [PathRecord; 2], src_addr: [u8; SOCKADDR], dst_addr: [u8; SOCKADDR], num_paths: u32,
        port_num: u8, reserved: [u8; 3], ibdev_index: u32, reserved1: u32,
    }
    /// `rdma_ucm_query_addr_resp`.
    QueryAddrResponse: 280 {
        node_guid: [u8; 8], port_num: u8, reserved: u8, pkey: u16, src_size: u16, dst_size: u16, src_addr: [u8; STORAGE],
        dst_addr: [u8; STORAGE], ibdev_index: u32, reserved1: u32,
    }
    /// `rdma_ucm_query_path_resp` with one path.
    QueryPathResponse: 80 { num_paths: u32, reserved: u32, flags: u32, reserved1: u32, path_rec: [u8; 64] }
    /// `rdma_ucm_conn_param`.
    ConnParam: 272 {
        qp_num: u32, qkey: u32, private_data: [u8; PRIVATE], private_data_len: u8, srq: u8, responder_resources: u8,
        initiator_depth: u8, flow_control: u8, retry_count: u8, rnr_retry_count: u8, valid: u8,
    }
    /// `rdma_ucm_ud_param`.
    UdParam: 304 {
        qp_num: u32, qkey: u32, ah_attr: AhAttribute, private_data: [u8; PRIVATE], private_data_len: u8, reserved: [u8; 7],
    }
    /// `rdma_ucm_ece`.
    Ece: 8 { vendor_id: u32, attr_mod: u32 }
    /// `rdma_ucm_connect`.
    Connect: 288 { conn_param: ConnParam, id: u32, reserved: u32, ece: Ece }
    /// `rdma_ucm_listen`.
    Listen: 8 { id: u32, backlog: u32 }
    /// `rdma_ucm_accept`.
    Accept: 296 { uid: u64, conn_param: ConnParam, id: u32, reserved: u32, ece: Ece }
    /// `rdma_ucm_reject`.
    Reject: 264 { id: u32, private_data_len: u8, reason: u8, reserved: [u8; 2], private_data: [u8; PRIVATE] }
    /// `rdma_ucm_disconnect`.
    Disconnect: 4 { id: u32 }
    /// `rdma_ucm_init_qp_attr`.
    InitQpAttr: 16 { response: u64, id: u32, qp_state: u32 }
    /// `ib_uverbs_qp_attr`.
    QpAttr: 144 {
        qp_attr_mask: u32, qp_state: u32, cur_qp_state: u32, path_mtu: u32, path_mig_state: u32, qkey: u32, rq_psn: u32,
        sq_psn: u32, dest_qp_num: u32, qp_access_flags: u32, ah_attr: AhAttribute, alt_ah_attr: AhAttribute, cap: [u32; 5],
        pkey_index: u16, alt_pkey_index: u16, en_sqd_async_notify: u8, sq_draining: u8, max_rd_atomic: u8,
        max_dest_rd_atomic: u8, min_rnr_timer: u8, port_num: u8, timeout: u8, retry_cnt: u8, rnr_retry: u8,
        alt_port_num: u8, alt_timeout: u8, reserved: [u8; 5],
    }
    /// `rdma_ucm_notify`.
    Notify: 8 { id: u32, event: u32 }
    /// `rdma_ucm_get_event`.
    GetEvent: 8 { response: u64 }
    /// `rdma_ucm_event_resp`. `param` is a [`ConnParam`] or a [`UdParam`].
    EventResponse: 336 { uid: u64, id: u32, event: u32, status: i32, param: [u8; 304], reserved: u32, ece: Ece }
    /// `rdma_ucm_set_option`.
    SetOption: 24 { optval: u64, id: u32, level: u32, optname: u32, optlen: u32 }
    /// `rdma_ucm_join_ip_mcast`.
    JoinIpMcast: 48 { response: u64, uid: u64, addr: [u8; SOCKADDR], id: u32 }
    /// `rdma_ucm_join_mcast`.
    JoinMcast: 152 { response: u64, uid: u64, id: u32, addr_size: u16, join_flags: u16, addr: [u8; STORAGE] }
    /// `rdma_ucm_migrate_id`.
    MigrateId: 16 { response: u64, id: u32, fd: u32 }
}

/// `RDMA_USER_CM_CMD_...`.
pub(super) mod command {
    pub(crate) const CREATE_ID: u32 = 0;
    pub(crate) const DESTROY_ID: u32 = 1;
    pub(crate) const BIND_IP: u32 = 2;
    pub(crate) const RESOLVE_IP: u32 = 3;
    pub(crate) const RESOLVE_ROUTE: u32 = 4;
    pub(crate) const QUERY_ROUTE: u32 = 5;
    pub(crate) const CONNECT: u32 = 6;
    pub(crate) const LISTEN: u32 = 7;
    pub(crate) const ACCEPT: u32 = 8;
    pub(crate) const REJECT: u32 = 9;
    pub(crate) const DISCONNECT: u32 = 10;
    pub(crate) const INIT_QP_ATTR: u32 = 11;
    pub(crate) const GET_EVENT: u32 = 12;
    pub(crate) const GET_OPTION: u32 = 13;
    pub(crate) const SET_OPTION: u32 = 14;
    pub(crate) const NOTIFY: u32 = 15;
    pub(crate) const JOIN_IP_MCAST: u32 = 16;
    pub(crate) const LEAVE_MCAST: u32 = 17;
    pub(crate) const MIGRATE_ID: u32 = 18;
    pub(crate) const QUERY: u32 = 19;
    pub(crate) const BIND: u32 = 20;
    pub(crate) const RESOLVE_ADDR: u32 = 21;
    pub(crate) const JOIN_MCAST: u32 = 22;
}

/// The function of librdmacm that sends a command.
pub(super) struct Function(pub(super) u32);

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            command::CREATE_ID => "rdma_create_id",
            command::DESTROY_ID => "rdma_destroy_id",
            command::BIND_IP | command::BIND => "rdma_bind_addr",
            command::RESOLVE_IP | command::RESOLVE_ADDR => "rdma_resolve_addr",
            command::RESOLVE_ROUTE => "rdma_resolve_route",
            command::CONNECT => "rdma_connect",
            command::LISTEN => "rdma_listen",
            command::ACCEPT => "rdma_accept",
            command::REJECT => "rdma_reject",
            command::DISCONNECT => "rdma_disconnect",
            command::INIT_QP_ATTR => "rdma_init_qp_attr",
            command::GET_EVENT => "rdma_get_cm_event",
            command::GET_OPTION | command::SET_OPTION => "rdma_set_option",
            command::NOTIFY => "rdma_notify",
            command::JOIN_IP_MCAST | command::JOIN_MCAST => "rdma_join_multicast",
            command::LEAVE_MCAST => "rdma_leave_multicast",
            command::MIGRATE_ID => "rdma_migrate_id",
            command::QUERY | command::QUERY_ROUTE => "a query of a connection by librdmacm",
            other => return write!(f, "command {other} of librdmacm"),
        })
    }
}

/// `RDMA_USER_CM_QUERY_...`.
pub(super) mod query {
    pub(crate) const ADDR: u32 = 0;
    pub(crate) const PATH: u32 = 1;
    pub(crate) const GID: u32 = 2;
}

/// `RDMA_OPTION_ID_...` of level `RDMA_OPTION_ID`.
pub(super) mod option {
    pub(crate) const LEVEL: u32 = 0;
    pub(crate) const TOS: u32 = 0;
    pub(crate) const REUSEADDR: u32 = 1;
    pub(crate) const AFONLY: u32 = 2;
    pub(crate) const ACK_TIMEOUT: u32 = 3;
}

/// `enum rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum EventType {
    AddressResolved = 0,
    AddressError = 1,
    RouteResolved = 2,
    ConnectRequest = 4,
    ConnectResponse = 5,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    MulticastJoin = 12,
    TimeWaitExit = 15,
}
