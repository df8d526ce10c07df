//! Posts: puts, gets, active messages and atomics. Each is one call of the dynamic API; nothing is
//! allocated, and payload, callbacks and completions are passed on as they are.

use std::ffi::{c_uint, c_void};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;
use std::slice::from_raw_parts;

use barewire::caller::CompletionRecord;
use barewire::{AtomicOp, Memory, Post, PostError, Posted, RemoteKey, SHORT_HEADER, Slice};

use crate::abi::{Completion, INVALID_RKEY, Iov, PackCallback, Rkey, atomic_op};
use crate::endpoint::Ep;
use crate::status::{INVALID_PARAM, OK, Status, UNSUPPORTED, of_packed, of_posted, of_result};

/// Returns the bytes of the caller; `None` for a null pointer to some.
///
/// # Safety
/// `start` is null, or valid for reads of `length` bytes during `'a`.
#[inline(always)]
unsafe fn bytes<'a>(start: *const u8, length: c_uint) -> Option<&'a [u8]> {
    if start.is_null() {
        return if length == 0 { Some(&[]) } else { None };
    }
    // SAFETY: contract of this function.
    Some(unsafe { from_raw_parts(start, length as usize) })
}

/// Returns the key behind a number; `None` for null and `UCT_INVALID_RKEY`.
///
/// # Safety
/// Any other number is a key of `uct_rkey_unpack` that is not released during `'a`.
#[inline(always)]
pub(crate) unsafe fn key<'a>(rkey: Rkey) -> Option<&'a RemoteKey> {
    if rkey == INVALID_RKEY {
        return None;
    }
    // SAFETY: contract of this function.
    unsafe { std::ptr::with_exposed_provenance::<RemoteKey>(rkey).as_ref() }
}

/// Returns where an address is in registered memory; outside of it, a number that is too large.
#[inline(always)]
pub(crate) fn offset(memory: &Memory, start: u64) -> usize {
    start.wrapping_sub(memory.address()) as usize
}

/// Slices per operation, at most: no transport takes more.
const MAX_SLICES: usize = 32;

/// The elements of an iov array as slices of registered memory.
struct Slices<'a> {
    slices: [MaybeUninit<Slice<'a>>; MAX_SLICES],
    count: usize,
}

impl<'a> Slices<'a> {
    /// No slices. [`Self::fill`] writes them in place: as a result they would be copied.
    #[inline(always)]
    const fn new() -> Self {
        Self { slices: [const { MaybeUninit::uninit() }; MAX_SLICES], count: 0 }
    }

    /// Returns the slices; `None` for too many, or memory that is not registered.
    ///
    /// # Safety
    /// `iov` is null, or an array of `count` entries, whose handles are of registered memory that
    /// stays registered during `'a`.
    #[inline(always)]
    unsafe fn fill(&mut self, iov: *const Iov, count: usize) -> Option<&[Slice<'a>]> {
        if count > MAX_SLICES || (count > 0 && iov.is_null()) {
            return None;
        }
        for at in 0..count {
            // SAFETY: contract of this function.
            let entry = unsafe { &*iov.add(at) };
            let elements = if entry.length == 0 { 0 } else { entry.count };
            for element in 0..elements {
                let start = (entry.buffer as u64)
                    .wrapping_add((element as u64).wrapping_mul(entry.stride as u64));
                // SAFETY: contract of this function.
                unsafe { self.push(entry.memh.cast(), start, entry.length) }?;
            }
        }
        // SAFETY: the first `count` slices were written, and `count` is at most `MAX_SLICES`.
        Some(unsafe { from_raw_parts(self.slices.as_ptr().cast(), self.count) })
    }

    /// # Safety
    /// As for [`Self::fill`].
    #[inline(always)]
    unsafe fn push(&mut self, memh: *const Memory, start: u64, length: usize) -> Option<()> {
        // SAFETY: null, or a handle of registered memory (contract of this function).
        let memory = unsafe { memh.as_ref() }?;
        let place = self.slices.get_mut(self.count)?;
        place.write(memory.slice(offset(memory, start), length).ok()?);
        self.count += 1;
        Some(())
    }
}

/// Returns the status of an operation on the peer's memory without a key: it must have no bytes.
#[cold]
pub(crate) fn nothing_to(length: usize) -> Status {
    if length == 0 { OK } else { INVALID_PARAM }
}

/// A put without a key, which must have no bytes, is a check of the peer: UCX's transports fail the
/// endpoint if the peer has ended.
///
/// # Safety
/// `ep` is an open endpoint.
#[cold]
unsafe fn put_nothing(ep: *const Ep, length: usize) -> Status {
    if length > 0 {
        return nothing_to(length);
    }
    // SAFETY: contract of this function.
    match unsafe { &*ep }.endpoint.check() {
        // The transport has no checks.
        Err(PostError::Unsupported) => OK,
        checked => of_result(checked),
    }
}

/// Packs a put without a key, which must have no bytes.
///
/// # Safety
/// As for `uct_ep_put_bcopy`.
#[cold]
unsafe fn pack_nothing(ep: *const Ep, pack: PackCallback, argument: *mut c_void) -> isize {
    // SAFETY: an open handle.
    let most = unsafe { &*ep }.interface().interface.attributes().put.max_bcopy;
    let mut buffer = vec![0; most];
    // SAFETY: the callback writes at most `max_bcopy` bytes.
    nothing_to(unsafe { pack(buffer.as_mut_ptr(), argument) }).into()
}

/// Programs may pass a completion without a function, if they poll its count.
unsafe extern "C" fn nothing(_: *mut Completion) {}

/// Returns the completion of the caller, whose record has a function from here on; `None` for a null
/// pointer. The drop of a completion in memory of the caller does nothing, and is left out.
///
/// # Safety
/// As for [`with_completion`].
#[inline(always)]
pub(crate) unsafe fn counted(
    completion: *mut Completion,
) -> Option<ManuallyDrop<barewire::Completion>> {
    let record = NonNull::new(completion)?;
    // SAFETY: contract of this function.
    unsafe {
        if (*completion).func.is_none() {
            (*completion).func = Some(nothing);
        }
        Some(ManuallyDrop::new(barewire::Completion::from_record(
            record.cast::<CompletionRecord>(),
        )))
    }
}

/// Posts with a completion of the caller, or without one. The caller counts an operation itself, so
/// that the count of the post is taken back.
///
/// # Safety
/// `completion` is null, or stays valid until the operation is finished (uct.h).
#[inline(always)]
pub(crate) unsafe fn with_completion(
    completion: *mut Completion,
    post: impl FnOnce(Option<&barewire::Completion>) -> Post,
) -> Post {
    // SAFETY: contract of this function.
    let counted = unsafe { counted(completion) };
    let posted = post(counted.as_deref());
    if counted.is_some() && posted == Ok(Posted::InProgress) {
        // SAFETY: the completion is valid while the operation is in progress.
        unsafe { (*completion).count = (*completion).count.wrapping_sub(1) };
    }
    posted
}

const _: () = assert!(size_of::<Completion>() == size_of::<CompletionRecord>());

pub(crate) unsafe extern "C" fn put_short(
    ep: *mut Ep,
    buffer: *const u8,
    length: c_uint,
    remote: u64,
    rkey: Rkey,
) -> Status {
    // SAFETY: the contract of the operation.
    unsafe {
        let (Some(payload), Some(key)) = (bytes(buffer, length), key(rkey)) else {
            return put_nothing(ep, length as usize);
        };
        of_result((*ep).endpoint.put_short(payload, remote, key))
    }
}

pub(crate) unsafe extern "C" fn put_bcopy(
    ep: *mut Ep,
    pack: Option<PackCallback>,
    argument: *mut c_void,
    remote: u64,
    rkey: Rkey,
) -> isize {
    // SAFETY: the contract of the operation. The callback writes at most `max_bcopy` bytes, which
    // is the length of the buffer.
    unsafe {
        let Some(pack) = pack else { return INVALID_PARAM.into() };
        let Some(key) = key(rkey) else { return pack_nothing(ep, pack, argument) };
        let pack = |buffer: &mut [u8]| pack(buffer.as_mut_ptr(), argument);
        of_packed((*ep).endpoint.put_bcopy(pack, remote, key))
    }
}

/// Declares an operation between slices of this process and the peer's memory.
macro_rules! zcopy {
    ($name:ident) => {
        pub(crate) unsafe extern "C" fn $name(
            ep: *mut Ep,
            iov: *const Iov,
            count: usize,
            remote: u64,
            rkey: Rkey,
            completion: *mut Completion,
        ) -> Status {
            // SAFETY: the contract of the operation.
            unsafe {
                let mut slices = Slices::new();
                let Some(slices) = slices.fill(iov, count) else { return INVALID_PARAM };
                let Some(key) = key(rkey) else { return nothing_to(slices.len()) };
                of_posted(with_completion(completion, |completion| {
                    (*ep).endpoint.$name(slices, remote, key, completion)
                }))
            }
        }
    };
}
zcopy!(put_zcopy);
zcopy!(get_zcopy);

pub(crate) unsafe extern "C" fn am_short(
    ep: *mut Ep,
    id: u8,
    header: u64,
    payload: *const u8,
    length: c_uint,
) -> Status {
    // SAFETY: the contract of the operation.
    unsafe {
        let Some(payload) = bytes(payload, length) else { return INVALID_PARAM };
        of_result((*ep).endpoint.am_short(id, header, payload))
    }
}

pub(crate) unsafe extern "C" fn am_bcopy(
    ep: *mut Ep,
    id: u8,
    pack: Option<PackCallback>,
    argument: *mut c_void,
    _flags: c_uint,
) -> isize {
    // SAFETY: the contract of the operation. The callback writes at most `max_bcopy` bytes, which
    // is the length of the buffer.
    unsafe {
        let Some(pack) = pack else { return INVALID_PARAM.into() };
        let pack = |buffer: &mut [u8]| pack(buffer.as_mut_ptr(), argument);
        of_packed((*ep).endpoint.am_bcopy(id, pack))
    }
}

/// Unlike `am_short`, the message has no header of its own.
pub(crate) unsafe extern "C" fn am_short_iov(
    ep: *mut Ep,
    id: u8,
    iov: *const Iov,
    count: usize,
) -> Status {
    if count > MAX_SLICES || (count > 0 && iov.is_null()) {
        return INVALID_PARAM;
    }
    // SAFETY: the contract of the operation.
    unsafe {
        let entries = if count == 0 { &[] } else { from_raw_parts(iov, count) };
        let mut total = 0_usize;
        for entry in entries {
            let length = entry.length.saturating_mul(entry.count as usize);
            if entry.buffer.is_null() && length > 0 {
                return INVALID_PARAM;
            }
            total = total.saturating_add(length);
        }
        let limits = &(*ep).interface().interface.attributes().am;
        let most = limits.max_short.saturating_add(SHORT_HEADER);
        if total > most {
            crate::log::error(&format_args!(
                "wrong length: {total} bytes are more than the {most} of a short message"
            ));
            return INVALID_PARAM;
        }
        let sent = (*ep).endpoint.am_bcopy(id, |buffer| {
            if total <= buffer.len() {
                gather(entries, buffer);
            }
            total
        });
        of_result(sent.map(drop))
    }
}

/// Copies the elements into a buffer that has room for them.
///
/// # Safety
/// The entries describe memory that is valid for reads.
unsafe fn gather(entries: &[Iov], buffer: &mut [u8]) {
    let mut rest = buffer;
    for entry in entries.iter().filter(|entry| entry.length > 0) {
        for element in 0..entry.count as usize {
            let Some((place, behind)) = rest.split_at_mut_checked(entry.length) else { return };
            // SAFETY: contract of this function.
            let source = entry.buffer.wrapping_add(element.wrapping_mul(entry.stride));
            // SAFETY: as above; the place has this length.
            unsafe { std::ptr::copy_nonoverlapping(source, place.as_mut_ptr(), entry.length) };
            rest = behind;
        }
    }
}

/// Reports what is wrong with a message of unusable pieces.
#[cold]
#[inline(never)]
fn wrong_message(id: u8) -> Status {
    const IDS: u8 = 32;
    if id < IDS {
        crate::log::error(&"a piece of a message is not registered, or there are too many");
        INVALID_PARAM
    } else {
        of_result(Err(PostError::UnknownHandlerId(id)))
    }
}

pub(crate) unsafe extern "C" fn am_zcopy(
    ep: *mut Ep,
    id: u8,
    header: *const u8,
    header_length: c_uint,
    iov: *const Iov,
    count: usize,
    _flags: c_uint,
    completion: *mut Completion,
) -> Status {
    // SAFETY: the contract of the operation.
    unsafe {
        let mut slices = Slices::new();
        let (Some(slices), Some(header)) = (slices.fill(iov, count), bytes(header, header_length))
        else {
            return wrong_message(id);
        };
        of_posted(with_completion(completion, |completion| {
            (*ep).endpoint.am_zcopy(id, header, slices, completion)
        }))
    }
}

macro_rules! atomic_post {
    ($name:ident, $word:ty) => {
        pub(crate) unsafe extern "C" fn $name(
            ep: *mut Ep,
            opcode: c_uint,
            value: $word,
            remote: u64,
            rkey: Rkey,
        ) -> Status {
            let op = match opcode {
                atomic_op::ADD => AtomicOp::Add(value),
                atomic_op::AND => AtomicOp::And(value),
                atomic_op::OR => AtomicOp::Or(value),
                atomic_op::XOR => AtomicOp::Xor(value),
                _ => return UNSUPPORTED,
            };
            // SAFETY: the contract of the operation.
            unsafe {
                let Some(key) = key(rkey) else { return INVALID_PARAM };
                of_result((*ep).endpoint.atomic_post(op, remote, key))
            }
        }
    };
}

atomic_post!(atomic32_post, u32);
atomic_post!(atomic64_post, u64);
