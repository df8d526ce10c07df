//! libmlx5 as it is found when the program runs.

use std::ffi::{c_char, c_int};
use std::fmt;
use std::sync::OnceLock;

use rdma_sys::{ibv_context, ibv_mr, ibv_pd};

use crate::bindings::Functions;

/// The name by which the loader knows the library. libibverbs loads the same file as its provider, so there is one copy of its state.
const NAME: &str = "libmlx5.so.1";

/// `mlx5dv_reg_dmabuf_mr` (rdma-core 54): domain, offset, length, I/O virtual address, descriptor, access, mlx5 access.
pub type RegDmabufMr = unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int, c_int) -> *mut ibv_mr;

/// `mlx5dv_get_data_direct_sysfs_path` (rdma-core 54): context, buffer, its length.
pub type GetDataDirectSysfsPath = unsafe extern "C" fn(*mut ibv_context, *mut c_char, usize) -> c_int;

/// libmlx5, loaded.
pub struct Library {
    /// What every supported version has.
    pub functions: Functions,
    /// Registers memory of another device, through that device's own path to memory if asked; `None` before rdma-core 54.
    pub reg_dmabuf_mr: Option<RegDmabufMr>,
    /// Where sysfs has the function of the data-direct path; `None` before rdma-core 54.
    pub get_data_direct_sysfs_path: Option<GetDataDirectSysfsPath>,
}

impl Library {
    /// The library. It is loaded at the first call and stays.
    ///
    /// # Errors
    /// The loader's words, of the first call: the library is not there, or lacks a function of rdma-core 44.
    pub fn get() -> Result<&'static Self, &'static libloading::Error> {
        static LIBRARY: OnceLock<Result<Library, libloading::Error>> = OnceLock::new();
        LIBRARY.get_or_init(Self::load).as_ref()
    }

    fn load() -> Result<Self, libloading::Error> {
        // SAFETY: the initialisers of libmlx5 register a driver with libibverbs and ask nothing of who loads it.
        let library = unsafe { libloading::Library::new(NAME) }?;
        // SAFETY: the types are those of rdma-core's header, of the version that first had the functions; the ABI is
        // stable from then on. A copied symbol outlives `library`, which `functions` keeps.
        let (reg_dmabuf_mr, get_data_direct_sysfs_path) = unsafe {
            (
                library.get::<RegDmabufMr>(b"mlx5dv_reg_dmabuf_mr\0").ok().map(|symbol| *symbol),
                library
                    .get::<GetDataDirectSysfsPath>(b"mlx5dv_get_data_direct_sysfs_path\0")
                    .ok()
                    .map(|symbol| *symbol),
            )
        };
        // SAFETY: the types are made of the header of rdma-core 44, and the ABI is stable from then on.
        let functions = unsafe { Functions::from_library(library) }?;
        Ok(Self { functions, reg_dmabuf_mr, get_data_direct_sysfs_path })
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library")
            .field("reg_dmabuf_mr", &self.reg_dmabuf_mr.is_some())
            .field("get_data_direct_sysfs_path", &self.get_data_direct_sysfs_path.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_there_once_or_says_why_not() {
        match (Library::get(), Library::get()) {
            (Ok(first), Ok(second)) => assert!(std::ptr::eq(first, second)),
            (Err(first), Err(_)) => assert!(first.to_string().contains("libmlx5"), "{first}"),
            _ => panic!("the answer changed"),
        }
    }
}
