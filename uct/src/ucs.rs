//! The functions of libucs that the interface needs: the callback queue of a worker
//! (ucs/datastruct/callbackq.h), which programs dispatch by an inline function. They are found at
//! run time, in the libucs of the program, so that building this library does not need UCX.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::abi::CallbackQueue;
use crate::status::Status;

/// A callback of a worker. Returns the number of events.
pub(crate) type Callback = unsafe extern "C" fn(*mut c_void) -> c_uint;

/// No callback.
pub(crate) const ID_NULL: c_int = -1;
/// A callback that every dispatch calls.
pub(crate) const FLAG_FAST: c_uint = 1;

type Queue = *mut CallbackQueue;
type Add = unsafe extern "C" fn(Queue, Callback, *mut c_void, c_uint) -> c_int;
type Remove = unsafe extern "C" fn(Queue, c_int);

/// The functions of callback queues. Those that end with `safe` may run beside a dispatch.
pub(crate) struct Functions {
    pub(crate) init: unsafe extern "C" fn(Queue) -> Status,
    pub(crate) cleanup: unsafe extern "C" fn(Queue),
    pub(crate) add: Add,
    pub(crate) add_safe: Add,
    pub(crate) remove: Remove,
    pub(crate) remove_safe: Remove,
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
        crate::log::error(&"libucs.so.0 is not installed: it is part of UCX (Debian: libucx0)");
        return None;
    }
    let find = |name: &CStr| {
        // SAFETY: the library is open, and the name ends with a zero.
        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
        if found.is_null() {
            crate::log::error(&format_args!("libucs.so.0 has no {}", name.to_string_lossy()));
        }
        (!found.is_null()).then_some(found)
    };
    // SAFETY: the functions of these names have these types (ucs/datastruct/callbackq.h).
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
        })
    }
}
