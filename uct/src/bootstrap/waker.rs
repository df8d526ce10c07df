//! Calls [`Bootstrap::work`](super::Bootstrap) inside the worker's progress when its descriptor is
//! readable. libucs watches the descriptor: its thread, or in other modes its polling, adds a
//! callback to the worker's queue, which runs once.

use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::iface::Iface;
use crate::ucs::{Functions, READABLE};
use crate::worker::Worker;

/// What the thread of libucs accesses.
struct Shared {
    ucs: &'static Functions,
    worker: *mut Worker,
    descriptor: RawFd,
    /// The callback is in the queue.
    is_queued: AtomicBool,
    /// Accessed by the callback only, which runs inside the worker's progress.
    iface: *const Iface,
}

pub(super) struct Waker(Box<Shared>);

impl Waker {
    /// Watches a descriptor.
    pub(super) fn start(
        iface: *const Iface,
        worker: *mut Worker,
        descriptor: RawFd,
    ) -> io::Result<Self> {
        // SAFETY: an open handle, which outlives the interface.
        let (ucs, context) = unsafe { ((*worker).ucs, (*worker).context) };
        if context.is_null() {
            return Err(io::Error::other("the worker has no async context"));
        }
        let is_queued = AtomicBool::new(false);
        let shared = Box::new(Shared { ucs, worker, descriptor, is_queued, iface });
        let argument = std::ptr::from_ref(&*shared).cast_mut().cast();
        // SAFETY: the worker outlives the interface, and has a context. `stop` ends the calls of
        // the handler before the argument is freed.
        let watched = unsafe { (*worker).watch(descriptor, readable, argument) };
        watched.map_err(|status| {
            io::Error::other(format!("ucs_async_set_event_handler returned {status}"))
        })?;
        Ok(Self(shared))
    }

    /// Makes the next progress of the worker call `work`.
    pub(super) fn schedule(&self) {
        self.0.schedule();
    }

    /// Ends all calls.
    pub(super) fn stop(&self) {
        let shared = &*self.0;
        let argument = std::ptr::from_ref(shared).cast_mut().cast();
        // SAFETY: the worker outlives the interface. After the first call the handler does not run.
        unsafe {
            (*shared.worker).unwatch(shared.descriptor);
            shared.ucs.callbacks.remove_once(&raw mut (*shared.worker).queue, argument);
        }
    }
}

impl Shared {
    fn schedule(&self) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            let argument = std::ptr::from_ref(self).cast_mut().cast();
            // SAFETY: the worker outlives the interface. Any thread may call this function.
            unsafe {
                let queue = &raw mut (*self.worker).queue;
                self.ucs.callbacks.add_once(queue, work, argument);
            }
        }
    }

    fn watch(&self, events: c_uint) {
        // SAFETY: the descriptor has a handler until `stop`.
        unsafe { (self.ucs.rewatch)(self.descriptor, events) };
    }
}

/// The descriptor is readable. May run on the thread of libucs.
unsafe extern "C" fn readable(_: c_int, _: c_uint, shared: *mut c_void) {
    // SAFETY: the argument of `start`, which is freed after the last call.
    let shared = unsafe { &*shared.cast::<Shared>() };
    // Otherwise the handler would be called again and again until the worker makes progress.
    shared.watch(0);
    shared.schedule();
}

/// Runs inside the worker's progress.
unsafe extern "C" fn work(shared: *mut c_void) -> c_uint {
    // SAFETY: as above; the interface is open while its waker is.
    let (shared, iface) = unsafe {
        let shared = &*shared.cast::<Shared>();
        (shared, &*shared.iface)
    };
    shared.is_queued.store(false, Ordering::Release);
    if iface.run_bootstrap() {
        shared.schedule();
    } else {
        shared.watch(READABLE);
    }
    0
}
