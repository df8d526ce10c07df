//! The data path: sends, receives and tests.
//!
//! These functions are called for every message, so they do not catch panics: nothing in them
//! panics, and a panic in a function of the C ABI would end the process.

use core::array;
use core::ffi::c_int;
use core::ptr;

use barewire_channel::MAX_GROUP;

use super::store;
use crate::abi::{Any, Code, INVALID_ARGUMENT, Out, SUCCESS};
use crate::comm::{Failed, Memory, report};
use crate::data::{Comm, Refused, Slot};

/// Stores the request of a call. Its error is reported.
///
/// # Safety
/// `place` is null or valid for a write.
#[inline(always)]
unsafe fn store_request(
    what: &'static str,
    place: Out,
    posted: Result<Option<&Slot>, Refused>,
) -> Code {
    match posted {
        Ok(slot) if !place.is_null() => {
            let request = slot.map_or(ptr::null(), ptr::from_ref);
            // SAFETY: the caller guarantees that it is valid.
            unsafe { place.write(request.cast_mut().cast()) };
            SUCCESS
        }
        Ok(_) => is_null(what),
        Err(refused) => report(what, &refused),
    }
}

#[cold]
#[inline(never)]
fn is_null(what: &str) -> Code {
    report(what, &Failed::Argument("a pointer is null"))
}

pub(super) unsafe extern "C" fn send9(
    comm: Any,
    data: Any,
    length: usize,
    tag: c_int,
    memory: Any,
    request: Out,
) -> Code {
    // SAFETY: NCCL passes a comm of `connect`, or null.
    let Some(comm) = (unsafe { comm.cast::<Comm>().as_ref() }) else { return is_null("isend") };
    // SAFETY: NCCL passes memory of `register`, or null.
    let memory = unsafe { memory.cast::<Memory>().as_ref() };
    // SAFETY: NCCL calls the data path of a comm from one thread at a time.
    let sent = unsafe { comm.send(data as usize, length, tag, memory) };
    // SAFETY: NCCL's pointer is valid for a write, or null.
    unsafe { store_request("isend", request, sent) }
}

pub(super) unsafe extern "C" fn send6(
    comm: Any,
    data: Any,
    length: c_int,
    tag: c_int,
    memory: Any,
    request: Out,
) -> Code {
    let Ok(length) = usize::try_from(length) else { return INVALID_ARGUMENT };
    // SAFETY: NCCL passes what `send9` takes.
    unsafe { send9(comm, data, length, tag, memory, request) }
}

pub(super) unsafe extern "C" fn send(
    comm: Any,
    data: Any,
    length: usize,
    tag: c_int,
    memory: Any,
    _: Any,
    request: Out,
) -> Code {
    // SAFETY: NCCL passes what `send9` takes.
    unsafe { send9(comm, data, length, tag, memory, request) }
}

/// The buffers of a group, as NCCL passes them.
#[derive(Clone, Copy)]
struct Buffers<L> {
    data: *const Any,
    lengths: *const L,
    tags: *const c_int,
    memories: *const Any,
}

impl<L: Copy + TryInto<usize>> Buffers<L> {
    fn has_null(self) -> bool {
        self.data.is_null()
            || self.lengths.is_null()
            || self.tags.is_null()
            || self.memories.is_null()
    }

    /// Data, length, tag and memory of a buffer. A negative length, which no memory has, becomes
    /// the largest.
    ///
    /// # Safety
    /// The arrays have more than `at` elements, and the memory is that of `register`, or null.
    #[inline(always)]
    unsafe fn get<'m>(self, at: usize) -> (usize, usize, c_int, Option<&'m Memory>) {
        // SAFETY: the caller guarantees the number of elements.
        let (data, length, tag, memory) = unsafe {
            let (data, length) = (self.data.add(at).read(), self.lengths.add(at).read());
            (data, length, self.tags.add(at).read(), self.memories.add(at).read())
        };
        // SAFETY: the caller guarantees that it is that of `register`, or null.
        let memory = unsafe { memory.cast::<Memory>().as_ref() };
        (data as usize, length.try_into().unwrap_or(usize::MAX), tag, memory)
    }
}

/// Posts a group of receives.
///
/// # Safety
/// The arrays have `count` elements, whose types are NCCL's.
#[inline(always)]
unsafe fn receive_sizes<L: Copy + TryInto<usize>>(
    comm: Any,
    count: c_int,
    buffers: Buffers<L>,
    request: Out,
) -> Code {
    // SAFETY: NCCL passes a comm of `accept`, or null.
    let Some(comm) = (unsafe { comm.cast::<Comm>().as_ref() }) else { return is_null("irecv") };
    if buffers.has_null() {
        return is_null("irecv");
    }
    let posted = if count == 1 {
        // SAFETY: the arrays have an element.
        let (data, length, tag, memory) = unsafe { buffers.get(0) };
        // SAFETY: NCCL calls the data path of a comm from one thread at a time.
        unsafe { comm.receive(data, length, tag, memory) }
    } else if (2..=MAX_GROUP as c_int).contains(&count) {
        let count = count as usize;
        let mut is_valid = true;
        let targets: [_; MAX_GROUP] = array::from_fn(|at| {
            // Those after the last are not used.
            let at = if at < count { at } else { 0 };
            // SAFETY: the arrays have `count` elements.
            let (data, length, tag, memory) = unsafe { buffers.get(at) };
            let target = comm.target(data, length, tag, memory);
            is_valid &= target.is_some();
            target.unwrap_or(comm.no_target())
        });
        let targets = targets.get(..count).unwrap_or_default();
        // SAFETY: NCCL calls the data path of a comm from one thread at a time.
        unsafe { comm.receive_group(if is_valid { targets } else { &[] }) }
    } else {
        Err(Refused::group())
    };
    // SAFETY: NCCL's pointer is valid for a write, or null.
    unsafe { store_request("irecv", request, posted) }
}

pub(super) unsafe extern "C" fn receive6(
    comm: Any,
    count: c_int,
    data: *const Any,
    lengths: *const c_int,
    tags: *const c_int,
    memories: *const Any,
    request: Out,
) -> Code {
    // SAFETY: NCCL's arrays have `count` elements.
    unsafe { receive_sizes(comm, count, Buffers { data, lengths, tags, memories }, request) }
}

pub(super) unsafe extern "C" fn receive9(
    comm: Any,
    count: c_int,
    data: *const Any,
    lengths: *const usize,
    tags: *const c_int,
    memories: *const Any,
    request: Out,
) -> Code {
    // SAFETY: NCCL's arrays have `count` elements.
    unsafe { receive_sizes(comm, count, Buffers { data, lengths, tags, memories }, request) }
}

pub(super) unsafe extern "C" fn receive(
    comm: Any,
    count: c_int,
    data: *const Any,
    lengths: *const usize,
    tags: *const c_int,
    memories: *const Any,
    _: *const Any,
    request: Out,
) -> Code {
    // SAFETY: NCCL's arrays have `count` elements.
    unsafe { receive_sizes(comm, count, Buffers { data, lengths, tags, memories }, request) }
}

/// Memory of the host needs no flush: a receive that is complete is visible.
pub(super) unsafe extern "C" fn flush(
    _: Any,
    _: c_int,
    _: *const Any,
    _: *const c_int,
    _: *const Any,
    request: Out,
) -> Code {
    // SAFETY: NCCL's pointer is null or valid for a write.
    match unsafe { store(request, ptr::null_mut()) } {
        Ok(()) => SUCCESS,
        Err(_) => is_null("iflush"),
    }
}

pub(super) unsafe extern "C" fn test(request: Any, done: *mut c_int, sizes: *mut c_int) -> Code {
    // SAFETY: NCCL passes a request of a comm that is open, or null.
    let Some(slot) = (unsafe { request.cast::<Slot>().as_ref() }) else { return is_null("test") };
    if done.is_null() {
        return is_null("test");
    }
    let note = |at: usize, size: usize| {
        if !sizes.is_null() {
            // SAFETY: the array has an element for each buffer of the request.
            unsafe { sizes.add(at).write(size as c_int) };
        }
    };
    // SAFETY: NCCL closes a comm after its requests, and calls its data path from one thread at a
    // time.
    match unsafe { slot.test(note) } {
        Ok(complete) => {
            // SAFETY: NCCL's pointer is valid for a write.
            unsafe { done.write(complete.into()) };
            SUCCESS
        }
        Err(refused) => report("test", &refused),
    }
}
