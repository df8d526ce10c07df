//! Completion channels and asynchronous events.

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys::{
    ibv_ack_async_event, ibv_ack_cq_events, ibv_async_event, ibv_comp_channel, ibv_cq,
    ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_async_event, ibv_get_cq_event, ibv_qp,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::handle::Handle;
use super::{Cq, OpenContext, Srq};

/// A completion channel.
pub(crate) type Channel = Handle<ibv_comp_channel, Arc<OpenContext>>;

pub(super) fn nonblocking(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    fcntl_setfl(descriptor, fcntl_getfl(descriptor)? | OFlags::NONBLOCK)?;
    Ok(())
}

/// No event is there; that is no error.
pub(super) fn none_yet<T>(error: io::Error) -> io::Result<Option<T>> {
    if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) }
}

impl Channel {
    pub(crate) fn create(context: &Arc<OpenContext>) -> io::Result<Self> {
        // SAFETY: the context is open, and the handle keeps it so.
        let channel = unsafe {
            let channel = ibv_create_comp_channel(context.raw());
            Self::take(channel, ibv_destroy_comp_channel, Arc::clone(context))
        }?;
        nonblocking(channel.descriptor())?;
        Ok(channel)
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the channel's, which is alive.
        unsafe { BorrowedFd::borrow_raw((*self.raw()).fd) }
    }

    /// The next event, if there is one.
    pub(crate) fn next(&self) -> io::Result<Option<CqEvent>> {
        let (mut queue, mut user) = (ptr::null_mut::<ibv_cq>(), ptr::null_mut::<c_void>());
        // SAFETY: the channel is alive; both are valid to write to.
        match unsafe { ibv_get_cq_event(self.raw(), &raw mut queue, &raw mut user) } {
            0 => Ok(NonNull::new(queue).map(CqEvent)),
            _ => none_yet(io::Error::last_os_error()),
        }
    }
}

/// An event of a completion queue, acknowledged when dropped. Until then the queue is not destroyed.
pub(crate) struct CqEvent(NonNull<ibv_cq>);

// SAFETY: the library counts acknowledgements under a lock; any thread may give one.
unsafe impl Send for CqEvent {}
// SAFETY: as above.
unsafe impl Sync for CqEvent {}

impl CqEvent {
    /// What [`Cq::identity`] of the queue is.
    pub(crate) fn identity(&self) -> usize {
        self.0.addr().get()
    }
}

impl Drop for CqEvent {
    fn drop(&mut self) {
        // SAFETY: the queue is alive: its destruction waits for this.
        unsafe { ibv_ack_cq_events(self.0.as_ptr(), 1) };
    }
}

impl Cq {
    /// A number that no other queue of the process has while this one is there.
    pub(crate) fn identity(&self) -> usize {
        self.raw().addr()
    }
}

impl Srq {
    /// The same for shared receive queues.
    pub(crate) fn identity(&self) -> usize {
        self.raw().addr()
    }
}

/// verbs.h: `struct ibv_async_event`. rdma-sys has the kind as a Rust enum, in which a number of a newer library would not be valid.
#[repr(C)]
struct RawEvent {
    element: *mut c_void,
    kind: u32,
}

const _: () = assert!(
    size_of::<RawEvent>() == size_of::<ibv_async_event>()
        && align_of::<RawEvent>() == align_of::<ibv_async_event>()
        && std::mem::offset_of!(RawEvent, kind) == std::mem::offset_of!(ibv_async_event, event_type)
);

/// An asynchronous event, acknowledged when dropped. Until then what it is about is not destroyed.
pub(crate) struct AsyncEvent(RawEvent);

// SAFETY: the library counts acknowledgements under a lock; any thread may give one.
unsafe impl Send for AsyncEvent {}
// SAFETY: as above.
unsafe impl Sync for AsyncEvent {}

impl AsyncEvent {
    /// `enum ibv_event_type`.
    pub(crate) fn kind(&self) -> u32 {
        self.0.kind
    }

    /// The port, of a kind that is about one.
    pub(crate) fn port(&self) -> u32 {
        // The union's `int`, at its start.
        let [a, b, c, d, ..] = self.identity().to_ne_bytes();
        u32::from_ne_bytes([a, b, c, d])
    }

    /// What it is about, of a kind that is about a queue: [`Cq::identity`] or [`Srq::identity`].
    pub(crate) fn identity(&self) -> usize {
        self.0.element.addr()
    }

    /// The number of the queue pair.
    ///
    /// # Safety
    /// The kind is one about a queue pair.
    pub(crate) unsafe fn queue_pair(&self) -> u32 {
        // SAFETY: the caller's promise; the queue pair's destruction waits for the acknowledgement.
        unsafe { (*self.0.element.cast::<ibv_qp>()).qp_num }
    }
}

impl Drop for AsyncEvent {
    fn drop(&mut self) {
        // SAFETY: as the library gave it (the layouts are the same), and once.
        unsafe { ibv_ack_async_event((&raw mut self.0).cast()) };
    }
}

impl OpenContext {
    /// The descriptor that is readable when there are asynchronous events. From now on reading does not wait.
    pub(crate) fn async_descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        // SAFETY: the descriptor is the context's, which is open.
        let descriptor = unsafe { BorrowedFd::borrow_raw((*self.raw()).async_fd) };
        nonblocking(descriptor)?;
        Ok(descriptor)
    }

    /// The next asynchronous event, if there is one.
    pub(crate) fn next_event(&self) -> io::Result<Option<AsyncEvent>> {
        let mut event = RawEvent { element: ptr::null_mut(), kind: 0 };
        // SAFETY: the context is open; there is room for the event (the layouts are the same).
        match unsafe { ibv_get_async_event(self.raw(), (&raw mut event).cast()) } {
            0 => Ok(Some(AsyncEvent(event))),
            _ => none_yet(io::Error::last_os_error()),
        }
    }
}
