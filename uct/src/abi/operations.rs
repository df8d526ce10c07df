//! `uct_iface_ops_t`: the functions that the inline functions of uct.h call.

use std::ffi::{c_int, c_uint, c_void};

use super::{
    Completion, DeviceAddr, EpAddr, EpConnectParams, IfaceAddr, IfaceAttr, Iov, PackCallback,
    PendingReq, PurgeCallback, Rkey, TagContext, UnpackCallback,
};
use crate::endpoint::Ep;
use crate::iface::Iface;
use crate::status::{Status, UNSUPPORTED};

/// What an operation returns that an object lacks.
trait Refusal {
    const REFUSAL: Self;
}

impl Refusal for Status {
    const REFUSAL: Self = UNSUPPORTED;
}

/// Operations that return a length, or a status as a pointer.
impl Refusal for isize {
    const REFUSAL: Self = UNSUPPORTED as Self;
}

/// Not reachable.
impl Refusal for c_int {
    const REFUSAL: Self = 0;
}

/// No progress.
impl Refusal for c_uint {
    const REFUSAL: Self = 0;
}

macro_rules! operations {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)+) => {
        /// The table. `tests` in `headers.rs` compares the order.
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub(crate) struct IfaceOps {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+
        }

        impl IfaceOps {
            /// Every operation is refused with `UCS_ERR_UNSUPPORTED`.
            pub(crate) const REFUSING: Self = Self {
                $($name: {
                    unsafe extern "C" fn refuse($(_: $argument),*) $(-> $result)? {
                        $(<$result as Refusal>::REFUSAL)?
                    }
                    refuse
                },)+
            };
        }

        #[cfg(test)]
        impl IfaceOps {
            /// The names of the fields, in order.
            pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),+];
        }
    };
}

operations! {
    ep_put_short: fn(*mut Ep, *const u8, c_uint, u64, Rkey) -> Status;
    ep_put_bcopy: fn(*mut Ep, Option<PackCallback>, *mut c_void, u64, Rkey) -> isize;
    ep_put_zcopy: fn(*mut Ep, *const Iov, usize, u64, Rkey, *mut Completion) -> Status;

    ep_get_short: fn(*mut Ep, *mut u8, c_uint, u64, Rkey) -> Status;
    ep_get_bcopy: fn(*mut Ep, Option<UnpackCallback>, *mut c_void, usize, u64, Rkey, *mut Completion) -> Status;
    ep_get_zcopy: fn(*mut Ep, *const Iov, usize, u64, Rkey, *mut Completion) -> Status;

    ep_am_short: fn(*mut Ep, u8, u64, *const u8, c_uint) -> Status;
    ep_am_short_iov: fn(*mut Ep, u8, *const Iov, usize) -> Status;
    ep_am_bcopy: fn(*mut Ep, u8, Option<PackCallback>, *mut c_void, c_uint) -> isize;
    ep_am_zcopy: fn(*mut Ep, u8, *const u8, c_uint, *const Iov, usize, c_uint, *mut Completion) -> Status;

    ep_atomic_cswap64: fn(*mut Ep, u64, u64, u64, Rkey, *mut u64, *mut Completion) -> Status;
    ep_atomic_cswap32: fn(*mut Ep, u32, u32, u64, Rkey, *mut u32, *mut Completion) -> Status;
    ep_atomic32_post: fn(*mut Ep, c_uint, u32, u64, Rkey) -> Status;
    ep_atomic64_post: fn(*mut Ep, c_uint, u64, u64, Rkey) -> Status;
    ep_atomic32_fetch: fn(*mut Ep, c_uint, u32, *mut u32, u64, Rkey, *mut Completion) -> Status;
    ep_atomic64_fetch: fn(*mut Ep, c_uint, u64, *mut u64, u64, Rkey, *mut Completion) -> Status;

    ep_tag_eager_short: fn() -> isize;
    ep_tag_eager_bcopy: fn() -> isize;
    ep_tag_eager_zcopy: fn() -> isize;
    ep_tag_rndv_zcopy: fn() -> isize;
    ep_tag_rndv_cancel: fn() -> isize;
    ep_tag_rndv_request: fn() -> isize;
    iface_tag_recv_zcopy: fn() -> isize;
    iface_tag_recv_cancel: fn(*mut Iface, *mut TagContext, c_int) -> Status;

    ep_pending_add: fn(*mut Ep, *mut PendingReq, c_uint) -> Status;
    ep_pending_purge: fn(*mut Ep, Option<PurgeCallback>, *mut c_void);

    ep_flush: fn(*mut Ep, c_uint, *mut Completion) -> Status;
    ep_fence: fn(*mut Ep, c_uint) -> Status;
    ep_check: fn(*mut Ep, c_uint, *mut Completion) -> Status;

    ep_create: fn(*const super::EpParams, *mut *mut Ep) -> Status;
    ep_connect: fn(*mut Ep, *const EpConnectParams) -> Status;
    ep_disconnect: fn(*mut Ep, c_uint) -> Status;
    cm_ep_conn_notify: fn(*mut Ep) -> Status;
    ep_destroy: fn(*mut Ep);
    ep_get_address: fn(*mut Ep, *mut EpAddr) -> Status;
    ep_connect_to_ep: fn(*mut Ep, *const DeviceAddr, *const EpAddr) -> Status;
    iface_accept: fn(*mut Iface, *mut c_void) -> Status;
    iface_reject: fn(*mut Iface, *mut c_void) -> Status;

    iface_flush: fn(*mut Iface, c_uint, *mut Completion) -> Status;
    iface_fence: fn(*mut Iface, c_uint) -> Status;

    iface_progress_enable: fn(*mut Iface, c_uint);
    iface_progress_disable: fn(*mut Iface, c_uint);
    iface_progress: fn(*mut c_void) -> c_uint;

    iface_event_fd_get: fn(*mut Iface, *mut c_int) -> Status;
    iface_event_arm: fn(*mut Iface, c_uint) -> Status;

    iface_close: fn(*mut Iface);
    iface_query: fn(*mut Iface, *mut IfaceAttr) -> Status;

    iface_get_device_address: fn(*mut Iface, *mut DeviceAddr) -> Status;
    iface_get_address: fn(*mut Iface, *mut IfaceAddr) -> Status;
    iface_is_reachable: fn(*mut Iface, *const DeviceAddr, *const IfaceAddr) -> c_int;
}
