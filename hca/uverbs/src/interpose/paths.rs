//! Functions that take a path: they get its replacement in the tree, or the stand-in for a device
//! file.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{size_t, ssize_t};

use super::{STAND_IN, is_device_file, text, with_path};
use crate::values;

/// The path is between the semicolons, after the arguments before it.
macro_rules! path_hooks {
    ($($name:ident($($before:ident: $earlier:ty),*; $($after:ident: $later:ty),*) -> $result:ty;)+) => {$(
        /// Interposes the C library's function of this name.
        ///
        /// # Safety
        /// As for the C library's function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(
            $($before: $earlier,)* path: *const c_char $(, $after: $later)*
        ) -> $result {
            let next = next!($name($($earlier,)* *const c_char $(, $later)*) -> $result);
            // SAFETY: the caller's contract covers the path.
            let path = if unsafe { is_device_file(path) } { STAND_IN.as_ptr() } else { path };
            // SAFETY: the arguments are the caller's, or a valid replacement path.
            unsafe { with_path(path, |path| next($($before,)* path $(, $after)*)) }
        }
    )+};
}

path_hooks! {
    stat(; status: *mut c_void) -> c_int;
    stat64(; status: *mut c_void) -> c_int;
    lstat(; status: *mut c_void) -> c_int;
    lstat64(; status: *mut c_void) -> c_int;
    fstatat(folder: c_int; status: *mut c_void, flags: c_int) -> c_int;
    fstatat64(folder: c_int; status: *mut c_void, flags: c_int) -> c_int;
    statx(folder: c_int; flags: c_int, mask: c_uint, status: *mut c_void) -> c_int;
    access(; mode: c_int) -> c_int;
    eaccess(; mode: c_int) -> c_int;
    euidaccess(; mode: c_int) -> c_int;
    faccessat(folder: c_int; mode: c_int, flags: c_int) -> c_int;
    chdir(;) -> c_int;
    opendir(;) -> *mut c_void;
    scandir(; list: *mut c_void, filter: *mut c_void, compare: *mut c_void) -> c_int;
    scandir64(; list: *mut c_void, filter: *mut c_void, compare: *mut c_void) -> c_int;
    scandirat(
        folder: c_int; list: *mut c_void, filter: *mut c_void, compare: *mut c_void
    ) -> c_int;
    scandirat64(
        folder: c_int; list: *mut c_void, filter: *mut c_void, compare: *mut c_void
    ) -> c_int;
    readlink(; buffer: *mut c_char, size: size_t) -> ssize_t;
    readlinkat(folder: c_int; buffer: *mut c_char, size: size_t) -> ssize_t;
    __readlink_chk(; buffer: *mut c_char, size: size_t, room: size_t) -> ssize_t;
    __readlinkat_chk(
        folder: c_int; buffer: *mut c_char, size: size_t, room: size_t
    ) -> ssize_t;
    // `ls -l` asks for attributes.
    getxattr(; name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t;
    lgetxattr(; name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t;
    listxattr(; list: *mut c_char, size: size_t) -> ssize_t;
    llistxattr(; list: *mut c_char, size: size_t) -> ssize_t;
    realpath(; resolved: *mut c_char) -> *mut c_char;
    __realpath_chk(; resolved: *mut c_char, size: size_t) -> *mut c_char;
    canonicalize_file_name(;) -> *mut c_char;
}

// Programs that were linked to a C library before 2.33, in which `stat` and its like were inline.
path_hooks! {
    __xstat(version: c_int; status: *mut c_void) -> c_int;
    __xstat64(version: c_int; status: *mut c_void) -> c_int;
    __lxstat(version: c_int; status: *mut c_void) -> c_int;
    __lxstat64(version: c_int; status: *mut c_void) -> c_int;
    __fxstatat(version: c_int, folder: c_int; status: *mut c_void, flags: c_int) -> c_int;
    __fxstatat64(version: c_int, folder: c_int; status: *mut c_void, flags: c_int) -> c_int;
}

macro_rules! stream_hooks {
    ($($name:ident),+) => {$(
        /// Interposes the C library's function of this name.
        ///
        /// # Safety
        /// As for the C library's function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut c_void {
            let next = next!($name(*const c_char, *const c_char) -> *mut c_void);
            // SAFETY: the caller's contract covers the path and the mode. A descriptor of a value
            // is open, and owned by the stream from here on.
            unsafe {
                let path = if is_device_file(path) { STAND_IN.as_ptr() } else { path };
                with_path(path, |path| match text(path).and_then(values::open) {
                    Some(descriptor) => libc::fdopen(descriptor, mode).cast(),
                    None => next(path, mode),
                })
            }
        }
    )+};
}

stream_hooks!(fopen, fopen64);
