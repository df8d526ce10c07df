//! The functions of libucs that the interface needs: the callback queue of a worker
//! (ucs/datastruct/callbackq.h), which programs dispatch by an inline function, and the watched
//! descriptors of an async context (ucs/async/async.h). They are found at run time, in the libucs of
//! the program, so that building this library does not need UCX.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::abi::CallbackQueue;
use crate::log::Component;
use crate::status::Status;

/// A callback of a worker. Returns the number of events.
pub(crate) type Callback = unsafe extern "C" fn(*mut c_void) -> c_uint;

/// No callback.
pub(crate) const ID_NULL: c_int = -1;
/// A callback that every dispatch calls.
pub(crate) const FLAG_FAST: c_uint = 1;
/// A callback that the next dispatch calls, once.
pub(crate) const FLAG_ONESHOT: c_uint = 2;

/// `ucs_callbackq_elem_t`
#[repr(C)]
pub(crate) struct CallbackElement {
    pub(crate) callback: Option<Callback>,
    pub(crate) argument: *mut c_void,
    pub(crate) flags: c_uint,
    pub(crate) id: c_int,
}

type Queue = *mut CallbackQueue;
type Add = unsafe extern "C" fn(Queue, Callback, *mut c_void, c_uint) -> c_int;
type Remove = unsafe extern "C" fn(Queue, c_int);
type Predicate = unsafe extern "C" fn(*const CallbackElement, *mut c_void) -> c_int;
type RemoveIf = unsafe extern "C" fn(Queue, Predicate, *mut c_void);
/// Called with the descriptor, the events and the argument.
type EventHandler = unsafe extern "C" fn(c_int, c_uint, *mut c_void);
/// Mode, descriptor, events, handler, argument, async context.
type Watch =
    unsafe extern "C" fn(c_uint, c_int, c_uint, EventHandler, *mut c_void, *mut c_void) -> Status;
type Rewatch = unsafe extern "C" fn(c_int, c_uint) -> Status;
type Unwatch = unsafe extern "C" fn(c_int, c_int) -> Status;

/// File, line, function, level, component, format.
type Log = unsafe extern "C" fn(
    *const c_char,
    c_uint,
    *const c_char,
    c_uint,
    *const Component,
    *const c_char,
    ...
);

/// The functions of callback queues and async contexts. Those that end with `safe` may run beside a
/// dispatch.
pub(crate) struct Functions {
    pub(crate) init: unsafe extern "C" fn(Queue) -> Status,
    pub(crate) cleanup: unsafe extern "C" fn(Queue),
    pub(crate) add: Add,
    pub(crate) add_safe: Add,
    pub(crate) remove: Remove,
    pub(crate) remove_safe: Remove,
    pub(crate) remove_if: RemoveIf,
    /// `ucs_async_set_event_handler`
    pub(crate) watch: Watch,
    /// `ucs_async_modify_handler`
    pub(crate) rewatch: Rewatch,
    /// `ucs_async_remove_handler`, whose second argument says whether it waits for a handler that
    /// runs.
    pub(crate) unwatch: Unwatch,
    /// `ucs_log_dispatch`
    pub(crate) log: Log,
}

/// Returns the mode of an async context (`ucs_async_mode_t`), which has no accessor: in `struct
/// ucs_async_context` (ucs/async/async.h) it is behind a mutex with its owner and count.
///
/// # Safety
/// `context` is one of libucs.
pub(crate) unsafe fn async_mode(context: *const c_void) -> c_uint {
    const OFFSET: usize = size_of::<libc::pthread_mutex_t>() + 16;
    // SAFETY: contract of this function.
    unsafe { context.byte_add(OFFSET).cast::<c_uint>().read() }
}

/// Returns the functions; `None` if there is no libucs.
pub(crate) fn functions() -> Option<&'static Functions> {
    static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
    FUNCTIONS.get_or_init(load).as_ref()
}

fn load() -> Option<Functions> {
    // SAFETY: the name ends with a zero. The library is the one that the program has loaded, or
    // will load; it is never unloaded.
    let library = unsafe { libc::dlopen(c"libucs.so.0".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        eprintln!(
            "barewire-uct: libucs.so.0 is not installed: it is part of UCX (Debian: libucx0)"
        );
        return None;
    }
    let find = |name: &CStr| {
        // SAFETY: the library is open, and the name ends with a zero.
        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
        if found.is_null() {
            eprintln!("barewire-uct: libucs.so.0 has no {}", name.to_string_lossy());
        }
        (!found.is_null()).then_some(found)
    };
    // SAFETY: the functions of these names have these types (ucs/datastruct/callbackq.h,
    // ucs/async/async_fwd.h).
    unsafe {
        use std::mem::transmute;
        Some(Functions {
            init: transmute::<*mut c_void, unsafe extern "C" fn(Queue) -> Status>(find(
                c"ucs_callbackq_init",
            )?),
            cleanup: transmute::<*mut c_void, unsafe extern "C" fn(Queue)>(find(
                c"ucs_callbackq_cleanup",
            )?),
            add: transmute::<*mut c_void, Add>(find(c"ucs_callbackq_add")?),
            add_safe: transmute::<*mut c_void, Add>(find(c"ucs_callbackq_add_safe")?),
            remove: transmute::<*mut c_void, Remove>(find(c"ucs_callbackq_remove")?),
            remove_safe: transmute::<*mut c_void, Remove>(find(c"ucs_callbackq_remove_safe")?),
            remove_if: transmute::<*mut c_void, RemoveIf>(find(c"ucs_callbackq_remove_if")?),
            watch: transmute::<*mut c_void, Watch>(find(c"ucs_async_set_event_handler")?),
            rewatch: transmute::<*mut c_void, Rewatch>(find(c"ucs_async_modify_handler")?),
            unwatch: transmute::<*mut c_void, Unwatch>(find(c"ucs_async_remove_handler")?),
            log: transmute::<*mut c_void, Log>(find(c"ucs_log_dispatch")?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The structure is not in the installed headers: libucs itself shows where the mode is.
    #[test]
    fn the_mode_of_an_async_context_is_found() {
        type Create = unsafe extern "C" fn(c_uint, *mut *mut c_void) -> Status;
        if functions().is_none() {
            println!("skipped: libucs.so.0 is not installed (Debian: libucx0)");
            return;
        }
        // SAFETY: functions of libucs, with the types of ucs/async/async_fwd.h.
        unsafe {
            let library = libc::dlopen(c"libucs.so.0".as_ptr(), libc::RTLD_NOW);
            let find = |name: &CStr| libc::dlsym(library, name.as_ptr());
            let create: Create = std::mem::transmute(find(c"ucs_async_context_create"));
            let destroy: unsafe extern "C" fn(*mut c_void) =
                std::mem::transmute(find(c"ucs_async_context_destroy"));
            // Signals, spin locks, mutexes, polling.
            for mode in 0..4 {
                let mut context = std::ptr::null_mut();
                assert_eq!(create(mode, &raw mut context), crate::status::OK);
                assert_eq!(async_mode(context), mode);
                destroy(context);
            }
        }
    }
}
