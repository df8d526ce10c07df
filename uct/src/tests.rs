//! The functions as a program in C calls them, over `self`, and calls with wrong arguments.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "every block makes calls of C with handles of the rig, or with wrong arguments, which must be safe"
)]

use std::ffi::{CStr, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use crate::abi::{
    AllocatedMemory, Completion, ComponentAttr, EpParams, IfaceOps, IfaceParams, Iov, PendingReq,
    RkeyBundle,
};
use crate::component::Component;
use crate::endpoint::Ep;
use crate::iface::Iface;
use crate::md::Md;
use crate::status::{BUSY, INPROGRESS, INVALID_PARAM, NO_DEVICE, NO_ELEM, OK, UNSUPPORTED};
use crate::worker::Worker;
use crate::{component, config, dispatch, iface, md, memory, worker};

/// An interface of `self` with an endpoint to itself.
struct Rig {
    component: *const Component,
    md: *mut Md,
    worker: *mut Worker,
    iface: *mut Iface,
    ep: *mut Ep,
}

/// Returns the component of a transport.
unsafe fn component_of(name: &CStr) -> *const Component {
    unsafe {
        let (mut all, mut count) = (null_mut(), 0);
        assert_eq!(component::uct_query_components(&raw mut all, &raw mut count), OK);
        let found = (0..count as usize).map(|at| *all.add(at)).find(|&one| {
            let mut attr: ComponentAttr = MaybeUninit::zeroed().assume_init();
            attr.field_mask = ComponentAttr::NAME;
            assert_eq!(component::uct_component_query(one, &raw mut attr), OK);
            CStr::from_ptr(attr.name.as_ptr()) == name
        });
        component::uct_release_component_list(all);
        found.unwrap()
    }
}

impl Rig {
    /// `None` without libucs.
    fn new() -> Option<Self> {
        if crate::ucs::functions().is_none() {
            println!("skipped: libucs.so.0 is not installed (Debian: libucx0)");
            return None;
        }
        unsafe {
            let component = component_of(c"self");
            let (mut md, mut worker, mut iface, mut ep) =
                (null_mut(), null_mut(), null_mut(), null_mut());
            assert_eq!(md::uct_md_open(component, c"memory".as_ptr(), null(), &raw mut md), OK);
            assert_eq!(worker::uct_worker_create(null_mut(), 0, &raw mut worker), OK);
            let params = iface_params();
            let opened =
                iface::uct_iface_open(md, worker, &raw const params, null(), &raw mut iface);
            assert_eq!(opened, OK);
            let (mut device, mut address) = ([0_u8; 8], [0_u8; 8]);
            assert_eq!(
                dispatch::uct_iface_get_device_address(iface, device.as_mut_ptr().cast()),
                OK
            );
            assert_eq!(dispatch::uct_iface_get_address(iface, address.as_mut_ptr().cast()), OK);
            let (device, address) = (device.as_ptr().cast(), address.as_ptr().cast());
            assert_eq!(dispatch::uct_iface_is_reachable(iface, device, address), 1);
            let params = EpParams {
                field_mask: EpParams::IFACE | EpParams::DEV_ADDR | EpParams::IFACE_ADDR,
                iface,
                user_data: null_mut(),
                dev_addr: device,
                iface_addr: address,
                rest: [0; 13],
            };
            assert_eq!(dispatch::uct_ep_create(&raw const params, &raw mut ep), OK);
            (*iface.cast::<IfaceOps>()).iface_progress_enable.call(iface);
            Some(Self { component, md, worker, iface, ep })
        }
    }

    fn ops(&self) -> IfaceOps {
        unsafe { *self.iface.cast::<IfaceOps>() }
    }

    /// Calls the callbacks of the worker as the inline function of UCX does.
    fn progress(&self) {
        #[repr(C)]
        struct Element {
            callback: Option<crate::ucs::Callback>,
            argument: *mut c_void,
            flags: c_uint,
            id: i32,
        }
        unsafe {
            let mut element = self.worker.cast::<Element>();
            while let Some(callback) = (*element).callback {
                callback((*element).argument);
                element = element.add(1);
            }
        }
    }
}

trait Enable {
    unsafe fn call(self, iface: *mut Iface);
}

impl Enable for unsafe extern "C" fn(*mut Iface, c_uint) {
    unsafe fn call(self, iface: *mut Iface) {
        // Both directions.
        unsafe { self(iface, 3) };
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        unsafe {
            dispatch::uct_ep_destroy(self.ep);
            dispatch::uct_iface_close(self.iface);
            worker::uct_worker_destroy(self.worker);
            md::uct_md_close(self.md);
        }
    }
}

fn iface_params() -> IfaceParams {
    let mut params: IfaceParams = unsafe { MaybeUninit::zeroed().assume_init() };
    params.field_mask = IfaceParams::OPEN_MODE | IfaceParams::DEVICE;
    params.open_mode = IfaceParams::MODE_DEVICE;
    params.tl_name = c"self".as_ptr();
    params.dev_name = c"memory".as_ptr();
    params
}

unsafe extern "C" fn append(received: *mut c_void, data: *mut u8, length: usize, _: c_uint) -> i8 {
    let received = unsafe { &mut *received.cast::<Vec<Vec<u8>>>() };
    received.push(unsafe { std::slice::from_raw_parts(data, length) }.to_vec());
    OK
}

unsafe extern "C" fn pack(target: *mut u8, argument: *mut c_void) -> usize {
    let text = unsafe { *argument.cast::<&[u8]>() };
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), target, text.len()) };
    text.len()
}

unsafe extern "C" fn unpack(received: *mut c_void, data: *const u8, length: usize) {
    let received = unsafe { &mut *received.cast::<Vec<u8>>() };
    received.extend_from_slice(unsafe { std::slice::from_raw_parts(data, length) });
}

fn iov(text: &[u8], memh: *mut c_void, stride: usize, count: c_uint) -> Iov {
    Iov { buffer: text.as_ptr().cast_mut(), length: text.len(), memh, stride, count }
}

#[test]
fn messages_arrive_as_they_were_sent() {
    let Some(rig) = Rig::new() else { return };
    let (ops, mut received) = (rig.ops(), Vec::<Vec<u8>>::new());
    unsafe {
        let argument = (&raw mut received).cast();
        assert_eq!(iface::uct_iface_set_am_handler(rig.iface, 5, Some(append), argument, 0), OK);
        let header = u64::from_ne_bytes(*b"12345678");
        assert_eq!((ops.ep_am_short)(rig.ep, 5, header, b"short".as_ptr(), 5), OK);
        assert_eq!((ops.ep_am_short)(rig.ep, 5, header, null(), 0), OK);
        let mut text: &[u8] = b"buffered";
        let argument = (&raw mut text).cast();
        assert_eq!((ops.ep_am_bcopy)(rig.ep, 5, Some(pack), argument, 0), 8);
        // Two of every three bytes.
        let pieces =
            [iov(b"a", null_mut(), 0, 1), Iov { length: 2, ..iov(b"bc-de-fg", null_mut(), 3, 3) }];
        assert_eq!((ops.ep_am_short_iov)(rig.ep, 5, pieces.as_ptr(), 2), OK);
        rig.progress();
        // Without a handler, messages are dropped.
        assert_eq!(iface::uct_iface_set_am_handler(rig.iface, 5, None, null_mut(), 0), OK);
        assert_eq!((ops.ep_am_short)(rig.ep, 5, header, null(), 0), OK);
        rig.progress();
    }
    let expected: [&[u8]; 4] = [b"12345678short", b"12345678", b"buffered", b"abcdefg"];
    assert_eq!(received, expected);
}

#[test]
fn memory_is_written_and_read() {
    let Some(rig) = Rig::new() else { return };
    let ops = rig.ops();
    unsafe {
        let mut memory: AllocatedMemory = MaybeUninit::zeroed().assume_init();
        let allocated =
            memory::uct_iface_mem_alloc(rig.iface, 4000, 0x3e0, null(), &raw mut memory);
        assert_eq!((allocated, memory.length), (OK, 4000));
        memory.address.write_bytes(0, 4000);
        let mut packed = [0_u8; 22];
        assert_eq!(md::uct_md_mkey_pack(rig.md, memory.memh.cast(), packed.as_mut_ptr()), OK);
        let mut key: RkeyBundle = MaybeUninit::zeroed().assume_init();
        let unpacked = component::uct_rkey_unpack(rig.component, packed.as_ptr(), &raw mut key);
        assert_eq!(unpacked, OK);
        let (at, rkey) = (memory.address as u64, key.rkey);

        assert_eq!((ops.ep_put_short)(rig.ep, b"short".as_ptr(), 5, at, rkey), OK);
        let mut text: &[u8] = b"buffered";
        let put = (ops.ep_put_bcopy)(rig.ep, Some(pack), (&raw mut text).cast(), at + 5, rkey);
        assert_eq!(put, 8);
        let own = std::slice::from_raw_parts(memory.address, 13);
        let copy = [Iov { length: 3, ..iov(own, memory.memh, 5, 2) }];
        // The completion counts nothing that is done at once, and may have no function.
        let mut done = Completion { func: None, count: 1, status: OK };
        let put = (ops.ep_put_zcopy)(rig.ep, copy.as_ptr(), 1, at + 100, rkey, &raw mut done);
        assert_eq!((put, done.count), (OK, 1));
        assert_eq!((ops.ep_atomic64_post)(rig.ep, 0, 7, at + 200, rkey), OK);
        assert_eq!((ops.ep_atomic32_post)(rig.ep, 2, 8, at + 200, rkey), OK);
        assert_eq!((ops.ep_flush)(rig.ep, 0, null_mut()), OK);
        assert_eq!(((ops.iface_flush)(rig.iface, 0, &raw mut done), done.count), (OK, 1));
        let all = std::slice::from_raw_parts(memory.address, 4000);
        assert_eq!(&all[..13], b"shortbuffered");
        assert_eq!((&all[100..106], all[200]), (&b"shobuf"[..], 15));

        let (mut word, mut half, mut short) = (0_u64, 0_u32, [0_u8; 5]);
        let fetched =
            (ops.ep_atomic64_fetch)(rig.ep, 0, 5, &raw mut word, at + 200, rkey, &raw mut done);
        assert_eq!((fetched, word, done.count), (OK, 15, 1));
        let (compare, swap) = (20, 0x1_0000_0000);
        let swapped = (ops.ep_atomic_cswap64)(
            rig.ep,
            compare,
            swap,
            at + 200,
            rkey,
            &raw mut word,
            null_mut(),
        );
        assert_eq!((swapped, word), (OK, 20));
        let swapped =
            (ops.ep_atomic32_fetch)(rig.ep, 4, 9, &raw mut half, at + 204, rkey, null_mut());
        assert_eq!((swapped, half), (OK, 1));
        assert_eq!((ops.ep_get_short)(rig.ep, short.as_mut_ptr(), 5, at, rkey), OK);
        assert_eq!(&short, b"short");
        let mut received = Vec::<u8>::new();
        let argument = (&raw mut received).cast();
        let got =
            (ops.ep_get_bcopy)(rig.ep, Some(unpack), argument, 8, at + 5, rkey, &raw mut done);
        assert_eq!((got, done.count, &*received), (OK, 1, &b"buffered"[..]));

        // An endpoint with resources accepts no pending requests.
        let mut request = PendingReq { func: None, private: [0; 40] };
        assert_eq!((ops.ep_pending_add)(rig.ep, &raw mut request, 0), BUSY);
        assert_eq!(component::uct_rkey_release(rig.component, &raw const key), OK);
        memory::uct_iface_mem_free(&raw const memory);
    }
}

/// Every call returns a status, and none ends the process.
#[test]
fn wrong_calls_return_a_status() {
    let Some(rig) = Rig::new() else { return };
    let (ops, component) = (rig.ops(), rig.component);
    let (ep, iface, text) = (rig.ep, rig.iface, b"text".as_ptr());
    let entry = iov(b"unregistered", null_mut(), 0, 1);
    let too_many = [iov(b"", null_mut(), 0, 1); 64];
    let empty = iov(b"", null_mut(), 0, u32::MAX);
    let invalid = usize::MAX;
    let mut packed: &[u8] = b"packed";
    let packed = (&raw mut packed).cast();
    unsafe {
        let mut params = iface_params();
        params.dev_name = c"other".as_ptr();
        let mut unaligned = iface_params();
        unaligned.field_mask |= IfaceParams::AM_ALIGNMENT;
        unaligned.am_alignment = 3;
        let (mut opened, mut md_opened) = (null_mut(), null_mut());
        let (mut settings, mut no_worker) = (null_mut(), null_mut());
        let mut bundle = RkeyBundle { rkey: 0, handle: null_mut(), kind: null_mut() };
        assert_eq!(
            config::uct_md_iface_config_read(rig.md, null(), null(), null(), &raw mut settings),
            OK
        );
        let table = [
            ("an id of an active message", (ops.ep_am_short)(ep, 32, 0, text, 4), INVALID_PARAM),
            ("no payload", (ops.ep_am_short)(ep, 0, 0, null(), 4), INVALID_PARAM),
            ("a long payload", (ops.ep_am_short)(ep, 0, 0, text, 1 << 20), INVALID_PARAM),
            (
                "no pack callback",
                (ops.ep_am_bcopy)(ep, 0, None, null_mut(), 0) as i8,
                INVALID_PARAM,
            ),
            ("no pieces", (ops.ep_am_short_iov)(ep, 0, null(), 2), INVALID_PARAM),
            ("empty pieces", (ops.ep_am_short_iov)(ep, 0, &raw const empty, 1), OK),
            ("too many pieces", (ops.ep_am_short_iov)(ep, 0, too_many.as_ptr(), 64), INVALID_PARAM),
            (
                "no memory handle",
                (ops.ep_am_zcopy)(ep, 0, text, 4, &raw const entry, 1, 0, null_mut()),
                INVALID_PARAM,
            ),
            (
                "no header",
                (ops.ep_am_zcopy)(ep, 0, null(), 4, null(), 0, 0, null_mut()),
                INVALID_PARAM,
            ),
            ("no key", (ops.ep_put_short)(ep, text, 4, 0, 0), INVALID_PARAM),
            ("an invalid key", (ops.ep_put_short)(ep, text, 4, 0, invalid), INVALID_PARAM),
            ("no bytes to an invalid key", (ops.ep_put_short)(ep, null(), 0, 0, invalid), OK),
            (
                "an invalid key",
                (ops.ep_put_bcopy)(ep, Some(pack), packed, 0, invalid) as i8,
                INVALID_PARAM,
            ),
            (
                "an invalid key",
                (ops.ep_put_zcopy)(ep, too_many.as_ptr(), 64, 0, invalid, null_mut()),
                INVALID_PARAM,
            ),
            ("no list", (ops.ep_get_zcopy)(ep, null(), 3, 0, invalid, null_mut()), INVALID_PARAM),
            ("an invalid key", (ops.ep_atomic64_post)(ep, 0, 1, 0, invalid), INVALID_PARAM),
            ("a swap without result", (ops.ep_atomic32_post)(ep, 4, 1, 0, invalid), UNSUPPORTED),
            (
                "no unpack callback",
                (ops.ep_get_bcopy)(ep, None, null_mut(), 4, 0, invalid, null_mut()),
                INVALID_PARAM,
            ),
            ("no buffer", (ops.ep_get_short)(ep, null_mut(), 4, 0, invalid), INVALID_PARAM),
            (
                "no result",
                (ops.ep_atomic64_fetch)(ep, 0, 1, null_mut(), 0, invalid, null_mut()),
                INVALID_PARAM,
            ),
            (
                "an unknown atomic",
                (ops.ep_atomic32_fetch)(ep, 9, 1, null_mut(), 0, invalid, null_mut()),
                UNSUPPORTED,
            ),
            ("no request", (ops.ep_pending_add)(ep, null_mut(), 0), INVALID_PARAM),
            ("tag matching", (ops.ep_tag_eager_short)() as i8, UNSUPPORTED),
            (
                "a handler's id",
                iface::uct_iface_set_am_handler(iface, 32, None, null_mut(), 0),
                INVALID_PARAM,
            ),
            (
                "no interface",
                iface::uct_iface_set_am_handler(null_mut(), 0, None, null_mut(), 0),
                INVALID_PARAM,
            ),
            ("no interface", dispatch::uct_iface_query(null_mut(), null_mut()), INVALID_PARAM),
            ("no target", dispatch::uct_iface_query(iface, null_mut()), INVALID_PARAM),
            ("no descriptor", dispatch::uct_iface_event_fd_get(iface, null_mut()), INVALID_PARAM),
            ("no address", dispatch::uct_iface_get_address(iface, null_mut()), INVALID_PARAM),
            (
                "an address of an endpoint",
                dispatch::uct_ep_connect_to_ep(ep, null(), null()),
                INVALID_PARAM,
            ),
            ("no parameters", dispatch::uct_ep_create(null(), null_mut()), INVALID_PARAM),
            ("no endpoint", dispatch::uct_ep_check(null_mut(), 0, null_mut()), INVALID_PARAM),
            (
                "an unknown device",
                md::uct_md_open(component, c"none".as_ptr(), null(), &raw mut md_opened),
                NO_DEVICE,
            ),
            (
                "no name",
                md::uct_md_open(component, null(), null(), &raw mut md_opened),
                INVALID_PARAM,
            ),
            ("no domain", md::uct_md_query(null(), null_mut()), INVALID_PARAM),
            ("no memory", md::uct_md_mem_reg(rig.md, null_mut(), 8, 0, null_mut()), INVALID_PARAM),
            ("no handle", md::uct_md_mem_dereg(rig.md, null_mut()), INVALID_PARAM),
            ("no handle", md::uct_md_mkey_pack(rig.md, null(), null_mut()), INVALID_PARAM),
            (
                "no bytes of a key",
                component::uct_rkey_unpack(component, [0; 22].as_ptr(), &raw mut bundle),
                INVALID_PARAM,
            ),
            ("no key", component::uct_rkey_release(component, null()), INVALID_PARAM),
            ("no methods", memory::uct_mem_alloc(8, null(), 0, null(), null_mut()), INVALID_PARAM),
            (
                "no bytes",
                memory::uct_iface_mem_alloc(iface, 0, 0, null(), null_mut()),
                INVALID_PARAM,
            ),
            (
                "an unknown setting",
                config::uct_config_modify(settings, c"NONE".as_ptr(), c"1".as_ptr()),
                NO_ELEM,
            ),
            (
                "a wrong value",
                config::uct_config_modify(settings, c"SEND_RING".as_ptr(), c"big".as_ptr()),
                INVALID_PARAM,
            ),
            (
                "an unknown thread mode",
                worker::uct_worker_create(null_mut(), 9, &raw mut no_worker),
                INVALID_PARAM,
            ),
            (
                "another device",
                iface::uct_iface_open(
                    rig.md,
                    rig.worker,
                    &raw const params,
                    null(),
                    &raw mut opened,
                ),
                NO_DEVICE,
            ),
            (
                "an alignment",
                iface::uct_iface_open(
                    rig.md,
                    rig.worker,
                    &raw const unaligned,
                    null(),
                    &raw mut opened,
                ),
                INVALID_PARAM,
            ),
            ("a socket address", dispatch::uct_ep_connect(ep, null()), UNSUPPORTED),
        ];
        for (what, found, expected) in table {
            assert_eq!(found, expected, "{what}");
        }
        assert_eq!(dispatch::uct_iface_is_reachable(iface, null(), null()), 0);
        dispatch::uct_ep_destroy(null_mut());
        dispatch::uct_iface_close(null_mut());
        md::uct_md_close(null_mut());
        worker::uct_worker_destroy(null_mut());
        assert_eq!(config::uct_config_modify(settings, c"SEND_RING".as_ptr(), c"64".as_ptr()), OK);
        let mut value = [1; 3];
        let got = config::uct_config_get(settings, c"send_ring".as_ptr(), value.as_mut_ptr(), 3);
        assert_eq!((got, value.map(|byte| byte as u8)), (OK, *b"64\0"));
        config::uct_config_release(settings);
        // Afterwards everything works as before.
        assert_eq!((ops.ep_am_short)(ep, 0, 0, text, 4), OK);
        assert_ne!((ops.iface_flush)(iface, 0, null_mut()), INPROGRESS);
    }
}
