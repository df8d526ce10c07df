//! The only door to libibverbs and libmlx5: owned handles over their pointers.
#![allow(unsafe_code, reason = "calls into C libraries; every block says why it is right")]

mod devx_event;
mod dv;
mod event;
mod extended;
mod gid;
mod handle;
mod object;
mod post;
mod thread;

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::slice;

use barewire_mlx5dv_sys::{Library, MLX5DV_CONTEXT_FLAGS_DEVX, mlx5dv_context_attr};

use rdma_sys::{
    ibv_close_device, ibv_context, ibv_device, ibv_device_attr, ibv_fork_init, ibv_fork_status,
    ibv_free_device_list, ibv_get_device_guid, ibv_get_device_list, ibv_get_device_name,
    ibv_is_fork_initialized, ibv_open_device, ibv_query_device,
};

pub(crate) use devx_event::DevxChannel;
pub(crate) use dv::{Devx, DevxObject, DevxUar, DevxUmem, InitObj};
pub(crate) use event::{AsyncEvent, Channel, CqEvent};
pub(crate) use gid::bytes as gid_bytes;
pub(crate) use object::{Ah, Cq, Mr, Pd, Qp, QpQueues, Srq};
pub(crate) use post::{Element, Extended, PIECES, Payload, Post, Verb};
pub(crate) use thread::Td;

/// A structure of plain numbers and pointers, for which all bits zero is a valid value.
///
/// # Safety
/// All bits zero is a valid value.
pub(crate) unsafe trait Plain: Sized {
    /// All bits zero.
    fn zeroed() -> Self {
        // SAFETY: the trait's promise.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }
}

// SAFETY: integers only.
unsafe impl Plain for ibv_device_attr {}

/// Makes registered memory safe to be in a process that forks. verbs.h: `ibv_fork_init`.
pub(crate) fn fork_init() -> io::Result<()> {
    // SAFETY: takes nothing.
    status(unsafe { ibv_fork_init() })
}

/// verbs.h: `ibv_is_fork_initialized`.
pub(crate) fn fork_status() -> ibv_fork_status {
    // SAFETY: takes nothing.
    unsafe { ibv_is_fork_initialized() }
}

/// The devices that libibverbs lists, kept alive until dropped.
pub(crate) struct DeviceList {
    first: NonNull<*mut ibv_device>,
    count: usize,
}

impl DeviceList {
    /// `ErrorKind::Unsupported` (ENOSYS) where the kernel has no ib_uverbs.
    pub(crate) fn get() -> io::Result<Self> {
        let mut count = 0;
        // SAFETY: `count` is a valid place for the number of devices.
        let list = unsafe { ibv_get_device_list(&raw mut count) };
        let first = NonNull::new(list).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { first, count: usize::try_from(count).unwrap_or(0) })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = ListedDevice<'_>> {
        // SAFETY: libibverbs returned an array of `count` device pointers (and a null after them), which
        // lives until ibv_free_device_list in `drop`; nobody writes to it.
        let devices = unsafe { slice::from_raw_parts(self.first.as_ptr(), self.count) };
        devices.iter().filter_map(|&device| Some(ListedDevice { device: NonNull::new(device)?, list: self }))
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from ibv_get_device_list and is freed once. Devices that were opened hold a
        // reference of their own, and no `ListedDevice` outlives the list.
        unsafe { ibv_free_device_list(self.first.as_ptr()) };
    }
}

/// One device of a list.
pub(crate) struct ListedDevice<'a> {
    device: NonNull<ibv_device>,
    #[expect(dead_code, reason = "keeps the list borrowed, and so the device alive")]
    list: &'a DeviceList,
}

impl ListedDevice<'_> {
    pub(crate) fn name(&self) -> String {
        // SAFETY: the device is alive as long as its list; the name is a NUL-terminated array inside of it.
        let name = unsafe { ibv_get_device_name(self.device.as_ptr()) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: not null, NUL-terminated, and alive as above.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// The node GUID in host order.
    pub(crate) fn guid(&self) -> u64 {
        // SAFETY: the device is alive as long as its list.
        u64::from_be(unsafe { ibv_get_device_guid(self.device.as_ptr()) })
    }

    pub(crate) fn open(&self) -> io::Result<OpenContext> {
        // SAFETY: the device is alive as long as its list; an opened context keeps it alive on its own.
        self.opened(unsafe { ibv_open_device(self.device.as_ptr()) }, None)
    }

    /// Whether libmlx5 drives it.
    pub(crate) fn is_mlx5(&self, library: &Library) -> bool {
        // SAFETY: the device is alive as long as its list.
        unsafe { library.functions.mlx5dv_is_supported(self.device.as_ptr()) }
    }

    /// Opens it with the right to DEVX commands, or not at all. The device must be one of libmlx5.
    pub(crate) fn open_devx(&self, library: &'static Library) -> io::Result<OpenContext> {
        let mut attributes = mlx5dv_context_attr { flags: MLX5DV_CONTEXT_FLAGS_DEVX, comp_mask: 0 };
        // SAFETY: as in `open`; the attributes are valid for the call.
        let context =
            unsafe { library.functions.mlx5dv_open_device(self.device.as_ptr(), &raw mut attributes) };
        self.opened(context, Some(library))
    }

    fn opened(&self, context: *mut ibv_context, devx: Option<&'static Library>) -> io::Result<OpenContext> {
        let context = NonNull::new(context).ok_or_else(io::Error::last_os_error)?;
        let mut open = OpenContext { context, name: self.name(), ports: 0, vendor: 0, devx };
        let attributes = open.device_attributes()?;
        (open.ports, open.vendor) = (attributes.phys_port_cnt, attributes.vendor_id);
        Ok(open)
    }
}

/// An open device, closed when dropped.
pub(crate) struct OpenContext {
    context: NonNull<ibv_context>,
    name: String,
    ports: u8,
    vendor: u32,
    devx: Option<&'static Library>,
}

// SAFETY: libibverbs is thread-safe: any thread may use a context and any may close it, once.
unsafe impl Send for OpenContext {}
// SAFETY: as above; the queries below take the context by shared reference and lock inside the library.
unsafe impl Sync for OpenContext {}

impl OpenContext {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The number of physical ports.
    pub(crate) fn ports(&self) -> u8 {
        self.ports
    }

    /// The kernel's own device, which sends RoCE from a network interface (linux rxe_param.h: `RXE_VENDOR_ID`).
    pub(crate) fn is_soft_roce(&self) -> bool {
        self.vendor == 0xff_ffff
    }

    /// libmlx5, if the context was opened for DEVX.
    pub(crate) fn devx(&self) -> Option<&'static Library> {
        self.devx
    }

    fn raw(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    /// What the device can do. verbs.h: `ibv_query_device`.
    pub(crate) fn device_attributes(&self) -> io::Result<ibv_device_attr> {
        let mut attributes = ibv_device_attr::zeroed();
        // SAFETY: the context is open and the attributes are a valid place to write to.
        status(unsafe { ibv_query_device(self.raw(), &raw mut attributes) })?;
        Ok(attributes)
    }
}

impl Drop for OpenContext {
    fn drop(&mut self) {
        // SAFETY: opened by ibv_open_device and closed once. Its failure leaves nothing that we could do.
        unsafe { ibv_close_device(self.raw()) };
    }
}

/// libibverbs answers 0, an errno value, or -1 with errno set.
fn status(answer: i32) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        1.. => Err(io::Error::from_raw_os_error(answer)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_errors() {
        assert!(status(0).is_ok());
        assert_eq!(status(22).unwrap_err().raw_os_error(), Some(22));
        assert!(status(-1).is_err());
    }
}
