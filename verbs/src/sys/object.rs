//! Objects of verbs.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys::{
    ibv_ah, ibv_ah_attr, ibv_alloc_pd, ibv_cq, ibv_create_ah, ibv_create_cq, ibv_create_qp, ibv_create_srq,
    ibv_dealloc_pd, ibv_dereg_mr, ibv_destroy_ah, ibv_destroy_cq, ibv_destroy_qp, ibv_destroy_srq, ibv_ece,
    ibv_modify_qp, ibv_modify_srq, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_query_ece, ibv_query_qp, ibv_reg_dmabuf_mr,
    ibv_reg_mr_iova2, ibv_set_ece, ibv_srq, ibv_srq_attr, ibv_srq_attr_mask, ibv_srq_init_attr,
};

use super::event::Channel;
use super::handle::Handle;
use super::thread::{Td, ThreadedPd};
use super::{OpenContext, Plain, status};

/// A protection domain.
pub(crate) type Pd = Handle<ibv_pd, Arc<OpenContext>>;
/// A memory region.
pub(crate) type Mr = Handle<ibv_mr, Arc<Pd>>;
/// A completion queue.
pub(crate) type Cq = Handle<ibv_cq, CqParents>;
/// A shared receive queue.
pub(crate) type Srq = Handle<ibv_srq, Arc<Pd>>;
/// An address handle.
pub(crate) type Ah = Handle<ibv_ah, Arc<Pd>>;
/// A queue pair.
pub(crate) type Qp = Handle<ibv_qp, QpParents>;

/// What a completion queue is made from.
pub(crate) struct CqParents {
    pub(super) context: Arc<OpenContext>,
    /// Where its events go.
    #[expect(dead_code, reason = "keeps it alive")]
    pub(super) channel: Option<Arc<Channel>>,
}

/// What a queue pair is made from.
pub(crate) struct QpParents {
    pub(super) domain: Arc<Pd>,
    /// The same, bound to a thread.
    #[expect(dead_code, reason = "keeps it alive")]
    pub(super) thread: Option<ThreadedPd>,
    #[expect(dead_code, reason = "keeps them alive")]
    pub(super) queues: QpQueues,
}

/// The queues that a queue pair uses.
#[derive(Clone)]
pub(crate) struct QpQueues {
    pub(crate) send: Arc<Cq>,
    pub(crate) receive: Arc<Cq>,
    /// Where its receive requests come from, if not from its own queue.
    pub(crate) shared: Option<Arc<Srq>>,
}

impl QpQueues {
    pub(super) fn shared(&self) -> *mut ibv_srq {
        self.shared.as_ref().map_or(ptr::null_mut(), |shared| shared.raw())
    }
}

// SAFETY: integers only.
unsafe impl Plain for ibv_ah_attr {}
// SAFETY: integers only.
unsafe impl Plain for ibv_qp_attr {}
// SAFETY: integers and pointers.
unsafe impl Plain for ibv_qp_init_attr {}
// SAFETY: integers and pointers.
unsafe impl Plain for ibv_qp_init_attr_ex {}

impl Pd {
    pub(crate) fn allocate(context: &Arc<OpenContext>) -> io::Result<Self> {
        // SAFETY: the context is open, and the handle keeps it so.
        unsafe { Self::take(ibv_alloc_pd(context.raw()), ibv_dealloc_pd, Arc::clone(context)) }
    }

    pub(crate) fn context(&self) -> &Arc<OpenContext> {
        self.parents()
    }
}

impl Mr {
    /// Registers memory that the device is to see at `iova`.
    ///
    /// The function is one that drops optional rights which the kernel does not know; `ibv_reg_mr` fails on them.
    ///
    /// # Safety
    /// Until the region is gone, the memory stays mapped and is accessed only in ways that tolerate a device which reads and, where
    /// `access` says so, writes it at the same time. If deregistration fails it is not gone.
    pub(crate) unsafe fn register(
        domain: &Arc<Pd>,
        start: NonNull<u8>,
        length: usize,
        iova: u64,
        access: u32,
    ) -> io::Result<Self> {
        // SAFETY: the domain is alive, and the handle keeps it so. The memory is the caller's promise.
        unsafe {
            let region = ibv_reg_mr_iova2(domain.raw(), start.as_ptr().cast(), length, iova, access);
            Self::take(region, ibv_dereg_mr, Arc::clone(domain))
        }
    }

    /// Registers memory of another device, by its descriptor.
    ///
    /// # Safety
    /// As for [`Self::register`], for whatever maps the same memory.
    pub(crate) unsafe fn register_dmabuf(
        domain: &Arc<Pd>,
        buffer: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: u32,
    ) -> io::Result<Self> {
        // SAFETY: the domain is alive, and the handle keeps it so; the kernel holds the buffer. The memory is the caller's promise.
        unsafe {
            let (buffer, access) = (buffer.as_raw_fd(), access as c_int);
            let region = ibv_reg_dmabuf_mr(domain.raw(), offset, length, iova, buffer, access);
            Self::take(region, ibv_dereg_mr, Arc::clone(domain))
        }
    }

    /// Deregisters now. After an error it is still registered.
    pub(crate) fn deregister(&mut self) -> io::Result<()> {
        self.destroy()
    }

    /// Local and remote key.
    pub(crate) fn keys(&self) -> (u32, u32) {
        // SAFETY: alive; the library does not write to it.
        let region = unsafe { &*self.raw() };
        (region.lkey, region.rkey)
    }
}

impl Cq {
    /// A queue of at least `entries`, whose events go to `channel` by completion vector `vector`.
    pub(crate) fn create(
        context: &Arc<OpenContext>,
        entries: u32,
        channel: Option<Arc<Channel>>,
        vector: u32,
    ) -> io::Result<Self> {
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        let vector = c_int::try_from(vector).unwrap_or(c_int::MAX);
        let events = channel.as_ref().map_or(ptr::null_mut(), |channel| channel.raw());
        // SAFETY: context and channel are alive, and the handle keeps them so; no user pointer.
        unsafe {
            let queue = ibv_create_cq(context.raw(), entries, ptr::null_mut(), events, vector);
            Self::take(queue, ibv_destroy_cq, CqParents { context: Arc::clone(context), channel })
        }
    }

    pub(crate) fn context(&self) -> &Arc<OpenContext> {
        &self.parents().context
    }

    /// The number of entries.
    pub(crate) fn entries(&self) -> u32 {
        // SAFETY: alive; only resizing writes the field, which this crate does not do.
        let entries = unsafe { (*self.raw()).cqe };
        u32::try_from(entries).unwrap_or(0)
    }
}

impl Ah {
    pub(crate) fn create(domain: &Arc<Pd>, mut attributes: ibv_ah_attr) -> io::Result<Self> {
        // SAFETY: the domain is alive, and the handle keeps it so; the attributes are valid for the call.
        unsafe {
            let handle = ibv_create_ah(domain.raw(), &raw mut attributes);
            Self::take(handle, ibv_destroy_ah, Arc::clone(domain))
        }
    }
}

impl Srq {
    /// A queue of at least `requests` of `elements` each. On return they say what was granted.
    pub(crate) fn create(domain: &Arc<Pd>, requests: &mut u32, elements: &mut u32) -> io::Result<Self> {
        let attr = ibv_srq_attr { max_wr: *requests, max_sge: *elements, srq_limit: 0 };
        let mut attributes = ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        // SAFETY: the domain is alive, and the handle keeps it so; the attributes are valid for the call.
        let queue = unsafe {
            let queue = ibv_create_srq(domain.raw(), &raw mut attributes);
            Self::take(queue, ibv_destroy_srq, Arc::clone(domain))
        }?;
        (*requests, *elements) = (attributes.attr.max_wr, attributes.attr.max_sge);
        Ok(queue)
    }

    /// Asks for an event when fewer than `limit` requests are left.
    pub(crate) fn limit(&self, limit: u32) -> io::Result<()> {
        let mut attributes = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        let mask = ibv_srq_attr_mask::IBV_SRQ_LIMIT.0;
        // SAFETY: alive; the attributes are valid for the call.
        status(unsafe { ibv_modify_srq(self.raw(), &raw mut attributes, mask as c_int) })
    }
}

impl Qp {
    /// A queue pair of plain verbs. On return the attributes say what was granted.
    pub(crate) fn create(
        domain: &Arc<Pd>,
        queues: QpQueues,
        attributes: &mut ibv_qp_init_attr,
    ) -> io::Result<Self> {
        attributes.send_cq = queues.send.raw();
        attributes.recv_cq = queues.receive.raw();
        attributes.srq = queues.shared();
        attributes.qp_context = ptr::null_mut();
        // SAFETY: domain and queues are alive, and the handle keeps them so; the attributes are valid for the call.
        unsafe {
            let qp = ibv_create_qp(domain.raw(), attributes);
            Self::take(qp, ibv_destroy_qp, QpParents { domain: Arc::clone(domain), thread: None, queues })
        }
    }

    /// A queue pair whose requests are built by functions (`ibv_wr_*`); `operations` are those that are wanted.
    /// With `thread` it is used by one thread at a time.
    pub(crate) fn create_extended(
        domain: &Arc<Pd>,
        thread: Option<&Arc<Td>>,
        queues: QpQueues,
        attributes: &mut ibv_qp_init_attr,
        operations: u32,
    ) -> io::Result<Self> {
        let thread = thread.map(|thread| ThreadedPd::allocate(domain, thread)).transpose()?;
        let mut extended = Self::extend(domain, &queues, attributes);
        if let Some(thread) = &thread {
            extended.pd = thread.raw();
        }
        extended.comp_mask |= ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
        extended.send_ops_flags = u64::from(operations);
        // SAFETY: as in `create`.
        let qp = unsafe {
            let qp = domain.context().create_qp_ex(&mut extended)?;
            Self::take(qp, ibv_destroy_qp, QpParents { domain: Arc::clone(domain), thread, queues })
        }?;
        attributes.cap = extended.cap;
        Ok(qp)
    }

    /// The same attributes in the extended form.
    pub(super) fn extend(
        domain: &Pd,
        queues: &QpQueues,
        attributes: &ibv_qp_init_attr,
    ) -> ibv_qp_init_attr_ex {
        ibv_qp_init_attr_ex {
            send_cq: queues.send.raw(),
            recv_cq: queues.receive.raw(),
            srq: queues.shared(),
            cap: attributes.cap,
            qp_type: attributes.qp_type,
            sq_sig_all: attributes.sq_sig_all,
            comp_mask: ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0,
            pd: domain.raw(),
            ..ibv_qp_init_attr_ex::zeroed()
        }
    }

    pub(crate) fn context(&self) -> &Arc<OpenContext> {
        self.parents().domain.context()
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: alive; nobody writes the number.
        unsafe { (*self.raw()).qp_num }
    }

    /// Changes what `mask` names.
    pub(crate) fn modify(&self, attributes: &mut ibv_qp_attr, mask: u32) -> io::Result<()> {
        // SAFETY: alive; the attributes are valid for the call.
        status(unsafe { ibv_modify_qp(self.raw(), attributes, mask as c_int) })
    }

    /// Asks for what `mask` names.
    pub(crate) fn query(&self, mask: u32) -> io::Result<ibv_qp_attr> {
        let (mut attributes, mut created) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
        // SAFETY: alive; both structures are valid to write to.
        status(unsafe { ibv_query_qp(self.raw(), &raw mut attributes, mask as c_int, &raw mut created) })?;
        Ok(attributes)
    }

    /// The enhancements that the device can agree on with a peer's. verbs.h: `ibv_query_ece`.
    pub(crate) fn query_ece(&self) -> io::Result<ibv_ece> {
        let mut enhancements = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
        // SAFETY: alive; there is room for the answer.
        status(unsafe { ibv_query_ece(self.raw(), &raw mut enhancements) })?;
        Ok(enhancements)
    }

    /// Sets what both agreed on. verbs.h: `ibv_set_ece`.
    pub(crate) fn set_ece(&self, mut enhancements: ibv_ece) -> io::Result<()> {
        // SAFETY: alive; the argument is valid for the call.
        status(unsafe { ibv_set_ece(self.raw(), &raw mut enhancements) })
    }
}
