//! Interposed functions of the C library, through which libibverbs, libmlx5 and programs reach the
//! kernel. Each checks by a path prefix or by one bit per descriptor whether the call concerns a
//! software device, and otherwise calls the C library.
//!
//! A panic does not leave these functions; it becomes an I/O error. Tests build them under other
//! names, so that the test's own C library is not interposed.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{mode_t, nfds_t, off_t, pollfd, size_t, ssize_t, stat};

use crate::attributes::{Attributes, RDMA_VERBS_IOCTL};
use crate::errno::Errno;
use crate::rdma_cm::{self, Outcome};
use crate::{path, process, user_memory, values};

/// `NETLINK_RDMA`: if it is refused, libibverbs uses sysfs.
const NETLINK_RDMA: c_int = 20;

/// The next function with this name: the C library's, or that of another preloaded library.
macro_rules! next {
    ($name:ident($($type:ty),*) -> $result:ty) => {{
        static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
        let mut next = NEXT.load(Ordering::Relaxed);
        if next.is_null() {
            const NAME: &str = concat!(stringify!($name), "\0");
            // SAFETY: the name is NUL-terminated.
            next = unsafe { $crate::interpose::find(NAME.as_ptr().cast()) };
            NEXT.store(next, Ordering::Relaxed);
        }
        if next.is_null() {
            $crate::interpose::missing(stringify!($name));
        }
        // SAFETY: the C library's function with this name has this type.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($type),*) -> $result>(next) }
    }};
}

pub mod paths;
pub mod polls;

/// Versions of old symbols of the C library. Since 2.33, `__xstat` and its like exist only in these,
/// for programs that were linked before, and dlsym(3) does not find them.
#[cfg(target_arch = "x86_64")]
const OLD: [&CStr; 2] = [c"GLIBC_2.2.5", c"GLIBC_2.4"];
#[cfg(target_arch = "aarch64")]
const OLD: [&CStr; 1] = [c"GLIBC_2.17"];

/// Returns the next function with this name, or null.
///
/// # Safety
/// `name` points to a NUL-terminated string.
unsafe fn find(name: *const c_char) -> *mut c_void {
    unsafe extern "C" {
        fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
    }
    // SAFETY: the name is NUL-terminated by the contract of this function.
    let mut next = unsafe { libc::dlsym(libc::RTLD_NEXT, name) };
    for version in OLD {
        if next.is_null() {
            // SAFETY: as above, and so is the version.
            next = unsafe { dlvsym(libc::RTLD_NEXT, name, version.as_ptr()) };
        }
    }
    next
}

/// Ends the process: it cannot continue without the C library's function.
#[cold]
fn missing(name: &str) -> ! {
    eprintln!("barewire-hca: the C library has no {name}");
    std::process::abort()
}

/// Runs `work` and converts its error to `errno` and -1. A panic becomes EIO.
fn errno_result(work: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    match catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Errno::IO)) {
        Ok(result) => result,
        Err(error) => {
            fail(error);
            -1
        }
    }
}

fn fail(error: Errno) {
    // SAFETY: the pointer to the calling thread's `errno` is valid.
    unsafe { *libc::__errno_location() = error.0 };
}

/// Returns the path, or `None` for a null pointer.
///
/// # Safety
/// `path` is null, or points to a NUL-terminated string that outlives the result.
unsafe fn text<'a>(path: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's contract is the same.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })
}

/// Returns the number of the device file at `path`, if there is such a device.
///
/// # Safety
/// As for [`text`].
unsafe fn device(path: *const c_char) -> Option<usize> {
    // SAFETY: the caller's contract is the same.
    let number = path::device(unsafe { text(path) }?)?;
    (number < process::get().devices()).then_some(number)
}

/// Calls `then` with the path, or with its replacement in the tree.
///
/// # Safety
/// As for [`text`].
unsafe fn with_path<R>(path: *const c_char, then: impl FnOnce(*const c_char) -> R) -> R {
    // SAFETY: the caller's contract is the same.
    let place = unsafe { text(path) }.and_then(path::in_tree);
    then(place.as_ref().map_or(path, |place| place.as_ptr()))
}

/// Returns whether this library stands in for the file at `path`.
///
/// # Safety
/// As for [`text`].
unsafe fn is_device_file(path: *const c_char) -> bool {
    // SAFETY: the caller's contract is the same.
    unsafe { device(path).is_some() || text(path).is_some_and(path::is_connections) }
}

/// Opened in place of a device file: a character device that always exists.
const STAND_IN: &CStr = c"/dev/null";

/// Opens the stand-in and makes its descriptor the device's.
fn open_device(number: usize, flags: c_int) -> c_int {
    let open = next!(open(*const c_char, c_int, mode_t) -> c_int);
    errno_result(|| {
        // SAFETY: the path is a constant, and nothing is created.
        let descriptor = unsafe { open(STAND_IN.as_ptr(), flags & !libc::O_CREAT, 0) };
        if descriptor < 0 {
            return Err(Errno::last());
        }
        process::get().open(number, descriptor).inspect_err(|_| {
            // SAFETY: the descriptor was opened above.
            unsafe { libc::syscall(libc::SYS_close, descriptor) };
        })?;
        Ok(descriptor)
    })
}

/// Opens a device, or a value of one, or otherwise the path, or its replacement in the tree, by
/// `next`.
///
/// # Safety
/// As for [`text`].
unsafe fn open_path(
    path: *const c_char,
    flags: c_int,
    next: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's contract is the same.
    unsafe {
        if let Some(number) = device(path) {
            return open_device(number, flags);
        }
        if text(path).is_some_and(path::is_connections) {
            return errno_result(|| process::get().open_connections(flags));
        }
        with_path(path, |path| match text(path).and_then(values::open) {
            Some(descriptor) => descriptor,
            None => next(path),
        })
    }
}

macro_rules! open_hooks {
    ($($name:ident),+) => {$(
        /// Interposes the C library's function of this name.
        ///
        /// # Safety
        /// As for the C library's function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            let next = next!($name(*const c_char, c_int, mode_t) -> c_int);
            // SAFETY: the caller's contract covers the path and the arguments.
            unsafe { open_path(path, flags, |path| next(path, flags, mode)) }
        }
    )+};
}

open_hooks!(open, open64);

macro_rules! openat_hooks {
    ($($name:ident),+) => {$(
        /// Interposes the C library's function of this name.
        ///
        /// # Safety
        /// As for the C library's function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(
            folder: c_int,
            path: *const c_char,
            flags: c_int,
            mode: mode_t,
        ) -> c_int {
            let next = next!($name(c_int, *const c_char, c_int, mode_t) -> c_int);
            // SAFETY: the caller's contract covers the path and the arguments.
            unsafe { open_path(path, flags, |path| next(folder, path, flags, mode)) }
        }
    )+};
}

openat_hooks!(openat, openat64);

macro_rules! fortified_open_hooks {
    ($($name:ident),+) => {$(
        /// Interposes the C library's function of this name.
        ///
        /// # Safety
        /// As for the C library's function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int) -> c_int {
            let next = next!($name(*const c_char, c_int) -> c_int);
            // SAFETY: the caller's contract covers the path and the arguments.
            unsafe { open_path(path, flags, |path| next(path, flags)) }
        }
    )+};
}

fortified_open_hooks!(__open_2, __open64_2);

macro_rules! fortified_openat_hooks {
    ($($name:ident),+) => {$(
        /// Interposes the C library's function of this name.
        ///
        /// # Safety
        /// As for the C library's function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
            let next = next!($name(c_int, *const c_char, c_int) -> c_int);
            // SAFETY: the caller's contract covers the path and the arguments.
            unsafe { open_path(path, flags, |path| next(folder, path, flags)) }
        }
    )+};
}

fortified_openat_hooks!(__openat_2, __openat64_2);

/// Interposes the C library's function of this name.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA {
        fail(Errno::UNKNOWN);
        return -1;
    }
    let next = next!(socket(c_int, c_int, c_int) -> c_int);
    // SAFETY: the arguments are the caller's, or a valid replacement path.
    unsafe { next(domain, kind, protocol) }
}

/// Interposes the C library's function of this name.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ioctl(
    descriptor: c_int,
    request: c_ulong,
    argument: *mut c_void,
) -> c_int {
    if !process::is_ours(descriptor) {
        let next = next!(ioctl(c_int, c_ulong, *mut c_void) -> c_int);
        // SAFETY: the arguments are the caller's, or a valid replacement path.
        return unsafe { next(descriptor, request, argument) };
    }
    errno_result(|| {
        // The request number has 32 bits; passed as an int it may be sign-extended.
        if request & u64::from(u32::MAX) != RDMA_VERBS_IOCTL {
            return Err(Errno(libc::ENOTTY));
        }
        let context = process::get().context(descriptor)?;
        // SAFETY: the caller keeps the contract of the ioctl.
        let call = unsafe { Attributes::read(argument.addr() as u64) }?;
        context.call(&call).map(|()| 0)
    })
}

/// Interposes the C library's function of this name. A thread that waits in it for an event of the
/// connection manager can be cancelled, as in the C library's.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn write(
    descriptor: c_int,
    bytes: *const c_void,
    length: size_t,
) -> ssize_t {
    if !process::is_ours(descriptor) {
        let next = next!(write(c_int, *const c_void, size_t) -> ssize_t);
        // SAFETY: the arguments are the caller's.
        return unsafe { next(descriptor, bytes, length) };
    }
    let poll = next!(poll(*mut pollfd, nfds_t, c_int) -> c_int);
    loop {
        // SAFETY: the caller keeps the contract of the call.
        match unsafe { command(descriptor, bytes, length) } {
            0 => {}
            result => return result,
        }
        let mut event = pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        // SAFETY: the structure is live. Nothing here needs to be dropped if the thread ends.
        if unsafe { poll(&raw mut event, 1, -1) } < 0 {
            return -1;
        }
    }
}

/// Executes a command of the connection manager. Returns the length, -1 for an error, or 0 if the
/// caller has to wait for an event.
///
/// # Safety
/// As for write(2).
unsafe fn command(descriptor: c_int, bytes: *const c_void, length: size_t) -> ssize_t {
    let result = errno_result(|| {
        let channel = process::get().channel(descriptor)?;
        let mut command = [0; rdma_cm::LONGEST];
        let command = command.get_mut(..length).ok_or(Errno::INVALID)?;
        // SAFETY: the caller keeps the contract of the call.
        unsafe { user_memory::read(bytes.addr() as u64, command) }?;
        match channel.execute(command)? {
            Outcome::Done => Ok(length as c_int),
            Outcome::NoEvent => {
                // SAFETY: no pointers.
                let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
                if flags & libc::O_NONBLOCK == 0 { Ok(0) } else { Err(Errno(libc::EAGAIN)) }
            }
        }
    });
    result as ssize_t
}

macro_rules! fstat_hooks {
    ($($name:ident($($before:ident: $earlier:ty),*);)+) => {$(
        /// Interposes the C library's function of this name.
        ///
        /// # Safety
        /// As for the C library's function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(
            $($before: $earlier,)* descriptor: c_int, status: *mut stat
        ) -> c_int {
            let next = next!($name($($earlier,)* c_int, *mut stat) -> c_int);
            // SAFETY: the arguments are the caller's.
            let result = unsafe { next($($before,)* descriptor, status) };
            if result == 0 && process::is_ours(descriptor) {
                // SAFETY: the call has succeeded, so the status is valid.
                unsafe { show_device(descriptor, status) };
            }
            result
        }
    )+};
}

fstat_hooks! {
    fstat();
    fstat64();
    __fxstat(version: c_int);
    __fxstat64(version: c_int);
}

/// Makes the file of the connection manager a character device, for which librdmacm checks.
///
/// # Safety
/// `status` points to the status of the descriptor.
unsafe fn show_device(descriptor: c_int, status: *mut stat) {
    let is_channel = catch_unwind(|| process::get().channel(descriptor).is_ok());
    if is_channel.unwrap_or(false) {
        // SAFETY: by the contract of this function.
        unsafe { (*status).st_mode = libc::S_IFCHR | 0o666 };
    }
}

macro_rules! mmap_hooks {
    ($($name:ident),+) => {$(
        /// Interposes the C library's function of this name.
        ///
        /// # Safety
        /// As for the C library's function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(
            address: *mut c_void,
            length: size_t,
            protection: c_int,
            flags: c_int,
            descriptor: c_int,
            offset: off_t,
        ) -> *mut c_void {
            if descriptor < 0 || !process::is_ours(descriptor) {
                let next = next!($name(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void);
                // SAFETY: the arguments are the caller's, or a valid replacement path.
                return unsafe { next(address, length, protection, flags, descriptor, offset) };
            }
            map(length, flags, descriptor, offset)
        }
    )+};
}

mmap_hooks!(mmap, mmap64);

/// Maps a page or memory of a device. Programs map whole pages of the kernel; of larger ones than
/// the device's, they use the first 4 KiB.
fn map(length: size_t, flags: c_int, descriptor: c_int, offset: off_t) -> *mut c_void {
    let mut address = 0;
    let result = errno_result(|| {
        if length == 0 || flags & libc::MAP_FIXED != 0 {
            return Err(Errno::INVALID);
        }
        address = process::get().map(descriptor, offset as u64, length)?;
        Ok(0)
    });
    if result == 0 { address as *mut c_void } else { libc::MAP_FAILED }
}

/// Interposes the C library's function of this name.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn munmap(address: *mut c_void, length: size_t) -> c_int {
    let ours = process::may_be_mapped(address.addr())
        && catch_unwind(|| process::get().unmap(address.addr(), length)).unwrap_or(false);
    if ours {
        return 0;
    }
    let next = next!(munmap(*mut c_void, size_t) -> c_int);
    // SAFETY: the arguments are the caller's, or a valid replacement path.
    unsafe { next(address, length) }
}

/// Interposes the C library's function of this name.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close(descriptor: c_int) -> c_int {
    if process::is_ours(descriptor) {
        errno_result(|| {
            process::get().close(descriptor);
            Ok(0)
        });
    }
    let next = next!(close(c_int) -> c_int);
    // SAFETY: the arguments are the caller's, or a valid replacement path.
    unsafe { next(descriptor) }
}

/// Registers `copy`, a duplicate of `descriptor`, if the latter is a device.
fn copied(descriptor: c_int, copy: c_int) -> c_int {
    if copy >= 0 && process::is_ours(descriptor) {
        // In a child, a duplicate of the parent's descriptor also fails with errors.
        let _ = catch_unwind(|| process::get().copy(descriptor, copy));
    }
    copy
}

/// Interposes the C library's function of this name.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup(descriptor: c_int) -> c_int {
    let next = next!(dup(c_int) -> c_int);
    // SAFETY: the arguments are the caller's, or a valid replacement path.
    copied(descriptor, unsafe { next(descriptor) })
}

macro_rules! fcntl_hooks {
    ($($name:ident),+) => {$(
        /// Interposes the C library's function of this name.
        ///
        /// # Safety
        /// As for the C library's function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(descriptor: c_int, command: c_int, argument: c_ulong) -> c_int {
            let next = next!($name(c_int, c_int, c_ulong) -> c_int);
            // SAFETY: the arguments are the caller's, or a valid replacement path.
            let result = unsafe { next(descriptor, command, argument) };
            match command {
                libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(descriptor, result),
                _ => result,
            }
        }
    )+};
}

fcntl_hooks!(fcntl, fcntl64);

/// Registers the fork handler when the library is loaded.
#[cfg_attr(test, expect(dead_code, reason = "nobody loads a test"))]
#[cfg_attr(not(test), used)]
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
static LOADED: extern "C" fn() = {
    extern "C" fn loaded() {
        // SAFETY: the handler is async-signal-safe: it stores to atomics and closes sockets.
        unsafe { libc::pthread_atfork(None, None, Some(process::forget_parent_at_fork)) };
    }
    loaded
};

const _: () = assert!(size_of::<c_long>() == size_of::<off_t>() && size_of::<c_uint>() == 4);
