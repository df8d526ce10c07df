//! The functions and layouts of later versions than 1.13.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "every block makes calls of C with handles of the rig, or with wrong arguments, which must be safe"
)]

use std::ffi::{CStr, c_char, c_int};
use std::mem::{MaybeUninit, offset_of};
use std::ptr::{null, null_mut};

use barewire::address::DeviceAddress;

use super::{Rig, connect};
use crate::abi::head::{
    self, AllocatedMemoryOnDevice, ConnectToEpParams, EpParamsWithLengths, IfaceAttrV2,
    IsConnectedParams, IsReachableParams, MdAttrV2, MemRegParams, RkeyCompareParams,
};
use crate::abi::{
    AllocatedMemory, EpParams, HOST_MEMORY, INVALID_RKEY, IfaceParams, MkeyPackParams, PerfAttr,
    PerfAttrWithFlags, PerfStart, RkeyBundle, UNKNOWN_SYS_DEVICE,
};
use crate::endpoint::Ep;
use crate::status::{BUSY, CANCELED, INVALID_ADDR, INVALID_PARAM, OK, UNSUPPORTED};
use crate::ucs::Version;
use crate::v2::*;
use crate::{component, dispatch, iface, md, memory, query};

/// A structure of the caller, filled with a byte, with more such bytes behind it.
#[repr(C)]
struct Guarded<T> {
    inner: MaybeUninit<T>,
    behind: [u8; 64],
}

const FILL: u8 = 0xa5;

impl<T> Guarded<T> {
    fn new(mask: u64) -> Self {
        let mut this = Self { inner: MaybeUninit::uninit(), behind: [FILL; 64] };
        unsafe {
            this.inner.as_mut_ptr().cast::<u8>().write_bytes(FILL, size_of::<T>());
            // Every structure begins with its mask.
            this.inner.as_mut_ptr().cast::<u64>().write(mask);
        }
        this
    }

    fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        assert!(offset + length <= size_of::<Self>());
        unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(self).cast::<u8>().add(offset), length)
        }
    }

    fn is_untouched(&self, offset: usize, length: usize) -> bool {
        self.bytes(offset, length).iter().all(|byte| *byte == FILL)
    }
}

#[test]
fn performance_has_the_layout_of_the_version() {
    let Some(rig) = Rig::of_self() else { return };
    let attributes = unsafe { iface::of_iface(rig.iface) }.unwrap().interface.attributes();
    let latency = (attributes.latency_ns * 1e-9).to_ne_bytes();
    let endpoints = usize::MAX.to_ne_bytes();
    let mut old = Guarded::<PerfAttr>::new(u64::MAX);
    let mut new = Guarded::<head::PerfAttr>::new(u64::MAX);
    unsafe {
        let target = old.inner.as_mut_ptr().cast::<PerfStart>();
        assert_eq!(query::estimate(attributes, target, Version::V1_16), Ok(()));
        let target = new.inner.as_mut_ptr().cast::<PerfStart>();
        assert_eq!(query::estimate(attributes, target, Version::V1_19), Ok(()));
    }
    assert_eq!(old.bytes(offset_of!(PerfAttr, latency), 8), latency);
    assert_eq!(old.bytes(offset_of!(PerfAttr, max_inflight_eps), 8), endpoints);
    assert!(old.is_untouched(size_of::<PerfAttr>(), 64));
    assert_eq!(new.bytes(offset_of!(head::PerfAttr, latency), 8), latency);
    assert_eq!(new.bytes(offset_of!(head::PerfAttr, max_inflight_eps), 8), endpoints);
    assert_eq!(new.bytes(offset_of!(head::PerfAttr, flags), 8), [0; 8]);
    let (all, path) =
        (offset_of!(PerfStart, bandwidth), offset_of!(head::PerfAttr, path_bandwidth));
    assert_eq!(new.bytes(path, 16), new.bytes(all, 16));
    assert!(new.is_untouched(size_of::<head::PerfAttr>(), 64));
    // Two versions have the flags behind the rest of the older structure.
    for version in [Version::V1_17, Version::V1_18] {
        let mut flagged = Guarded::<PerfAttrWithFlags>::new(u64::MAX);
        let target = flagged.inner.as_mut_ptr().cast::<PerfStart>();
        assert_eq!(unsafe { query::estimate(attributes, target, version) }, Ok(()));
        assert_eq!(flagged.bytes(offset_of!(PerfAttrWithFlags, flags), 8), [0; 8]);
        assert!(flagged.is_untouched(size_of::<PerfAttrWithFlags>(), 64));
    }
    // The same bit names another field.
    let mut one = Guarded::<head::PerfAttr>::new(PerfAttr::LATENCY);
    let target = one.inner.as_mut_ptr().cast::<PerfStart>();
    assert_eq!(unsafe { query::estimate(attributes, target, Version::V1_22) }, Ok(()));
    assert!(one.is_untouched(8, path - 8));
    assert!(one.is_untouched(path + 16, 112 - path - 16));
}

/// A field of `MdAttrV2`, with its bit and its offset in a version of UCX.
type DomainField = (usize, u32, usize);

/// The size of `uct_md_attr_v2_t`, and some of its fields, as a C compiler prints them for the headers
/// of these versions.
const DOMAINS: [(Version, usize, [DomainField; 4]); 6] = {
    const CACHE: usize = offset_of!(MdAttrV2, cache_mem_types);
    const COST: usize = offset_of!(MdAttrV2, reg_cost);
    const NAME: usize = offset_of!(MdAttrV2, component_name);
    const ID: usize = offset_of!(MdAttrV2, global_id);
    [
        (Version::V1_14, 512, [(CACHE, 4, 40), (COST, 9, 80), (NAME, 10, 96), (ID, 14, 256)]),
        (Version::V1_15, 520, [(CACHE, 5, 48), (COST, 10, 88), (NAME, 11, 104), (ID, 15, 264)]),
        (Version::V1_16, 528, [(CACHE, 5, 48), (COST, 10, 88), (NAME, 11, 104), (ID, 15, 264)]),
        (Version::V1_17, 528, [(CACHE, 5, 48), (COST, 10, 88), (NAME, 11, 104), (ID, 15, 264)]),
        (Version::V1_18, 536, [(CACHE, 5, 48), (COST, 10, 96), (NAME, 11, 112), (ID, 15, 272)]),
        (Version::V1_22, 537, [(CACHE, 5, 48), (COST, 10, 96), (NAME, 11, 112), (ID, 15, 272)]),
    ]
};

#[test]
fn attributes_of_domains_are_those_that_the_mask_names() {
    let Some(rig) = Rig::of_self() else { return };
    let md = unsafe { md::of_md(rig.md) }.unwrap();
    let attributes = md.attributes();
    let expected = |field: usize| unsafe {
        (&raw const attributes).cast::<u8>().add(field).cast::<[u8; 16]>().read()
    };
    let whole = size_of::<Guarded<MdAttrV2>>();
    for (version, size, fields) in DOMAINS {
        let mut all = Guarded::<MdAttrV2>::new(u64::MAX);
        unsafe { describe(md, all.inner.as_mut_ptr(), version) };
        assert!(!all.is_untouched(size - 1, 1), "{version:?}");
        assert!(all.is_untouched(size, whole - size), "{version:?}");
        for (field, bit, offset) in fields {
            assert_eq!(all.bytes(offset, 16), expected(field), "{version:?}: {bit}");
            let mut one = Guarded::<MdAttrV2>::new(1 << bit);
            unsafe { describe(md, one.inner.as_mut_ptr(), version) };
            assert!(one.is_untouched(8, offset - 8), "{version:?}: {bit}");
            assert!(!one.is_untouched(offset, 8), "{version:?}: {bit}");
            let end = offset + 256;
            assert!(one.is_untouched(end, whole - end), "{version:?}: {bit}");
        }
    }
}

#[test]
fn exports_are_refused_by_the_flag_of_the_version() {
    let flags =
        [(Version::V1_13, 0), (Version::V1_14, 2), (Version::V1_15, 4), (Version::V1_22, 4)];
    for (version, flag) in flags {
        assert_eq!(MkeyPackParams::export(version), flag, "{version:?}");
    }
}

#[test]
fn allocated_memory_has_a_device_in_later_versions() {
    let plain = || AllocatedMemory {
        address: null_mut(),
        length: 8,
        method: 2,
        mem_type: HOST_MEMORY,
        md: null_mut(),
        memh: null_mut(),
    };
    let mut target = Guarded::<AllocatedMemoryOnDevice>::new(0);
    let (end, start) = (size_of::<AllocatedMemory>(), target.inner.as_mut_ptr().cast());
    unsafe { memory::write(start, plain(), Version::V1_18) };
    assert!(target.is_untouched(end, 64));
    let start = target.inner.as_mut_ptr().cast();
    unsafe { memory::write(start, plain(), Version::V1_19) };
    assert_eq!(target.bytes(end, 1), [UNKNOWN_SYS_DEVICE]);
    assert!(target.is_untouched(end + 1, 64));
}

/// Registers memory, and returns two keys to it.
unsafe fn keys(rig: &Rig, memory: &mut [u64]) -> (*mut std::ffi::c_void, [RkeyBundle; 2]) {
    let params = MemRegParams {
        // Bits without a meaning are ignored.
        field_mask: !MemRegParams::DMABUF_FD,
        flags: 0x3e0,
        dmabuf_fd: 0,
        dmabuf_offset: 0,
        mem_type: HOST_MEMORY,
    };
    let (mut memh, mut packed) = (null_mut(), [0_u8; 256]);
    let (start, length) = (memory.as_mut_ptr().cast(), size_of_val(memory));
    unsafe {
        assert_eq!(uct_md_mem_reg_v2(rig.md, start, length, &raw const params, &raw mut memh), OK);
        assert_eq!(md::uct_md_mkey_pack(rig.md, memh.cast(), packed.as_mut_ptr()), OK);
        let unpack = || {
            let mut bundle = MaybeUninit::uninit();
            let packed = packed.as_ptr();
            assert_eq!(uct_rkey_unpack_v2(rig.component, packed, null(), bundle.as_mut_ptr()), OK);
            bundle.assume_init()
        };
        (memh, [unpack(), unpack()])
    }
}

#[test]
fn keys_are_compared_by_what_they_allow() {
    let Some(rig) = Rig::of_self() else { return };
    let (mut one, mut two) = ([1_u64; 8], [2_u64; 8]);
    unsafe {
        let (first, [a, b]) = keys(&rig, &mut one);
        let (second, [c, d]) = keys(&rig, &mut two);
        let compare = |left, right| {
            let (params, mut order) = (RkeyCompareParams { field_mask: 0 }, 7);
            let (params, target) = (&raw const params, &raw mut order);
            assert_eq!(uct_rkey_compare(rig.component, left, right, params, target), OK);
            order
        };
        assert_eq!((compare(a.rkey, b.rkey), compare(c.rkey, c.rkey)), (0, 0));
        assert_ne!(compare(a.rkey, c.rkey), 0);
        assert_eq!(compare(a.rkey, d.rkey), -compare(c.rkey, b.rkey));
        // A key is used as that of `uct_rkey_unpack`.
        let (ep, text) = (rig.endpoint(Some(&rig)), 9_u64.to_ne_bytes());
        let put = rig.ops().ep_put_short;
        assert_eq!(put(ep, text.as_ptr(), 8, (&raw mut one) as u64, a.rkey), OK);
        assert_eq!((&raw const one[0]).read_volatile(), 9);
        dispatch::uct_ep_destroy(ep);
        let (none, wrong) =
            (RkeyCompareParams { field_mask: 0 }, RkeyCompareParams { field_mask: 1 });
        let mut order = 0;
        for (left, params, target) in [
            (a.rkey, &raw const wrong, &raw mut order),
            (a.rkey, null(), &raw mut order),
            (a.rkey, &raw const none, null_mut()),
            (INVALID_RKEY, &raw const none, &raw mut order),
            (0, &raw const none, &raw mut order),
        ] {
            let status = uct_rkey_compare(rig.component, left, b.rkey, params, target);
            assert_eq!(status, INVALID_PARAM);
        }
        for bundle in [a, b, c, d] {
            assert_eq!(component::uct_rkey_release(rig.component, &raw const bundle), OK);
        }
        for memh in [first, second] {
            assert_eq!(md::uct_md_mem_dereg(rig.md, memh), OK);
        }
    }
}

#[test]
fn memory_of_devices_is_not_registered() {
    let Some(rig) = Rig::of_self() else { return };
    let (mut word, mut memh) = (0_u64, null_mut());
    let params = |field_mask, dmabuf_fd, mem_type| MemRegParams {
        field_mask,
        flags: 0,
        dmabuf_fd,
        dmabuf_offset: 0,
        mem_type,
    };
    let (descriptor, kind) = (MemRegParams::DMABUF_FD, MemRegParams::MEM_TYPE);
    for (params, expected) in [
        (params(descriptor, 0, 0), UNSUPPORTED),
        (params(descriptor | kind, -1, 1), UNSUPPORTED),
        (params(descriptor | kind, -1, HOST_MEMORY), OK),
        (params(0, 0, 1), OK),
    ] {
        let start = (&raw mut word).cast();
        let (params, target) = (&raw const params, &raw mut memh);
        let status = unsafe { uct_md_mem_reg_v2(rig.md, start, 8, params, target) };
        assert_eq!(status, expected);
        if status == OK {
            assert_eq!(unsafe { md::uct_md_mem_dereg(rig.md, memh) }, OK);
        }
    }
}

/// The addresses of an interface and of an endpoint.
struct Addresses {
    device: [u8; 64],
    interface: [u8; 64],
    end: [u8; 64],
}

impl Addresses {
    unsafe fn of(rig: &Rig, ep: *mut Ep) -> Self {
        let mut this = Self { device: [0; 64], interface: [0; 64], end: [0; 64] };
        let (device, interface) = (this.device.as_mut_ptr(), this.interface.as_mut_ptr());
        unsafe {
            assert_eq!(dispatch::uct_iface_get_device_address(rig.iface, device.cast()), OK);
            assert_eq!(dispatch::uct_iface_get_address(rig.iface, interface.cast()), OK);
            if !ep.is_null() {
                let end = this.end.as_mut_ptr();
                assert_eq!(dispatch::uct_ep_get_address(ep, end.cast()), OK);
            }
        }
        this
    }

    fn is_connected(&self, ep: *mut Ep, fields: u64) -> bool {
        let params = IsConnectedParams {
            field_mask: fields,
            device_addr: self.device.as_ptr().cast(),
            iface_addr: self.interface.as_ptr().cast(),
            ep_addr: self.end.as_ptr().cast(),
        };
        unsafe { uct_ep_is_connected(ep, &raw const params) != 0 }
    }
}

#[test]
fn reachability_is_explained() {
    let (Some(own), Some(tcp)) = (Rig::of_self(), Rig::over(c"tcp", c"lo")) else { return };
    let addresses = unsafe { Addresses::of(&own, null_mut()) };
    let mut text = [1 as c_char; 32];
    let params = |field_mask, scope, lengths: [usize; 2]| IsReachableParams {
        field_mask,
        device_addr: addresses.device.as_ptr().cast(),
        iface_addr: addresses.interface.as_ptr().cast(),
        info_string: null_mut(),
        info_string_length: 0,
        scope,
        device_addr_length: lengths[0],
        iface_addr_length: lengths[1],
    };
    let (all, device_scope) = (0x7f, IsReachableParams::SAME_DEVICE);
    let mut asks = |rig: &Rig, mut params: IsReachableParams, room| {
        text.fill(1);
        (params.info_string, params.info_string_length) = (text.as_mut_ptr(), room);
        let is_reachable = unsafe { uct_iface_is_reachable_v2(rig.iface, &raw const params) };
        assert!(text[room.min(text.len())..].iter().all(|byte| *byte == 1));
        let read = if room == 0 { c"" } else { unsafe { CStr::from_ptr(text.as_ptr()) } };
        (is_reachable, read.to_str().unwrap().to_owned())
    };
    let yes = (1, String::new());
    assert_eq!(asks(&own, params(all, device_scope, [64, 64]), 32), yes);
    assert_eq!(asks(&own, params(3, 0, [0, 0]), 0), yes);
    let short = asks(&own, params(all, 1, [64, 1]), 32);
    assert_eq!(short, (0, "the address is too short for se".to_owned()));
    // A length without its bit says nothing.
    assert_eq!(asks(&own, params(0x1f, 1, [64, 1]), 32), yes);
    // An address of another transport is not one of a device of this one.
    let (reachable, why) = asks(&tcp, params(all, 1, [64, 64]), 32);
    assert!(reachable == 0 && !why.is_empty(), "{why}");
    assert_eq!(asks(&tcp, params(all, 1, [64, 64]), 1), (0, String::new()));
    let nothing = params(0, 0, [0, 0]);
    assert_eq!(unsafe { uct_iface_is_reachable_v2(own.iface, &raw const nothing) }, 0);
    let mut other = params(3 | IsReachableParams::SCOPE, device_scope, [0, 0]);
    let mut foreign = addresses.device;
    foreign[0] ^= 1;
    other.device_addr = foreign.as_ptr().cast();
    assert_eq!(unsafe { uct_iface_is_reachable_v2(own.iface, &raw const other) }, 0);
}

#[test]
fn endpoints_know_what_they_are_connected_to() {
    let (Some(one), Some(two)) = (Rig::over(c"tcp", c"lo"), Rig::over(c"tcp", c"lo")) else {
        return;
    };
    let (near, far, other) = (one.endpoint(None), two.endpoint(None), two.endpoint(None));
    let all = IsConnectedParams::DEVICE_ADDR | IsConnectedParams::EP_ADDR;
    unsafe {
        let (to_far, to_other) = (Addresses::of(&two, far), Addresses::of(&two, other));
        assert!(!to_far.is_connected(near, 0), "not connected");
        let device = DeviceAddress::body_length(barewire::TransportId::Tcp);
        let connect_by = |params: ConnectToEpParams| {
            let (device, end) = (to_far.device.as_ptr(), to_far.end.as_ptr());
            uct_ep_connect_to_ep_v2(near, device.cast(), end.cast(), &raw const params)
        };
        let lengths = |field_mask, device_addr_length, ep_addr_length| ConnectToEpParams {
            field_mask,
            device_addr_length,
            ep_addr_length,
        };
        assert_eq!(connect_by(lengths(3, device - 1, 64)), INVALID_ADDR);
        assert_eq!(connect_by(lengths(3, device, 1)), INVALID_ADDR);
        assert_eq!(connect_by(lengths(u64::MAX, device, 64)), OK);
        connect(far, &one, near);
        assert!(to_far.is_connected(near, all) && to_far.is_connected(near, 0));
        assert!(to_far.is_connected(near, all | 1 << 40), "bits without a meaning are ignored");
        assert!(!to_other.is_connected(near, all));
        assert!(to_other.is_connected(near, IsConnectedParams::DEVICE_ADDR), "the same device");
        for ep in [near, far, other] {
            dispatch::uct_ep_destroy(ep);
        }
    }
}

#[test]
fn endpoints_to_interfaces_know_them() {
    let (Some(one), Some(two)) = (Rig::over(c"shm", c"memory"), Rig::over(c"shm", c"memory"))
    else {
        return;
    };
    let both = IsConnectedParams::DEVICE_ADDR | IsConnectedParams::IFACE_ADDR;
    unsafe {
        let (ep, own) = (one.endpoint(Some(&two)), Addresses::of(&one, null_mut()));
        let to = Addresses::of(&two, null_mut());
        assert!(to.is_connected(ep, both));
        assert!(!own.is_connected(ep, both), "another interface");
        assert!(!to.is_connected(ep, both | IsConnectedParams::EP_ADDR), "of no endpoint");
        dispatch::uct_ep_destroy(ep);
        // Lengths of addresses, if they are given, are checked.
        let mut params = EpParamsWithLengths {
            params: EpParams {
                field_mask: EpParams::IFACE | EpParams::DEV_ADDR | EpParams::IFACE_ADDR,
                iface: one.iface,
                user_data: null_mut(),
                dev_addr: to.device.as_ptr().cast(),
                iface_addr: to.interface.as_ptr().cast(),
                ..MaybeUninit::zeroed().assume_init()
            },
            dev_addr_length: 64,
            iface_addr_length: 1,
        };
        let mut ep = null_mut();
        let created = dispatch::uct_ep_create((&raw const params).cast(), &raw mut ep);
        assert_eq!(created, OK, "a length without its bit says nothing");
        dispatch::uct_ep_destroy(ep);
        params.params.field_mask |= EpParamsWithLengths::IFACE_ADDR_LENGTH;
        let created = dispatch::uct_ep_create((&raw const params).cast(), &raw mut ep);
        assert_eq!(created, INVALID_ADDR);
    }
}

#[test]
fn interfaces_have_no_newer_capability() {
    let Some(rig) = Rig::of_self() else { return };
    let mut attr = Guarded::<IfaceAttrV2>::new(0b101);
    let query = |attr: &mut Guarded<IfaceAttrV2>| unsafe {
        uct_iface_query_v2(rig.iface, attr.inner.as_mut_ptr())
    };
    assert_eq!(query(&mut attr), OK);
    assert_eq!((attr.bytes(8, 8), attr.bytes(24, 8)), (&[0; 8][..], &[0; 8][..]));
    assert!(attr.is_untouched(16, 8) && attr.is_untouched(32, 32 + 64));
    assert_eq!(query(&mut Guarded::new(1 << 5)), UNSUPPORTED);
    assert_eq!(query(&mut Guarded::new(u64::MAX)), UNSUPPORTED);
}

/// What libucp does with a stub: it writes its own table into it, and opens endpoints of its own.
#[test]
fn stubs_return_their_status() {
    let mut params: IfaceParams = unsafe { MaybeUninit::zeroed().assume_init() };
    params.field_mask = IfaceParams::OPEN_MODE;
    params.open_mode = IfaceParams::MODE_STUB;
    for status in [CANCELED, BUSY] {
        unsafe {
            (&raw mut params.tl_name).cast::<i8>().write(status);
            let mut stub = null_mut();
            let open = iface::uct_iface_open;
            let params = &raw const params;
            assert_eq!(open(null_mut(), null_mut(), params, null(), null_mut()), INVALID_PARAM);
            assert_eq!(open(null_mut(), null_mut(), params, null(), &raw mut stub), OK);
            // An endpoint begins with its interface.
            let mut ep = [stub; 4];
            let ep = ep.as_mut_ptr().cast::<Ep>();
            let lengths =
                ConnectToEpParams { field_mask: 0, device_addr_length: 0, ep_addr_length: 0 };
            let connected = uct_ep_connect_to_ep_v2(ep, null(), null(), &raw const lengths);
            assert_eq!(connected, status);
            let any = Addresses { device: [0; 64], interface: [0; 64], end: [0; 64] };
            assert!(!any.is_connected(ep, 0));
            let mut perf = Guarded::<head::PerfAttr>::new(u64::MAX);
            let target = perf.inner.as_mut_ptr().cast();
            assert_eq!(query::uct_iface_estimate_perf(stub, target), status);
            let mut attr = Guarded::<IfaceAttrV2>::new(1);
            assert_eq!(uct_iface_query_v2(stub, attr.inner.as_mut_ptr()), OK);
            dispatch::uct_iface_close(stub);
        }
    }
}

/// The results of the C interface have the types that programs expect.
#[test]
fn truth_values_are_one_or_zero() {
    let Some(rig) = Rig::of_self() else { return };
    let addresses = unsafe { Addresses::of(&rig, null_mut()) };
    let ep = rig.endpoint(Some(&rig));
    let params = IsConnectedParams {
        field_mask: 3,
        device_addr: addresses.device.as_ptr().cast(),
        iface_addr: addresses.interface.as_ptr().cast(),
        ep_addr: null(),
    };
    let connected: c_int = unsafe { uct_ep_is_connected(ep, &raw const params) };
    assert_eq!(connected, 1);
    // A field that the mask names needs its address.
    let missing = IsConnectedParams { device_addr: null(), ..params };
    assert_eq!(unsafe { uct_ep_is_connected(ep, &raw const missing) }, 0);
    unsafe { dispatch::uct_ep_destroy(ep) };
}
