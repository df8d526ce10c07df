//! Interfaces.

use std::cell::{Cell, OnceCell, RefCell, UnsafeCell};
use std::ffi::{c_int, c_uint, c_void};
use std::fmt::Display;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use barewire::{Armed, Cause, EndpointError, Flags, Interface, TransportId};

use crate::abi::{AmCallback, Completion, DeviceAddr, ErrorHandler, IfaceAddr, IfaceParams};
use crate::bootstrap::{self, Bootstrap, Contact};
use crate::callbacks::ID_NULL;
use crate::config::Config;
use crate::descriptor::{self, Layout};
use crate::direct;
use crate::endpoint::Ep;
use crate::fetch::Pool;
use crate::flush::{self, Flushes};
use crate::log::Level;
use crate::md::{Md, of_md};
use crate::status::{
    BUSY, INVALID_PARAM, IO_ERROR, NO_DEVICE, OK, Status, UNREACHABLE, UNSUPPORTED, guard,
    of_handler, of_open, of_result,
};
use crate::stub::{self, Stub};
use crate::text;
use crate::worker::Worker;

/// `uct_iface_t`: the operations come first, because programs call them through the handle.
#[repr(C)]
pub(crate) struct Iface {
    start: Stub,
    /// The owner of the interface's progress. Accessed by [`Iface::with_worker`] only.
    owner: UnsafeCell<barewire::Worker>,
    /// Progress is running further up the stack.
    is_running: Cell<bool>,
    pub(crate) interface: Interface,
    pub(crate) md: *mut Md,
    worker: *mut Worker,
    /// The directions for which progress is enabled, and the number of the callback.
    directions: Cell<c_uint>,
    callback: Cell<c_int>,
    pub(crate) endpoints: RefCell<Vec<NonNull<Ep>>>,
    pub(crate) fetches: Pool,
    pub(crate) flushes: Flushes,
    /// For transports that do not connect to interfaces themselves.
    pub(crate) bootstrap: OnceCell<Bootstrap>,
    /// The setting `SEG_SIZE`.
    pub(crate) segment: usize,
    /// What the program requires of messages that it keeps.
    layout: Layout,
    /// The setting `FAILURE`.
    failure: Level,
    /// The program names the features that it needs, as libucp does since 1.13, or requests asynchronous
    /// events, as it does in every version: it selects transports by their capabilities.
    pub(crate) selects_lanes: bool,
    error_handler: Option<ErrorHandler>,
    error_argument: *mut c_void,
}

/// Returns the interface behind a handle.
///
/// # Safety
/// `iface` is null or an open handle, which stays open for `'a`.
pub(crate) unsafe fn of_iface<'a>(iface: *const Iface) -> Result<&'a Iface, Status> {
    // SAFETY: contract of this function.
    unsafe { iface.as_ref() }.ok_or(INVALID_PARAM)
}

impl Iface {
    pub(crate) fn flags(&self) -> Flags {
        self.interface.attributes().flags
    }

    pub(crate) fn worker(&self) -> *mut Worker {
        self.worker
    }

    /// Returns whether the transport itself connects endpoints to interfaces.
    pub(crate) fn connects_to_interfaces(&self) -> bool {
        self.flags().contains(Flags::CONNECT_TO_INTERFACE)
    }

    /// Returns whether endpoints connect to endpoints. Of the transports that can do both, only
    /// `tcp` and those of datagrams do here, as in UCX: over others libucp would exchange addresses
    /// for nothing.
    pub(crate) fn connects_to_endpoints(&self) -> bool {
        let transport = self.interface.transport();
        let both =
            matches!(transport, TransportId::Tcp | TransportId::UdMlx5 | TransportId::UdVerbs);
        !self.connects_to_interfaces() || both
    }

    /// Returns whether a flush waits for an endpoint to connect.
    pub(crate) fn is_connecting(&self) -> bool {
        // SAFETY: an endpoint removes itself from the list before it is freed.
        self.endpoints.borrow().iter().any(|ep| unsafe { ep.as_ref() }.delays_flush())
    }

    /// Advances the connections to interfaces. Returns whether it must be called again soon.
    pub(crate) fn run_bootstrap(&self) -> bool {
        self.bootstrap.get().is_some_and(|bootstrap| bootstrap.work(self))
    }

    /// An endpoint could not be connected: reports that to the program.
    #[cold]
    pub(crate) fn fail(&self, ep: NonNull<Ep>, error: &dyn Display) {
        crate::log::error(&format_args!("cannot connect to the peer's interface: {error}"));
        // SAFETY: an endpoint ends its link before it is freed.
        unsafe { ep.as_ref() }.end_link();
        if let Some(handler) = self.error_handler {
            // SAFETY: the handler and its argument are the caller's.
            unsafe { handler(self.error_argument, ep.as_ptr(), UNREACHABLE) };
        }
    }

    /// Runs `run` with the owner of the progress; `None` inside of such a call.
    #[inline(always)]
    fn with_worker<R>(&self, run: impl FnOnce(&mut barewire::Worker) -> R) -> Option<R> {
        if self.is_running.replace(true) {
            return None;
        }
        // SAFETY: calls do not overlap (contract of the library), and the flag keeps those inside
        // of `run` out, so this is the only reference.
        let result = run(unsafe { &mut *self.owner.get() });
        self.is_running.set(false);
        Some(result)
    }

    /// Returns whether progress is not running further up the stack.
    pub(crate) fn may_run(&self) -> bool {
        !self.is_running.get()
    }

    /// Makes progress. A separate function, so that a call with nothing to do needs no saved
    /// registers.
    #[inline(never)]
    pub(crate) fn run(&self) -> c_uint {
        self.with_worker(barewire::Worker::progress).unwrap_or(0) as c_uint
    }

    /// Reports the endpoints that failed and were not reported yet.
    #[cold]
    fn report(&self, error: &EndpointError) {
        let failed: Vec<NonNull<Ep>> = self
            .endpoints
            .borrow()
            .iter()
            .copied()
            // SAFETY: an endpoint removes itself from the list before it is freed.
            .filter(|ep| unsafe { ep.as_ref() }.is_news())
            .collect();
        let level = match error.cause {
            // The processes of a job have different keys, and programs may wait for ever.
            Cause::Unauthenticated => Level::ERROR,
            // The program does not know passive endpoints.
            _ if failed.is_empty() => Level::DIAG,
            _ => self.failure,
        };
        crate::log::report(level, error);
        let Some(handler) = self.error_handler else { return };
        for ep in failed {
            // The handler may have destroyed this one, too.
            if self.endpoints.borrow().contains(&ep) {
                // SAFETY: as above, and the handler and its argument are the caller's.
                unsafe {
                    handler(
                        self.error_argument,
                        ep.as_ptr(),
                        barewire::caller::status_of(error.cause),
                    )
                };
            }
        }
    }

    fn enable(&self, directions: c_uint) {
        const THREAD_SAFE: c_uint = 1 << 7;
        // SAFETY: the worker outlives the interface. The callback is removed before the interface
        // is closed.
        unsafe {
            let ucs = (*self.worker).ucs;
            let queue = &raw mut (*self.worker).queue;
            if self.callback.get() == ID_NULL {
                let beside = directions & THREAD_SAFE != 0;
                let argument = std::ptr::from_ref(self).cast_mut().cast();
                self.callback.set(ucs.callbacks.add(queue, progress, argument, beside));
            }
        }
        self.directions.set(self.directions.get() | directions & !THREAD_SAFE);
    }

    fn disable(&self, directions: c_uint) {
        const THREAD_SAFE: c_uint = 1 << 7;
        self.directions.set(self.directions.get() & !directions);
        let callback = self.callback.get();
        if self.directions.get() != 0 || callback == ID_NULL {
            return;
        }
        self.callback.set(ID_NULL);
        // SAFETY: the worker outlives the interface.
        unsafe {
            let ucs = (*self.worker).ucs;
            let beside = directions & THREAD_SAFE != 0;
            ucs.callbacks.remove(&raw mut (*self.worker).queue, callback, beside);
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_iface_open(
    md: *mut Md,
    worker: *mut Worker,
    params: *const IfaceParams,
    config: *const Config,
    iface: *mut *mut Iface,
) -> Status {
    guard(|| {
        // SAFETY: null or valid for this call.
        let params = unsafe { params.as_ref() }.ok_or(INVALID_PARAM)?;
        let given = |field| params.field_mask & field != 0;
        if given(IfaceParams::OPEN_MODE) && params.open_mode & IfaceParams::MODE_STUB != 0 {
            if iface.is_null() {
                return Err(INVALID_PARAM);
            }
            // SAFETY: these are parameters of a stub. The caller's pointer is valid for writes.
            unsafe { *iface = stub::open(params) };
            return Ok(());
        }
        // SAFETY: open handles; the other is null or valid for this call.
        let (domain, config) = unsafe { (of_md(md)?, config.as_ref()) };
        if iface.is_null() || worker.is_null() {
            return Err(INVALID_PARAM);
        }
        if given(IfaceParams::OPEN_MODE) && params.open_mode & IfaceParams::MODE_DEVICE == 0 {
            return Err(UNSUPPORTED);
        }
        if given(IfaceParams::DEVICE) {
            // SAFETY: null or strings.
            let (transport, device) =
                unsafe { (text::read(params.tl_name), text::read(params.dev_name)) };
            if transport != Some(domain.transport().name()) || device != Some(domain.domain.name())
            {
                return Err(NO_DEVICE);
            }
        }
        let layout = Layout::new(params)?;
        let default = Config::default();
        let config = config.unwrap_or(&default);
        let mut owner = barewire::Worker::new();
        // Programs of UCX expect that what they posted leaves, and that peers connect, without
        // further calls.
        let settings = config.interface.clone().unattended(true);
        let interface = Interface::open(&mut owner, &domain.domain, &settings);
        let interface = interface.map_err(|error| {
            crate::log::error(&error);
            of_open(&error)
        })?;
        let handler = params.err_handler.filter(|_| given(IfaceParams::ERR_HANDLER));
        let argument = given(IfaceParams::ERR_HANDLER_ARG).then_some(params.err_handler_arg);
        let opened = Box::into_raw(Box::new(Iface {
            start: Stub::of_iface(&direct::table(domain.transport())),
            owner: UnsafeCell::new(owner),
            is_running: Cell::new(false),
            interface: interface.clone(),
            md,
            worker,
            directions: Cell::new(0),
            callback: Cell::new(ID_NULL),
            endpoints: RefCell::default(),
            fetches: Pool::default(),
            flushes: Flushes::default(),
            bootstrap: OnceCell::new(),
            segment: config.segment,
            layout,
            failure: config.failure,
            selects_lanes: given(IfaceParams::FEATURES | IfaceParams::ASYNC_EVENT_CB),
            error_handler: handler,
            error_argument: argument.unwrap_or(std::ptr::null_mut()),
        }));
        // SAFETY: the interface calls its handler until it is closed, which frees this.
        interface.set_error_handler(move |error| unsafe { &*opened }.report(error));
        // SAFETY: as above.
        let handle = unsafe { &*opened };
        // SAFETY: the caller's worker, which outlives the interface.
        unsafe { &(*worker).devices }.add(handle);
        if bootstrap::is_needed(interface.transport()) {
            match Bootstrap::open(handle, worker) {
                Ok(open) => drop(handle.bootstrap.set(open)),
                Err(error) => crate::log::diag(&error),
            }
        }
        // SAFETY: the caller's pointer is valid for writes.
        unsafe { *iface = opened };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn close(iface: *mut Iface) {
    guard(|| {
        // SAFETY: an open handle, which is closed once.
        let open = unsafe { of_iface(iface) }?;
        open.disable(c_uint::MAX & !(1 << 7));
        // SAFETY: the worker outlives the interface.
        unsafe { &(*open.worker).devices }.remove(open);
        if let Some(bootstrap) = open.bootstrap.get() {
            bootstrap.close();
        }
        open.flushes.remove_callback(open);
        // Operations in progress end here, while the rest of the interface still exists. The
        // program has not waited for them, and may have freed its completions, as libucp has.
        barewire::caller::abandon(|| open.with_worker(|worker| drop(std::mem::take(worker))));
        // SAFETY: as above; nothing refers to it any more.
        drop(unsafe { Box::from_raw(iface) });
        Ok(())
    });
}

/// The progress of one interface, as an operation and as a callback of the worker.
pub(crate) unsafe extern "C" fn progress(iface: *mut c_void) -> c_uint {
    // SAFETY: an open handle.
    let iface = unsafe { &*iface.cast::<Iface>() };
    // SAFETY: calls do not overlap, and the flag says that none is further up the stack.
    if !iface.is_running.get() && unsafe { &*iface.owner.get() }.is_idle() {
        return 0;
    }
    iface.run()
}

pub(crate) unsafe extern "C" fn progress_enable(iface: *mut Iface, directions: c_uint) {
    // SAFETY: an open handle.
    unsafe { &*iface }.enable(directions);
}

pub(crate) unsafe extern "C" fn progress_disable(iface: *mut Iface, directions: c_uint) {
    // SAFETY: an open handle.
    unsafe { &*iface }.disable(directions);
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_iface_set_am_handler(
    iface: *mut Iface,
    id: u8,
    callback: Option<AmCallback>,
    argument: *mut c_void,
    _flags: u32,
) -> Status {
    guard(|| {
        // SAFETY: an open handle.
        let Iface { interface, layout, .. } = unsafe { of_iface(iface) }?;
        let set = match callback {
            Some(callback) => {
                let layout = *layout;
                // SAFETY: the callback and its argument are the caller's.
                interface.set_handler(id, move |message| unsafe {
                    descriptor::deliver(message, layout, callback, argument);
                })
            }
            None => interface.set_handler(id, |_| ()),
        };
        set.map_err(of_handler)
    })
}

/// The tracer sees messages in UCX's log, which these transports do not write.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_iface_set_am_tracer(
    iface: *mut Iface,
    _tracer: *mut c_void,
    _argument: *mut c_void,
) -> Status {
    if iface.is_null() { INVALID_PARAM } else { OK }
}

pub(crate) unsafe extern "C" fn event_fd_get(iface: *mut Iface, descriptor: *mut c_int) -> Status {
    guard(|| {
        // SAFETY: an open handle.
        let iface = unsafe { of_iface(iface) }?;
        if descriptor.is_null() {
            return Err(INVALID_PARAM);
        }
        let found = iface.with_worker(|worker| worker.event_fd().map(|fd| fd.as_raw_fd()));
        match found.ok_or(BUSY)? {
            Ok(found) => {
                let both = iface.bootstrap.get().map(|bootstrap| bootstrap.with_events(found));
                let both = both.transpose().map_err(|error| {
                    crate::log::error(&error);
                    IO_ERROR
                })?;
                // SAFETY: the caller's pointer is valid for writes.
                unsafe { *descriptor = both.unwrap_or(found) };
            }
            Err(error) => {
                crate::log::diag(&error);
                return Err(UNSUPPORTED);
            }
        }
        Ok(())
    })
}

/// Arms all events, whichever are asked for.
pub(crate) unsafe extern "C" fn event_arm(iface: *mut Iface, _events: c_uint) -> Status {
    guard(|| {
        // SAFETY: an open handle.
        let iface = unsafe { of_iface(iface) }?;
        match iface.with_worker(barewire::Worker::arm).ok_or(BUSY)? {
            Ok(Armed::Ready) => Err(BUSY),
            Ok(_) => Ok(()),
            Err(error) => {
                crate::log::diag(&error);
                Err(IO_ERROR)
            }
        }
    })
}

pub(crate) unsafe extern "C" fn get_device_address(
    iface: *mut Iface,
    address: *mut DeviceAddr,
) -> Status {
    guard(|| {
        // SAFETY: an open handle.
        let own = unsafe { of_iface(iface) }?.interface.address();
        // SAFETY: the caller's buffer has `device_addr_len` bytes, the length of every address.
        unsafe { copy_out(own.device().body(), address.cast()) }
    })
}

pub(crate) unsafe extern "C" fn get_address(iface: *mut Iface, address: *mut IfaceAddr) -> Status {
    guard(|| {
        // SAFETY: an open handle.
        let iface = unsafe { of_iface(iface) }?;
        let own = iface.interface.address();
        let mut bytes = own.interface().body().to_vec();
        if bootstrap::is_needed(iface.interface.transport()) {
            // Without a listener, zeros.
            let contact = iface.bootstrap.get().map(|bootstrap| bootstrap.contact.to_bytes());
            bytes.extend(contact.unwrap_or([0; Contact::BYTES]));
        }
        // SAFETY: the caller's buffer has `iface_addr_len` bytes, the length of every address.
        unsafe { copy_out(&bytes, address.cast()) }
    })
}

/// Copies an address into a buffer of the caller, which may be null for an empty one.
///
/// # Safety
/// `target` is null or valid for writes of as many bytes as `bytes` has.
pub(crate) unsafe fn copy_out(bytes: &[u8], target: *mut u8) -> Result<(), Status> {
    if target.is_null() {
        return if bytes.is_empty() { Ok(()) } else { Err(INVALID_PARAM) };
    }
    // SAFETY: contract of this function.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    Ok(())
}

pub(crate) unsafe extern "C" fn flush(
    iface: *mut Iface,
    _flags: c_uint,
    completion: *mut Completion,
) -> Status {
    // SAFETY: an open handle, and a completion as the contract of the operation says.
    unsafe { flush::flush(&*iface, completion) }
}

pub(crate) unsafe extern "C" fn fence(iface: *mut Iface, _flags: c_uint) -> Status {
    // SAFETY: an open handle.
    of_result(unsafe { &*iface }.interface.fence())
}
