//! Completion channels and asynchronous events.

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys::{
    ibv_ack_async_event, ibv_ack_cq_events, ibv_async_event, ibv_comp_channel, ibv_cq,
    ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_async_event, ibv_get_cq_event,
    ibv_qp,
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

/// EAGAIN means that there is no event; that is not an error.
pub(super) fn none_yet<T>(error: io::Error) -> io::Result<Option<T>> {
    if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) }
}

impl Channel {
    pub(crate) fn create(context: &Arc<OpenContext>) -> io::Result<Self> {
        // SAFETY: the context is open, and the handle keeps a reference to it. No other code
        // destroys the new channel.
        let channel = unsafe {
            let channel = ibv_create_comp_channel(context.raw());
            Self::take(channel, ibv_destroy_comp_channel, Arc::clone(context))
        }?;
        nonblocking(channel.descriptor())?;
        Ok(channel)
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the channel, which is open as long as `self` is
        // borrowed.
        unsafe { BorrowedFd::borrow_raw((*self.raw()).fd) }
    }

    /// Returns the next event, or `None` if there is none.
    pub(crate) fn next(&self) -> io::Result<Option<CqEvent>> {
        let (mut queue, mut user) = (ptr::null_mut::<ibv_cq>(), ptr::null_mut::<c_void>());
        // SAFETY: the channel is open, and both pointers are valid destinations for the results.
        match unsafe { ibv_get_cq_event(self.raw(), &raw mut queue, &raw mut user) } {
            0 => Ok(NonNull::new(queue).map(CqEvent)),
            _ => none_yet(io::Error::last_os_error()),
        }
    }
}

/// An event of a completion queue, acknowledged when dropped. The queue cannot be destroyed before.
pub(crate) struct CqEvent(NonNull<ibv_cq>);

// SAFETY: libibverbs counts acknowledgements under a lock, so any thread may acknowledge the event.
unsafe impl Send for CqEvent {}
// SAFETY: methods with `&self` only read the pointer's value.
unsafe impl Sync for CqEvent {}

impl CqEvent {
    /// The [`Cq::identity`] of the queue.
    pub(crate) fn identity(&self) -> usize {
        self.0.addr().get()
    }
}

impl Drop for CqEvent {
    fn drop(&mut self) {
        // SAFETY: the queue is alive: `ibv_destroy_cq` waits until its events are acknowledged, and
        // this is the only acknowledgement of this event.
        unsafe { ibv_ack_cq_events(self.0.as_ptr(), 1) };
    }
}

impl Cq {
    /// A number that is unique among the completion queues of the process while this queue exists.
    pub(crate) fn identity(&self) -> usize {
        self.raw().addr()
    }
}

impl Srq {
    /// A number that is unique among the shared receive queues of the process while this queue
    /// exists.
    pub(crate) fn identity(&self) -> usize {
        self.raw().addr()
    }
}

/// verbs.h: `struct ibv_async_event`. The binding in rdma-sys declares the kind as a Rust enum, for
/// which a value of a newer libibverbs would be undefined behaviour.
#[repr(C)]
struct RawEvent {
    element: *mut c_void,
    kind: u32,
}

const _: () = assert!(
    size_of::<RawEvent>() == size_of::<ibv_async_event>()
        && align_of::<RawEvent>() == align_of::<ibv_async_event>()
        && std::mem::offset_of!(RawEvent, kind)
            == std::mem::offset_of!(ibv_async_event, event_type)
);

/// An asynchronous event, acknowledged when dropped. The object concerned cannot be destroyed
/// before.
pub(crate) struct AsyncEvent(RawEvent);

// SAFETY: libibverbs counts acknowledgements under a lock, so any thread may acknowledge the event.
unsafe impl Send for AsyncEvent {}
// SAFETY: methods with `&self` only read the event, and the object that it points to is alive until
// the acknowledgement.
unsafe impl Sync for AsyncEvent {}

impl AsyncEvent {
    /// The kind: a value of `enum ibv_event_type`.
    pub(crate) fn kind(&self) -> u32 {
        self.0.kind
    }

    /// The port number. Meaningful only for kinds that concern a port.
    pub(crate) fn port(&self) -> u32 {
        // The union member of type `int` is in its first bytes.
        let [a, b, c, d, ..] = self.identity().to_ne_bytes();
        u32::from_ne_bytes([a, b, c, d])
    }

    /// The [`Cq::identity`] or [`Srq::identity`] of the queue. Meaningful only for kinds that
    /// concern one.
    pub(crate) fn identity(&self) -> usize {
        self.0.element.addr()
    }

    /// The number of the queue pair.
    ///
    /// # Safety
    /// The kind must be one that concerns a queue pair.
    pub(crate) unsafe fn queue_pair(&self) -> u32 {
        // SAFETY: by the contract, the union holds a pointer to a queue pair. It is alive:
        // `ibv_destroy_qp` waits until its events are acknowledged, which happens when `self` is
        // dropped.
        unsafe { (*self.0.element.cast::<ibv_qp>()).qp_num }
    }
}

impl Drop for AsyncEvent {
    fn drop(&mut self) {
        // SAFETY: the event has the contents that libibverbs wrote, its layout is that of
        // `ibv_async_event`, and `drop` is the only place that acknowledges it.
        unsafe { ibv_ack_async_event((&raw mut self.0).cast()) };
    }
}

impl OpenContext {
    /// The descriptor that is readable when there are asynchronous events. Makes it non-blocking.
    pub(crate) fn async_descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        // SAFETY: the descriptor belongs to the context, which is open as long as `self` is
        // borrowed.
        let descriptor = unsafe { BorrowedFd::borrow_raw((*self.raw()).async_fd) };
        nonblocking(descriptor)?;
        Ok(descriptor)
    }

    /// Returns the next asynchronous event, or `None` if there is none.
    pub(crate) fn next_event(&self) -> io::Result<Option<AsyncEvent>> {
        let mut event = RawEvent { element: ptr::null_mut(), kind: 0 };
        // SAFETY: the context is open, and `event` has the layout of `ibv_async_event` and room for
        // it.
        match unsafe { ibv_get_async_event(self.raw(), (&raw mut event).cast()) } {
            0 => Ok(Some(AsyncEvent(event))),
            _ => none_yet(io::Error::last_os_error()),
        }
    }
}
