//! What callers pass in, with a mask of the fields that are valid.

use std::ffi::{c_char, c_uint, c_void};

use super::client_server::{
    ClientConnectCallback, DisconnectCallback, PrivDataPackCallback, ResolveCallback,
    ServerNotifyCallback, SockAddr,
};
use super::{Completion, DeviceAddr, ErrorHandler, IfaceAddr};
use crate::cm::Cm;
use crate::iface::Iface;
use crate::md::Md;
use crate::ucs::Version;

/// `uct_md_resource_desc_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MdResourceDesc {
    pub(crate) md_name: [c_char; 16],
}

/// `uct_component_attr_t`
#[repr(C)]
pub(crate) struct ComponentAttr {
    pub(crate) field_mask: u64,
    pub(crate) name: [c_char; 16],
    pub(crate) md_resource_count: c_uint,
    pub(crate) md_resources: *mut MdResourceDesc,
    pub(crate) flags: u64,
}

impl ComponentAttr {
    pub(crate) const NAME: u64 = 1 << 0;
    pub(crate) const MD_RESOURCE_COUNT: u64 = 1 << 1;
    pub(crate) const MD_RESOURCES: u64 = 1 << 2;
    pub(crate) const FLAGS: u64 = 1 << 3;
    /// `UCT_COMPONENT_FLAG_CM`
    pub(crate) const CM: u64 = 1 << 0;
    /// `UCT_COMPONENT_FLAG_RKEY_PTR`, which 1.13 lacks.
    pub(crate) const RKEY_PTR: u64 = 1 << 1;
}

/// `uct_tl_resource_desc_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct TlResourceDesc {
    pub(crate) tl_name: [c_char; 10],
    pub(crate) dev_name: [c_char; 32],
    pub(crate) dev_type: c_uint,
    pub(crate) sys_device: u8,
}

/// `uct_iface_params_t`
#[repr(C)]
pub(crate) struct IfaceParams {
    pub(crate) field_mask: u64,
    pub(crate) cpu_mask: [u64; 16],
    pub(crate) open_mode: u64,
    /// Of the union `mode`, the case that these transports have.
    pub(crate) tl_name: *const c_char,
    pub(crate) dev_name: *const c_char,
    pub(crate) mode: [usize; 3],
    pub(crate) stats_root: *mut c_void,
    pub(crate) rx_headroom: usize,
    pub(crate) err_handler_arg: *mut c_void,
    pub(crate) err_handler: Option<ErrorHandler>,
    pub(crate) err_handler_flags: u32,
    /// Tag matching, events, time between keepalive rounds.
    pub(crate) before: [usize; 7],
    pub(crate) am_alignment: usize,
    pub(crate) am_align_offset: usize,
    pub(crate) features: u64,
}

impl IfaceParams {
    pub(crate) const OPEN_MODE: u64 = 1 << 1;
    pub(crate) const DEVICE: u64 = 1 << 2;
    pub(crate) const ERR_HANDLER_ARG: u64 = 1 << 6;
    pub(crate) const ERR_HANDLER: u64 = 1 << 7;
    pub(crate) const RX_HEADROOM: u64 = 1 << 5;
    pub(crate) const AM_ALIGNMENT: u64 = 1 << 16;
    pub(crate) const AM_ALIGN_OFFSET: u64 = 1 << 17;
    pub(crate) const ASYNC_EVENT_CB: u64 = 1 << 14;
    pub(crate) const FEATURES: u64 = 1 << 18;
    /// `UCT_IFACE_OPEN_MODE_DEVICE`
    pub(crate) const MODE_DEVICE: u64 = 1 << 0;
    /// `UCT_IFACE_OPEN_MODE_STUB`, which 1.13 lacks.
    pub(crate) const MODE_STUB: u64 = 1 << 3;
}

/// `uct_ep_params_t`
#[repr(C)]
pub(crate) struct EpParams {
    pub(crate) field_mask: u64,
    pub(crate) iface: *mut Iface,
    pub(crate) user_data: *mut c_void,
    pub(crate) dev_addr: *const DeviceAddr,
    pub(crate) iface_addr: *const IfaceAddr,
    pub(crate) sockaddr: *const SockAddr,
    pub(crate) sockaddr_cb_flags: u32,
    pub(crate) sockaddr_pack_cb: Option<PrivDataPackCallback>,
    pub(crate) cm: *mut Cm,
    pub(crate) conn_request: *mut c_void,
    pub(crate) sockaddr_cb_client: Option<ClientConnectCallback>,
    pub(crate) sockaddr_cb_server: Option<ServerNotifyCallback>,
    pub(crate) disconnect_cb: Option<DisconnectCallback>,
    pub(crate) path_index: c_uint,
    pub(crate) cm_resolve_cb: Option<ResolveCallback>,
    pub(crate) private_data: *const u8,
    pub(crate) private_data_length: usize,
    pub(crate) local_sockaddr: *const SockAddr,
}

impl EpParams {
    pub(crate) const IFACE: u64 = 1 << 0;
    pub(crate) const USER_DATA: u64 = 1 << 1;
    pub(crate) const DEV_ADDR: u64 = 1 << 2;
    pub(crate) const IFACE_ADDR: u64 = 1 << 3;
    pub(crate) const SOCKADDR: u64 = 1 << 4;
    pub(crate) const SOCKADDR_CB_FLAGS: u64 = 1 << 5;
    pub(crate) const SOCKADDR_PACK_CB: u64 = 1 << 6;
    pub(crate) const CM: u64 = 1 << 7;
    pub(crate) const CONN_REQUEST: u64 = 1 << 8;
    pub(crate) const CONNECT_CB_CLIENT: u64 = 1 << 9;
    pub(crate) const NOTIFY_CB_SERVER: u64 = 1 << 10;
    pub(crate) const DISCONNECT_CB: u64 = 1 << 11;
    pub(crate) const CM_RESOLVE_CB: u64 = 1 << 13;
    pub(crate) const PRIV_DATA: u64 = 1 << 14;
    pub(crate) const PRIV_DATA_LENGTH: u64 = 1 << 15;
    pub(crate) const LOCAL_SOCKADDR: u64 = 1 << 16;
    /// `UCT_CB_FLAG_ASYNC`
    pub(crate) const CB_ASYNC: u32 = 1 << 2;
}

/// `uct_mem_alloc_params_t`
#[repr(C)]
pub(crate) struct MemAllocParams {
    pub(crate) field_mask: u64,
    pub(crate) flags: c_uint,
    pub(crate) address: *mut c_void,
    pub(crate) mem_type: c_uint,
    pub(crate) mds: *const *mut Md,
    pub(crate) md_count: c_uint,
    pub(crate) name: *const c_char,
}

impl MemAllocParams {
    pub(crate) const FLAGS: u64 = 1 << 0;
    pub(crate) const MEM_TYPE: u64 = 1 << 2;
    pub(crate) const MDS: u64 = 1 << 3;
}

/// `uct_md_mem_dereg_params_t`
#[repr(C)]
pub(crate) struct MemDeregParams {
    pub(crate) field_mask: u64,
    pub(crate) flags: c_uint,
    pub(crate) memh: *mut c_void,
    pub(crate) comp: *mut Completion,
}

impl MemDeregParams {
    pub(crate) const MEMH: u64 = 1 << 0;
    pub(crate) const FLAGS: u64 = 1 << 1;
}

/// `uct_md_mkey_pack_params_t`
#[repr(C)]
pub(crate) struct MkeyPackParams {
    pub(crate) field_mask: u64,
    pub(crate) flags: c_uint,
}

impl MkeyPackParams {
    pub(crate) const FLAGS: u64 = 1 << 0;

    /// `UCT_MD_MKEY_PACK_FLAG_EXPORT`, if the version has it.
    pub(crate) fn export(version: Version) -> c_uint {
        match version {
            Version::V1_13 => 0,
            Version::V1_14 => 1 << 1,
            _ => 1 << 2,
        }
    }
}
