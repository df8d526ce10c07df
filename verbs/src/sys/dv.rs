//! Objects of libmlx5: DEVX, and the addresses of verbs objects.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use barewire_layouts::wqe::AddressVector;
use barewire_mlx5dv_sys::{
    Library, MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF, MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC,
    MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE, MLX5DV_OBJ_AH, MLX5DV_OBJ_CQ, MLX5DV_OBJ_PD, MLX5DV_OBJ_QP,
    MLX5DV_OBJ_SRQ, MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS, MLX5DV_QP_MASK_UAR_MMAP_OFFSET,
    MLX5DV_SRQ_MASK_SRQN, mlx5dv_ah, mlx5dv_cq, mlx5dv_cq_init_attr, mlx5dv_devx_obj,
    mlx5dv_devx_uar, mlx5dv_devx_umem, mlx5dv_obj, mlx5dv_obj_type, mlx5dv_pd, mlx5dv_qp,
    mlx5dv_qp_init_attr, mlx5dv_srq,
};

use rdma_sys::{
    ibv_cq, ibv_cq_init_attr_ex, ibv_cq_init_attr_mask, ibv_create_cq_attr_flags, ibv_destroy_cq,
    ibv_destroy_qp, ibv_qp_init_attr,
};

use super::handle::Handle;
use super::object::{CqParents, QpParents};
use super::thread::{Td, ThreadedPd};
use super::{Ah, Channel, Cq, OpenContext, Pd, Plain, Qp, QpQueues, Srq, status};

/// An object that was created by a command.
pub(crate) type DevxObject = Handle<mlx5dv_devx_obj, Devx>;
/// Registered memory that commands can name (UMEM).
pub(crate) type DevxUmem = Handle<mlx5dv_devx_umem, Devx>;

// SAFETY: all fields are integers or pointers, for which zero is valid.
unsafe impl Plain for ibv_cq_init_attr_ex {}

/// A context that was opened for commands.
#[derive(Clone)]
pub(crate) struct Devx {
    context: Arc<OpenContext>,
    library: &'static Library,
}

/// Returns `Ok` if the device responded; `output` then holds its status, good or bad. The kernel
/// copies out every response. For a bad status, the error of the call depends on the versions of
/// kernel and libmlx5, so it is not used.
fn responded(outcome: io::Result<()>, output: &[u8]) -> io::Result<()> {
    match output.first() {
        Some(0) | None => outcome,
        Some(_) => Ok(()),
    }
}

impl Devx {
    /// Returns `None` if the context was not opened for DEVX.
    pub(crate) fn of(context: &Arc<OpenContext>) -> Option<Self> {
        Some(Self { context: Arc::clone(context), library: context.devx()? })
    }

    pub(crate) fn context(&self) -> &Arc<OpenContext> {
        &self.context
    }

    pub(super) fn library(&self) -> &'static Library {
        self.library
    }

    /// Executes a command that does not create an object. Fails if the device did not respond.
    pub(crate) fn general(&self, input: &[u8], output: &mut [u8]) -> io::Result<()> {
        output.fill(0);
        // SAFETY: `self.context` is open, and pointers and lengths are those of the slices.
        let outcome = status(unsafe {
            self.library.functions.mlx5dv_devx_general_cmd(
                self.context.raw(),
                input.as_ptr().cast(),
                input.len(),
                output.as_mut_ptr().cast(),
                output.len(),
            )
        });
        responded(outcome, output)
    }

    /// Executes a command that creates an object. Returns `None` if the device reported an error.
    pub(crate) fn create(&self, input: &[u8], output: &mut [u8]) -> io::Result<Option<DevxObject>> {
        output.fill(0);
        // SAFETY: `self.context` is open, and the handle keeps a clone of it. Pointers and lengths
        // are those of the slices. No other code destroys the new object, and
        // `mlx5dv_devx_obj_destroy` is its destructor.
        let made = unsafe {
            let object = self.library.functions.mlx5dv_devx_obj_create(
                self.context.raw(),
                input.as_ptr().cast(),
                input.len(),
                output.as_mut_ptr().cast(),
                output.len(),
            );
            Handle::take(object, self.library.functions.mlx5dv_devx_obj_destroy, self.clone())
        };
        match made {
            Ok(object) => Ok(Some(object)),
            Err(error) => responded(Err(error), output).map(|()| None),
        }
    }

    /// Registers memory as a UMEM.
    ///
    /// # Safety
    /// The contract of [`super::Mr::register`].
    pub(crate) unsafe fn register(
        &self,
        start: NonNull<u8>,
        length: usize,
        access: u32,
    ) -> io::Result<DevxUmem> {
        // SAFETY: `self.context` is open, and the handle keeps a clone of it. The caller guarantees
        // that the memory stays mapped and tolerates accesses by the device while it is registered.
        // No other code deregisters the new UMEM, and `mlx5dv_devx_umem_dereg` is its destructor.
        unsafe {
            let umem = self.library.functions.mlx5dv_devx_umem_reg(
                self.context.raw(),
                start.as_ptr().cast(),
                length,
                access,
            );
            Handle::take(umem, self.library.functions.mlx5dv_devx_umem_dereg, self.clone())
        }
    }

    /// Allocates a UAR page and maps it, with write-combining or uncached.
    pub(crate) fn allocate_uar(&self, write_combining: bool) -> io::Result<DevxUar> {
        let kind = if write_combining {
            MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF
        } else {
            MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC
        };
        // SAFETY: `self.context` is open, and the result keeps a clone of it.
        let uar = unsafe { self.library.functions.mlx5dv_devx_alloc_uar(self.context.raw(), kind) };
        let uar = NonNull::new(uar).ok_or_else(io::Error::last_os_error)?;
        Ok(DevxUar { uar, devx: self.clone() })
    }

    /// Executes a command that queries a queue pair of verbs.
    pub(crate) fn query_pair(&self, qp: &Qp, input: &[u8], output: &mut [u8]) -> io::Result<()> {
        output.fill(0);
        // SAFETY: the queue pair is alive while `qp` is borrowed, its driver is libmlx5 as that of
        // the context is, and pointers and lengths are those of the slices.
        let outcome = status(unsafe {
            self.library.functions.mlx5dv_devx_qp_query(
                qp.raw(),
                input.as_ptr().cast(),
                input.len(),
                output.as_mut_ptr().cast(),
                output.len(),
            )
        });
        responded(outcome, output)
    }

    /// Returns the device's number of the event queue of a completion vector.
    pub(crate) fn event_queue(&self, vector: u32) -> io::Result<u32> {
        let mut number = 0;
        // SAFETY: the context is open, and `number` is a valid destination for the result.
        let result = unsafe {
            self.library.functions.mlx5dv_devx_query_eqn(
                self.context.raw(),
                vector,
                &raw mut number,
            )
        };
        status(result).map(|()| number)
    }
}

impl DevxObject {
    /// Destroys the object, whose owner does not use it any more.
    pub(crate) fn destroy_now(mut self) -> io::Result<()> {
        self.destroy()
    }

    /// Executes a command that modifies the object.
    pub(crate) fn modify(&self, input: &[u8], output: &mut [u8]) -> io::Result<()> {
        self.execute(self.parents().library.functions.mlx5dv_devx_obj_modify, input, output)
    }

    /// Executes a command that queries the object.
    pub(crate) fn query(&self, input: &[u8], output: &mut [u8]) -> io::Result<()> {
        self.execute(self.parents().library.functions.mlx5dv_devx_obj_query, input, output)
    }

    fn execute(
        &self,
        function: unsafe extern "C" fn(
            *mut mlx5dv_devx_obj,
            *const std::ffi::c_void,
            usize,
            *mut std::ffi::c_void,
            usize,
        ) -> std::ffi::c_int,
        input: &[u8],
        output: &mut [u8],
    ) -> io::Result<()> {
        output.fill(0);
        // SAFETY: the object is alive, because only `drop` and `destroy_now` destroy it, which consume it, and pointers and lengths
        // are those of the slices.
        let outcome = status(unsafe {
            function(
                self.raw(),
                input.as_ptr().cast(),
                input.len(),
                output.as_mut_ptr().cast(),
                output.len(),
            )
        });
        responded(outcome, output)
    }
}

impl DevxUmem {
    /// The UMEM's number in commands.
    pub(crate) fn id(&self) -> u32 {
        // SAFETY: `Umem` reads the number when it is created, before the memory can be
        // deregistered, so the structure exists; libmlx5 does not modify it.
        unsafe { (*self.raw()).umem_id }
    }

    /// Deregisters the memory. After an error it is still registered.
    pub(crate) fn deregister(&mut self) -> io::Result<()> {
        self.destroy()
    }
}

/// A UAR page, freed when dropped.
pub(crate) struct DevxUar {
    uar: NonNull<mlx5dv_devx_uar>,
    devx: Devx,
}

// SAFETY: the pointer refers to a description of the page that libmlx5 does not modify, and any
// thread may free the page, once, in `drop`.
unsafe impl Send for DevxUar {}
// SAFETY: methods with `&self` only read the description, which libmlx5 does not modify.
unsafe impl Sync for DevxUar {}

impl DevxUar {
    /// Returns the page's index, and the first byte of this allocation's register.
    pub(crate) fn address(&self) -> (u32, *mut u8) {
        // SAFETY: libmlx5 allocated the description, and only `drop` frees it.
        let uar = unsafe { self.uar.as_ref() };
        (uar.page_id, uar.reg_addr.cast())
    }
}

impl Drop for DevxUar {
    fn drop(&mut self) {
        // SAFETY: libmlx5 allocated the page, and `drop` is the only place that frees it.
        unsafe { self.devx.library.functions.mlx5dv_devx_free_uar(self.uar.as_ptr()) };
    }
}

/// Verbs objects whose addresses libmlx5 reports. The addresses are valid as long as the object
/// exists.
pub(crate) trait InitObj {
    /// The structure that libmlx5 fills.
    type Info;

    /// Queries the addresses. Returns `EOPNOTSUPP` if the driver of the object is not libmlx5.
    fn init_obj(&self, library: &Library) -> io::Result<Self::Info>;
}

/// Calls `mlx5dv_init_obj`, which fills the results of `object` that the bits of `kind` select.
///
/// # Safety
/// For each bit of `kind`, `in_` points to a live object of that kind, and `out` to a structure that
/// is valid for reads and writes.
pub(super) unsafe fn init(
    library: &Library,
    object: &mut mlx5dv_obj,
    kind: mlx5dv_obj_type,
) -> io::Result<()> {
    // SAFETY: the pointers that libmlx5 uses are valid by the caller's contract.
    status(unsafe { library.functions.mlx5dv_init_obj(object, u64::from(kind)) })
}

impl InitObj for Pd {
    type Info = mlx5dv_pd;

    fn init_obj(&self, library: &Library) -> io::Result<mlx5dv_pd> {
        let mut info = mlx5dv_pd::default();
        let mut object = mlx5dv_obj::default();
        object.pd.in_ = self.raw();
        object.pd.out = &raw mut info;
        // SAFETY: `self` owns a live object, and `info` is a local variable; `object` points to both.
        unsafe { init(library, &mut object, MLX5DV_OBJ_PD)? };
        Ok(info)
    }
}

impl InitObj for Cq {
    type Info = mlx5dv_cq;

    fn init_obj(&self, library: &Library) -> io::Result<mlx5dv_cq> {
        let mut info = mlx5dv_cq::default();
        let mut object = mlx5dv_obj::default();
        object.cq.in_ = self.raw();
        object.cq.out = &raw mut info;
        // SAFETY: `self` owns a live object, and `info` is a local variable; `object` points to both.
        unsafe { init(library, &mut object, MLX5DV_OBJ_CQ)? };
        Ok(info)
    }
}

impl InitObj for Qp {
    type Info = mlx5dv_qp;

    fn init_obj(&self, library: &Library) -> io::Result<mlx5dv_qp> {
        let comp_mask = u64::from(MLX5DV_QP_MASK_UAR_MMAP_OFFSET);
        let mut info = mlx5dv_qp { comp_mask, ..mlx5dv_qp::default() };
        let mut object = mlx5dv_obj::default();
        object.qp.in_ = self.raw();
        object.qp.out = &raw mut info;
        // SAFETY: `self` owns a live object, and `info` is a local variable; `object` points to both.
        unsafe { init(library, &mut object, MLX5DV_OBJ_QP)? };
        Ok(info)
    }
}

impl InitObj for Srq {
    type Info = mlx5dv_srq;

    fn init_obj(&self, library: &Library) -> io::Result<mlx5dv_srq> {
        let comp_mask = u64::from(MLX5DV_SRQ_MASK_SRQN);
        let mut info = mlx5dv_srq { comp_mask, ..mlx5dv_srq::default() };
        let mut object = mlx5dv_obj::default();
        object.srq.in_ = self.raw();
        object.srq.out = &raw mut info;
        // SAFETY: `self` owns a live object, and `info` is a local variable; `object` points to both.
        unsafe { init(library, &mut object, MLX5DV_OBJ_SRQ)? };
        Ok(info)
    }
}

impl InitObj for Ah {
    type Info = AddressVector;

    fn init_obj(&self, library: &Library) -> io::Result<AddressVector> {
        let mut info = mlx5dv_ah::default();
        let mut object = mlx5dv_obj::default();
        object.ah.in_ = self.raw();
        object.ah.out = &raw mut info;
        // SAFETY: `self` owns a live object, and `info` is a local variable; `object` points to both.
        unsafe { init(library, &mut object, MLX5DV_OBJ_AH)? };
        // SAFETY: libmlx5 returns a pointer to the address vector inside the handle, which lives as
        // long as `self` is borrowed. The type here has the same layout
        // (`mlx5dv-sys/tests/layouts.rs`), alignment 1, and every byte pattern is valid.
        Ok(unsafe { info.av.cast::<AddressVector>().read() })
    }
}

impl Qp {
    /// Like [`Qp::create`], with a register of `thread`, and with flags of
    /// `mlx5dv_qp_init_attr.create_flags`.
    pub(crate) fn create_mlx5(
        library: &Library,
        domain: &Arc<Pd>,
        thread: Option<&Arc<Td>>,
        queues: QpQueues,
        attributes: &mut ibv_qp_init_attr,
        flags: u32,
    ) -> io::Result<Self> {
        let thread = thread.map(|thread| ThreadedPd::allocate(domain, thread)).transpose()?;
        let mut extended = Self::extend(domain, &queues, attributes);
        if let Some(thread) = &thread {
            extended.pd = thread.raw();
        }
        let mut own = mlx5dv_qp_init_attr {
            comp_mask: u64::from(MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS),
            create_flags: flags,
            ..mlx5dv_qp_init_attr::default()
        };
        // SAFETY: domain and queues are alive, and the handle keeps references to them. The
        // attributes, and what they point to, are valid during the call. No other code destroys the
        // new queue pair.
        let qp = unsafe {
            let context = domain.context().raw();
            let qp = library.functions.mlx5dv_create_qp(context, &raw mut extended, &raw mut own);
            Self::take(qp, ibv_destroy_qp, QpParents { domain: Arc::clone(domain), thread, queues })
        };
        attributes.cap = extended.cap;
        qp
    }
}

impl Cq {
    /// Like [`Cq::create`], with entries of 64 or 128 bytes, and without a check for overruns.
    pub(crate) fn create_mlx5(
        library: &Library,
        context: &Arc<OpenContext>,
        entries: u32,
        channel: Option<Arc<Channel>>,
        entry_size: u16,
    ) -> io::Result<Self> {
        let mut attributes = ibv_cq_init_attr_ex {
            cqe: entries,
            comp_vector: context.completion_vector(),
            channel: channel.as_ref().map_or(ptr::null_mut(), |channel| channel.raw()),
            comp_mask: ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0,
            flags: ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN.0,
            ..ibv_cq_init_attr_ex::zeroed()
        };
        let mut own = mlx5dv_cq_init_attr {
            comp_mask: u64::from(MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE),
            cqe_size: entry_size,
            ..mlx5dv_cq_init_attr::default()
        };
        // SAFETY: context and channel are alive, and the handle keeps references to them. The
        // attributes are valid during the call. An extended queue begins with an ordinary one
        // (`ibv_cq_ex_to_cq`), so the cast is valid. No other code destroys the new queue.
        unsafe {
            let queue = library.functions.mlx5dv_create_cq(
                context.raw(),
                &raw mut attributes,
                &raw mut own,
            );
            let parents = CqParents { context: Arc::clone(context), channel };
            Self::take(queue.cast::<ibv_cq>(), ibv_destroy_cq, parents)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_counts_even_if_the_call_failed() {
        const EREMOTEIO: i32 = 121;
        let error = || Err(io::Error::from_raw_os_error(EREMOTEIO));
        assert!(responded(Ok(()), &[0; 16]).is_ok());
        assert!(responded(error(), &[0; 16]).is_err());
        assert!(responded(error(), &[]).is_err());
        // A response with status BAD_PARAM.
        assert!(responded(error(), &[3, 0, 0, 0]).is_ok());
    }
}
