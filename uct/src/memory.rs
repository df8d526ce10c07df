//! Allocation of memory: `uct_mem_alloc`, and for an interface.

use std::ffi::{c_char, c_uint};
use std::ptr::{null_mut, slice_from_raw_parts};

use crate::abi::head::AllocatedMemoryOnDevice;
use crate::abi::{AllocatedMemory, HOST_MEMORY, MemAllocParams, UNKNOWN_SYS_DEVICE};
use crate::iface::{Iface, of_iface};
use crate::md::{Md, deregister, of_md};
use crate::status::{INVALID_PARAM, NO_MEMORY, Status, UNSUPPORTED, guard};
use crate::ucs::{self, Version};

/// `uct_alloc_method_t`
mod method {
    pub(super) const THP: u32 = 0;
    pub(super) const MD: u32 = 1;
    pub(super) const HEAP: u32 = 2;
    pub(super) const MMAP: u32 = 3;
    pub(super) const HUGE: u32 = 4;
}

/// `UCT_MD_MEM_FLAG_FIXED`: no method here places memory at a given address.
const FIXED: c_uint = 1 << 1;
const PAGE: usize = 4096;

fn plain(method: c_uint, address: *mut u8, length: usize) -> AllocatedMemory {
    AllocatedMemory {
        address,
        length,
        method,
        mem_type: HOST_MEMORY,
        md: null_mut(),
        memh: null_mut(),
    }
}

/// Returns the length in whole words: an atomic on 4 bytes accesses the 8 bytes around them.
fn in_words(length: usize) -> Result<usize, Status> {
    length.checked_next_multiple_of(size_of::<u64>()).ok_or(NO_MEMORY)
}

fn heap(length: usize) -> Result<AllocatedMemory, Status> {
    let length = in_words(length)?;
    let mut address = null_mut();
    // SAFETY: the alignment is a power of two.
    if unsafe { libc::posix_memalign(&raw mut address, 64, length) } != 0 {
        return Err(NO_MEMORY);
    }
    Ok(plain(method::HEAP, address.cast(), length))
}

fn map(length: usize) -> Result<AllocatedMemory, Status> {
    let length = length.checked_next_multiple_of(PAGE).ok_or(NO_MEMORY)?;
    // SAFETY: a new anonymous mapping.
    let address = unsafe {
        libc::mmap(
            null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(NO_MEMORY);
    }
    Ok(plain(method::MMAP, address.cast(), length))
}

/// Allocates memory of a domain.
fn of_domain(
    handle: *mut Md,
    md: &Md,
    length: usize,
    flags: c_uint,
) -> Result<AllocatedMemory, Status> {
    let memh = md.allocate(in_words(length)?, flags)?;
    // SAFETY: the handle is new.
    let (address, length) = unsafe { ((*memh).address() as *mut u8, (*memh).len()) };
    let memory = plain(method::MD, address, length);
    Ok(AllocatedMemory { md: handle, memh: memh.cast(), ..memory })
}

/// Returns allocated memory to the program.
///
/// # Safety
/// `target` is valid for writes of a `uct_allocated_memory_t` of this version of UCX.
pub(crate) unsafe fn write(
    target: *mut AllocatedMemory,
    memory: AllocatedMemory,
    version: Version,
) {
    // SAFETY: contract of this function.
    unsafe {
        target.write(memory);
        if version >= Version::V1_19 {
            let target = target.cast::<AllocatedMemoryOnDevice>();
            (&raw mut (*target).sys_device).write(UNKNOWN_SYS_DEVICE);
        }
    }
}

fn free(memory: &AllocatedMemory) -> Result<(), Status> {
    // SAFETY: `memory` is what an allocation here returned, by its method (contract of the
    // functions that call this).
    unsafe {
        match memory.method {
            method::MD => return deregister(memory.memh),
            method::HEAP => libc::free(memory.address.cast()),
            method::MMAP => {
                libc::munmap(memory.address.cast(), memory.length);
            }
            _ => return Err(INVALID_PARAM),
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_mem_alloc(
    length: usize,
    methods: *const c_uint,
    count: c_uint,
    params: *const MemAllocParams,
    memory: *mut AllocatedMemory,
) -> Status {
    guard(|| {
        // SAFETY: null or valid for this call.
        let params = unsafe { params.as_ref() }.ok_or(INVALID_PARAM)?;
        if length == 0 || memory.is_null() || methods.is_null() || count == 0 {
            return Err(INVALID_PARAM);
        }
        let given = |field| params.field_mask & field != 0;
        let flags = if given(MemAllocParams::FLAGS) { params.flags } else { 1 << 8 | 1 << 9 };
        if flags & FIXED != 0 {
            return Err(UNSUPPORTED);
        }
        if given(MemAllocParams::MEM_TYPE) && params.mem_type != HOST_MEMORY {
            return Err(UNSUPPORTED);
        }
        let mds: &[*mut Md] = if given(MemAllocParams::MDS) && !params.mds.is_null() {
            // SAFETY: the caller's array has this length.
            unsafe { &*slice_from_raw_parts(params.mds, params.md_count as usize) }
        } else {
            &[]
        };
        // SAFETY: as above.
        for &wanted in unsafe { &*slice_from_raw_parts(methods, count as usize) } {
            let allocated = match wanted {
                method::MD => {
                    // SAFETY: open handles.
                    let mut domains = mds.iter().map(|&md| (md, unsafe { of_md(md) }));
                    let found = domains.find_map(|(handle, md)| {
                        md.ok().filter(|md| !md.registers()).map(|md| (handle, md))
                    });
                    let Some((handle, md)) = found else { continue };
                    // UCX does not try another method after a domain that allocates, either.
                    of_domain(handle, md, length, flags)?
                }
                method::HEAP => match heap(length) {
                    Ok(allocated) => allocated,
                    Err(_) => continue,
                },
                method::MMAP => match map(length) {
                    Ok(allocated) => allocated,
                    Err(_) => continue,
                },
                // Large pages are left to the kernel's own choice.
                method::THP | method::HUGE => continue,
                _ => return Err(INVALID_PARAM),
            };
            // SAFETY: the caller's pointer is valid for writes.
            unsafe { write(memory, allocated, ucs::version()) };
            return Ok(());
        }
        Err(NO_MEMORY)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_mem_free(memory: *const AllocatedMemory) -> Status {
    // SAFETY: null, or what `uct_mem_alloc` returned.
    guard(|| free(unsafe { memory.as_ref() }.ok_or(INVALID_PARAM)?))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_iface_mem_alloc(
    iface: *mut Iface,
    length: usize,
    flags: c_uint,
    _name: *const c_char,
    memory: *mut AllocatedMemory,
) -> Status {
    guard(|| {
        if length == 0 || memory.is_null() {
            return Err(INVALID_PARAM);
        }
        // SAFETY: an open handle, whose domain is open, too.
        let (handle, md) = unsafe {
            let handle = of_iface(iface)?.md;
            (handle, of_md(handle)?)
        };
        let allocated = if md.registers() {
            let allocated = heap(length)?;
            // SAFETY: it is freed after it was deregistered.
            match unsafe { md.register(allocated.address, allocated.length, flags) } {
                Ok(memh) => AllocatedMemory { md: handle, memh: memh.cast(), ..allocated },
                Err(status) => {
                    free(&allocated)?;
                    return Err(status);
                }
            }
        } else {
            of_domain(handle, md, length, flags)?
        };
        // SAFETY: the caller's pointer is valid for writes.
        unsafe { write(memory, allocated, ucs::version()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_iface_mem_free(memory: *const AllocatedMemory) {
    guard(|| {
        // SAFETY: null, or what `uct_iface_mem_alloc` returned.
        let memory = unsafe { memory.as_ref() }.ok_or(INVALID_PARAM)?;
        if memory.method != method::MD && !memory.memh.is_null() {
            // SAFETY: as above. A device that refuses may still access the memory, which must stay.
            unsafe { deregister(memory.memh) }?;
        }
        free(memory)
    });
}
