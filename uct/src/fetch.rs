//! Operations that return data: gets by a callback or into a short buffer, and atomics with a
//! result; and the counting of an interface's flush.
//!
//! What the post needs besides the caller's completion lies in an [`Operation`], which is used
//! again for later posts: in the long run nothing is allocated.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::ffi::{c_uint, c_void};
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use barewire::{AtomicOp, Endpoint, FetchResult, Post, Posted, Unpack};

use crate::abi::{Completion, Rkey, UnpackCallback, atomic_op};
use crate::endpoint::Ep;
use crate::iface::Iface;
use crate::post::{key, nothing_to};
use crate::query::has_get_short;
use crate::status::{INPROGRESS, INVALID_PARAM, OK, Status, UNSUPPORTED, of_posted};

/// Where the data goes.
#[derive(Clone, Copy)]
enum Target {
    Nowhere,
    Word(*mut u64),
    Half(*mut u32),
    Bytes(*mut u8),
    Callback(UnpackCallback, *mut c_void),
}

/// A post that returns data.
#[repr(C)]
struct Operation {
    /// The completion of the post, whose function is [`finish`].
    record: UnsafeCell<Completion>,
    result: FetchResult,
    unpack: Unpack,
    target: Rc<Cell<Target>>,
    /// The completion of the caller, or null.
    caller: Cell<*mut Completion>,
    pool: *const Pool,
}

/// The operations of an interface that are not in use.
#[derive(Default)]
pub(crate) struct Pool {
    free: RefCell<Vec<NonNull<Operation>>>,
    /// Also those in use: an interface that is closed may not finish them.
    all: RefCell<Vec<NonNull<Operation>>>,
}

impl Pool {
    #[inline]
    fn take(&self) -> NonNull<Operation> {
        let free = self.free.borrow_mut().pop();
        free.unwrap_or_else(|| self.create())
    }

    #[cold]
    fn create(&self) -> NonNull<Operation> {
        let mut all = self.all.borrow_mut();
        // Giving one back never allocates.
        self.free.borrow_mut().reserve(all.len() + 1);
        let target = Rc::new(Cell::new(Target::Nowhere));
        let to = Rc::clone(&target);
        let operation = Operation {
            record: UnsafeCell::new(Completion { func: Some(finish), count: 0, status: OK }),
            result: FetchResult::new(),
            unpack: Unpack::new(move |data| unpack(to.get(), data)),
            target,
            caller: Cell::new(null_mut()),
            pool: self,
        };
        let created = NonNull::from(Box::leak(Box::new(operation)));
        all.push(created);
        created
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for operation in self.all.take() {
            // SAFETY: nothing runs any more that has it, as the interface's worker was dropped
            // before. `create` leaked the box.
            drop(unsafe { Box::from_raw(operation.as_ptr()) });
        }
    }
}

/// Passes data to the caller.
fn unpack(target: Target, data: &[u8]) {
    // SAFETY: the callback is the caller's; the caller's buffer has the length of the get.
    unsafe {
        match target {
            Target::Callback(callback, argument) => callback(argument, data.as_ptr(), data.len()),
            Target::Bytes(buffer) => {
                std::ptr::copy_nonoverlapping(data.as_ptr(), buffer, data.len());
            }
            _ => {}
        }
    }
}

impl Operation {
    /// Stores the result of an atomic.
    fn store(&self) {
        let value = self.result.get();
        // SAFETY: the caller's word is valid until the operation is finished (uct.h).
        unsafe {
            match self.target.get() {
                Target::Word(word) => word.write_unaligned(value),
                Target::Half(half) => half.write_unaligned(value as u32),
                _ => {}
            }
        }
    }
}

/// Gives an operation back.
///
/// # Safety
/// `operation` is one that [`Pool::take`] returned, and is not used any more.
unsafe fn release(operation: NonNull<Operation>) {
    // SAFETY: contract of this function; the pool outlives its operations.
    unsafe { &*operation.as_ref().pool }.free.borrow_mut().push(operation);
}

/// The post is finished.
unsafe extern "C" fn finish(record: *mut Completion) {
    let Some(handle) = NonNull::new(record.cast::<Operation>()) else { return };
    // SAFETY: only operations have this function; the record is the first field.
    let operation = unsafe { handle.as_ref() };
    // SAFETY: nothing else accesses the record now.
    let status = unsafe { (*operation.record.get()).status };
    if status == OK {
        operation.store();
    }
    let caller = operation.caller.get();
    // SAFETY: the post is finished.
    unsafe { release(handle) };
    // SAFETY: the caller's completion is valid until it was called (uct.h).
    unsafe { complete(caller, status) };
}

/// Counts down the completion of a caller, unless it is null.
///
/// # Safety
/// It is valid until it was called.
pub(crate) unsafe fn complete(caller: *mut Completion, status: Status) {
    if caller.is_null() {
        return;
    }
    // SAFETY: contract of this function.
    unsafe {
        if (*caller).status == OK {
            (*caller).status = status;
        }
        (*caller).count = (*caller).count.wrapping_sub(1);
        if (*caller).count == 0
            && let Some(function) = (*caller).func
        {
            function(caller);
        }
    }
}

/// Posts an operation.
///
/// # Safety
/// `ep` is an open handle; the completion and the target are valid until the operation is finished.
#[inline(always)]
unsafe fn post(
    ep: *mut Ep,
    caller: *mut Completion,
    target: Target,
    post: impl FnOnce(&Endpoint, &FetchResult, &Unpack, &barewire::Completion) -> Post,
) -> Status {
    // SAFETY: contract of this function.
    unsafe {
        let endpoint = &(*ep).endpoint;
        post_on((*ep).interface(), caller, target, |result, unpack, completion| {
            post(endpoint, result, unpack, completion)
        })
    }
}

/// As [`post`], on an interface.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn post_on(
    iface: &Iface,
    caller: *mut Completion,
    target: Target,
    post: impl FnOnce(&FetchResult, &Unpack, &barewire::Completion) -> Post,
) -> Status {
    // SAFETY: contract of this function. The operation is not in use; its record stays where it is
    // and is accessed here and by the post only.
    unsafe {
        let handle = iface.fetches.take();
        let operation = handle.as_ref();
        operation.target.set(target);
        operation.caller.set(caller);
        (*operation.record.get()).status = OK;
        let completion = barewire::Completion::from_record(handle.cast());
        let posted = post(&operation.result, &operation.unpack, &completion);
        if posted == Ok(Posted::InProgress) {
            return INPROGRESS;
        }
        if posted.is_ok() {
            operation.store();
        }
        release(handle);
        of_posted(posted)
    }
}

/// Flushes every endpoint of an interface that has something outstanding, and counts the caller's
/// completion once.
///
/// # Safety
/// The completion is valid until the flush is finished (uct.h).
pub(crate) unsafe fn flush_counted(iface: &Iface, caller: *mut Completion) -> Status {
    // SAFETY: contract of this function.
    unsafe {
        post_on(iface, caller, Target::Nowhere, |_, _, completion| {
            iface.interface.flush(Some(completion))
        })
    }
}

pub(crate) unsafe extern "C" fn get_bcopy(
    ep: *mut Ep,
    unpack: Option<UnpackCallback>,
    argument: *mut c_void,
    length: usize,
    remote: u64,
    rkey: Rkey,
    completion: *mut Completion,
) -> Status {
    // SAFETY: the contract of the operation.
    unsafe {
        let Some(unpack) = unpack else { return INVALID_PARAM };
        let Some(key) = key(rkey) else { return nothing_to(length) };
        post(ep, completion, Target::Callback(unpack, argument), |endpoint, _, unpack, done| {
            endpoint.get_bcopy(unpack, length, remote, key, Some(done))
        })
    }
}

/// Where the CPU reads the peer's memory, a get is done when its post returns.
pub(crate) unsafe extern "C" fn get_short(
    ep: *mut Ep,
    buffer: *mut u8,
    length: c_uint,
    remote: u64,
    rkey: Rkey,
) -> Status {
    // SAFETY: the contract of the operation.
    unsafe {
        if !has_get_short((*ep).endpoint.transport()) {
            return UNSUPPORTED;
        }
        let Some(key) = key(rkey).filter(|_| !buffer.is_null()) else {
            return nothing_to(length as usize);
        };
        post(ep, null_mut(), Target::Bytes(buffer), |endpoint, _, unpack, done| {
            endpoint.get_bcopy(unpack, length as usize, remote, key, Some(done))
        })
    }
}

macro_rules! atomics {
    ($($fetch:ident $compare_swap:ident $word:ty, $target:ident;)+) => {
        $(pub(crate) unsafe extern "C" fn $fetch(
            ep: *mut Ep,
            opcode: c_uint,
            value: $word,
            result: *mut $word,
            remote: u64,
            rkey: Rkey,
            completion: *mut Completion,
        ) -> Status {
            let op = match opcode {
                atomic_op::ADD => AtomicOp::Add(value),
                atomic_op::AND => AtomicOp::And(value),
                atomic_op::OR => AtomicOp::Or(value),
                atomic_op::XOR => AtomicOp::Xor(value),
                atomic_op::SWAP => AtomicOp::Swap(value),
                _ => return UNSUPPORTED,
            };
            // SAFETY: the contract of the operation.
            unsafe {
                let Some(key) = key(rkey).filter(|_| !result.is_null()) else {
                    return INVALID_PARAM;
                };
                post(ep, completion, Target::$target(result), |endpoint, value, _, done| {
                    endpoint.atomic_fetch(op, remote, key, value, Some(done))
                })
            }
        }

        pub(crate) unsafe extern "C" fn $compare_swap(
            ep: *mut Ep,
            compare: $word,
            swap: $word,
            remote: u64,
            rkey: Rkey,
            result: *mut $word,
            completion: *mut Completion,
        ) -> Status {
            let op = AtomicOp::CompareSwap { compare, swap };
            // SAFETY: the contract of the operation.
            unsafe {
                let Some(key) = key(rkey).filter(|_| !result.is_null()) else {
                    return INVALID_PARAM;
                };
                post(ep, completion, Target::$target(result), |endpoint, value, _, done| {
                    endpoint.atomic_fetch(op, remote, key, value, Some(done))
                })
            }
        })+
    };
}

atomics! {
    atomic32_fetch atomic_cswap32 u32, Half;
    atomic64_fetch atomic_cswap64 u64, Word;
}
