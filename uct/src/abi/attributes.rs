//! What queries return.

use std::ffi::{c_char, c_uint};

/// `ucs_linear_func_t`: `constant + factor * x`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LinearFunction {
    pub(crate) constant: f64,
    pub(crate) factor: f64,
}

/// `uct_ppn_bandwidth_t`, in bytes per second.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Bandwidth {
    /// Of each process.
    pub(crate) dedicated: f64,
    /// Of all processes of the node.
    pub(crate) shared: f64,
}

/// `uct_md_attr_t::cap`
#[repr(C)]
pub(crate) struct MdCaps {
    pub(crate) max_alloc: u64,
    pub(crate) max_reg: usize,
    pub(crate) flags: u64,
    pub(crate) reg_mem_types: u64,
    pub(crate) detect_mem_types: u64,
    pub(crate) alloc_mem_types: u64,
    pub(crate) access_mem_types: u64,
}

/// `uct_md_attr_t`
#[repr(C)]
pub(crate) struct MdAttr {
    pub(crate) cap: MdCaps,
    pub(crate) reg_cost: LinearFunction,
    pub(crate) component_name: [c_char; 16],
    pub(crate) rkey_packed_size: usize,
    pub(crate) local_cpus: [u64; 16],
}

/// `uct_iface_attr_t::cap.put` and `get`
#[repr(C)]
#[derive(Default)]
pub(crate) struct RmaCaps {
    pub(crate) max_short: usize,
    pub(crate) max_bcopy: usize,
    pub(crate) min_zcopy: usize,
    pub(crate) max_zcopy: usize,
    pub(crate) opt_zcopy_align: usize,
    pub(crate) align_mtu: usize,
    pub(crate) max_iov: usize,
}

/// `uct_iface_attr_t::cap.am`
#[repr(C)]
#[derive(Default)]
pub(crate) struct AmCaps {
    pub(crate) max_short: usize,
    pub(crate) max_bcopy: usize,
    pub(crate) min_zcopy: usize,
    pub(crate) max_zcopy: usize,
    pub(crate) opt_zcopy_align: usize,
    pub(crate) align_mtu: usize,
    pub(crate) max_hdr: usize,
    pub(crate) max_iov: usize,
}

/// `uct_iface_attr_t::cap.atomic32` and `atomic64`: bits by `uct_atomic_op_t`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct AtomicCaps {
    pub(crate) op_flags: u64,
    pub(crate) fop_flags: u64,
}

/// `uct_iface_attr_t::cap`
#[repr(C)]
pub(crate) struct IfaceCaps {
    pub(crate) put: RmaCaps,
    pub(crate) get: RmaCaps,
    pub(crate) am: AmCaps,
    /// Tag matching, which these transports lack: zeros.
    pub(crate) tag: [usize; 11],
    pub(crate) atomic32: AtomicCaps,
    pub(crate) atomic64: AtomicCaps,
    pub(crate) flags: u64,
    pub(crate) event_flags: u64,
}

/// `uct_iface_attr_t`
#[repr(C)]
pub(crate) struct IfaceAttr {
    pub(crate) cap: IfaceCaps,
    pub(crate) device_addr_len: usize,
    pub(crate) iface_addr_len: usize,
    pub(crate) ep_addr_len: usize,
    pub(crate) max_conn_priv: usize,
    pub(crate) listen_sockaddr: libc::sockaddr_storage,
    pub(crate) overhead: f64,
    pub(crate) bandwidth: Bandwidth,
    pub(crate) latency: LinearFunction,
    pub(crate) priority: u8,
    pub(crate) max_num_eps: usize,
    pub(crate) dev_num_paths: c_uint,
    /// Newer than 1.13, where it is padding.
    pub(crate) ctl_device: u8,
}

/// What `uct_perf_attr_t` begins with in every version.
#[repr(C)]
pub(crate) struct PerfStart {
    pub(crate) field_mask: u64,
    pub(crate) operation: c_uint,
    pub(crate) local_memory_type: c_uint,
    pub(crate) remote_memory_type: c_uint,
    pub(crate) local_sys_device: u8,
    pub(crate) remote_sys_device: u8,
    pub(crate) send_pre_overhead: f64,
    pub(crate) send_post_overhead: f64,
    pub(crate) recv_overhead: f64,
    pub(crate) bandwidth: Bandwidth,
}

impl PerfStart {
    pub(crate) const SEND_PRE_OVERHEAD: u64 = 1 << 5;
    pub(crate) const SEND_POST_OVERHEAD: u64 = 1 << 6;
    pub(crate) const RECV_OVERHEAD: u64 = 1 << 7;
    pub(crate) const BANDWIDTH: u64 = 1 << 8;
}

/// `uct_perf_attr_t`
#[repr(C)]
pub(crate) struct PerfAttr {
    pub(crate) start: PerfStart,
    pub(crate) latency: LinearFunction,
    pub(crate) max_inflight_eps: usize,
}

/// `uct_perf_attr_t` of UCX 1.17 and 1.18.
#[repr(C)]
pub(crate) struct PerfAttrWithFlags {
    pub(crate) before: PerfAttr,
    pub(crate) flags: u64,
}

impl PerfAttrWithFlags {
    pub(crate) const FLAGS: u64 = 1 << 11;
}

impl PerfAttr {
    pub(crate) const LATENCY: u64 = 1 << 9;
    pub(crate) const MAX_INFLIGHT_EPS: u64 = 1 << 10;
}
