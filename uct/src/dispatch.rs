//! Exported functions of interfaces and endpoints that call the object's own operation. The object
//! may be the program's: libucp passes endpoints with a table of its own.

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::{
    Completion, DeviceAddr, EpAddr, EpConnectParams, EpParams, IfaceAddr, IfaceAttr, IfaceOps,
};
use crate::cm;
use crate::endpoint::Ep;
use crate::iface::Iface;
use crate::status::{INVALID_PARAM, Status, UNSUPPORTED};

/// Returns the table of an endpoint, whose first field is its interface, whose first field is the
/// table; null for a null pointer.
///
/// # Safety
/// `ep` is null or an endpoint of any table.
unsafe fn of_ep(ep: *const Ep) -> *const IfaceOps {
    if ep.is_null() {
        return std::ptr::null();
    }
    // SAFETY: contract of this function.
    unsafe { *ep.cast::<*const IfaceOps>() }
}

/// Returns the table of an interface, which is its first field; null for a null pointer.
fn of_iface(iface: *const Iface) -> *const IfaceOps {
    iface.cast()
}

/// `name = operation(object: its table, arguments) -> result, the result for null pointers`
macro_rules! dispatched {
    ($(
        $name:ident = $operation:ident(
            $object:ident: $type:ty = $table:expr $(, $argument:ident: $other:ty)*
        ) $(-> $result:ty, $invalid:expr)?;
    )+) => {
        $(#[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($object: $type $(, $argument: $other)*) $(-> $result)? {
            // SAFETY: an object with a table that has this operation. The other operations of a
            // table of the program may be null and are not read.
            unsafe {
                let table: *const IfaceOps = $table;
                if table.is_null() {
                    return $($invalid)?;
                }
                let operation = (&raw const (*table).$operation).read();
                operation($object $(, $argument)*)
            }
        })+
    };
}

dispatched! {
    uct_ep_destroy = ep_destroy(ep: *mut Ep = of_ep(ep));
    uct_ep_get_address = ep_get_address(ep: *mut Ep = of_ep(ep), address: *mut EpAddr)
        -> Status, INVALID_PARAM;
    uct_ep_connect_to_ep = ep_connect_to_ep(
        ep: *mut Ep = of_ep(ep), device: *const DeviceAddr, address: *const EpAddr
    ) -> Status, INVALID_PARAM;
    uct_ep_check = ep_check(
        ep: *mut Ep = of_ep(ep), flags: c_uint, completion: *mut Completion
    ) -> Status, INVALID_PARAM;
    uct_ep_connect = ep_connect(ep: *mut Ep = of_ep(ep), params: *const EpConnectParams)
        -> Status, INVALID_PARAM;
    uct_ep_disconnect = ep_disconnect(ep: *mut Ep = of_ep(ep), flags: c_uint)
        -> Status, INVALID_PARAM;
    uct_cm_client_ep_conn_notify = cm_ep_conn_notify(ep: *mut Ep = of_ep(ep))
        -> Status, INVALID_PARAM;

    uct_iface_close = iface_close(iface: *mut Iface = of_iface(iface));
    uct_iface_query = iface_query(iface: *mut Iface = of_iface(iface), attr: *mut IfaceAttr)
        -> Status, INVALID_PARAM;
    uct_iface_get_device_address = iface_get_device_address(
        iface: *mut Iface = of_iface(iface), address: *mut DeviceAddr
    ) -> Status, INVALID_PARAM;
    uct_iface_get_address = iface_get_address(
        iface: *mut Iface = of_iface(iface), address: *mut IfaceAddr
    ) -> Status, INVALID_PARAM;
    uct_iface_is_reachable = iface_is_reachable(
        iface: *mut Iface = of_iface(iface), device: *const DeviceAddr, address: *const IfaceAddr
    ) -> c_int, 0;
    uct_iface_event_fd_get = iface_event_fd_get(
        iface: *mut Iface = of_iface(iface), descriptor: *mut c_int
    ) -> Status, INVALID_PARAM;
    uct_iface_event_arm = iface_event_arm(iface: *mut Iface = of_iface(iface), events: c_uint)
        -> Status, INVALID_PARAM;
    uct_iface_accept = iface_accept(iface: *mut Iface = of_iface(iface), request: *mut c_void)
        -> Status, INVALID_PARAM;
    uct_iface_reject = iface_reject(iface: *mut Iface = of_iface(iface), request: *mut c_void)
        -> Status, INVALID_PARAM;
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_ep_create(params: *const EpParams, ep: *mut *mut Ep) -> Status {
    // SAFETY: null or valid for this call.
    let Some(given) = (unsafe { params.as_ref() }) else { return INVALID_PARAM };
    if given.field_mask & EpParams::CM != 0 {
        // SAFETY: the caller's parameters, with a connection manager.
        return unsafe { cm::create(given, ep) };
    }
    if given.field_mask & EpParams::IFACE == 0 {
        return UNSUPPORTED;
    }
    let table = of_iface(given.iface);
    if table.is_null() {
        return INVALID_PARAM;
    }
    // SAFETY: an interface with a table, as above.
    unsafe { (&raw const (*table).ep_create).read()(params, ep) }
}
