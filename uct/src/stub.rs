//! Interfaces without a transport (`UCT_IFACE_OPEN_MODE_STUB`): libucp has had them since UCX 1.22
//! behind endpoints of its own, whose table of operations it writes into them.

use std::mem::MaybeUninit;

use crate::abi::{IfaceOps, IfaceParams};
use crate::iface::Iface;
use crate::status::{INVALID_PARAM, OK, Status, UNSUPPORTED, guard};

/// A stub, and what every interface begins with.
#[repr(C)]
pub(crate) struct Stub {
    /// Programs call them through the handle. A stub has `iface_close` only.
    ops: MaybeUninit<IfaceOps>,
    /// What functions without an operation in the table return; `UCS_OK` for interfaces.
    status: Status,
}

impl Stub {
    /// The start of an interface.
    pub(crate) const fn of_iface(ops: &IfaceOps) -> Self {
        Self { ops: MaybeUninit::new(*ops), status: OK }
    }

    /// The start of a connection manager, which is the interface of its endpoints.
    pub(crate) const fn of_cm(ops: &IfaceOps) -> Self {
        Self { ops: MaybeUninit::new(*ops), status: UNSUPPORTED }
    }
}

/// Opens a stub.
///
/// # Safety
/// `params` has the mode of a stub.
pub(crate) unsafe fn open(params: *const IfaceParams) -> *mut Iface {
    // SAFETY: contract of this function: the status is what the union of the modes begins with.
    let status = unsafe { (&raw const (*params).tl_name).cast::<Status>().read() };
    let stub = Box::into_raw(Box::new(Stub { ops: MaybeUninit::zeroed(), status }));
    // SAFETY: the table is a part of the new stub.
    unsafe { (&raw mut (*(*stub).ops.as_mut_ptr()).iface_close).write(close) };
    stub.cast()
}

unsafe extern "C" fn close(stub: *mut Iface) {
    guard(|| {
        if stub.is_null() {
            return Err(INVALID_PARAM);
        }
        // SAFETY: a handle of `open`, which is closed once.
        drop(unsafe { Box::from_raw(stub.cast::<Stub>()) });
        Ok(())
    });
}

/// Returns the status of a stub as an error, so that a function does not use what interfaces have
/// behind it.
///
/// # Safety
/// `iface` is null, an interface or a stub.
pub(crate) unsafe fn refuse(iface: *const Iface) -> Result<(), Status> {
    if iface.is_null() {
        return Err(INVALID_PARAM);
    }
    // SAFETY: contract of this function.
    match unsafe { (&raw const (*iface.cast::<Stub>()).status).read() } {
        OK => Ok(()),
        status => Err(status),
    }
}
