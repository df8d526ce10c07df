//! What these transports lack: connection management by socket addresses, and tag matching. Every
//! function returns `UCS_ERR_UNSUPPORTED`, whatever its arguments.

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
