//! The functions of libucs that the interface needs: the callback queue of a worker, and the
//! watched descriptors of an async context (ucs/async/async.h). They are found at run time, in the
//! libucs of the program, so that building this library does not need UCX, and so that it serves
//! programs of several versions.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::callbacks::Callbacks;
use crate::log::Component;
use crate::status::{OK, Status};

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

/// A version of UCX, from which on the layouts and functions are those that this library knows
/// until the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Version {
    /// Also 1.14 and 1.15, as far as programs do not call functions that 1.13 lacks.
    V1_13,
    #[cfg(feature = "ucx-head")]
    V1_19,
    /// Its `uct_md_attr_v2_t` has a field more.
    #[cfg(feature = "ucx-head")]
    V1_22,
}

impl Version {
    /// libucs does not return its version: each has functions that its predecessor lacks.
    fn of(library: &Library) -> Option<Self> {
        if library.has(c"ucs_callbackq_remove_if") {
            return Some(Self::V1_13);
        }
        #[cfg(feature = "ucx-head")]
        if library.has(c"ucs_string_buffer_vappendf") {
            return Some(Self::V1_22);
        } else if library.has(c"ucs_netlink_route_exists") {
            return Some(Self::V1_19);
        }
        let newer = if cfg!(feature = "ucx-head") { " and 1.19 or later" } else { "" };
        eprintln!(
            "barewire-uct: programs of this version of UCX cannot use this library, only those of 1.13{newer}"
        );
        None
    }
}

/// The functions of async contexts and of the log.
pub(crate) struct Functions {
    pub(crate) version: Version,
    pub(crate) callbacks: Callbacks,
    /// `ucs_async_set_event_handler`
    pub(crate) watch: Watch,
    /// `ucs_async_modify_handler`
    pub(crate) rewatch: Rewatch,
    /// `ucs_async_remove_handler`, whose second argument says whether it waits for a handler that
    /// runs.
    pub(crate) unwatch: Unwatch,
    /// `ucs_log_dispatch`
    pub(crate) log: Log,
    mode_offset: usize,
}

impl Functions {
    /// Returns the mode of an async context (`ucs_async_mode_t`), which has no accessor.
    ///
    /// # Safety
    /// `context` is one of libucs.
    pub(crate) unsafe fn async_mode(&self, context: *const c_void) -> c_uint {
        // SAFETY: contract of this function.
        unsafe { context.byte_add(self.mode_offset).cast::<c_uint>().read() }
    }
}

/// Returns where `struct ucs_async_context` (ucs/async/async.h) has the mode: behind a mutex, which
/// has an owner and a count in builds with assertions. A context of a known mode shows it.
fn mode_offset(library: &Library) -> Option<usize> {
    type Init = unsafe extern "C" fn(*mut c_void, c_uint) -> Status;
    type Cleanup = unsafe extern "C" fn(*mut c_void);
    const MUTEX: usize = size_of::<libc::pthread_mutex_t>();
    /// `UCS_ASYNC_MODE_POLL`, which needs no thread and no signal.
    const POLL: c_uint = 3;
    // More than it has in any version, and zero, which is another mode.
    let mut context = [0_u64; 64];
    let start = context.as_mut_ptr().cast::<c_void>();
    // SAFETY: functions of these types (ucs/async/async.h); the offsets are within the context.
    unsafe {
        let init: Init = library.find(c"ucs_async_context_init")?;
        let cleanup: Cleanup = library.find(c"ucs_async_context_cleanup")?;
        if init(start, POLL) != OK {
            return None;
        }
        let is_mode = |offset: &usize| start.byte_add(*offset).cast::<c_uint>().read() == POLL;
        let found = [MUTEX, MUTEX + 16].into_iter().find(is_mode);
        cleanup(start);
        if found.is_none() {
            eprintln!("barewire-uct: async contexts of libucs.so.0 have an unknown layout");
        }
        found
    }
}

/// Returns the functions; `None` if there is no libucs, or one of another version.
pub(crate) fn functions() -> Option<&'static Functions> {
    static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
    FUNCTIONS.get_or_init(load).as_ref()
}

/// Returns the version of UCX for which the program was built; that of 1.13 if it has no libucs.
pub(crate) fn version() -> Version {
    functions().map_or(Version::V1_13, |functions| functions.version)
}

/// The libucs that the program has loaded, or will load. It is never unloaded.
pub(crate) struct Library(NonNull<c_void>);

impl Library {
    fn open() -> Option<Self> {
        // SAFETY: the name ends with a zero.
        let library = unsafe { libc::dlopen(c"libucs.so.0".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            eprintln!(
                "barewire-uct: libucs.so.0 is not installed: it is part of UCX (Debian: libucx0)"
            );
        }
        NonNull::new(library).map(Self)
    }

    fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the library is open, and the name ends with a zero.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }

    fn has(&self, name: &CStr) -> bool {
        self.symbol(name).is_some()
    }

    /// Returns a function, or reports that it is missing.
    ///
    /// # Safety
    /// `F` is the type of the function, a pointer to it.
    pub(crate) unsafe fn find<F: Copy>(&self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<NonNull<c_void>>()) };
        let Some(found) = self.symbol(name) else {
            eprintln!("barewire-uct: libucs.so.0 has no {}", name.to_string_lossy());
            return None;
        };
        // SAFETY: contract of this function; the size is that of a pointer.
        Some(unsafe { std::mem::transmute_copy(&found) })
    }
}

fn load() -> Option<Functions> {
    let library = Library::open()?;
    let version = Version::of(&library)?;
    let callbacks = Callbacks::load(&library, version)?;
    // SAFETY: the functions of these names have these types in every version
    // (ucs/async/async_fwd.h, ucs/debug/log_def.h).
    unsafe {
        Some(Functions {
            version,
            callbacks,
            watch: library.find(c"ucs_async_set_event_handler")?,
            rewatch: library.find(c"ucs_async_modify_handler")?,
            unwatch: library.find(c"ucs_async_remove_handler")?,
            log: library.find(c"ucs_log_dispatch")?,
            mode_offset: mode_offset(&library)?,
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
        let Some(ucs) = functions() else {
            println!("skipped: libucs.so.0 is not installed (Debian: libucx0)");
            return;
        };
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
                assert_eq!(create(mode, &raw mut context), OK);
                assert_eq!(ucs.async_mode(context), mode);
                destroy(context);
            }
        }
    }
}
