//! Memory on the device. verbs.h reaches these functions by inline functions.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use barewire_mlx5dv_sys::{Library, MLX5DV_OBJ_DM, mlx5dv_dm, mlx5dv_obj};
use rdma_sys::{ibv_access_flags, ibv_alloc_dm_attr, ibv_dereg_mr, ibv_dm};

use super::dv::init;
use super::extended::{EOPNOTSUPP, function};
use super::handle::Handle;
use super::{InitObj, Mr, OpenContext, Pd, Plain};

/// Memory on the device.
pub(crate) type Dm = Handle<ibv_dm, Arc<OpenContext>>;

// SAFETY: all fields are integers, for which zero is valid.
unsafe impl Plain for ibv_alloc_dm_attr {}

/// verbs.h: `ibv_free_dm`.
///
/// # Safety
/// The memory exists, and no other code frees it.
unsafe extern "C" fn free_dm(memory: *mut ibv_dm) -> c_int {
    // SAFETY: the memory exists by the contract of this function, and contains a pointer to its
    // context, which outlives it.
    unsafe { function!((*memory).context, free_dm).map_or(EOPNOTSUPP, |free| free(memory)) }
}

impl Dm {
    /// verbs.h: `ibv_alloc_dm`.
    pub(crate) fn allocate(context: &Arc<OpenContext>, length: usize) -> io::Result<Self> {
        let mut attributes = ibv_alloc_dm_attr { length, ..Plain::zeroed() };
        // SAFETY: the context is open, the attributes are valid during the call, and the handle
        // keeps a reference to the context. `free_dm` is the destructor of the new memory, which no
        // other code calls.
        unsafe {
            let allocate = function!(context.raw(), alloc_dm)?;
            Self::take(allocate(context.raw(), &raw mut attributes), free_dm, Arc::clone(context))
        }
    }
}

impl InitObj for Dm {
    type Info = NonNull<u8>;

    fn init_obj(&self, library: &Library) -> io::Result<NonNull<u8>> {
        let mut info = mlx5dv_dm::default();
        let mut object = mlx5dv_obj::default();
        object.dm.in_ = self.raw();
        object.dm.out = &raw mut info;
        // SAFETY: `self` owns a live object, and `info` is a local variable; `object` points to both.
        unsafe { init(library, &mut object, MLX5DV_OBJ_DM)? };
        NonNull::new(info.buf.cast()).ok_or_else(|| io::Error::other("libmlx5 left an address out"))
    }
}

impl Mr {
    /// verbs.h: `ibv_reg_dm_mr`, zero-based, of the first `length` bytes.
    pub(crate) fn register_on_device(
        domain: &Arc<Pd>,
        memory: &Dm,
        length: usize,
        access: u32,
    ) -> io::Result<Self> {
        let access = access | ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
        // SAFETY: domain and memory are alive, and the handle keeps a reference to the domain. The
        // kernel refuses to free the memory while the region exists. `ibv_dereg_mr` is the
        // destructor of the new region, which no other code calls.
        unsafe {
            let register = function!(domain.context().raw(), reg_dm_mr)?;
            let region = register(domain.raw(), memory.raw(), 0, length, access);
            Self::take(region, ibv_dereg_mr, Arc::clone(domain))
        }
    }
}
