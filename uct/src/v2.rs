//! The functions that UCX has had since 1.13 (v2/uct_v2.h), as far as these transports have what
//! they are for. `unsupported.rs` has the others.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null;

use barewire::address::DeviceAddress;

use crate::abi::head::{
    ConnectToEpParams, IfaceAttrV2, IsConnectedParams, IsReachableParams, MdAttrV2, MemRegParams,
    RkeyCompareParams, md_field,
};
use crate::abi::{DeviceAddr, EpAddr, HOST_MEMORY, Rkey, RkeyBundle};
use crate::component::{Component, Unpacked, of_handle, uct_rkey_unpack};
use crate::endpoint::{
    self, Ep, UNKNOWN_LENGTH, address_bytes, interface_address, interface_length, of_ep, reaches,
};
use crate::iface::{Iface, of_iface};
use crate::md::{Md, of_md};
use crate::query::ep_address_length;
use crate::status::{INVALID_ADDR, INVALID_PARAM, OK, Status, UNREACHABLE, UNSUPPORTED, guard};
use crate::stub;
use crate::ucs::{self, Version};

/// Returns the interface behind a handle that is not a stub.
///
/// # Safety
/// `iface` is null, an interface or a stub.
unsafe fn transport_of<'a>(iface: *const Iface) -> Result<&'a Iface, Status> {
    // SAFETY: contract of this function.
    unsafe {
        stub::refuse(iface)?;
        of_iface(iface)
    }
}

/// Returns the endpoint behind a handle, unless it is the program's own one over a stub.
///
/// # Safety
/// `ep` is null, or an endpoint of an interface or a stub.
unsafe fn connection_of<'a>(ep: *const Ep) -> Result<&'a Ep, Status> {
    if ep.is_null() {
        return Err(INVALID_PARAM);
    }
    // SAFETY: contract of this function; an endpoint begins with its interface.
    unsafe {
        stub::refuse(*ep.cast::<*const Iface>())?;
        of_ep(ep)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_md_query_v2(md: *const Md, attr: *mut MdAttrV2) -> Status {
    guard(|| {
        if attr.is_null() {
            return Err(INVALID_PARAM);
        }
        // SAFETY: an open handle.
        let md = unsafe { of_md(md) }?;
        match ucs::version() {
            Version::V1_13 => Err(UNSUPPORTED),
            version => {
                // SAFETY: an attribute structure of the program's version.
                unsafe { describe(md, attr, version) };
                Ok(())
            }
        }
    })
}

/// Writes the attributes that the mask asks for; libucp sets every bit of it.
///
/// # Safety
/// `attr` is valid for writes of a `uct_md_attr_v2_t` of this version of UCX.
pub(crate) unsafe fn describe(md: &Md, attr: *mut MdAttrV2, version: Version) {
    let all = md.attributes();
    // SAFETY: contract of this function. Only the mask is read: the rest may be uninitialized.
    unsafe {
        let mask = (*attr).field_mask;
        for (bit, from, to, length) in md_field::of(version) {
            if mask & 1 << bit != 0 {
                let source = (&raw const all).cast::<u8>().add(from);
                std::ptr::copy_nonoverlapping(source, attr.cast::<u8>().add(to), length);
            }
        }
    }
}

/// Of the memory of devices, none can be registered: neither by a descriptor nor by its type.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_md_mem_reg_v2(
    md: *const Md,
    address: *mut u8,
    length: usize,
    params: *const MemRegParams,
    memh: *mut *mut c_void,
) -> Status {
    guard(|| {
        if params.is_null() || memh.is_null() {
            return Err(INVALID_PARAM);
        }
        // SAFETY: the parameters have the fields that the mask names. An open handle. The caller
        // keeps the memory until it is deregistered (uct.h).
        unsafe {
            let given = |field| (*params).field_mask & field != 0;
            let has_descriptor = given(MemRegParams::DMABUF_FD)
                && (&raw const (*params).dmabuf_fd).read() != MemRegParams::NO_DMABUF;
            let is_foreign = given(MemRegParams::MEM_TYPE)
                && (&raw const (*params).mem_type).read() != HOST_MEMORY;
            if has_descriptor || is_foreign {
                return Err(UNSUPPORTED);
            }
            let flags = if given(MemRegParams::FLAGS) {
                (&raw const (*params).flags).read() as c_uint
            } else {
                0
            };
            *memh = of_md(md)?.register(address, length, flags)?.cast();
        }
        Ok(())
    })
}

/// The parameters have the device of the memory only, which makes no difference.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_rkey_unpack_v2(
    component: *const Component,
    buffer: *const u8,
    _params: *const c_void,
    bundle: *mut RkeyBundle,
) -> Status {
    // SAFETY: the same contract.
    unsafe { uct_rkey_unpack(component, buffer, bundle) }
}

/// Compares what the keys were unpacked from.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_rkey_compare(
    component: *const Component,
    first: Rkey,
    second: Rkey,
    params: *const RkeyCompareParams,
    result: *mut c_int,
) -> Status {
    guard(|| {
        // SAFETY: contract of the handle; null or valid for this call.
        let params = unsafe { of_handle(component).and(params.as_ref().ok_or(INVALID_PARAM))? };
        if params.field_mask != 0 || result.is_null() {
            return Err(INVALID_PARAM);
        }
        // SAFETY: keys of `uct_rkey_unpack` that are not released.
        let (first, second) = unsafe { (Unpacked::of_rkey(first)?, Unpacked::of_rkey(second)?) };
        // SAFETY: the caller's pointer is valid for writes.
        unsafe { *result = first.bytes.cmp(&second.bytes) as c_int };
        Ok(())
    })
}

/// Which word of the attributes a bit stands for depends on the version, but none has a value other
/// than zero: the capabilities of the newer versions, their limits, and the lengths of tokens.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_iface_query_v2(
    iface: *const Iface,
    attr: *mut IfaceAttrV2,
) -> Status {
    guard(|| {
        if iface.is_null() || attr.is_null() {
            return Err(INVALID_PARAM);
        }
        // SAFETY: the caller's structure has the words that the mask names.
        unsafe {
            let mask = (*attr).field_mask;
            if mask >> IfaceAttrV2::ZEROS != 0 {
                // Tokens.
                return Err(UNSUPPORTED);
            }
            for word in (0..IfaceAttrV2::ZEROS).filter(|word| mask & 1 << word != 0) {
                (&raw mut (*attr).words).cast::<u64>().add(word).write(0);
            }
        }
        Ok(())
    })
}

/// Writes why a peer is not reachable to the caller's buffer, if there is one.
///
/// # Safety
/// The parameters have the fields that their mask names.
unsafe fn explain(params: &IsReachableParams, reason: &str) {
    let both = IsReachableParams::INFO_STRING | IsReachableParams::INFO_STRING_LENGTH;
    let (target, room) = (params.info_string, params.info_string_length);
    if params.field_mask & both != both || target.is_null() || room == 0 {
        return;
    }
    let length = reason.len().min(room - 1);
    // SAFETY: contract of this function: the buffer has `room` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(reason.as_ptr().cast::<c_char>(), target, length);
        target.add(length).write(0);
    }
}

/// Returns why a peer is not reachable.
///
/// # Safety
/// The parameters have the fields that their mask names.
unsafe fn unreachable(iface: &Iface, params: &IsReachableParams) -> Option<String> {
    let given = |field| params.field_mask & field != 0;
    let transport = iface.interface.transport();
    let too_short = given(IsReachableParams::DEVICE_ADDR_LENGTH)
        && params.device_addr_length < DeviceAddress::body_length(transport)
        || given(IsReachableParams::IFACE_ADDR_LENGTH)
            && params.iface_addr_length < interface_length(transport);
    if too_short {
        return Some(format!("the address is too short for {transport}"));
    }
    let device = if given(IsReachableParams::DEVICE_ADDR) { params.device_addr } else { null() };
    let interface = if given(IsReachableParams::IFACE_ADDR) { params.iface_addr } else { null() };
    // SAFETY: addresses of an interface of the same transport (contract of this function).
    let Ok(peer) = (unsafe { interface_address(transport, device, interface) }) else {
        return Some(format!("the address is not one of {transport}"));
    };
    let wants_own =
        given(IsReachableParams::SCOPE) && params.scope == IsReachableParams::SAME_DEVICE;
    if wants_own && peer.device() != iface.interface.address().device() {
        return Some("the address is of another device".to_owned());
    }
    reaches(iface, &peer).err().map(|error| error.to_string())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_iface_is_reachable_v2(
    iface: *const Iface,
    params: *const IsReachableParams,
) -> c_int {
    let status = guard(|| {
        // SAFETY: an open handle; null or valid for this call.
        unsafe {
            let (iface, params) = (transport_of(iface)?, params.as_ref().ok_or(INVALID_PARAM)?);
            let reason = unreachable(iface, params);
            explain(params, reason.as_deref().unwrap_or_default());
            reason.map_or(Ok(()), |_| Err(UNREACHABLE))
        }
    });
    (status == OK).into()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_ep_connect_to_ep_v2(
    ep: *mut Ep,
    device: *const DeviceAddr,
    address: *const EpAddr,
    params: *const ConnectToEpParams,
) -> Status {
    let checked = guard(|| {
        // SAFETY: an open handle; null or valid for this call.
        let (ep, params) = unsafe { (connection_of(ep)?, params.as_ref().ok_or(INVALID_PARAM)?) };
        let transport = ep.endpoint.transport();
        let is_short = |field, length, needed| params.field_mask & field != 0 && length < needed;
        let device = DeviceAddress::body_length(transport);
        let to_device = params.device_addr_length;
        if to_device != UNKNOWN_LENGTH
            && is_short(ConnectToEpParams::DEVICE_ADDR_LENGTH, to_device, device)
            || is_short(
                ConnectToEpParams::EP_ADDR_LENGTH,
                params.ep_addr_length,
                ep_address_length(transport),
            )
        {
            return Err(INVALID_ADDR);
        }
        Ok(())
    });
    if checked != OK {
        return checked;
    }
    // SAFETY: the same contract.
    unsafe { endpoint::connect_to_ep(ep, device, address) }
}

/// Returns whether the program connected an endpoint to this address, and it did not fail since. It
/// may still be about to connect: then its posts wait.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_ep_is_connected(
    ep: *const Ep,
    params: *const IsConnectedParams,
) -> c_int {
    let status = guard(|| {
        // SAFETY: an open handle; null or valid for this call.
        let (ep, params) = unsafe { (connection_of(ep)?, params.as_ref().ok_or(INVALID_PARAM)?) };
        let remote = ep.remote.get().filter(|_| ep.endpoint.error().is_none());
        let remote = remote.ok_or(UNREACHABLE)?;
        let (device, interface) = (remote.address.device(), remote.address.interface());
        // SAFETY: the addresses of the fields that the mask names are of the same transport, with
        // the lengths of such addresses.
        let is_equal = |field, start: *const u8, own: &[u8]| unsafe {
            if params.field_mask & field == 0 {
                return Ok::<bool, Status>(true);
            }
            Ok(address_bytes(start, own.len())? == own)
        };
        let is_device =
            is_equal(IsConnectedParams::DEVICE_ADDR, params.device_addr.cast(), device.body())?;
        let is_interface = match remote.contact {
            None => {
                let own = interface.body();
                is_equal(IsConnectedParams::IFACE_ADDR, params.iface_addr.cast(), own)?
            }
            Some(contact) => {
                let own = [interface.body(), &contact.to_bytes()].concat();
                is_equal(IsConnectedParams::IFACE_ADDR, params.iface_addr.cast(), &own)?
            }
        };
        let own = remote.address.endpoint().map(|end| [interface.body(), end.body()].concat());
        let is_end = match own {
            Some(own) => is_equal(IsConnectedParams::EP_ADDR, params.ep_addr.cast(), &own)?,
            // Connected to the interface, which has opened the other end.
            None => params.field_mask & IsConnectedParams::EP_ADDR == 0,
        };
        if is_device && is_interface && is_end { Ok(()) } else { Err(UNREACHABLE) }
    });
    (status == OK).into()
}
