//! Memory of queues.

use core::mem::ManuallyDrop;
use core::ptr::NonNull;

use super::{CommandChannel, Umem};
use crate::error::Error;
use crate::pages::Pages;

/// Pages of a queue. The device accesses them by UMEM, not by mkey.
#[derive(Debug)]
pub(crate) struct QueueMemory {
    pages: ManuallyDrop<Pages>,
    umem: Box<dyn Umem>,
}

impl QueueMemory {
    pub(crate) fn allocate(
        channel: &dyn CommandChannel,
        bytes: usize,
        what: &'static str,
    ) -> Result<Self, Error> {
        let pages = Pages::allocate(bytes, what)?;
        // SAFETY: the pages live until `drop` below has deregistered them. Only queues have their
        // address, and access them in ways that tolerate a device.
        let umem = unsafe { channel.register_umem(pages.start(), pages.bytes()) }?;
        Ok(Self { pages: ManuallyDrop::new(pages), umem })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.pages.start()
    }

    pub(crate) fn umem_id(&self) -> u32 {
        self.umem.id()
    }
}

impl Drop for QueueMemory {
    fn drop(&mut self) {
        // Memory that the device does not release is leaked, since the device could still write to
        // it.
        if self.umem.deregister().is_ok() {
            // SAFETY: this is the only place that drops the pages, and `drop` runs once.
            unsafe { ManuallyDrop::drop(&mut self.pages) };
        }
    }
}
