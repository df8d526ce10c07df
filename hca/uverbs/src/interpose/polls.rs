//! Polls of completion queues and posts that run the device on the program's thread.
//!
//! A program that polls, and the thread of its device, compete for CPUs: a poll of libmlx5 that
//! finds nothing keeps its CPU until the kernel takes it away, milliseconds later. Here
//! `ibv_poll_cq` and `ibv_post_send` of a software device call libmlx5's functions. The third poll
//! in succession that finds nothing then runs a pass of the device, and a post does so if the
//! device's thread sleeps. If there was no work, the poll yields the CPU, to the threads of peers
//! on this machine.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};

use barewire_hca::Device;

use crate::process;

/// Polls without a completion, in succession by a thread, of a program that may wait for an event
/// next.
const EMPTY_POLLS: u32 = 2;

thread_local! {
    /// Polls without a completion since the last one with one.
    static EMPTY: Cell<u32> = const { Cell::new(0) };
}

/// Functions of a kind in a process: those of libmlx5 that poll differ by the version of completion
/// entries.
const FUNCTIONS: usize = 4;

/// `ibv_poll_cq` of a provider. The last argument is an array of `ibv_wc`.
type Poll = unsafe extern "C" fn(*const OfContext, c_int, *mut c_void) -> c_int;
/// `ibv_post_send` of a provider. The others are `ibv_send_wr` and a place for the one that failed.
type Post = unsafe extern "C" fn(*const OfContext, *mut c_void, *mut c_void) -> c_int;

/// The beginning of `struct ibv_cq` and `struct ibv_qp` (infiniband/verbs.h).
#[repr(C)]
struct OfContext {
    context: *const Context,
}

/// The beginning of `struct ibv_context` (infiniband/verbs.h).
#[repr(C)]
struct Context {
    device: *mut c_void,
    operations: [*mut c_void; 32],
    command_descriptor: c_int,
}

/// The indices of `poll_cq` and `post_send` in `struct ibv_context_ops`.
const POLL: usize = 11;
const POST: usize = 25;

/// The functions of libmlx5, by the number of the function here that calls each.
type Originals = [AtomicPtr<c_void>; FUNCTIONS];
static POLLS: Originals = [const { AtomicPtr::new(std::ptr::null_mut()) }; FUNCTIONS];
static POSTS: Originals = [const { AtomicPtr::new(std::ptr::null_mut()) }; FUNCTIONS];

const OUR_POLLS: [Poll; FUNCTIONS] = [poll::<0>, poll::<1>, poll::<2>, poll::<3>];
const OUR_POSTS: [Post; FUNCTIONS] = [post::<0>, post::<1>, post::<2>, post::<3>];

/// Polls by function `NUMBER` of [`POLLS`].
unsafe extern "C" fn poll<const NUMBER: usize>(
    queue: *const OfContext,
    count: c_int,
    completions: *mut c_void,
) -> c_int {
    let next = POLLS[NUMBER].load(Ordering::Relaxed);
    // SAFETY: `take_over` stored a function of this type before a context had this one.
    let next = unsafe { std::mem::transmute::<*mut c_void, Poll>(next) };
    // SAFETY: the contract of this function is that of the next one.
    let found = unsafe { next(queue, count, completions) };
    let empty = if found == 0 { EMPTY.get().saturating_add(1) } else { 0 };
    EMPTY.set(empty);
    // SAFETY: as above: the queue is live.
    if empty > EMPTY_POLLS && !unsafe { with_device(queue, Device::drive) } {
        // SAFETY: no pointers; it does not fail.
        unsafe { libc::sched_yield() };
    }
    found
}

/// Posts by function `NUMBER` of [`POSTS`].
unsafe extern "C" fn post<const NUMBER: usize>(
    pair: *const OfContext,
    requests: *mut c_void,
    failed: *mut c_void,
) -> c_int {
    let next = POSTS[NUMBER].load(Ordering::Relaxed);
    // SAFETY: `take_over` stored a function of this type before a context had this one.
    let next = unsafe { std::mem::transmute::<*mut c_void, Post>(next) };
    // SAFETY: the contract of this function is that of the next one.
    let result = unsafe { next(pair, requests, failed) };
    let drive = |device: &Device| {
        device.drive_asleep();
        true
    };
    // SAFETY: as above: the queue pair is live.
    unsafe { with_device(pair, drive) };
    result
}

/// Calls `run` with the device of an object, on a thread that is not cancelled meanwhile. Returns
/// false for a device of the parent process, and if `run` panics, which stops the device.
///
/// # Safety
/// `object` points to a completion queue or queue pair whose context lives.
unsafe fn with_device(object: *const OfContext, run: impl FnOnce(&Device) -> bool) -> bool {
    // SAFETY: the contract of this function.
    let descriptor = unsafe { (*(*object).context).command_descriptor };
    let run =
        || process::get().context(descriptor).is_ok_and(|context| run(&context.adapter.device));
    let mut before = 0;
    // SAFETY: `before` is live.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
    let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or(false);
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(before, &raw mut before) };
    result
}

// pthread_setcancelstate(3), and the value of pthread.h, which the crate libc lacks.
unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// Replaces the functions of a device's context, if it is one of this library's.
///
/// # Safety
/// `context` points to a context that libibverbs has opened, and that no other thread uses.
unsafe fn take_over(context: *mut Context) {
    // SAFETY: the contract of this function.
    let context = unsafe { &mut *context };
    if !process::is_ours(context.command_descriptor) || !process::get().yields() {
        return;
    }
    let [polls, posts] =
        [OUR_POLLS.map(|poll| poll as *mut c_void), OUR_POSTS.map(|post| post as _)];
    for (at, originals, ours) in [(POLL, &POLLS, polls), (POST, &POSTS, posts)] {
        let next = context.operations[at];
        if ours.contains(&next) {
            continue;
        }
        // The first free number, or that of the same function.
        let number = originals.iter().position(|slot| {
            let null = std::ptr::null_mut();
            let before = slot.compare_exchange(null, next, Ordering::Relaxed, Ordering::Relaxed);
            before.map_or_else(|before| before == next, |_| true)
        });
        if let Some(number) = number {
            context.operations[at] = ours[number];
        }
    }
}

/// Interposes libibverbs' function, by which `ibv_open_device` and `mlx5dv_open_device` open
/// devices.
///
/// # Safety
/// As for libibverbs' function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn verbs_open_device(
    device: *mut c_void,
    private: *mut c_void,
) -> *mut c_void {
    type Open = unsafe extern "C" fn(*mut c_void, *mut c_void) -> *mut c_void;
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let mut next = NEXT.load(Ordering::Relaxed);
    if next.is_null() {
        next = find_in_verbs(c"verbs_open_device");
        NEXT.store(next, Ordering::Relaxed);
    }
    if next.is_null() {
        // Called by a program that found this function, and has no libibverbs.
        super::fail(crate::errno::Errno(libc::ENOSYS));
        return std::ptr::null_mut();
    }
    // SAFETY: libibverbs' function with this name has this type.
    let open = unsafe { std::mem::transmute::<*mut c_void, Open>(next) };
    // SAFETY: the contract of this function is that of the next one.
    let context = unsafe { open(device, private) };
    if !context.is_null() {
        // SAFETY: libibverbs has just opened the context.
        unsafe { take_over(context.cast()) };
    }
    context
}

/// Returns libibverbs' function with this name, or null. The library may be loaded where RTLD_NEXT
/// does not look, as a program's own plugins are.
fn find_in_verbs(name: &CStr) -> *mut c_void {
    // SAFETY: the name is NUL-terminated.
    let next = unsafe { super::find(name.as_ptr()) };
    if !next.is_null() {
        return next;
    }
    let mut found = (name, std::ptr::null_mut());
    // SAFETY: `look_in` has the type that dl_iterate_phdr(3) needs, and `found` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look_in), (&raw mut found).cast()) };
    found.1
}

/// Looks for a function in a loaded object whose name begins with that of libibverbs.
unsafe extern "C" fn look_in(
    object: *mut libc::dl_phdr_info,
    _: libc::size_t,
    found: *mut c_void,
) -> c_int {
    // SAFETY: `find_in_verbs` passes such a pointer, and nothing else refers to it meanwhile.
    let (name, function) = unsafe { &mut *found.cast::<(&CStr, *mut c_void)>() };
    // SAFETY: the dynamic linker passes a valid object, whose name is NUL-terminated.
    let path: *const c_char = unsafe { (*object).dlpi_name };
    // SAFETY: as above.
    let Some(text) = (unsafe { super::text(path) }) else { return 0 };
    let file = text.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    if !file.starts_with(b"libibverbs") {
        return 0;
    }
    // SAFETY: the path is NUL-terminated. The object stays loaded: its code is being run.
    unsafe {
        let handle = libc::dlopen(path, libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        if !handle.is_null() {
            *function = libc::dlsym(handle, name.as_ptr());
            libc::dlclose(handle);
        }
    }
    c_int::from(!function.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// As gcc lays out `struct ibv_context` of infiniband/verbs.h for 64 bits.
    #[test]
    fn the_context_is_laid_out_as_in_verbs_h() {
        let operation = |at| offset_of!(Context, operations) + at * size_of::<*mut c_void>();
        assert_eq!((operation(POLL), operation(POST)), (96, 208));
        assert_eq!(offset_of!(Context, command_descriptor), 264);
    }
}
