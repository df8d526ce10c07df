//! Objects of verbs.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys::{
    ibv_ah, ibv_ah_attr, ibv_alloc_mw, ibv_alloc_pd, ibv_cq, ibv_create_ah, ibv_create_cq,
    ibv_create_qp, ibv_create_srq, ibv_dealloc_mw, ibv_dealloc_pd, ibv_dereg_mr, ibv_destroy_ah,
    ibv_destroy_cq, ibv_destroy_qp, ibv_destroy_srq, ibv_ece, ibv_modify_qp, ibv_modify_srq,
    ibv_mr, ibv_mw, ibv_mw_type, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
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
/// A memory window.
pub(crate) type Mw = Handle<ibv_mw, Arc<Pd>>;
/// A completion queue.
pub(crate) type Cq = Handle<ibv_cq, CqParents>;
/// A shared receive queue.
pub(crate) type Srq = Handle<ibv_srq, Arc<Pd>>;
/// An address handle.
pub(crate) type Ah = Handle<ibv_ah, Arc<Pd>>;
/// A queue pair.
pub(crate) type Qp = Handle<ibv_qp, QpParents>;

/// The objects from which a completion queue was created.
pub(crate) struct CqParents {
    pub(super) context: Arc<OpenContext>,
    /// The channel of the queue's events.
    #[expect(dead_code, reason = "keeps the object alive")]
    pub(super) channel: Option<Arc<Channel>>,
}

/// The protection domain of a queue pair.
pub(crate) struct QpParents {
    pub(super) domain: Arc<Pd>,
    /// A domain that is bound to a thread domain.
    #[expect(dead_code, reason = "keeps the object alive")]
    pub(super) thread: Option<ThreadedPd>,
    #[expect(dead_code, reason = "keeps the objects alive")]
    pub(super) queues: QpQueues,
}

/// The queues that a queue pair uses.
#[derive(Clone)]
pub(crate) struct QpQueues {
    pub(crate) send: Arc<Cq>,
    pub(crate) receive: Arc<Cq>,
    /// The shared receive queue; if `None`, the queue pair has its own receive queue.
    pub(crate) shared: Option<Arc<Srq>>,
}

impl QpQueues {
    pub(super) fn shared(&self) -> *mut ibv_srq {
        self.shared.as_ref().map_or(ptr::null_mut(), |shared| shared.raw())
    }
}

// SAFETY: all fields are integers, for which zero is valid.
unsafe impl Plain for ibv_ah_attr {}
// SAFETY: all fields are integers, for which zero is valid.
unsafe impl Plain for ibv_qp_attr {}
// SAFETY: all fields are integers or pointers, for which zero is valid.
unsafe impl Plain for ibv_qp_init_attr {}
// SAFETY: all fields are integers or pointers, for which zero is valid.
unsafe impl Plain for ibv_qp_init_attr_ex {}

impl Pd {
    pub(crate) fn allocate(context: &Arc<OpenContext>) -> io::Result<Self> {
        // SAFETY: the context is open, and the handle keeps a reference to it. No other code
        // destroys the new domain, and `ibv_dealloc_pd` is its destructor.
        unsafe { Self::take(ibv_alloc_pd(context.raw()), ibv_dealloc_pd, Arc::clone(context)) }
    }

    pub(crate) fn context(&self) -> &Arc<OpenContext> {
        self.parents()
    }
}

/// `ibv_dealloc_mw`, which is an inline function of verbs.h.
///
/// # Safety
/// The window exists, and no other code destroys it.
unsafe extern "C" fn deallocate_window(window: *mut ibv_mw) -> c_int {
    // SAFETY: the window exists by the contract of this function.
    unsafe { ibv_dealloc_mw(window) }
}

impl Mw {
    /// Allocates a window of type 1 if `is_shared`, otherwise of type 2. The kind of the error is
    /// `Unsupported` if the driver has none.
    pub(crate) fn allocate(domain: &Arc<Pd>, is_shared: bool) -> io::Result<Self> {
        let kind = if is_shared { ibv_mw_type::IBV_MW_TYPE_1 } else { ibv_mw_type::IBV_MW_TYPE_2 };
        // SAFETY: the domain is alive, and the handle keeps a reference to it.
        // `deallocate_window` is the destructor of the new window, which no other code calls.
        unsafe {
            let window = ibv_alloc_mw(domain.raw(), kind)
                .ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
            Self::take(window, deallocate_window, Arc::clone(domain))
        }
    }

    /// The key of the window.
    pub(crate) fn key(&self) -> u32 {
        // SAFETY: the window exists as long as the handle.
        unsafe { (*self.raw()).rkey }
    }
}

impl Mr {
    /// Registers memory under the I/O virtual address `iova`.
    ///
    /// Calls a variant of `ibv_reg_mr` that ignores optional access flags which the kernel does not
    /// support; `ibv_reg_mr` itself fails on them.
    ///
    /// # Safety
    /// Until the region is deregistered, the memory must stay mapped, and must be accessed only in
    /// ways that tolerate a device which reads it and, as far as `access` allows, writes it at the
    /// same time. If deregistration fails, the region is still registered.
    pub(crate) unsafe fn register(
        domain: &Arc<Pd>,
        start: NonNull<u8>,
        length: usize,
        iova: u64,
        access: u32,
    ) -> io::Result<Self> {
        // SAFETY: the domain is alive, and the handle keeps a reference to it. The caller
        // guarantees that the memory stays mapped and tolerates accesses by the device while it is
        // registered. `ibv_dereg_mr` is the destructor of the new region, which no other code
        // calls.
        unsafe {
            let region =
                ibv_reg_mr_iova2(domain.raw(), start.as_ptr().cast(), length, iova, access);
            Self::take(region, ibv_dereg_mr, Arc::clone(domain))
        }
    }

    /// Registers all memory that the process has or will have, on demand: requests use its
    /// addresses.
    ///
    /// # Safety
    /// Until the region is deregistered, all memory that requests name must be accessed only in
    /// ways that tolerate a device which reads it and, as far as `access` allows, writes it at the
    /// same time.
    pub(crate) unsafe fn register_address_space(domain: &Arc<Pd>, access: u32) -> io::Result<Self> {
        // SAFETY: as in `register`; a length of all ones at address 0 stands for the whole address
        // space (ibv_reg_mr(3)), of which the kernel maps to the device what requests name.
        unsafe {
            let region = ibv_reg_mr_iova2(domain.raw(), ptr::null_mut(), usize::MAX, 0, access);
            Self::take(region, ibv_dereg_mr, Arc::clone(domain))
        }
    }

    /// Registers memory of another device by the descriptor of its dma-buf.
    ///
    /// # Safety
    /// The contract of [`Self::register`], for all mappings of the same memory.
    pub(crate) unsafe fn register_dmabuf(
        domain: &Arc<Pd>,
        buffer: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: u32,
    ) -> io::Result<Self> {
        // SAFETY: the domain is alive, and the handle keeps a reference to it; the kernel holds a
        // reference to the buffer. The caller guarantees that all mappings of the memory tolerate
        // accesses by the device while it is registered. `ibv_dereg_mr` is the destructor of the
        // new region, which no other code calls.
        unsafe {
            let (buffer, access) = (buffer.as_raw_fd(), access as c_int);
            let region = ibv_reg_dmabuf_mr(domain.raw(), offset, length, iova, buffer, access);
            Self::take(region, ibv_dereg_mr, Arc::clone(domain))
        }
    }

    /// Brings in the pages of `length` bytes at `address`, in a region with the key `lkey`, and
    /// waits for it.
    pub(crate) fn prefetch(
        &self,
        address: u64,
        length: u32,
        lkey: u32,
        write: bool,
    ) -> io::Result<()> {
        use rdma_sys::ib_uverbs_advise_mr_advice::{
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
        };
        /// `IB_UVERBS_ADVISE_MR_FLAG_FLUSH`: the call returns when the pages are in.
        const FLUSH: u32 = 1;
        let advice = if write {
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE
        } else {
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH
        };
        let mut range = rdma_sys::ibv_sge { addr: address, length, lkey };
        self.parents().advise(advice, FLUSH, &mut range)
    }

    /// Deregisters the memory now. After an error it is still registered.
    pub(crate) fn deregister(&mut self) -> io::Result<()> {
        self.destroy()
    }

    /// Local and remote key.
    pub(crate) fn keys(&self) -> (u32, u32) {
        // SAFETY: the region's structure exists as long as the handle that is borrowed, and
        // libibverbs does not modify it.
        let region = unsafe { &*self.raw() };
        (region.lkey, region.rkey)
    }
}

impl Cq {
    /// Creates a queue with room for at least `entries` completions, whose events go to `channel`.
    pub(crate) fn create(
        context: &Arc<OpenContext>,
        entries: u32,
        channel: Option<Arc<Channel>>,
    ) -> io::Result<Self> {
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        let vector = c_int::try_from(context.completion_vector()).unwrap_or(0);
        let events = channel.as_ref().map_or(ptr::null_mut(), |channel| channel.raw());
        // SAFETY: context and channel are alive, and the handle keeps references to them. A null
        // user pointer is valid. No other code destroys the new queue, and `ibv_destroy_cq` is its
        // destructor.
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
        // SAFETY: the queue's structure exists as long as the handle that is borrowed. Only
        // resizing modifies this field, and this crate does not resize queues.
        let entries = unsafe { (*self.raw()).cqe };
        u32::try_from(entries).unwrap_or(0)
    }
}

impl Ah {
    pub(crate) fn create(domain: &Arc<Pd>, mut attributes: ibv_ah_attr) -> io::Result<Self> {
        // SAFETY: the domain is alive, and the handle keeps a reference to it. The attributes are
        // valid during the call. No other code destroys the new address handle, and
        // `ibv_destroy_ah` is its destructor.
        unsafe {
            let handle = ibv_create_ah(domain.raw(), &raw mut attributes);
            Self::take(handle, ibv_destroy_ah, Arc::clone(domain))
        }
    }
}

impl Srq {
    /// Creates a queue with room for at least `requests` requests of `elements` elements each, and
    /// sets both to the actual values.
    pub(crate) fn create(
        domain: &Arc<Pd>,
        requests: &mut u32,
        elements: &mut u32,
    ) -> io::Result<Self> {
        let attr = ibv_srq_attr { max_wr: *requests, max_sge: *elements, srq_limit: 0 };
        let mut attributes = ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        // SAFETY: the domain is alive, and the handle keeps a reference to it. The attributes are
        // valid during the call. No other code destroys the new queue, and `ibv_destroy_srq` is its
        // destructor.
        let queue = unsafe {
            let queue = ibv_create_srq(domain.raw(), &raw mut attributes);
            Self::take(queue, ibv_destroy_srq, Arc::clone(domain))
        }?;
        (*requests, *elements) = (attributes.attr.max_wr, attributes.attr.max_sge);
        Ok(queue)
    }

    /// Requests an event for the time when fewer than `limit` requests are left.
    pub(crate) fn limit(&self, limit: u32) -> io::Result<()> {
        let mut attributes = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        let mask = ibv_srq_attr_mask::IBV_SRQ_LIMIT.0;
        // SAFETY: the queue exists as long as the handle that is borrowed, and the attributes are
        // valid during the call.
        status(unsafe { ibv_modify_srq(self.raw(), &raw mut attributes, mask as c_int) })
    }
}

impl Qp {
    /// Creates a queue pair with `ibv_create_qp`. Sets the capacity in the attributes to the actual
    /// values.
    pub(crate) fn create(
        domain: &Arc<Pd>,
        queues: QpQueues,
        attributes: &mut ibv_qp_init_attr,
    ) -> io::Result<Self> {
        attributes.send_cq = queues.send.raw();
        attributes.recv_cq = queues.receive.raw();
        attributes.srq = queues.shared();
        attributes.qp_context = ptr::null_mut();
        // SAFETY: domain and queues are alive, and the handle keeps references to them. The
        // attributes are valid during the call. No other code destroys the new queue pair, and
        // `ibv_destroy_qp` is its destructor.
        unsafe {
            let qp = ibv_create_qp(domain.raw(), attributes);
            Self::take(
                qp,
                ibv_destroy_qp,
                QpParents { domain: Arc::clone(domain), thread: None, queues },
            )
        }
    }

    /// Creates a queue pair with builder functions (`ibv_wr_*`) for the given `operations`. With
    /// `thread`, one thread at a time uses it.
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
        // SAFETY: domain and queues are alive, and the handle keeps references to them. The
        // attributes are valid during the call. No other code destroys the new queue pair, and
        // `ibv_destroy_qp` is its destructor.
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
        // SAFETY: the queue pair's structure exists as long as the handle that is borrowed, and
        // libibverbs does not modify the number.
        unsafe { (*self.raw()).qp_num }
    }

    /// Modifies the attributes that `mask` selects.
    pub(crate) fn modify(&self, attributes: &mut ibv_qp_attr, mask: u32) -> io::Result<()> {
        // SAFETY: the queue pair exists as long as the handle that is borrowed, and the attributes
        // are valid during the call.
        status(unsafe { ibv_modify_qp(self.raw(), attributes, mask as c_int) })
    }

    /// Queries the attributes that `mask` selects.
    pub(crate) fn query(&self, mask: u32) -> io::Result<ibv_qp_attr> {
        let (mut attributes, mut created) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
        // SAFETY: the queue pair exists as long as the handle that is borrowed, and both structures
        // are valid destinations.
        status(unsafe {
            ibv_query_qp(self.raw(), &raw mut attributes, mask as c_int, &raw mut created)
        })?;
        Ok(attributes)
    }

    /// Queries the enhancements that the device supports. verbs.h: `ibv_query_ece`.
    pub(crate) fn query_ece(&self) -> io::Result<ibv_ece> {
        let mut enhancements = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
        // SAFETY: the queue pair exists as long as the handle that is borrowed, and the structure
        // is a valid destination.
        status(unsafe { ibv_query_ece(self.raw(), &raw mut enhancements) })?;
        Ok(enhancements)
    }

    /// Sets the enhancements that both sides support. verbs.h: `ibv_set_ece`.
    pub(crate) fn set_ece(&self, mut enhancements: ibv_ece) -> io::Result<()> {
        // SAFETY: the queue pair exists as long as the handle that is borrowed, and the argument is
        // valid during the call.
        status(unsafe { ibv_set_ece(self.raw(), &raw mut enhancements) })
    }
}
