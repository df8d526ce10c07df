//! Loads libmlx5 at run time.

use std::ffi::{c_char, c_int};
use std::fmt;
use std::sync::OnceLock;

use rdma_sys::{ibv_context, ibv_mr, ibv_pd};

use crate::bindings::Functions;

/// The library's soname. libibverbs loads the same file as its provider, so the process has one
/// copy of its state.
const NAME: &str = "libmlx5.so.1";

/// `mlx5dv_reg_dmabuf_mr` (rdma-core 54): domain, offset, length, I/O virtual address, descriptor,
/// access, mlx5 access.
pub type RegDmabufMr =
    unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int, c_int) -> *mut ibv_mr;

/// `mlx5dv_get_data_direct_sysfs_path` (rdma-core 54): context, buffer, length of the buffer.
pub type GetDataDirectSysfsPath =
    unsafe extern "C" fn(*mut ibv_context, *mut c_char, usize) -> c_int;

/// The loaded libmlx5.
pub struct Library {
    /// The functions of every supported version.
    pub functions: Functions,
    /// Registers another device's memory, on request through that device's data-direct path; `None`
    /// before rdma-core 54.
    pub reg_dmabuf_mr: Option<RegDmabufMr>,
    /// Returns the sysfs path of the data-direct function; `None` before rdma-core 54.
    pub get_data_direct_sysfs_path: Option<GetDataDirectSysfsPath>,
}

impl Library {
    /// Returns the library, which the first call loads and which is never unloaded.
    ///
    /// # Errors
    /// The loader's error at the first call: the library is not installed, or it lacks a function
    /// of rdma-core 44.
    pub fn get() -> Result<&'static Self, &'static libloading::Error> {
        static LIBRARY: OnceLock<Result<Library, libloading::Error>> = OnceLock::new();
        LIBRARY.get_or_init(Self::load).as_ref()
    }

    fn load() -> Result<Self, libloading::Error> {
        // SAFETY: the initialisers of libmlx5 register a driver with libibverbs and have no
        // preconditions.
        let library = unsafe { libloading::Library::new(NAME) }?;
        // SAFETY: the types are those of the first rdma-core header that declares the functions,
        // and the ABI is stable since. `functions` keeps `library` loaded while the copied symbols
        // are used.
        let (reg_dmabuf_mr, get_data_direct_sysfs_path) = unsafe {
            (
                library.get::<RegDmabufMr>(b"mlx5dv_reg_dmabuf_mr\0").ok().map(|symbol| *symbol),
                library
                    .get::<GetDataDirectSysfsPath>(b"mlx5dv_get_data_direct_sysfs_path\0")
                    .ok()
                    .map(|symbol| *symbol),
            )
        };
        // SAFETY: the types are generated from the header of rdma-core 44, and the ABI is stable
        // since.
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
    fn the_library_is_loaded_once_or_the_error_names_it() {
        match (Library::get(), Library::get()) {
            (Ok(first), Ok(second)) => assert!(std::ptr::eq(first, second)),
            (Err(first), Err(_)) => assert!(first.to_string().contains("libmlx5"), "{first}"),
            _ => panic!("the second call returned something else"),
        }
    }
}
