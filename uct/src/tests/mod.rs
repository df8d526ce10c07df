//! The functions as a program in C calls them.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "every block makes calls of C with handles of the rig"
)]

mod calls;
mod connections;
mod descriptors;
mod limits;
mod null;
pub(crate) mod pair;
mod promises;
#[cfg(feature = "ucx-head")]
mod v2;
mod wrong;

use std::ffi::{CStr, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use crate::abi::{ComponentAttr, EpParams, IfaceOps, IfaceParams, Iov};
use crate::component::Component;
use crate::endpoint::Ep;
use crate::iface::Iface;
use crate::md::Md;
use crate::status::OK;
use crate::worker::Worker;
use crate::{component, dispatch, iface, md, worker};

/// Bytes in front of messages: those that libucp 1.13 asks for.
const HEADROOM: usize = 80;

/// An interface.
pub(crate) struct Rig {
    pub(crate) component: *const Component,
    md: *mut Md,
    pub(crate) worker: *mut Worker,
    pub(crate) iface: *mut Iface,
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
    /// Opens an interface; `None` without libucs.
    pub(crate) fn over(transport: &'static CStr, device: &'static CStr) -> Option<Self> {
        Self::open(&iface_params(transport, device))
    }

    /// As [`Self::over`], for a program that names the features that it needs, as libucp does.
    fn with_features(transport: &'static CStr, device: &'static CStr) -> Option<Self> {
        let mut params = iface_params(transport, device);
        params.field_mask |= IfaceParams::FEATURES;
        params.features = u64::MAX;
        Self::open(&params)
    }

    fn open(params: &IfaceParams) -> Option<Self> {
        if crate::ucs::functions().is_none() {
            println!("skipped: libucs.so.0 is not installed (Debian: libucx0)");
            return None;
        }
        unsafe {
            let component = component_of(CStr::from_ptr(params.tl_name));
            let (mut md, mut worker, mut iface) = (null_mut(), null_mut(), null_mut());
            assert_eq!(md::uct_md_open(component, params.dev_name, null(), &raw mut md), OK);
            assert_eq!(worker::uct_worker_create(null_mut(), 0, &raw mut worker), OK);
            let opened = iface::uct_iface_open(md, worker, params, null(), &raw mut iface);
            assert_eq!(opened, OK);
            // Both directions.
            let enable = (*iface.cast::<IfaceOps>()).iface_progress_enable;
            enable(iface, 3);
            Some(Self { component, md, worker, iface })
        }
    }

    fn of_self() -> Option<Self> {
        Self::over(c"self", c"memory")
    }

    /// Creates an endpoint, connected to the interface of a rig if there is one.
    pub(crate) fn endpoint(&self, peer: Option<&Self>) -> *mut Ep {
        let (mut device, mut address) = ([0_u8; 64], [0_u8; 64]);
        let mut ep = null_mut();
        unsafe {
            let mut params = EpParams {
                field_mask: EpParams::IFACE,
                iface: self.iface,
                user_data: null_mut(),
                dev_addr: device.as_ptr().cast(),
                iface_addr: address.as_ptr().cast(),
                ..MaybeUninit::zeroed().assume_init()
            };
            if let Some(peer) = peer {
                let (to_device, to) = (device.as_mut_ptr().cast(), address.as_mut_ptr().cast());
                assert_eq!(dispatch::uct_iface_get_device_address(peer.iface, to_device), OK);
                assert_eq!(dispatch::uct_iface_get_address(peer.iface, to), OK);
                params.field_mask |= EpParams::DEV_ADDR | EpParams::IFACE_ADDR;
            }
            assert_eq!(dispatch::uct_ep_create(&raw const params, &raw mut ep), OK);
        }
        ep
    }

    fn ops(&self) -> IfaceOps {
        unsafe { *self.iface.cast::<IfaceOps>() }
    }

    /// Calls the callbacks of the worker as the inline function of UCX does.
    fn progress(&self) {
        #[repr(C)]
        struct Element {
            callback: Option<crate::callbacks::Callback>,
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

/// Calls a function of libucs by its name.
fn of_libucs<F: Copy>(name: &CStr) -> F {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    // SAFETY: libucs is loaded (`Rig`), and `F` is the type of the function
    // (ucs/async/async_fwd.h).
    unsafe {
        let library = libc::dlopen(c"libucs.so.0".as_ptr(), libc::RTLD_NOW);
        let found = libc::dlsym(library, name.as_ptr());
        assert!(!found.is_null());
        std::mem::transmute_copy(&found)
    }
}

/// An async context.
pub(crate) struct Context(pub(crate) *mut c_void);

impl Context {
    /// libucs polls it.
    pub(crate) fn polled() -> Self {
        Self::of_mode(3)
    }

    /// A thread of libucs calls its handlers.
    pub(crate) fn threaded() -> Self {
        Self::of_mode(2)
    }

    fn of_mode(mode: c_uint) -> Self {
        type Create = unsafe extern "C" fn(c_uint, *mut *mut c_void) -> i8;
        let mut context = null_mut();
        // SAFETY: a valid mode, and a pointer that is valid for writes.
        let created =
            unsafe { of_libucs::<Create>(c"ucs_async_context_create")(mode, &raw mut context) };
        assert_eq!(created, OK);
        Self(context)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        type Destroy = unsafe extern "C" fn(*mut c_void);
        // SAFETY: the context was created, and is not used any more.
        unsafe { of_libucs::<Destroy>(c"ucs_async_context_destroy")(self.0) };
    }
}

/// Connects an endpoint to one of a rig.
fn connect(ep: *mut Ep, peer: &Rig, end: *mut Ep) {
    let (mut device, mut address) = ([0_u8; 64], [0_u8; 64]);
    let (to_device, to) = (device.as_mut_ptr().cast(), address.as_mut_ptr().cast());
    unsafe {
        assert_eq!(dispatch::uct_iface_get_device_address(peer.iface, to_device), OK);
        assert_eq!(dispatch::uct_ep_get_address(end, to), OK);
        assert_eq!(dispatch::uct_ep_connect_to_ep(ep, to_device.cast(), to.cast()), OK);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        unsafe {
            dispatch::uct_iface_close(self.iface);
            worker::uct_worker_destroy(self.worker);
            md::uct_md_close(self.md);
        }
    }
}

fn iface_params(transport: &'static CStr, device: &'static CStr) -> IfaceParams {
    let mut params: IfaceParams = unsafe { MaybeUninit::zeroed().assume_init() };
    params.field_mask = IfaceParams::OPEN_MODE | IfaceParams::DEVICE;
    params.open_mode = IfaceParams::MODE_DEVICE;
    params.tl_name = transport.as_ptr();
    params.dev_name = device.as_ptr();
    params.field_mask |= IfaceParams::RX_HEADROOM;
    params.rx_headroom = HEADROOM;
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
