//! Objects of libmlx5: DEVX, and a look into those of verbs.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use barewire_layouts::wqe::AddressVector;
use barewire_mlx5dv_sys::{
    Library, MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF, MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC,
    MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE, MLX5DV_OBJ_AH, MLX5DV_OBJ_CQ, MLX5DV_OBJ_PD, MLX5DV_OBJ_QP,
    MLX5DV_OBJ_SRQ, MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS, MLX5DV_QP_MASK_UAR_MMAP_OFFSET,
    MLX5DV_SRQ_MASK_SRQN, mlx5dv_ah, mlx5dv_cq, mlx5dv_cq_init_attr, mlx5dv_devx_obj, mlx5dv_devx_uar,
    mlx5dv_devx_umem, mlx5dv_obj, mlx5dv_obj_type, mlx5dv_pd, mlx5dv_qp, mlx5dv_qp_init_attr, mlx5dv_srq,
};

use rdma_sys::{
    ibv_cq, ibv_cq_init_attr_ex, ibv_cq_init_attr_mask, ibv_create_cq_attr_flags, ibv_destroy_cq,
    ibv_destroy_qp, ibv_qp_init_attr,
};

use super::handle::Handle;
use super::object::{CqParents, QpParents};
use super::thread::{Td, ThreadedPd};
use super::{Ah, Channel, Cq, OpenContext, Pd, Plain, Qp, QpQueues, Srq, status};

/// An object that a command made.
pub(crate) type DevxObject = Handle<mlx5dv_devx_obj, Devx>;
/// Memory that commands can name.
pub(crate) type DevxUmem = Handle<mlx5dv_devx_umem, Devx>;

// SAFETY: integers and pointers.
unsafe impl Plain for ibv_cq_init_attr_ex {}

/// A context that may send commands.
#[derive(Clone)]
pub(crate) struct Devx {
    context: Arc<OpenContext>,
    library: &'static Library,
}

/// `Ok` if the device answered: `output` then has its status, good or bad. The kernel copies an answer out whenever there is one; it and
/// the library differ by version in which error they give for a bad status.
fn answered(outcome: io::Result<()>, output: &[u8]) -> io::Result<()> {
    match output.first() {
        Some(0) | None => outcome,
        Some(_) => Ok(()),
    }
}

impl Devx {
    /// `None` if the context was not opened for DEVX.
    pub(crate) fn of(context: &Arc<OpenContext>) -> Option<Self> {
        Some(Self { context: Arc::clone(context), library: context.devx()? })
    }

    pub(crate) fn context(&self) -> &Arc<OpenContext> {
        &self.context
    }

    pub(super) fn library(&self) -> &'static Library {
        self.library
    }

    /// A command that makes nothing. An error if the device did not answer.
    pub(crate) fn general(&self, input: &[u8], output: &mut [u8]) -> io::Result<()> {
        output.fill(0);
        // SAFETY: the context is open; the lengths are those of the slices.
        let outcome = status(unsafe {
            self.library.functions.mlx5dv_devx_general_cmd(
                self.context.raw(),
                input.as_ptr().cast(),
                input.len(),
                output.as_mut_ptr().cast(),
                output.len(),
            )
        });
        answered(outcome, output)
    }

    /// A command that makes an object; none if the device refused.
    pub(crate) fn create(&self, input: &[u8], output: &mut [u8]) -> io::Result<Option<DevxObject>> {
        output.fill(0);
        // SAFETY: the context is open, and the handle keeps it so; the lengths are those of the slices.
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
            Err(error) => answered(Err(error), output).map(|()| None),
        }
    }

    /// Lets commands name memory.
    ///
    /// # Safety
    /// As for [`super::Mr::register`].
    pub(crate) unsafe fn register(
        &self,
        start: NonNull<u8>,
        length: usize,
        access: u32,
    ) -> io::Result<DevxUmem> {
        // SAFETY: the context is open, and the handle keeps it so. The memory is the caller's promise.
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

    /// A UAR page, mapped write-combining or not.
    pub(crate) fn allocate_uar(&self, write_combining: bool) -> io::Result<DevxUar> {
        let kind =
            if write_combining { MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF } else { MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC };
        // SAFETY: the context is open, and the value keeps it so.
        let uar = unsafe { self.library.functions.mlx5dv_devx_alloc_uar(self.context.raw(), kind) };
        let uar = NonNull::new(uar).ok_or_else(io::Error::last_os_error)?;
        Ok(DevxUar { uar, devx: self.clone() })
    }

    /// The device's number of the event queue behind a completion vector.
    pub(crate) fn event_queue(&self, vector: u32) -> io::Result<u32> {
        let mut number = 0;
        // SAFETY: the context is open, and there is a place for the number.
        let answer = unsafe {
            self.library.functions.mlx5dv_devx_query_eqn(self.context.raw(), vector, &raw mut number)
        };
        status(answer).map(|()| number)
    }
}

impl DevxObject {
    /// A command that changes the object.
    pub(crate) fn modify(&self, input: &[u8], output: &mut [u8]) -> io::Result<()> {
        self.execute(self.parents().library.functions.mlx5dv_devx_obj_modify, input, output)
    }

    /// A command that asks for what the object is.
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
        // SAFETY: the object is alive; the lengths are those of the slices.
        let outcome = status(unsafe {
            function(self.raw(), input.as_ptr().cast(), input.len(), output.as_mut_ptr().cast(), output.len())
        });
        answered(outcome, output)
    }
}

impl DevxUmem {
    /// The number that commands name it by.
    pub(crate) fn id(&self) -> u32 {
        // SAFETY: alive, as the public type asks when it is made; the library does not write to it.
        unsafe { (*self.raw()).umem_id }
    }

    /// Takes the memory from the device. After an error it still has it.
    pub(crate) fn deregister(&mut self) -> io::Result<()> {
        self.destroy()
    }
}

/// A UAR page, given back when dropped.
pub(crate) struct DevxUar {
    uar: NonNull<mlx5dv_devx_uar>,
    devx: Devx,
}

// SAFETY: the library's description of a page, which it does not change; any thread may give the page back, once.
unsafe impl Send for DevxUar {}
// SAFETY: as above.
unsafe impl Sync for DevxUar {}

impl DevxUar {
    /// Number in contexts, first byte of the page, and first byte of the register that is this allocation's.
    pub(crate) fn facts(&self) -> (u32, *mut u8, *mut u8) {
        // SAFETY: allocated by the library and not yet freed.
        let uar = unsafe { self.uar.as_ref() };
        (uar.page_id, uar.base_addr.cast(), uar.reg_addr.cast())
    }
}

impl Drop for DevxUar {
    fn drop(&mut self) {
        // SAFETY: allocated by the library, and freed once.
        unsafe { self.devx.library.functions.mlx5dv_devx_free_uar(self.uar.as_ptr()) };
    }
}

/// What libmlx5 tells about an object of verbs. The addresses in it are good as long as the object.
pub(crate) trait InitObj {
    /// What is told.
    type Facts;

    /// Asks. `EOPNOTSUPP` if the object is another driver's.
    fn init_obj(&self, library: &Library) -> io::Result<Self::Facts>;
}

fn init(library: &Library, object: &mut mlx5dv_obj, kind: mlx5dv_obj_type) -> io::Result<()> {
    // SAFETY: who calls set the object of this kind, and a place for the facts.
    status(unsafe { library.functions.mlx5dv_init_obj(object, u64::from(kind)) })
}

impl InitObj for Pd {
    type Facts = mlx5dv_pd;

    fn init_obj(&self, library: &Library) -> io::Result<mlx5dv_pd> {
        let mut facts = mlx5dv_pd::default();
        let mut object = mlx5dv_obj::default();
        object.pd.in_ = self.raw();
        object.pd.out = &raw mut facts;
        init(library, &mut object, MLX5DV_OBJ_PD)?;
        Ok(facts)
    }
}

impl InitObj for Cq {
    type Facts = mlx5dv_cq;

    fn init_obj(&self, library: &Library) -> io::Result<mlx5dv_cq> {
        let mut facts = mlx5dv_cq::default();
        let mut object = mlx5dv_obj::default();
        object.cq.in_ = self.raw();
        object.cq.out = &raw mut facts;
        init(library, &mut object, MLX5DV_OBJ_CQ)?;
        Ok(facts)
    }
}

impl InitObj for Qp {
    type Facts = mlx5dv_qp;

    fn init_obj(&self, library: &Library) -> io::Result<mlx5dv_qp> {
        let comp_mask = u64::from(MLX5DV_QP_MASK_UAR_MMAP_OFFSET);
        let mut facts = mlx5dv_qp { comp_mask, ..mlx5dv_qp::default() };
        let mut object = mlx5dv_obj::default();
        object.qp.in_ = self.raw();
        object.qp.out = &raw mut facts;
        init(library, &mut object, MLX5DV_OBJ_QP)?;
        Ok(facts)
    }
}

impl InitObj for Srq {
    type Facts = mlx5dv_srq;

    fn init_obj(&self, library: &Library) -> io::Result<mlx5dv_srq> {
        let comp_mask = u64::from(MLX5DV_SRQ_MASK_SRQN);
        let mut facts = mlx5dv_srq { comp_mask, ..mlx5dv_srq::default() };
        let mut object = mlx5dv_obj::default();
        object.srq.in_ = self.raw();
        object.srq.out = &raw mut facts;
        init(library, &mut object, MLX5DV_OBJ_SRQ)?;
        Ok(facts)
    }
}

impl InitObj for Ah {
    type Facts = AddressVector;

    fn init_obj(&self, library: &Library) -> io::Result<AddressVector> {
        let mut facts = mlx5dv_ah::default();
        let mut object = mlx5dv_obj::default();
        object.ah.in_ = self.raw();
        object.ah.out = &raw mut facts;
        init(library, &mut object, MLX5DV_OBJ_AH)?;
        // SAFETY: the library points to the handle's address vector, which is alive as long as the handle; ours has the same layout
        // (`mlx5dv-sys/tests/layouts.rs`), alignment 1, and any bytes are valid.
        Ok(unsafe { facts.av.cast::<AddressVector>().read() })
    }
}

impl Qp {
    /// As [`Qp::create`], with a register of `thread`'s, and with flags of `mlx5dv_qp_init_attr.create_flags`.
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
        // SAFETY: domain and queues are alive, and the handle keeps them so; the attributes are valid for the call.
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
    /// As [`Cq::create`], with entries of 64 or 128 bytes, and without overrun checks.
    pub(crate) fn create_mlx5(
        library: &Library,
        context: &Arc<OpenContext>,
        entries: u32,
        channel: Option<Arc<Channel>>,
        entry_size: u16,
    ) -> io::Result<Self> {
        let mut attributes = ibv_cq_init_attr_ex {
            cqe: entries,
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
        // SAFETY: context and channel are alive, and the handle keeps them so; the attributes are valid for the call. An extended queue begins with
        // a plain one (`ibv_cq_ex_to_cq`).
        unsafe {
            let queue = library.functions.mlx5dv_create_cq(context.raw(), &raw mut attributes, &raw mut own);
            let parents = CqParents { context: Arc::clone(context), channel };
            Self::take(queue.cast::<ibv_cq>(), ibv_destroy_cq, parents)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_told_from_silence() {
        const EREMOTEIO: i32 = 121;
        let error = || Err(io::Error::from_raw_os_error(EREMOTEIO));
        assert!(answered(Ok(()), &[0; 16]).is_ok());
        assert!(answered(error(), &[0; 16]).is_err());
        assert!(answered(error(), &[]).is_err());
        // BAD_PARAM, as the device answered.
        assert!(answered(error(), &[3, 0, 0, 0]).is_ok());
    }
}
