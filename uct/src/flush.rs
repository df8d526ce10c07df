//! The flush of an interface. Each endpoint that has something outstanding counts, but the caller's
//! completion counts the flush once.
//!
//! `UCS_OK` and `UCS_INPROGRESS` are the only statuses (uct.h): libucp ends a flush of its worker
//! with any other. What an endpoint is to send may wait for its connection or for resources. A flush
//! with a completion then waits, too: a callback of the worker tries it again until it is done, and
//! removes itself.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_uint, c_void};
use std::mem::take;

use crate::abi::Completion;
use crate::callbacks::ID_NULL;
use crate::fetch::{complete, flush_counted};
use crate::iface::Iface;
use crate::status::{INPROGRESS, NO_RESOURCE, OK, Status, of_posted};

/// The flushes that wait for connections or resources.
pub(crate) struct Flushes {
    waiting: RefCell<Vec<*mut Completion>>,
    callback: Cell<c_int>,
}

impl Default for Flushes {
    fn default() -> Self {
        Self { waiting: RefCell::default(), callback: Cell::new(ID_NULL) }
    }
}

impl Flushes {
    fn add(&self, iface: &Iface, caller: *mut Completion) {
        self.waiting.borrow_mut().push(caller);
        if self.callback.get() == ID_NULL {
            let argument = std::ptr::from_ref(iface).cast_mut().cast();
            // SAFETY: the worker outlives the interface. The callback is removed before the
            // interface is closed.
            self.callback.set(unsafe {
                let worker = iface.worker();
                let callbacks = &(*worker).ucs.callbacks;
                callbacks.add(&raw mut (*worker).queue, retry, argument, false)
            });
        }
    }

    /// Ends the attempts, before the interface is closed.
    pub(crate) fn remove_callback(&self, iface: &Iface) {
        let callback = self.callback.replace(ID_NULL);
        if callback != ID_NULL {
            // SAFETY: the worker outlives the interface.
            unsafe {
                let worker = iface.worker();
                (*worker).ucs.callbacks.remove(&raw mut (*worker).queue, callback, false);
            }
        }
    }
}

/// Tries the flushes that wait. Returns how many are done.
unsafe extern "C" fn retry(iface: *mut c_void) -> c_uint {
    // SAFETY: an open handle.
    let iface = unsafe { &*iface.cast::<Iface>() };
    if iface.is_connecting() {
        return 0;
    }
    let flushes = take(&mut *iface.flushes.waiting.borrow_mut());
    let mut done = 0;
    for caller in flushes {
        // SAFETY: the caller's completion is valid until the flush is finished (uct.h).
        match unsafe { flush_counted(iface, caller) } {
            INPROGRESS => {}
            NO_RESOURCE => iface.flushes.waiting.borrow_mut().push(caller),
            status => {
                // SAFETY: as above.
                unsafe { complete(caller, status) };
                done += 1;
            }
        }
    }
    if iface.flushes.waiting.borrow().is_empty() {
        iface.flushes.remove_callback(iface);
    }
    done
}

/// Flushes every endpoint of an interface.
///
/// # Safety
/// The completion is null, or valid until the flush is finished (uct.h).
pub(crate) unsafe fn flush(iface: &Iface, caller: *mut Completion) -> Status {
    if caller.is_null() {
        // Programs call this until it is done, also to let their endpoints connect.
        return match of_posted(iface.interface.flush(None)) {
            NO_RESOURCE => INPROGRESS,
            OK if iface.is_connecting() => INPROGRESS,
            status => status,
        };
    }
    if !iface.is_connecting() {
        // SAFETY: contract of this function.
        let status = unsafe { flush_counted(iface, caller) };
        if status != NO_RESOURCE {
            return status;
        }
    }
    iface.flushes.add(iface, caller);
    INPROGRESS
}
