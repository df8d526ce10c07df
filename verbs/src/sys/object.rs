//! Objects of verbs.

use std::ffi::c_int;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys::{
    ibv_ah, ibv_ah_attr, ibv_alloc_pd, ibv_cq, ibv_create_ah, ibv_create_cq, ibv_create_qp, ibv_dealloc_pd,
    ibv_dereg_mr, ibv_destroy_ah, ibv_destroy_cq, ibv_destroy_qp, ibv_modify_qp, ibv_mr, ibv_pd, ibv_qp,
    ibv_qp_attr, ibv_qp_init_attr, ibv_query_qp, ibv_reg_mr_iova2,
};

use super::handle::Handle;
use super::thread::ThreadedPd;
use super::{OpenContext, Plain, status};

/// A protection domain.
pub(crate) type Pd = Handle<ibv_pd, Arc<OpenContext>>;
/// A memory region.
pub(crate) type Mr = Handle<ibv_mr, Arc<Pd>>;
/// A completion queue.
pub(crate) type Cq = Handle<ibv_cq, Arc<OpenContext>>;
/// An address handle.
pub(crate) type Ah = Handle<ibv_ah, Arc<Pd>>;
/// A queue pair.
pub(crate) type Qp = Handle<ibv_qp, QpParents>;

/// What a queue pair is made from.
pub(crate) struct QpParents {
    pub(crate) domain: Arc<Pd>,
    /// The same, bound to a thread.
    #[expect(dead_code, reason = "keeps it alive")]
    pub(crate) thread: Option<ThreadedPd>,
    /// Where its sends and its receives complete.
    #[expect(dead_code, reason = "keeps them alive")]
    pub(crate) queues: [Arc<Cq>; 2],
}

// SAFETY: integers only.
unsafe impl Plain for ibv_ah_attr {}
// SAFETY: integers only.
unsafe impl Plain for ibv_qp_attr {}
// SAFETY: integers and pointers.
unsafe impl Plain for ibv_qp_init_attr {}

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
    /// A queue of at least `entries`, whose completions raise the event of `vector`.
    pub(crate) fn create(context: &Arc<OpenContext>, entries: u32, vector: u32) -> io::Result<Self> {
        let none = ptr::null_mut();
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        let vector = c_int::try_from(vector).unwrap_or(c_int::MAX);
        // SAFETY: the context is open, and the handle keeps it so; no channel and no user pointer.
        unsafe {
            let queue = ibv_create_cq(context.raw(), entries, none, ptr::null_mut(), vector);
            Self::take(queue, ibv_destroy_cq, Arc::clone(context))
        }
    }

    pub(crate) fn context(&self) -> &Arc<OpenContext> {
        self.parents()
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

impl Qp {
    /// A queue pair. The queues of `attributes` are set from `queues`: for sends and for receives. On return they say what was granted.
    pub(crate) fn create(
        domain: &Arc<Pd>,
        queues: [Arc<Cq>; 2],
        attributes: &mut ibv_qp_init_attr,
    ) -> io::Result<Self> {
        attributes.send_cq = queues[0].raw();
        attributes.recv_cq = queues[1].raw();
        attributes.srq = ptr::null_mut();
        attributes.qp_context = ptr::null_mut();
        // SAFETY: domain and queues are alive, and the handle keeps them so; the attributes are valid for the call.
        unsafe {
            let qp = ibv_create_qp(domain.raw(), attributes);
            Self::take(qp, ibv_destroy_qp, QpParents { domain: Arc::clone(domain), thread: None, queues })
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
}
