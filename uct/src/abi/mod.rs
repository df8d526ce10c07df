//! The types of uct.h, tl.h, uct_def.h and v2/uct_v2.h of UCX 1.13, as far as this library uses
//! them, and in [`head`] those of later versions. `headers.rs` compares their sizes and offsets
//! with those of installed headers.

mod attributes;
pub(crate) mod client_server;
pub(crate) mod head;
#[cfg(test)]
mod headers;
mod operations;
mod parameters;

use std::ffi::{c_char, c_int, c_uint, c_void};

pub(crate) use attributes::{
    AmCaps, AtomicCaps, Bandwidth, IfaceAttr, IfaceCaps, LinearFunction, MdAttr, MdCaps, PerfAttr,
    PerfAttrWithFlags, PerfStart, RmaCaps,
};
pub(crate) use client_server::EpConnectParams;
pub(crate) use operations::IfaceOps;
pub(crate) use parameters::{
    ComponentAttr, EpParams, IfaceParams, MdResourceDesc, MemAllocParams, MemDeregParams,
    MkeyPackParams, TlResourceDesc,
};

use crate::status::Status;

/// A type of which callers have pointers only.
macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)+) => {
        $($(#[$doc])*
        #[repr(C)]
        pub(crate) struct $name([u8; 0]);)+
    };
}

opaque! {
    /// `uct_tag_context_t`
    TagContext;
    /// `uct_device_addr_t`
    DeviceAddr;
    /// `uct_iface_addr_t`
    IfaceAddr;
    /// `uct_ep_addr_t`
    EpAddr;
}

/// `ucs_callbackq_t`
#[repr(C, align(8))]
pub(crate) struct CallbackQueue([u8; 264]);

impl CallbackQueue {
    pub(crate) const fn zeroed() -> Self {
        Self([0; 264])
    }
}

/// `uct_iov_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Iov {
    pub(crate) buffer: *mut u8,
    /// Bytes of an element.
    pub(crate) length: usize,
    pub(crate) memh: *mut c_void,
    /// Bytes between the starts of two elements.
    pub(crate) stride: usize,
    /// Number of elements.
    pub(crate) count: c_uint,
}

/// `uct_completion_t`: the same as [`barewire::caller::CompletionRecord`].
#[repr(C)]
pub(crate) struct Completion {
    pub(crate) func: Option<CompletionCallback>,
    pub(crate) count: c_int,
    pub(crate) status: Status,
}

/// `uct_pending_req_t`
#[repr(C)]
pub(crate) struct PendingReq {
    pub(crate) func: Option<PendingCallback>,
    pub(crate) private: [c_char; 40],
}

/// `uct_rkey_bundle_t`
#[repr(C)]
pub(crate) struct RkeyBundle {
    pub(crate) rkey: Rkey,
    pub(crate) handle: *mut c_void,
    pub(crate) kind: *mut c_void,
}

/// `uct_allocated_memory_t`
#[repr(C)]
pub(crate) struct AllocatedMemory {
    pub(crate) address: *mut u8,
    pub(crate) length: usize,
    pub(crate) method: c_uint,
    pub(crate) mem_type: c_uint,
    pub(crate) md: *mut crate::md::Md,
    pub(crate) memh: *mut c_void,
}

/// `uct_rkey_t`: the address of a [`barewire::RemoteKey`].
pub(crate) type Rkey = usize;

/// `uct_am_callback_t`
pub(crate) type AmCallback = unsafe extern "C" fn(*mut c_void, *mut u8, usize, c_uint) -> Status;
/// `uct_completion_callback_t`
pub(crate) type CompletionCallback = unsafe extern "C" fn(*mut Completion);
/// `uct_pending_callback_t`
pub(crate) type PendingCallback = unsafe extern "C" fn(*mut PendingReq) -> Status;
/// `uct_pending_purge_callback_t`
pub(crate) type PurgeCallback = unsafe extern "C" fn(*mut PendingReq, *mut c_void);
/// `uct_pack_callback_t`
pub(crate) type PackCallback = unsafe extern "C" fn(*mut u8, *mut c_void) -> usize;
/// `uct_unpack_callback_t`
pub(crate) type UnpackCallback = unsafe extern "C" fn(*mut c_void, *const u8, usize);
/// `uct_error_handler_t`
pub(crate) type ErrorHandler =
    unsafe extern "C" fn(*mut c_void, *mut crate::endpoint::Ep, Status) -> Status;

/// `ucs_memory_type_t`: memory of the host.
pub(crate) const HOST_MEMORY: c_uint = 0;
/// `UCS_SYS_DEVICE_ID_UNKNOWN`
pub(crate) const UNKNOWN_SYS_DEVICE: u8 = u8::MAX;
/// `UCT_INVALID_RKEY`
pub(crate) const INVALID_RKEY: Rkey = usize::MAX;

/// Flags of `uct_md_attr_t::cap`.
pub(crate) mod md_flag {
    pub(crate) const ALLOC: u64 = 1 << 0;
    pub(crate) const REG: u64 = 1 << 1;
    pub(crate) const NEED_MEMH: u64 = 1 << 2;
    pub(crate) const NEED_RKEY: u64 = 1 << 3;
    pub(crate) const RKEY_PTR: u64 = 1 << 6;
}

/// Flags of `uct_iface_attr_t::cap`.
pub(crate) mod iface_flag {
    pub(crate) const AM_SHORT: u64 = 1 << 0;
    pub(crate) const AM_BCOPY: u64 = 1 << 1;
    pub(crate) const AM_ZCOPY: u64 = 1 << 2;
    pub(crate) const PENDING: u64 = 1 << 3;
    pub(crate) const PUT_SHORT: u64 = 1 << 4;
    pub(crate) const PUT_BCOPY: u64 = 1 << 5;
    pub(crate) const PUT_ZCOPY: u64 = 1 << 6;
    pub(crate) const GET_SHORT: u64 = 1 << 8;
    pub(crate) const GET_BCOPY: u64 = 1 << 9;
    pub(crate) const GET_ZCOPY: u64 = 1 << 10;
    pub(crate) const ATOMIC_CPU: u64 = 1 << 30;
    pub(crate) const ATOMIC_DEVICE: u64 = 1 << 31;
    pub(crate) const ERRHANDLE_AM_ID: u64 = 1 << 35;
    pub(crate) const ERRHANDLE_REMOTE_MEM: u64 = 1 << 36;
    pub(crate) const ERRHANDLE_PEER_FAILURE: u64 = 1 << 38;
    pub(crate) const EP_CHECK: u64 = 1 << 39;
    pub(crate) const CONNECT_TO_IFACE: u64 = 1 << 40;
    pub(crate) const CONNECT_TO_EP: u64 = 1 << 41;
    pub(crate) const CB_SYNC: u64 = 1 << 44;
    /// Newer than 1.13.
    pub(crate) const INTER_NODE: u64 = 1 << 54;
}

/// `uct_atomic_op_t`
pub(crate) mod atomic_op {
    pub(crate) const ADD: u32 = 0;
    pub(crate) const AND: u32 = 1;
    pub(crate) const OR: u32 = 2;
    pub(crate) const XOR: u32 = 3;
    pub(crate) const SWAP: u32 = 4;
    pub(crate) const CSWAP: u32 = 5;
}
