//! Workers: a queue of callbacks, one per interface that makes progress.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::RawFd;

use crate::abi::CallbackQueue;
use crate::callbacks::{Callback, ID_NULL};
use crate::cm::Devices;
use crate::status::{INVALID_PARAM, OK, Status, UNSUPPORTED, guard};
use crate::ucs::{EventHandler, Functions, READABLE, functions};

/// `uct_worker_t`, whose queue programs dispatch themselves.
#[repr(C)]
pub(crate) struct Worker {
    pub(crate) queue: CallbackQueue,
    pub(crate) ucs: &'static Functions,
    /// `ucs_async_context_t`, or null.
    pub(crate) context: *mut c_void,
    /// The devices of its interfaces.
    pub(crate) devices: Devices,
}

impl Worker {
    /// Lets libucs call `handler` with `argument` while a descriptor is readable.
    ///
    /// # Safety
    /// The worker has an async context, and `argument` is valid for the handler until
    /// [`Self::unwatch`].
    pub(crate) unsafe fn watch(
        &self,
        descriptor: RawFd,
        handler: EventHandler,
        argument: *mut c_void,
    ) -> Result<(), Status> {
        let (ucs, context) = (self.ucs, self.context);
        // SAFETY: the context is the caller's, and valid as long as the worker.
        let status = unsafe {
            (ucs.watch)(ucs.async_mode(context), descriptor, READABLE, handler, argument, context)
        };
        if status == OK { Ok(()) } else { Err(status) }
    }

    /// Ends the calls of a handler. After that it does not run.
    pub(crate) fn unwatch(&self, descriptor: RawFd) {
        // SAFETY: libucs accepts descriptors without a handler, too.
        unsafe { (self.ucs.unwatch)(descriptor, 1) };
    }
}

/// The modes are `ucs_thread_mode_t`: every mode gets the same worker, on which calls must not
/// overlap.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_worker_create(
    context: *mut c_void,
    thread_mode: c_uint,
    worker: *mut *mut Worker,
) -> Status {
    const MULTI: c_uint = 2;
    guard(|| {
        if worker.is_null() || thread_mode > MULTI {
            return Err(INVALID_PARAM);
        }
        let ucs = functions().ok_or(UNSUPPORTED)?;
        let created = Box::into_raw(Box::new(Worker {
            queue: CallbackQueue::zeroed(),
            ucs,
            context,
            devices: Devices::default(),
        }));
        // SAFETY: the queue stays where it is until the worker is destroyed.
        let status = unsafe { ucs.callbacks.init(&raw mut (*created).queue) };
        if status != OK {
            // SAFETY: it is not used any more.
            drop(unsafe { Box::from_raw(created) });
            return Err(status);
        }
        // SAFETY: the caller's pointer is valid for writes.
        unsafe { *worker = created };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_worker_destroy(worker: *mut Worker) {
    if worker.is_null() {
        return;
    }
    // SAFETY: an open handle, which is closed once.
    unsafe {
        (*worker).ucs.callbacks.cleanup(&raw mut (*worker).queue);
        drop(Box::from_raw(worker));
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_worker_progress_register_safe(
    worker: *mut Worker,
    callback: Option<Callback>,
    argument: *mut c_void,
    flags: c_uint,
    id: *mut c_int,
) {
    let Some(callback) = callback.filter(|_| !worker.is_null() && !id.is_null()) else { return };
    // SAFETY: an open handle, and a valid number.
    unsafe {
        if *id == ID_NULL {
            let (ucs, queue) = ((*worker).ucs, &raw mut (*worker).queue);
            *id = ucs.callbacks.register(queue, callback, argument, flags);
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_worker_progress_unregister_safe(
    worker: *mut Worker,
    id: *mut c_int,
) {
    if worker.is_null() || id.is_null() {
        return;
    }
    // SAFETY: an open handle, and a valid number.
    unsafe {
        if *id != ID_NULL {
            (*worker).ucs.callbacks.unregister(&raw mut (*worker).queue, *id);
            *id = ID_NULL;
        }
    }
}
