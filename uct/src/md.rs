//! Memory domains: open devices.

use std::ffi::{c_char, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use barewire::{Access, DeviceId, Domain, Memory, RemoteKey, TransportId};

use crate::abi::head::MdAttrV2;
use crate::abi::{
    HOST_MEMORY, LinearFunction, MdAttr, MdCaps, MemDeregParams, MkeyPackParams, TlResourceDesc,
    UNKNOWN_SYS_DEVICE, md_flag,
};
use crate::component::{Component, of_handle, to_array};
use crate::config::Config;
use crate::query;
use crate::status::{INVALID_PARAM, NO_DEVICE, Status, UNSUPPORTED, guard, of_memory, of_open};
use crate::text;
use crate::ucs::{self, Version};

/// `uct_md_h`
pub(crate) struct Md {
    pub(crate) component: &'static Component,
    pub(crate) domain: Domain,
    number: u64,
}

/// Returns the domain behind a handle.
///
/// # Safety
/// `md` is null or an open handle, which stays open for `'a`.
pub(crate) unsafe fn of_md<'a>(md: *const Md) -> Result<&'a Md, Status> {
    // SAFETY: contract of this function.
    unsafe { md.as_ref() }.ok_or(INVALID_PARAM)
}

impl Md {
    pub(crate) fn transport(&self) -> TransportId {
        self.component.transport
    }

    /// Returns whether peers can access memory that the program allocated. Processes that share
    /// memory cannot map it.
    pub(crate) fn registers(&self) -> bool {
        self.transport() != TransportId::Shm
    }

    pub(crate) fn flags(&self) -> u64 {
        let memory = if self.registers() {
            md_flag::REG | md_flag::NEED_MEMH
        } else {
            md_flag::ALLOC | md_flag::RKEY_PTR
        };
        memory | md_flag::NEED_RKEY
    }

    /// Returns the attributes of the newest version, which contain those of the others.
    pub(crate) fn attributes(&self) -> MdAttrV2 {
        let (transport, host) = (self.transport(), 1 << HOST_MEMORY);
        let registered = if self.registers() { host } else { 0 };
        let reg_cost = registration_cost(transport);
        MdAttrV2 {
            field_mask: u64::MAX,
            max_alloc: u64::MAX,
            max_reg: if self.registers() { usize::MAX } else { 0 },
            flags: self.flags(),
            reg_mem_types: registered,
            reg_nonblock_mem_types: 0,
            // libucp keeps registrations of this memory, which it does for devices only.
            cache_mem_types: if reg_cost.factor > 0.0 { registered } else { 0 },
            gva_mem_types: 0,
            detect_mem_types: 0,
            alloc_mem_types: host & !registered,
            access_mem_types: host,
            dmabuf_mem_types: 0,
            reg_cost,
            component_name: text::field(transport.name()),
            rkey_packed_size: RemoteKey::packed_length(transport),
            local_cpus: [u64::MAX; 16],
            exported_mkey_packed_size: 0,
            global_id: [0; 256],
            reg_alignment: 1,
            required_mem_flags: 0,
        }
    }

    /// Registers memory with all rights, as UCX's own transports do, whatever the flags: libucp 1.16
    /// joins registrations of adjacent memory into one, with the flags of one of them. Memory that
    /// cannot be written has the rights that the flags ask for.
    ///
    /// # Safety
    /// The range stays mapped until the memory is deregistered, as for `uct_md_mem_reg`.
    pub(crate) unsafe fn register(
        &self,
        address: *mut u8,
        length: usize,
        flags: c_uint,
    ) -> Result<*mut Memory, Status> {
        if !self.registers() {
            return Err(UNSUPPORTED);
        }
        let start = NonNull::new(address).ok_or(INVALID_PARAM)?;
        // SAFETY: the caller's promise.
        let register = |access| unsafe { self.domain.register(start, length, access) };
        hand_out(register(Access::all()).or_else(|_| register(access(flags))))
    }

    /// Allocates memory that peers can access.
    pub(crate) fn allocate(&self, length: usize, flags: c_uint) -> Result<*mut Memory, Status> {
        hand_out(self.domain.allocate(length, access(flags)))
    }
}

fn hand_out(memory: Result<Memory, barewire::MemoryError>) -> Result<*mut Memory, Status> {
    match memory {
        Ok(memory) => Ok(Box::into_raw(Box::new(memory))),
        Err(error) => {
            crate::log::diag(&error);
            Err(of_memory(&error))
        }
    }
}

/// Deregisters memory, and frees it if a domain allocated it.
///
/// # Safety
/// `memh` is null or a handle that [`hand_out`] returned and that is not used any more.
pub(crate) unsafe fn deregister(memh: *mut c_void) -> Result<(), Status> {
    if memh.is_null() {
        return Err(INVALID_PARAM);
    }
    // SAFETY: contract of this function.
    let memory = unsafe { Box::from_raw(memh.cast::<Memory>()) };
    memory.deregister().map_err(|error| {
        crate::log::error(&error);
        of_memory(&error)
    })
}

/// The rights that flags of `uct_md_mem_flags` ask for. Programs that name none expect all, as
/// UCX's own transports ignore these flags.
fn access(flags: c_uint) -> Access {
    let rights = [
        (5, Access::REMOTE_WRITE),
        (6, Access::REMOTE_READ),
        (7, Access::REMOTE_ATOMIC),
        (8, Access::empty()),
        (9, Access::LOCAL_WRITE),
    ];
    let named = rights.iter().filter(|(bit, _)| flags & 1 << bit != 0);
    let (count, access) =
        named.fold((0, Access::empty()), |(count, all), (_, one)| (count + 1, all | *one));
    if count == 0 { Access::all() } else { access }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_md_open(
    component: *const Component,
    md_name: *const c_char,
    _config: *const Config,
    md: *mut *mut Md,
) -> Status {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    guard(|| {
        // SAFETY: contract of the handle; the name is null or a string.
        let (component, name) = unsafe { (of_handle(component)?, text::read(md_name)) };
        let name = name.ok_or(INVALID_PARAM)?;
        if md.is_null() {
            return Err(INVALID_PARAM);
        }
        if name.is_empty() {
            return Err(NO_DEVICE);
        }
        let domain = Domain::open(&DeviceId::new(component.transport, name)).map_err(|error| {
            crate::log::diag(&error);
            of_open(&error)
        })?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let domain = component.add(number, domain);
        // SAFETY: the caller's pointer is valid for writes.
        unsafe { *md = Box::into_raw(Box::new(Md { component, domain, number })) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_md_close(md: *mut Md) {
    guard(|| {
        if md.is_null() {
            return Err(INVALID_PARAM);
        }
        // SAFETY: an open handle, which is closed once.
        let md = unsafe { Box::from_raw(md) };
        md.component.remove(md.number);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_md_query_tl_resources(
    md: *const Md,
    resources: *mut *mut TlResourceDesc,
    count: *mut c_uint,
) -> Status {
    guard(|| {
        if resources.is_null() || count.is_null() {
            return Err(INVALID_PARAM);
        }
        // SAFETY: an open handle.
        let md = unsafe { of_md(md) }?;
        let resource = TlResourceDesc {
            tl_name: text::field(md.transport().name()),
            dev_name: text::field(md.domain.name()),
            dev_type: query::device_type(md.transport()),
            sys_device: UNKNOWN_SYS_DEVICE,
        };
        // SAFETY: the caller's pointers are valid for writes.
        unsafe {
            *resources = to_array(&[resource])?;
            *count = 1;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_release_tl_resource_list(resources: *mut TlResourceDesc) {
    // SAFETY: the array is one of `uct_md_query_tl_resources`, or null.
    unsafe { libc::free(resources.cast()) };
}

/// Estimate of the time of a registration: a system call for device memory, else table entries.
fn registration_cost(transport: TransportId) -> LinearFunction {
    match transport {
        TransportId::RcMlx5
        | TransportId::RcVerbs
        | TransportId::UdMlx5
        | TransportId::UdVerbs
        | TransportId::DcMlx5 => LinearFunction { constant: 10e-6, factor: 0.05e-9 },
        _ => LinearFunction { constant: 100e-9, factor: 0.0 },
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_md_query(md: *const Md, attr: *mut MdAttr) -> Status {
    guard(|| {
        if attr.is_null() {
            return Err(INVALID_PARAM);
        }
        // SAFETY: an open handle.
        let all = unsafe { of_md(md) }?.attributes();
        let filled = MdAttr {
            cap: MdCaps {
                max_alloc: all.max_alloc,
                max_reg: all.max_reg,
                flags: all.flags,
                reg_mem_types: all.reg_mem_types,
                detect_mem_types: all.detect_mem_types,
                alloc_mem_types: all.alloc_mem_types,
                access_mem_types: all.access_mem_types,
            },
            reg_cost: all.reg_cost,
            component_name: all.component_name,
            rkey_packed_size: all.rkey_packed_size,
            local_cpus: all.local_cpus,
        };
        // SAFETY: the caller's pointer is valid for writes.
        unsafe { attr.write(filled) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_md_mem_reg(
    md: *const Md,
    address: *mut u8,
    length: usize,
    flags: c_uint,
    memh: *mut *mut c_void,
) -> Status {
    guard(|| {
        if memh.is_null() {
            return Err(INVALID_PARAM);
        }
        // SAFETY: an open handle. The caller keeps the memory until it is deregistered (uct.h).
        unsafe { *memh = of_md(md)?.register(address, length, flags)?.cast() };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_md_mem_dereg(_md: *const Md, memh: *mut c_void) -> Status {
    // SAFETY: a handle of `uct_md_mem_reg`, which the caller does not use any more.
    guard(|| unsafe { deregister(memh) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_md_mem_dereg_v2(
    _md: *const Md,
    params: *const MemDeregParams,
) -> Status {
    guard(|| {
        // SAFETY: null or valid for this call.
        let params = unsafe { params.as_ref() }.ok_or(INVALID_PARAM)?;
        if params.field_mask & MemDeregParams::MEMH == 0 {
            return Err(INVALID_PARAM);
        }
        // Invalidation is a capability that these domains do not report.
        if params.field_mask & MemDeregParams::FLAGS != 0 && params.flags != 0 {
            return Err(UNSUPPORTED);
        }
        // SAFETY: as above.
        unsafe { deregister(params.memh) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_md_mkey_pack(
    _md: *const Md,
    memh: *const Memory,
    buffer: *mut u8,
) -> Status {
    guard(|| {
        // SAFETY: null, or a handle of `uct_md_mem_reg` or of an allocation.
        let memory = unsafe { memh.as_ref() }.ok_or(INVALID_PARAM)?;
        if buffer.is_null() {
            return Err(INVALID_PARAM);
        }
        let key = memory.pack_key();
        // SAFETY: the buffer has `rkey_packed_size` bytes, the length of every key.
        unsafe { std::ptr::copy_nonoverlapping(key.as_ptr(), buffer, key.len()) };
        Ok(())
    })
}

/// Packs a key. The parameters have flags only, for invalidation and for export to other processes.
/// Programs of UCX 1.16 and later pass the address and length of the memory before the parameters:
/// the third and fourth arguments of others are the parameters and the buffer.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_md_mkey_pack_v2(
    md: *const Md,
    memh: *const Memory,
    third: usize,
    fourth: usize,
    params: *const MkeyPackParams,
    buffer: *mut u8,
) -> Status {
    let version = ucs::version();
    let (params, buffer) = if version < Version::V1_16 {
        let params = std::ptr::with_exposed_provenance(third);
        (params, std::ptr::with_exposed_provenance_mut(fourth))
    } else {
        (params, buffer)
    };
    // SAFETY: null or valid for this call.
    let Some(params) = (unsafe { params.as_ref() }) else { return INVALID_PARAM };
    let flags = if params.field_mask & MkeyPackParams::FLAGS != 0 { params.flags } else { 0 };
    if flags & MkeyPackParams::export(version) != 0 {
        return UNSUPPORTED;
    }
    // SAFETY: the same contract.
    unsafe { uct_md_mkey_pack(md, memh, buffer) }
}

#[unsafe(no_mangle)]
extern "C" fn uct_md_mem_advise(
    _md: *const Md,
    _memh: *mut c_void,
    _address: *mut c_void,
    _length: usize,
    _advice: c_uint,
) -> Status {
    UNSUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn uct_md_mem_query(
    _md: *const Md,
    _address: *const c_void,
    _length: usize,
    _attr: *mut c_void,
) -> Status {
    UNSUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn uct_md_detect_memory_type(
    _md: *const Md,
    _address: *const c_void,
    _length: usize,
    _memory_type: *mut c_uint,
) -> Status {
    UNSUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn uct_md_is_sockaddr_accessible(
    _md: *const Md,
    _address: *const c_void,
    _mode: c_uint,
) -> std::ffi::c_int {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_rights() {
        assert_eq!(access(0), Access::all());
        assert_eq!(access(1 << 8), Access::empty());
        assert_eq!(access(1 << 5 | 1 << 9), Access::REMOTE_WRITE | Access::LOCAL_WRITE);
        assert_eq!(access(0x3e0), Access::all());
    }
}
