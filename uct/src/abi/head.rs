//! The types of UCX 1.19 to its head (9466d104, August 2026) that 1.13 lacks or lays out
//! differently: uct.h and v2/uct_v2.h. All of these versions have the same layouts, but for the
//! ends that are noted. The sizes and offsets below are those that a C compiler prints for the
//! headers of the head; `headers.rs` compares them with installed headers.

use std::ffi::{c_char, c_int, c_uint};
use std::mem::offset_of;

use super::{
    AllocatedMemory, Bandwidth, DeviceAddr, EpAddr, EpParams, IfaceAddr, LinearFunction, PerfStart,
};

/// `uct_perf_attr_t`
#[repr(C)]
pub(crate) struct PerfAttr {
    pub(crate) start: PerfStart,
    pub(crate) path_bandwidth: Bandwidth,
    pub(crate) latency: LinearFunction,
    pub(crate) max_inflight_eps: usize,
    pub(crate) flags: u64,
}

impl PerfAttr {
    pub(crate) const PATH_BANDWIDTH: u64 = 1 << 9;
    pub(crate) const LATENCY: u64 = 1 << 10;
    pub(crate) const MAX_INFLIGHT_EPS: u64 = 1 << 11;
    pub(crate) const FLAGS: u64 = 1 << 12;
}

/// `uct_allocated_memory_t`
#[repr(C)]
pub(crate) struct AllocatedMemoryOnDevice {
    pub(crate) memory: AllocatedMemory,
    pub(crate) sys_device: u8,
}

/// `uct_md_attr_v2_t`
#[repr(C)]
pub(crate) struct MdAttrV2 {
    pub(crate) field_mask: u64,
    pub(crate) max_alloc: u64,
    pub(crate) max_reg: usize,
    pub(crate) flags: u64,
    pub(crate) reg_mem_types: u64,
    pub(crate) reg_nonblock_mem_types: u64,
    pub(crate) cache_mem_types: u64,
    pub(crate) gva_mem_types: u64,
    pub(crate) detect_mem_types: u64,
    pub(crate) alloc_mem_types: u64,
    pub(crate) access_mem_types: u64,
    pub(crate) dmabuf_mem_types: u64,
    pub(crate) reg_cost: LinearFunction,
    pub(crate) component_name: [c_char; 16],
    pub(crate) rkey_packed_size: usize,
    pub(crate) local_cpus: [u64; 16],
    pub(crate) exported_mkey_packed_size: usize,
    pub(crate) global_id: [c_char; 256],
    pub(crate) reg_alignment: usize,
    /// Since 1.22.
    pub(crate) required_mem_flags: u8,
}

/// Bits of [`MdAttrV2::field_mask`] (`uct_md_attr_field_t`).
pub(crate) mod md_field {
    pub(crate) const MAX_ALLOC: u64 = 1 << 0;
    pub(crate) const MAX_REG: u64 = 1 << 1;
    pub(crate) const FLAGS: u64 = 1 << 2;
    pub(crate) const REG_MEM_TYPES: u64 = 1 << 3;
    pub(crate) const REG_NONBLOCK_MEM_TYPES: u64 = 1 << 4;
    pub(crate) const CACHE_MEM_TYPES: u64 = 1 << 5;
    pub(crate) const DETECT_MEM_TYPES: u64 = 1 << 6;
    pub(crate) const ALLOC_MEM_TYPES: u64 = 1 << 7;
    pub(crate) const ACCESS_MEM_TYPES: u64 = 1 << 8;
    pub(crate) const DMABUF_MEM_TYPES: u64 = 1 << 9;
    pub(crate) const REG_COST: u64 = 1 << 10;
    pub(crate) const COMPONENT_NAME: u64 = 1 << 11;
    pub(crate) const RKEY_PACKED_SIZE: u64 = 1 << 12;
    pub(crate) const LOCAL_CPUS: u64 = 1 << 13;
    pub(crate) const EXPORTED_MKEY_PACKED_SIZE: u64 = 1 << 14;
    pub(crate) const GLOBAL_ID: u64 = 1 << 15;
    pub(crate) const REG_ALIGNMENT: u64 = 1 << 16;
    pub(crate) const GVA_MEM_TYPES: u64 = 1 << 17;
    pub(crate) const REQUIRED_MEM_FLAGS: u64 = 1 << 18;
}

/// `uct_md_mem_reg_params_t`
#[repr(C)]
pub(crate) struct MemRegParams {
    pub(crate) field_mask: u64,
    pub(crate) flags: u64,
    pub(crate) dmabuf_fd: c_int,
    pub(crate) dmabuf_offset: usize,
    /// Since 1.22.
    pub(crate) mem_type: c_uint,
}

impl MemRegParams {
    pub(crate) const FLAGS: u64 = 1 << 0;
    pub(crate) const DMABUF_FD: u64 = 1 << 1;
    pub(crate) const MEM_TYPE: u64 = 1 << 3;
    /// `UCT_DMABUF_FD_INVALID`
    pub(crate) const NO_DMABUF: c_int = -1;
}

/// `uct_rkey_compare_params_t`
#[repr(C)]
pub(crate) struct RkeyCompareParams {
    pub(crate) field_mask: u64,
}

/// `uct_iface_is_reachable_params_t`
#[repr(C)]
pub(crate) struct IsReachableParams {
    pub(crate) field_mask: u64,
    pub(crate) device_addr: *const DeviceAddr,
    pub(crate) iface_addr: *const IfaceAddr,
    pub(crate) info_string: *mut c_char,
    pub(crate) info_string_length: usize,
    pub(crate) scope: c_uint,
    pub(crate) device_addr_length: usize,
    pub(crate) iface_addr_length: usize,
}

impl IsReachableParams {
    pub(crate) const DEVICE_ADDR: u64 = 1 << 0;
    pub(crate) const IFACE_ADDR: u64 = 1 << 1;
    pub(crate) const INFO_STRING: u64 = 1 << 2;
    pub(crate) const INFO_STRING_LENGTH: u64 = 1 << 3;
    pub(crate) const SCOPE: u64 = 1 << 4;
    pub(crate) const DEVICE_ADDR_LENGTH: u64 = 1 << 5;
    pub(crate) const IFACE_ADDR_LENGTH: u64 = 1 << 6;
    /// `UCT_IFACE_REACHABILITY_SCOPE_DEVICE`
    pub(crate) const SAME_DEVICE: c_uint = 0;
}

/// `uct_ep_is_connected_params_t`
#[repr(C)]
pub(crate) struct IsConnectedParams {
    pub(crate) field_mask: u64,
    pub(crate) device_addr: *const DeviceAddr,
    pub(crate) iface_addr: *const IfaceAddr,
    pub(crate) ep_addr: *const EpAddr,
}

impl IsConnectedParams {
    pub(crate) const DEVICE_ADDR: u64 = 1 << 0;
    pub(crate) const IFACE_ADDR: u64 = 1 << 1;
    pub(crate) const EP_ADDR: u64 = 1 << 2;
}

/// `uct_ep_connect_to_ep_params_t`
#[repr(C)]
pub(crate) struct ConnectToEpParams {
    pub(crate) field_mask: u64,
    pub(crate) device_addr_length: usize,
    pub(crate) ep_addr_length: usize,
}

impl ConnectToEpParams {
    pub(crate) const DEVICE_ADDR_LENGTH: u64 = 1 << 0;
    pub(crate) const EP_ADDR_LENGTH: u64 = 1 << 1;
}

/// `uct_ep_params_t`
#[repr(C)]
pub(crate) struct EpParamsWithLengths {
    pub(crate) params: EpParams,
    pub(crate) dev_addr_length: usize,
    pub(crate) iface_addr_length: usize,
}

impl EpParamsWithLengths {
    pub(crate) const DEV_ADDR_LENGTH: u64 = 1 << 17;
    pub(crate) const IFACE_ADDR_LENGTH: u64 = 1 << 18;
}

/// `uct_iface_attr_v2_t`. The meaning of the words depends on the version: each bit of the mask is
/// that of a word, and bits of later words are for tokens.
#[repr(C)]
pub(crate) struct IfaceAttrV2 {
    pub(crate) field_mask: u64,
    pub(crate) words: [u64; 7],
}

impl IfaceAttrV2 {
    /// Words before those of tokens.
    pub(crate) const ZEROS: usize = 5;
}

const _: () = {
    assert!(size_of::<PerfAttr>() == 112);
    assert!(offset_of!(PerfAttr, path_bandwidth) == 64);
    assert!(offset_of!(PerfAttr, latency) == 80);
    assert!(offset_of!(PerfAttr, max_inflight_eps) == 96);
    assert!(offset_of!(PerfAttr, flags) == 104);
    assert!(size_of::<AllocatedMemoryOnDevice>() == 48);
    assert!(offset_of!(AllocatedMemoryOnDevice, sys_device) == 40);
    assert!(size_of::<MdAttrV2>() == 544);
    assert!(offset_of!(MdAttrV2, gva_mem_types) == 56);
    assert!(offset_of!(MdAttrV2, reg_cost) == 96);
    assert!(offset_of!(MdAttrV2, local_cpus) == 136);
    assert!(offset_of!(MdAttrV2, global_id) == 272);
    assert!(offset_of!(MdAttrV2, reg_alignment) == 528);
    assert!(offset_of!(MdAttrV2, required_mem_flags) == 536);
    assert!(size_of::<MemRegParams>() == 40);
    assert!(offset_of!(MemRegParams, dmabuf_offset) == 24);
    assert!(size_of::<RkeyCompareParams>() == 8);
    assert!(size_of::<IsReachableParams>() == 64);
    assert!(offset_of!(IsReachableParams, scope) == 40);
    assert!(size_of::<IsConnectedParams>() == 32);
    assert!(size_of::<ConnectToEpParams>() == 24);
    assert!(size_of::<EpParamsWithLengths>() == 160);
    assert!(offset_of!(EpParamsWithLengths, dev_addr_length) == 144);
    assert!(size_of::<IfaceAttrV2>() == 64);
};
