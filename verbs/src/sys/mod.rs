//! The only module that calls libibverbs and libmlx5: owned handles over their pointers.
#![allow(unsafe_code, reason = "calls into C libraries; each block has its own proof")]

mod device_memory;
mod devx_event;
mod dv;
mod event;
mod extended;
mod gid;
mod handle;
mod object;
mod post;
#[cfg(feature = "rdma-cm")]
mod rdma_cm;
mod thread;

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::slice;
use std::sync::OnceLock;

use barewire_mlx5dv_sys::{Library, MLX5DV_CONTEXT_FLAGS_DEVX, mlx5dv_context_attr};

use rdma_sys::{
    ibv_close_device, ibv_context, ibv_device, ibv_device_attr, ibv_fork_init, ibv_fork_status,
    ibv_free_device_list, ibv_get_device_guid, ibv_get_device_list, ibv_get_device_name,
    ibv_is_fork_initialized, ibv_open_device, ibv_query_device,
};

pub(crate) use device_memory::Dm;
pub(crate) use devx_event::DevxChannel;
pub(crate) use dv::{Devx, DevxObject, DevxUar, DevxUmem, InitObj};
pub(crate) use event::{AsyncEvent, Channel, CqEvent};
pub(crate) use gid::bytes as gid_bytes;
pub(crate) use object::{Ah, Cq, Mr, Mw, Pd, Qp, QpQueues, Srq};
pub(crate) use post::{Element, Extended, PIECES, Payload, Post, Verb};
#[cfg(feature = "rdma-cm")]
pub(crate) use rdma_cm::{CmEvent, CmId, ConnectionValues, SocketBytes};
pub(crate) use thread::Td;

/// Structures of integers and pointers, for which zero bytes are a valid value.
///
/// # Safety
/// Zero bytes must be a valid value of the type.
pub(crate) unsafe trait Plain: Sized {
    /// Returns a value of zero bytes.
    fn zeroed() -> Self {
        // SAFETY: implementations of `Plain` guarantee that zero bytes are a valid value.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }
}

// SAFETY: all fields are integers, for which zero is valid.
unsafe impl Plain for ibv_device_attr {}

/// Makes forking safe with registered memory. verbs.h: `ibv_fork_init`.
pub(crate) fn fork_init() -> io::Result<()> {
    // SAFETY: the function takes no arguments and may be called at any time.
    status(unsafe { ibv_fork_init() })
}

/// verbs.h: `ibv_is_fork_initialized`.
pub(crate) fn fork_status() -> ibv_fork_status {
    // SAFETY: the function takes no arguments and may be called at any time.
    unsafe { ibv_is_fork_initialized() }
}

/// The list of devices of libibverbs. The devices exist as long as the list.
pub(crate) struct DeviceList {
    first: NonNull<*mut ibv_device>,
    count: usize,
}

impl DeviceList {
    /// `ErrorKind::Unsupported` (ENOSYS) if the kernel has no ib_uverbs.
    pub(crate) fn get() -> io::Result<Self> {
        let mut count = 0;
        // SAFETY: `count` is a valid destination for the number of devices.
        let list = unsafe { ibv_get_device_list(&raw mut count) };
        let first = NonNull::new(list).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { first, count: usize::try_from(count).unwrap_or(0) })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = ListedDevice<'_>> {
        // SAFETY: libibverbs returned an array of `count` device pointers, which it does not modify
        // and which exists until `drop` calls ibv_free_device_list.
        let devices = unsafe { slice::from_raw_parts(self.first.as_ptr(), self.count) };
        devices
            .iter()
            .filter_map(|&device| Some(ListedDevice { device: NonNull::new(device)?, list: self }))
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list was returned by ibv_get_device_list, and `drop` is the only place that
        // frees it. Open contexts hold their own references to devices, and no `ListedDevice`
        // outlives the list.
        unsafe { ibv_free_device_list(self.first.as_ptr()) };
    }
}

/// A device in a list.
pub(crate) struct ListedDevice<'a> {
    device: NonNull<ibv_device>,
    #[expect(dead_code, reason = "borrows the list, which keeps the device alive")]
    list: &'a DeviceList,
}

impl ListedDevice<'_> {
    pub(crate) fn name(&self) -> String {
        // SAFETY: the device exists as long as its list, which is borrowed, and the name is a
        // NUL-terminated array inside it.
        let name = unsafe { ibv_get_device_name(self.device.as_ptr()) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: the pointer was checked not to be null, and refers to a NUL-terminated string in
        // the device, which exists as long as its list.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// The node GUID in host byte order.
    pub(crate) fn guid(&self) -> u64 {
        // SAFETY: the device exists as long as its list, which is borrowed.
        u64::from_be(unsafe { ibv_get_device_guid(self.device.as_ptr()) })
    }

    pub(crate) fn open(&self) -> io::Result<OpenContext> {
        // SAFETY: the device exists as long as its list, which is borrowed. An open context holds
        // its own reference to the device.
        self.opened(unsafe { ibv_open_device(self.device.as_ptr()) }, None)
    }

    /// Returns true if the device's driver is libmlx5.
    pub(crate) fn is_mlx5(&self, library: &Library) -> bool {
        // SAFETY: the device exists as long as its list, which is borrowed.
        unsafe { library.functions.mlx5dv_is_supported(self.device.as_ptr()) }
    }

    /// Opens the device for DEVX commands, or fails. The device's driver must be libmlx5.
    pub(crate) fn open_devx(&self, library: &'static Library) -> io::Result<OpenContext> {
        let mut attributes = mlx5dv_context_attr { flags: MLX5DV_CONTEXT_FLAGS_DEVX, comp_mask: 0 };
        // SAFETY: the device exists as long as its list, which is borrowed, and the attributes are
        // valid during the call. An open context holds its own reference to the device.
        let context = unsafe {
            library.functions.mlx5dv_open_device(self.device.as_ptr(), &raw mut attributes)
        };
        self.opened(context, Some(library))
    }

    fn opened(
        &self,
        context: *mut ibv_context,
        devx: Option<&'static Library>,
    ) -> io::Result<OpenContext> {
        let context = NonNull::new(context).ok_or_else(io::Error::last_os_error)?;
        let (name, relaxed) = (self.name(), OnceLock::new());
        let mut open = OpenContext { context, name, ports: 0, vendor: 0, devx, relaxed };
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
    /// Whether every memory key must have relaxed order of writes, once it is known.
    relaxed: OnceLock<bool>,
}

// SAFETY: libibverbs is thread-safe: any thread may use a context, and any thread may close it,
// once, in `drop`.
unsafe impl Send for OpenContext {}
// SAFETY: libibverbs serialises calls with the same context by locks.
unsafe impl Sync for OpenContext {}

impl OpenContext {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn relaxed(&self) -> &OnceLock<bool> {
        &self.relaxed
    }

    /// The number of physical ports.
    pub(crate) fn ports(&self) -> u8 {
        self.ports
    }

    /// The completion vector for queues that the calling thread creates: its interrupts go to the
    /// thread's CPU where the device has a vector for each, as by the kernel's default placement.
    pub(crate) fn completion_vector(&self) -> u32 {
        // SAFETY: the context is open, and libibverbs does not modify this field.
        let vectors = unsafe { (*self.raw()).num_comp_vectors };
        (rustix::thread::sched_getcpu() as u32).checked_rem(vectors.max(0) as u32).unwrap_or(0)
    }

    /// Returns true for the kernel's Soft-RoCE device (linux rxe_param.h: `RXE_VENDOR_ID`).
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

    /// Queries the limits of the device. verbs.h: `ibv_query_device`.
    pub(crate) fn device_attributes(&self) -> io::Result<ibv_device_attr> {
        let mut attributes = ibv_device_attr::zeroed();
        // SAFETY: the context is open, and `attributes` is a valid destination.
        status(unsafe { ibv_query_device(self.raw(), &raw mut attributes) })?;
        Ok(attributes)
    }
}

impl Drop for OpenContext {
    fn drop(&mut self) {
        // SAFETY: ibv_open_device returned the context, and `drop` is the only place that closes
        // it. An error is ignored, as there is no remedy.
        unsafe { ibv_close_device(self.raw()) };
    }
}

/// Converts a return value of libibverbs: 0, an errno value, or -1 with errno set.
fn status(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        1.. => Err(io::Error::from_raw_os_error(result)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn return_values_become_errors() {
        assert!(status(0).is_ok());
        assert_eq!(status(22).unwrap_err().raw_os_error(), Some(22));
        assert!(status(-1).is_err());
    }
}
