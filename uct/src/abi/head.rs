//! The types of UCX 1.14 to its head (9466d104, August 2026) that 1.13 lacks or lays out
//! differently: uct.h and v2/uct_v2.h. All of these versions have the same layouts, but for the
//! fields and ends that are noted. The sizes and offsets below are those that a C compiler prints
//! for the headers of the head; `headers.rs` compares them with installed headers.

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

/// The fields of [`MdAttrV2`] in the versions of UCX.
pub(crate) mod md_field {
    use std::ffi::c_char;
    use std::mem::offset_of;

    use super::{LinearFunction, MdAttrV2};
    use crate::ucs::Version;

    /// Where a field is in [`MdAttrV2`], its bytes, the first version that has it, and its bit in
    /// [`MdAttrV2::field_mask`] (`uct_md_attr_field_t`) since 1.15.
    type Field = (usize, usize, Version, u32);

    macro_rules! fields {
        ($($bit:literal $field:ident: $type:ty, $since:ident;)+) => {
            /// In the order of the structure.
            const FIELDS: &[Field] = &[$(
                (offset_of!(MdAttrV2, $field), size_of::<$type>(), Version::$since, $bit)
            ),+];

            /// The types are those of the fields.
            const _: fn(&MdAttrV2) = |all| { $(let _: &$type = &all.$field;)+ };
        };
    }

    fields! {
        0 max_alloc: u64, V1_14;
        1 max_reg: usize, V1_14;
        2 flags: u64, V1_14;
        3 reg_mem_types: u64, V1_14;
        4 reg_nonblock_mem_types: u64, V1_15;
        5 cache_mem_types: u64, V1_14;
        17 gva_mem_types: u64, V1_18;
        6 detect_mem_types: u64, V1_14;
        7 alloc_mem_types: u64, V1_14;
        8 access_mem_types: u64, V1_14;
        9 dmabuf_mem_types: u64, V1_14;
        10 reg_cost: LinearFunction, V1_14;
        11 component_name: [c_char; 16], V1_14;
        12 rkey_packed_size: usize, V1_14;
        13 local_cpus: [u64; 16], V1_14;
        14 exported_mkey_packed_size: usize, V1_14;
        15 global_id: [c_char; 256], V1_14;
        16 reg_alignment: usize, V1_16;
        18 required_mem_flags: u8, V1_22;
    }

    /// Returns the fields of a version: the bit of each, where it is in [`MdAttrV2`] and in the
    /// structure of the version, and its bytes.
    pub(crate) fn of(version: Version) -> impl Iterator<Item = (u32, usize, usize, usize)> {
        // Every field but the last one has a multiple of eight bytes.
        let mut to = offset_of!(MdAttrV2, max_alloc);
        let known = FIELDS.iter().filter(move |(_, _, since, _)| version >= *since);
        known.map(move |&(from, length, _, bit)| {
            let place = to;
            to += length;
            // The fifth bit was added before the others.
            let bit = if version < Version::V1_15 && bit > 4 { bit - 1 } else { bit };
            (bit, from, place, length)
        })
    }
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
