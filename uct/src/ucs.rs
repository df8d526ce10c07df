//! The functions of libucs that the interface needs: the callback queue of a worker, and the
//! watched descriptors of an async context (ucs/async/async.h). They are found at run time, in the
//! libucs that the program has loaded, so that building this library does not need UCX, and so that
//! it serves programs of several versions.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::callbacks::Callbacks;
use crate::log::Component;
use crate::status::{OK, Status};

/// `UCS_EVENT_SET_EVREAD`
pub(crate) const READABLE: c_uint = 1 << 0;

/// Called with the descriptor, the events and the argument.
pub(crate) type EventHandler = unsafe extern "C" fn(c_int, c_uint, *mut c_void);
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

/// A version of UCX, from which on the layouts and functions are those that this library knows until
/// the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Version {
    /// Also 1.12, whose structures lack the last fields.
    V1_13,
    /// The first one with attributes of domains by a mask.
    V1_14,
    V1_15,
    /// Another queue of callbacks, and another order of parameters of `uct_md_mkey_pack_v2`.
    V1_16,
    V1_17,
    V1_18,
    V1_19,
    V1_22,
}

impl Version {
    /// Returns the version of a number; later ones are assumed to be as the last.
    fn of_number(major: c_uint, minor: c_uint) -> Option<Self> {
        let version = match (major, minor) {
            (1, 12 | 13) => Self::V1_13,
            (1, 14) => Self::V1_14,
            (1, 15) => Self::V1_15,
            (1, 16) => Self::V1_16,
            (1, 17) => Self::V1_17,
            (1, 18) => Self::V1_18,
            (1, 19..=21) => Self::V1_19,
            (1, 22..) | (2.., _) => Self::V1_22,
            _ => return None,
        };
        (cfg!(feature = "ucx-head") || version == Self::V1_13).then_some(version)
    }

    fn of(library: &Library) -> Option<Self> {
        type GetVersion = unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_uint);
        let supported = if cfg!(feature = "ucx-head") { "1.12 or later" } else { "1.12 and 1.13" };
        let refused = |found: &dyn std::fmt::Display| {
            eprintln!(
                "barewire-uct: {found} cannot use this library, which is for UCX {supported}; to get one: \
                 python3 -m pip install --no-deps --target ucx libucx-cu12==1.22.0, and start the program \
                 with LD_LIBRARY_PATH=ucx/libucx/lib"
            );
        };
        let Some(get) = library.symbol(c"ucp_get_version") else {
            let version = Self::of_symbols(|name| library.has(name));
            if version.is_none() {
                refused(&"this version of UCX");
            }
            return version;
        };
        let (mut major, mut minor, mut release) = (0, 0, 0);
        // SAFETY: a function of libucp with this type in every version (ucp/api/ucp.h).
        unsafe {
            let get = std::mem::transmute::<NonNull<c_void>, GetVersion>(get);
            get(&raw mut major, &raw mut minor, &raw mut release);
        }
        let version = Self::of_number(major, minor);
        if version.is_none() {
            refused(&format_args!("UCX {major}.{minor}.{release}"));
        }
        version
    }

    /// libucs does not return its version, and programs of UCT alone have no libucp: each version has
    /// functions that its predecessor lacks.
    fn of_symbols(has: impl Fn(&CStr) -> bool) -> Option<Self> {
        let minor = SYMBOLS.iter().find(|(_, name)| has(name)).map(|(minor, _)| *minor);
        Self::of_number(1, minor?)
    }
}

/// Functions of libucs, each with the first version of UCX that has it, the newest first.
const SYMBOLS: [(c_uint, &CStr); 8] = [
    (22, c"ucs_string_buffer_vappendf"),
    (19, c"ucs_netlink_route_exists"),
    (18, c"ucs_netlink_send_request"),
    (17, c"ucs_sock_port_from_string"),
    (16, c"ucs_callbackq_add_oneshot"),
    (15, c"ucs_numa_distance"),
    (14, c"ucs_string_distance"),
    (13, c"ucs_callbackq_remove_if"),
];

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
            eprintln!("barewire-uct: async contexts of this libucs have an unknown layout");
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

/// The libucs of the program. It is never unloaded.
pub(crate) struct Library(NonNull<c_void>);

/// A function of libucs and one of libucp, in every version.
const OF_LIBUCS: &CStr = c"ucs_async_context_init";
const OF_LIBUCP: &CStr = c"ucp_get_version";

impl Library {
    /// Finds the libucs that libucp is bound to, or else the program, among the loaded objects: the
    /// file may have any name, as in Python packages, and another libucs may be installed.
    fn open() -> Option<Self> {
        let loaded: Vec<_> = objects().iter().filter_map(|name| Self::loaded(name)).collect();
        let found = loaded.into_iter().filter(|library| library.has(OF_LIBUCS));
        // The search in a library includes those that it is bound to. One that is bound to libucp
        // finds the same.
        let by_libucp = |library: &Self| library.has(OF_LIBUCP);
        let found = found.reduce(
            |best, next| {
                if !by_libucp(&best) && by_libucp(&next) { next } else { best }
            },
        );
        found.or_else(|| {
            let library = Self::load(c"libucs.so.0", 0);
            if library.is_none() {
                eprintln!(
                    "barewire-uct: libucs.so.0 is not installed: it is part of UCX (Debian: libucx0)"
                );
            }
            library
        })
    }

    /// Returns a loaded object.
    fn loaded(name: &CStr) -> Option<Self> {
        Self::load(name, libc::RTLD_NOLOAD)
    }

    fn load(name: &CStr, flags: c_int) -> Option<Self> {
        // SAFETY: the name ends with a zero.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | flags) };
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
            eprintln!("barewire-uct: this libucs has no {}", name.to_string_lossy());
            return None;
        };
        // SAFETY: contract of this function; the size is that of a pointer.
        Some(unsafe { std::mem::transmute_copy(&found) })
    }
}

/// Returns the names of the loaded objects, in the order in which they were loaded.
fn objects() -> Vec<CString> {
    unsafe extern "C" fn note(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        names: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's record of an object, whose name ends with a zero; the argument is the
        // list below.
        unsafe {
            let name = CStr::from_ptr((*info).dlpi_name);
            if !name.is_empty() {
                (*names.cast::<Vec<CString>>()).push(name.to_owned());
            }
        }
        0
    }
    let mut names = Vec::<CString>::new();
    // SAFETY: the callback has this type, and the list outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut names).cast()) };
    names
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

    #[test]
    fn versions_have_the_layouts_of_the_last_one_that_changed_them() {
        assert_eq!(
            [(0, 9), (1, 11)].map(|(major, minor)| Version::of_number(major, minor)),
            [None; 2]
        );
        assert_eq!(Version::of_number(1, 12), Some(Version::V1_13));
        if cfg!(feature = "ucx-head") {
            let known = [(1, 18), (1, 21), (1, 30), (2, 0)];
            let expected = [Version::V1_18, Version::V1_19, Version::V1_22, Version::V1_22];
            let found = known.map(|(major, minor)| Version::of_number(major, minor));
            assert_eq!(found, expected.map(Some));
        }
    }

    /// Each version has the functions of its predecessors, but for the one that 1.16 removed.
    #[test]
    fn a_version_is_found_by_its_newest_function() {
        for (at, (minor, _)) in SYMBOLS.iter().enumerate() {
            let has = |name: &CStr| SYMBOLS[at..].iter().any(|(_, known)| *known == name);
            assert_eq!(Version::of_symbols(has), Version::of_number(1, *minor), "1.{minor}");
        }
        assert_eq!(Version::of_symbols(|_| false), None);
    }

    /// The installed libraries agree. By hand: with LD_LIBRARY_PATH for other versions.
    #[test]
    fn libucs_and_libucp_are_of_one_version() {
        let libraries = [c"libucs.so.0", c"libucp.so.0"].map(|name| Library::load(name, 0));
        let [Some(ucs), Some(ucp)] = libraries else {
            println!("skipped: libucp.so.0 is not installed (Debian: libucx0)");
            return;
        };
        assert!(ucp.has(OF_LIBUCP) && !ucs.has(OF_LIBUCP));
        assert_eq!(Version::of(&ucs), Version::of(&ucp));
    }

    #[test]
    fn loaded_objects_are_listed_by_name() {
        let names = objects();
        assert!(names.iter().any(|name| name.to_string_lossy().contains("libc.so")), "{names:?}");
    }

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
