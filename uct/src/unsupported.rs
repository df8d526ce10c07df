//! What these transports lack: connection management by socket addresses, tag matching, and of the
//! newer versions endpoints and memory of devices, memory that other processes export, lists of
//! transfers, and operations that move to another endpoint. Every function returns
//! `UCS_ERR_UNSUPPORTED`, whatever its arguments.

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::TagContext;
use crate::endpoint::Ep;
use crate::iface::Iface;
use crate::status::{Status, UNSUPPORTED};

/// Functions without a use of their arguments, which the C calling convention lets them leave out.
macro_rules! exported {
    ($($name:ident)+) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name() -> Status {
            UNSUPPORTED
        })+
    };
}

exported! {
    uct_cm_open uct_cm_query
    uct_listener_create uct_listener_query uct_listener_reject
    uct_ep_query
}

#[cfg(feature = "ucx-head")]
exported! {
    uct_md_mem_attach uct_md_mem_query_v2 uct_md_mem_elem_pack
    uct_ep_get_device_ep uct_ep_put_sgl_zcopy uct_ep_get_sgl_zcopy
    uct_ep_invalidate uct_ep_outstanding_purge
}

#[cfg(feature = "ucx-head")]
#[unsafe(no_mangle)]
extern "C" fn uct_md_mem_elem_release() {}

#[unsafe(no_mangle)]
extern "C" fn uct_cm_close() {}

#[unsafe(no_mangle)]
extern "C" fn uct_listener_destroy() {}

/// A function of tag matching. The status is also the error that `uct_ep_tag_rndv_zcopy` returns as
/// a pointer.
pub(crate) unsafe extern "C" fn tag() -> isize {
    UNSUPPORTED.into()
}

pub(crate) unsafe extern "C" fn tag_cancel(_: *mut Iface, _: *mut TagContext, _: c_int) -> Status {
    UNSUPPORTED
}

pub(crate) extern "C" fn connect(_: *mut Ep, _: *const c_void) -> Status {
    UNSUPPORTED
}

pub(crate) extern "C" fn disconnect(_: *mut Ep, _: c_uint) -> Status {
    UNSUPPORTED
}

pub(crate) unsafe extern "C" fn conn_notify(_: *mut Ep) -> Status {
    UNSUPPORTED
}

pub(crate) extern "C" fn accept(_: *mut Iface, _: *mut c_void) -> Status {
    UNSUPPORTED
}

pub(crate) extern "C" fn reject(_: *mut Iface, _: *mut c_void) -> Status {
    UNSUPPORTED
}
