//! Memory on the device (MEMIC): `UVERBS_OBJECT_DM`, and regions of it.
//!
//! The device's memory is memory of the process, as the rest of the device is. Programs map it as
//! they map that of a NIC, and reach it by zero-based keys.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::abi::access;
use crate::adapter::UserMemory;
use crate::attributes::Attributes;
use crate::context::Context;
use crate::errno::Errno;
use crate::object::{DeviceMemory, Object, Pd, memory_offset_of};

use super::memory::{REMOTE_CHANGES, Wanted};

/// Bytes of device memory that a context can allocate, as on a ConnectX.
pub(super) const BYTES: u64 = 128 << 10;
/// `MLX5_MEMIC_BASE_SIZE`: lengths are multiples of it.
const UNIT: u64 = 64;
/// Largest log2 of an alignment: allocations begin at a page.
const LOG_ALIGNMENT: u64 = 12;
/// `MLX5_IB_DM_MEMIC_ALLOWED_ACCESS`.
const ALLOWED: u32 = access::LOCAL_WRITE
    | access::REMOTE_WRITE
    | access::REMOTE_READ
    | access::REMOTE_ATOMIC
    | access::ZERO_BASED;

/// `UVERBS_METHOD_DM_ALLOC`.
pub(super) fn alloc(context: &Context, call: &Attributes) -> Result<(), Errno> {
    const HANDLE: u16 = 0;
    const LENGTH: u16 = 1;
    const ALIGNMENT: u16 = 2;
    const OFFSET: u16 = 0x1000;
    const PAGE: u16 = 0x1001;
    const TYPE: u16 = 0x1002;
    call.only(&[HANDLE, LENGTH, ALIGNMENT, OFFSET, PAGE, TYPE])?;
    // The others are memory for packet steering.
    if call.optional_number(TYPE)?.unwrap_or(0) != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    let (wanted, alignment) = (call.number(LENGTH)?, call.number(ALIGNMENT)?);
    if wanted == 0 || wanted > BYTES || alignment > LOG_ALIGNMENT {
        return Err(Errno::INVALID);
    }
    let length = wanted.next_multiple_of(UNIT);
    let mut state = context.state();
    let (taken, page) = state.objects.device_memory();
    if taken + length > BYTES {
        return Err(Errno::NO_MEMORY);
    }
    let memory = DeviceMemory::new(wanted, length, page)?;
    state.objects.insert_given(&context.adapter, Object::Dm(Arc::new(memory)), |handle| {
        call.put(OFFSET, &0_u64.to_ne_bytes())?;
        call.put(PAGE, &page.to_ne_bytes())?;
        call.put_handle(HANDLE, handle)
    })
}

/// `MLX5_IB_METHOD_DM_QUERY`: what another context of the same memory needs to map it.
pub(super) fn query(context: &Context, call: &Attributes) -> Result<(), Errno> {
    const HANDLE: u16 = 0x1000;
    const OFFSET: u16 = 0x1001;
    const PAGE: u16 = 0x1002;
    const LENGTH: u16 = 0x1003;
    call.only(&[HANDLE, OFFSET, PAGE, LENGTH])?;
    let state = context.state();
    let memory = state.objects.get::<Arc<DeviceMemory>>(call.handle(HANDLE)?)?;
    call.put(OFFSET, &0_u64.to_ne_bytes())?;
    call.put(PAGE, &memory.page.to_ne_bytes())?;
    call.put(LENGTH, &memory.length.to_ne_bytes())
}

/// `UVERBS_METHOD_DM_MR_REG`.
pub(super) fn register(context: &Context, call: &Attributes) -> Result<(), Errno> {
    const HANDLE: u16 = 0;
    const OFFSET: u16 = 1;
    const LENGTH: u16 = 2;
    const PD: u16 = 3;
    const ACCESS: u16 = 4;
    const DM: u16 = 5;
    const LKEY: u16 = 6;
    const RKEY: u16 = 7;
    call.only(&[HANDLE, OFFSET, LENGTH, PD, ACCESS, DM, LKEY, RKEY])?;
    let access = u32::try_from(call.number(ACCESS)?).map_err(|_| Errno::INVALID)?;
    if access & access::ZERO_BASED == 0 || access & !ALLOWED != 0 {
        return Err(Errno::INVALID);
    }
    let (offset, length) = (call.number(OFFSET)?, call.number(LENGTH)?);
    let (handle, pd) = (call.handle(DM)?, call.handle(PD)?);
    let mut state = context.state();
    let number = state.objects.get::<Pd>(pd)?.number;
    let memory = Arc::clone(state.objects.get::<Arc<DeviceMemory>>(handle)?);
    if offset.checked_add(length).is_none_or(|end| end > memory.wanted)
        || access & REMOTE_CHANGES != 0 && access & access::LOCAL_WRITE == 0
    {
        return Err(Errno::INVALID);
    }
    // An empty region at the end of the memory has no page.
    let start = memory.address() as u64 + if length == 0 { 0 } else { offset };
    let mut mr = Wanted { pd, start, length, address: 0, access }.make_unchecked(
        &context.adapter,
        number,
        UserMemory::register_uncounted,
    )?;
    mr.device_memory = Some((handle, memory));
    let key = mr.key;
    state.objects.insert_given(&context.adapter, Object::Mr(mr), |handle| {
        call.put_word(LKEY, key)?;
        call.put_word(RKEY, key)?;
        call.put_handle(HANDLE, handle)
    })
}

impl DeviceMemory {
    /// Allocates zeroed memory of `length` bytes, of which the program asked for `wanted`.
    fn new(wanted: u64, length: u64, page: u16) -> Result<Self, Errno> {
        let host = barewire_hca::host_page();
        let bytes = (length as usize).next_multiple_of(host);
        // SAFETY: a new mapping, which no other memory overlaps.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let start = NonNull::new(start.cast()).ok_or(Errno::NO_MEMORY)?;
        Ok(Self { start, bytes, wanted, length, page })
    }

    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// Returns whether a program maps it by this offset and length.
    pub(crate) fn is_at(&self, offset: u64, length: usize) -> bool {
        memory_offset_of(self.page) == offset && length <= self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`. Regions and mappings of the program keep the value.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
